#!/usr/bin/env bash
# Installs what is missing, builds the release preset and runs every test:
#   scripts/test.sh [-DOPTION=VALUE...] [CTEST ARGUMENTS...]     (-DSLUICE_CUDA=OFF; -R NAME, -L fast)
set -euo pipefail
cd "$(dirname "$0")/.."
options=()
while [[ ${1:-} == -D* ]]; do options+=("$1"); shift; done
scripts/setup.sh --python
cmake --preset release "${options[@]}"
cmake --build --preset release -- -j"$(nproc)"
ctest --preset release -j"$(nproc)" --no-tests=error "$@"
