#!/usr/bin/env bash
# Builds the libFuzzer targets with clang and runs each for SECONDS (first argument, default 60; the others name targets,
# default all). What a target learns stays in build/fuzz/corpus; an input that breaks it, in build/fuzz/found.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
scripts/setup.sh --fuzz
cmake --preset fuzz >/dev/null
if [ $# -gt 0 ]; then targets=("$@"); else mapfile -t targets < <(cd tests/fuzz && ls fuzz_*.cc | sed 's/\.cc$//'); fi
cmake --build --preset fuzz --target "${targets[@]}" -- -j"$(nproc)"
mkdir -p build/fuzz/found
# Real inputs to start from.
declare -A seeds=([fuzz_config]="tests/fixtures/malformed_configs tests/fixtures/json_test_suite" [fuzz_job]=tests/fixtures/prompts
  [fuzz_tokenizer]=tests/fixtures/tokenizers [fuzz_checkpoint]=tests/fixtures/checkpoints [fuzz_safetensors]=tests/fixtures/checkpoints [fuzz_chat_template]=tests/fixtures/chat/templates)
status=0
for target in "${targets[@]}"; do
  echo "== $target, $seconds s"
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  for folder in ${seeds[$target]:-}; do
    if [ -d "$folder" ]; then find "$folder" -type f -size -64k -exec cp {} "$corpus" \; ; fi
  done
  if [ "$target" = fuzz_config ]; then
    for config in tests/fixtures/models/*/config.json; do cp "$config" "$corpus/$(basename "$(dirname "$config")").json"; done
  fi
  if "build/fuzz/fuzz/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix=build/fuzz/found/"$target"- "$corpus" >"build/fuzz/$target.log" 2>&1; then
    grep -E 'number_of_executed_units|peak_rss_mb|^Done' "build/fuzz/$target.log" || true
  else
    tail -40 "build/fuzz/$target.log"
    echo "fuzz: $target FAILED; its input is in build/fuzz/found, all its output in build/fuzz/$target.log"
    status=1
  fi
done
exit $status
