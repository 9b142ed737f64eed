#!/usr/bin/env bash
# Builds the libFuzzer targets with clang and runs each for some time, as many at once as there are cores:
#   scripts/fuzz.sh [-DOPTION=VALUE...] [SECONDS [TARGET...]]     (60 seconds, all targets; options go to CMake)
# They start from scripts/fuzz_seeds.py's inputs. What a target learns stays in build/fuzz/corpus; an input that breaks it, in
# build/fuzz/found: mend the fault, then keep the input in tests/fixtures/fuzz_found/TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."
options=()
while [[ ${1:-} == -D* ]]; do options+=("$1"); shift; done
export seconds=${1:-60}
shift || true
scripts/setup.sh --fuzz
cmake --preset fuzz "${options[@]}" >/dev/null
if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(cd tests/fuzz && ls fuzz_*.cc | sed 's/\.cc$//'); fi
cmake --build --preset fuzz --target "${targets[@]}" -- -j"$(nproc)"
scripts/fuzz_seeds.py build/fuzz/seeds "${targets[@]}"
mkdir -p build/fuzz/found

run_target() {
  local target=$1 log=build/fuzz/$1.log
  mkdir -p "build/fuzz/corpus/$target"
  if ! "build/fuzz/fuzz/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -max_len=524288 -print_final_stats=1 \
    -artifact_prefix="build/fuzz/found/$target-" "build/fuzz/corpus/$target" "build/fuzz/seeds/$target" >"$log" 2>&1; then
    tail -40 "$log"
    echo "fuzz: $target FAILED; its input is in build/fuzz/found, all its output in $log"
    return 1
  fi
  # Nothing valid ever came by: what the target is for was not reached.
  if ! grep -q '^accepted: [1-9]' "$log"; then
    echo "fuzz: $target FAILED: it took none of its seeds; mend them in scripts/fuzz_seeds.py"
    return 1
  fi
  echo "$target: $(grep -oE '[0-9]+$' <(grep number_of_executed_units "$log")) inputs, $(grep -oE '[0-9]+ inputs' <(grep '^accepted' "$log")) valid"
}
export -f run_target
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'run_target {}'
