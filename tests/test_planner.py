"""The planner's estimate against the count of a step's live bytes, and the edits that it would make."""

import contextlib
import dataclasses
import functools
import gc
import weakref
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graf.camera import Labels
from graf.config import CONFIG_DIR, Config, load_config, override
from graf.memory.advice import fits, smallest_edits
from graf.memory.limits import MB
from graf.memory.planner import PROCESS_BYTES, Estimate, estimate_step
from graf.models.projection import projection_operators
from graf.training.state import TrainState
from graf.training.steps import discriminator_step, generator_step

TOLERANCE = 0.25
OTHERS = {  # what no shipped config does, or seldom
    "fine network": ("nerf.N_importance=8",),
    "mixed precision": ("training.use_amp=true",),
    "view directions": ("nerf.use_viewdirs=true",),
    "heavy backbone": ("ccsr.backbone=rrdb", "ccsr.num_rrdb_blocks=2", "ccsr.nf=16", "ccsr.gc=8"),
    "consistency": ("ccsr.mode=consistency", "ray_sampler.N_samples=256"),
    "instance norm": ("discriminator.norm=instance", "discriminator.spectral_norm=true"),
    "no penalty": ("training.reg_type=none",),
    "few samples": ("nerf.N_samples=2", "ccsr.width=32"),
}


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations inside it make and that have not been freed."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation is torch.ops.aten._local_scalar_dense.default and _is_fake(args[0]):
            return True if args[0].dtype == torch.bool else 1.0  # whether a gradient is finite
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


class ShapesOnly(FakeTensorMode):
    """Tensors without content that autocast, unlike those of the meta device, takes for the CPU's; copies stay in the mode."""

    def __deepcopy__(self, memo):
        return self


def _is_fake(tensor: Tensor) -> bool:
    return getattr(tensor, "fake_mode", None) is not None


def shapes_of(config: Config) -> Config:
    """The config without what leaves all shapes as they are, such as its cameras: several share one measurement."""
    plain = load_config()
    return dataclasses.replace(config, expname="shapes", data=dataclasses.replace(plain.data, imsize=config.data.imsize))


@functools.cache
def tracked_peak(config: Config, fake: bool = True) -> int:
    """Most live bytes in a training step that is not the first; without computing anything where `fake`."""
    stay = mock.patch.object(nn.Module, "to", lambda self, *_: self)  # fake parameters cannot be moved
    mode = ShapesOnly() if fake else contextlib.nullcontext()
    projection_operators.cache_clear()
    with stay, torch.random.fork_rng(devices=[]), mode, LiveBytes() as counter:
        state = TrainState(config, torch.device("cpu"))
        batch, width = config.training.batch_size, config.data.imsize
        images = torch.zeros(batch, 3, width, width)
        labels = Labels.of_poses(torch.ones(batch, 3, 4))
        for network, optimizer in ((state.generator, state.optimizer_g), (state.discriminator, state.optimizer_d)):
            for parameter in network.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()  # so that it has its state, as after a first step
        counter.peak = counter.live
        discriminator_step(state, images, labels, labels)
        generator_step(state, labels)
    projection_operators.cache_clear()
    return counter.peak


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("name", sorted(path.name for path in CONFIG_DIR.glob("*.yaml")))
def test_estimate_is_near_the_peak_of_every_shipped_config(name):
    config = load_config(CONFIG_DIR / name)
    assert estimate_step(config).step_bytes == pytest.approx(tracked_peak(shapes_of(config)), rel=TOLERANCE)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("overrides", OTHERS.values(), ids=OTHERS.keys())
def test_estimate_is_near_the_peak_of_other_settings(overrides, refine):
    config = refine("training.batch_size=16", "nerf.netwidth=32", *overrides)
    assert estimate_step(config).step_bytes == pytest.approx(tracked_peak(shapes_of(config)), rel=TOLERANCE)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_shapes_alone_have_the_peak_of_a_real_step(refine):
    real = tracked_peak(refine(), fake=False)
    assert tracked_peak(refine()) == pytest.approx(real, rel=0.02)


def test_counter_counts_what_lives():
    with LiveBytes() as counter:
        kept = torch.zeros(256)  # 1 KiB
        view = kept[:10]
        temporary = torch.zeros(512)
        del temporary
        gc.collect()
        more = kept + 1
    assert (counter.live, counter.peak) == (2048, 3072)
    assert len(view) + len(more) == 266


def test_persistent_parts_are_counted_by_hand(refine):
    config = refine()
    state = TrainState(config, torch.device("cpu"))
    generator = sum(p.numel() for p in state.generator.parameters())
    discriminator = sum(p.numel() for p in state.discriminator.parameters())
    parts = estimate_step(config).parts
    assert parts["weights"] == parts["gradients"] == 4 * (generator + discriminator)
    assert parts["optimizers"] == 2 * parts["weights"]
    assert parts["moving average"] == 4 * generator
    assert estimate_step(override(config, ["training.optimizer=rmsprop"])).parts["optimizers"] == parts["weights"]


def test_a_frozen_backbone_has_neither_gradients_nor_optimizer(refine):
    rrdb = ("ccsr.backbone=rrdb", "ccsr.num_rrdb_blocks=1", "ccsr.nf=8", "ccsr.gc=4")
    learning, frozen = (estimate_step(refine(*rrdb, f"ccsr.freeze_backbone={x}")).parts for x in ("false", "true"))
    network = TrainState(refine(*rrdb), torch.device("cpu")).generator.refinement.backbone.network
    size = 4 * sum(p.numel() for p in network.parameters())
    assert learning["gradients"] - frozen["gradients"] == size
    assert learning["optimizers"] - frozen["optimizers"] == 2 * size
    assert learning["weights"] == frozen["weights"]


def test_field_grows_in_proportion_to_rays_and_samples(smoke):
    def field(*overrides):
        return estimate_step(smoke("nerf.netwidth=64", "training.batch_size=8", *overrides)).parts["rays and field"]

    assert field("nerf.N_samples=16") == 2 * field()
    assert field("training.batch_size=16") == 2 * field()


def test_total_is_the_parts_and_the_process():
    estimate = Estimate("a moment", {"a": 3, "b": 4}, gaps_bytes=2, process_bytes=5)
    assert (estimate.step_bytes, estimate.total_bytes) == (7, 14)
    assert fits(estimate, 14) and not fits(estimate, 13)


def test_what_fits_needs_no_edit(refine):
    assert smallest_edits(refine(), 100_000 * MB) == ()


def test_what_can_never_fit_is_said(refine):
    assert smallest_edits(refine(), PROCESS_BYTES["cpu"]) is None


def test_the_cheapest_edit_that_suffices_is_taken():
    config = load_config()
    half = estimate_step(override(config, ["training.use_amp=true"])).total_bytes
    assert smallest_edits(config, half) == ("training.use_amp=true",)
    assert smallest_edits(config, half + 10 * MB) == ("training.use_amp=true",)


@pytest.mark.parametrize("megabytes", [60, 110, 200])
def test_edits_make_it_fit_and_each_is_needed(megabytes):
    config, budget = load_config(), PROCESS_BYTES["cpu"] + megabytes * MB
    edits = smallest_edits(config, budget)
    assert edits and fits(estimate_step(override(config, edits)), budget)
    for edit in edits:
        fewer = [other for other in edits if other != edit]
        assert not fits(estimate_step(override(config, fewer)), budget)
