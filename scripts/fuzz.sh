#!/usr/bin/env bash
# Builds the libFuzzer targets with clang and runs each for SECONDS (first argument, default 60).
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
scripts/setup.sh --fuzz
cmake --preset fuzz
cmake --build --preset fuzz -- -j"$(nproc)"
for target in build/fuzz/fuzz/fuzz_*; do
  echo "== $(basename "$target"), $seconds s"
  corpus=$(mktemp -d)
  "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -max_len=65536 -print_final_stats=1 "$corpus" 2>&1 | tail -6
  rm -r "$corpus"
done
