#!/usr/bin/env bash
# Formats every source as .clang-format says (clang-format 14).
set -euo pipefail
cd "$(dirname "$0")/.."
git ls-files '*.cc' '*.h' | xargs clang-format -i
