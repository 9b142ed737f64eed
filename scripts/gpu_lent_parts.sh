# What gpu-check.sh asks a GPU that is lent for minutes (gpu_lent.sh sends it there): two calls, each by what its steps are
# worth. No step waits for another: what fails, hangs or crashes ends itself alone. Sourced after gpu_parts.sh.

# The machine in full: what the summary's figures are of.
describe_machine() {
  step machine 10 bash -c 'nvidia-smi; lscpu; free -m; df -h . /tmp /dev/shm; ulimit -l; cat /proc/driver/nvidia/version
    python3 -m pip list 2>/dev/null | grep -iE "^(nvidia|torch|accelerate|transformers|flexgen|llama)"; true'
}

# Some tokens that any of the models has.
prompt_ids() { awk 'BEGIN { x = 7; for (i = 0; i < '"$1"'; ++i) { x = (x * 75 + 74) % 65537; printf "%s%d", i ? "," : "", 4 + x % 180 } }'; }

# A model whose layers all differ in three places: 6 GiB on the GPU, more than 2 GiB in pinned host memory, the rest on disk; its
# tokens beside those that the CPU computes in f32. Where two tokens are as likely but for rounding either is right.
offloaded_tokens() {
  local model answer most_gpu=6GiB least_host=2GiB tokens=96
  [ -z "$rehearses" ] || most_gpu=$gpu_mem least_host=1KiB tokens=24
  models_folder 20000000 || return
  group_ends=$((SECONDS + $1))
  model=$models/$(basename "${small%/config.json}")-f16
  answer=(sluice run "$model" --prompt-ids "$(prompt_ids $tokens)" -n 16 --ignore-eos --logprobs 5 --json --io buffered --hardware none)
  step offload-synth 30 sluice synth "$small" "$model.part" --dtype f16 --weights f16 && mv "$model.part" "$model"
  step offload-cpu 25 "${answer[@]}" --compute f32 --cpu-mem "$(host_budget)"
  step offload-gpu 25 "${answer[@]}" --gpu 0 --gpu-mem "$most_gpu" --percent 40 28 100 0 100 0 --trace "$work/offload-trace.json"
  step offload-same 8 python3 scripts/gpu_same.py "$work/offload-cpu.log" "$work/offload-gpu.log" --least-host "$least_host" &&
    sed 's/^/      /' "$work/offload-same.log" | say_lines
  group_ends=
}

part_lent_first() {
  test_vocabulary 20 || [ -n "$rehearses$finds_gpu" ] || {
    say "- there is no GPU for CUDA (doctor says why, nvidia-smi what the driver is): the rest would only take its time"
    describe_machine
    return
  }
  describe_machine
  test_kernels 120
  offloaded_tokens 60
  test_logits 120
  test_engine 90
  show_profile 100
  kernel_bench kernel-bench-products 35 "$products"
  kernel_bench kernel-bench-others 30 "$others"
  synth_limit=30
  bench resident-f16 30 "$small" f16 $both
  show_table
  sanitize 120 memcheck racecheck
}

# lanes NAME: a picture of two decode passes beside the summary, from the trace of the run of that name.
lanes() {
  local trace=$work/$1-trace.json
  [ -e "$trace" ] || return
  python3 scripts/lanes_svg.py "$trace" "$out/$1-lanes.svg" --passes=-4:-2 --title "$1: two of the last passes" >"$work/$1-lanes.log" 2>&1 ||
    say "- no picture of $1's lanes: $(tail -n 1 "$work/$1-lanes.log" | cut -c -200)"
}

part_lent_second() {
  models_folder || return
  profile_limit=45 synth_limit=25
  bench offload-int4 60 "$large" int4 --gpu-mem $gpu_mem $many --trace "$work/offload-int4-trace.json"
  lanes offload-int4
  show_table
  peer_accelerate 80 "${many/--tg 32/--tg 4}"
  bench offload-f16 50 "$large" f16 --gpu-mem $gpu_mem ${many/--tg 32/--tg 4}
  show_table
  describe_machine
}
