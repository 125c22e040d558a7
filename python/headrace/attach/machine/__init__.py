"""Read counters and settings of the machine and of the job's processes."""
