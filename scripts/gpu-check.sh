#!/usr/bin/env bash
# What a machine with a GPU is asked, in calls of less than ten minutes, nothing to download:
#
#   scripts/gpu-check.sh                      the first call: tests, kernels, sanitizer, ncu, by what they are worth, in 9 minutes
#   scripts/gpu-check.sh --part e2e-resident  models of random weights in the GPU's memory: graphs, int8, fp8
#   scripts/gpu-check.sh --part e2e-offload   models larger than 16 GiB of it: their lanes, expected and measured
#   scripts/gpu-check.sh --part large         Llama-3-70B and OPT-175B in int4, out of 40 and 100 GB of host memory
#   scripts/gpu-check.sh --part peers         the same models on Accelerate and FlexGen where Python has them
#   scripts/gpu-check.sh --part lent-first    all that a GPU lent for ten minutes can say (gpu_lent.sh sends it), then lent-second
#   scripts/gpu-check.sh --part build         builds the programs for this GPU, where there is no bundle of them
#
# Parts: build, tests, kernels, sanitizer, ncu, e2e-resident, e2e-offload, large, peers, several with commas between, or "all";
# lent-first, lent-second. The programs are those of a bundle (scripts/gpu_bundle.sh; this script lies in it), else of --part build.
# --out DIR (default gpu-check): summary.md, and one NAME.tar.gz a call with the logs and the JSON, whole after every step:
# whoever ends a call early has what was done. --seconds N (default 540, of all parts 4800): of the call. --gpu N. --cpu-mem SIZE (default: four
# fifths of what is available). --models DIR: keeps the random models there (default: made in memory or the temporary folder
# and removed; 3 GB, since a store's layers are one; Accelerate makes its own in memory, 60 GB). --profile FILE: of this machine, in
# place of measuring it. --rehearse: tiny models, and
# no GPU needed: tries this script itself with a bundle of the host's stand-in (gpu_bundle.sh --stand-in).
set -uo pipefail
called_from=$PWD
cd "$(dirname "$0")/.." || exit 2
usage() { echo "gpu-check: $1" >&2; sed -n '2,23p' scripts/gpu-check.sh >&2; exit 2; }
parts=tests,kernels,sanitizer,ncu out=gpu-check gpu=0 models= seconds= cpu_mem= rehearses= profile=
while [ $# -gt 0 ]; do
  case $1 in
    --rehearse) rehearses=yes; shift; continue ;;
    --part | --out | --gpu | --models | --seconds | --cpu-mem | --profile) [ $# -ge 2 ] || usage "$1 needs a value" ;;
    *) usage "unknown argument $1" ;;
  esac
  case $1 in
    --part) parts=$2 ;;
    --out) out=$2 ;;
    --gpu) gpu=$2 ;;
    --models) models=$2 ;;
    --seconds) seconds=$2 ;;
    --cpu-mem) cpu_mem=$2 ;;
    --profile) profile=$2 ;;
  esac
  shift 2
done
[[ $gpu =~ ^[0-9]+$ ]] || usage "--gpu $gpu is no number"
[ -n "$seconds" ] || { [ "$parts" = all ] && seconds=4800 || seconds=540; }
[[ $seconds =~ ^[1-9][0-9]*$ ]] || usage "--seconds $seconds is no number of seconds"
[ "$parts" != all ] || parts=build,tests,kernels,sanitizer,ncu,e2e-resident,e2e-offload,large,peers
for part in ${parts//,/ }; do
  case $part in
    build | tests | kernels | sanitizer | ncu | e2e-resident | e2e-offload | large | peers | lent-first | lent-second) ;;
    *) usage "no part $part" ;;
  esac
done
# absolute PATH: as seen from where the script was called.
absolute() { [[ -z $1 || $1 == /* ]] && echo "$1" || echo "$called_from/$1"; }
out=$(absolute "$out") models=$(absolute "$models") profile=$(absolute "$profile")
mkdir -p "$out" && out=$(cd "$out" && pwd) && touch "$out/summary.md" || { echo "gpu-check: can't write to $out" >&2; exit 2; }
# kib FOLDER: free there.
kib() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'; }
if [ "$(kib "$out")" -lt 51200 ]; then
  echo "gpu-check: $out has $(($(kib "$out") / 1024)) MiB free, 50 are needed: choose another --out" >&2
  exit 2
fi
call=$(date -u +%Y%m%dT%H%M%SZ)-${parts//,/-}
. scripts/gpu_steps.sh
choose_gpu
begin
work=$(mktemp -d) || { echo "gpu-check: no temporary folder: set TMPDIR" >&2; exit 2; }
. scripts/gpu_parts.sh
. scripts/gpu_lent_parts.sh
# A GPU that is lent says what it can, whatever is found wrong first: doctor gets so many seconds.
[[ $parts != lent-* ]] || goes_on=15

say "## $(date -u +%Y-%m-%d) ${rehearses:+rehearsal on the host, no GPU: }$parts"
say "$(timeout 10 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader -i "$device" 2>/dev/null ||
  echo 'no nvidia-smi'), commit $(cat VERSION 2>/dev/null || git rev-parse --short HEAD 2>/dev/null || echo unknown)"
for part in ${parts//,/ }; do
  [ "$part" = build ] || [ -n "$looked" ] || look_at_machine || { finish; exit 1; }
  "part_${part//-/_}"
done
finish
[ "$failures" -eq 0 ]
