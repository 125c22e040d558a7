"""What the machine gives a process: cores, memory, disks, GPUs, software, open files.

- `arguments`: Misspelt keyword arguments of public functions: an error of ours that names the argument that was meant.
- `atomic_write`: Write a file so that readers see the old content or the new content, never a part.
- `cgroup`: The control group (cgroup) of a process: its CPU and memory limits, its memory use, and how often its limits
  stopped it.
- `counter_files`: Read the small files of counters below `/proc` and `/sys`, as the sampler of a watched job does dozens of
  times a second.
- `disk`: Measure how fast the storage of a folder reads, without the page cache.
- `end_with_parent`: Processes that end when the process that started them is gone, also when that one was killed.
- `file_identity`: What identifies the content of a file without reading it, for the keys of caches.
- `foreign_errors`: The words of errors that other libraries raise, for a message of one line.
- `gpm`: NVML's GPU performance monitoring (GPM): how full a GPU is, from Hopper on. Each metric is a mean between two
  samples.
- `gpu_decoder_rates`: Published rates of GPU JPEG decoders, for estimates before one was measured.
- `machine`: The cores, memory and shared memory that this process may use. Linux.
- `near_paths`: Existing names near a path that does not exist, for the hint of an error.
- `nvml`: NVIDIA's management library (NVML) by ctypes: which GPUs there are, and their counters.
- `open_files`: The limit on open files of this process: each shard stays open, and many systems allow 1,024 files at first.
- `own_python`: Commands of Python processes that headrace starts for itself.
- `printable`: Text for a terminal or a page: characters that would act on it, or hide what is written, become visible
  escapes.
- `private_cache`: Cache folders in places that other users may write, such as /tmp and /dev/shm.
- `private_files`: The rule of every folder that headrace writes: whose state is used there, and that no link is followed.
- `redaction`: Secrets in command lines and messages: found by name and by shape, and replaced by `***` before anything is
  written.
- `regular_file`: Opening of files that a path, a list or a manifest names: only regular files, and never with a wait.
- `scheduling`: How the system schedules a Python thread of ours beside the thread that trains. Linux.
- `scratch_folder`: Temporary folders that do not stay: a folder whose process was killed is removed when the next one is
  made.
- `size_limits`: Bounds on what is read into memory at once, for files and servers of strangers (docs/reference/limits.md).
- `sizes`: Texts for sizes in bytes and for counts.
- `software`: Versions of Python, NumPy, torch and other packages, and the facts of torch's build.
- `utf8`: Names that are not UTF-8, as text that is: each byte that is not UTF-8 becomes `%XX`, upper-case hex.
"""
