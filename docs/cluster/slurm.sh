#!/bin/bash
# Trains on a Ray cluster of all nodes of a Slurm allocation:
#     sbatch --nodes=4 docs/cluster/slurm.sh job.toml --out runs/big
# What follows the script goes to tdcd train; so does its exit code come back. TDCD_ENV names a virtual environment that all nodes see.
#SBATCH --job-name=tdcd
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --signal=B:TERM@120
set -euo pipefail

if [ -n "${TDCD_ENV:-}" ]; then source "$TDCD_ENV/bin/activate"; fi
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
port=$((20000 + SLURM_JOB_ID % 10000))       # jobs that share a node do not meet
address=$(srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}'):$port

export RAY_AUTH_MODE=token                   # other users of the machines stay out: one token for each job
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN
export RAY_USAGE_STATS_ENABLED=0

start() {                                    # on one node, until it is ended with the others
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$1" --cpus-per-task="$SLURM_CPUS_PER_TASK" \
        ray start --block --num-cpus="$SLURM_CPUS_PER_TASK" --temp-dir="${TMPDIR:-/var/tmp}/ray-$SLURM_JOB_ID" "${@:2}" &
    rays+=($!)
}
rays=()
training=
trap 'kill "${rays[@]}" 2>/dev/null || true' EXIT
trap '[ -z "$training" ] || kill -TERM "$training"' TERM INT

start "$head" --head --port="$port" --include-dashboard=false
for node in "${nodes[@]:1}"; do start "$node" --address="$address"; done

for _ in $(seq 120); do                      # until all nodes are there
    count=$(python -c 'import sys, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(sum(node["Alive"] for node in ray.nodes()))' "$address" 2>/dev/null || echo 0)
    if [ "$count" -ge "${#nodes[@]}" ]; then break; fi
    sleep 2
done
echo "$count of ${#nodes[@]} nodes are there"

tdcd train --engine ray --address "$address" "$@" &
training=$!
code=0
wait "$training" || code=$?
if kill -0 "$training" 2>/dev/null; then code=0; wait "$training" || code=$?; fi   # it was a signal: a checkpoint is being written
exit "$code"
