#!/bin/bash
#SBATCH --job-name=headrace-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=headrace-train-%j.log
# sbatch headrace-train.sh        The folders of data and results are the same on all nodes.
set -u
master=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((29500 + SLURM_JOB_ID % 1000))

stopped=0
srun --kill-on-bad-exit=1 bash -c 'exec python -m torch.distributed.run --nnodes="$SLURM_NNODES" \
    --node_rank="$SLURM_NODEID" --nproc_per_node=8 --master_addr="$0" --master_port="$1" "${@:2}"' \
    "$master" "$port" -m headrace train --data /data/imagenet --out results/headrace-train --resume auto --model resnet50 &
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
