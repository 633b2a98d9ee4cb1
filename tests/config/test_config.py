"""The config refuses what it does not know, by name, and loses nothing on the way through YAML."""

import copy
import itertools
import json
import pickle
import re

from graf.config import (
    CONFIG_DIR,
    Config,
    PoseConfig,
    config_from_dict,
    config_of_ours,
    config_rows,
    config_to_dict,
    flat,
    is_set,
    load_config,
    merge,
    minutes_of,
    read_yaml,
)
from graf.config.reading import FlagOverride, find_config, parse_override, quoted
from graf.errors import ConfigError
from graf.foreign.configs import OTHER_SUITES

import pytest
import yaml

SHIPPED = sorted(path for path in CONFIG_DIR.glob("*.yaml") if not path.stem.startswith("pose"))  # of another program


def written(tmp_path, text, name="mine.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


def refusal(*overrides, path=None, schema=Config):
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides, schema)
    return str(caught.value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_survives_a_round_trip(path):
    config = load_config(path)
    assert isinstance(config, Config)
    plain = config_to_dict(config)
    assert config_from_dict(plain, "round trip") == config
    assert config_from_dict(yaml.safe_load(yaml.safe_dump(plain)), "YAML") == config
    assert config_from_dict(json.loads(json.dumps(plain)), "JSON") == config


def test_no_path_means_the_defaults():
    assert load_config() == load_config(CONFIG_DIR / "default.yaml")


def test_every_key_of_the_dataclasses_is_in_the_default_file_and_the_table():
    raw = read_yaml(CONFIG_DIR / "default.yaml")
    keys = set(flat(raw))
    rows = config_rows()
    assert {name for name, _, _ in rows} == keys
    assert len(rows) == len(keys)
    assert all(meaning for _, _, meaning in rows)


def test_a_file_says_only_what_differs(tmp_path):
    config = load_config(written(tmp_path, "expname: mine\nnerf:\n  netwidth: 32\n"))
    expected = config_to_dict(load_config())
    expected["expname"], expected["nerf"]["netwidth"] = "mine", 32
    assert config_to_dict(config) == expected


def test_overrides_win_over_the_file_and_later_ones_over_earlier_ones(tmp_path):
    path = written(tmp_path, "nerf: {netwidth: 32}")
    assert load_config(path, ["nerf.netwidth=16", "nerf.netwidth=8"]).nerf.netwidth == 8


def test_inherit_from_follows_files_beside_the_file(tmp_path):
    (tmp_path / "sub").mkdir()
    written(tmp_path, "nerf: {netwidth: 32, netdepth: 2}\n", "grandparent.yaml")
    written(tmp_path, "inherit_from: ../grandparent.yaml\nnerf: {netdepth: 3}\n", "sub/parent.yaml")
    config = load_config(written(tmp_path, "inherit_from: sub/parent.yaml\nexpname: child\n"))
    assert (config.nerf.netwidth, config.nerf.netdepth, config.expname) == (32, 3, "child")


@pytest.mark.parametrize("text", ["[-1, -0.5, 0, 1, 0.5, 2]", "-1,-0.5,0,1,0.5,2"])
def test_a_box_is_a_word_or_six_numbers(text):
    assert load_config(None, [f"data.box={text}"]).data.box == (-1.0, -0.5, 0.0, 1.0, 0.5, 2.0)
    for word in ("none", "auto"):
        assert load_config(None, [f"data.box={word}"]).data.box == word


@pytest.mark.parametrize("parent", ["mine.yaml", "other.yaml"])
def test_inheritance_in_a_circle_is_an_error(tmp_path, parent):
    written(tmp_path, "inherit_from: mine.yaml\n", "other.yaml")
    message = refusal(path=written(tmp_path, f"inherit_from: {parent}\n"))
    assert "mine.yaml" in message
    assert "inherit_from leads back" in message


def test_inherit_from_looks_beside_the_file_and_then_in_configs(tmp_path):
    path = written(tmp_path, "inherit_from: graf.yaml\nexpname: mine\n")
    assert (load_config(path).nerf.netdepth, load_config(path).expname) == (8, "mine")
    written(tmp_path, "nerf: {netdepth: 3}\n", "graf.yaml")
    assert load_config(path).nerf.netdepth == 3


@pytest.mark.parametrize("name", ["default.yaml", "./default.yaml", "default"])
def test_a_users_own_default_file_is_inherited_from(tmp_path, name):
    path = written(tmp_path, f"inherit_from: {name}\nexpname: mine\n")
    assert load_config(path).nerf.netwidth == Config().nerf.netwidth
    written(tmp_path, "inherit_from: default.yaml\nnerf: {netwidth: 16}\n", "default.yaml")
    assert load_config(path).nerf.netwidth == 16 and load_config(path).expname == "mine"
    assert config_of_ours(path) == Config()
    assert load_config(written(tmp_path, "expname: mine\n")).nerf.netwidth == Config().nerf.netwidth  # which names none
    assert "no such config file" in refusal(path=written(tmp_path, "inherit_from: nowhere/default.yaml\n"))


def test_a_file_to_inherit_from_that_is_missing_is_told_with_the_file_that_names_it(tmp_path):
    written(tmp_path, "inherit_from: nothere.yaml\n", "parent.yaml")
    message = refusal(path=written(tmp_path, "inherit_from: parent.yaml\n"))
    parent, missing = tmp_path / "parent.yaml", tmp_path / "nothere.yaml"
    assert message.startswith(f"{parent}: inherit_from: {missing}: no such config file; ")


def test_inherit_from_takes_a_name(tmp_path):
    assert "inherit_from must be the name of a config file, found 3" in refusal(path=written(tmp_path, "inherit_from: 3\n"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.batchsize=4", "training: unknown key 'batchsize', did you mean 'batch_size'?"),
        ("trainng.batch_size=4", "unknown key 'trainng', did you mean 'training'?"),
        ("nerf.zzz=1", "nerf: unknown key 'zzz'"),
        ("training.use_amp='True,'", "training.use_amp: expected true or false, found 'True,'"),
        ("training.use_amp=1", "training.use_amp: expected true or false, found 1"),
        ("training.batch_size=true", "training.batch_size: expected a number, found True"),
        ("training.batch_size=1.5", "training.batch_size: expected a whole number, found 1.5"),
        ("training.batch_size=[1]", "training.batch_size: expected a number, found [1]"),
        ("training.batch_size=", "training.batch_size: expected a number, found None"),
        ("training.batch_size=0", "training.batch_size: must be at least 1, found 0"),
        ("training.micro_batch=9", "micro_batch: at most batch_size 8"),
        ("training.lr_g=.nan", "training.lr_g: expected a number, found nan"),
        ("training.lr_g=.inf", "training.lr_g: expected a number, found inf"),
        ("training.fid_images=1", "training.fid_images: FID and KID need at least 2 images; 0 takes as many as eval.py"),
        ("training.lr_g=0", "lr_g and lr_d must be above 0"),
        ("training.lr_anneal=1.5", "training.lr_anneal: must be at most 1, found 1.5"),
        ("training.gan_type=nonsense", "training.gan_type: expected one of standard, wgan, hinge"),
        ("training.gan_type=true", "training.gan_type: expected one of"),
        ("training.model_average_beta=1", "model_average_beta: must be below 1"),
        ("training={save_best: fid, fid_every: 0}", "is measured every fid_every steps"),
        ("training.lr_anneal_every=[2, 1]", "milestones must rise, found [2, 1]"),
        ("data.v=null", "data.v: expected auto or numbers, found None"),
        ("training.lr_anneal_every=[0]", "lr_anneal_every: must be at least 1"),
        ("training.lr_anneal_every=some", "lr_anneal_every: expected auto or steps such as [3000, 4000], found 'some'"),
        ("ray_sampler.rays_per_patch=1000", "must be a square number such as 961 or 1024, found 1000"),
        ("ray_sampler.rays_per_patch=400", "rays_per_patch 64, 256, 1024, 4096, 16384; found 400 (side 40)"),
        ("ray_sampler.min_scale=0", "min_scale must be above 0"),
        ("ray_sampler.max_scale=0.5", "min_scale must be above 0 and at most max_scale, found 1 and 0.5"),
        ("data.near=4.6", "near must be below far, found 4.6 and 4.6"),
        ("data={type: images, far: 1.6}", "near must be below far, found 2.6 and 1.6; name both"),
        ("data.radius=0", "data.radius: must be above 0"),
        ("data.radius=3,2", "runs from low to high"),
        ("data.radius=1,2,3", "data.radius: expected 2 numbers, found '1,2,3'"),
        ("data.radius=wide", "data.radius: expected a number, found 'wide'"),
        ("data.radius=1,4", "moves the near plane 2.6 behind the camera"),
        ("data.umin=1.5", "umin must be at most umax"),
        (
            "data={camera_prior: front, umin: -0.1, umax: 0.1}",
            "data.camera_prior: front does not read umin: -0.1, umax: 0.1, which are of camera_prior: circle; set that, or "
            "leave the default: umin: 0, umax: 1",
        ),
        ("data.azimuth_std_deg=30", "circle does not read azimuth_std_deg: 30, which is of camera_prior: front"),
        ("data.azimuth_std_deg=90", "data.azimuth_std_deg: must be at most 60, found 90"),
        (
            "encoder={finds_cameras: true, first_steps: 0, weight: 0}",
            "encoder.finds_cameras: there is no encoder; set encoder.first_steps or encoder.weight above 0, or this to false",
        ),
        (
            "encoder.finds_cameras=true",
            "encoder.finds_cameras: cameras of fronts alone can be found; set data.camera_prior=front data.hflip=true, or this "
            "to false",
        ),
        ("data.camera_prior=sphere", "data.camera_prior: expected one of circle, front, found 'sphere'"),
        ("data.mirror=left", "data.mirror: expected none or a number, found 'left'"),
        ("data.mirror=400", "data.mirror: must be at most 360, found 400"),
        ("data={umin: 0.9, umax: 0.1}", "a range across azimuth 0 begins below it: umin -0.1, umax 0.1"),
        ("data.umax=70", "data.umax: must be at most 2, found 70; it is azimuth / 360 degrees; 70 degrees are 0.1944"),
        ("data.umin=-90", "data.umin: must be at least -1, found -90; it is azimuth / 360 degrees; -90 degrees are -0.25"),
        (  # (1 - cos 20) / 2 and (1 - sin 20) / 2
            "data.vmin=20",
            "data.vmin: must be at most 1, found 20; it is (1 - cos polar) / 2; 20 degrees from straight above are 0.03015; "
            "20 degrees above the horizon are 0.329",
        ),
        ("data.v=[0.5, 120]", "found 120; it is (1 - cos polar) / 2; 120 degrees from straight above are 0.75"),
        ("data.vmax=-10", "must be at least 0, found -10; it is (1 - cos polar) / 2; -10 degrees above the horizon are 0.5868"),
        ("data.vmax=200", "data.vmax: must be at most 1, found 200; it is (1 - cos polar) / 2"),
        ("discriminator={hflip: true, condition: class_and_pose}", "would need a mirrored camera"),
        ("data.box=some", "data.box: expected none, auto or 6 numbers, found 'some'"),
        ("data.box=[-1, -1, 1, 1]", "data.box: expected none, auto or 6 numbers, found [-1, -1, 1, 1]"),
        ("data.box=[0, 0, 1, 1, 1, 1]", "data.box: each of its first three numbers must be below that of the last three"),
        ("nerf={conditioning: triplane, plane_size: 24}", "nerf.plane_size: must be 4 times a power of 2"),
        ("nerf={conditioning: triplane, synthesis_width: 12}", "nerf.synthesis_width: must be a multiple of 8"),
        ("nerf={conditioning: triplane, use_viewdirs: true}", "nerf.use_viewdirs: a triplane's colours do not depend on"),
        ("data.background=red", "data.background: expected white, black or [r, g, b], found 'red'"),
        ("data.background=[1, 1, 2]", "data.background: must be at most 1, found 2"),
        ("data.v=[]", "data.v: name at least one elevation"),
        ("data={type: images, datadir: []}", "data.datadir: name at least one folder"),
        ("data=5", "'data' is a section with keys of its own, found 5"),
        ("data.far=1e300", "data.far: expected a smaller number, found '1e300'"),
        ("training.max_steps=1e18", "training.max_steps: expected a smaller number"),
        ("memory.interval_s=1e9", "memory.interval_s: must be at most 86400"),
        ("nerf.netwidth=0x" + "f" * 9000, "nerf.netwidth: expected a number, found a number of hundreds of digits"),
        ("nerf.netwidth=" + "[" * 300 + "]" * 300, "nerf.netwidth: expected a number, found [[[[[["),
        ('training.outdir="a\\0b"', "training.outdir: expected text of one line without control characters, found 'a\\x00b'"),
        ('data.datadir="a\\nb"', "data.datadir: expected text of one line"),
        ('data.datadir="caf\\uDCE9"', "data.datadir: expected a name in UTF-8 (rename the folder or file, or make a link"),
        ("training.outdir=caf\udce9", "training.outdir=caf\udce9: expected a name in UTF-8"),
        ("expname=" + "a" * 300, "expname: must be at most 200 bytes, found 300"),
        ("z_dist.dim_appearance=64", "z_dist.dim_appearance: must leave room for the shape code in dim = 64, found 64"),
        ("expname=a/b", "expname: must be the name of one folder, found 'a/b'"),
        ("expname=..", "expname: must be the name of one folder"),
        ("expname=' '", "expname: must be the name of one folder"),
        ("training.batch_size", "expected section.key=value"),
        ("=3", "expected section.key=value"),
        ("training.lr_g=[1", "--set training.lr_g=[1: the value is not valid YAML"),
    ],
)
def test_what_cannot_be_taken_is_one_error_that_names_the_key(override, words):
    assert words in refusal(override)


def test_annealing_has_no_milestones():
    anneal = "training.anneal=r3gan"
    assert "lr_anneal_every: anneal r3gan has no milestones, found [5]" in refusal(anneal, "training.lr_anneal_every=[5]")
    load_config(None, (anneal,))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nerf:\n  netwidht: 3\n", "nerf: unknown key 'netwidht', did you mean 'netwidth'?"),
        ("nerf: 3\n", "'nerf' is a section with keys of its own, found 3"),
        ("nerf: text\n", "'nerf' is a section with keys of its own, found 'text'"),
        ("- a\n- b\n", "expected sections such as `data:`, found a list"),
        ("just words\n", "expected sections such as `data:`, found a str"),
        ("nerf:\n  netwidth: 3\n netdepth: 4\n", "line 3: not valid YAML"),
        ("nerf: [1, 2\n", "not valid YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "not valid YAML"),
        ("data: &a {near: 1}\nnerf: *a\n", "line 2: not valid YAML (aliases such as *name are not taken"),
        ('inherit_from: "a\\0b"\n', "not valid YAML (embedded null byte)"),
        ("data: {type: [carla]}\n", "data.type: expected one of toy_cars, images, found ['carla']"),
        ('? "a\\nb"\n: 1\n', "unknown key 'a\\nb'"),
        ("x" * 2**20 + ": 1\n", "longer than any config"),
        ("3: 4\n", "unknown key '3'"),
    ],
)
def test_a_broken_file_is_one_error_that_names_it(tmp_path, text, words):
    path = written(tmp_path, text)
    message = refusal(path=path)
    assert str(path.parent) in message
    assert words in message
    assert len(message.splitlines()) == 1 and len(message) < 1000


def test_all_faults_of_a_file_are_told_at_once(tmp_path):
    path = written(
        tmp_path,
        "lr: 1\ntraining: {num_workers: 3, batch_size: 0, imsize: 8}\ndata: {far: deep, fov: 200}\nnerf: {zzz: 1}\n",
    )
    assert refusal(path=path).splitlines() == [
        f"{path}: 7 faults:",
        "  unknown key 'lr': here it is training.lr_g and training.lr_d, one for each network",
        "  data.far: expected a number, found 'deep'",
        "  data.fov: must be at most 179, found 200",
        "  nerf: unknown key 'zzz'",
        "  training: unknown key 'num_workers': here it is training.nworkers",
        "  training: unknown key 'imsize', did you mean 'data.imsize'?",
        "  training.batch_size: must be at least 1, found 0",
    ]


def test_faults_beyond_twenty_are_counted(tmp_path):
    path = written(tmp_path, "\n".join(f"k{number}: 1" for number in range(25)))
    lines = refusal(path=path).splitlines()
    assert lines[0].endswith("25 faults:")
    assert (len(lines), lines[-1]) == (22, "  ... and 5 more")


def test_values_that_do_not_fit_are_told_for_each_concern_at_once():
    message = refusal("data.near=9", "training.accumulation_steps=9", "z_dist.dim_appearance=64")
    for words in (
        "near must be below far",
        "z_dist.dim_appearance: must leave room",
        "accumulation_steps: at most batch_size 8",
    ):
        assert words in message


def test_all_values_of_one_concern_that_do_not_fit_are_told_at_once():
    message = refusal("data.near=9", "data.radius=5,4", "data.vmin=0.4", "data.vmax=0.3", "data.v=[]")
    assert message.splitlines()[1:] == [
        "  data: near must be below far, found 9 and 4.6",
        "  data.radius: the range runs from low to high, found (5.0, 4.0)",
        "  data: vmin must be at most vmax",
        "  data.v: name at least one elevation, for example v: [0.5, 0.4, 0.3, 0.2]",
    ]


def test_what_only_follows_from_another_fault_is_not_told_with_it():
    assert "\n" not in refusal("ccsr.scale_factor=3")
    assert "\n" not in refusal("ray_sampler.rays_per_patch=1000")
    assert "\n" not in refusal("ccsr.rrdb.freeze=true")


@pytest.mark.parametrize("section", ["", "training.", "data."])
@pytest.mark.parametrize("name", sorted(OTHER_SUITES))
def test_keys_of_other_suites_are_told_by_ours(section, name):
    message = refusal(f"{section}{name}=1")
    assert f"unknown key '{name}': {OTHER_SUITES[name]}" in message
    ours = re.findall(r"\b(?:training|data)\.\w+", OTHER_SUITES[name])
    assert ours or name == "pin_memory"
    assert set(ours) <= {key for key, _, _ in config_rows()}


@pytest.mark.parametrize("name", sorted(PoseConfig.hints.keys() - {"nerf", "lr"}))
def test_a_pose_config_tells_its_own_keys_for_those_of_other_suites(name):
    message = refusal(f"training.{name}=1", schema=PoseConfig)
    assert f"unknown key '{name}': {PoseConfig.hints[name]}" in message
    ours = re.findall(r"\b(?:training|data)\.\w+", PoseConfig.hints[name])
    assert set(ours) <= {key for key, _, _ in config_rows(PoseConfig)}


def test_a_pose_config_tells_all_bad_keys_at_once():
    message = refusal("training={max_epochs: 50, precision: 16, prefetch_factor: 2, gradient_clip_val: 1}", schema=PoseConfig)
    for said in ("4 faults", "training.max_steps", "training.use_amp", "data.prefetch_factor", "training.grad_clip"):
        assert said in message


def test_configs_of_one_program_are_refused_by_the_other():
    assert "unknown key 'model': a section of configs/pose.yaml" in refusal(path=CONFIG_DIR / "pose.yaml")
    assert "unknown key 'nerf': a section of train.py's" in refusal(path=CONFIG_DIR / "default.yaml", schema=PoseConfig)


def test_the_pose_config_is_that_of_its_dataclasses():
    assert load_config(CONFIG_DIR / "pose.yaml", schema=PoseConfig) == PoseConfig()


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("model.num_heads=3", "model.num_heads: must divide d_model 128"),
        ("model.patch_size=6", "a power of 2"),
        ("training={validation_share: 0.5, test_share: 0.5}", "leave nothing to train on"),
        ("data.labels=none", "leaves no cameras to learn"),
        ("training.accumulation_steps=33", "at most batch_size 32"),
    ],
)
def test_values_of_a_pose_config_that_do_not_fit_each_other(override, told):
    assert told in refusal(override, schema=PoseConfig)


def test_a_key_without_its_section_is_told_where_it_is():
    assert "unknown key 'batch_size', did you mean 'training.batch_size' or 'metrics.batch_size'?" in refusal("batch_size=4")
    assert "did you mean 'data.prefetch_factor'?" in refusal("training.prefetch_factor=4")


@pytest.mark.parametrize("merged", ["[{}]", "{{<<: [{}]}}"])
def test_a_few_lines_that_stand_for_billions_are_refused(tmp_path, merged):
    lines = ["a: &a {x: 1}"]
    lines += [f"{b}: &{b} {merged.format(', '.join([f'*{a}'] * 9))}" for a, b in itertools.pairwise("abcdefghij")]
    assert "aliases" in refusal(path=written(tmp_path, "\n".join([*lines, "data: *j"])))


@pytest.mark.parametrize("tag", ["object/apply:builtins.open", "object/new:builtins.open", "name:builtins.open", "module:os"])
def test_yaml_that_would_run_something_runs_nothing(tmp_path, tag):
    marker = tmp_path / "marker"
    text = f"expname: !!python/{tag} ['{marker}', w]\n"
    assert "not valid YAML" in refusal(path=written(tmp_path, text))
    assert "not valid YAML" in refusal(text.replace(": ", "=").strip())
    assert not marker.exists()


def test_inheriting_from_what_is_no_file_is_one_error(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    wrong = {"loop": "cannot be read", ".": "is a folder", "a" * 5000: "cannot be read", "/dev/zero": "longer than any config"}
    for parent, words in wrong.items():
        message = refusal(path=written(tmp_path, f"inherit_from: {parent}\n"))
        assert words in message
        assert len(message.splitlines()) == 1


def test_a_missing_file_is_an_error_that_lists_the_configs_there_are(tmp_path):
    message = refusal(path=tmp_path / "nowhere.yaml")
    assert "nowhere.yaml: no such config file" in message
    assert "carla_64.yaml" in message


@pytest.mark.parametrize("name", ["smoke", "smoke.yaml", "configs/smoke", "configs/smoke.yaml"])
def test_our_configs_are_found_by_name_from_anywhere(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert find_config(name) == CONFIG_DIR / "smoke.yaml"
    assert load_config(name).expname == "smoke"


def test_the_users_own_file_comes_before_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graf").mkdir()  # a folder is no config
    assert load_config("graf").expname == "graf"
    written(tmp_path, "expname: mine", "graf.yaml")
    assert load_config("graf").expname == load_config("graf.yaml").expname == "mine"


@pytest.mark.parametrize("name", ["elsewhere/smoke.yaml", "/nowhere/configs/smoke.yaml"])
def test_another_folders_file_is_not_taken_for_ours(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert refusal(path=name).startswith(f"{name}: no such config file; {CONFIG_DIR} has ")


def test_a_mistyped_path_names_the_nearest_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    written(tmp_path / "photos", "expname: mine", "config.yaml")
    assert refusal(path="photo/config.yaml").endswith("; did you mean photos/config.yaml?")
    assert refusal(path="few_imges").endswith("; did you mean few_images.yaml?")
    assert "did you mean" not in refusal(path="elsewhere/of/mine.yaml")


def test_paths_of_a_config_know_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # as Windows names it
    written(tmp_path, "ccsr: {backbone: rrdb, rrdb: {pretrained_path: ~/x2.pth}}", "parent.yaml")
    path = written(
        tmp_path,
        """
        inherit_from: ~/parent.yaml
        data: {datadir: [~/photos, $HOME/more, "cost$5"], masks: ~/masks}
        training: {outdir: "${HOME}/runs"}
        metrics: {weights_path: ~/inception.pth}
        """,
    )
    config = load_config("~/mine.yaml")
    assert config == load_config(path)
    assert config.data.datadir == (f"{tmp_path}/photos", f"{tmp_path}/more", "cost$5")
    assert config.data.masks == f"{tmp_path}/masks"
    assert config.training.outdir == f"{tmp_path}/runs"
    assert config.metrics.weights_path == f"{tmp_path}/inception.pth"
    assert config.ccsr.rrdb.pretrained_path == f"{tmp_path}/x2.pth"
    assert load_config(None, ["training.outdir=~"]).training.outdir == str(tmp_path)
    assert load_config(None, ["expname=$HOME"]).expname == "$HOME"


def test_what_cannot_be_decoded_or_opened_is_a_config_error(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes("expname: caf\xe9".encode("latin-1"))
    assert "latin.yaml: is not text; --config needs a YAML file" in refusal(path=path)
    assert refusal(path=tmp_path) == f"{tmp_path}: is a folder; --config needs a YAML file, --data_dir takes a folder"


def test_an_override_at_fault_is_not_blamed_on_the_file(tmp_path):
    message = refusal("training.batch_size=0", path=written(tmp_path, "expname: innocent\n"))
    assert "mine.yaml" not in message
    assert "--set" in message


def test_an_empty_file_and_empty_sections_change_nothing(tmp_path, caplog):
    assert load_config(written(tmp_path, "data:\nnerf:\n")) == load_config()
    assert load_config(written(tmp_path, "# expname: mine\n")) == load_config()
    assert not caplog.text
    assert load_config(written(tmp_path, "")) == load_config()
    assert "mine.yaml: is empty, so every key keeps its default" in caplog.text


def test_numbers_that_yaml_reads_as_text_are_numbers():
    assert isinstance(yaml.safe_load("1e-3"), str)  # YAML 1.1
    config = load_config(None, ["training.lr_g=1e-3", "training.max_steps=1e3", "data.radius=36e-1"])
    assert config.training.lr_g == 0.001
    assert config.training.max_steps == 1000
    assert isinstance(config.training.max_steps, int)
    assert config.data.radius == (3.6, 3.6)


def test_numbers_that_only_yaml_1_1_reads_as_others_are_read_as_they_are_written(tmp_path):
    assert yaml.safe_load("11:30") == 690 and yaml.safe_load("010") == 8
    assert "training.max_hours: expected a number, found '11:30'" in refusal("training.max_hours=11:30")
    assert "training.max_steps" in refusal(path=written(tmp_path, "training: {max_steps: 12:30}\n"))
    assert load_config(None, ["training.seed=010"]).training.seed == 10
    (read,) = read_yaml(written(tmp_path, "a: [0, -1, +2, 1_000, 0x10, 1.5, -.5, 1., 2.5e+3, 1.0E-2, 1e3, .inf]\n")).values()
    assert read == [0, -1, 2, 1000, 16, 1.5, "-.5", 1.0, 2500.0, 0.01, "1e3", float("inf")]


@pytest.mark.parametrize(
    "text", ["010", "11:30", "1.0e5", "2.e3", "-.5", "1e3", "0x1F", "0b11", "1_000", ".5", ".inf", "1.", "yes", "~"]
)
def test_a_name_that_looks_like_a_number_survives_a_round_trip(tmp_path, text):
    config = load_config(None, [f"expname={quoted(text)}", f"data.datadir={quoted('a/' + text)}"])
    assert config.expname == text
    assert load_config(written(tmp_path, yaml.safe_dump(config_to_dict(config)))) == config


@pytest.mark.parametrize(
    "override", ["discriminator.low_res_steps=1e3", "nerf.checkpoint_rays=1e3", "training.lr_anneal_every=1e3"]
)
def test_numbers_that_a_word_may_stand_for_may_be_written_as_any_others(override):
    key = override.partition("=")[0]
    assert load_config(None, [override]) == load_config(None, [f"{key}=1000"])


@pytest.mark.parametrize("text", ["9.5,10.5", "'9.5, 10.5'", "[9.5, 10.5]"])
def test_a_range_of_radii(text):
    config = load_config(None, [f"data.radius={text}", "data.near=7.5", "data.far=12.5"])
    assert config.data.radius == (9.5, 10.5)


def test_one_value_stands_for_a_list_of_one():
    config = load_config(None, ["data.datadir=photos", "training.lr_anneal_every=5", "data.v=0.5"])
    assert (config.data.datadir, config.training.lr_anneal_every, config.data.v) == (("photos",), (5,), (0.5,))


@pytest.mark.parametrize(
    ("text", "rgb"),
    [("white", (1, 1, 1)), ("black", (0, 0, 0)), ("[0, 0.5, 1]", (0, 0.5, 1)), ("0.1,0.2,0.3", (0.1, 0.2, 0.3))],
)
def test_background_by_name_or_number(text, rgb):
    assert load_config(None, [f"data.background={text}"]).data.background == rgb


@pytest.mark.parametrize("text", ["none", "null", "~"])
def test_none_may_be_written_as_yaml_has_it(text):
    assert load_config(None, [f"training.reg_type={text}"]).training.reg_type == "none"


@pytest.mark.parametrize("side", [16, 32, 64, 128, 256])
def test_patch_size_is_the_root_of_the_rays(side):
    assert load_config(None, ["ccsr.mode=none", f"ray_sampler.rays_per_patch={side**2}"]).patch_size == side


def test_refined_patches_are_scale_factor_times_their_rays():
    assert load_config(None, ["ccsr.scale_factor=4", "ray_sampler.rays_per_patch=256"]).patch_size == 64
    assert load_config(None, ["ccsr.mode=consistency", "ray_sampler.rays_per_patch=256"]).patch_size == 16


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["ccsr.mode=consistency", "ccsr.scale_factor=3"],
            "ccsr.scale_factor: must be 2, 4 or 8, which divide the discriminator's patches; found 3",
        ),
        (
            ["ccsr.scale_factor=6", "data.imsize=96"],
            "ccsr.scale_factor: must be 2, 4 or 8, which divide the discriminator's patches; found 6",
        ),
        (["ccsr.scale_factor=8", "ray_sampler.rays_per_patch=4096"], "that is rays_per_patch 16, 64, 256, 1024; found 4096"),
        (
            ["data.imsize=66", "ccsr.mode=consistency", "ccsr.scale_factor=4"],
            "must divide data.imsize 66, found 4; set data.imsize to 64 or 68",
        ),
        (["ccsr.elevation_bins=2", "data.vmin=0.3", "data.vmax=0.3"], "data.vmin below data.vmax"),
        (["ccsr.backbone=rrdb", "ccsr.scale_factor=8", "ray_sampler.rays_per_patch=64"], "rrdb backbone takes 2 or 4, found 8"),
        (["ccsr.rrdb.pretrained_path=x4.pth"], "set ccsr.backbone: rrdb"),
        (
            ["ccsr.num_views=3600", "ccsr.elevation_bins=360", "ccsr.code_size=256"],
            "339,738,624,000 numbers; at most 268,435,456",
        ),
        (["ccsr.rrdb.freeze=true"], "only the rrdb backbone can be frozen"),
        (["ccsr.rrdb.freeze=true", "ccsr.backbone=rrdb"], "would freeze a randomly initialised network"),
        (["discriminator.dual=true", "ccsr.mode=none"], "discriminator.dual: needs"),
    ],
)
def test_ccsr_keys_that_do_not_fit(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, overrides)


@pytest.mark.parametrize("setting", ["encoder.first_steps=0", "encoder.weight=0"])
def test_an_encoder_finds_gaussian_latents_alone(setting):
    with pytest.raises(
        ConfigError, match=r"gauss, not of uniform; set it to gauss, or encoder\.first_steps and encoder\.weight"
    ):
        load_config(None, [setting, "z_dist.type=uniform"])
    none = "encoder.first_steps=0", "encoder.weight=0"
    assert load_config(None, [*none, "z_dist.type=uniform"]).z_dist.type == "uniform"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "training.gan_type=wgan",
            "architecture: projected takes standard or hinge, found wgan",
        ),
        ("training.gan_type=relativistic", "takes standard or hinge, found relativistic"),
        ("training.reg_type=r1_r2", "takes r1, at real images' features, or none, found r1_r2"),
        ("training.reg_type=wgan_gp", "training.reg_type: discriminator.architecture: projected takes r1"),
        ("discriminator.dual=true", "judges three colours and opacity; set it to false"),
        ("discriminator.label_loss=MCE", "has no label heads; set it to none, or architecture to graf"),
        ("discriminator.reconstruction=1", "has features that are frozen; set it to 0, or architecture to graf"),
    ],
)
def test_what_a_projected_discriminator_does_not_take(override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, ["discriminator.architecture=projected", override])
    with pytest.raises(ConfigError, match=re.escape(message.replace("projected", "mixed"))):
        load_config(None, ["discriminator.architecture=mixed", override])
    assert load_config(None, ["discriminator.architecture=graf", override])


def test_the_frozen_network_sees_64_or_128_pixels():
    with pytest.raises(ConfigError, match="discriminator.feature_size: must be 64, 128 or auto, found 96"):
        load_config(None, ["discriminator.architecture=mixed", "discriminator.feature_size=96"])


def test_annealing_as_r3gan_does_needs_adam():
    with pytest.raises(ConfigError, match="training.anneal: r3gan changes Adam's second beta"):
        load_config(None, ["training.anneal=r3gan", "training.optimizer=rmsprop"])


@pytest.mark.parametrize(("enabled", "mode"), [("true", "consistency"), ("false", "none")])
def test_older_ccsr_sections_load(tmp_path, enabled, mode):
    (tmp_path / "old.yaml").write_text(
        f"ccsr: {{enabled: {enabled}, num_views: 8, scale_factor: 4, alpha_init: 1.0, alpha_decay: 0.00001}}"
    )
    ccsr = load_config(tmp_path / "old.yaml").ccsr
    assert (ccsr.mode, ccsr.num_views, ccsr.scale_factor, ccsr.alpha_decay) == (mode, 8, 4, 1e-5)


def test_run_dir_is_the_name_in_outdir():
    assert str(load_config(None, ["training.outdir=/runs", "expname=a"]).run_dir) == "/runs/a"


def test_a_config_that_lacks_a_key_says_which():
    raw = config_to_dict(load_config())
    del raw["nerf"]["chunk"]
    with pytest.raises(ConfigError, match="here: key 'nerf.chunk' is missing"):
        config_from_dict(raw, "here")


def test_merge_leaves_its_inputs_alone():
    base, layer = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}}
    assert merge(base, layer, "here") == {"a": {"b": 9, "c": 2}, "d": 3}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3}
    assert layer == {"a": {"b": 9}}


def test_overrides_are_yaml_and_may_hold_equals_signs():
    assert parse_override("training.outdir=a=b") == {"training": {"outdir": "a=b"}}
    assert parse_override("data.v=[0.1, 0.2]") == {"data": {"v": [0.1, 0.2]}}


def test_an_override_of_text_is_taken_as_it_is_unless_it_is_quoted():
    assert load_config(None, ["expname= run #2 "]).expname == "run #2"
    assert load_config(None, ["expname='run' # the second"]).expname == "run"
    assert load_config(None, ["data.datadir=my photos #1"]).data.datadir == ("my photos #1",)
    assert load_config(None, ["data.datadir=2024"]).data.datadir == ("2024",)
    assert load_config(None, ["data.datadir=*/cars"]).data.datadir == ("*/cars",)  # in YAML an alias
    assert load_config(None, ["data.datadir=[a, b]"]).data.datadir == ("a", "b")
    assert "data.datadir" in refusal("data.datadir=")


def test_configs_cannot_be_changed_after_they_were_checked():
    config = load_config()
    with pytest.raises(AttributeError):
        config.training.batch_size = 0


@pytest.mark.parametrize("value", ["!!map foo", "!!map [1]"])
def test_a_tag_that_lies_is_told_with_its_line(tmp_path, value):
    (tmp_path / "tagged.yaml").write_text(f"data:\n  fov: {value}\n")
    with pytest.raises(ConfigError, match=r"tagged\.yaml, line 2: not valid YAML \(expected a mapping node, but found"):
        load_config(tmp_path / "tagged.yaml")


def test_a_key_that_is_there_twice_is_told_with_its_line(tmp_path):
    (tmp_path / "twice.yaml").write_text("data:\n  fov: 32\n  near: 2\n  fov: 40\n")
    with pytest.raises(ConfigError, match=r"twice\.yaml, line 4: not valid YAML \(the key fov is there twice\)"):
        load_config(tmp_path / "twice.yaml")
    (tmp_path / "other.yaml").write_text("data:\n  fov: 32\nnerf:\n  fov: 40\n")
    with pytest.raises(ConfigError, match="unknown key"):
        load_config(tmp_path / "other.yaml")


@pytest.mark.parametrize(
    ("override", "given"),
    [
        ("data.datadir=x", True),
        ("data={datadir: x}", True),
        ("data.datadirs=x", False),
        ("data.imsize=8", False),
        ("da=1", False),
    ],
)
def test_whether_an_override_gives_a_key(override, given):
    assert is_set("data.datadir", ["training.seed=1", override]) == given


def test_an_override_of_a_flag_can_be_copied():
    text = FlagOverride("data.type=images", "--data_dir photos")
    for copied in (copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert copied == text and copied.typed == "--data_dir photos"


@pytest.mark.parametrize("text, value", [("500", 500), ("5min", "5min"), ("0.5 min", "0.5min"), ("0", 0)])
def test_a_cadence_is_in_steps_or_minutes(text, value):
    config = load_config(overrides=(f"training.fid_every={text}",))
    assert config.training.fid_every == value
    assert config_from_dict(config_to_dict(config), "again").training.fid_every == value
    assert minutes_of(value) == {"5min": 5, "0.5min": 0.5}.get(value)


@pytest.mark.parametrize("text", ["5 minutes", "0min", "-1min", "min", "1.5", "often"])
def test_a_cadence_of_neither_is_refused(text):
    with pytest.raises(ConfigError, match="training.fid_every: expected a number of steps, or minutes such as 5min"):
        load_config(overrides=(f"training.fid_every={text}",))


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ((), (4000, 4500, 4700)),
        (("training.max_steps=4000",), ()),
        (("encoder.first_steps=0", "encoder.weight=0"), (1500,)),
        (("training.max_steps=4600", "ccsr.unrefined_steps=300"), (4000, 4300, 4500)),
    ],
)
def test_the_time_per_step_changes_after_each_kind_of_steps(overrides, changes):
    config = load_config(None, overrides)
    assert config.pace_changes == changes
    first, last = (*changes, config.training.max_steps)[0], config.training.max_steps
    found = [config.same_pace_until(step) for step in (0, first - 1, last - 1, last)]
    assert found == [first, first, last, last]


def test_all_steps_of_a_pose_estimator_are_of_one_kind():
    assert PoseConfig().same_pace_until(0) == PoseConfig().training.max_steps
