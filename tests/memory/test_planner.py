"""The planner's estimate against the count of a step's live bytes, and the edits that it would make."""

import dataclasses
import functools
import gc

from graf.config import CONFIG_DIR, Config, load_config, override
from graf.memory import planner
from graf.memory.planner import PROCESS_BYTES, Estimate, bytes_without_tensors, estimate_step, smallest_edits
from graf.pieces import SAMPLES_AT_ONCE
from graf.runtime import precision
from graf.runtime.limits import MB
from graf.training.state import TrainState
from memory_rows import counted_peak
from operations import LiveBytes

import pytest
import torch

TOLERANCE = 0.15
WIDE = (
    *("nerf.netwidth=256", "nerf.netdepth=8", "nerf.samples_per_ray=64", "ray_sampler.rays_per_patch=4096", "data.imsize=128"),
    *("training.micro_batch=1", "training.use_amp=true"),
)
FILM = "nerf.conditioning=film"
NORMED = ("discriminator.norm=instance", "discriminator.spectral_norm=true", "discriminator.ndf=64", "nerf.samples_per_ray=2")
RESTORED = (
    *("ccsr.mode=consistency", "ccsr.judge=restored", "ray_sampler.rays_per_patch=256"),
    *("nerf.samples_per_ray=2", "nerf.netdepth=2", "ccsr.light.width=128", "ccsr.light.depth=4"),
)
OTHERS = {  # what no shipped config does, or seldom
    "fine network": (
        FILM,
        "nerf.importance_samples_per_ray=8",
    ),
    "reconstructions": (
        FILM,
        "encoder.weight=5",
    ),
    "cameras of reconstructions": (
        *(FILM, "encoder.weight=5"),
        *("encoder.finds_cameras=true", "data.camera_prior=front", "data.hflip=true"),
    ),
    "mixed precision": (
        FILM,
        "training.use_amp=true",
    ),
    "view directions": (
        FILM,
        "nerf.use_viewdirs=true",
    ),
    "heavy backbone": ("ccsr.backbone=rrdb", "ccsr.rrdb.num_blocks=2", "ccsr.rrdb.nf=16", "ccsr.rrdb.gc=8"),
    "consistency": ("ccsr.mode=consistency", "ray_sampler.rays_per_patch=256"),
    "restored twice": (*RESTORED, "ccsr.detach=nerf"),
    "restored thrice": (*RESTORED, "ccsr.detach=nerf", "nerf.importance_samples_per_ray=2"),
    "photographs restored": (
        *("ccsr.learns_from=photographs", "nerf.importance_samples_per_ray=2"),
        *("nerf.samples_per_ray=2", "nerf.netdepth=2", "ccsr.light.width=128", "ccsr.light.depth=4"),
    ),
    "instance norm": ("discriminator.norm=instance", "discriminator.spectral_norm=true"),
    "spectral norms": (*NORMED, "training.batch_size=2"),
    "spectral norms, no penalty": (*NORMED, "training.batch_size=1", "training.reg_type=none"),
    "spectral norms, mixed precision": (*NORMED, "training.batch_size=1", "training.use_amp=true"),
    "triplane": ("nerf.conditioning=triplane", "nerf.samples_per_ray=32"),
    "large triplane": ("nerf.conditioning=triplane", "nerf.plane_size=128", "nerf.plane_channels=32", "training.use_amp=true"),
    "two triplanes": ("nerf.conditioning=triplane", "nerf.importance_samples_per_ray=8", "nerf.plane_size=64"),
    "opacity judged": ("data.alpha=rgba",),
    "backgrounds": ("data.background_model=plane", "data.alpha=ignore", "data.imsize=128", "nerf.samples_per_ray=2"),
    "few images": (
        *("data.alpha=rgba", "discriminator.augment=true", "discriminator.reconstruction=1"),
        *("nerf.samples_per_ray=2", "training.batch_size=128"),
    ),
    "relativistic": (
        *("training.gan_type=relativistic", "training.reg_type=r1_r2"),
        *("nerf.samples_per_ray=2", "nerf.netwidth=8", "training.batch_size=128", "discriminator.ndf=16"),
    ),
    "projected": ("discriminator.architecture=projected", "data.alpha=rgba"),
    "projected, one image": ("discriminator.architecture=projected", "training.batch_size=1", "nerf.samples_per_ray=2"),
    "projected, mixed precision": ("discriminator.architecture=projected", "training.use_amp=true"),
    "projected, one image, mixed precision": (
        *("discriminator.architecture=projected", "training.batch_size=1", "nerf.samples_per_ray=2"),
        "training.use_amp=true",
    ),
    "mixed": ("discriminator.architecture=mixed", "data.alpha=rgba"),
    "mixed, half the side": ("discriminator.architecture=mixed", "discriminator.feature_size=64", "nerf.samples_per_ray=2"),
    "mixed, mixed precision": ("discriminator.architecture=mixed", "training.use_amp=true", "nerf.samples_per_ray=2"),
    "no penalty": ("training.reg_type=none",),
    "few samples": ("nerf.samples_per_ray=2", "ccsr.light.width=32"),
    "in parts": ("training.accumulation_steps=4", "nerf.raw_noise_std=1"),
    "noise of a batch in parts": (
        *(FILM, "training.batch_size=32", "training.micro_batch=1", "nerf.checkpoint_rays=32", "nerf.raw_noise_std=1"),
        *("nerf.samples_per_ray=192", "nerf.netwidth=8", "nerf.netdepth=2", "data.imsize=16"),
    ),
    "computed anew": (FILM, "nerf.checkpoint_rays=256", "nerf.netwidth=128"),
    "triplane computed anew": ("nerf.checkpoint_rays=256", "nerf.netwidth=128"),
}


@pytest.fixture(autouse=True)
def few_pieces(monkeypatch):
    """Larger pieces of rays than training takes, of which the counting is the quicker."""
    monkeypatch.setattr("graf.pieces.SAMPLES_AT_ONCE", 2**20)


def shapes_of(config: Config) -> Config:
    """The config without what leaves all shapes as they are, such as its cameras: several share one measurement."""
    plain = load_config()
    kept = {name: getattr(config.data, name) for name in ("imsize", "alpha", "background_model")}
    data = dataclasses.replace(plain.data, **kept)
    return dataclasses.replace(config, expname="shapes", data=data, metrics=plain.metrics)


tracked_peak = functools.cache(counted_peak)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("name", sorted(path.name for path in CONFIG_DIR.glob("*.yaml") if not path.name.startswith("pose")))
def test_estimate_is_near_the_peak_of_every_shipped_config(name):
    config = load_config(CONFIG_DIR / name)
    assert estimate_step(config).step_bytes == pytest.approx(tracked_peak(shapes_of(config)), rel=TOLERANCE)


@pytest.mark.parametrize("overrides", OTHERS.values(), ids=OTHERS.keys())
def test_estimate_is_near_the_peak_of_other_settings(overrides, refine):
    """Of real steps, which at this size are quicker than those of shapes alone, and hold as much where all have density."""
    config = refine("training.batch_size=16", "nerf.netwidth=32", *overrides)
    assert config.nerf.density_activation == "softplus" and config.data.box in ("auto", "none")
    assert estimate_step(config).step_bytes == pytest.approx(counted_peak(config, shapes_only=False), rel=TOLERANCE)


def test_estimate_is_near_the_peak_of_the_default_in_its_own_pieces(monkeypatch):
    monkeypatch.setattr("graf.pieces.SAMPLES_AT_ONCE", SAMPLES_AT_ONCE)
    config = load_config()
    assert estimate_step(config).step_bytes == pytest.approx(counted_peak(config, shapes_only=False), rel=TOLERANCE)


def test_the_costlier_of_refined_steps_and_the_last_ones_is_planned(refine):
    refined, ending = estimate_step(refine()), estimate_step(refine("ccsr.unrefined_steps=1"))
    assert ending.parts["rays and field"] > 2 * refined.parts["rays and field"]
    assert ending.parts["weights"] == refined.parts["weights"]  # CCSR keeps its own
    rrdb = "ccsr.backbone=rrdb", "ccsr.scale_factor=2"
    assert estimate_step(refine(*rrdb, "ccsr.unrefined_steps=1")).parts["ccsr"] > 0


@pytest.mark.parametrize("conditioning", ["film", "concat", "triplane"])
def test_estimate_knows_that_rays_go_through_the_field_in_pieces(conditioning, refine, monkeypatch):
    config = refine("training.batch_size=16", f"nerf.conditioning={conditioning}", "nerf.samples_per_ray=64")
    whole = counted_peak(config, shapes_only=False)
    monkeypatch.setattr("graf.pieces.SAMPLES_AT_ONCE", 8192)  # of 16 * 64 * 64
    in_pieces = counted_peak(config, shapes_only=False)
    assert in_pieces < 0.9 * whole
    assert estimate_step(config).step_bytes == pytest.approx(in_pieces, rel=TOLERANCE)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_shapes_alone_have_the_peak_of_a_real_step(refine):
    real = tracked_peak(refine(), shapes_only=False)
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
    assert parts["EMA"] == 4 * generator
    assert estimate_step(override(config, ["training.optimizer=rmsprop"])).parts["optimizers"] == parts["weights"]


def test_a_frozen_backbone_has_neither_gradients_nor_optimizer(refine):
    rrdb = (
        "ccsr.backbone=rrdb",
        "ccsr.rrdb.num_blocks=1",
        "ccsr.rrdb.nf=8",
        "ccsr.rrdb.gc=4",
        "ccsr.rrdb.pretrained_path=x2.pth",
    )
    learning, frozen = (estimate_step(refine(*rrdb, f"ccsr.rrdb.freeze={x}")).parts for x in ("false", "true"))
    network = TrainState(refine(*rrdb), torch.device("cpu")).generator.refinement.backbone.network
    size = 4 * sum(p.numel() for p in network.parameters())
    assert learning["gradients"] - frozen["gradients"] == size
    assert learning["optimizers"] - frozen["optimizers"] == 2 * size
    assert learning["weights"] == frozen["weights"]


def test_each_thread_has_gradients_and_copies_of_the_discriminators_weights(refine):
    """The copy is for second gradients."""
    config = refine("discriminator.ndf=64", "discriminator.spectral_norm=true", "discriminator.norm=instance")
    discriminator = TrainState(config, torch.device("cpu")).discriminator
    size = 4 * sum(p.numel() for p in discriminator.parameters())
    alone = estimate_step(config).parts
    torch.set_num_threads(2)
    try:
        of_two = estimate_step(config).parts
    finally:
        torch.set_num_threads(1)
    assert (alone["gradients of parts"], of_two["gradients of parts"]) == (0, 2 * size)
    assert of_two["discriminator"] - alone["discriminator"] == size


def test_field_grows_in_proportion_to_rays_and_samples(smoke):
    def field(*overrides):
        config = smoke("nerf.conditioning=concat", "nerf.netwidth=64", "training.batch_size=8", *overrides)
        return estimate_step(config).parts["rays and field"]

    assert field("nerf.samples_per_ray=16") == 2 * field()
    assert field("training.batch_size=16") == 2 * field()


def test_total_is_the_parts_and_the_process():
    estimate = Estimate("a moment", {"a": 3, "b": 4}, gaps_bytes=2, process_bytes=5)
    assert (estimate.step_bytes, estimate.total_bytes) == (7, 14)


@pytest.mark.parametrize(("method", "counted"), [("fork", 0), ("spawn", 2)])
def test_loader_processes_that_are_not_forked_take_memory_of_the_host(monkeypatch, method, counted):
    monkeypatch.setattr(planner, "start_method", lambda: method)
    monkeypatch.setattr("graf.data.loader.available_cores", lambda: 2)
    config = load_config(None, ["training.nworkers=4"])
    taken = {kind: estimate_step(config, kind).process_bytes - PROCESS_BYTES[kind] for kind in ("cpu", "mps", "cuda")}
    assert taken == {"cpu": counted * planner.LOADER_BYTES, "mps": counted * planner.LOADER_BYTES, "cuda": 0}


def test_fewer_loader_processes_are_advised_first_where_they_take_memory(monkeypatch):
    monkeypatch.setattr(planner, "start_method", lambda: "spawn")
    monkeypatch.setattr("graf.data.loader.available_cores", lambda: 2)
    config = load_config()
    assert smallest_edits(config, estimate_step(config).total_bytes - MB) == ("training.nworkers=0",)


def test_what_fits_needs_no_edit(refine):
    assert smallest_edits(refine(), 100_000 * MB) == ()


def test_what_can_never_fit_is_said(refine):
    assert smallest_edits(refine(), PROCESS_BYTES["cpu"]) is None


def test_the_cheapest_edit_that_suffices_is_taken(monkeypatch):
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: True)
    config = load_config()
    half = estimate_step(override(config, ["training.use_amp=true"])).total_bytes
    assert smallest_edits(config, half) == ("training.use_amp=true",)
    assert smallest_edits(config, half + 10 * MB) == ("training.use_amp=true",)


def test_mixed_precision_is_not_advised_where_it_is_float32(monkeypatch):
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: False)
    config = load_config()
    budget = estimate_step(override(config, ["training.accumulation_steps=2"])).total_bytes
    assert smallest_edits(config, budget) == ("training.accumulation_steps=2",)


@pytest.mark.parametrize("megabytes", [60, 110, 200])
def test_edits_make_it_fit_and_each_is_needed(megabytes):
    config, budget = load_config(None, ["training.nworkers=0"]), PROCESS_BYTES["cpu"] + megabytes * MB
    edits = smallest_edits(config, budget)
    assert edits and estimate_step(override(config, edits)).total_bytes <= budget
    for edit in edits:
        fewer = [other for other in edits if other != edit]
        assert not estimate_step(override(config, fewer)).total_bytes <= budget


def test_fewer_rays_at_a_time_than_those_advised_stay_so():
    config = load_config(None, [*WIDE, "nerf.checkpoint_rays=128"])
    budget = estimate_step(override(config, ["nerf.samples_per_ray=32"])).total_bytes
    assert smallest_edits(config, budget) == ("nerf.samples_per_ray=32",)


def test_the_fewest_samples_are_advised_where_they_are_more_than_half():
    config = load_config(None, [*WIDE, "nerf.samples_per_ray=12", "nerf.checkpoint_rays=128"])
    budget = estimate_step(override(config, ["nerf.samples_per_ray=8"])).total_bytes
    assert smallest_edits(config, budget) == ("nerf.samples_per_ray=8",)


def test_rays_are_advised_where_all_are_held():
    config = load_config(None, [*WIDE, "nerf.checkpoint_rays=0"])
    budget = estimate_step(override(config, ["nerf.checkpoint_rays=1024"])).total_bytes
    assert smallest_edits(config, budget) == ("nerf.checkpoint_rays=1024",)


def test_what_a_notebook_holds_beside_the_libraries_is_not_counted_as_theirs():
    assert bytes_without_tensors(600 * MB) == 704 * MB  # 600 + 64, in whole 64
    assert bytes_without_tensors(5000 * MB) == bytes_without_tensors(800 * MB) == 896 * MB
    assert bytes_without_tensors(100 * MB) == bytes_without_tensors(400 * MB)


@pytest.mark.parametrize(
    ("name", "batch", "measured_mb"),  # the peak of tensors in launched steps on an H100, docs/lab/2026-11-26-running.md
    [("cars_128", 8, 719), ("cars_128", 32, 1198), ("cars_128_gpu", 32, 1441)],
)
def test_a_fused_fields_step_is_estimated_within_a_quarter_of_what_a_gpu_measured(monkeypatch, name, batch, measured_mb):
    monkeypatch.setattr(planner, "why_not_fused", lambda *asked: "")
    monkeypatch.setattr(precision, "has_bfloat16", lambda _: True)
    settings = (f"training.batch_size={batch}", "training.use_amp=true", "nerf.checkpoint_rays=0", "data.alpha=rgba")
    estimate = estimate_step(load_config(CONFIG_DIR / f"{name}.yaml", settings), "cuda")
    assert (estimate.total_bytes - estimate.process_bytes) / MB == pytest.approx(measured_mb, rel=0.25)
