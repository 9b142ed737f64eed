# The parts of gpu-check.sh, each a few steps (gpu_steps.sh), the most valuable first.

bin=$PWD/bin
[ -x "$bin/sluice" ] || bin=$PWD/build/gpu/bin
looked=        # whether look_at_machine has
goes_on=       # whether the parts run whatever it found
finds_gpu=yes  # whether doctor does
start_with=()  # what a program is started with: the bundle's own C library where the machine's is older
hardware=      # the profile that runs plan with, once there is one, or none
test_seconds=30  # of one test
some= of_models='*' unfit= large=opt-30b small=opt-6.7b gpu_mem=16GiB many="--batch 16 --pp 512 --tg 32" both="--batch 1,16 --pp 512 --tg 32"
if [ -n "$rehearses" ]; then
  small=$PWD/tests/fixtures/models/opt-tiny/config.json large=$small gpu_mem=4MiB test_seconds=60
  some='*stories260k*:CudaMeasure*' of_models='*/stories260k*'  # fibers are slow
  unfit=':CudaFragments*:CudaOccupancy*'                        # of the stand-in alone: what they read is not in a bundle
  unfit+=':CudaAttention.[CSW]*'                                # and the longest
  many="--batch 2 --pp 8 --tg 4" both="--batch 1,2 --pp 8 --tg 4"
fi

# Says what stops everything else: no programs, no GPU, a driver that is too old, no cuBLASLt.
look_at_machine() {
  looked=yes
  if [ ! -x "$bin/sluice" ]; then
    say "- no programs: unpack a bundle (scripts/gpu_bundle.sh makes one) or run --part build"
    failures=1
    return 1
  fi
  find_driver
  find_cublas
  choose_loader || { failures=1; return 1; }
  step doctor "${goes_on:-40}" sluice doctor --no-speed || [ -n "$goes_on" ] || return 1
  grep -hE '^(ok|look) +(CUDA|cuBLASLt|memory) ' "$work/doctor.log" | cut -c -400 | sed 's/^ */      /' | say_lines
  [ -n "$rehearses" ] && return 0
  if grep -q 'no GPU in use\|built without it' "$work/doctor.log"; then
    finds_gpu=
    [ -z "$goes_on" ] || return 0
    say "- no GPU that CUDA can use (doctor says why, nvidia-smi what the driver is): nothing to check"
    failures=1
    return 1
  fi
}

# The bundle's libraries are found by the programs themselves; an old C library can only be replaced as a whole, loader and all.
choose_loader() {
  "$bin/sluice" version >"$work/version.log" 2>&1 && return 0
  local own=$bin/lib/glibc
  if [ -x "$own/ld-linux-x86-64.so.2" ]; then
    start_with=("$own/ld-linux-x86-64.so.2" --library-path "$own:$bin/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
    if "${start_with[@]}" "$bin/sluice" version >"$work/version-own-libc.log" 2>&1; then
      say "- the programs run with the bundle's own C library: $(tail -n 1 "$work/version.log" | cut -c -200)"
      return 0
    fi
  fi
  say "- the programs don't start here: $(tail -n 1 "$work/version.log" | cut -c -300)"
  return 1
}

# Where pip puts what NVIDIA's packages bring.
pip_folders() {
  python3 -c 'import nvidia, glob
for root in nvidia.__path__:
    print(*glob.glob(root + "/*/"), sep="\n")' 2>/dev/null
}

# toolkit NAME: where that program of the CUDA toolkit is.
toolkit() {
  local places
  places=$(pip_folders | sed 's,$,bin,' | tr '\n' :)
  PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:/usr/local/cuda/bin:${places%:} command -v "$1"
}

# cuBLASLt is too large to carry. Where the loader does not find it, a link beside the bundle's libraries is what it finds: to
# the toolkit's or pip's.
find_cublas() {
  [ -s "$bin/lib/cublas-name" ] || return 0
  local name place folder
  name=$(cat "$bin/lib/cublas-name")
  rm -f "$bin/lib/$name"
  for place in "${CUDA_HOME:-/usr/local/cuda}" "${CUDA_PATH:-/usr/local/cuda}" /usr/local/cuda /usr/local/cuda-*/ /opt/cuda \
    $(pip_folders); do
    for folder in "$place/lib64" "$place/targets/x86_64-linux/lib" "$place/lib"; do
      [ -e "$folder/$name" ] || continue
      ln -s "$folder/$name" "$bin/lib/$name" 2>/dev/null || export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
      say "$name: $folder"
      return 0
    done
  done
  ldconfig -p 2>/dev/null | grep "$name" >/dev/null ||
    say "- no $name in the toolkit's or pip's folders: products of plain weights will fail (pip install nvidia-cublas)"
}

# Containers mount the driver where the loader does not look unless they say so.
find_driver() {
  ldconfig -p 2>/dev/null | grep 'libcuda\.so\.1' >/dev/null && return 0
  local folder
  for folder in /usr/local/nvidia/lib64 /usr/lib64-nvidia /usr/lib/wsl/lib; do
    case ":${LD_LIBRARY_PATH:-}:" in *":$folder:"*) return 0 ;; esac
    [ -e "$folder/libcuda.so.1" ] || continue
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    return 0
  done
}

part_build() {
  [ ! -d "$bin/lib" ] || { say "- build: the bundle's programs"; return; }
  step build 580 bash -c "cmake --preset release -B build/gpu -DSLUICE_CUDA_ARCHS=native -DSLUICE_BENCHMARKS=ON &&
    cmake --build build/gpu --target sluice_tool cuda_kernels_gpu_test cuda_engine_gpu_test sluice_cuda_bench -- -j$(nproc) &&
    cp -f build/gpu/tests/cuda_*_gpu_test build/gpu/bin/"
}

# shards NAME SECONDS PROGRAM TESTS: the tests in a process a core (gpu_shards.py). What fails on a GPU may end all that its
# process could do there.
shards() {
  local name=$1 room shown_from='^[0-9]* tests in'
  room=$(left)
  [ "$2" -gt "$room" ] || room=$2
  step "$name" "$2" python3 scripts/gpu_shards.py --name "$name" --logs "$work" --seconds $((room > 12 ? room - 6 : 6)) \
    --test-seconds "$test_seconds" --filter="$4" -- "${start_with[@]}" "$bin/$3" || return
  grep "$shown_from" "$work/$name.log" | sed 's/^/      /' | say_lines
}

# What tests read; what they find out of this machine is no business of theirs.
with_fixtures() { SLUICE_FIXTURES_ROOT=$PWD/tests/fixtures SLUICE_HARDWARE=none "$@"; }

vocabulary='CudaVocabulary*'
logits="Fixtures/CudaEngine.Logits$of_models:Fixtures/CudaEngine.Logits*/deepseek_v2_tiny:CudaEngineInt8*:CudaEngineFp8*:CudaEngineForeign*"
logits+=":Fixtures/CudaGraphs*$of_models:Fixtures/CudaSampled*$of_models"

# What all kernels are written with, in a process of its own.
test_vocabulary() {
  local status=0
  step kernels-test-vocabulary "$1" cuda_kernels_gpu_test --gtest_filter="$vocabulary" || status=$?
  grep -h 'vocabulary hash' "$work/kernels-test-vocabulary.log" 2>/dev/null | say_lines
  return "$status"
}

test_kernels() { shards kernels-test-rest "$1" cuda_kernels_gpu_test "-$vocabulary$unfit"; }
test_logits() { with_fixtures shards engine-test-logits "$1" cuda_engine_gpu_test "$logits"; }
test_engine() { with_fixtures shards engine-test-rest "$1" cuda_engine_gpu_test "$some-$logits"; }

part_tests() {
  test_vocabulary 60
  test_kernels 120
  test_logits 120
  test_engine 120
}

# show_profile SECONDS: the rates of products and attention, and what later runs plan with.
show_profile() {
  profile_limit=$1
  measure_once
  [ "$hardware" = none ] || python3 scripts/gpu_table.py "$hardware" 2>&1 | say_lines
}

products='^few_rows/[0-9]+/1/'
others='^norm|^kv_write|^row_operator/[0-9]+/(1|1024)/|^delta_rule|^causal_conv|^latent_attention|^head_products/[0-9]/(1|16)/|^plain_product|^Rows/OnDevice/16/'

# kernel_bench NAME SECONDS FILTER: rates of kernels alone, what there is of them where time ends it.
kernel_bench() {
  local filter=$3
  [ -z "$rehearses" ] || filter='OnHost/1/50272/0|norm_with_residual/1/4096|row_operator/[0-9]+/1/8192|delta_rule/1/1|causal_conv/1/1/|latent_attention/2/1/512/1/|head_products/2/1/0/'
  step "$1" "$2" sluice_cuda_bench --benchmark_min_time=0.02 --benchmark_filter="$filter"
  grep -E "$products|$others|^GPU" "$work/$1.log" 2>/dev/null | cut -c -120 | sed 's/^/      /' | say_lines
}

part_kernels() {
  show_profile 120
  kernel_bench kernel-bench 120 .
}

# sanitize SECONDS TOOL...: compute-sanitizer, where it is. A tool finds in minutes what runs in seconds: some tests of every
# kernel, and each tool bounded.
sanitize() {
  local limit=$1 tool pattern sanitizer
  shift
  sanitizer=$(toolkit compute-sanitizer)
  if [ -z "$sanitizer" ]; then
    say "- compute-sanitizer: not on this machine"
    return
  fi
  local watched='CudaVocabulary.A*:CudaNorm.A*:CudaRows.*:CudaDeltaRule.*:CudaPlainLinear.*:CudaHeadProducts.*:CudaLowRank.A*:CudaInt8Linear.Long*:CudaInt8Linear.Dense*:CudaFp8Rows.Dense*'
  watched+=':CudaFp8Rows.Nan*:CudaAttention.Dec*:CudaAttention.Caps*:CudaAttention.AttendsToLatent*:CudaAttention.Writes*:CudaQuantisedLinear.Long*:CudaQuantisedLinear.Deq*'
  watched+=':CudaSampling.Extremes*:CudaGraph*'
  for pattern in ${watched//:/ }; do
    "${start_with[@]}" "$bin/cuda_kernels_gpu_test" --gtest_filter="$pattern" --gtest_list_tests 2>/dev/null | grep '^  ' >/dev/null ||
      say "- sanitizer: there is no test $pattern any more"
  done
  for tool; do
    step "sanitizer-$tool" "$limit" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 \
      "${start_with[@]}" "$bin/cuda_kernels_gpu_test" \
      --gtest_filter="$watched"
  done
}

part_sanitizer() { sanitize 60 memcheck racecheck synccheck initcheck; }

# What bounds the kernels that matter most, by the hardware's counters: two launches of each, clocks as they are.
part_ncu() {
  local ncu counts=(--clock-control none --launch-count 2 --kill yes --section SpeedOfLight --section Occupancy
    --section MemoryWorkloadAnalysis --section WarpStateStats)
  ncu=$(toolkit ncu)
  if [ -z "$ncu" ]; then
    say "- ncu: not on this machine"
    return
  fi
  step ncu-int4 60 "$ncu" "${counts[@]}" --launch-skip 4 "${start_with[@]}" "$bin/sluice_cuda_bench" \
    --benchmark_filter='few_rows/0/1/28672/8192'
  measure_once
  step ncu-attention 90 "$ncu" "${counts[@]}" --kernel-name regex:attention "${start_with[@]}" "$bin/sluice" \
    profile --show "$hardware" --gpu 0
  grep -hE 'Throughput|Achieved Occupancy|Registers Per|Duration' "$work"/ncu-*.log | cut -c -120 | say_lines
}

# models_folder [KIB]: random models lie in memory where that much is free: reading them is not what is measured.
models_folder() {
  if [ -n "$models" ]; then
    mkdir -p "$models" && return
    say "- can't make $models"
    return 1
  fi
  local place=${TMPDIR:-/tmp}
  [ -w /dev/shm ] && [ "$(kib /dev/shm)" -gt "${1:-12000000}" ] && place=/dev/shm
  own_models=$(mktemp -d "$place/sluice-models-$device.XXXXXX") && models=$own_models
}

synth_limit=120
# store NAME SHAPE FORMAT: the path of a random store whose layers are one, made where it is not there yet.
store() {
  stored=$models/$1-$3
  [ ! -d "$stored" ] || return 0
  rm -rf "$stored.part"
  step "synth-$1-$3" "$synth_limit" sluice synth "$2" "$stored.part" --dtype f16 --weights "$3" --repeat-layers && mv "$stored.part" "$stored"
}

# Four fifths of what is available to this machine or container, in MiB.
host_budget() {
  [ -n "$cpu_mem" ] && { echo "$cpu_mem"; return; }
  local available most used
  available=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
  most=$(cat /sys/fs/cgroup/memory.max 2>/dev/null) used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null)
  if [[ $most =~ ^[0-9]+$ && $used =~ ^[0-9]+$ ]] && [ $(((most - used) / 1048576)) -lt "$available" ]; then
    available=$(((most - used) / 1048576))
  fi
  echo $((available * 4 / 5))MiB
}

# bench NAME SECONDS SHAPE FORMAT options...: of a random model; its JSON joins the table.
bench() {
  local name=$1 limit=$2 shape=$3 format=$4
  shift 4
  if ! store "$(basename "${shape%/config.json}")" "$shape" "$format"; then
    say "- $name: not run, its model was not made"
    return
  fi
  measure_once
  step "$name" "$limit" sluice bench "$stored" --gpu 0 --cpu-mem "$(host_budget)" --io buffered --hardware "$hardware" \
    --reps 1 --no-disk-probe --json "$@"
  cp -f "$work/$name.log" "$work/$name.json" 2>/dev/null
  table+=("$work/$name.json")
}

# The profile that is given, or that this call has measured, or measured now: once, not by each run.
profile_limit=120
measure_once() {
  [ -z "$hardware" ] || return 0
  hardware=$work/profile.json
  if [ -n "$profile" ]; then
    cp -f "$profile" "$hardware" && return
    say "- $profile can't be read: measured again"
  fi
  step profile "$profile_limit" sluice profile --quick --gpu 0 --no-cache -o "$hardware" || hardware=none
}

table=()
show_table() {
  [ ${#table[@]} -eq 0 ] || python3 scripts/gpu_table.py --runs "${table[@]}" 2>&1 | say_lines
  table=()
}

part_e2e_resident() {
  models_folder || return
  bench resident-f16 120 "$small" f16 $both
  bench resident-int4 100 "$small" int4 $both
  bench resident-f16-no-graphs 100 "$small" f16 $both --no-cuda-graphs
  bench resident-w8a8 100 "$small" int8 $both --activations int8
  bench resident-fp8 100 "$small" fp8 $both --activations fp8
  show_table
}

part_e2e_offload() {
  models_folder || return
  bench offload-int4 180 "$large" int4 --gpu-mem $gpu_mem $many
  bench offload-f16 240 "$large" f16 --gpu-mem $gpu_mem $many
  show_table
}

part_large() {
  models_folder || return
  local seventy=llama-3-70b most=opt-175b seventy_mem=24GiB
  [ -z "$rehearses" ] || seventy=$PWD/tests/fixtures/models/llama-tiny-gqa/config.json most=$small seventy_mem=$gpu_mem
  bench llama-3-70b-int4 200 "$seventy" int4 --gpu-mem $seventy_mem ${many/--tg 32/--tg 16}
  bench opt-175b-int4 280 "$most" int4 --gpu-mem $gpu_mem ${many/--tg 32/--tg 8}
  show_table
}

# peer_accelerate SECONDS RUN: Accelerate with the large model in f16, where Python has it.
peer_accelerate() {
  if ! timeout 40 python3 -c 'import torch, accelerate, transformers' 2>"$work/peers.log"; then
    say "- accelerate: not installed here ($(tail -n 1 "$work/peers.log"))"
  elif step accelerate-opt-30b "$1" python3 scripts/peer_accelerate.py "$large" --gpu-gib 16 $2; then
    tail -n 1 "$work/accelerate-opt-30b.log" | cut -c -200 | sed 's/^/      /' | say_lines
  fi
}

part_peers() {
  peer_accelerate 400 "$many"
  # FlexGen asks the network for a tokenizer: without one it ends at once, which its log says.
  if python3 -c 'import flexgen' 2>/dev/null; then
    step flexgen-opt-30b 400 env HF_HUB_OFFLINE=1 python3 -m flexgen.flex_opt --model facebook/opt-30b --path _DUMMY_ \
      --percent 20 80 0 100 0 100 --gpu-batch-size 16 --prompt-len 512 --gen-len 32
  else
    say "- flexgen: not installed here"
  fi
}
