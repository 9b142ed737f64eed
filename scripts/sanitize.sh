#!/usr/bin/env bash
# Builds and runs the tests under one sanitizer preset: asan (address and undefined behaviour) or tsan (threads).
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-asan}
cmake --preset "$preset"
cmake --build --preset "$preset" -- -j"$(nproc)"
ctest --preset "$preset" -j"$(nproc)" --no-tests=error
