"""A run ends after the step in hand, with the exit status that tells why."""

import errno
import os
import runpy
import signal
import threading
from pathlib import Path

import graf.runtime.interruption
from graf.data.loader import leave_interrupts_to_parent
from graf.runtime.files import whole_file
from graf.runtime.interruption import REQUEUE, SIGNALS, Interruption, end_on_signals, heard_by, held_back
from graf.runtime.run_lock import run_lock

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
STATUSES = [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", REQUEUE)]
HUNG_UP = ("SIGHUP", 129)


@pytest.fixture
def restored_handlers():
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGUSR2)}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def heard_hang_up(restored_handlers):
    """SIGHUP as it is without nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.mark.parametrize(("name", "status"), [*STATUSES, HUNG_UP])
def test_a_signal_only_asks_and_the_handlers_are_given_back(name, status, heard_hang_up):
    before = [signal.getsignal(number) for number in SIGNALS]
    with Interruption() as interruption:
        assert not interruption.requested
        assert interruption.exit_status == 0
        os.kill(os.getpid(), getattr(signal, name))
        assert interruption.requested
    assert interruption.exit_status == status
    assert interruption.reason == name
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_the_first_signal_is_answered_at_once_but_by_a_terminal_that_is_still_there(capfd, heard_hang_up):
    for number, said in (
        (signal.SIGTERM, "\nSIGTERM: ends when what runs now is done; a second signal ends it at once\n"),
        (signal.SIGHUP, ""),
    ):
        with Interruption():
            os.kill(os.getpid(), number)
            assert capfd.readouterr().err == said


def test_an_answer_that_nobody_can_read_breaks_off_no_step(monkeypatch, restored_handlers):
    """As where the terminal is gone by then."""

    def gone(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", gone)
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
    assert interruption.exit_status == 143


def test_one_of_several_processes_answers(capfd, monkeypatch, restored_handlers):
    monkeypatch.setenv("RANK", "1")
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
    assert interruption.requested and not capfd.readouterr().err


@pytest.mark.parametrize("second", [name for name, _ in STATUSES])
def test_a_second_signal_ends_at_once_and_harms_no_file(tmp_path, second):
    path = tmp_path / "model.pt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), Interruption():
        os.kill(os.getpid(), signal.SIGTERM)
        with whole_file(path) as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), getattr(signal, second))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_batch_system_may_send_several_and_a_sigterm_after_them(capfd, restored_handlers):
    with Interruption() as interruption:
        for number in (signal.SIGUSR1, signal.SIGUSR1, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert interruption.exit_status == REQUEUE
        assert not capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_terminal_that_closes_may_send_several_and_nohup_none(heard_hang_up):
    with Interruption() as interruption:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert interruption.reason == "SIGHUP"
    with Interruption() as interruption:  # whose owner has ended it, and closes the terminal then
        for number in (signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert interruption.reason == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert not interruption.requested


def test_ctrl_break_is_heard_where_there_is_one(monkeypatch, restored_handlers):
    """On Windows."""
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR2, raising=False)
    signal.signal(signal.SIGBREAK, signal.SIG_IGN)
    with runpy.run_path(graf.runtime.interruption.__file__)["Interruption"]() as interruption:
        os.kill(os.getpid(), signal.SIGBREAK)
        assert interruption.exit_status == 128 + signal.SIGBREAK
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGBREAK)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_is_held_back_comes_later(heard_hang_up, number):
    with Interruption() as interruption:
        with held_back():
            signal.pthread_kill(threading.get_ident(), number)  # others of the process would hear one that is sent to it
            assert not interruption.requested
        assert interruption.reason == number.name
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(SIGNALS)


def test_a_signal_after_that_of_another_process_interrupts_nothing():
    with Interruption() as interruption:
        interruption.signal = signal.SIGTERM  # as Processes.should_end sets it
        os.kill(os.getpid(), signal.SIGUSR1)
        assert interruption.exit_status == 143
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGUSR1)


def test_the_deadline_counts_from_the_start():
    now = [1000.0]
    interruption = Interruption(max_hours=0.5, clock=lambda: now[0])
    now[0] += 1799.9
    assert not interruption.requested
    now[0] += 0.1  # 0.5 h = 1800 s
    assert not interruption.requested  # before it has taken a step
    interruption.began = True
    assert interruption.requested
    assert interruption.exit_status == REQUEUE
    assert interruption.reason == "training.max_hours"


def test_no_max_hours_is_no_deadline():
    now = [0.0]
    interruption = Interruption(clock=lambda: now[0])
    now[0] = 1e12
    assert not interruption.requested


def test_a_signal_outweighs_the_deadline():
    with Interruption(max_hours=1e-9) as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
    assert interruption.exit_status == 143


def test_sigusr1_before_the_first_step_asks_for_another_start(restored_handlers):
    end_on_signals()
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), signal.SIGUSR1)
    assert ended.value.code == REQUEUE


@pytest.mark.parametrize(("name", "status"), [*STATUSES[1:], HUNG_UP])
def test_a_run_that_is_ended_before_its_first_step_unlocks_its_folder(tmp_path, heard_hang_up, name, status):
    end_on_signals()
    with pytest.raises(SystemExit) as ended, run_lock(tmp_path / "run"):
        try:
            os.kill(os.getpid(), getattr(signal, name))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # as batch systems send a second one
    assert ended.value.code == status
    assert not (tmp_path / "run").exists()


def test_a_signal_while_the_folder_is_unlocked_leaves_no_lock(tmp_path, restored_handlers, monkeypatch):
    end_on_signals()
    unlink = Path.unlink

    def signalled(path, **options):
        monkeypatch.undo()
        os.kill(os.getpid(), signal.SIGTERM)
        unlink(path, **options)

    with run_lock(tmp_path / "run"):
        monkeypatch.setattr(Path, "unlink", signalled)
    assert not (tmp_path / "run").exists()


def test_a_signal_that_goes_lost_before_the_first_step_leaves_the_process_open_to_the_next(heard_hang_up):
    end_on_signals()
    for _ in range(2):  # the first as in a finalizer, which no error leaves
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143


def test_no_signal_breaks_off_a_block_that_ignores_them(restored_handlers):
    end_on_signals()
    with heard_by(signal.SIG_IGN):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit):
        os.kill(os.getpid(), signal.SIGTERM)


def test_ctrl_c_before_the_first_step_ends_by_itself(restored_handlers):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background of a shell it is ignored
    end_on_signals()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_after_the_last_step_signals_do_what_they_did_before_the_first(heard_hang_up):
    end_on_signals()
    with Interruption():
        pass
    with pytest.raises(SystemExit) as ended:
        os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143


def test_nohup_holds_before_the_first_step_too(restored_handlers):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_on_signals()
    os.kill(os.getpid(), signal.SIGHUP)


def test_a_clean_up_that_is_asked_for_before_the_first_step_ends_no_run(restored_handlers):
    signal.signal(signal.SIGUSR2, lambda *_: pytest.fail("it would"))
    end_on_signals()
    os.kill(os.getpid(), signal.SIGUSR2)


def test_loader_workers_leave_every_signal_to_their_parent(restored_handlers):
    leave_interrupts_to_parent(0)
    assert all(signal.getsignal(number) is signal.SIG_IGN for number in SIGNALS)
