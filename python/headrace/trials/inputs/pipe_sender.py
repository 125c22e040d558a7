"""The sender of a SageMaker channel in Pipe mode, on this machine: a process of its own, as there.

    python -m headrace.trials.inputs.pipe_sender CHANNEL FILE …

`CHANNEL_0` exists already. A pass is sent into `CHANNEL_0`, `CHANNEL_1`, … when it is opened for reading: all files, one after
the other. The pipe of the next pass is made meanwhile. It ends with the process that started it.
"""

from __future__ import annotations

import os
import shutil
import sys

from headrace.system.processes.end_with_parent import end_with_parent

__all__ = ["main"]

_CHUNK_BYTES = 1 << 20


def main(arguments: list[str]) -> int:
    """Send one pass over the data after another, until the parent process ends."""
    end_with_parent()
    channel, files = arguments[0], arguments[1:]
    number = 0
    while True:
        try:
            with open(f"{channel}_{number}", "wb") as pipe:  # waits for the reader
                os.mkfifo(f"{channel}_{number + 1}")
                for name in files:
                    with open(name, "rb") as file:
                        shutil.copyfileobj(file, pipe, _CHUNK_BYTES)
        except BrokenPipeError:
            pass  # the reader left its pass early
        number += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
