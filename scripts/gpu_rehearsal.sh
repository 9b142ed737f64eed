#!/usr/bin/env bash
# Tries gpu-check.sh where nothing is installed and there is no GPU: a bundle of the host's stand-in in a root of another Debian.
# Prints what docs/gpu/rehearsal.md keeps. As root; the machine needs debootstrap, the root only what it brings:
#
#   scripts/gpu_bundle.sh --stand-in -o stand-in.tar.xz
#   debootstrap --variant=minbase --include=python3 bookworm ROOT http://deb.debian.org/debian
#   scripts/gpu_rehearsal.sh stand-in.tar.xz ROOT [GPU-BUNDLE]
#
# Every part, each call with its limit of nine minutes; a user without rights in a folder with a space, with an LD_LIBRARY_PATH
# of what are no libraries; a call that is killed, one beside its step, one that is ended; what a machine without a GPU is told,
# by GPU-BUNDLE too. Then both calls of gpu_lent.sh, whole, with each of their steps made to fail, to hang for all of its time and
# to crash once, and with all of them hanging (most of an hour; --lent first or second: that call alone). Fails where a step does,
# or where a call leaves more than six files.
set -uo pipefail
lent_calls="first second" only_lent=
[ "${1:-}" != --lent ] || { only_lent=yes lent_calls=${2:-}; shift 2; }
[ $# -ge 2 ] && [ $# -le 3 ] && [ -f "$1" ] && [ -d "$2/proc" ] || { sed -n '2,13p' "$0" >&2; exit 2; }
bundle=$(realpath "$1") root=$(realpath "$2") real=${3:+$(realpath "$3")}
cd "$(dirname "$0")/.." || exit 2
place=$root/rehearsal folder=sluice-gpu status=0
fail() { echo "# WRONG: $*"; status=1; }

rm -rf "$place" && mkdir -p "$place" "$root/dev/shm" || exit 2
mounted=()
put_away() { for mount in "${mounted[@]}"; do umount -l "$mount"; done; }
trap put_away EXIT
for mount in proc dev dev/shm; do
  mount --bind "/$mount" "$root/$mount" && mounted=("$root/$mount" "${mounted[@]}") || exit 2
done
# become COMMAND...: this process becomes it, in the root, in the rehearsal's folder.
become() {
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root ${more:+"$more"} \
    chroot ${user:+"--userspec=$user"} "$root" /bin/sh -c 'cd /rehearsal && exec "$@"' sh "$@"
}
inside() { (become "$@"); }
user='' more=''
# files OUT: what a call has left.
files() {
  local count
  count=$(find "$place/$1" -type f | wc -l)
  echo "# files: $(ls -A "$place/$1" | tr '\n' ' ')"
  [ "$count" -le 6 ] || fail "$count files"
}
# call EXPECTED OUT ARGUMENTS...: one call, and what it leaves.
call() {
  local expected=$1 out=$2 began=$SECONDS code=0
  shift 2
  inside "$folder/scripts/gpu-check.sh" --out "$out" "$@" || code=$?
  echo "# exit $code after $((SECONDS - began)) s"
  files "$out"
  [ "$code" -eq "$expected" ] || fail "exit $code instead of $expected"
  [ $((SECONDS - began)) -le 545 ] || fail "longer than nine minutes"
}
# in_the_middle SIGNAL OUT: a call of `tests` gets it while the kernels' tests run.
in_the_middle() {
  become "$folder/scripts/gpu-check.sh" --rehearse --part tests --out "$2" &
  local pid=$!
  until grep -q '^- kernels-test-vocabulary' "$place/$2/summary.md" 2>/dev/null; do sleep 0.5; done
  sleep 2
  kill "-$1" $pid
  wait $pid 2>/dev/null
  echo "# exit $?"
  files "$2"
  echo "# in the archive: $(tar -tzf "$place/$2"/*.tar.gz | grep -o '[^/]*\.log' | tr '\n' ' ')"
}

cp "$bundle" "$place/bundle.tar.xz" && inside python3 -m tarfile -e bundle.tar.xz . || exit 2
echo "# $(sed -n 's/^PRETTY_NAME=//p' "$root/etc/os-release"), $(inside ldd --version | sed -n 1p)"

# All that gpu-check.sh may be asked.
rehearse_parts() {
  call 0 first --rehearse
  call 0 resident --rehearse --part e2e-resident
  call 0 offload --rehearse --part e2e-offload
  call 0 large --rehearse --part large
  call 0 peers --rehearse --part build,peers
  echo "# a user without rights, a folder with a space, an LD_LIBRARY_PATH of what are no libraries"
  mkdir "$place/a folder" && cp -r "$place/sluice-gpu" "$place/a folder/" && chown -R 65534:65534 "$place/a folder" || exit 2
  for library in "$place"/sluice-gpu/bin/lib/*.so*; do
    name=${library##*/}
    # The root's own programs need theirs.
    [ "$name" != libstdc++.so.6 ] && [ -e "$root/usr/lib/x86_64-linux-gnu/$name" ] || echo none >"$place/a folder/$name"
  done
  folder="a folder/sluice-gpu" user=65534:65534 more="LD_LIBRARY_PATH=/rehearsal/a folder"
  call 0 "a folder/out" --rehearse --part e2e-resident
  folder=sluice-gpu user='' more=''
  echo "# killed with SIGKILL in the middle"
  in_the_middle KILL killed
  echo "# at once again, while its step runs on"
  call 1 again --rehearse --part tests
  until inside flock -n /tmp/sluice-gpu-check-0.lock true; do sleep 1; done
  echo "# ended with SIGTERM in the middle"
  in_the_middle TERM ended
  echo "# as a machine without a GPU is told"
  call 1 none --part tests
  if [ -n "$real" ]; then
    rm -rf "$place/sluice-gpu"
    cp "$real" "$place/bundle.tar.xz" && inside python3 -m tarfile -e bundle.tar.xz . || exit 2
    call 1 real
  fi
}

# lent CALL OUT [FAULTS]: one of gpu_lent.sh's calls, from a tree that has the scripts and the bundle alone.
lent() {
  local began=$SECONDS code=0 most=600 faults=${3:-} wrong
  [ "$1" = first ] || most=170
  echo "# lent $1${faults:+: $faults}"
  inside env OUT="/rehearsal/$2" SLUICE_REHEARSED_FAULT="$faults" sh -c 'cd tree && exec bash scripts/gpu_lent.sh "$1" --rehearse' \
    sh "$1" || code=$?
  echo "# exit $code after $((SECONDS - began)) s of $most"
  files "$2"
  [ "$code" -eq $((${#faults} > 0)) ] || fail "exit $code"
  [ $((SECONDS - began)) -le "$most" ] || fail "longer than $most s"
  wrong=$(find "$place/$2" -type f | sed 's,.*/,,' | grep -v '^[A-Za-z0-9._-]*$')
  [ -z "$wrong" ] || fail "names: $wrong"
  [ -z "$(find "$place/$2" -type f -size +16383k)" ] || fail "a file of 16 MiB"
}

# Steps that fail because one before them was made to: there is no model, or no answer.
follows() {
  case $1 in
    offload-cpu | offload-gpu) [[ $2 == *,offload-synth=* ]] ;;
    offload-same) [[ $2 == *,offload-@(synth|cpu|gpu)=* ]] ;;
    profile) [[ $2 == *,synth-opt-tiny-int4=* && $2 == *,synth-opt-tiny-f16=* ]] ;;
    offload-int4) [[ $2 == *,synth-opt-tiny-int4=* ]] ;;
    offload-f16) [[ $2 == *,synth-opt-tiny-f16=* ]] ;;
    *) false ;;
  esac
}

# faulty CALL OUT FAULTS STEP...: such a call; the steps at fault fail, all others pass that have what they work on.
faulty() {
  local call=$1 out=$2 list=$3 step
  shift 3
  lent "$call" "$out" "$list"
  for step; do
    if [[ ,$list, == *",$step="* ]]; then
      grep -q "^- $step: \(FAILED\|not begun\)" "$place/$out/summary.md" || fail "$step did not fail"
    elif ! follows "$step" ",$list,"; then
      grep -q "^- $step: passed" "$place/$out/summary.md" || fail "$step did not pass"
    fi
  done
}

# rehearse_lent CALL: whole, then four times with three of four steps at fault, each time in another way. Where a model can't be
# made its run is not begun: those steps are at fault by themselves. In the end all hang, which takes all the time that there is.
rehearse_lent() {
  local kinds=(fail hang crash none) steps others=() makers=() step turn i list
  lent "$1" "lent-$1"
  mapfile -t steps < <(sed -n 's/^- \([a-z0-9-]*\): \(passed\|FAILED\|not begun\).*/\1/p' "$place/lent-$1/summary.md")
  for step in "${steps[@]}"; do [[ $step == synth-* ]] && makers+=("$step") || others+=("$step"); done
  for turn in 0 1 2 3; do
    list=
    for ((i = 0; i < ${#others[@]}; ++i)); do
      step=${kinds[$(((i + turn) % 4))]}
      [ "$step" = none ] || list+=,${others[i]}=$step
    done
    faulty "$1" "lent-$1-$turn" "${list#,}" "${steps[@]}"
  done
  if [ ${#makers[@]} -gt 0 ]; then
    for turn in fail hang crash; do
      faulty "$1" "lent-$1-$turn" "$(printf ",%s=$turn" "${makers[@]}" | cut -c 2-)" "${steps[@]}"
    done
  fi
  lent "$1" "lent-$1-all" all=hang
}

mkdir -p "$place/tree/build/lent" && cp -r scripts "$place/tree/" && cp "$bundle" "$place/tree/build/lent/sluice-gpu.tar.xz" || exit 2
[ -n "$only_lent" ] || rehearse_parts
for call in $lent_calls; do rehearse_lent "$call"; done
exit $status
