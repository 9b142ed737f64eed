# How gpu-check.sh runs its steps: each bounded, all of them within one clock, and the results packed after each, so that
# what is there when somebody ends the script is whole. Sourced, with these set: out (folder of the results), work (folder
# of logs, goes away), call (name of this call), seconds (for all steps), gpu.

failures=0
running=           # process group of the step that runs
running_name= started_before= log=
reserve=4          # seconds kept for packing
# To the summary, and to whoever looks: nobody has to (trap PIPE).
say() {
  echo "$*" >>"$out/summary.md"
  echo "$*" 2>/dev/null
}
say_lines() { while IFS= read -r line; do say "$line"; done; }
left() { echo $((seconds - SECONDS - reserve)); }

# Whoever is killed leaves this file, whole, from the step before; the log of the step that ran then is OUT/running.log.
pack() {
  cp -f "$out/summary.md" "$work/summary.md" 2>/dev/null
  if tar -C "$work" -czf "$out/.$call.new" . 2>"$work/tar.err" && mv -f "$out/.$call.new" "$out/$call.tar.gz"; then return 0; fi
  rm -f "$out/.$call.new"
  echo "gpu-check: can't write $out/$call.tar.gz: $(tail -n 1 "$work/tar.err" 2>/dev/null)" >&2
  return 1
}

stop_step() {
  [ -n "$running" ] || return 0
  kill -TERM "$running" 2>/dev/null
  for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$running" 2>/dev/null || break; sleep 0.2; done
  kill -KILL -- "-$running" 2>/dev/null
}

# ended CODE WHY: packs what there is and leaves.
ended() {
  trap '' TERM INT HUP
  # The signal may come between a step's start and the line after it.
  if [ -z "$running" ] && [ -n "$running_name" ] && [ "${!:-}" != "$started_before" ]; then running=$!; fi
  stop_step
  [ -z "$running" ] || keep_log "$running_name"
  say "- ended by $2 in ${running_name:-no step}; the steps after it were not begun"
  finish
  exit "$1"
}

finish() {
  say "$failures failures in $SECONDS s; logs are in $call.tar.gz"
  rm -rf "${own_models:-/nonexistent}"
  if pack; then rm -rf "$work"; else echo "gpu-check: logs stay in $work" >&2; failures=$((failures + 1)); fi
}

keep_log() { mv -f "$log" "$work/$1.log"; }

# choose_gpu: makes GPU number $gpu the only one that programs see, and `device` what names it to nvidia-smi.
choose_gpu() {
  local visible
  IFS=, read -ra visible <<<"${CUDA_VISIBLE_DEVICES:-}"
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ] && [ "$gpu" -ge "${#visible[@]}" ]; then
    echo "gpu-check: there is no GPU $gpu: CUDA_VISIBLE_DEVICES names ${#visible[@]}" >&2
    exit 2
  fi
  device=${visible[$gpu]:-$gpu}
  export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=$device
}

# begin: takes the GPU for this call and starts the clock. Two calls at once would measure each other.
begin() {
  local lock=${TMPDIR:-/tmp}/sluice-gpu-check-$device.lock
  [ -e "$lock" ] || (umask 0; : >"$lock") 2>/dev/null
  if ! exec 9<"$lock"; then echo "gpu-check: can't open $lock: remove it, or set TMPDIR" >&2; exit 2; fi
  if ! flock -n 9; then
    echo "gpu-check: another call uses GPU $device (a step of one that was killed runs on until its limit): wait for it" >&2
    exit 1
  fi
  # Of calls that were killed: nobody else uses this GPU.
  local stale
  for stale in "${TMPDIR:-/tmp}/sluice-models-$device."* "/dev/shm/sluice-models-$device."*; do [ ! -O "$stale" ] || rm -rf "$stale"; done
  SECONDS=0
  trap : PIPE
  trap 'ended 143 SIGTERM' TERM
  trap 'ended 130 SIGINT' INT
  trap 'ended 129 SIGHUP' HUP
}

# step NAME SECONDS command...: runs it for so long at most, keeps its output as NAME.log, says whether it passed. Returns its
# status; 125 where there was no time for it. A command that is a program of ours is named without a folder.
step() {
  local name=$1 limit=$2 start=$SECONDS status=0 room
  shift 2
  [[ $1 == */* ]] || [ ! -x "$bin/$1" ] || set -- "${start_with[@]}" "$bin/$1" "${@:2}"
  room=$(left)
  if [ "$room" -lt 8 ] || [ "$room" -lt $((limit / 4)) ]; then
    say "- $name: not begun, $room s were left"
    failures=$((failures + 1))
    return 125
  fi
  [ "$limit" -le "$room" ] || limit=$room
  # Where whoever kills this call finds it; programs fail where their output has no room.
  log=$out/running.log
  [ "$(kib "$out")" -gt 1024 ] || log=$work/running.log
  started_before=${!:-}
  running_name=$name
  timeout -k 2 "$limit" "$@" >"$log" 2>&1 </dev/null &
  running=$!
  wait "$running" || status=$?
  keep_log "$name"
  running=
  if [ "$status" -eq 0 ]; then
    say "- $name: passed, $((SECONDS - start)) s"
  else
    case $status in
      124 | 137) say "- $name: FAILED: not done after $((SECONDS - start)) s, or killed; the end of its log:" ;;
      *) say "- $name: FAILED ($status), $((SECONDS - start)) s; the end of its log:" ;;
    esac
    tail -n 12 "$work/$name.log" | cut -c -300 | sed 's/^/      /' | say_lines
    failures=$((failures + 1))
  fi
  running_name=
  pack
  return "$status"
}
