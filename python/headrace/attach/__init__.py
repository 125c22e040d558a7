"""The code that runs inside the user's process: hooks that time the training, and the recorder that writes the session.

`load_hooks` installs the hooks when PyTorch or TensorFlow is imported (`torch_hooks`, `tensorflow_hooks`). `launch` starts the
user's command so that this happens, and `sampler` is the process that samples the machine. The folder imports the standard
library only. An error in a hook turns the hook off, prints one line, and never reaches the user's script.

- `bare_loops`: Time training loops whose batches come from unknown code, for example from threads and a queue of the script.
- `counters`: Counters of the current step in the main process. `steps.py` reads and resets them.
- `device_clock`: Measure time on the device's own clock, without waiting for the device.
- `environment`: Read what else sets the speed of this process: variables of the environment, and the versions of its
  libraries.
- `fetch`: Time how each batch is made: in a DataLoader worker, or in the main process if there are no workers.
- `first_step`: Time the start of a job: imports, downloads, compilation.
- `foreign_programs`: The programs outside the job that use most CPU, by pid and name.
- `gpu_counters`: GPU counters of the sampler: read NVML and fill the session's GPU records.
- `launch`: Start the user's command, unmodified, with hooks in every Python process below it.
- `load_hooks`: Install the hook modules when PyTorch and its data loader are imported, and time imports until training
  starts.
- `log`: Print headrace's lines on stderr from inside the user's process, also while the script draws a progress bar.
- `loss`: Record the loss that the script computes its gradients from, a few times a second.
- `model_settings`: Read how the model is run: number format, memory format, DataParallel, versions. Once, after a few
  optimizer steps.
- `native_batches`: Record what the batches of `headrace.Loader` cost: time in its threads, on a core, waiting for a core,
  and bytes read.
- `operator_cpu`: Measure what PyTorch's operators cost while the training process makes a batch itself and its threads lack
  cores.
- `operators`: Measure once, on the CPU, which share of a step PyTorch's operators take.
- `other_loaders`: Time loaders other than PyTorch's: headrace's, FFCV's, DALI's iterators. Each is patched when its module
  is imported.
- `overrides`: Override arguments of the job's training loader (number of workers, pinning, prefetch), to re-measure a fix.
- `pauses`: Time the pauses of the training process: garbage collection and `torch.save`.
- `probe`: A short experiment in the workers: whether a read is faster while no other worker reads.
- `processes`: Record facts of this process: rank, role, versions.
- `procfs`: Counters of the machine and of a tree of processes, from `/proc`. None for a counter that the kernel does not
  have.
- `ranks`: Mark the phases of a step: end of forward, last gradient, optimizer. With several ranks they show the slowest
  rank.
- `recorder`: Append the measurements of the hooks in one process to that process's own file in the session.
- `replay`: The hook of a short run that gives the training loop the same batch again and again, at several sizes and
  settings.
- `sampler`: The sampler: a niced process that samples the machine twice a second, and writes the samples to the session.
- `stacks`: Sample the Python stacks of this process while a batch is made or a step runs, to name the functions that take
  the time.
- `steps`: Time the training steps: each `next()` of a DataLoader, and the time until the following `next()`.
- `tensorflow_hooks`: The hook module for TensorFlow: time the batches of tf.data iterators in custom loops and in Keras's
  `fit`.
- `thread_settings`: Read how many threads this process and its libraries may use: variables of the environment, PyTorch,
  OpenCV, Numba.
- `threads`: Read counters of the calling thread and its process quickly: run-queue delay, bytes read, TCP connections.
- `torch_hooks`: The hook module of `headrace diagnose`: install all hooks that time a PyTorch job.
- `transfers`: Count calls that wait for the device (`.item()`, `.cpu()`, …), and time copies to it.
- `unseen_frames`: Hooks that leave no trace in the warnings of the script.
"""
