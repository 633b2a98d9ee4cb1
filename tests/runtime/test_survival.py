"""A step's gradient does not depend on the parts it is taken in, and an out-of-memory anywhere in it changes nothing."""

import errno
import logging
import weakref
from types import SimpleNamespace

from graf.camera import Labels, sample_poses
from graf.errors import CheckpointWriteError
from graf.models.generator import Generator
from graf.pictures.sampling import fresh_samples
from graf.runtime.console import run_script
from graf.runtime.out_of_memory import OutOfMemory, is_out_of_memory
from graf.runtime.retry import attempt, retry_halved, retry_smaller
from graf.training import inputs, learn
from graf.training import step as steps
from graf.training.state import TrainState

import pytest
import torch
from halves import discriminator_step, generator_step

CPU_ALLOCATOR = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ..."
ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory"),
    RuntimeError(CPU_ALLOCATOR),
    RuntimeError("std::bad_alloc"),
    RuntimeError("could not create a primitive"),  # of oneDNN, whose code finds no room
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"),
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),  # its name in cuDNN 9
    RuntimeError("can't start new thread"),
    RuntimeError("unable to mmap 128 bytes from file: Cannot allocate memory (12)"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    MemoryError(),
]
UNREFINED = ("ccsr.mode=none", "ray_sampler.rays_per_patch=256")
VARIANTS = {
    "r1": UNREFINED,
    "wgan_gp": (*UNREFINED, "training.reg_type=wgan_gp", "training.gan_type=wgan"),
    "fine network, noise, hflip": (
        *UNREFINED, "nerf.importance_samples_per_ray=4", "nerf.raw_noise_std=1",
        "discriminator.hflip=true", "discriminator.condition=class",
    ),
    "spectral norm": (*UNREFINED, "discriminator.spectral_norm=true", "discriminator.norm=instance"),
    "label loss": (*UNREFINED, "discriminator.label_loss=MCE"),
    "refine": (),
    "refine, dual": ("discriminator.dual=true",),
    "photographs": ("ccsr.learns_from=photographs",),
    "photographs, dual, class": (
        "ccsr.learns_from=photographs", "discriminator.dual=true", "discriminator.condition=class",
        "nerf.density_activation=relu", "nerf.raw_noise_std=1", "nerf.importance_samples_per_ray=4",
    ),
    "projected": ("discriminator.architecture=projected", "discriminator.feature_size=64", "data.alpha=ignore"),
    "mixed": ("discriminator.architecture=mixed", "discriminator.feature_size=64", "data.alpha=ignore"),
    "consistency": ("ccsr.mode=consistency", "ray_sampler.rays_per_patch=256"),
    "consistency, restored": ("ccsr.mode=consistency", "ray_sampler.rays_per_patch=256", "ccsr.judge=restored"),
}  # fmt: skip


TOLERANCES = {  # where rounding is enlarged: by instance normalisation of 2 x 2 pixels, by kinks of a network of 16 blocks
    ("spectral norm", "discriminator"): 2e-5,
    ("spectral norm", "generator"): 2e-5,
    ("projected", "generator"): 1e-2,
    ("mixed", "discriminator"): 2e-5,
    ("mixed", "generator"): 1e-2,
}


@pytest.fixture
def build(refine):
    def build(*overrides):
        return TrainState(refine(*overrides), torch.device("cpu"), n_classes=2, n_elevations=3)

    return build


@pytest.fixture(scope="module")
def whole_batches():
    """By variant, the gradients and numbers of a step in one part, which the first test of it computes."""
    return {}


@pytest.fixture(scope="module")
def steps_in_parts():
    """By whether the discriminator's half is taken in one part, the state after a step whose other parts have two images."""
    return {}


def gradients_of_a_step(state, photographs, labels, monkeypatch):
    """Gradients of both networks in one step, which is not taken."""
    found = {}

    def keep(state, player, *_):
        name = "discriminator" if player.network is state.discriminator else "generator"
        found[name] = [None if p.grad is None else p.grad.clone() for p in player.network.parameters()]
        return torch.tensor(0.0)

    monkeypatch.setattr(learn, "clip_and_step", keep)
    stats = discriminator_step(state, photographs, labels, labels) | generator_step(state, labels, photographs, labels)
    return found, stats


@pytest.mark.parametrize("sizes", [(3, 0), (1, 0), (2, 100)], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_parts_add_up_to_the_whole_batch(build, photographs, labels, monkeypatch, whole_batches, variant, sizes):
    if variant not in whole_batches:
        whole_batches[variant] = gradients_of_a_step(build(*VARIANTS[variant]), photographs, labels, monkeypatch)
    expected, stats = whole_batches[variant]
    part = build(*VARIANTS[variant])
    part.sizes.images, part.sizes.rays = sizes
    found, stats_of_parts = gradients_of_a_step(part, photographs, labels, monkeypatch)
    for network, wanted in expected.items():
        norm = torch.stack([g.norm() for g in wanted if g is not None]).norm()
        difference = torch.stack([(a - b).norm() for a, b in zip(found[network], wanted, strict=True) if b is not None]).norm()
        assert difference <= TOLERANCES.get((variant, network), 1e-5) * norm, network
    for name, value in stats.items():
        torch.testing.assert_close(stats_of_parts[name], value, atol=1e-5, rtol=1e-5)


PHASES = {  # where it fails: what of graf.training.step, of its inputs, or of the discriminator
    "sampling a batch": "sample_inputs",
    "drawing a batch's rendering": "_render",
    "what the discriminator sees": "_seen_by_discriminator",
    "the discriminator's loss": "discriminator_loss",
    "the penalty": "gradient_penalty",
    "the generator's loss": "generator_loss",
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("phase", PHASES)
def test_a_step_that_ran_out_of_memory_is_taken_again_as_if_it_had_not(
    build, photographs, labels, monkeypatch, caplog, steps_in_parts, phase, error
):
    in_one_part = phase == "the generator's loss"  # before which the discriminator's half has gone through
    if in_one_part not in steps_in_parts:
        expected = steps_in_parts[in_one_part] = build()
        if not in_one_part:
            expected.sizes.images = 2
        discriminator_step(expected, photographs, labels, labels)
        expected.sizes.images = 2
        generator_step(expected, labels)
    expected = steps_in_parts[in_one_part]

    state = build()
    where = next(owner for owner in (inputs, steps, state.discriminator) if hasattr(owner, PHASES[phase]))
    real, calls = getattr(where, PHASES[phase]), []

    def fails_once(*args, **kwargs):
        calls.append(1)
        if len(calls) == 1:
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(where, PHASES[phase], fails_once)
    with caplog.at_level(logging.WARNING):
        discriminator_step(state, photographs, labels, labels)
        generator_step(state, labels)
    assert state.sizes.images == 2
    assert "out of memory" in caplog.text
    for network in ("generator", "generator_ema", "discriminator"):
        for name, value in getattr(expected, network).state_dict().items():
            assert torch.equal(getattr(state, network).state_dict()[name], value), name
    assert torch.equal(state.rng.get_state(), expected.rng.get_state())


def test_a_sample_that_ran_out_of_memory_is_drawn_again_from_the_same_random_state(build):
    state, drawn = build(), []

    def sample():
        drawn.append(state.sample_latents(2))
        if len(drawn) == 1:
            raise MemoryError

    learn.retried(state, sample)
    assert torch.equal(*drawn)


def test_a_backward_pass_that_runs_out_of_memory_leaves_no_half_gradient(build, photographs, labels, monkeypatch):
    expected = build()
    expected.sizes.images = 1
    discriminator_step(expected, photographs, labels, labels)

    state = build()
    state.sizes.images = 2
    backward, calls = torch.autograd.backward, []

    def fails_second(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:  # the first part's gradient is there by then
            raise torch.OutOfMemoryError("CUDA out of memory")
        return backward(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", fails_second)
    discriminator_step(state, photographs, labels, labels)
    for actual, wanted in zip(state.discriminator.parameters(), expected.discriminator.parameters(), strict=True):
        assert torch.equal(actual, wanted)


def test_a_step_for_which_no_thread_can_be_started_is_the_same_bit_for_bit(
    build, photographs, labels, two_threads, request, caplog
):
    expected, state = build(), build()
    discriminator_step(expected, photographs, labels, labels)
    request.getfixturevalue("no_new_threads")
    discriminator_step(state, photographs, labels, labels)
    assert "the system cannot start more threads" in caplog.text
    for actual, wanted in zip(state.discriminator.parameters(), expected.discriminator.parameters(), strict=True):
        assert torch.equal(actual, wanted)


def test_the_smallest_piece_that_fails_ends_it(build, photographs, labels, monkeypatch):
    state = build()

    def fails(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(steps, "_render", fails)
    before = [p.clone() for p in state.discriminator.parameters()]
    with pytest.raises(OutOfMemory, match="step 1: out of memory .*Tried to allocate 2 GiB"):
        discriminator_step(state, photographs, labels, labels)
    for actual, wanted in zip(state.discriminator.parameters(), before, strict=True):
        assert torch.equal(actual, wanted)


OTHER_ERRORS = [
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 2 bytes."),  # on Windows
    RuntimeError("CUDA error: out of memory"),  # outside of PyTorch's allocator
    RuntimeError("could not create a memory object"),  # of oneDNN
]


@pytest.mark.parametrize("error", [*ERRORS, *OTHER_ERRORS], ids=lambda error: type(error).__name__)
def test_what_out_of_memory_looks_like(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape mismatch"),
        RuntimeError("could not create a primitive descriptor for the convolution forward propagation primitive"),
        ValueError("out of memory"),
        KeyError("x"),
        OSError(errno.ENOSPC, ""),
        CheckpointWriteError("runs/out of memory/model.pt: cannot be written (No space left on device)"),
    ],
)
def test_what_it_does_not_look_like_is_raised(error):
    assert not is_out_of_memory(error)

    with pytest.raises(type(error)), attempt():
        raise error


def test_processes_agree_even_where_only_another_one_failed():
    """This process repeats its work in smaller pieces if any other failed."""
    done, shrunk = [], []
    result = retry_smaller(
        work=lambda: done.append(1) or len(done),
        shrink=lambda: shrunk.append(1) is None,
        what="step 3",
        processes=SimpleNamespace(any=lambda failed: not shrunk),
    )
    assert (result, len(done), len(shrunk)) == (2, 2, 1)


def test_a_result_made_beside_a_process_that_failed_is_freed_before_less_is_tried():
    made, freed = [], []

    def work():
        result = torch.zeros(1)
        made.append(weakref.ref(result))
        return result

    def shrink():
        freed.append(made[0]() is None)
        return True

    retry_smaller(work, shrink, "step 3", SimpleNamespace(any=lambda failed: not freed))
    assert freed == [True]


def test_sizes_are_halved_down_to_the_smallest_and_memory_is_freed_before_each(monkeypatch):
    seen = []
    monkeypatch.setattr("graf.runtime.retry.clean_up", lambda: seen.append("freed"))

    def work(size):
        seen.append(size)
        raise MemoryError

    with pytest.raises(OutOfMemory, match="tiles: out of memory .*, in the smallest pieces there are"):
        retry_halved(work, 9, "tiles", smallest=2)
    assert seen == [9, "freed", 4, "freed", 2, "freed"]


def test_rendering_takes_fewer_rays_where_memory_runs_out(refine, labels, monkeypatch, caplog):
    """1000, 500, 250 and 125 rays at a time; 62 would be fewer than 100. The next call begins with nerf.chunk again, but does
    not warn again."""
    monkeypatch.setattr("graf.runtime.retry._warned", set())
    generator = Generator(refine("nerf.chunk=1000")).eval()
    latents = generator.sample_latents(4, torch.Generator().manual_seed(0))
    expected = generator.render(latents, labels.pose_c2w).images
    render_rays, before, taken = generator.render_rays, dict(vars(generator)), []

    def fails_on_many(rays_o, *args):
        taken.append(rays_o.shape[0] * rays_o.shape[1])
        if taken[-1] > 150:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return render_rays(rays_o, *args)

    monkeypatch.setattr(generator, "render_rays", fails_on_many)
    torch.testing.assert_close(generator.render(latents, labels.pose_c2w).images, expected)
    assert max(rays for rays in taken if rays <= 150) <= 125
    sizes = []

    def noted(work, *given):
        return retry_halved(lambda n: sizes.append(n) or work(n), *given)

    monkeypatch.setattr("graf.pieces.retry_halved", noted)
    monkeypatch.setattr(generator, "render_rays", lambda *_: (_ for _ in ()).throw(MemoryError))
    for _ in range(2):
        with pytest.raises(OutOfMemory, match="rendering: out of memory"):
            generator.render(latents, labels.pose_c2w)
    assert sizes == [1000, 500, 250, 125] * 2
    assert caplog.text.count("rendering: out of memory (CUDA out of memory); retried in smaller pieces") == 1
    assert caplog.text.count("retried in smaller pieces") == 1
    assert {name: value for name, value in vars(generator).items() if name != "render_rays"} == before


def test_what_fails_in_its_smallest_pieces_is_tried_in_a_smaller_whole():
    """Rendering does so: its batch of latents is halved when a chunk of rays cannot be."""
    tried = []

    def work():
        tried.append(1)
        if len(tried) < 3:
            retry_smaller(lambda: (_ for _ in ()).throw(MemoryError()), lambda: False, "rays")
        return "done"

    assert retry_smaller(work, lambda: True, "images") == "done"
    with pytest.raises(OutOfMemory, match="images: out of memory .rays: out of memory"):
        tried.clear()
        retry_smaller(work, lambda: False, "images")


def test_a_step_whose_smallest_part_is_too_large_is_not_taken_for_one_half_done():
    with pytest.raises(OutOfMemory), attempt():
        raise OutOfMemory("step 0")


def test_fresh_samples_do_not_depend_on_their_batches(refine):
    generator = Generator(refine()).eval()
    data = generator.config.data

    def label_sampler(n, rng):
        return Labels.of_poses(sample_poses(n, data, rng))

    def samples(batch_size):
        return torch.cat(list(fresh_samples(generator, label_sampler, 11, batch_size, seed=5)))

    torch.testing.assert_close(samples(4), samples(11))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_script_that_cannot_even_start_says_so_in_one_line(error, capsys):
    def main():
        raise error

    with pytest.raises(SystemExit) as ended:
        run_script(main)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "out of memory" in line
    assert "tools/check_system.py" in line
