"""Two processes train as one does: the same weights, whatever happens to one of them."""

import io
import json
import logging
import os
import signal
import socket
import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

from graf.camera import Labels, sample_poses
from graf.checkpoints.checkpoint import read_checkpoint, save_checkpoint
from graf.checkpoints.run_folder import newest_checkpoint
from graf.config import CONFIG_DIR, load_config
from graf.data import build_loader
from graf.data.toy_cars import ToyCars
from graf.errors import ConfigError, DataError, GrafError
from graf.memory.sizes import StepSizes, smallest_of_all
from graf.pictures.sampling import fresh_samples
from graf.runtime import processes as ranks
from graf.runtime.interruption import REQUEUE, Interruption
from graf.runtime.processes import ALONE, Processes
from graf.runtime.retry import attempt, retry_smaller
from graf.training import loop
from graf.training import step as steps
from graf.training.inputs import generator_batch
from graf.training.loop import train
from graf.training.state import TrainState, load_checkpoint
from graf.training.step import train_step

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

N_STEPS = 12
FEW_STEPS = 8  # of the run that is short of memory
UNREFINED = ("ccsr.mode=none", "ray_sampler.rays_per_patch=256", "nerf.samples_per_ray=4")
FILM = "nerf.conditioning=film"  # of a triplane's first map Adam enlarges gradients near 0, and with them their rounding
RESTORED = "ccsr.lr_multiplier=0.1"  # restoring photographs has a gradient that jumps where a pixel is right
HALVED = (
    FILM,
    "ccsr.lr_multiplier=0.4",
    "training.batch_size=8",
)  # of the run that is short of memory; on its way R1 does not jump
TRIPLANE = "triplane, spectral norm, hflip"
RUNS = {
    "refine, r1, accumulation": (
        *(FILM, "training.accumulation_steps=2", "nerf.perturb=true", "discriminator.dual=true"),
        *("discriminator.low_res_steps=7", RESTORED),
    ),
    "opacity, relativistic": (FILM, RESTORED, "data.alpha=rgba", "training.gan_type=relativistic", "training.reg_type=r1_r2"),
    "an encoder": (
        *(*UNREFINED, FILM, "data.alpha=rgba", "encoder.first_steps=6", "encoder.weight=5"),
        *("training.lr_g=0.0002", "training.lr_d=0.0002"),
    ),
    "spectral norms": (
        *(*UNREFINED, FILM, "discriminator.spectral_norm=true", "discriminator.hflip=true", "discriminator.condition=none"),
        *("training.grad_clip=1", "training.lr_g=0.0002", "training.lr_d=0.0002"),
    ),
    TRIPLANE: (
        # Channels that are normalised one by one hide their biases, whose gradient is rounding alone: 64 are taken by eights.
        *UNREFINED, "nerf.synthesis_width=64", "nerf.plane_size=32", "nerf.plane_channels=16",
        "discriminator.spectral_norm=true", "discriminator.norm=instance",
        "discriminator.hflip=true", "discriminator.condition=none", "training.grad_clip=1",
        "training.lr_g=0.0002", "training.lr_d=0.0002",
    ),
}  # fmt: skip
REFINED = RUNS["refine, r1, accumulation"]
LOST = (  # settings of the run that loses a process
    *UNREFINED, "training.max_steps=4", "training.save_every=1", "training.fid_every=0", "training.sample_every=0",
    "training.monitoring=none", "memory.interval_s=0",
)  # fmt: skip
CPU = torch.device("cpu")
START = "forkserver" if sys.platform.startswith("linux") else "spawn"  # macOS's libraries are not to be forked
PRELOADED = ["graf.training.loop", "torch.distributed", "torch._dynamo", "pytest"]


def build(overrides, processes=ALONE, device=CPU):
    """A state, and 16 noise images with a camera each."""
    config = load_config(CONFIG_DIR / "smoke.yaml", overrides)
    rng = torch.Generator().manual_seed(3)
    images = torch.randint(256, (16, config.data.channels, 16, 16), generator=rng).to(torch.uint8)
    dataset = ToyCars(images, Labels.of_poses(sample_poses(16, config.data, rng)), "noise")
    return TrainState(config, device, processes=processes), dataset


def take_steps(state, dataset, until):
    """Train as the loop does. Returns what the last step says of itself."""
    processes = state.processes
    batches = build_loader(dataset, state.config, state.device, state.step, processes.rank, processes.world_size)
    with closing(batches):
        while state.step < until:
            stats = train_step(state, dataset, *next(batches))
            state.advance()
    return {name: float(value) for name, value in stats.items()}


def weights(state):
    networks = {name: getattr(state, name) for name in ("generator", "generator_ema", "discriminator")}
    return {f"{name}.{key}": value.clone() for name, network in networks.items() for key, value in network.state_dict().items()}


def samples(state, dataset, share):
    def label_sampler(n, rng):
        return dataset.labels[torch.randint(len(dataset), (n,), generator=rng)]

    return fresh_samples(state.generator_ema, label_sampler, n=10, batch_size=3, seed=5, share=share)


def in_two_processes(rank, folder):
    """All that is asked of two processes, so that they need to start only once; each keeps what it found."""
    torch.set_num_threads(1)
    where = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": 2, "timeout": timedelta(seconds=120)}
    dist.init_process_group("gloo", **where)
    processes, found = Processes(rank, 2), {}
    for name, overrides in RUNS.items():
        state, dataset = build(overrides, processes)
        found[f"{name}, stats"] = take_steps(state, dataset, N_STEPS)
        found[name] = weights(state)
    found["resumed"] = resumed(processes, folder)
    found["out of memory"], found["sizes"] = short_of_memory(processes)
    with attempt(processes) as outcome:
        if rank == 1:
            raise MemoryError("no room for the optimizer")
    found["half done"] = outcome.ran_out
    found["evaluations"], found["said of them"] = measured_while_training(processes, folder)
    found["samples"] = list(samples(*build(UNREFINED), processes.map))
    with closing(processes.map(lambda i: 10 * i, range(10))) as tens:
        found["first of many"] = [next(tens)] if rank == 0 else list(tens)
    found["first after memory ran out"] = first_after_memory_ran_out(processes)
    found["smallest"] = str(smallest_of_all(StepSizes(4, 0, 64) if rank else StepSizes(2, 32, 64), processes))
    found["ends"] = [ended_by_a_photograph(of, processes, folder) for of in range(2)]
    with Interruption() as interruption:
        if rank == 1:
            signal.raise_signal(signal.SIGTERM)
        found["to end"] = processes.should_end(interruption), interruption.exit_status
    try:
        processes.require_same(rank, "ranks")
    except GrafError as error:
        found["not the same"] = str(error)
    found["other cards"] = started_on_other_devices(processes, ("cuda:0", "cuda:1"))
    ranks.unusable_gpus = lambda: "NVIDIA 1 cannot be used"
    found["one card"] = started_on_other_devices(processes, ("cuda:0", "cpu"))
    torch.save(found, f"{folder}/found_{rank}.pt")
    fail_alone(processes, folder)


def resumed(processes, folder):
    """The second half of the steps, from a checkpoint of one process, and a checkpoint of two for one to go on from."""
    state, dataset = build(REFINED, processes)
    load_checkpoint(folder / "of_one.pt", state)
    take_steps(state, dataset, N_STEPS)
    begun, _ = build(REFINED, processes)
    take_steps(begun, dataset, N_STEPS // 2)
    if processes.first:
        save_checkpoint(folder / "of_two.pt", begun.checkpoint())
    return weights(state)


def short_of_memory(processes):
    """The weights of a run in one process of which memory runs out, once, in the middle of a step."""
    state, dataset = build(HALVED, processes)
    real, calls = steps.generator_loss, []

    def fails_once(*args):
        calls.append(1)
        if len(calls) == 3 and processes.rank == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*args)

    steps.generator_loss = fails_once
    take_steps(state, dataset, FEW_STEPS)
    steps.generator_loss = real
    return weights(state), (state.sizes.images, len(calls))


def measured_while_training(processes, folder):
    """The steps at which a run measures itself, as each process calls for it, and what the run warns of."""
    few = ("metrics.extractor=efficientnet-lite0", "metrics.n_real=4", "metrics.n_fake=4", "training.monitoring=none")
    cadences = ("training.max_steps=4", "training.fid_every=2", "training.sample_every=0", "training.save_every=0")
    state, dataset = build((*UNREFINED, *few, *cadences, f"training.outdir={folder}", "memory.interval_s=0"), processes)
    called, said, real = [], io.StringIO(), loop.evaluate
    handler = logging.StreamHandler(said)
    handler.setLevel(logging.WARNING)
    logging.getLogger("graf").addHandler(handler)
    loop.evaluate = lambda state, *rest: called.append(state.step) or real(state, *rest)
    state.config.run_dir.mkdir(exist_ok=True)
    train(state, dataset, Interruption())
    loop.evaluate = real
    logging.getLogger("graf").removeHandler(handler)
    return called, said.getvalue()


def ended_by_a_photograph(rank, processes, folder):
    """How a run ends, in each process, of which one cannot read its photograph of the step after three."""
    never = [f"training.{cadence}=0" for cadence in ("save_every", "sample_every", "fid_every")]
    where = ("training.monitoring=none", "memory.interval_s=0", f"training.outdir={folder / 'spoiled'}", f"expname=by_{rank}")
    state, dataset = build((*UNREFINED, *never, *where), processes)
    read = dataset.read

    def read_but_one(index):
        if processes.rank == rank and state.step == 3:
            raise DataError("left.png: is missing")
        return read(index)

    dataset.read = read_but_one
    state.config.run_dir.mkdir(parents=True, exist_ok=True)
    try:
        with ranks._ending_together(processes):
            train(state, dataset, Interruption())
    except (GrafError, SystemExit) as error:
        return str(error)


def first_after_memory_ran_out(processes):
    """If the second process cannot do its share of a map, all repeat the work, here on fewer items."""
    counts = [4]

    def share(i):
        if processes.rank == 1 and counts[-1] == 4:
            raise MemoryError("no room for a sample")
        return 10 * i

    def shrink():
        counts.append(counts[-1] // 2)
        return True

    return retry_smaller(lambda: list(processes.map(share, range(counts[-1]))), shrink, "samples", processes)


def started_on_other_devices(processes, devices):
    """How each process ends, or what it says, where processes have these devices, cards a model of their own."""
    torch.cuda.get_device_name = lambda device: f"NVIDIA {device.index}"
    try:
        with ranks._ending_together(processes):
            ranks.require_one_model(processes, torch.device(devices[processes.rank]))
    except GrafError as error:
        return str(error)
    except SystemExit as ended:
        return ended.code


def fail_alone(processes, folder):
    """The second process fails; the first, which would wait for it, ends, too."""
    status, said = 0, ""
    try:
        with ranks._ending_together(processes):
            if processes.rank == 1:
                raise GrafError("data/left.png: cannot be read")
            processes.barrier()
            raise AssertionError("the first process was told nothing")
    except GrafError as error:
        status, said = error.exit_status, str(error)
    except SystemExit as error:
        status = error.code
    ranks.disconnect()
    torch.save((status, said, names_of_threads()), f"{folder}/end_{processes.rank}.pt")
    sys.exit(status)


def names_of_threads():
    """The names of this process's threads, as far as the system tells."""
    return [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]


def lose_the_second(rank, folder, loss, device_name, port):
    """A run of two processes. In the third step the second, which has agreed to an exchange, does not come: it is sent the
    signal `loss`, or raises an error that says so."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    ranks.TENSOR_TIMEOUT = timedelta(seconds=6)
    log = logging.getLogger("graf")
    log.addHandler(logging.FileHandler(f"{folder}/said_{rank}.txt"))
    with ranks.processes_of_run(device_name) as (processes, device):
        state, dataset = build((*LOST, f"training.outdir={folder}"), processes, device)
        state.config.run_dir.mkdir(exist_ok=True)
        exchange = Processes.all_reduce

        def all_reduce(processes, buffer):
            if state.step == 2 and rank == 1 and isinstance(loss, str):
                raise GrafError(loss)
            if state.step == 2 and rank == 1:
                os.kill(os.getpid(), loss)
            return exchange(processes, buffer)

        Processes.all_reduce = all_reduce
        train(state, dataset, Interruption())


def two_processes(function, *arguments):
    """Start function(rank, *arguments) twice. Imports are most of a process: with a fork server one imports for all."""
    mp.set_forkserver_preload(PRELOADED)
    return mp.start_processes(function, arguments, nprocs=2, join=False, start_method=START)


def run_that_loses_its_second_process(folder, loss, device_name="cpu"):
    """Both exit statuses, None of one that had to be killed, what the first one said, and the step of the checkpoint left."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    context = two_processes(lose_the_second, folder, loss, device_name, port)
    context.processes[0].join(300)
    context.processes[1].join(0 if loss == signal.SIGSTOP else 30)
    statuses = [process.exitcode for process in context.processes]
    for process in context.processes:
        process.kill()
        process.join()
    state, _ = build((*LOST, f"training.outdir={folder}"))
    load_checkpoint(newest_checkpoint(state.config.run_dir), state)
    return statuses, (folder / "said_0.txt").read_text(), state.step


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    state, dataset = build(REFINED)
    take_steps(state, dataset, N_STEPS // 2)
    save_checkpoint(folder / "of_one.pt", state.checkpoint())
    context = two_processes(in_two_processes, folder)
    deadline = time.monotonic() + 300
    for process in context.processes:
        process.join(max(0.0, deadline - time.monotonic()))
        process.kill()  # which pytest would wait for
    assert [process.exitcode for process in context.processes] == [1, 2], context.error_files
    return folder


@pytest.fixture(scope="module")
def found(folder):
    """What each of the two processes found."""
    return [torch.load(folder / f"found_{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def of_one():
    """Weights and numbers of the last step of a run in one process."""
    made = {}

    def run(overrides, n_steps=N_STEPS):
        if overrides not in made:
            state, dataset = build(overrides)
            stats = take_steps(state, dataset, n_steps)
            made[overrides] = weights(state), stats
        return made[overrides]

    return run


def assert_nearly_the_same_way(actual, expected, start):
    """Weights that training has moved from their start by much more than they differ: where Adam enlarges gradients near 0, and
    R1's jumps where an activation changes its sign, rounding is not small, and another on each kind of CPU."""
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        off, moved = ((value - other).double().norm() for other in (actual[name], start[name]))
        assert off <= 0.3 * moved + 1e-6, f"{name}: {off} of {moved}"


def assert_close(actual, expected):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, atol=1e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_reach_the_weights_of_one(found, of_one, name):
    expected, stats = of_one(RUNS[name])
    for of_process in found:
        if name == TRIPLANE:
            assert_nearly_the_same_way(of_process[name], expected, weights(build(RUNS[name])[0]))
        else:
            assert_close(of_process[name], expected)
            assert of_process[f"{name}, stats"] == pytest.approx(stats, rel=1e-3, abs=1e-4)
    assert all(torch.equal(found[0][name][key], found[1][name][key]) for key in expected)


def test_a_run_begun_by_one_process_is_continued_by_two(found, of_one):
    assert_close(found[1]["resumed"], of_one(REFINED)[0])


def test_a_run_begun_by_two_processes_is_continued_by_one(folder, of_one):
    state, dataset = build(REFINED)
    load_checkpoint(folder / "of_two.pt", state)
    assert state.step == N_STEPS // 2
    take_steps(state, dataset, N_STEPS)
    assert_close(weights(state), of_one(REFINED)[0])


def test_out_of_memory_in_one_process_makes_the_parts_of_all_smaller_and_changes_nothing(found, of_one):
    for of_process in found:
        assert_close(of_process["out of memory"], of_one(HALVED, FEW_STEPS)[0])
    # Shares of 4 images, whole in steps 1 and 2; step 3 fails and is taken again in 2 parts, as are the 5 steps after it.
    assert [of_process["sizes"] for of_process in found] == [(2, 3 + 2 * 6)] * 2


def test_buffers_of_a_step_are_made_before_processes_exchange_them(monkeypatch):
    """If one process alone runs out of memory, the others must not be in an all-reduce of another kind."""
    cat, order = torch.cat, []
    monkeypatch.setattr(torch, "cat", lambda *given, **options: order.append("cat") or cat(*given, **options))
    monkeypatch.setattr(Processes, "any", lambda self, flag: order.append("any") or flag)
    monkeypatch.setattr(Processes, "all_reduce", lambda self, buffer: order.append("all-reduce") or buffer)
    state, dataset = build(UNREFINED)
    state.processes = Processes(0, 2)
    images, labels = torch.zeros(2, 3, state.config.data.imsize, state.config.data.imsize), dataset.labels[slice(0, 4)]
    batch = generator_batch(state, labels, images, labels[slice(0, 2)])
    order.clear()
    stats = steps.generator_step(state, batch)
    assert stats["loss_g"].dtype == torch.float64  # as in one process
    assert order[order.index("any") :] == ["any", "all-reduce", "all-reduce"]
    assert order[order.index("any") - 2 : order.index("any")] == ["cat", "cat"]


def test_out_of_memory_in_the_middle_of_an_update_is_told_to_all(found):
    assert [of_process["half done"] for of_process in found] == ["in another process", "no room for the optimizer"]


def test_two_processes_measure_each_time_once_and_warn_of_no_memory(found, folder):
    assert [of_process["evaluations"] for of_process in found] == [[2, 4]] * 2
    rows = [json.loads(line) for line in (folder / "smoke" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "evaluation" in row] == [2, 4]
    assert not any("out of memory" in of_process["said of them"] for of_process in found)


def test_the_first_process_is_given_the_samples_of_all(found):
    expected = list(samples(*build(UNREFINED), map))
    assert [len(images) for images in expected] == [3, 3, 3, 1]
    assert found[1]["samples"] == []
    for actual, wanted in zip(found[0]["samples"], expected, strict=True):
        assert torch.equal(actual, wanted)


def test_samples_that_nobody_wants_are_not_waited_for(found):
    assert [of_process["first of many"] for of_process in found] == [[0], []]


def test_memory_that_runs_out_in_one_process_has_all_do_less(found):
    assert [of_process["first after memory ran out"] for of_process in found] == [[0, 10], []]


def test_processes_start_with_the_sizes_of_the_smallest(found):
    assert {of_process["smallest"] for of_process in found} == {"2 images at a time, 32 rays of them"}


def test_a_signal_to_one_process_ends_all_with_its_status(found):
    assert [of_process["to end"] for of_process in found] == [(True, 128 + signal.SIGTERM)] * 2


def test_other_weights_in_one_process_are_noticed(found):
    assert "not the same" not in found[0]
    assert found[1]["not the same"].startswith("process 1 of 2: ranks differ")


def test_cards_of_different_models_are_refused_before_they_are_connected(found):
    assert found[0]["other cards"] == found[0]["one card"] == 1
    assert found[1]["other cards"].startswith(
        "process 1 of 2 has NVIDIA 1, the first one NVIDIA 0; a run needs GPUs of one model"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_photograph_that_one_process_cannot_read_ends_both_with_a_checkpoint_of_that_step(found, folder, rank):
    """The first one writes it, whichever has failed, and waits for nobody; it is that of a run that ends there by itself."""
    ends = [of_process["ends"][rank] for of_process in found]
    assert (ends[rank], ends[1 - rank]) == ("left.png: is missing", "1")
    saved = read_checkpoint(folder / "spoiled" / f"by_{rank}" / "model.pt")["state"]
    state, dataset = build(UNREFINED)
    take_steps(state, dataset, 3)
    assert saved["step"] == 3
    assert all(torch.equal(saved["rng"][name], state.state_dict()["rng"][name]) for name in ("draws", "noise"))
    assert_close(saved["discriminator"], dict(state.discriminator.state_dict()))
    assert_close(saved["generator"], dict(state.generator.state_dict()))


def test_an_error_in_one_process_ends_both_at_once_and_only_it_speaks(folder):
    ends = [torch.load(folder / f"end_{rank}.pt") for rank in range(2)]
    assert [(status, said) for status, said, _ in ends] == [(1, ""), (2, "data/left.png: cannot be read")]


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="Windows")
@pytest.mark.parametrize(("loss", "status"), [("SIGKILL", -9), ("SIGSTOP", None), ("data/left.png: cannot be read", 1)])
def test_a_process_that_is_lost_in_the_middle_of_a_step_ends_the_other(tmp_path, loss, status):
    """The connection of one that is killed closes. Of one that is stopped, or has an error of its own, it stays open, as with
    NCCL, which waits however a process is lost: the timeout ends what waits for it."""
    statuses, said, step = run_that_loses_its_second_process(tmp_path, getattr(signal, loss, loss))
    assert statuses == [1, status]  # multiprocessing's 1 for the error
    assert "process 0 of 2 ends: another process of the run is gone or hangs, or the network to it" in said
    assert step == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_whose_others_never_come_says_that_it_waits_and_ends(monkeypatch, caplog, rank):
    caplog.set_level("INFO", "graf")
    monkeypatch.setattr(ranks, "MEETING_TIMEOUT", timedelta(seconds=2))
    monkeypatch.setattr(ranks, "PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    told = f"the run's processes cannot be reached at 127.0.0.1:{port}"
    with pytest.raises(GrafError, match=told), ranks.processes_of_run("cpu"):
        pytest.fail("there is no other process")
    assert f"waiting at 127.0.0.1:{port} for all 2 processes of the run" in caplog.text


def test_no_thread_of_the_connection_is_left_at_the_end(folder):
    """One that wants Python's lock while Python is taken down ends the process by SIGABRT, whatever its exit status."""
    for rank in range(2):
        threads = torch.load(folder / f"end_{rank}.pt")[2]
        assert not [name for name in threads if "gloo" in name]


def test_a_connection_that_is_broken_hides_no_error(monkeypatch):
    def broken():
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "destroy_process_group", broken)
    ranks.disconnect()


def test_a_batch_that_cannot_be_dealt_evenly_is_refused():
    assert Processes(1, 4).share_of(8) == 2
    with pytest.raises(ConfigError, match="training.batch_size: 8 images cannot be dealt evenly to 3 processes"):
        Processes(0, 3).share_of(8)


def test_the_shares_of_all_processes_are_the_batch():
    batch = torch.arange(12)
    shares = [batch[Processes(rank, 4).rank_slice] for rank in range(4)]
    assert sorted(torch.cat(shares).tolist()) == batch.tolist()
    assert shares[1].tolist() == [1, 5, 9]


@pytest.mark.parametrize(("rank", "expected"), [(0, ["work", "wait"]), (1, ["wait", "work"])])
def test_the_first_process_has_its_turn_before_the_others(monkeypatch, rank, expected):
    order = []
    monkeypatch.setattr(Processes, "barrier", lambda self: order.append("wait"))
    Processes(rank, 2).in_turn(lambda: order.append("work"))
    assert order == expected


def test_the_minimum_is_the_smallest_tuple_of_any_process(monkeypatch):
    monkeypatch.setattr(Processes, "_all_gather", lambda self, numbers: [numbers, (1, 9)])
    assert Processes(0, 2).minimum((3, 5)) == (1, 9)


def test_of_several_that_fail_at_once_the_first_one_speaks(monkeypatch):
    told = []
    monkeypatch.setattr(Processes, "_largest", lambda self, status: told.append(status) or status)
    assert all(Processes(rank, 3).report_failure() for rank in range(3))  # as if each had failed alone
    assert told == sorted(set(told), reverse=True) and told[-1] > ranks.FAILED
    monkeypatch.setattr(Processes, "_largest", lambda self, status: told[0])
    assert [Processes(rank, 3).report_failure() for rank in range(3)] == [True, False, False]


def test_one_that_fails_when_the_others_have_ended_speaks(monkeypatch):
    def gone(*_):
        raise ranks.ConnectionLost("another process of the run is gone")

    monkeypatch.setattr(Processes, "_largest", gone)
    with pytest.raises(DataError, match="left.png"), ranks._ending_together(Processes(1, 2)):
        raise DataError("left.png: is missing")


@pytest.mark.parametrize(("rank", "level"), [(0, logging.INFO), (1, logging.ERROR)])
def test_the_first_process_alone_logs_and_none_leaves_before_the_others(monkeypatch, caplog, rank, level):
    order = []
    for name in ("_connect", "require_one_model", "tensor_group"):
        monkeypatch.setattr(ranks, name, lambda *_: None)
    monkeypatch.setattr(Processes, "barrier", lambda _: order.append("wait"))
    for name, value in {"RANK": rank, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    caplog.set_level(logging.INFO, "graf")
    with ranks.processes_of_run("cpu"):
        assert ranks.log.level == level
        order.append("work")
    assert order == ["work", "wait"] and ranks.log.level == logging.INFO


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_time_that_is_up_has_all_processes_ask_to_be_started_again(monkeypatch):
    told = []
    monkeypatch.setattr(Processes, "all_reduce_status", lambda self, status: told.append(status) or max(told))
    now = [0.0]
    first, other = Interruption(max_hours=1, clock=lambda: now[0]), Interruption()
    first.began, now[0] = True, 3600.0
    assert Processes(0, 2).should_end(first) and Processes(1, 2).should_end(other)
    assert first.exit_status == other.exit_status == REQUEUE


def test_a_run_of_one_process_under_torchrun_connects_to_nobody(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    with ranks.processes_of_run("cpu") as (processes, _):
        assert processes == ALONE


def test_processes_may_wait_for_hours_once_they_have_met(monkeypatch):
    """As for the first one's FID."""
    waits, store = [], SimpleNamespace(set=lambda *_: None, wait=lambda names, timeout: waits.append(timeout))
    store.set_timeout = waits.append
    monkeypatch.setattr(dist, "rendezvous", lambda *_, timeout: waits.append(timeout) or iter([(store, 0, 2)]))
    monkeypatch.setattr(dist, "init_process_group", lambda *_, timeout, **__: waits.append(timeout))
    for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    ranks._connect()
    assert waits == [timedelta(minutes=15)] * 2 + [timedelta(hours=2)] * 2


def test_without_torchrun_there_are_no_other_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # some containers set it for purposes of their own
    monkeypatch.delenv("RANK", raising=False)
    with ranks.processes_of_run("cpu") as (processes, device):
        assert processes == ALONE and device == torch.device("cpu")
        assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "one"}, "environment variable RANK: expected a number, found 'one'"),
        ({"MASTER_ADDR": ""}, "environment variable MASTER_ADDR: not set"),
    ],
)
def test_variables_that_do_not_fit_are_named(monkeypatch, variables, said):
    complete = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in (complete | variables).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(GrafError, match=said), ranks.processes_of_run("cpu"):
        pass


@pytest.mark.parametrize(("named", "waits"), [(None, "1"), ("0", "0")])
def test_tensors_have_a_group_of_their_own_whose_timeout_is_an_error(monkeypatch, named, waits):
    made, summed, waited = [], [], []

    def all_reduce(tensor, group, async_op):
        assert async_op  # else a work of NCCL is not waited for from torch 2.8 on
        summed.append(group)
        return SimpleNamespace(wait=lambda: waited.append(group))

    monkeypatch.setattr(dist, "new_group", lambda **options: made.append(options) or "the group")
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(torch, "zeros", lambda *shape, device: device)  # there is no card here
    monkeypatch.setenv("TORCH_NCCL_BLOCKING_WAIT", named or "")
    if named is None:
        monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT")
    assert ranks.tensor_group(torch.device("cuda", 0)) == ranks.tensor_group(CPU) == "the group"
    assert made == [{"timeout": timedelta(minutes=5), "backend": backend} for backend in ("nccl", "gloo")]
    assert summed == ["the group"] * 2
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == waits

    Processes(0, 2, "the group").all_reduce(torch.ones(1))
    assert summed == waited == ["the group"] * 3


def test_a_network_that_does_not_lead_to_the_others_is_named(monkeypatch):
    def unreachable(**options):
        raise RuntimeError("Connection refused\nand more")

    monkeypatch.setattr(dist, "new_group", unreachable)
    with pytest.raises(GrafError, match=r"cannot exchange tensors \(Connection refused\); .*GLOO_SOCKET_IFNAME"):
        ranks.tensor_group(CPU)


def test_every_process_takes_its_own_card(cards):
    calls = cards("NVIDIA A", "NVIDIA A")
    for name in ("auto", "cuda"):
        assert ranks._own_device(name, 1) == torch.device("cuda", 1)
        assert calls == [("setDevice", 1)]  # and no other card has been touched
        calls.clear()
    assert ranks._own_device("cpu", 1) == torch.device("cpu")
    with pytest.raises(GrafError, match="LOCAL_RANK 2: this machine has 2 CUDA device"):
        ranks._own_device("cuda", 2)
    with pytest.raises(GrafError, match="--device cuda:1: every process takes a GPU of its own"):
        ranks._own_device("cuda:1", 0)


def test_an_apple_gpu_trains_in_one_process(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(GrafError, match="--device mps: an Apple GPU trains in one process; .* without torchrun"):
        ranks._own_device("mps", 0)


def test_processes_on_cards_that_pytorch_cannot_use_are_told_why(driver):
    driver("NVIDIA A", "NVIDIA A")
    with pytest.raises(GrafError, match="--device cuda: NVIDIA A cannot be used by PyTorch"):
        ranks._own_device("cuda", 1)
