"""Configs of the official GRAF and of graf_ccsr, translated: fixtures, and settings as their authors write them."""

import copy
import logging
from pathlib import Path

from graf.config import CONFIG_DIR, load_config
from graf.errors import ConfigError
from graf.foreign.configs import is_graf_format, translate_graf

import pytest
import yaml

FIXTURE = Path(__file__).parents[2].parent / "shared" / "fixtures" / "graf_official" / "config.yaml"

GRAF = {
    "expname": "cars",
    "data": {"type": "carla", "datadir": "data/carla", "imsize": 32, "white_bkgd": True, "radius": "9.5,10.5", "fov": 25.0},
    "nerf": {"i_embed": 0, "perturb": 1.0, "use_viewdirs": True, "N_samples": 12},
    "ray_sampler": {"scale_anneal": -1, "N_samples": 1024},
    "training": {
        "chunk": 1234, "netchunk": 65536, "reg_type": "real", "reg_param": 10.0, "take_model_average": True,
        "model_file": "model.pt", "save_every": 900, "save_best": "fid", "restart_every": -1, "equalize_lr": False,
        "n_test_samples_with_same_shape_code": 4, "model_average_reinit": False, "lr_anneal_every": "50000,100000",
    },
}  # fmt: skip


def loaded(tmp_path, raw):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(raw))
    return load_config(path)


def changed(section, **values):
    raw = copy.deepcopy(GRAF)
    raw[section].update(values)
    return raw


def test_an_official_config_says_the_same_in_our_words(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "graf"):
        config = loaded(tmp_path, GRAF)
    assert (config.expname, config.data.type, config.data.labels, config.data.datadir) == (
        "cars", "images", "none", ("data/carla",),
    )  # fmt: skip
    assert config.data.background == (1, 1, 1)
    assert config.data.radius == (9.5, 10.5)
    assert (config.data.fov, config.data.hflip, config.data.center_crop) == (25, False, 0)
    assert config.nerf.perturb is True
    assert (config.nerf.conditioning, config.nerf.density_activation, config.nerf.samples_per_ray) == ("concat", "relu", 12)
    assert config.nerf.chunk == 1234
    assert config.ray_sampler.scale_anneal == 0
    assert (config.ray_sampler.random_scale, config.ray_sampler.random_shift) == (True, True)
    assert (config.training.reg_type, config.training.lr_anneal_every) == ("r1", (50_000, 100_000))
    assert config.ccsr.lr_multiplier == 1
    assert (config.discriminator.norm, config.discriminator.spectral_norm, config.discriminator.condition) == (
        "instance", True, "none",
    )  # fmt: skip
    for name in ("netchunk", "model_file", "save_every", "save_best", "restart_every", "equalize_lr"):
        assert f"training.{name}" in caplog.text


@pytest.mark.parametrize(
    ("section", "values", "key", "expected"),
    [
        ("data", {"white_bkgd": False}, "background", (0, 0, 0)),
        ("data", {"type": "celebA"}, "center_crop", 108),
        ("data", {"type": "celebA"}, "hflip", True),
        ("data", {"type": "celebA_hq"}, "center_crop", 650),  # as its get_data has it
        ("data", {"type": "celebA_hq"}, "hflip", True),
        ("data", {"type": "cats"}, "hflip", True),
        ("data", {"type": "cub"}, "hflip", False),
        ("nerf", {"perturb": 0.0}, "perturb", False),
        ("nerf", {"i_embed": -1}, "multires", 0),
        ("nerf", {"i_embed": -1}, "multires_views", 0),
        ("ray_sampler", {"scale_anneal": 0.0025}, "scale_anneal", 0.0025),
        ("training", {"take_model_average": False}, "model_average_beta", 0),
        ("training", {"take_model_average": True, "model_average_beta": 0.9}, "model_average_beta", 0.9),
        ("training", {"fid_every": -1}, "fid_every", 0),  # its configs/debug.yaml: never
    ],
)
def test_single_keys(tmp_path, section, values, key, expected):
    assert getattr(getattr(loaded(tmp_path, changed(section, **values)), section), key) == expected


def test_a_single_interval_anneals_again_and_again(tmp_path):
    """There an integer is a StepLR's period, a text with commas a MultiStepLR's milestones."""
    milestones = loaded(tmp_path, changed("training", lr_anneal_every=70_000)).training.lr_anneal_every
    assert milestones[:4] == (70_000, 140_000, 210_000, 280_000)


@pytest.mark.parametrize("interval", [0, -5])
def test_an_interval_that_is_none_is_one_error(tmp_path, interval):
    with pytest.raises(ConfigError, match="lr_anneal_every"):
        loaded(tmp_path, changed("training", lr_anneal_every=interval))


def test_what_remains_is_checked_like_any_config(tmp_path):
    with pytest.raises(ConfigError, match="unknown key 'netwdith', did you mean 'netwidth'"):
        loaded(tmp_path, changed("nerf", netwdith=3))
    with pytest.raises(ConfigError, match="data.fov: must be at most 179"):
        loaded(tmp_path, changed("data", fov=200))


@pytest.mark.parametrize("nerf", [None, 3])
def test_a_section_that_is_empty_or_wrong_is_no_crash(tmp_path, nerf):
    raw = changed("training", chunk=77)
    raw["nerf"] = nerf
    if nerf is None:
        assert loaded(tmp_path, raw).nerf.chunk == 77
    else:
        with pytest.raises(ConfigError, match="'nerf' is a section"):
            loaded(tmp_path, raw)


def test_translation_leaves_its_input_alone():
    raw = copy.deepcopy(GRAF)
    translate_graf(raw, "here")
    assert raw == GRAF


@pytest.mark.parametrize("path", sorted(CONFIG_DIR.glob("*.yaml")), ids=lambda path: path.stem)
def test_our_own_configs_are_not_taken_for_grafs(path):
    assert not is_graf_format(yaml.safe_load(path.read_text()))


@pytest.mark.parametrize(
    "raw", [{"data": {"type": "carla"}}, {"data": {"white_bkgd": False}}, {"nerf": {"i_embed": 0}}, {"training": {"chunk": 1}}]
)
def test_one_word_of_grafs_is_enough(raw):
    assert is_graf_format(raw)


def test_what_a_file_is_taken_for_grafs_for_is_told(tmp_path, caplog):
    (tmp_path / "mine.yaml").write_text("training: {chunk: 4096}\n")  # a key of nerf, in a wrong section
    load_config(tmp_path / "mine.yaml")
    assert "mine.yaml: taken for a config of the official GRAF, over configs/graf.yaml, for training.chunk" in caplog.text
    (tmp_path / "mine.yaml").write_text("inherit_from: smoke.yaml\ntraining: {chunk: 4096}\n")
    with pytest.raises(ConfigError, match="unknown key 'chunk', did you mean 'nerf.chunk'"):
        load_config(tmp_path / "mine.yaml")


def test_a_config_of_ours_may_inherit_from_one_of_grafs(tmp_path):
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(GRAF))
    (tmp_path / "mine.yaml").write_text("inherit_from: theirs.yaml\nnerf: {N_samples: 7}\n")
    config = load_config(tmp_path / "mine.yaml")
    assert (config.nerf.samples_per_ray, config.nerf.chunk, config.data.fov) == (7, 1234, 25)


def test_our_carla_recipe_is_grafs(tmp_path):
    """What configs/carla_64.yaml says is what the official default and carla files say, translated."""
    official = {
        "expname": "carla_64",
        "data": {
            "imsize": 64, "datadir": "data/carla", "type": "carla", "radius": 10.0, "near": 7.5, "far": 12.5, "fov": 30.0,
            "white_bkgd": True, "umin": 0.0, "umax": 1.0, "vmin": 0.0, "vmax": 0.45642212862617093, "orthographic": False,
        },
        "nerf": {
            "i_embed": 0, "use_viewdirs": True, "multires": 10, "multires_views": 4, "N_samples": 64, "N_importance": 0,
            "netdepth": 8, "netwidth": 256, "netdepth_fine": 8, "netwidth_fine": 256, "perturb": 1.0, "raw_noise_std": 1.0,
            "decrease_noise": True,
        },
        "z_dist": {"type": "gauss", "dim": 256, "dim_appearance": 128},
        "ray_sampler": {"min_scale": 0.25, "max_scale": 1.0, "scale_anneal": 0.0025, "N_samples": 1024},
        "discriminator": {"ndf": 64, "hflip": False},
        "training": {
            "lr_g": 0.0005, "lr_d": 0.0001, "lr_anneal": 0.5, "lr_anneal_every": "50000,100000,200000", "gan_type": "standard",
            "reg_type": "real", "reg_param": 10.0, "optimizer": "rmsprop", "batch_size": 8, "model_average_beta": 0.999,
        },
    }  # fmt: skip
    assert loaded(tmp_path, official) == load_config(CONFIG_DIR / "carla_64.yaml")


@pytest.mark.skipif(not FIXTURE.exists(), reason="needs ../shared/fixtures")
def test_the_official_fixture():
    config = load_config(FIXTURE)
    assert (config.data.imsize, config.data.fov, config.data.near, config.data.far) == (24, 30, 7.5, 12.5)
    assert (config.nerf.samples_per_ray, config.nerf.netwidth, config.nerf.use_viewdirs, config.nerf.chunk) == (
        24,
        32,
        True,
        32768,
    )
    assert (config.z_dist.dim, config.z_dist.dim_appearance) == (16, 8)
    assert (config.discriminator.ndf, config.patch_size, config.training.reg_type) == (8, 32, "r1")
    assert config.training.lr_anneal_every == (50_000, 100_000, 200_000)


OLDER = """
data: {datadir: [data/lamps], imsize: 256, type: LAMPS_0_i2, use_default_rays: False, v: "0.5, 0.4", fov: 20}
discriminator: {num_classes: 1, ndf: 64}
nerf: {i_embed: 0, perturb: 1.0, N_samples: 64}
ray_sampler: {type: flex_grid, N_samples: 4096}
training: {chunk: 32768, lr_anneal_every: "80000,120000,150000", save_best: fid}
wandb: {project: lamps}
ccsr:
    enabled: True,
    num_views: 8,
    scale_factor: 4,
    alpha_init: 1.0,
    alpha_decay: 0.0001
"""


def test_a_config_of_the_older_graf_ccsr_loads_as_it_was_published(tmp_path, caplog):
    """Its commas, which YAML takes into the values, its name for the data, and keys that nobody reads are accepted."""
    (tmp_path / "older.yaml").write_text(OLDER)
    config = load_config(tmp_path / "older.yaml")
    ccsr = config.ccsr
    assert (ccsr.mode, ccsr.num_views, ccsr.scale_factor) == ("consistency", 8, 4)
    assert (ccsr.alpha_init, ccsr.alpha_decay) == (1, 1e-4)
    assert (config.data.type, config.data.labels, config.data.v) == ("images", "auto", (0.5, 0.4))
    assert config.training.lr_anneal_every == (80_000, 120_000, 150_000)
    for name in ("commas", "LAMPS_0_i2", "wandb", "data.use_default_rays", "discriminator.num_classes", "ray_sampler.type"):
        assert name in caplog.text


def test_an_older_ccsr_section_that_is_wrong_is_one_error(tmp_path):
    for wrong, message in (("'[,'", "unknown key 'enabled'"), ("maybe,", "unknown key 'enabled'")):
        (tmp_path / "older.yaml").write_text(f"ccsr: {{enabled: {wrong}}}" if "'" in wrong else f"ccsr:\n  enabled: {wrong}")
        with pytest.raises(ConfigError, match=message):
            load_config(tmp_path / "older.yaml")
