"""Other people's checkpoints: whatever their wrapping, the same weights under our names, and a table where they do not fit."""

import logging
import math

import graf
from graf.checkpoints.architecture import config_keys_of, differences, has_encoder
from graf.checkpoints.checkpoint import read_checkpoint, save_checkpoint
from graf.checkpoints.generator_loading import checkpoint_config
from graf.checkpoints.partial_loading import load_partially, require_fit
from graf.commands.run_files import find_checkpoint
from graf.config import config_to_dict, flat, load_config
from graf.errors import CheckpointError
from graf.foreign.checkpoints import checkpoint_step, recognise
from graf.models.discriminators.convolutional import Discriminator
from graf.models.discriminators.mixed import MixedDiscriminator
from graf.models.discriminators.projected import ProjectedDiscriminator
from graf.models.generator import Generator
from graf.training.state import TrainState, initialise_from, load_checkpoint

import pytest
import torch
from torch import nn

CPU = torch.device("cpu")


def wave(*shape):
    """Numbers by a formula: sin 1, sin 2, ..."""
    return torch.arange(1.0, math.prod(shape) + 1).sin().view(shape)


def graf_field(width=8, depth=6, multires=2, multires_views=1, shape=4, appearance=3):
    """GRAF's field under its own names, its widths written out: x and its waves are 3 + 6 multires wide."""
    points, views = 3 + 6 * multires + shape, 3 + 6 * multires_views + appearance
    shapes = {f"pts_linears.{i}": (width, width) for i in range(depth)}
    shapes |= {"pts_linears.0": (width, points), "pts_linears.5": (width, points + width)}
    shapes |= {"views_linears.0": (width // 2, width + views), "feature_linear": (width, width)}
    shapes |= {"alpha_linear": (1, width), "rgb_linear": (3, width // 2)}
    return {
        f"{name}.{kind}": wave(*size) for name, both in shapes.items() for kind, size in (("weight", both), ("bias", both[:1]))
    }


FIELD_KEYS = {
    "nerf.conditioning": "concat", "nerf.netwidth": 8, "nerf.netdepth": 6, "nerf.multires": 2, "nerf.multires_views": 1,
    "nerf.use_viewdirs": True, "z_dist.dim": 7, "z_dist.dim_appearance": 3, "nerf.importance_samples_per_ray": 0,
    "ccsr.mode": "none",
}  # fmt: skip


@pytest.fixture
def family():
    """The content of a graf_ccsr checkpoint: a field, CCSR of its own, a discriminator (patch 32) with heads of its own."""
    convs = {"main.0": (16, 3), "main.3": (32, 16), "main.6": (64, 32), "conv_out": (1, 64)}
    discriminator = {f"{name}.weight": wave(*size, 4, 4) for name, size in convs.items()}
    discriminator |= {"label_out.0.weight": wave(5, 64, 1, 1), "label_out.4.weight": wave(2, 5, 1, 1)}
    ccsr = {"cclc.latent_codes": wave(8, 3, 4, 4), "cem.residual_weight": torch.tensor(0.5)}
    return {"generator": graf_field(), "ccsr": ccsr, "discriminator": discriminator, "it": 70}


@pytest.fixture
def recipe(concat):
    """The config whose networks the family's weights are of."""
    discriminator = ("discriminator.condition=none", "discriminator.norm=instance", "ray_sampler.rays_per_patch=1024")
    keys = [f"{name}={value}" for name, value in FIELD_KEYS.items()]
    return lambda *overrides: concat(*keys, *discriminator, "data.alpha=ignore", *overrides)


def saved(folder, content, name="other.pt"):
    torch.save(content, folder / name)
    return folder / name


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# What it is --------------------------------------------------------------------------------------------------------------

WRAPPINGS = {
    "as it is": lambda w: w,
    "model_state_dict": lambda w: {"model_state_dict": w, "epoch": 3},
    "state_dict": lambda w: {"state_dict": w},
    "a part": lambda w: {"generator": w, "step": 9},
    "a wrapped part": lambda w: {"generator": {"model_state_dict": w}, "epoch": 4},
    "parts in a wrapper": lambda w: {"state_dict": {"generator": w}},
    "prefixes": lambda w: {"state_dict": {f"generator.{name}": tensor for name, tensor in w.items()}},
    "DataParallel": lambda w: {"generator": {f"module.{name}": tensor for name, tensor in w.items()}},
    "DataParallel within": lambda w: {f"{name.split('.')[0]}.module.{name.split('.', 1)[1]}": t for name, t in w.items()},
    "DistributedDataParallel of a compiled part": lambda w: {f"module._orig_mod.{name}": t for name, t in w.items()},
    "the average alone": lambda w: {"generator_test": w},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
@pytest.mark.parametrize("own_names", [False, True])
def test_a_generator_is_recognised_in_any_wrapping(wrapping, own_names):
    expected = {f"field.{name}": tensor for name, tensor in graf_field().items()}
    found = recognise(WRAPPINGS[wrapping](expected if own_names else graf_field()), "x.pt")
    assert same(found.parts["generator"], expected)
    assert same(found.parts["generator_ema"], expected)
    assert "discriminator" not in found.parts


def test_a_bare_discriminator_is_one_and_no_generator(smoke, tmp_path):
    weights = Discriminator(smoke(), 2, 3).state_dict()
    found = recognise({f"module.{name}": tensor for name, tensor in weights.items()}, "x.pt")
    assert found.parts.keys() == {"discriminator"}
    assert same(found.parts["discriminator"], weights)
    with pytest.raises(CheckpointError, match="holds no generator, only discriminator"):
        graf.load_generator(saved(tmp_path, weights))


def test_fine_network_and_average_come_under_our_names():
    content = {"generator": graf_field(), "generator_fine": graf_field(width=6), "generator_test": graf_field(), "it": 3}
    found = recognise(content, "x.pt")
    assert found.kind == "graf"
    assert {name.split(".")[0] for name in found.parts["generator"]} == {"field", "field_fine"}
    assert {name.split(".")[0] for name in found.parts["generator_ema"]} == {"field"}
    assert found.parts["generator"]["field_fine.alpha_linear.weight"].shape == (1, 6)
    assert found.averaged
    assert not recognise({"generator": graf_field(), "it": 3}, "x.pt").averaged


@pytest.mark.parametrize(
    ("content", "step"),
    [
        ({"it": -1}, 0),
        ({"it": 7}, 7),
        ({"step": 8, "epoch": 2}, 8),
        ({"epoch": 2}, 0),
        ({"state": {"step": 5}}, 5),
        ({"it": "x"}, 0),
    ],
)
def test_step(content, step):
    assert checkpoint_step(content) == step


def test_what_the_family_has_of_its_own_is_named(family, caplog):
    found = recognise(family, "x.pt")
    with caplog.at_level(logging.WARNING, "graf"):
        found.report_left_out("x.pt")
    assert found.kind == "graf_ccsr"
    assert "ccsr is a network that this suite has not; not taken: 2 tensors, 385 numbers (cclc.latent_codes" in caplog.text
    assert "discriminator.label_out" in caplog.text
    assert "330 numbers" in caplog.text  # 5 * 64 + 2 * 5
    assert found.parts["discriminator"].keys() == {f"main.{i}.weight" for i in (0, 3, 6, 9)}
    assert torch.equal(found.parts["discriminator"]["main.9.weight"], family["discriminator"]["conv_out.weight"])


NONSENSE = [None, 1, "x", [], {}, {"generator": None}, {3: torch.ones(2)}, {"a": {"main.0": torch.ones(1)}}]


def test_a_fine_network_alone_and_odd_names_are_no_crash():
    found = recognise(
        {"generator_fine": graf_field(), "discriminator": {"main.a.weight": wave(1, 1, 4, 4), "main.": wave(1)}}, "x.pt"
    )
    assert found.parts["generator"].keys() == {f"field_fine.{name}" for name in graf_field()}
    assert found.parts["discriminator"].keys() == {"main.a.weight", "main."}


@pytest.mark.parametrize("inner", NONSENSE)
@pytest.mark.parametrize(
    "key", ["generator", "discriminator", "state_dict", "model_state_dict", "ccsr", "state", "config", "it"]
)
def test_nonsense_is_one_clear_error(inner, key):
    for content in ({key: inner}, {"format": "graf_ccsr 9", key: inner}, {key: {key: inner}}):
        with pytest.raises(CheckpointError, match="its keys are"):
            recognise(content, "x.pt")


# What its shapes tell ------------------------------------------------------------------------------------------------------

FILM = "nerf.conditioning=film"
ARCHITECTURES = {
    "film": (FILM,),
    "film, no appearance": (FILM, "z_dist.dim_appearance=0", "nerf.use_viewdirs=true", "nerf.multires=7", "nerf.netdepth=3"),
    "film, deep mapping": (FILM, "nerf.mapping_depth=3", "z_dist.dim_appearance=3", "nerf.netwidth=20"),
    "film, fine": (FILM, "nerf.importance_samples_per_ray=5", "nerf.netdepth_fine=3", "nerf.netwidth_fine=12"),
    "triplane": ("nerf.conditioning=triplane", "nerf.plane_size=16", "nerf.plane_channels=3", "nerf.synthesis_width=8"),
    "triplane, fine": ("nerf.conditioning=triplane", "nerf.importance_samples_per_ray=5", "nerf.netwidth_fine=12"),
    "refined": (
        "ccsr.mode=refine",
        "ray_sampler.rays_per_patch=64",
        "ccsr.light.depth=2",
        "ccsr.num_views=5",
        "ccsr.elevation_bins=3",
    ),
    "refined four times": (
        "ccsr.mode=refine",
        "ccsr.scale_factor=4",
        "ccsr.light.width_upsampled=5",
        "discriminator.dual=true",
    ),
    "opacity judged": ("data.alpha=rgba",),
    "opacity judged, dual": (
        "ccsr.mode=refine",
        "ray_sampler.rays_per_patch=64",
        "discriminator.dual=true",
        "data.alpha=rgba",
    ),
    "rrdb": ("ccsr.mode=consistency", "ccsr.backbone=rrdb", "ccsr.rrdb.num_blocks=2", "ccsr.rrdb.nf=8", "ccsr.rrdb.gc=4"),
    "labels": ("discriminator.label_loss=MCE", "discriminator.condition=class"),
    "normalised": ("discriminator.norm=instance", "discriminator.spectral_norm=true", "discriminator.condition=class_and_pose"),
    "reconstruction": ("discriminator.reconstruction=0.5", "data.alpha=rgba"),
    "encoder": ("encoder.weight=2", "encoder.first_steps=3"),
    "backgrounds": ("data.background_model=plane", "z_dist.dim_background=9"),
    "low-resolution steps": ("discriminator.low_res_steps=7", "discriminator.spectral_norm=true"),
    "patches of 128": ("ray_sampler.rays_per_patch=16384", "discriminator.ndf=4", "discriminator.condition=none"),
    "concat": ("nerf.conditioning=concat", "nerf.netdepth=6", "nerf.use_viewdirs=true", "nerf.multires=3"),
    "concat, no views": ("nerf.conditioning=concat", "z_dist.dim=9", "z_dist.dim_appearance=2"),
    "concat, neither": ("nerf.conditioning=concat", "z_dist.dim_appearance=0", "nerf.use_viewdirs=false"),
}


def weights_of(config, n_classes=2):
    discriminator = Discriminator(config, n_classes, 3)
    return {"generator": Generator(config, n_classes).state_dict(), "discriminator": discriminator.state_dict()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_shapes_tell_the_config_that_made_them(smoke, architecture):
    config = smoke("data.alpha=ignore", *ARCHITECTURES[architecture])
    weights = weights_of(config)
    assert list(differences(weights, config)) == []
    values = flat(config_to_dict(config))
    assert all(values[name] in finding.values for name, finding in config_keys_of(weights).items())


@pytest.mark.parametrize("judge", [MixedDiscriminator, ProjectedDiscriminator])
@pytest.mark.parametrize("alpha", ["rgba", "ignore"])
def test_heads_tell_how_many_pixels_they_see(judge, alpha):
    name = {MixedDiscriminator: "mixed", ProjectedDiscriminator: "projected"}[judge]
    sizes = [f"discriminator.feature_size={size}" for size in (64, 128)]
    small, large = (load_config(None, [f"discriminator.architecture={name}", f"data.alpha={alpha}", size]) for size in sizes)
    weights = {"discriminator": judge(large).state_dict()}
    assert list(differences(weights, large)) == []
    ((key, value, found),) = differences(weights, small)
    assert (key, value, found.values) == ("discriminator.feature_size", 64, (128,))
    assert found.source in weights["discriminator"]


def test_convolutions_without_a_logit_at_their_end_are_another_discriminator(smoke):
    weights = Discriminator(smoke(), 2, 3).state_dict()
    last = max(name for name in weights if name.startswith("main.") and name.endswith(".weight"))
    assert len(weights[last]) == 1 and "discriminator.architecture" in config_keys_of({"discriminator": weights})
    weights[last] = weights[last].repeat(2, 1, 1, 1)
    assert "discriminator.architecture" not in config_keys_of({"discriminator": weights})


def test_another_architecture_differs_in_its_keys_alone(smoke):
    weights = weights_of(smoke("data.alpha=ignore", *ARCHITECTURES["refined"]))
    keys = ARCHITECTURES["refined"]
    found = {key: str(finding) for key, _, finding in differences(weights, smoke("data.alpha=ignore", "ccsr.mode=none"))}
    assert found["ccsr.mode"] == "refine or consistency"
    assert {key for key in found if not key.startswith("ccsr.")} == set()
    found = {key: str(finding) for key, _, finding in differences(weights, smoke("data.alpha=ignore", *keys[:2]))}
    assert found == {"ccsr.light.depth": "2", "ccsr.num_views": "5", "ccsr.elevation_bins": "3"}


def test_a_part_that_either_has_alone_differs_in_its_keys(smoke):
    coarse, fine, encoding = (("data.alpha=ignore", *ARCHITECTURES[name]) for name in ("film", "film, fine", "encoder"))
    found = {key: str(finding) for key, _, finding in differences(weights_of(smoke(*fine)), smoke(*coarse))}
    assert found["nerf.importance_samples_per_ray"] == "at least 1"
    weights = weights_of(smoke("data.alpha=ignore"))
    found = {key: str(finding) for key, _, finding in differences(weights, smoke(*encoding))}
    assert found == {"encoder.weight": "0", "encoder.first_steps": "0"}


def test_without_a_config_the_shapes_are_told_and_one_is_asked_for(tmp_path):
    """GRAF's defaults: eight layers, of which the first takes 63 + 128 numbers."""
    weights = graf_field(width=32, depth=8, multires=10, multires_views=4, shape=128, appearance=128)
    path = saved(tmp_path, {"generator": weights, "it": 3})
    with pytest.raises(CheckpointError) as caught:
        graf.load_generator(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: no config inside or beside it; name its config with --config")
    assert "  nerf.conditioning: concat  (field.pts_linears.0.weight)" in message.splitlines()
    assert "  nerf.netwidth: 32  (field.pts_linears.0.weight)" in message.splitlines()
    config = load_config("graf", ["nerf.netwidth=32"])
    assert same(graf.load_generator(path, config).field.state_dict(), weights)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_our_weights_load_with_their_config(smoke, tmp_path, architecture):
    config = smoke(*ARCHITECTURES[architecture])
    weights = weights_of(config)
    path = saved(tmp_path, {"generator": weights["generator"], "discriminator": weights["discriminator"]})
    assert same(graf.load_generator(path, config).state_dict(), weights["generator"])


def test_a_generator_alone_brings_its_classes(smoke, tmp_path):
    weights = Generator(smoke(), n_classes=5).state_dict()
    generator = graf.load_generator(saved(tmp_path, weights), smoke())
    assert generator.class_embedding.weight.shape == (5, 8)
    assert same(generator.state_dict(), weights)


@pytest.mark.parametrize("name", ["model_config", "config", "hyper_parameters", "hparams"])
def test_a_config_inside_is_taken_under_any_of_its_names(smoke, tmp_path, name):
    config = smoke("nerf.netwidth=12", "data.near=2.7", "data.box=[-1,-1,-1,1,1,1]", "data.alpha=rgba")
    path = saved(tmp_path, {"generator": Generator(config).state_dict(), name: config_to_dict(config)})
    assert graf.load_generator(path).config == config


def test_a_config_inside_may_be_of_grafs_format(tmp_path):
    inside = {
        "data": {"type": "carla", "imsize": 24, "white_bkgd": False, "near": 1.5},
        "nerf": {"netdepth": 6, "netwidth": 8, "multires": 2, "multires_views": 1, "i_embed": 0, "use_viewdirs": True},
        "z_dist": {"dim": 7, "dim_appearance": 3},
    }
    config = graf.load_generator(saved(tmp_path, {"generator": graf_field(), "hparams": inside})).config
    assert (config.data.imsize, config.data.near, config.data.background) == (24, 1.5, (0.0, 0.0, 0.0))


def test_a_config_of_neither_format_is_said_and_shapes_are_told(smoke, tmp_path, caplog):
    path = saved(tmp_path, {"generator": Generator(smoke()).state_dict(), "hparams": {"lr": 1e-3, "layers": 5}})
    with caplog.at_level(logging.WARNING, "graf"), pytest.raises(CheckpointError, match=r"nerf\.netwidth: 16"):
        graf.load_generator(path)
    assert "unknown key 'lr'" in caplog.text


# Where it does not fit -------------------------------------------------------------------------------------------------------


def test_a_table_names_the_keys_that_differ_and_the_tensors_that_tell(smoke, tmp_path):
    path = saved(tmp_path, Generator(smoke(FILM, "nerf.netwidth=12", "nerf.netdepth=3")).state_dict())
    with pytest.raises(CheckpointError) as caught:
        graf.load_generator(path, smoke(FILM, "discriminator.condition=none"))
    first, header, *rows = str(caught.value).splitlines()
    assert first.startswith(f"{path}: does not fit this config")
    assert header.split("  ")[-1] == "seen by"
    table = {row.split()[0]: row.split(maxsplit=3)[1:] for row in rows}
    assert table == {
        "nerf.netdepth": ["2", "3", "field.layers.2.weight (12, 12)"],
        "nerf.netwidth": ["16", "12", "field.layers.0.weight (12, 39)"],
    }


def test_a_table_that_no_key_explains_is_of_tensors(smoke):
    config = smoke("discriminator.condition=none")
    network = Generator(config)
    weights = dict(network.state_dict()) | {"odd.weight": torch.ones(3)}
    del weights["field.density.bias"]
    with pytest.raises(CheckpointError) as caught:
        require_fit({"generator": network}, {"generator": weights}, config, "x.pt")
    rows = [row.split() for row in str(caught.value).splitlines()[2:]]
    assert rows == [["field.density.bias", "(1,)", "absent"], ["odd.weight", "absent", "(3,)"]]


def test_a_long_table_is_cut_and_counted(smoke):
    config = smoke("discriminator.condition=none")
    network = Generator(config)
    weights = dict(network.state_dict()) | {f"odd.{i}": torch.ones(1) for i in range(30)}
    with pytest.raises(CheckpointError) as caught:
        require_fit({"generator": network}, {"generator": weights}, config, "x.pt")
    lines = str(caught.value).splitlines()
    assert len(lines) == 2 + 12 + 1
    assert lines[-1].strip() == "... and 18 more"


def test_nothing_is_loaded_of_what_does_not_fit(smoke, tmp_path):
    """The generator fits and the discriminator does not: neither is touched."""
    config = smoke()
    path = saved(tmp_path, weights_of(smoke("discriminator.ndf=4"), 1) | {"it": 5})
    state = TrainState(config, CPU, 1, 3)
    before = {name: value.clone() for name, value in state.generator.state_dict().items()}
    with pytest.raises(CheckpointError, match="discriminator.ndf +8 +4 +main.4.weight"):
        load_checkpoint(path, state)
    assert same(before, state.generator.state_dict())
    assert state.step == 0


def test_the_familys_weights_are_trained_on(family, recipe, tmp_path, caplog):
    state = TrainState(recipe("training.lr_g=0.008", "training.lr_anneal_every=[50]", "training.lr_anneal=0.5"), CPU)
    with caplog.at_level(logging.WARNING, "graf"):
        load_checkpoint(saved(tmp_path, family), state)
    assert same(state.generator.field.state_dict(), family["generator"])
    assert torch.equal(state.discriminator.main[9].weight, family["discriminator"]["conv_out.weight"])
    assert (state.step, state.images_seen) == (70, 70 * state.config.training.batch_size)
    assert state.optimizer_g.param_groups[0]["lr"] == pytest.approx(0.004)
    assert "label_out" in caplog.text
    assert "a checkpoint of the graf_ccsr family; its weights are loaded" in caplog.text


def test_what_is_not_taken_is_named_where_a_generator_is_loaded_too(family, recipe, tmp_path, caplog):
    graf.load_generator(saved(tmp_path, family), recipe())
    assert "ccsr is a network that this suite has not" in caplog.text


def test_class_conditioning_that_we_have_not_is_refused_unless_partial(family, recipe, tmp_path, caplog):
    family["generator"]["condition_embedding.0.weight"] = wave(1, 8)
    path = saved(tmp_path, family)
    with pytest.raises(CheckpointError, match="condition_embedding.0.weight +absent"):
        load_checkpoint(path, TrainState(recipe(), CPU))
    state = TrainState(recipe(), CPU)
    with caplog.at_level(logging.INFO, "graf"):
        initialise_from(path, state)
    assert "generator: unexpected: field 1 (field.condition_embedding.0.weight)" in caplog.text
    assert state.step == 0


# What fits of it -------------------------------------------------------------------------------------------------------------


class Two(nn.Module):
    """Two layers of 6 and `width` numbers, so that shares are seen at a glance."""

    def __init__(self, width):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(width - 1, 1)


def test_the_report_counts_by_module():
    network, weights = Two(4), Two(4).state_dict()
    weights = {"b.weight": wave(1, 3), "b.bias": wave(1, 1), "a.weight": wave(2, 2), "c.one": wave(1), "c.two": wave(1)}
    report = load_partially(network, weights, "x.pt")
    assert report.share == pytest.approx(7 / 10)
    assert report.loaded == ("b.weight", "a.weight")
    assert (report.missing, report.unexpected, report.reshaped) == (("a.bias",), ("c.one", "c.two"), ("b.bias",))
    assert report.lines() == ["missing: a 1 (a.bias)", "unexpected: c 2 (c.one, c.two)", "reshaped: b 1 (b.bias)"]
    assert torch.equal(network.a.weight, weights["a.weight"])


@pytest.mark.parametrize(("width", "loads"), [(6, True), (7, False)])  # 6 of 12 numbers, 6 of 13
def test_half_of_the_parameters_is_enough_and_less_is_not(width, loads):
    network = Two(width)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    weights = {"a.weight": wave(2, 2), "a.bias": wave(2)}
    if loads:
        assert load_partially(network, weights, "x.pt").share == 0.5
        assert torch.equal(network.a.bias, weights["a.bias"])
    else:
        with pytest.raises(CheckpointError, match=r"x.pt: only 46% of the two's parameters would load(.|\n)*missing: b 2"):
            load_partially(network, weights, "x.pt")
        assert same(before, network.state_dict())


@pytest.mark.parametrize("older", [(), ("encoder.weight=1",)], ids=["without", "with"])
def test_an_encoder_is_no_part_of_the_half_that_must_load(smoke, older):
    """It is the larger part of a small generator, and runs of an earlier default have none."""
    weights = Generator(smoke(*older), 1).state_dict()
    network = Generator(smoke("encoder.weight=1"), 1)
    assert load_partially(network, weights, "x.pt").share == 1
    field = {name for name in weights if not name.startswith("encoder.")}
    assert all(torch.equal(network.state_dict()[name], weights[name]) for name in field)


@pytest.mark.parametrize("saved_kind", ["of latents", "of latents and cameras"])
def test_an_encoder_of_another_kind_is_left_out_of_a_generator(smoke, tmp_path, saved_kind):
    """It renders nothing."""
    latents = smoke("encoder.weight=1")
    cameras = smoke("encoder.weight=1", "encoder.finds_cameras=true", "data.camera_prior=front", "data.hflip=true")
    before, now = (latents, cameras) if saved_kind == "of latents" else (cameras, latents)
    path = saved(tmp_path, Generator(before).state_dict())
    assert has_encoder(graf.load_generator(path, before).state_dict())
    assert not has_encoder(graf.load_generator(path, now).state_dict())


def test_an_encoder_of_other_channels_is_not_loaded_at_all(smoke):
    older = Generator(smoke("encoder.weight=1", "data.alpha=rgba"), 1).state_dict()
    report = load_partially(Generator(smoke("encoder.weight=1"), 1), older, "x.pt")
    assert report.loaded and not any(name.startswith("encoder.") for name in report.loaded)


def test_a_new_run_starts_from_the_weights_that_fit(smoke, tmp_path, caplog):
    before = TrainState(smoke("training.seed=5"), CPU, 2, 3)
    before.step = 9
    save_checkpoint(tmp_path / "model.pt", before.checkpoint())
    state = TrainState(smoke("nerf.importance_samples_per_ray=3", "nerf.netdepth_fine=1", "nerf.netwidth_fine=4"), CPU, 2, 3)
    fine = {name: value.clone() for name, value in state.generator.field_fine.state_dict().items()}
    with caplog.at_level(logging.INFO, "graf"):
        initialise_from(tmp_path / "model.pt", state)
    for network in (state.generator, state.generator_ema):
        assert same(network.field.state_dict(), before.generator.field.state_dict())
        assert same(network.field_fine.state_dict(), fine)
    assert same(state.discriminator.state_dict(), before.discriminator.state_dict())
    assert state.step == 0
    assert f"{tmp_path / 'model.pt'}: generator: missing: field_fine" in caplog.text
    assert "discriminator: " in caplog.text
    assert caplog.text.count("missing") == 1


def test_a_new_run_may_start_from_a_generator_alone(smoke, tmp_path, caplog):
    path = saved(tmp_path, Generator(smoke()).state_dict())
    with pytest.raises(CheckpointError, match="holds no discriminator.*--partial"):
        load_checkpoint(path, TrainState(smoke(), CPU))
    with caplog.at_level(logging.WARNING, "graf"):
        initialise_from(path, TrainState(smoke(), CPU))
    assert "holds no discriminator, which starts from random weights" in caplog.text


@pytest.mark.parametrize("resume", ["auto", "none"])
def test_partial_needs_a_file(tmp_path, resume):
    with pytest.raises(CheckpointError, match="name it with --resume FILE"):
        find_checkpoint(resume, tmp_path / "run", partial=True)


def test_partial_writes_over_no_run(tmp_path):
    source, run = saved(tmp_path, {}), tmp_path / "run"
    assert find_checkpoint(str(source), run, partial=True) == source
    run.mkdir()
    own = saved(run, {}, "model.pt")
    for path in (source, own):
        with pytest.raises(CheckpointError, match="holds a run already, and --partial starts a new one"):
            find_checkpoint(str(path), run, partial=True)
    assert find_checkpoint(str(own), run) == own


class Intruder:
    """Unpickled, it opens a file for writing."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@pytest.mark.parametrize("key", ["hparams", "state_dict", "ccsr"])
def test_nothing_in_a_foreign_file_is_ever_run(smoke, tmp_path, key):
    marker = tmp_path / "was here"
    path = saved(tmp_path, {"generator": graf_field(), key: Intruder(marker)})
    for way_in in (graf.load_generator, lambda p: initialise_from(p, TrainState(smoke(), CPU))):
        with pytest.raises(CheckpointError, match="contains pickled Python objects"):
            way_in(path)
    assert not marker.exists()


def test_a_file_beside_its_config_needs_no_guess(tmp_path, caplog):
    (tmp_path / "config.yaml").write_text("nerf: {netwidth: 8, netdepth: 6, conditioning: concat}\n")
    path = saved(tmp_path, {"generator": graf_field(), "it": 1})
    with caplog.at_level(logging.WARNING, "graf"):
        assert checkpoint_config(path, read_checkpoint(path)).nerf.netwidth == 8
    assert caplog.text == ""
