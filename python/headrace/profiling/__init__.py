"""Watch a training job, then measure its images and files, diagnose and report.

- `command`: Run a command under the hooks and the sampler, which record its session in a folder.
- `finish`: The end of every watched run: measure the job's own images and files, diagnose, write the diagnosis and the
  report.
- `first_verdict`: A first verdict while the command still runs: after about 50 steady steps, or a minute after the first
  step.
- `image_benchmark`: The image benchmark: CPU time of decoding a job's own images with Pillow, with headrace, and shrunk
  beforehand.
- `in_process`: `headrace.watch()`: record and diagnose a training loop from inside the script, in a `with` block.
- `read_sweep`: The read sweep: the rate at which storage delivers a job's own files to 1, 2, 4, 8 and 16 readers, B(c) of
  the step model.
- `verify_fixes`: `diagnose --verify`: measure the gain of a fix by running the command briefly with the fix and without it.
- `verify_schedule`: How `diagnose --verify` divides its time: which fixes are measured, and how long each run of the command
  may take.
"""
