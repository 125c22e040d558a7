"""What the machine gives a process: cores, memory, disks, GPUs, software, open files."""
