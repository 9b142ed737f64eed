#!/usr/bin/env bash
# Formats every source as .clang-format says (clang-format 14, whose output is the law).
set -euo pipefail
cd "$(dirname "$0")/.."
find src policy io kernels tools python tests benchmarks -name '*.cc' -o -name '*.h' -o -name '*.cu' | xargs clang-format -i
