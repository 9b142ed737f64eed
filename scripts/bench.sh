#!/usr/bin/env bash
# The figures of docs/perf-notes.md. Run it on a quiet machine: two cores that compile something else measure that.
#   scripts/bench.sh FOLDER capped   7B shape in bf16 under a 4 GiB memory cap of the whole process (page cache counted)
#   scripts/bench.sh FOLDER memory   1.1B shape in memory: prompts, decoding, and the products beside oneDNN's own
#   scripts/bench.sh FOLDER mixture  Qwen3-30B-A3B shape, a GGUF file of 17 GB, the whole process capped at 6 GiB
#   scripts/bench.sh FOLDER large    OPT-30B shape in f16 (60 GB in FOLDER) with --cpu-mem 16GiB
# FOLDER takes the synthetic checkpoints (13.5 GB, 2.2 GB, 17 GB, 60 GB), which stay there for the next run.
# A peer beside it: LLAMA_BIN, the folder of llama-bench and llama-batched-bench, and LLAMA_7B / LLAMA_1B, its files of the
# same shapes. REPS repeats each measurement (default 3).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:?folder for the checkpoints}
what=${2:?capped, memory, mixture or large}
sluice=$PWD/build/release/bin/sluice
reps=${REPS:-3}
cap=$((4 << 30))
mkdir -p "$folder"

need() {  # NAME DTYPE: makes the checkpoint once
  [ -e "$folder/$1-$2/config.json" ] || "$sluice" synth "$1" "$folder/$1-$2" --dtype "$2" >/dev/null
}

# capped COMMAND...: runs it in a memory cgroup of its own (v1 or v2) and prints the highest use that the kernel counted.
capped() {
  local group limit peak procs
  if [ -e /sys/fs/cgroup/cgroup.controllers ] && grep -qw memory /sys/fs/cgroup/cgroup.controllers; then
    group=/sys/fs/cgroup/sluice-bench limit=memory.max peak=memory.peak procs=cgroup.procs
  else
    group=/sys/fs/cgroup/memory/sluice-bench limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes procs=tasks
  fi
  mkdir -p "$group" || { echo "bench: no memory cgroup can be made here; run as root" >&2; exit 1; }
  echo "$cap" >"$group/$limit"
  echo 3 >/proc/sys/vm/drop_caches 2>/dev/null || true
  (echo "$BASHPID" >"$group/$procs" && exec "$@") && local status=0 || local status=$?
  echo "capped at $cap bytes: $(cat "$group/$peak") at most, exit $status"
  rmdir "$group"
}

machine() {
  date -u +%Y-%m-%d
  lscpu | sed -n 's/^\(CPU(s)\|Model name\|CPU family\|Model\|L3 cache\): */\1: /p'
  lscpu | grep -o 'amx_bf16\|avx512_bf16\|avx512f\|avx2' | sort -u | tr '\n' ' '
  echo
  uname -r
  git describe --always --dirty
}

peer() { [ -n "${LLAMA_BIN:-}" ] && [ -n "${!1:-}" ]; }
table() { grep -E '^\||lane|tier|load |capped|probe:' || true; }

machine
case $what in
  capped)
    need llama-2-7b bf16
    model=$folder/llama-2-7b-bf16
    if command -v fio >/dev/null; then
      fio --name=raw --filename="$(ls "$model"/*.safetensors | head -1)" --readonly --rw=read --bs=1M --iodepth=64 \
        --ioengine=io_uring --direct=1 --fixedbufs --registerfiles --time_based --runtime=5 | grep -o 'BW=[^)]*)'
    fi
    for batch in ${BATCHES:-1 8 32 128 256}; do
      [ "$batch" -ge 128 ] && prompt=4 || prompt=8
      capped "$sluice" bench "$model" --cpu-mem 3.7GiB --batch "$batch" --pp $prompt --tg 4 --reps "$reps" 2>&1 | table
      if peer LLAMA_7B && [ "$batch" -le 128 ]; then
        capped "$LLAMA_BIN/llama-batched-bench" -m "$LLAMA_7B" -t "$(nproc)" -npp 8 -ntg 4 -npl "$batch" -pps -kvu \
          -c 1024 -b 512 -ub 512 2>&1 | table
      fi
    done
    ;;
  memory)
    need tinyllama-1.1b bf16
    model=$folder/tinyllama-1.1b-bf16
    "$sluice" bench "$model" --batch 1 --pp 512 --tg 32 --reps "$reps" --memory-probe 1GiB --no-disk-probe 2>&1 | table
    "$sluice" bench "$model" --batch 8,32 --pp 128 --tg 16 --reps "$reps" --no-disk-probe 2>&1 | table
    if peer LLAMA_1B; then
      "$LLAMA_BIN/llama-bench" -m "$LLAMA_1B" -t "$(nproc)" -p 512 -n 32 -r "$reps" 2>&1 | table
      "$LLAMA_BIN/llama-batched-bench" -m "$LLAMA_1B" -t "$(nproc)" -npp 128 -ntg 16 -npl 8,32 -pps -kvu 2>&1 | table
    fi
    bench=build/release/bin/sluice_kernel_bench
    if [ -x $bench ]; then
      $bench --benchmark_filter="${KERNELS:-.}" --benchmark_repetitions="$reps" --benchmark_report_aggregates_only=true
    else
      echo "bench: configure with -DSLUICE_BENCHMARKS=ON for the kernels"
    fi
    ;;
  mixture)
    model=$folder/qwen3-30b-a3b-q4_0.gguf
    scripts/fixtures.py unpack
    [ -e "$model" ] || scripts/random_gguf.py qwen3-30b-a3b Q4_0 tests/fixtures/gguf/ggml-vocab-llama-spm.gguf "$model"
    cap=$((6 << 30))
    for batch in ${BATCHES:-1 8 32}; do
      capped "$sluice" bench "$model" --cpu-mem 5.6GiB --batch "$batch" --pp 8 --tg 16 --reps "$reps" 2>&1 | table
      if [ -n "${LLAMA_BIN:-}" ]; then
        capped "$LLAMA_BIN/llama-batched-bench" -m "$model" -t "$(nproc)" -npp 8 -ntg 16 -npl "$batch" -c 1024 -b 512 -ub 512 \
          -nr 2>&1 | table  # repacked weights would not fit
      fi
    done
    ;;
  large)
    need opt-30b f16
    model=$folder/opt-30b-f16
    for i in $(seq 16); do
      echo "{\"custom_id\": \"$i\", \"prompt\": [2, $((100 + i)), $((200 + 7 * i)), 50, 8, 31]}"
    done >"$folder/prompts.jsonl"
    rm -f "$folder/answers.jsonl"
    "$sluice" batch "$model" "$folder/prompts.jsonl" -o "$folder/answers.jsonl" -n 4 --cpu-mem 16GiB 2>&1 |
      tr '\r' '\n' | grep -v '^loading' || true
    wc -l "$folder/answers.jsonl"
    ;;
  *)
    echo "bench: $what is not capped, memory, mixture or large" >&2
    exit 2
    ;;
esac
