#!/bin/bash
# bash headrace-train.sh        Every host has headrace, the data, and this folder under the same path.
# Each ssh has a terminal (-tt), so that its end ends what it started.
set -u
hosts=(node1 node2)
words='python -m torch.distributed.run'
training='-m headrace train --data /data/imagenet --out results/headrace-train --resume auto --model resnet50'
folder=$(printf %q "$PWD")
pids=()
end() { kill -TERM "${pids[@]}" 2>/dev/null; wait; }
trap 'end; exit 130' INT TERM
for rank in "${!hosts[@]}"; do
    ssh -tt -o BatchMode=yes "${hosts[$rank]}" "cd $folder && exec env $words --nnodes=${#hosts[@]} --node_rank=$rank \
        --nproc_per_node=8 --master_addr=node1 --master_port=29500 $training" </dev/null &
    pids+=($!)
done
code=0
for _ in "${pids[@]}"; do
    wait -n || { code=$?; end; break; }
done
exit "$code"
