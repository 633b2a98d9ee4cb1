"""Work in threads of one core each: its order, its errors, and what it leaves behind."""

import threading
import time

from graf.runtime.out_of_memory import is_out_of_memory
from graf.runtime.threads import map_in_threads, threads_for

import pytest
import torch


def test_items_are_taken_at_the_same_time_by_threads_of_one_core_and_answered_in_order(two_threads):
    together, seen = threading.Barrier(3, timeout=30), []

    def work(item):
        together.wait()  # for all three, or it raises
        seen.append(torch.get_num_threads())
        return item * item

    assert list(map_in_threads(work, [3, 1, 2], 3)) == [9, 1, 4]
    assert seen == [1, 1, 1]
    assert torch.get_num_threads() == 2


def test_one_thread_is_the_callers_with_all_cores(two_threads):
    found = list(map_in_threads(lambda _: (threading.current_thread(), torch.get_num_threads()), range(2), 1))
    assert found == [(threading.current_thread(), 2)] * 2


def test_an_error_is_raised_when_the_others_have_ended(two_threads):
    together, ended = threading.Barrier(2, timeout=30), []

    def work(item):
        together.wait()
        if item == 0:
            raise ValueError("the first")
        time.sleep(0.1)
        ended.append(item)

    with pytest.raises(ValueError, match="the first"):
        list(map_in_threads(work, range(2), 2))
    assert ended == [1]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("cores", "items", "threads"), [(1, 5, 1), (2, 1, 1), (2, 3, 2), (6, 2, 1), (6, 3, 3), (6, 9, 6)])
def test_threads_are_taken_where_they_keep_half_of_the_cores_busy(two_threads, cores, items, threads):
    torch.set_num_threads(cores)
    assert threads_for(items) == threads


def test_a_thread_that_cannot_be_started_is_memory_that_ran_out(no_new_threads):
    with pytest.raises(RuntimeError, match="can't start new thread") as raised:
        threading.Thread(target=print).start()
    assert is_out_of_memory(raised.value)


def test_where_no_thread_can_be_started_one_does_the_work_to_the_same_bits(two_threads, no_new_threads, caplog):
    def work(item):
        return item, threading.current_thread(), torch.get_num_threads()

    for _ in range(2):
        assert list(map_in_threads(work, [3, 1, 2], 3)) == [(item, threading.current_thread(), 1) for item in (3, 1, 2)]
        assert torch.get_num_threads() == 2
    assert caplog.messages == [
        "the system cannot start more threads (can't start new thread); one thread does their work, more slowly"
    ]


def test_where_only_some_threads_can_be_started_no_result_is_lost(two_threads, monkeypatch):
    """The second thread fails to start: what the first has begun ends before one thread does all."""
    start, started, running = threading.Thread.start, [], []

    def start_one(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    def work(item):
        running.append(item)
        time.sleep(0.05)  # the second item finds no idle thread
        running.remove(item)
        return item, len(running)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    assert list(map_in_threads(work, range(4), 4)) == [(item, 0) for item in range(4)]
    assert len(started) == 1


def test_another_error_of_the_pool_is_raised(two_threads, monkeypatch):
    def refuse(thread):
        raise RuntimeError("thread already started")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="already started"):
        list(map_in_threads(abs, range(2), 2))
    assert torch.get_num_threads() == 2
