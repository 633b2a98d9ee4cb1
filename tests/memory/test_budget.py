"""What a run may take, and that taking more fails in a way that a step survives."""

import subprocess
import sys
from types import SimpleNamespace

from graf.config import load_config
from graf.memory import budget
from graf.memory.budget import budget_bytes, enforce_budget, watched_budget
from graf.runtime import limits
from graf.runtime.device import choose_device, clean_up
from graf.runtime.limits import GB

import psutil
import pytest
import torch

CPU = torch.device("cpu")


def memory(budget_gb=0):
    return load_config(None, [f"memory.budget_gb={budget_gb}"]).memory


def test_a_budget_is_what_is_asked_for_but_no_more_than_there_is(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(budget, "memory_limit", lambda: 8 * GB)
    assert [budget_bytes(memory(gb), CPU) for gb in (0, 3, 12)] == [8 * GB, 3 * GB, 8 * GB]


@pytest.mark.parametrize(("told", "share"), [("4", 2), ("1", 8), ("", 8), ("many", 8), ("0", 8)])
def test_processes_on_one_machine_share_what_it_has(monkeypatch, told, share):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", told)
    monkeypatch.setattr(budget, "memory_limit", lambda: 8 * GB)
    assert budget_bytes(memory(), CPU) == share * GB
    assert budget_bytes(memory(4), CPU) == share * GB // 2


def test_the_monitor_counts_down_to_the_budget_of_the_device_that_it_is_of(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(budget, "memory_limit", lambda: 8 * GB)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (6 * GB, 8 * GB))
    for device in ("cpu", "cuda"):
        assert watched_budget(memory(3), torch.device(device)) == 3 * GB
        assert watched_budget(memory(), torch.device(device)) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA")
@pytest.mark.parametrize(
    ("processes", "budget_gb", "limit_gb", "limited"),
    [(2, 0, 64, False), (2, 8, 64, True), (2, 0, 32, True), (1, 0, 32, True), (1, 0, 64, False), (1, 96, 64, False)],
)
def test_only_a_limit_that_somebody_named_is_enforced(monkeypatch, processes, budget_gb, limit_gb, limited):
    told = []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(budget, "memory_limit", lambda: limit_gb * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GB))
    monkeypatch.setattr("resource.setrlimit", lambda *given: told.append(given))
    enforce_budget(memory(budget_gb), CPU)
    assert len(told) == limited


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA")
def test_a_limit_that_the_system_does_not_let_be_raised_stays(monkeypatch):
    told = []
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GB))
    monkeypatch.setattr(budget, "memory_limit", lambda: 64 * GB)
    monkeypatch.setattr("resource.getrlimit", lambda _: (2 * GB, 2 * GB))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: told.append(limits))
    enforce_budget(memory(8), CPU)
    assert told == [(2 * GB, 2 * GB)]


def test_a_system_that_enforces_no_budget_is_told_once(monkeypatch, caplog):
    monkeypatch.setattr(budget.sys, "platform", "darwin")
    monkeypatch.setattr(budget, "limit_resident", lambda _: pytest.fail("it cannot"))
    monkeypatch.setattr(budget, "memory_limit", lambda: 64 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=64 * GB))
    for budget_gb in (0, 96, 8):
        enforce_budget(memory(budget_gb), CPU)
    assert caplog.text.count("memory.budget_gb: only Linux makes allocations beyond it fail; here steps are planned by it") == 1


def test_a_card_is_judged_by_what_is_free_on_it(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (6 * GB, 8 * GB))
    for reserved in (0, GB):  # by this process, which may use it again
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _, reserved=reserved: reserved)
        most = 6 * GB + reserved
        assert [budget_bytes(memory(gb), torch.device("cuda")) for gb in (0, 3, 9)] == [most, 3 * GB, most]


@pytest.mark.parametrize(("name", "index"), [("auto", 0), ("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_the_budget_of_a_card_is_a_share_of_its_memory(cards, name, index):
    """By PyTorch's own functions, which take no card without an index here: 3 of 8 GB."""
    calls = cards("NVIDIA A", "NVIDIA B")
    device = choose_device(name)
    assert budget_bytes(memory(3), device) == 3 * GB and budget_bytes(memory(7), device) == 6 * GB
    enforce_budget(memory(3), device)
    assert calls[-1] == ("setMemoryFraction", 3 / 8, index)


def test_less_than_python_takes_is_refused(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(budget.GrafError, match=r"memory\.budget_gb: 0\.01 GB is less than the"):
        enforce_budget(memory(0.01), CPU)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA")
def test_the_limit_is_renewed_where_freed_memory_counts_on(monkeypatch):
    told, counted = [], [10 * GB]
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: told.append(limits[0]))
    monkeypatch.setattr("resource.getrlimit", lambda _: (-1, -1))
    monkeypatch.setattr(limits, "process_bytes", lambda name: counted[0])
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=3 * GB)))
    monkeypatch.setattr(limits, "_resident_limit", 0)
    clean_up()
    assert told == []  # none was set
    limits.limit_resident(5 * GB)
    counted[0] += GB  # as where freed blocks were not given back
    clean_up()
    assert told == [12 * GB + limits.CODE_BYTES, 13 * GB + limits.CODE_BYTES]


UNDER_A_LIMIT = """
import graf, psutil, torch
from graf.config import load_config
from graf.memory.budget import enforce_budget
from graf.runtime.retry import attempt
gb = psutil.Process().memory_info().rss / 2**30
enforce_budget(load_config(None, [f"memory.budget_gb={gb + 0.5}"]).memory, torch.device("cpu"))
for mebibytes in (100, 1000, 100):
    with attempt() as outcome:
        torch.zeros(mebibytes, 2**18)
    print("none left" if outcome.ran_out else "taken")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA")
def test_an_allocation_beyond_the_budget_fails_and_is_survived():
    assert psutil.virtual_memory().available > 2 * GB  # or it might fail for another reason
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], capture_output=True, text=True)
    assert done.stdout.split("\n")[:3] == ["taken", "none left", "taken"], done.stderr
