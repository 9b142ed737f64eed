#!/usr/bin/env bash
# From nothing to text: installs what is missing, builds the program, and runs a small trained model under a memory budget
# smaller than its weights, so that part of them is streamed from disk in every pass. Then says what to do with a model of one's
# own. Takes no arguments; downloads no model.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
echo "quickstart: building (some minutes the first time)"
# On a terminal ninja shows how far it is in one line; elsewhere only what fails is shown.
build() { cmake --preset release && cmake --build --preset release --target sluice_tool -- -j"$(nproc)"; }
mkdir -p build
log=build/quickstart.log
if [ -t 1 ]; then
  cmake --preset release >"$log" 2>&1 || { cat "$log"; exit 1; }
  cmake --build --preset release --target sluice_tool -- -j"$(nproc)"
elif ! build >"$log" 2>&1; then
  tail -n 60 "$log"
  echo "quickstart: the build failed; all of it is in $log"
  exit 1
fi
sluice=build/release/bin/sluice
# --hardware none: nothing is measured and nothing predicted, for which a model of one megabyte is too small.
prompt="Once upon a time"
run=("$sluice" run tests/fixtures/models/stories260k -p "$prompt" -n 40 --cpu-mem 900KiB --hardware none)
cat <<END

A model that was trained to tell stories, of 260 thousand parameters: its weights take 1016 KiB, and all the memory that it
may use for weights, KV and buffers is 900 KiB. So most of the weights are read from disk again for every token:

\$ ${run[*]/#$prompt/\"$prompt\"}

END
report=$(mktemp)
trap 'rm -f "$report"' EXIT
printf '%s' "$prompt"
"${run[@]}" 2>"$report" || { printf '\n\n'; cat "$report"; exit 1; }
echo
grep -E '^  (decode|tier|lane|busiest)' "$report"
cat <<END

It works: the disk was read for every token, and memory stayed within the budget.

Next, your own model: a Hugging Face folder or a GGUF file, as it lies, or a name that the first command lists.

  $sluice models                       # what Hugging Face, Ollama and LM Studio have fetched here
  $sluice run MODEL -p "Hello"         # larger than memory or not; --cpu-mem 4GiB sets a budget
  $sluice serve MODEL                  # the same behind an OpenAI-compatible server

No model here, but you want to see its speed? This one has Llama-2-7B's shape and random weights (3.7 GiB of disk):

  $sluice synth llama-2-7b ~/llama-2-7b-int4 --weights int4
  $sluice bench ~/llama-2-7b-int4 --cpu-mem 2GiB --batch 1,8 --activations int8

docs/getting-started.md goes on from here; $sluice doctor looks at this machine.
END
