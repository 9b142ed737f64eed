#!/usr/bin/env bash
# Tries sluice batch under Slurm on this machine, with a cluster of its own in a temporary folder: an array job by --shard
# auto with merge, and ranks by srun --mpi=pmix, both against one process. Needs root, and Debian's slurmctld, slurmd,
# slurm-client and libopenmpi-dev (apt-get install them); ends its daemons. try_slurm.sh [PROGRAM]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/fixtures.py unpack >/dev/null
program=$(realpath "${1:-build/release/bin/sluice}")
model=$PWD/tests/fixtures/models/stories260k
for need in slurmctld slurmd srun sbatch; do
  command -v $need >/dev/null || PATH=$PATH:/usr/sbin command -v $need >/dev/null || { echo "try_slurm: no $need here"; exit 1; }
done
export PATH=$PATH:/usr/sbin
folder=$(mktemp -d)
host=$(hostname -s)
mkdir -p "$folder"/{state,spool,log}
dd if=/dev/urandom of="$folder/key" bs=64 count=1 2>/dev/null
chmod 600 "$folder/key"
cat >"$folder/slurm.conf" <<END
ClusterName=trial
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
SlurmctldPort=26817
SlurmdPort=26818
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
END
export SLURM_CONF=$folder/slurm.conf SLUICE_HARDWARE=none
daemons=()
stop() {
  for pid in "${daemons[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$folder"
}
trap stop EXIT
munged --foreground --force --key-file="$folder/key" --socket="$folder/munge.socket" --pid-file="$folder/munged.pid" \
  --log-file="$folder/log/munged" --seed-file="$folder/seed" >/dev/null 2>&1 & daemons+=($!)
sleep 1
slurmctld -D -f "$folder/slurm.conf" >/dev/null 2>&1 & daemons+=($!)
slurmd -D -f "$folder/slurm.conf" -N "$host" >/dev/null 2>&1 & daemons+=($!)
for _ in $(seq 60); do
  sinfo -h -o %T 2>/dev/null | grep -q idle && break
  sleep 0.5
done
sinfo

for i in $(seq 40); do echo "{\"custom_id\": \"r$i\", \"prompt\": \"Once upon a time $i\"}"; done >"$folder/rows.jsonl"
flags=(-n 24 -t 1 --cpu-mem 128MiB)
"$program" batch "$model" "$folder/rows.jsonl" -o "$folder/alone.jsonl" "${flags[@]}" 2>/dev/null
texts() { python3 -c 'import json, sys
print("\n".join(sorted(r["custom_id"] + " " + r["response"]["body"]["choices"][0]["text"] for r in map(json.loads, open(sys.argv[1])))))' "$1"; }
same() { diff <(texts "$folder/alone.jsonl") <(texts "$1") >/dev/null && echo "$2: as one process answers them" || { echo "$2: DIFFERENT"; exit 1; }; }

echo "== array: sbatch --array=1-4"
sbatch --wait --array=1-4 --output="$folder/log/array-%a" \
  --wrap "exec $program batch $model $folder/rows.jsonl -o $folder/array.jsonl --shard auto ${flags[*]}"
wc -l "$folder"/array.jsonl.shard-* | sed "s|$folder/||"
"$program" batch merge "$folder/array.jsonl" -i "$folder/rows.jsonl" 2>&1 | sed "s|$folder/||"
same "$folder/array.jsonl" "array of 4"

echo "== ranks: srun --mpi=pmix -n 3"
srun --mpi=pmix -n 3 -c 1 "$program" batch "$model" "$folder/rows.jsonl" -o "$folder/ranks.jsonl" "${flags[@]}" \
  >"$folder/log/srun" 2>&1 || { tail -40 "$folder/log/srun"; exit 1; }
grep -E "rank |rows have" "$folder/log/srun" | sed "s|$folder/||"
same "$folder/ranks.jsonl" "3 ranks"
