# How gpu-check.sh runs its steps: each bounded, all of them within one clock, and the results packed after each, so that
# what is there when somebody ends the script is whole. Sourced, with these set: out (folder of the results), work (folder
# of logs, goes away), call (name of this call), seconds (for all steps), gpu.

failures=0
running=           # process group of the step that runs
watching=          # who looks after it
running_name= started_before= log=
reserve=4          # seconds kept for packing
group_ends=        # when the steps of a group have to be done, in seconds of the clock
shown_from=        # a pattern: where in the log of a step that failed its report begins, if not 12 lines before the end
most_log=4194304   # bytes of a log that is kept whole
most_archive=15728640
# To the summary, and to whoever looks: nobody has to (trap PIPE).
say() {
  echo "$*" >>"$out/summary.md"
  echo "$*" 2>/dev/null
}
say_lines() { while IFS= read -r line; do say "$line"; done; }
left() {
  local room=$((seconds - SECONDS - reserve))
  [ -z "$group_ends" ] || [ "$room" -le $((group_ends - SECONDS)) ] || room=$((group_ends - SECONDS))
  echo "$room"
}

# Whoever is killed leaves this file, whole, from the step before; the log of the step that ran then is OUT/running.log.
pack() {
  cp -f "$out/summary.md" "$work/summary.md" 2>/dev/null
  if tar -C "$work" -czf "$out/.$call.new" . 2>"$work/tar.err"; then
    if [ "$(stat -c %s "$out/.$call.new")" -gt "$most_archive" ]; then
      say "- the archive is larger than $((most_archive / 1048576)) MiB: what is larger than 512 KiB is left out of it"
      (cd "$work" && find . -type f -size -1024 -print0 | tar --null -T - -czf "$out/.$call.new") 2>"$work/tar.err"
    fi
    mv -f "$out/.$call.new" "$out/$call.tar.gz" && return 0
  fi
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
  [ -z "$watching" ] || kill "$watching" 2>/dev/null
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

# Of a log that is too long the two ends.
keep_log() {
  if [ "$(stat -c %s "$log" 2>/dev/null || echo 0)" -gt "$most_log" ]; then
    { head -c $((most_log / 4)) "$log"; printf '\n... left out ...\n'; tail -c $((most_log / 4)) "$log"; } >"$work/$1.log" && rm -f "$log"
  else
    mv -f "$log" "$work/$1.log"
  fi
}

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
  # What a rehearsal makes of steps: a list of NAME=fail, crash or hang with commas between; all=... is of all. Outside of one
  # nothing is made of any.
  case ${rehearses:+,${SLUICE_REHEARSED_FAULT:-},} in
    *",$name=fail,"* | *,all=fail,*) set -- sh -c 'echo made to fail; exit 1' ;;
    *",$name=crash,"* | *,all=crash,*) set -- sh -c 'echo made to crash; kill -ABRT $$' ;;
    *",$name=hang,"* | *,all=hang,*)
      set -- sh -c 'echo made to hang; trap "" TERM; sleep 10000'
      limit=${SLUICE_REHEARSED_LIMIT:-$limit}
      ;;
  esac
  [ "$limit" -le "$room" ] || limit=$room
  # Where whoever kills this call finds it; programs fail where their output has no room.
  log=$out/running.log
  [ "$(kib "$out")" -gt 1024 ] || log=$work/running.log
  started_before=${!:-}
  running_name=$name
  timeout -k 2 "$limit" "$@" >"$log" 2>&1 </dev/null &
  running=$!
  # A process that waits for a driver may outlive even SIGKILL, and `timeout` with it.
  sleep $((limit + 5)) 9<&- &
  watching=$!
  { wait -n "$running" "$watching" || status=$?; } 2>/dev/null
  if kill -0 "$watching" 2>/dev/null; then
    { kill "$watching" && wait "$watching"; } 2>/dev/null
  else
    status=124
    kill -KILL -- "-$running" 2>/dev/null
    say "- $name: could not be ended: what comes next may meet it"
  fi
  keep_log "$name"
  running= watching=
  if [ "$status" -eq 0 ]; then
    say "- $name: passed, $((SECONDS - start)) s"
  else
    case $status in
      124 | 137) say "- $name: FAILED: not done after $((SECONDS - start)) s, or killed; the end of its log:" ;;
      *) say "- $name: FAILED ($status), $((SECONDS - start)) s; the end of its log:" ;;
    esac
    if [ -n "$shown_from" ] && grep -q "$shown_from" "$work/$name.log"; then
      sed -n "/$shown_from/,\$p" "$work/$name.log" | head -n 160
    else
      tail -n 12 "$work/$name.log"
    fi | cut -c -300 | sed 's/^/      /' | say_lines
    failures=$((failures + 1))
  fi
  running_name=
  pack
  return "$status"
}
