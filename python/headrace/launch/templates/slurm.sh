#!/bin/bash
#SBATCH --job-name=§{name}
#SBATCH --nodes=§{count}
#SBATCH --ntasks-per-node=1
§gpus_per_node
#SBATCH --time=§{limit}
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=§{name}-%j.log
# sbatch §{name}.sh        The folders of data and results are the same on all nodes.
set -u
§exports
§folder
master=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((§{port} + SLURM_JOB_ID % 1000))

stopped=0
srun --kill-on-bad-exit=1 bash -c 'exec python -m torch.distributed.run --nnodes="$SLURM_NNODES" \
    --node_rank="$SLURM_NODEID" --nproc_per_node=§{processes} --master_addr="$0" --master_port="$1" "${@:2}"' \
    "$master" "$port" §{training} &
child=$!
# Slurm tells this shell only. SIGTERM makes training write a checkpoint; srun would answer one with SIGKILL for all tasks.
trap 'stopped=1; scancel --signal=TERM "$SLURM_JOB_ID.0"' USR1
wait "$child"; code=$?
while [ "$stopped" = 1 ] && kill -0 "$child" 2>/dev/null; do wait "$child"; done
if [ "$stopped" = 1 ]; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
