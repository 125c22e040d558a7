"""Ranks on one machine: they listen on the loopback interface only, refuse a neighbour, and unpickle nothing of each other."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import headrace
import pytest
from headrace.system.processes.own_python import own_text
from headrace.training.distributed.processes import run_processes

PACKAGE = Path(headrace.__file__).parent

_JOIN = """
import json, os, sys
from headrace.loading.order.rank_messages import gather_json
from headrace.training.distributed.devices import open_device
from headrace.training.distributed import membership, ranks as module
ranks = module.ranks_from_environment()
"""

_LISTEN = (
    _JOIN
    + """
module.join_group(ranks, open_device("cpu"))
own = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")}
addresses = []
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{name}").readlines()[1:]:
        words = line.split()
        if words[3] == "0A" and f"socket:[{words[9]}]" in own:
            addresses.append(words[1].partition(":")[0])
everyone = gather_json(addresses, world_size=ranks.world_size)
if ranks.main:
    found = {"addresses": everyone, "master": os.environ.get("MASTER_ADDR"), "folder": os.environ["HEADRACE_SPAWNED"]}
    print(json.dumps(found))
module.leave_group()
"""
)

_INTRUDER = (
    _JOIN
    + """
if ranks.rank == 1:  # a process that reached the connection and does not know the secret
    module.read_regular = lambda path: b"another secret"
try:
    module.join_group(ranks, open_device("cpu"))
    print("joined")
except module.HeadraceError as error:
    print(error)
"""
)

_NO_JSON = (
    _JOIN
    + """
import pickle
class Planted:
    def __reduce__(self): return (open, ("ran", "w"))
if ranks.rank == 1:
    class Text(str):
        def encode(self): return pickle.dumps(Planted())
    json.dumps = lambda value: Text()
module.join_group(ranks, open_device("cpu"))
try:
    gather_json({"a": 1}, world_size=2)
    print("taken")
except module.HeadraceError as error:
    print(error)
"""
)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ranks_of_one_machine_listen_on_the_loopback_interface_only() -> None:
    code, printed = run_processes(2, own_text(_LISTEN))
    found = json.loads(printed)
    assert code == 0
    assert all(found["addresses"]), "each rank listens for the others"
    # As the kernel writes them: 127.0.0.1 in the machine's own order of bytes.
    loopback = bytes([127, 0, 0, 1])[:: -1 if sys.byteorder == "little" else 1].hex().upper()
    assert {address for rank in found["addresses"] for address in rank} == {loopback}
    assert found["master"] is None  # no store listens: the ranks meet in a folder
    assert not Path(found["folder"]).exists()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_process_without_the_secret_is_refused() -> None:
    code, printed = run_processes(2, own_text(_INTRUDER))
    assert "does not belong to this run answers in the place of rank 1" in printed, (code, printed)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_pickle_of_another_rank_is_refused_and_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, printed = run_processes(2, own_text(_NO_JSON))
    assert "rank 1 sent a value that is not JSON" in printed
    assert not (tmp_path / "ran").exists()


def test_ranks_exchange_no_pickled_objects() -> None:
    pickling = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "recv_object_list")
    found = [
        f"{path.relative_to(PACKAGE)}: {node.attr}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in pickling
    ]
    assert not found, found
