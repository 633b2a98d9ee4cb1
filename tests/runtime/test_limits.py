"""What limits this process: the machine, its control groups of either version, and ulimit."""

import os
from types import SimpleNamespace

from graf.runtime import limits
from graf.runtime.limits import available_cores, keep_threads_within_quota, memory_available, memory_limit

import pytest


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A root folder for /proc and /sys of a machine with 8 cores and 1000 bytes, 800 of them free; machine("sys/x", "text")
    writes."""
    memory = SimpleNamespace(total=1000, available=800)
    monkeypatch.setattr("graf.runtime.limits.psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr(limits, "_cores_to_run_on", lambda: 8)

    def write(name: str, text: str):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        return tmp_path

    return write


def test_without_control_groups_the_machine_is_the_limit(machine):
    root = machine("proc/self/other", "")
    assert (memory_limit(root), memory_available(root)) == (1000, 800)


def test_the_least_of_nested_groups_counts_and_file_cache_is_free(machine):
    machine("proc/self/cgroup", "0::/user/run\n")
    machine("sys/fs/cgroup/user/run/memory.max", "max\n")
    machine("sys/fs/cgroup/user/memory.max", "500\n")
    machine("sys/fs/cgroup/user/memory.current", "400\n")
    root = machine("sys/fs/cgroup/user/memory.stat", "anon 300\ninactive_file 60\n")
    assert (memory_limit(root), memory_available(root)) == (500, 500 - 400 + 60)


def test_version_1_of_control_groups_inside_a_container(machine):
    machine("proc/self/cgroup", "5:cpu:/a\n4:memory:/docker/of/the/host\n0::/\n")
    machine("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "500\n")  # where this process has its CPU time alone
    machine("sys/fs/cgroup/memory/memory.limit_in_bytes", "600\n")
    machine("sys/fs/cgroup/memory/memory.usage_in_bytes", "650\n")
    root = machine("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 10\n")
    assert (memory_limit(root), memory_available(root)) == (600, 0)


def test_ulimit_is_a_limit_on_addresses(machine, monkeypatch):
    process = SimpleNamespace(rlimit=lambda which: (700, -1), memory_info=lambda: SimpleNamespace(vms=450))
    monkeypatch.setattr("graf.runtime.limits.psutil.Process", lambda: process)
    root = machine("proc/self/other", "")
    assert (memory_limit(root), memory_available(root)) == (700, 250)


def test_cores_are_those_whose_time_the_groups_allow(machine):
    assert available_cores(machine("proc/self/cgroup", "0::/user/run\n")) == 8
    machine("sys/fs/cgroup/user/run/cpu.max", "max 100000\n")
    assert available_cores(machine("sys/fs/cgroup/cpu.max", "1600000 100000\n")) == 8
    assert available_cores(machine("sys/fs/cgroup/user/cpu.max", "250000 100000\n")) == 3
    assert available_cores(machine("sys/fs/cgroup/user/run/cpu.max", "10000 100000\n")) == 1


def test_cores_in_version_1_of_control_groups(machine):
    machine("proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/docker/of/the/host\n")
    machine("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n")
    assert available_cores(machine("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")) == 8
    assert available_cores(machine("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n")) == 2


def test_threads_are_as_many_as_the_quota_allows_unless_the_user_says_otherwise(machine, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # put back in the end
    monkeypatch.delenv("OMP_NUM_THREADS")
    root = machine("proc/self/cgroup", "0::/\n")
    keep_threads_within_quota(root)
    assert "OMP_NUM_THREADS" not in os.environ  # PyTorch knows best: it leaves out cores that are two of one
    machine("sys/fs/cgroup/cpu.max", "300000 100000\n")
    keep_threads_within_quota(root)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    machine("sys/fs/cgroup/cpu.max", "200000 100000\n")
    keep_threads_within_quota(root)
    assert os.environ["OMP_NUM_THREADS"] == "3"
