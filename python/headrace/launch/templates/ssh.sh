#!/bin/bash
# bash §{name}.sh        Every host has headrace, the data, and this folder under the same path.
# Each ssh has a terminal (-tt), so that its end ends what it started.
set -u
hosts=(§{hosts})
words=§{words}
training=§{training}
folder=$(printf %q §{folder})
pids=()
end() { kill -TERM "${pids[@]}" 2>/dev/null; wait; }
trap 'end; exit 130' INT TERM
for rank in "${!hosts[@]}"; do
    ssh -tt -o BatchMode=yes "${hosts[$rank]}" "cd $folder && exec env $words --nnodes=${#hosts[@]} --node_rank=$rank \
        --nproc_per_node=§{processes} --master_addr=§{master} --master_port=§{port} $training" </dev/null &
    pids+=($!)
done
code=0
for _ in "${pids[@]}"; do
    wait -n || { code=$?; end; break; }
done
exit "$code"
