"""Named pipes fed by other threads, as SageMaker feeds a channel in Pipe mode."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path


def feed(path: Path, data: bytes) -> threading.Thread:
    """Make the pipe and send `data` through it once a reader opens it."""
    os.mkfifo(path)

    def send() -> None:
        with contextlib.suppress(BrokenPipeError), open(path, "wb") as file:
            for at in range(0, len(data), 5000):
                file.write(data[at : at + 5000])

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def channel(tmp_path: Path, streams: list[bytes], name: str = "train") -> Iterator[Path]:
    """Yield a channel with one pipe a pass; each is fed once a reader opens it."""
    folder = tmp_path / f"channel-{len(list(tmp_path.glob('channel-*')))}"
    folder.mkdir()
    threads = [feed(folder / f"{name}_{number}", data) for number, data in enumerate(streams)]
    yield folder / name
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads), "a sender still waits"
    assert not any("headrace-stream" in thread.name for thread in threading.enumerate())
