#!/usr/bin/env bash
# What a machine with a GPU is asked, in parts of under ten minutes each, nothing to download:
#
#   scripts/gpu-check.sh --part build    builds for this GPU (or, without a compiler there, takes the bundle: see below)
#   scripts/gpu-check.sh --part tests    vocabulary first, then every kernel and the engine, then compute-sanitizer
#   scripts/gpu-check.sh --part kernels  rates of copies, products and attention as shares of what was measured on the spot
#   scripts/gpu-check.sh --part e2e      models of random weights: resident, offloaded, their lanes, expected and measured
#   scripts/gpu-check.sh --part large    OPT-175B and Llama-3-70B in int4, out of 100 and 40 GB of host memory
#   scripts/gpu-check.sh --part peers    the same models on FlexGen and Accelerate where Python has them
#   scripts/gpu-check.sh                 all of them
#
# --out DIR (default gpu-check): JSON and logs, and summary.md that says it in a table. --gpu N. --models DIR: where random
# models are written (default DIR of --out): 10 GB, since a store's layers are one file; Accelerate's OPT-30B takes 60.
# --part bundle, on a machine with nvcc and the libraries but no GPU: the programs and the libraries they need, as
# OUT/bundle.tar.xz (--archs 90-real makes it small); carry that file to OUT on the other machine, beside a checkout, and
# --part build unpacks it.
set -uo pipefail
cd "$(dirname "$0")/.."
part=all out=gpu-check gpu=0 models= archs="75-real;80-real;90"
while [ $# -gt 0 ]; do
  case $1 in
    --part) part=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --gpu) gpu=$2; shift 2 ;;
    --models) models=$2; shift 2 ;;
    --archs) archs=$2; shift 2 ;;
    *) sed -n '2,16p' "$0"; exit 2 ;;
  esac
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
models=${models:-$out/models}
summary=$out/summary.md
if [ -f "$out/bundle.tar.xz" ] && [ ! -d "$out/bundle" ]; then tar -xJf "$out/bundle.tar.xz" -C "$out"; fi
bin=$out/bundle
[ -x "$bin/sluice" ] || bin=build/gpu/bin
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:$out/bundle/lib"
failures=0
say() { echo "$*" | tee -a "$summary"; }
# try NAME SECONDS command...: runs it, keeps its output in OUT/NAME.log, says whether it passed.
try() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  if timeout "$limit" "$@" >"$out/$name.log" 2>&1; then
    say "- $name: passed, $((SECONDS - start)) s"
  else
    say "- $name: FAILED ($?), $((SECONDS - start)) s; the end of its log:"
    tail -n 12 "$out/$name.log" | sed 's/^/      /' | tee -a "$summary"
    failures=$((failures + 1))
  fi
}

programs="sluice cuda_kernels_gpu_test cuda_engine_gpu_test sluice_cuda_bench"
build_here() {
  cmake --preset release -B build/gpu -DSLUICE_CUDA_ARCHS="$1" -DSLUICE_BENCHMARKS=ON &&
    cmake --build build/gpu --target sluice_tool cuda_kernels_gpu_test cuda_engine_gpu_test sluice_cuda_bench -- -j"$(nproc)" &&
    cp -f build/gpu/tests/cuda_*_gpu_test build/gpu/bin/
}
bundle() {
  build_here "$archs" || return 1
  rm -rf "$out/bundle" && mkdir -p "$out/bundle/lib"
  for program in $programs; do strip -o "$out/bundle/$program" "build/gpu/bin/$program"; done
  # Everything but the C library, which must be the machine's own, and CUDA, which is too large to carry.
  for program in $programs; do ldd "$out/bundle/$program"; done | awk '{print $3}' | sort -u | grep '^/' |
    grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*|libcublas[^/]*|libcuda[^/]*)\.so' |
    while read -r library; do cp -L "$library" "$out/bundle/lib/"; done
  tar -C "$out" -cf - bundle | xz -3 -T0 >"$out/bundle.tar.xz" && rm -r "$out/bundle" && ls -l "$out/bundle.tar.xz"
}

export out programs archs
export -f build_here bundle

part_build() {
  if [ -x "$out/bundle/sluice" ]; then
    say "- build: the bundle's programs"
  else
    try build 580 bash -c 'build_here native'
  fi
  try version 30 "$bin/sluice" version
  try doctor 60 "$bin/sluice" doctor
}

part_tests() {
  export SLUICE_FIXTURES_ROOT=$PWD/tests/fixtures
  try vocabulary 60 "$bin/cuda_kernels_gpu_test" --gtest_filter='CudaVocabulary*'
  grep -h 'vocabulary hash' "$out/vocabulary.log" | tee -a "$summary"
  try kernels-test 300 "$bin/cuda_kernels_gpu_test"
  try engine-test 300 env SLUICE_HARDWARE=none "$bin/cuda_engine_gpu_test"
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck synccheck initcheck; do
      try "sanitizer-$tool" 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/cuda_kernels_gpu_test" \
        --gtest_filter='CudaVocabulary.A*:CudaNorm.A*:CudaRows.A*:CudaInt8Linear.Long*:CudaInt8Linear.Dense*:CudaFp8Rows.Dense*:CudaFp8Rows.Nan*:CudaAttention.Dec*:CudaQuantisedLinear.Long*:CudaSampling.Extremes*:CudaGraph*'
    done
  else
    say "- compute-sanitizer: not on this machine"
  fi
}

part_kernels() {
  try profile 300 "$bin/sluice" profile --quick --gpu "$gpu" --no-cache -o "$out/profile.json"
  try sampling-bench 200 "$bin/sluice_cuda_bench" --benchmark_min_time=0.1
  grep -E 'OnDevice|OnHost' "$out/sampling-bench.log" | sed 's/^/      /' | tee -a "$summary"
  [ ! -f "$out/profile.json" ] || python3 scripts/gpu_table.py "$out/profile.json" | tee -a "$summary"
}

# made DIR SECONDS SHAPE options...: `sluice synth SHAPE DIR options...`, once; what was broken off is made again.
made() {
  local at=$1 limit=$2 shape=$3 before=$failures
  shift 3
  [ -d "$at" ] && return
  rm -rf "$at.part"
  try "synth-$(basename "$at")" "$limit" "$bin/sluice" synth "$shape" "$at.part" "$@"
  [ "$failures" -eq "$before" ] && mv "$at.part" "$at"
}
# store NAME FORMAT: a random store of that shape whose layers are one.
store() { made "$models/$1-$2" 300 "$1" --dtype f16 --weights "$2" --repeat-layers; }
bench() {
  local name=$1 path=$2
  shift 2
  try "$name" 400 "$bin/sluice" bench "$path" --gpu "$gpu" --reps 1 --no-disk-probe --json "$@"
  cp -f "$out/$name.log" "$out/$name.json" 2>/dev/null
}
part_e2e() {
  mkdir -p "$models"
  for format in f16 int8 fp8; do store opt-6.7b $format; done
  bench opt-6.7b-resident "$models/opt-6.7b-f16" --batch 1,16 --pp 512 --tg 32
  bench opt-6.7b-resident-no-graphs "$models/opt-6.7b-f16" --batch 1,16 --pp 512 --tg 32 --no-cuda-graphs
  bench opt-6.7b-w8a8 "$models/opt-6.7b-int8" --batch 1,16 --pp 512 --tg 32 --activations int8
  bench opt-6.7b-fp8 "$models/opt-6.7b-fp8" --batch 1,16 --pp 512 --tg 32 --activations fp8
  for format in f16 int4; do store opt-30b $format; done
  bench opt-30b-int4-16gib "$models/opt-30b-int4" --gpu-mem 16GiB --batch 16 --pp 512 --tg 32
  bench opt-30b-f16-16gib "$models/opt-30b-f16" --gpu-mem 16GiB --batch 16 --pp 512 --tg 32
  python3 scripts/gpu_table.py --runs "$out"/opt-*.json | tee -a "$summary"
}

part_large() {
  mkdir -p "$models"
  store llama-3-70b int4
  bench llama-3-70b-int4-24gib "$models/llama-3-70b-int4" --gpu-mem 24GiB --batch 16 --pp 512 --tg 16
  store opt-175b int4
  bench opt-175b-int4-16gib "$models/opt-175b-int4" --gpu-mem 16GiB --batch 8 --pp 512 --tg 8
  python3 scripts/gpu_table.py --runs "$out"/*-int4-*.json | tee -a "$summary"
}

part_peers() {
  if python3 -c 'import flexgen' 2>/dev/null; then
    try flexgen-opt-30b 580 python3 -m flexgen.flex_opt --model facebook/opt-30b --path _DUMMY_ --percent 20 80 0 100 0 100 \
      --gpu-batch-size 16 --prompt-len 512 --gen-len 32
  else
    say "- flexgen: not installed here (carry its wheel and pip install --no-deps it)"
  fi
  if python3 -c 'import accelerate, transformers' 2>/dev/null; then
    # Accelerate reads checkpoints, whose layers are all there: 60 GB.
    made "$models/opt-30b" 550 opt-30b --dtype f16
    try accelerate-opt-30b 580 python3 scripts/peer_accelerate.py "$models/opt-30b" --gpu-gib 16 --batch 16 --pp 512 --tg 32
  else
    say "- accelerate: not installed here"
  fi
}

say "## $(date -u +%Y-%m-%d) $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader -i "$gpu" 2>/dev/null || echo 'no nvidia-smi'), part $part"
if [ "$part" != bundle ] && [ "$part" != build ] && ! nvidia-smi -L >/dev/null 2>&1; then
  say "- no GPU here (nvidia-smi -L finds none): nothing to check"
  exit 1
fi
case $part in
  bundle) try bundle 3000 bash -c bundle ;;
  build | tests | kernels | e2e | large | peers) "part_$part" ;;
  all) for one in build tests kernels e2e large peers; do "part_$one"; done ;;
  *) echo "gpu-check: no part $part"; exit 2 ;;
esac
say "$failures failures; everything is in $(basename "$out")"
[ "$failures" -eq 0 ]
