"""Exported generators: the same images bit for bit, nothing else in the file, and anything that is none is refused."""

import hashlib
import json
import logging
from pathlib import Path

import eval as evaluation
import graf
from graf.checkpoints.checkpoint import FORMAT, read_checkpoint, read_with_sha256, save_checkpoint
from graf.checkpoints.export import class_names, data_fingerprint, write_export
from graf.checkpoints.generator_loading import checkpoint_config
from graf.config import config_to_dict
from graf.errors import CheckpointError
from graf.foreign.checkpoints import checkpoint_step
from graf.models.generator import Generator
from graf.training.state import TrainState, initialise_from, load_checkpoint

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

CPU = torch.device("cpu")
VARIANTS = {
    "film": (
        "nerf.conditioning=film",
        "nerf.raw_noise_std=1",
    ),
    "fine": ("nerf.conditioning=film", "nerf.importance_samples_per_ray=4", "nerf.netdepth_fine=1", "nerf.netwidth_fine=8"),
    "refined": ("ccsr.mode=refine", "ray_sampler.rays_per_patch=64"),
    "boxed": ("data.box=[-0.9,-0.5,-0.4,0.9,0.5,0.4]",),
    "triplane": ("nerf.conditioning=triplane", "data.box=[-0.9,-0.5,-0.4,0.9,0.5,0.4]"),
    "concat": ("nerf.conditioning=concat", "nerf.use_viewdirs=true", "nerf.density_activation=relu"),
}


@pytest.fixture
def exported(smoke, tmp_path):
    path = tmp_path / "cars.safetensors"
    write_export(path, Generator(smoke()), step=12)
    return path


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_images_bit_for_bit(smoke, labels, tmp_path, variant):
    """From the training checkpoint and from the file exported of it; the average is what goes out."""
    state = TrainState(smoke(*VARIANTS[variant]), CPU, 2, 3)
    with torch.no_grad():
        for parameter in state.generator_ema.parameters():
            parameter.add_(0.01)
    save_checkpoint(tmp_path / "model.pt", state.checkpoint())
    original = graf.load_generator(tmp_path / "model.pt")
    write_export(tmp_path / "cars.safetensors", original, step=3)
    loaded = graf.load_generator(tmp_path / "cars.safetensors")
    latents = original.sample_latents(4, torch.Generator().manual_seed(1))
    for name in ("images", "depth", "opacity"):
        one, other = (
            getattr(g.render(latents, labels.pose_c2w, class_index=labels.class_index), name) for g in (original, loaded)
        )
        assert torch.equal(one, other)
    assert loaded.config == original.config
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    assert not torch.equal(next(loaded.parameters()), next(state.generator.parameters()))


def test_the_file_holds_weights_and_config_and_nothing_else(smoke, tmp_path):
    generator = Generator(smoke("expname=chairs"), n_classes=3)
    path = write_export(tmp_path / "new folder" / "chairs.safetensors", generator, step=77)
    with safe_open(path, framework="pt") as file:
        assert set(file.keys()) == generator.state_dict().keys()
        metadata = file.metadata()
    assert metadata.keys() == {"format", "config", "n_classes", "step"}
    assert json.loads(metadata["config"]) == config_to_dict(generator.config)
    assert (metadata["n_classes"], metadata["step"]) == ("3", "77")
    assert list(path.parent.iterdir()) == [path]
    (tmp_path / "plain").write_text("")
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode  # whoever may read other files may read it


def test_the_data_it_was_trained_on_is_told_where_that_is_known(smoke, tmp_path):
    state = TrainState(smoke(), CPU)
    state.data_fingerprint = "0a1b"
    save_checkpoint(tmp_path / "model.pt", state.checkpoint())
    known = data_fingerprint(read_checkpoint(tmp_path / "model.pt"))
    told = write_export(tmp_path / "a.safetensors", Generator(smoke()), 1, known)
    untold = write_export(tmp_path / "b.safetensors", Generator(smoke()), 1)
    assert [data_fingerprint(read_checkpoint(path)) for path in (told, untold)] == ["0a1b", ""]
    assert data_fingerprint({"state": [1], "data_fingerprint": 3}) == ""  # other people's


def test_names_of_classes_go_with_it_but_not_those_of_other_classes(smoke, tmp_path):
    generator = Generator(smoke(), n_classes=2)
    generator.class_names = ("cars", "chairs")
    path = write_export(tmp_path / "a.safetensors", generator, 1)
    assert graf.load_generator(path).class_names == ("cars", "chairs")
    assert class_names(read_checkpoint(path), 3) == ()


def test_the_same_again_leaves_the_file_as_it_is(smoke, exported):
    """So that its digest, by which measurements know it, is still the one that they name."""
    same = graf.load_generator(exported)  # with what was open in its config decided
    write_export(exported, same, step=12)
    before = exported.stat().st_ino
    assert write_export(exported, same, step=12) == exported and exported.stat().st_ino == before
    write_export(exported, same, step=13)
    assert exported.stat().st_ino != before and read_checkpoint(exported)["step"] == 13
    with torch.no_grad():
        next(same.parameters()).add_(1)
    write_export(exported, same, step=13)
    assert torch.equal(next(graf.load_generator(exported).parameters()), next(same.parameters()))


@pytest.mark.parametrize("format", [None, "pt"])
def test_a_file_that_no_export_wrote_is_never_replaced(smoke, tmp_path, format):
    """Neither text nor other people's tensors."""
    path = tmp_path / "old.safetensors"
    path.write_text("hi")
    if format:
        save_file({"a": torch.ones(2)}, path, {"format": format})
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="old.safetensors: .* not a complete earlier export; move it away"):
        write_export(path, Generator(smoke()), step=1)
    assert path.read_bytes() == before


def test_an_export_that_is_replaced_by_another_is_told(exported, caplog):
    same = graf.load_generator(exported)
    with caplog.at_level("INFO", "graf"):
        write_export(exported, same, step=13)
        write_export(exported, same, step=13)  # nothing is replaced
    assert caplog.messages == [f"{exported}: replaces an export of other weights or settings, of step 12"]


def test_it_is_read_as_a_checkpoint(smoke, exported, caplog):
    content = read_checkpoint(exported)
    assert checkpoint_step(content) == 12
    assert read_with_sha256(exported)[1] == hashlib.sha256(exported.read_bytes()).hexdigest()
    assert checkpoint_config(exported, content) == smoke()
    state = TrainState(smoke(), CPU)
    with pytest.raises(CheckpointError, match="holds no discriminator"):
        load_checkpoint(exported, state)
    with caplog.at_level(logging.INFO, "graf"):
        initialise_from(exported, state)
    assert "100.0% of the parameters" in caplog.text
    assert torch.equal(state.generator.field.convs[0].weight, content["generator_ema"]["field.convs.0.weight"])


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        graf.load_generator(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("keep", [0, 1, 8, 100, 0.5, 0.999])
def test_a_truncated_file_is_refused(exported, keep):
    content = exported.read_bytes()
    exported.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    assert ("not a safetensors file that can be read" if keep else "is empty; another copy") in refusal(exported)


def test_a_header_of_random_bytes_is_refused(exported):
    content = bytearray(exported.read_bytes())
    content[:64] = bytes(range(64))
    exported.write_bytes(content)
    assert "not a safetensors file that can be read" in refusal(exported)


def test_a_missing_file_is_refused(tmp_path):
    assert refusal(tmp_path / "no.safetensors").endswith("no such checkpoint")


def test_a_folder_of_that_name_is_refused(tmp_path):
    (tmp_path / "x.safetensors").mkdir()
    refusal(tmp_path / "x.safetensors" / "y.safetensors")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_other_peoples_tensors_are_refused(tmp_path, metadata):
    save_file({"a": torch.ones(2)}, tmp_path / "x.safetensors", metadata)
    assert "not a generator written by eval.py --export" in refusal(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "change",
    [{"config": "{"}, {"config": "[1]"}, {"n_classes": "many"}, {"step": None}, {"config": '{"lr": 1}'}, {"config": "{}"}],
)
def test_damaged_metadata_is_refused(exported, change):
    with safe_open(exported, framework="pt") as file:
        metadata = {name: value for name, value in (file.metadata() | change).items() if value is not None}
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(weights, exported, metadata)
    with pytest.raises(graf.errors.GrafError, match="cars.safetensors"):
        graf.load_generator(exported)


def test_a_failed_write_keeps_the_file_before_it(smoke, exported, monkeypatch):
    before = exported.read_bytes()

    def disk_full(path, content):
        with open(path, "wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", disk_full)
    said = "cars.safetensors: cannot be written \\(No space left on device\\); name a file in another folder"
    with pytest.raises(CheckpointError, match=said):
        write_export(exported, Generator(smoke("nerf.netwidth=8")), step=1)
    assert exported.read_bytes() == before
    assert list(exported.parent.iterdir()) == [exported]


def test_the_flag_wants_the_suffix_by_which_the_file_is_read(capsys):
    assert evaluation.parser().parse_args(["--export", "a.safetensors"]).export == "a.safetensors"
    with pytest.raises(SystemExit):
        evaluation.parser().parse_args(["--export", "a.pt"])
    assert "ends in .safetensors" in capsys.readouterr().err


def test_latents_of_files_from_before_they_were_whitened_are_left_as_they_are(tmp_path):
    weights = {"encoder.gaussian.bias": torch.zeros(6)}
    metadata = {"format": "graf_ccsr generator 1", "config": "{}", "n_classes": "1", "step": "5"}
    torch.save({"format": FORMAT, "config": {}, "state": {"step": 5, "generator_ema": weights}}, tmp_path / "run.pt")
    torch.save({"generator_ema": weights}, tmp_path / "bare.pt")
    save_file(weights, tmp_path / "export.safetensors", metadata)
    for name in ("run.pt", "bare.pt", "export.safetensors"):
        content = read_checkpoint(tmp_path / name)
        found = content.get("state", content)["generator_ema"]
        assert torch.equal(found["encoder.whitening"], torch.eye(3)) and torch.equal(found["encoder.centre"], torch.zeros(3))
