"""Batches are a function of seed and step alone."""

import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

from graf.camera import Labels, poses_at
from graf.config import load_config
from graf.data import Views, build_loader, sample_labels
from graf.data import loader as loader_module
from graf.data.loader import EndlessBatches, how_it_ended
from graf.errors import DataError, GrafError
from graf.runtime.interruption import SIGNALS

import pytest
import torch

N = 22
needs_signals = pytest.mark.skipif(os.name != "posix", reason="signals")


class Numbered(Views):
    """Image i is i everywhere but in its two columns at the left, where it is 255; class i % 2."""

    def __init__(self, posed: bool):
        classes = torch.arange(N) % 2
        poses = poses_at(torch.arange(N) * 10.0, torch.full((N,), 0.4), 3.6)
        labels = Labels(poses, classes, torch.arange(N) % 3) if posed else None
        super().__init__([f"{i}.png" for i in range(N)], ["a", "b"], classes, labels, "fingerprint")

    def read(self, index):
        image = torch.full((3, 8, 8), index, dtype=torch.uint8)
        image[..., :2] = 255
        return image


def config(*overrides):
    return load_config(None, ["training.batch_size=4", "training.nworkers=0", *overrides])


def take(loader, n):
    batches = list(itertools.islice(loader, n))
    loader.close()
    return batches


def worker_of(loader):
    return loader._workers[0]


def kill_a_worker(loader):
    worker = worker_of(loader)
    worker.kill()
    multiprocessing.connection.wait([worker.sentinel], 5)


def numbers(images):
    return ((images[:, 0, 0, 4] + 1) * 127.5).round().long().tolist()


def test_an_epoch_is_a_permutation_and_the_next_another():
    batches = take(build_loader(Numbered(True), config(), "cpu"), 10)  # 22 // 4 = 5 batches an epoch
    first, second = (sum((numbers(images) for images, _ in part), []) for part in (batches[:5], batches[5:]))
    assert len(set(first)) == len(set(second)) == 20 and set(first) <= set(range(N))
    assert first != second


def test_labels_belong_to_their_images():
    dataset = Numbered(True)
    for images, labels in take(build_loader(dataset, config(), "cpu"), 3):
        expected = dataset.labels[torch.tensor(numbers(images))]
        assert torch.equal(labels.pose_c2w, expected.pose_c2w)
        assert torch.equal(labels.class_index, expected.class_index)
        assert torch.equal(labels.elevation_index, expected.elevation_index)


@pytest.mark.parametrize(("workers", "ahead"), [(0, None), (1, 5)])
def test_only_workers_read_ahead(monkeypatch, workers, ahead):
    options = []
    monkeypatch.setattr(loader_module, "DataLoader", lambda *_, **given: options.append(given) or [])
    build_loader(Numbered(True), config("data.prefetch_factor=5", f"training.nworkers={workers}"), "cpu").close()
    assert [(given["num_workers"], given["prefetch_factor"]) for given in options] == [(workers, ahead)]


@pytest.mark.parametrize("start", [1, 4, 5, 13])
def test_resuming_continues_the_sequence(start):
    dataset, settings = Numbered(False), config("data.hflip=true")
    whole = take(build_loader(dataset, settings, "cpu"), start + 6)
    resumed = take(build_loader(dataset, settings, "cpu", start_step=start), 6)
    for (expected, _), (images, _) in zip(whole[start:], resumed, strict=True):
        assert torch.equal(images, expected)


def test_workers_do_not_change_the_batches():
    dataset = Numbered(False)
    alone = take(build_loader(dataset, config("data.hflip=true"), "cpu", 2), 8)
    helped = take(build_loader(dataset, config("data.hflip=true", "training.nworkers=2"), "cpu", 2), 8)
    for (expected, _), (images, _) in zip(alone, helped, strict=True):
        assert torch.equal(images, expected)


class Interrupted(Numbered):
    """Sends all signals to a process that unpickles it."""

    def __setstate__(self, state):
        self.__dict__.update(state)
        for number in SIGNALS:
            os.kill(os.getpid(), number)


@needs_signals
def test_signals_reach_no_worker_that_is_still_starting(monkeypatch, caplog):
    monkeypatch.setattr(loader_module, "start_method", lambda: "spawn")
    batches = take(build_loader(Interrupted(False), config("training.nworkers=1"), "cpu"), 1)
    assert torch.equal(batches[0][0], next(build_loader(Numbered(False), config(), "cpu"))[0])
    assert not caplog.text  # of a worker that died


def test_workers_that_are_not_forked_load_the_same_batches(monkeypatch, caplog):
    dataset = Numbered(True)
    alone = take(build_loader(dataset, config(), "cpu"), 3)
    monkeypatch.setattr(loader_module, "start_method", lambda: "spawn")
    helped = take(build_loader(dataset, config("training.nworkers=1"), "cpu"), 3)
    for (expected, _), (images, _) in zip(alone, helped, strict=True):
        assert torch.equal(images, expected)
    assert not caplog.text  # of a worker that died


@pytest.mark.skipif(sys.platform != "linux", reason="as they are on Linux")
def test_workers_on_linux_are_forks_whatever_python_does(monkeypatch):
    """Python 3.14 starts others."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "forkserver")
    loader = build_loader(Numbered(True), config("training.nworkers=1"), "cpu")
    assert type(worker_of(loader)).__name__ == "ForkProcess"
    loader.close()


def test_hflip_mirrors_about_half_and_only_when_asked():
    flipped = torch.cat([images for images, _ in take(build_loader(Numbered(False), config("data.hflip=true"), "cpu"), 50)])
    assert 0.35 < (flipped[:, 0, 0, -1] == 1).float().mean() < 0.65
    straight = torch.cat([images for images, _ in take(build_loader(Numbered(False), config(), "cpu"), 10)])
    assert (straight[:, 0, 0, 0] == 1).all() and (straight[:, 0, 0, -1] < 1).all()


def test_another_seed_is_another_order():
    orders = [numbers(take(build_loader(Numbered(True), config(f"training.seed={seed}"), "cpu"), 1)[0][0]) for seed in (0, 1)]
    assert orders[0] != orders[1]


def test_processes_share_each_batch():
    def batch(rank, world_size):
        return next(iter(EndlessBatches(N, 4, 0, False, 3, rank, world_size)))

    assert sorted(batch(0, 2) + batch(1, 2)) == sorted(batch(0, 1))
    assert len(batch(0, 2)) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_random_state_is_left_alone(workers):
    state = torch.get_rng_state()
    take(build_loader(Numbered(True), config(f"training.nworkers={workers}"), "cpu"), 3)
    assert torch.equal(state, torch.get_rng_state())


def test_close_ends_the_workers():
    loader = build_loader(Numbered(True), config("training.nworkers=1"), "cpu")
    next(loader)
    workers = list(loader._workers)
    assert all(worker.is_alive() for worker in workers) and workers
    loader.close()
    for worker in workers:
        worker.join(5)
    assert not any(worker.is_alive() for worker in workers)


def test_labels_of_fakes_come_from_the_data():
    dataset = Numbered(True)
    labels = sample_labels(dataset, 200, config().data, torch.Generator().manual_seed(0))
    source = torch.cdist(labels.pose_c2w.flatten(1), dataset.labels.pose_c2w.flatten(1)).argmin(1)
    assert torch.equal(labels.pose_c2w, dataset.labels.pose_c2w[source])
    assert torch.equal(labels.class_index, source % 2) and torch.equal(labels.elevation_index, source % 3)
    assert len(source.unique()) == N


def test_labels_of_fakes_of_unposed_data_are_drawn_from_the_config():
    dataset = Numbered(False)
    dataset.class_index = torch.tensor([0] * 20 + [1] * 2)
    labels = sample_labels(dataset, 2000, config("data.radius=3.5,3.7").data, torch.Generator().manual_seed(0))
    assert labels.class_index.float().mean().item() == pytest.approx(2 / 22, abs=0.03)
    distance = labels.pose_c2w[:, :, 3].norm(dim=1)
    assert distance.min() >= 3.5 and distance.max() <= 3.7001 and distance.std() > 0.05


@needs_signals
def test_a_killed_worker_is_replaced_and_the_batches_are_the_same(caplog):
    dataset, settings = Numbered(False), config("training.nworkers=2", "data.hflip=true")
    expected = take(build_loader(dataset, config("data.hflip=true"), "cpu", 3), 9)
    loader = build_loader(dataset, settings, "cpu", 3)
    for number, (wanted, _) in enumerate(expected):
        if number in (0, 4, 5):
            kill_a_worker(loader)
        assert torch.equal(next(loader)[0], wanted)
    loader.close()
    assert caplog.text.count("a loader process died (SIGKILL)") == 3


class Slow(Numbered):
    """A batch takes its worker long enough to be killed over it; an image is read in less where `ready` is there."""

    def __init__(self, ready):
        super().__init__(False)
        self.ready = ready

    def read(self, index):
        if not self.ready.exists():
            time.sleep(60)
        return super().read(index)


def kill_soon(loader, ready):
    """The worker ends while it is waited for, and another is fast."""

    def kill():
        ready.touch()
        kill_a_worker(loader)

    timer = threading.Timer(0.3, kill)
    timer.start()
    return timer


@pytest.fixture
def impatient(monkeypatch):
    """torch looks for dead workers after 0.2 instead of 5 seconds of waiting for a batch."""
    monkeypatch.setattr(torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))


@needs_signals
def test_a_worker_killed_while_it_is_waited_for_is_replaced(tmp_path, impatient):
    loader = build_loader(Slow(tmp_path / "ready"), config("training.nworkers=1"), "cpu")
    timer = kill_soon(loader, tmp_path / "ready")
    expected = take(build_loader(Numbered(False), config(), "cpu"), 2)
    for wanted, _ in expected:
        assert torch.equal(next(loader)[0], wanted)
    loader.close()
    timer.join()


@needs_signals
def test_a_death_interrupts_nothing_but_the_reading():
    """torch's own handler would raise in the middle of a step."""
    loader = build_loader(Numbered(False), config("training.nworkers=2"), "cpu")
    next(loader)
    kill_a_worker(loader)
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
    assert sum(range(100_000)) == 4999950000  # bytecodes in which Python would deliver it
    loader.close()


@pytest.fixture
def locked(monkeypatch):
    """locked() leaves the event that ends workers as one leaves it that dies while it looks whether it is to end."""
    context = multiprocessing.get_context(loader_module.start_method())
    events, make = [], context.Event
    monkeypatch.setattr(context, "Event", lambda: events.append(make()) or events[-1])
    return lambda: events[-1]._cond.acquire()


@needs_signals
def test_a_worker_that_dies_with_a_lock_holds_up_neither_the_next_batch_nor_the_end(locked):
    expected = take(build_loader(Numbered(False), config(), "cpu"), 3)
    loader = build_loader(Numbered(False), config("training.nworkers=1"), "cpu")
    for wanted, _ in expected:
        assert torch.equal(next(loader)[0], wanted)
        locked()
        kill_a_worker(loader)
    loader.close()


@needs_signals
def test_a_worker_that_dies_with_a_lock_while_it_is_waited_for_is_replaced(tmp_path, impatient, locked):
    (wanted, _), *_ = take(build_loader(Numbered(False), config(), "cpu"), 1)
    loader = build_loader(Slow(tmp_path / "ready"), config("training.nworkers=1"), "cpu")
    locked()
    timer = kill_soon(loader, tmp_path / "ready")
    assert torch.equal(next(loader)[0], wanted)
    loader.close()
    timer.join()


@needs_signals
def test_a_loader_that_is_deleted_ends_its_workers_without_a_word(monkeypatch, capfd):
    monkeypatch.setattr(loader_module, "available_cores", lambda: 2)
    loader = build_loader(Numbered(False), config("training.nworkers=2"), "cpu")
    next(loader)
    workers = list(loader._workers)
    del loader
    assert [how_it_ended(worker) for worker in workers] == ["SIGKILL", "SIGKILL"]
    assert capfd.readouterr() == ("", "")


class Deadly(Numbered):
    """Takes whoever reads it with it."""

    def read(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


@needs_signals
def test_workers_that_keep_dying_end_the_run_with_advice(impatient):
    loader = build_loader(Deadly(False), config("training.nworkers=1"), "cpu", 7)
    with pytest.raises(GrafError, match=r"step 7: loader processes died 5 times .*SIGKILL.*training.nworkers"):
        next(loader)
    loader.close()


class Faulty(Numbered):
    """Images `bad` cannot be read."""

    def __init__(self, *bad, posed=False):
        super().__init__(posed)
        self.bad = bad

    def read(self, index):
        if index in self.bad:
            raise DataError(f"{index}.png: cannot be read (gone)")
        return super().read(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_image_that_goes_bad_while_training_is_named_without_a_traceback(workers):
    settings = config(f"training.nworkers={workers}")
    order = [numbers(images) for images, _ in take(build_loader(Numbered(False), settings, "cpu"), 4)]
    loader = build_loader(Faulty(order[2][1]), settings, "cpu")
    assert [numbers(next(loader)[0]) for _ in range(2)] == order[:2]
    with pytest.raises(DataError) as caught:
        next(loader)
    assert str(caught.value) == f"{order[2][1]}.png: cannot be read (gone)"
    loader.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_skip_puts_the_next_image_and_its_camera_in_the_place_of_a_bad_one(workers, caplog):
    settings = config(f"training.nworkers={workers}", "data.on_bad_file=skip")
    sound = take(build_loader(Numbered(True), settings, "cpu"), 10)
    found = take(build_loader(Faulty(5, 6, N - 1, posed=True), settings, "cpu"), 10)
    stand_ins = {5: 7, 6: 7, N - 1: 0}
    poses = Numbered(True).labels.pose_c2w
    for (images, _), (others, labels) in zip(sound, found, strict=True):
        expected = [stand_ins.get(i, i) for i in numbers(images)]
        assert numbers(others) == expected
        assert torch.equal(labels.pose_c2w, poses[torch.tensor(expected)])
    assert caplog.text.count("6.png: cannot be read") == 1  # however often


def test_skip_gives_up_where_nothing_can_be_read():
    with pytest.raises(DataError, match="cannot be read"):
        next(build_loader(Faulty(*range(N)), config("data.on_bad_file=skip"), "cpu"))


@pytest.mark.parametrize(("persistent", "started"), [("false", 3), ("true", 1)])  # steps 3 to 4, 5 to 9, 10; or all of them
def test_workers_that_are_started_anew_each_epoch_do_not_change_the_batches(persistent, started):
    dataset, start = Numbered(False), 3
    alone = take(build_loader(dataset, config(), "cpu", start), 8)
    settings = config("training.nworkers=1", f"training.persistent_workers={persistent}")
    loader = build_loader(dataset, settings, "cpu", start)
    seen = set()
    for wanted, _ in alone:
        seen.add(worker_of(loader).pid)
        assert torch.equal(next(loader)[0], wanted)
    loader.close()
    assert len(seen) == started


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_how_a_worker_ended_in_words():
    codes = {0: "exit status 0", 1: "exit status 1", -signal.SIGKILL: "SIGKILL", -40: "signal 40"}
    assert {code: how_it_ended(SimpleNamespace(exitcode=code)) for code in codes} == codes
