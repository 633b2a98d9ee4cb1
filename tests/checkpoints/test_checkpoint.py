"""Checkpoints: a run continues bit for bit, nothing in a file is ever run, and official GRAF weights give GRAF's pictures."""

import dataclasses
import errno
import hashlib
import json
import logging
import math
import os
import pickle
import random
import zipfile
from pathlib import Path

import graf
from graf.camera import Labels, poses_at, sample_poses
from graf.checkpoints import generator_loading
from graf.checkpoints.checkpoint import NEWEST, backup_name, read_checkpoint, read_with_sha256, save_checkpoint
from graf.checkpoints.conditions import report_config_changes
from graf.checkpoints.generator_loading import checkpoint_config, load_generator, trained_checkpoint
from graf.checkpoints.record import _HashingFile, read_record, record_path, write_record
from graf.config import load_config
from graf.errors import CheckpointError, CheckpointWriteError, ConfigError, DamagedCheckpointError, GrafError
from graf.foreign.checkpoints import checkpoint_step
from graf.models.discriminators.convolutional import Discriminator
from graf.rays import camera_rays, full_grid
from graf.runtime.precision import AmpSettings
from graf.training.state import TrainState, load_checkpoint

import numpy as np
import pytest
import torch
import yaml
from halves import discriminator_step, generator_step

CPU = torch.device("cpu")
OFFICIAL = Path(__file__).parents[2].parent / "shared" / "fixtures" / "graf_official"


def new_state(config):
    return TrainState(config, CPU, n_classes=2, n_elevations=3)


def equal(a, b):
    """Whether two nested states are the same to the last bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b


# A run of ours -------------------------------------------------------------------------------------------------------


def train(state, steps):
    """The loop's own order, on batches that are a function of the step."""
    stats = {}
    for _ in range(steps):
        rng = torch.Generator().manual_seed(state.step)
        images = torch.rand(4, state.config.data.channels, 16, 16, generator=rng) * 2 - 1
        real, *fake = (
            Labels(
                sample_poses(4, state.config.data, draws),
                torch.randint(2, (4,), generator=draws),
                torch.randint(3, (4,), generator=draws),
            )
            for draws in (rng, state.rng, state.rng)
        )
        stats = discriminator_step(state, images, real, fake[0]) | generator_step(state, fake[1], images, real)
        state.advance()
    return stats


def test_the_hash_is_of_the_content_that_was_read_though_a_run_replaces_the_file(smoke, tmp_path, monkeypatch):
    state, path, load = new_state(smoke()), tmp_path / NEWEST, torch.load

    def save(step):
        state.step = step
        save_checkpoint(path, state.checkpoint())
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def load_before_another_save(*given, **options):
        monkeypatch.setattr(torch, "load", load)
        content = load(*given, **options)
        save(2)
        return content

    first = save(1)
    monkeypatch.setattr(torch, "load", load_before_another_save)
    content, sha256 = read_with_sha256(path)
    assert (checkpoint_step(content), sha256) == (1, first) and checkpoint_step(read_checkpoint(path)) == 2


EVERY_KIND_OF_RANDOMNESS = (
    "nerf.raw_noise_std=1", "nerf.perturb=true", "discriminator.hflip=true", "data.alpha=rgba",
    "discriminator.condition=class", "training.reg_type=wgan_gp",
    "training.reg_every=2", "training.lr_anneal_every=[2, 4]", "ray_sampler.min_scale=0.5", "ray_sampler.random_scale=true",
    "ray_sampler.random_shift=true", "discriminator.label_loss=MCE", "discriminator.spectral_norm=true",
    "discriminator.augment=true", "discriminator.reconstruction=1",
)  # fmt: skip


RESTORING = (
    "ccsr.mode=refine",
    "ray_sampler.rays_per_patch=64",
    "ccsr.learns_from=photographs",
    "nerf.density_activation=relu",
)


ANNEALED = ("training.anneal=r3gan", "training.anneal_steps=5", "training.lr_anneal_every=auto")
HEADS = (
    "training.reg_type=r1",
    "discriminator.label_loss=none",
    "discriminator.reconstruction=0",
    "discriminator.feature_size=64",
)
MIXED = ("discriminator.architecture=mixed", *HEADS)
PROJECTED = ("discriminator.architecture=projected", *HEADS)
ENCODING = ("encoder.weight=5",)
OF_FRONTS = ("encoder.finds_cameras=true", "data.camera_prior=front", "data.hflip=true", *ENCODING)


@pytest.mark.parametrize("use_amp", ["true", "false"])
@pytest.mark.parametrize(
    "settings",
    [("training.optimizer=adam",), ("training.optimizer=rmsprop",), RESTORING, PROJECTED, MIXED, ANNEALED, ENCODING, OF_FRONTS],
    ids=lambda x: x[0],
)
def test_n_steps_saved_and_continued_are_2n_steps(smoke, tmp_path, use_amp, settings):
    config = smoke(*EVERY_KIND_OF_RANDOMNESS, f"training.use_amp={use_amp}", *settings)
    straight = new_state(config)
    train(straight, 3)
    save_checkpoint(tmp_path / NEWEST, straight.checkpoint())
    stats = train(straight, 3)

    continued = new_state(dataclasses.replace(config, training=dataclasses.replace(config.training, seed=99)))
    torch.manual_seed(12345)
    load_checkpoint(tmp_path / NEWEST, continued)
    assert continued.step == 3
    assert equal(train(continued, 3), stats)
    assert equal(continued.state_dict(), straight.state_dict())


def test_the_check_above_can_fail(smoke, tmp_path):
    """Another random state is another run."""
    config = smoke(*EVERY_KIND_OF_RANDOMNESS)
    one, other = new_state(config), new_state(config)
    other.device_rng.manual_seed(12345)
    train(one, 2)
    train(other, 2)
    assert not equal(one.generator.state_dict(), other.generator.state_dict())


def test_the_random_states_of_python_and_numpy_go_on(smoke, tmp_path):
    """Nothing of ours draws from them, but a library may."""

    def draws():
        return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]

    state = new_state(smoke())
    random.gauss(0, 1), np.random.randn()  # each keeps a second number for the next call
    save_checkpoint(tmp_path / NEWEST, state.checkpoint())
    straight = draws()
    random.seed(1), np.random.seed(1)
    assert draws() != straight
    load_checkpoint(tmp_path / NEWEST, state)
    assert draws() == straight


def test_checkpoints_of_before_these_states_were_kept_are_read(smoke, tmp_path):
    state = new_state(smoke())
    save_checkpoint(tmp_path / NEWEST, state.checkpoint())
    content = read_checkpoint(tmp_path / NEWEST)
    del content["state"]["rng"]["python"], content["state"]["rng"]["numpy"]
    torch.save(content, tmp_path / "older.pt")
    before = random.getstate()
    load_checkpoint(tmp_path / "older.pt", state)
    assert random.getstate() == before


def test_a_changed_learning_rate_holds_from_the_checkpoint_on(smoke, tmp_path, caplog):
    """It is what the loop advises after bad steps, and the log says that it changed."""
    save_checkpoint(tmp_path / NEWEST, new_state(smoke("training.lr_g=0.01")).checkpoint())
    state = new_state(smoke("training.lr_g=0.002"))
    with caplog.at_level(logging.INFO, "graf"):
        load_checkpoint(tmp_path / NEWEST, state)
    assert "training.lr_g changed since the checkpoint: 0.01 -> 0.002" in caplog.text
    assert state.optimizer_g.param_groups[0]["lr"] == 0.002


def test_changed_milestones_hold_from_the_checkpoint_on(smoke, tmp_path):
    save_checkpoint(tmp_path / NEWEST, new_state(smoke("training.lr_g=0.01", "training.lr_anneal_every=[1000]")).checkpoint())
    state = new_state(smoke("training.lr_g=0.01", "training.lr_anneal_every=[1]", "training.lr_anneal=0.5"))
    load_checkpoint(tmp_path / NEWEST, state)
    train(state, 1)
    assert state.optimizer_g.param_groups[0]["lr"] == pytest.approx(0.005)


def test_a_run_may_change_its_number_format(smoke, tmp_path):
    """From bfloat16, without loss scaling, to a card with float16 only."""
    save_checkpoint(tmp_path / NEWEST, new_state(smoke("training.use_amp=true")).checkpoint())
    state = new_state(smoke("training.use_amp=true"))
    state.amp = AmpSettings("cpu", torch.float16)
    load_checkpoint(tmp_path / NEWEST, state)
    assert state.scaler_g.is_enabled()


def test_another_optimizer_is_an_error_or_starts_afresh(smoke, tmp_path):
    state = new_state(smoke("training.optimizer=rmsprop"))
    train(state, 1)
    save_checkpoint(tmp_path / NEWEST, state.checkpoint())
    other = new_state(smoke("training.optimizer=adam"))
    try:
        load_checkpoint(tmp_path / NEWEST, other)
    except CheckpointError:
        return
    train(other, 1)
    assert isinstance(other.optimizer_g, torch.optim.Adam)
    assert other.optimizer_g.param_groups[0]["betas"] == (0.0, 0.99)


def test_load_generator_is_the_moving_average_ready_for_pictures(smoke, tmp_path, labels):
    config = smoke("discriminator.condition=class", "data.box=none", "data.alpha=ignore")
    state = new_state(config)
    train(state, 1)
    save_checkpoint(tmp_path / NEWEST, state.checkpoint())
    from_file, from_folder = graf.load_generator(tmp_path / NEWEST), graf.load_generator(str(tmp_path))
    assert equal(from_file.state_dict(), state.generator_ema.state_dict())
    assert not equal(from_file.state_dict(), state.generator.state_dict())
    assert equal(from_folder.state_dict(), from_file.state_dict())
    assert from_file.config == config
    assert not from_file.training
    assert not any(p.requires_grad for p in from_file.parameters())
    latents = torch.ones(4, 8)
    pictures = (
        g.render(latents, labels.pose_c2w, class_index=labels.class_index).images for g in (from_file, state.generator_ema)
    )
    assert torch.equal(*pictures)


def test_a_checkpoint_knows_its_config_and_step(smoke, tmp_path):
    state = new_state(smoke("nerf.netwidth=12"))
    state.step = 41
    path = tmp_path / backup_name(41)
    save_checkpoint(path, state.checkpoint())
    content = read_checkpoint(path)
    assert checkpoint_step(content) == 41
    assert checkpoint_config(path, content) == state.config
    assert path.name == "model_00000041.pt"
    assert sorted(path.parent.iterdir()) == [path, record_path(path)]


def test_a_record_tells_what_was_written(smoke, tmp_path):
    path, state = tmp_path / NEWEST, new_state(smoke())
    state.step, state.best = 41, {"value": 3.5, "step": 40, "terms": {"metric": "kid"}}
    state.note_losses({"loss_d": 0.5, "loss_g": math.nan, "opacity": 0.1})
    state.note_losses({"loss_d": 0.6})
    state.note_losses({"loss_d": -math.inf})  # of a step that was skipped
    save_checkpoint(path, state.checkpoint(), {"loss_d": 0.6, "loss_g": math.nan})
    record = json.loads((tmp_path / "model.pt.json").read_text())
    assert record["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (record["size"], record["step"]) == (path.stat().st_size, 41)
    lowest = {"loss_d": {"value": 0.5, "step": 41}}
    assert record["metrics"] == {"best": state.best, "lowest_losses": lowest, "scalars": {"loss_d": 0.6, "loss_g": None}}
    resumed = new_state(smoke())
    load_checkpoint(path, resumed)
    assert resumed.lowest_losses == lowest
    assert record["versions"]["torch"] == torch.__version__
    assert read_checkpoint(path)["versions"] == record["versions"]
    config_sha256 = record["config_sha256"]
    save_checkpoint(path, new_state(smoke("training.lr_g=0.01")).checkpoint())
    assert read_record(path).config_sha256 != config_sha256


def test_what_changed_in_the_config_is_said(smoke, tmp_path, caplog):
    save_checkpoint(tmp_path / NEWEST, new_state(smoke()).checkpoint())
    with caplog.at_level(logging.INFO, "graf"):
        load_checkpoint(tmp_path / NEWEST, new_state(smoke()))
        assert caplog.text == ""
        load_checkpoint(tmp_path / NEWEST, new_state(smoke("training.max_steps=7", "expname=other")))
    assert "training.max_steps changed since the checkpoint: 20 -> 7" in caplog.text
    assert "expname changed since the checkpoint: smoke -> other" in caplog.text
    assert len(caplog.records) == 2


# Files that cannot be taken --------------------------------------------------------------------------------------------


def refusal(path, state=None):
    """The message of both ways in."""
    with pytest.raises(CheckpointError) as caught:
        load_generator(path)
    if state is not None:
        with pytest.raises(CheckpointError):
            load_checkpoint(path, state)
    return str(caught.value)


def flip_a_bit(path, where=0.5):
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("recorded", [True, False])
def test_one_wrong_bit_is_damage_with_a_record_and_without(smoke, tmp_path, recorded):
    """torch.load by itself takes it."""
    path, state = tmp_path / NEWEST, new_state(smoke())
    save_checkpoint(path, state.checkpoint())
    if not recorded:
        record_path(path).unlink()
    flip_a_bit(path)
    torch.load(path, weights_only=True)
    message = refusal(path, state)
    assert f"{path}: damaged" in message
    assert ("model.pt.json" if recorded else "checksums inside it") in message


def test_a_wrong_bit_in_the_table_of_contents_is_no_traceback(smoke, tmp_path):
    """zipfile raises errors of many kinds for it."""
    path = tmp_path / NEWEST
    save_checkpoint(path, new_state(smoke()).checkpoint())
    record_path(path).unlink()
    whole, found = path.read_bytes(), set()
    entry = whole.rindex(b"PK\x01\x02")
    for where in range(entry, entry + 60):
        content = bytearray(whole)
        content[where] ^= 0x81
        path.write_bytes(content)
        try:
            read_checkpoint(path)
        except DamagedCheckpointError as error:
            found.add(str(error))
    assert any("the checksums inside it" in message for message in found)


def test_a_state_that_is_none_is_damage(tmp_path):
    torch.save({"format": "graf_ccsr 1", "config": {}, "state": 5}, tmp_path / NEWEST)
    with pytest.raises(DamagedCheckpointError, match="without its config or step"):
        read_checkpoint(tmp_path / NEWEST)


@pytest.mark.parametrize("record", ["none", "of another step", "no JSON"])
def test_a_whole_file_without_its_record_is_taken_and_said(smoke, tmp_path, caplog, record):
    path, state = tmp_path / NEWEST, new_state(smoke())
    state.step = 7
    save_checkpoint(path, state.checkpoint())
    if record == "of another step":
        write_record(path, dataclasses.replace(read_record(path), step=6, sha256="0" * 64))
    elif record == "no JSON":
        record_path(path).write_text("{")
    else:
        record_path(path).unlink()
    with caplog.at_level(logging.INFO, "graf"):
        assert checkpoint_step(read_checkpoint(path)) == 7
    assert ("step 6, another file" if record == "of another step" else "no record beside it") in caplog.text


@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_a_truncated_file_is_an_error_that_names_it(smoke, tmp_path, keep):
    state = new_state(smoke())
    path = tmp_path / NEWEST
    save_checkpoint(path, state.checkpoint())
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    before = state.state_dict()["generator"]
    size = path.stat().st_size
    what = f"is cut off or damaged ({size:,} bytes)" if size else "is empty"
    said = refusal(path, state)
    assert said == f"{path}: {what}; another copy of it is needed" or (keep == 1 and "not a checkpoint, damaged" in said)
    assert equal(before, state.state_dict()["generator"])


class Intruder:
    """Unpickled, it opens a file for writing."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return open, (str(self.marker), "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_that_wants_to_run_code_is_refused_unrun(smoke, tmp_path, zipped):
    marker, path = tmp_path / "was here", tmp_path / "evil.pt"
    torch.save({"format": "graf_ccsr 1", "it": 0, "generator": Intruder(marker)}, path, _use_new_zipfile_serialization=zipped)
    message = refusal(path, new_state(smoke()))
    assert not marker.exists()
    assert str(path) in message
    assert "contains pickled Python objects" in message
    torch.load(path, weights_only=False)["generator"].close()
    assert marker.exists()  # it would have run


def test_a_size_that_auto_was_when_the_run_began_is_no_change(smoke, caplog):
    config, saved = smoke("discriminator.architecture=mixed", "discriminator.feature_size=64"), {"discriminator": {}}
    caplog.set_level("INFO", logger="graf")
    for before, told in (("auto", False), (128, True)):
        saved["discriminator"]["feature_size"] = before
        report_config_changes(saved, config)
        assert ("feature_size changed" in caplog.text) == told


def test_a_bare_pickle_is_refused_unrun(tmp_path):
    marker, path = tmp_path / "was here", tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps(Intruder(marker)))
    assert str(path) in refusal(path)
    assert not marker.exists()


def test_another_architecture_is_an_error_that_names_the_file(smoke, tmp_path):
    path = tmp_path / NEWEST
    save_checkpoint(path, new_state(smoke("nerf.netwidth=12")).checkpoint())
    wider = smoke("nerf.netwidth=16")
    with pytest.raises(CheckpointError, match="does not fit this config") as caught:
        load_checkpoint(path, new_state(wider))
    assert str(path) in str(caught.value) and "or start a new run with --set expname=other" in str(caught.value)
    with pytest.raises(CheckpointError, match="does not fit this config") as caught:
        load_generator(path, wider)
    assert str(path) in str(caught.value) and "new run" not in str(caught.value)
    assert len(str(caught.value).splitlines()) < 10


def test_a_discriminator_that_sees_no_opacity_is_not_one_that_does(smoke, tmp_path):
    save_checkpoint(tmp_path / NEWEST, new_state(smoke()).checkpoint())
    with pytest.raises(CheckpointError, match=r"data\.alpha +rgba +ignore"):
        load_checkpoint(tmp_path / NEWEST, new_state(smoke("data.alpha=rgba")))


def test_a_checkpoint_of_before_opacity_was_judged_ignores_it(smoke, tmp_path, monkeypatch):
    content = new_state(smoke()).checkpoint().content()
    del content["config"]["data"]["alpha"]
    monkeypatch.setattr(generator_loading, "Config", lambda: smoke("data.alpha=rgba"))
    assert checkpoint_config(tmp_path / NEWEST, content).data.alpha == "ignore"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("std::bad_alloc")])
def test_out_of_memory_while_a_state_is_loaded_is_raised_as_it_is(smoke, tmp_path, monkeypatch, error):
    path, state = tmp_path / NEWEST, new_state(smoke())
    save_checkpoint(path, state.checkpoint())
    monkeypatch.setattr(TrainState, "load_state_dict", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(type(error)) as caught:
        load_checkpoint(path, state)
    assert caught.value is error


@pytest.mark.parametrize(
    ("content", "words"),
    [([1, 2], "found a list"), ({"model": {}, "epoch": 3}, "its keys are model, epoch"), (torch.zeros(2), "found a Tensor")],
)
def test_a_file_of_something_else_is_an_error_that_says_what(smoke, tmp_path, content, words):
    path = tmp_path / "other.pt"
    torch.save(content, path)
    (tmp_path / "config.yaml").write_text("expname: x\n")
    message = refusal(path, new_state(smoke()))
    assert str(path) in message
    assert words in message


def test_a_missing_file_and_an_empty_run_are_errors(tmp_path):
    assert refusal(tmp_path / "nothing.pt") == f"{tmp_path / 'nothing.pt'}: no such checkpoint"
    assert refusal(tmp_path).startswith(f"{tmp_path}: no trained run here (model.pt is missing); train one")
    (tmp_path / "toy_cars.safetensors").touch()
    cars = tmp_path / "toy_cars.safetensors"
    assert refusal(tmp_path).startswith(f"{tmp_path}: no trained run here (model.pt is missing); --checkpoint takes {cars};")
    assert refusal(tmp_path / "toy_car.safetensors").endswith(f"no such checkpoint; did you mean {cars}?")
    with pytest.raises(CheckpointError, match="is a folder; name a checkpoint in it"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="toy_cars.safetensors: is a file, where the folder of a run is expected"):
        trained_checkpoint(cars)


def test_weights_of_a_run_that_diverged_are_not_shown(smoke, tmp_path):
    path, state = tmp_path / "model.pt", new_state(smoke())
    with torch.no_grad():
        next(state.generator_ema.parameters()).fill_(torch.nan)
    save_checkpoint(path, state.checkpoint())
    with pytest.raises(
        CheckpointError, match=r"model\.pt: weights of its generator are not finite.*take an earlier checkpoint"
    ):
        graf.load_generator(path)


def test_the_newest_runs_below_a_folder_or_beside_it_are_suggested(tmp_path):
    (tmp_path / "default").mkdir()

    def train(name, when):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / NEWEST).touch()
        os.utime(tmp_path / name / NEWEST, (when, when))

    for when, name in enumerate(("chairs", "boats", "cars")):
        train(name, when)
    three = ", ".join(str(tmp_path / name) for name in ("cars", "boats", "chairs"))
    for folder in ("default", "."):
        assert refusal(tmp_path / folder).endswith(f"; train one with train.py, or name another run: {three}")
    for when in range(3, 6):
        train(f"run{when}", when)
    five = ", ".join(str(tmp_path / name) for name in ("run5", "run4", "run3", "cars", "boats"))
    assert refusal(tmp_path).endswith(f"or name another run: {five}, ...")
    for number in (0, 1):
        train(f"cameras/round_{number}/generator", number)
    last, first = (tmp_path / "cameras" / f"round_{number}" / "generator" for number in (1, 0))
    assert refusal(tmp_path / "cameras").endswith(f"or name another run: {last}, {first}")


def test_a_device_that_is_none_is_said(smoke, tmp_path):
    save_checkpoint(tmp_path / NEWEST, new_state(smoke()).checkpoint())
    with pytest.raises(GrafError, match="--device gpu: expected auto, cpu, cuda, cuda:N or mps"):
        load_generator(tmp_path, device="gpu")
    for device in ("cpu", torch.device("cpu")):
        assert load_generator(tmp_path, device=device).background.device.type == "cpu"


def test_a_failed_write_keeps_the_checkpoint_before_it(smoke, tmp_path, monkeypatch):
    path, state = tmp_path / NEWEST, new_state(smoke())
    save_checkpoint(path, state.checkpoint())
    before = path.read_bytes()

    def disk_full(self, block):
        if self._stream.tell():
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._stream.write(block[:4])

    monkeypatch.setattr(_HashingFile, "write", disk_full)
    with pytest.raises(CheckpointWriteError, match="cannot be written .*No space left on device"):
        save_checkpoint(path, state.checkpoint())
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path, record_path(path)]
    assert read_record(path).sha256 == hashlib.sha256(before).hexdigest()


def test_a_disk_that_gives_back_other_bytes_is_a_failed_write(smoke, tmp_path, monkeypatch):
    path, state = tmp_path / NEWEST, new_state(smoke())
    save_checkpoint(path, state.checkpoint())
    before = path.read_bytes()
    monkeypatch.setattr(_HashingFile, "write", lambda self, block: self._stream.write(bytes(len(block))))
    with pytest.raises(CheckpointWriteError, match="reads back differently"):
        save_checkpoint(path, state.checkpoint())
    assert path.read_bytes() == before


def test_an_interruption_in_the_middle_of_a_write_is_one(smoke, tmp_path, monkeypatch):
    """And not torch's RuntimeError about a file position."""

    def interrupted(self, block):
        raise KeyboardInterrupt

    monkeypatch.setattr(_HashingFile, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path / NEWEST, new_state(smoke()).checkpoint())
    assert list(tmp_path.iterdir()) == []


# The official GRAF -----------------------------------------------------------------------------------------------------

DEPTH, WIDTH, SIDE, SAMPLES, Z, APPEARANCE = 6, 8, 5, 7, 4, 2


def graf_yaml(n_importance=0, viewdirs=True, white=True):
    return {
        "expname": "arithmetic",
        "data": {
            "type": "carla", "datadir": "x", "imsize": SIDE + 3, "white_bkgd": white, "near": 1.0, "far": 3.0, "radius": 2.0,
            "fov": 40.0,
        },
        "nerf": {
            "i_embed": 0, "netdepth": DEPTH, "netwidth": WIDTH, "netdepth_fine": DEPTH, "netwidth_fine": WIDTH, "multires": 2,
            "multires_views": 1, "N_samples": SAMPLES, "N_importance": n_importance, "use_viewdirs": viewdirs, "perturb": 1.0,
        },
        "z_dist": {"dim": Z, "dim_appearance": APPEARANCE},
        "discriminator": {"ndf": 2},
        "ray_sampler": {"N_samples": 1024},
        "training": {"reg_type": "real", "lr_anneal_every": "100,200", "lr_g": 0.008, "lr_anneal": 0.5},
    }  # fmt: skip


def wave(seed, *shape):
    """Weights by a formula: sin(1 + seed), sin(2 + seed), ... , scaled by the root of what they sum over."""
    n = math.prod(shape)
    return torch.sin(torch.arange(1, n + 1, dtype=torch.float64) * 1.7 + seed).view(shape).float() / shape[-1] ** 0.5 * 2


def graf_field(seed, viewdirs=True):
    points, views = 3 + 6 * 2 + Z - APPEARANCE, (3 + 6 if viewdirs else 0) + APPEARANCE
    shapes = {f"pts_linears.{i}": (WIDTH, WIDTH) for i in range(DEPTH)}
    shapes |= {
        "pts_linears.0": (WIDTH, points),
        "pts_linears.5": (WIDTH, WIDTH + points),
        "views_linears.0": (WIDTH // 2, WIDTH + views),
        "feature_linear": (WIDTH, WIDTH),
        "alpha_linear": (1, WIDTH),
        "rgb_linear": (3, WIDTH // 2),
    }
    weights = {}
    for i, (name, shape) in enumerate(shapes.items()):
        weights[f"{name}.weight"], weights[f"{name}.bias"] = wave(seed + i, *shape), wave(seed + 100 + i, shape[0]) * 0.2
    weights["alpha_linear.bias"] -= 0.3
    return weights


def graf_checkpoint(folder, n_importance=0, viewdirs=True, average=True, **extra):
    """A file in GRAF's own layout, with its config beside it."""
    config = graf_yaml(n_importance, viewdirs)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    discriminator = Discriminator(load_config(folder / "config.yaml"))
    weights = {name: wave(i, *value.shape) for i, (name, value) in enumerate(discriminator.state_dict().items())}
    content = {"generator": graf_field(1, viewdirs), "discriminator": weights}
    if n_importance:
        content["generator_fine"] = graf_field(2, viewdirs)
    if average:
        content |= {
            f"{name}_test": graf_field(seed, viewdirs)
            for name, seed in (("generator", 3), ("generator_fine", 4))
            if name in content
        }
    content |= {"g_optimizer": {"state": {}, "param_groups": []}, "d_optimizer": {"state": {}, "param_groups": []}}
    content |= {"it": 123, "epoch_idx": 5, "fid_best": math.inf, "kid_best": math.inf} | extra
    torch.save(content, folder / "model.pt")
    return folder / "model.pt"


def reference_picture(weights, fine, n_importance, latent, pose, viewdirs, white=True):
    """One image by loops over pixels and samples, in float64: (rgb, disparity, opacity), each 0 to 1, as GRAF has them."""
    numbers = [{k: v.double().numpy() for k, v in w.items()} if w else None for w in (weights, fine)]
    latent, pose = latent.double().numpy(), pose.double().numpy()
    shape, appearance = latent[: Z - APPEARANCE], latent[Z - APPEARANCE :]
    focal, white = SIDE / 2 / math.tan(math.radians(20)), float(white)

    def encode(x, n):
        return np.concatenate([x] + [f(2**k * x) for k in range(n) for f in (np.sin, np.cos)])

    def query(w, point, direction):
        def linear(name, x):
            return w[f"{name}.weight"] @ x + w[f"{name}.bias"]

        inputs = h = np.concatenate([encode(point, 2), shape])
        for i in range(DEPTH):
            h = np.maximum(linear(f"pts_linears.{i}", h), 0)
            if i == 4:
                h = np.concatenate([inputs, h])
        view = [encode(direction, 1)] if viewdirs else []
        h_colour = np.maximum(linear("views_linears.0", np.concatenate([linear("feature_linear", h), *view, appearance])), 0)
        return linear("alpha_linear", h)[0], 1 / (1 + np.exp(-linear("rgb_linear", h_colour)))

    def march(w, depths, ray):
        light, weights_, rgb = 1.0, [], np.zeros(3)
        for depth, following in zip(depths, [*depths[1:], None], strict=True):
            length = 1e10 if following is None else (following - depth) * np.linalg.norm(ray)
            raw, colour = query(w, pose[:, 3] + depth * ray, ray / np.linalg.norm(ray))
            alpha = 1 - np.exp(-max(raw, 0.0) * length)
            weights_.append(light * alpha)
            rgb = rgb + weights_[-1] * colour
            light *= 1 - alpha
        return np.array(weights_), rgb

    rows = []
    for row in range(SIDE):
        for column in range(SIDE):
            ray = pose[:, :3] @ np.array([(column - SIDE / 2) / focal, -(row - SIDE / 2) / focal, -1.0])
            depths = np.linspace(1.0, 3.0, SAMPLES)
            weights_, rgb = march(numbers[0], depths, ray)
            if n_importance:
                probability = weights_[1:-1] + 1e-5
                cumulative = np.concatenate([[0.0], np.cumsum(probability / probability.sum())])
                middles = (depths[1:] + depths[:-1]) / 2
                further = np.interp(np.linspace(0, 1, n_importance), cumulative, middles)
                depths = np.sort(np.concatenate([depths, further]))
                weights_, rgb = march(numbers[1], depths, ray)
            opacity = weights_.sum()
            depth = (weights_ * depths).sum() / opacity if opacity > 1e-10 else 0.0
            rows.append([*(rgb + white * (1 - opacity)), 1 / max(depth, 1e-10), opacity])
    return torch.tensor(np.array(rows)).float().T.unflatten(-1, (SIDE, SIDE)).split([3, 1, 1])


@pytest.mark.parametrize(("n_importance", "viewdirs"), [(0, True), (5, True), (0, False)])
def test_graf_weights_give_grafs_picture(tmp_path, n_importance, viewdirs):
    generator = graf.load_generator(graf_checkpoint(tmp_path, n_importance, viewdirs))
    latents = torch.sin(torch.arange(2 * Z) * 2.0).view(2, Z)
    poses = poses_at(torch.tensor([10.0, 200.0]), torch.tensor([0.3, 0.45]), 2.0)
    rendering = generator.render(latents, poses, resolution=SIDE)
    fine = graf_field(4, viewdirs) if n_importance else None
    for i in range(2):
        rgb, disparity, opacity = reference_picture(graf_field(3, viewdirs), fine, n_importance, latents[i], poses[i], viewdirs)
        torch.testing.assert_close((rendering.images[i] + 1) / 2, rgb, atol=1e-4, rtol=0)
        torch.testing.assert_close(rendering.opacity[i], opacity, atol=1e-4, rtol=0)
        torch.testing.assert_close(rendering.disparity[i], disparity, atol=1e-3, rtol=1e-3)
    assert rendering.images.std() > 0.05  # there is something to see
    assert rendering.opacity.max() > 0.5


def test_without_a_moving_average_the_generator_itself_is_taken(tmp_path):
    path = graf_checkpoint(tmp_path, average=False)
    state = load_generator(path).field.state_dict()
    assert equal(dict(state), {name: graf_field(1)[name] for name in state})


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("n_importance", [0, 5])
def test_training_goes_on_from_grafs_weights(tmp_path, caplog, average, n_importance):
    path = graf_checkpoint(tmp_path, n_importance, average=average)
    state = TrainState(load_config(tmp_path / "config.yaml"), CPU)
    with caplog.at_level(logging.WARNING, "graf"):
        load_checkpoint(path, state)
    assert "the optimizers start from scratch" in caplog.text
    content = read_checkpoint(path)
    assert equal(dict(state.generator.field.state_dict()), content["generator"])
    assert equal(dict(state.generator_ema.field.state_dict()), content["generator_test" if average else "generator"])
    assert equal(dict(state.discriminator.state_dict()), content["discriminator"])
    if n_importance:
        assert equal(dict(state.generator.field_fine.state_dict()), content["generator_fine"])
    assert state.step == checkpoint_step(content) == 123


@pytest.mark.parametrize(("it", "rate"), [(99, 0.008), (123, 0.004), (5000, 0.002)])  # milestones 100 and 200
def test_the_learning_rate_is_that_of_grafs_step(tmp_path, it, rate):
    path = graf_checkpoint(tmp_path, it=it)
    state = TrainState(load_config(tmp_path / "config.yaml"), CPU)
    load_checkpoint(path, state)
    assert state.optimizer_g.param_groups[0]["lr"] == pytest.approx(rate)


def test_scores_that_are_numpy_numbers_are_plain_values(tmp_path):
    """GRAF saves the best FID as it computes it, a numpy.float64."""
    path = graf_checkpoint(tmp_path, fid_best=np.float64(31.4), kid_best=np.float64(0.02))
    assert load_generator(path).field.alpha_linear.bias.shape == (1,)


def test_scores_that_an_older_numpy_wrote_are_plain_values(tmp_path):
    """The published checkpoints are of 2020, when numpy's scalars lay in numpy.core."""
    path = graf_checkpoint(tmp_path, fid_best=np.float64(31.4), kid_best=np.float64(0.02))
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    pickled = next(name for name in members if name.endswith("data.pkl"))
    assert b"cnumpy._core.multiarray\nscalar\n" in members[pickled]
    members[pickled] = members[pickled].replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert read_checkpoint(path)["fid_best"] == 31.4


def test_grafs_weights_take_the_config_that_is_named(tmp_path):
    path = graf_checkpoint(tmp_path)
    (tmp_path / "config.yaml").rename(tmp_path / "elsewhere.yaml")
    assert load_generator(path, tmp_path / "elsewhere.yaml").config == load_config(tmp_path / "elsewhere.yaml")
    with pytest.raises(ConfigError, match="no such config file"):
        load_generator(path, tmp_path / "nowhere.yaml")


def test_grafs_weights_of_another_width_are_an_error(tmp_path):
    path = graf_checkpoint(tmp_path)
    config = load_config(tmp_path / "config.yaml", ["nerf.netwidth=10"])
    with pytest.raises(CheckpointError, match="does not fit this config") as caught:
        load_generator(path, config)
    assert str(path) in str(caught.value)


official = pytest.mark.skipif(not OFFICIAL.exists(), reason="needs ../shared/fixtures")


@official
def test_official_pictures_to_1e_4():
    expected = np.load(OFFICIAL / "expected.npz")
    generator = graf.load_generator(OFFICIAL / "model.pt")
    rendering = generator.render(torch.from_numpy(expected["latents"]), torch.from_numpy(expected["poses"]))
    torch.testing.assert_close(rendering.images, torch.from_numpy(expected["rgb"]), atol=1e-4, rtol=0)
    torch.testing.assert_close(rendering.opacity * 2 - 1, torch.from_numpy(expected["acc"]), atol=1e-4, rtol=0)
    disparity, wanted = rendering.disparity * 2 - 1, torch.from_numpy(expected["disp"])
    empty = wanted > 1e9
    assert torch.equal(disparity > 1e9, empty)
    assert (disparity[empty] == 2e10 - 1).all()
    torch.testing.assert_close(disparity[~empty], wanted[~empty], atol=1e-4, rtol=0)
    assert (~empty).sum() > 0


@official
def test_official_rays():
    expected, config = np.load(OFFICIAL / "expected.npz"), load_config(OFFICIAL / "config.yaml")
    poses = torch.from_numpy(expected["poses"])
    for actual, name in zip(camera_rays(poses, full_grid(24), 24, config.data), ("rays_o", "rays_d"), strict=True):
        torch.testing.assert_close(actual, torch.from_numpy(expected[name]), atol=1e-5, rtol=0)


@official
def test_official_logits_to_1e_4():
    expected = np.load(OFFICIAL / "expected.npz")
    state = TrainState(load_config(OFFICIAL / "config.yaml"), CPU)
    load_checkpoint(OFFICIAL / "model.pt", state)
    assert state.step == 1234
    with torch.no_grad():
        logits = state.discriminator.eval()(torch.from_numpy(expected["patch"])).logits
    torch.testing.assert_close(logits, torch.from_numpy(expected["logits"]).flatten(), atol=1e-4, rtol=0)
