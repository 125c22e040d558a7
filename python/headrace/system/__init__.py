"""The operating system and the machine: hardware and its counters, files, processes, text that is safe to print.

Its rooms, ground first:

- `text`: text that is safe to print: sizes, printable names, redaction, arguments.
- `files`: files that are written whole, private to the user, and never through a link.
- `processes`: child processes and the software that they run.
- `hardware`: cores, memory, disks, GPUs.
"""
