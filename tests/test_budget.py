"""What a run may take, and that taking more fails in a way that a step survives."""

import subprocess
import sys

import psutil
import pytest
import torch

from graf.config import load_config
from graf.memory import budget
from graf.memory.budget import budget_bytes, keep_to
from graf.memory.limits import GB

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
    assert budget_bytes(memory(1), CPU) == GB  # for each of them


def test_a_card_is_judged_by_what_is_free_on_it(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (6 * GB, 8 * GB))
    assert [budget_bytes(memory(gb), torch.device("cuda")) for gb in (0, 3, 7)] == [6 * GB, 3 * GB, 6 * GB]


def test_less_than_python_takes_is_refused():
    with pytest.raises(budget.GrafError, match=r"memory\.budget_gb: 0\.01 GB is less than the"):
        keep_to(memory(0.01), CPU)


UNDER_A_LIMIT = """
import graf, psutil, torch
from graf.config import load_config
from graf.memory.budget import keep_to
from graf.memory.survival import attempt
gb = psutil.Process().memory_info().rss / 2**30
keep_to(load_config(None, [f"memory.budget_gb={gb + 0.5}"]).memory, torch.device("cpu"))
for mebibytes in (100, 1000, 100):
    held, said = attempt(lambda: torch.zeros(mebibytes, 2**18))
    print("none left" if said else "taken")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_DATA")
def test_an_allocation_beyond_the_budget_fails_and_is_survived():
    assert psutil.virtual_memory().available > 2 * GB  # or it might fail for another reason
    done = subprocess.run([sys.executable, "-c", UNDER_A_LIMIT], capture_output=True, text=True)
    assert done.stdout.split("\n")[:3] == ["taken", "none left", "taken"], done.stderr
