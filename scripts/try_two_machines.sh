#!/usr/bin/env bash
# Two unlike machines, imitated: two network namespaces with a link between them, in each a rank whose weights come over an
# emulated link of its own rate (so the rate does not depend on this machine's cores), one half as fast as the other. Says how
# rows were dealt and what both do together against the sum of each alone. Needs root, iproute2 and Open MPI.
# try_two_machines.sh [PROGRAM [ROWS]]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fixtures.py unpack >/dev/null
program=$(realpath "${1:-build/release/bin/sluice}")
rows=${2:-120}
model=$PWD/tests/fixtures/models/stories260k
folder=$(mktemp -d)
names=(sluice-a sluice-b)
stop() {
  for name in "${names[@]}"; do ip netns del "$name" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap stop EXIT
for i in 0 1; do ip netns add "${names[$i]}"; ip -n "${names[$i]}" link set lo up; done
ip link add veth-sluice-a netns sluice-a type veth peer name veth-sluice-b netns sluice-b
for i in 0 1; do
  ip -n "${names[$i]}" addr add "10.231.0.$((i + 1))/24" dev "veth-${names[$i]}"
  ip -n "${names[$i]}" link set "veth-${names[$i]}" up
done
# What mpirun takes for ssh: the host's number says which namespace.
cat >"$folder/agent" <<'END'
#!/bin/bash
host=$1; shift
case $host in *.1) name=sluice-a ;; *) name=sluice-b ;; esac
exec ip netns exec $name bash -c "$*"
END
chmod +x "$folder/agent"
for i in $(seq "$rows"); do
  echo "{\"custom_id\": \"r$i\", \"prompt\": \"Once upon a time, $i\", \"max_tokens\": $((20 + i % 20)), \"ignore_eos\": true}"
done >"$folder/rows.jsonl"
export SLUICE_HARDWARE=none OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
flags() {
  echo -t 1 --cpu-mem 64MiB --percent 0 100 100 0 100 0 --gpu-batch-size 4 --num-gpu-batches 1 \
    --device "emulated:mem=4MiB,h2d=$1,d2h=$1,latency=10us"
}
slow=(30MB/s) fast=(60MB/s)
alone() {
  # shellcheck disable=SC2046
  "$program" batch "$model" "$folder/rows.jsonl" -o "$folder/$2" --json $(flags "$1") 2>/dev/null |
    python3 -c 'import json, sys; j = json.load(sys.stdin); print(j["requests"] / j["stats"]["wall_s"])'
}
a=$(alone "${slow[0]}" alone-a)
b=$(alone "${fast[0]}" alone-b)
echo "alone: ${slow[0]} $a rows/s, ${fast[0]} $b rows/s"
# shellcheck disable=SC2046
ip netns exec sluice-a mpirun --bind-to none --mca plm_rsh_agent "$folder/agent" --mca btl tcp,self --mca btl_tcp_if_include 10.231.0.0/24 \
  --mca oob_tcp_if_include 10.231.0.0/24 -x SLUICE_HARDWARE \
  --host 10.231.0.1 -n 1 "$program" batch "$model" "$folder/rows.jsonl" -o "$folder/both.jsonl" --json $(flags "${slow[0]}") : \
  --host 10.231.0.2 -n 1 "$program" batch "$model" "$folder/rows.jsonl" -o "$folder/both.jsonl" --json $(flags "${fast[0]}") \
  >"$folder/json" 2>"$folder/log" || { tail -20 "$folder/log"; exit 1; }
python3 - "$folder/json" "$a" "$b" <<'END'
import json, sys
job, a, b = json.load(open(sys.argv[1])), float(sys.argv[2]), float(sys.argv[3])
slow, fast = (rank["rows"] for rank in job["ranks"])
rate = job["requests"] / job["seconds"]
print(f"together: {slow} and {fast} rows, {rate:.3f} rows/s: {rate / (a + b):.3f} of the sum of both alone")
print(f"dealt {fast / slow:.2f} to 1, rates are {b / a:.2f} to 1")
sys.exit(rate < 0.95 * (a + b))
END
