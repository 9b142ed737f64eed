#!/usr/bin/env bash
# From nothing to text: installs what is missing, builds the program, and runs a small real model under a memory budget
# smaller than its weights, so that part of them is streamed from disk in every pass. Takes no arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
echo "quickstart: building (a few minutes the first time)"
cmake --preset release >/dev/null
cmake --build --preset release --target sluice_tool -- -j"$(nproc)"
run=(build/release/bin/sluice run -m tests/fixtures/models/stories260k -p "Once upon a time" -n 120 --cpu-mem 900KiB)
echo
echo "quickstart: the model's weights take 1016KiB, all the memory it may use is 900KiB:"
printf '$'
printf ' %q' "${run[@]}"
printf '\n\n'
"${run[@]}"
