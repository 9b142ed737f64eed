#!/usr/bin/env bash
# Installs what is missing, builds the release preset and runs every test. Arguments go to ctest (-R NAME, -L fast).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
cmake --preset release
cmake --build --preset release -- -j"$(nproc)"
ctest --preset release -j"$(nproc)" --no-tests=error "$@"
