#!/usr/bin/env bash
# Two prepared calls for a machine whose GPU is lent for minutes: no network, nothing to install, one command at a time, at most
# eight files back. Here:
#
#   scripts/gpu_bundle.sh -o build/lent/sluice-gpu.tar.xz
#   scripts/gpu_lent.sh --print            the commands to send, each with its limit and the folder that goes with it
#
# There, in a copy of the tree, with OUT the folder that comes back:
#
#   bash scripts/gpu_lent.sh first         kernels, an offloaded model, every family, rates, memcheck: 600 s at most
#   bash scripts/gpu_lent.sh second        a 30B model offloaded, its lanes, Accelerate beside it: 170 s at most
#
# Each leaves OUT/summary.md, one archive of all logs, and pictures of lanes: three files. build/lent/profile.json, where it is
# (from the first call's archive), spares the second call the measuring. --rehearse: tiny models, no GPU. --bundle FILE.
# --seconds N: less than a call's limit, so that time is left to mend what it shows and to ask again.
set -uo pipefail
[[ ${OUT:-/} == /* ]] || OUT=$PWD/$OUT
cd "$(dirname "$0")/.." || exit 2
folder=build/lent bundle=build/lent/sluice-gpu.tar.xz call= seconds= rehearse=()
declare -A most=([first]=600 [second]=170)
slack=12       # seconds of a call's limit in which it has ended by itself
most_mib=64    # of all that is sent
usage() { echo "gpu_lent: $1" >&2; sed -n '2,18p' scripts/gpu_lent.sh >&2; exit 2; }

print_calls() {
  local name
  for name in first second; do
    echo "$name call, at most ${most[$name]} s, with the folder $folder:"
    echo "bash scripts/gpu_lent.sh $name"
  done
  [ -e "$bundle" ] || { echo "gpu_lent: there is no $bundle yet: scripts/gpu_bundle.sh -o $bundle" >&2; return 1; }
  scripts/tree_size.sh "$most_mib" "$folder"/*
}

# unpack: the bundle, once for both calls; the scripts are the tree's, which may be newer.
unpack() {
  local mark
  mark=$(stat -c '%s %y' "$bundle") || return
  if [ "$mark" != "$(cat "$place/mark" 2>/dev/null)" ]; then
    rm -rf "$place" && mkdir -p "$place" || return
    timeout -k 2 60 python3 -m tarfile -e "$bundle" "$place" || timeout -k 2 60 tar -xJf "$bundle" -C "$place" || return
    echo "$mark" >"$place/mark"
  fi
  cp scripts/gpu-check.sh scripts/gpu_*.sh scripts/gpu_*.py scripts/lanes_svg.py scripts/peer_accelerate.py "$place/sluice-gpu/scripts/"
}

while [ $# -gt 0 ]; do
  case $1 in
    --print) print_calls; exit ;;
    --rehearse) rehearse=(--rehearse) ;;
    --bundle | --seconds)
      [ $# -ge 2 ] || usage "$1 needs a value"
      if [ "$1" = --bundle ]; then bundle=$2; else seconds=$2; fi
      shift
      ;;
    first | second) call=$1 ;;
    *) usage "unknown argument $1" ;;
  esac
  shift
done
[ -n "$call" ] || usage "which call? first or second"
seconds=${seconds:-${most[$call]}}
[[ $seconds =~ ^[1-9][0-9]*$ ]] && [ "$seconds" -le "${most[$call]}" ] || usage "--seconds $seconds is no number of seconds up to ${most[$call]}"
[ -n "${OUT:-}" ] && mkdir -p "$OUT" || usage "OUT names no folder that can be written"
place=$PWD/build/lent-unpacked
if ! unpack >"$OUT/unpacking.log" 2>&1; then
  { echo "- $bundle can't be unpacked:"; tail -n 12 "$OUT/unpacking.log" | cut -c -300 | sed 's/^/      /'; } | tee -a "$OUT/summary.md"
  exit 1
fi
rm -f "$OUT/unpacking.log"
profile=()
[ "$call" = second ] && [ -s "$folder/profile.json" ] && profile=(--profile "$folder/profile.json")
# A lock of its own: what a call before could not end does not keep this one from the GPU.
TMPDIR=$(mktemp -d) || usage "no temporary folder can be made"
export TMPDIR
# Whoever calls ends the shell: the check must be it.
exec bash "$place/sluice-gpu/scripts/gpu-check.sh" --part "lent-$call" --out "$OUT" \
  --seconds $((seconds - slack - SECONDS)) "${profile[@]}" "${rehearse[@]}"
