"""The code that runs inside the user's process: hooks that time the training, and the recorder that writes the session.

Its rooms, ground first:

- `machine`: counters and settings of the machine and its processes.
- `record`: what writes the session: hooks on imports, counters, stacks, the log.
- `training`: what the training loop does beside its steps: loss, first step, pauses, ranks, operators.
- `experiments`: hooks that change the running job to measure something: probe reads, override arguments, repeat a batch.
- `batches`: the times of batches and steps, for each kind of loader.

`load_hooks` installs the hooks when PyTorch or TensorFlow is imported (`torch_hooks`, `tensorflow_hooks`). `launch` starts the
user's command so that this happens, and `sampler` is the process that samples the machine. The folder imports the standard
library only. An error in a hook turns the hook off, prints one line, and never reaches the user's script.
"""
