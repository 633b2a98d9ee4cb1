"""Warnings about configs that can be trained, but hardly do what is meant."""

from graf.config import CONFIG_DIR, Config, config_of_ours, config_rows, config_text, load_config
from graf.config.advice import PARTS, advice, advice_on_steps
from graf.data import build_dataset

import pytest
import torch


@pytest.mark.parametrize(("scale", "warnings"), [("min_scale=0.5", 2), ("scale_anneal=0.5", 2), ("max_scale=0.5", 1)])
def test_smaller_patches_are_none_without_random_scale(scale, warnings):
    overrides = ["data.imsize=64", "ray_sampler.rays_per_patch=256", f"ray_sampler.{scale}"]
    if scale == "max_scale=0.5":
        overrides.append("ray_sampler.min_scale=0.5")
    found = advice(load_config(None, overrides), Config())
    assert len(found) == warnings and ("leaves details out" in found[0]) == (warnings == 2)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.imsize=32", "ray_sampler.rays_per_patch=256"], None),
        (["data.imsize=64", "ray_sampler.rays_per_patch=256"], "details out; set ray_sampler.rays_per_patch=1024, or "),
        (["data.imsize=16", "ray_sampler.rays_per_patch=256"], "set ray_sampler.rays_per_patch=64, or data.imsize=32"),
        (["data.imsize=256", "ray_sampler.rays_per_patch=1024"], "data.imsize=64, or ray_sampler.min_scale=0.25 "),
        (
            ["data.imsize=64", "ray_sampler.rays_per_patch=256", "ray_sampler.min_scale=0.5", "ray_sampler.random_scale=true"],
            None,
        ),
        (["discriminator.low_res_steps=300", "training.max_steps=0"], None),
        (
            ["encoder.first_steps=0", "discriminator.low_res_steps=300", "training.max_steps=300"],
            "none of training.max_steps 300 to images with all ",
        ),
        (
            ["encoder.first_steps=0", "discriminator.low_res_steps=300", "training.max_steps=315"],
            "leave 15 of training.max_steps 315",
        ),
        (["encoder.first_steps=0", "discriminator.low_res_steps=300", "training.max_steps=316"], None),
        (
            ["encoder.first_steps=1000", "discriminator.low_res_steps=1500", "training.max_steps=2500"],
            "encoder.first_steps: 1000 and discriminator.low_res_steps: 1500 ",
        ),
        (
            ["encoder.first_steps=1000", "discriminator.low_res_steps=1500", "training.max_steps=2500"],
            "set encoder.first_steps=1000 discriminator.low_res_steps=833",
        ),
        (
            ["encoder.first_steps=9", "discriminator.low_res_steps=0", "training.max_steps=9"],
            "discriminator; set encoder.first_steps=4",
        ),
        (["encoder.first_steps=1000", "discriminator.low_res_steps=1500", "training.max_steps=2632"], None),
        (["training.max_steps=4700"], "set encoder.first_steps=2350 discriminator.low_res_steps=500"),
        (["ccsr.unrefined_steps=401"], "ccsr.unrefined_steps: 401 begin before the 4,500 steps "),
        (["ccsr.unrefined_steps=400"], None),
        (["ccsr.unrefined_steps=4900"], "so that CCSR learns little; set ccsr.unrefined_steps=200"),
        (
            ["ccsr.unrefined_steps=9000", "encoder.first_steps=0", "encoder.weight=0", "discriminator.low_res_steps=0"],
            "9000 are all steps of the run",
        ),
        (["ccsr.learns_from=discriminator", "ccsr.lr_multiplier=0.1"], None),
        (["ccsr.learns_from=discriminator"], "set ccsr.lr_multiplier=0.1"),
    ],
)
def test_what_will_probably_not_do_what_is_meant_is_advised_against(overrides, said):
    config = load_config(None, overrides)
    found = advice(config, Config()) + advice_on_steps(config)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_run_that_only_reconstructs_is_not_advised_to_have_a_discriminator():
    for weight, n_steps, n_warnings in ((0, 300, 0), (10, 300, 1), (0, 299, 1)):
        settings = [f"encoder.first_steps={n_steps}", f"encoder.weight={weight}", "training.max_steps=300"]
        assert len(advice_on_steps(load_config(None, settings))) == n_warnings


def test_advice_on_steps_is_that_of_a_config_without_an_encoder_where_images_have_no_cameras():
    config = load_config(None, ["training.max_steps=4000"])
    assert advice_on_steps(config) and not advice_on_steps(config.without_encoder())


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["ccsr.rrdb.nf=32"], "ccsr.rrdb.nf=32: nothing reads this while ccsr.backbone is 'light'"),
        (["ccsr.rrdb.nf=32", "ccsr.backbone=rrdb"], None),
        (
            ["ccsr.rrdb.nf=32", "ccsr.num_views=8", "ccsr.mode=none", "ray_sampler.rays_per_patch=4096"],
            "ccsr.num_views=8, ccsr.rrdb.nf=32: nothing reads this while",
        ),
        (["nerf.netwidth_fine=32"], "while nerf.importance_samples_per_ray is 0"),
        (["nerf.netwidth_fine=32", "nerf.importance_samples_per_ray=4"], None),
        (["discriminator.label_weight=2"], "while discriminator.label_loss is 'none'"),
        (["training.anneal_lr=0.1"], "while training.anneal is 'none'"),
        (["data.n_images=99", "data.type=images"], "while data.type is 'images'"),
        (["data.masks=none"], "while data.type is 'toy_cars'"),
        (["data.fov=30", "data.orthographic=true"], "while data.orthographic is True"),
        (["nerf.netdepth_fine=3", "nerf.conditioning=triplane", "nerf.importance_samples_per_ray=4"], "is 'triplane'"),
        (["metrics.extractor=efficientnet-lite2", "metrics.weights_path=a.pth"], "while metrics.extractor is"),
        (["training.nworkers=0", "data.prefetch_factor=4"], "while training.nworkers is 0"),
        (["training.lr_anneal_every=[]", "training.lr_anneal=0.3"], "while training.lr_anneal_every is []"),
        (["data.type=images", "data.turntable_step_deg=5"], "while data.name_pattern is '<elevation>_<azimuth_deg>'"),
        (["data.type=images", "data.turntable_step_deg=5", "data.name_pattern=<object>_<index>"], None),
    ],
)
def test_a_key_that_nothing_reads_is_told_with_the_key_that_turns_its_part_on(overrides, said):
    found = advice(load_config(None, overrides), Config())
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_what_a_config_of_ours_sets_is_not_told(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("inherit_from: graf.yaml\nnerf: {multires: 8}\n")
    assert config_of_ours(own) == load_config("graf")
    assert not advice(load_config(own), config_of_ours(own))
    own.write_text("inherit_from: graf.yaml\nnerf: {netdepth_fine: 3}\n")
    (told,) = advice(load_config(own), config_of_ours(own))
    assert told.startswith("nerf.netdepth_fine=3: ")
    assert config_of_ours(None) == Config()


@pytest.mark.parametrize("text", ["", "ccsr: {rate: 1}\n", "data: {type: carla}\nnerf: {i_embed: 0}\n"])
def test_what_was_logged_of_a_file_is_not_logged_again(tmp_path, caplog, text):
    (tmp_path / "own.yaml").write_text(text)
    load_config(tmp_path / "own.yaml")
    caplog.clear()
    config_of_ours(tmp_path / "own.yaml")
    assert not caplog.records


@pytest.mark.parametrize("file", sorted(CONFIG_DIR.glob("*.yaml")), ids=lambda file: file.stem)
def test_our_configs_need_no_advice_nor_do_those_that_runs_of_them_write(file, tmp_path):
    if not file.stem.startswith("pose"):
        assert not advice(load_config(file), config_of_ours(file))
        own = tmp_path / "config.yaml"
        own.write_text(config_text(load_config(file)))
        assert not advice(load_config(own), config_of_ours(own))


def test_all_parts_name_keys_that_there_are():
    keys = [key for key, _, _ in config_rows()]
    for part in PARTS:
        assert part.switch in keys
        for named in part.keys:
            assert any(key == named or key.startswith(f"{named}.") for key in keys), named


def test_toy_cars_read_no_key_of_which_advice_says_so(tmp_path):
    small = (
        "data.imsize=16",
        "ray_sampler.rays_per_patch=64",
        "data.n_images=2",
        f"data.datadir={tmp_path}",
        "training.batch_size=2",
    )
    keys = ("name_pattern=<index>", "turntable_step_deg=5", "align_cameras=always", "masks=none", "center_crop=8")
    plain, changed = load_config(None, small), load_config(None, (*small, *(f"data.{key}" for key in keys)))
    (told,) = advice(changed, plain)
    assert told.count("data.") == len(keys) + 1
    first, second = build_dataset(plain), build_dataset(changed)
    assert first.fingerprint == second.fingerprint
    assert torch.equal(first.labels.pose_c2w, second.labels.pose_c2w) and torch.equal(first.read(1), second.read(1))
