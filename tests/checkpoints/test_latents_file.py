"""Files of latents: what was written comes back, what does not fit the model or is damaged is said."""

import json
import logging

from graf.checkpoints.latents_file import fitting_latents, load_latents, write_latents
from graf.errors import GrafError
from graf.models.generator import Generator

import pytest
import torch


@pytest.fixture
def generator(smoke) -> Generator:
    return Generator(smoke(), n_classes=3)


def kept(path, generator, value=0.5, class_index=2):
    latents = torch.full((generator.config.z_dist.dim,), value)
    return write_latents(path, generator, latents, class_index, "results/cars/model.pt", 4500, photographs=["a.png"])


def test_objects_come_back_in_the_order_of_their_files(tmp_path, generator, caplog):
    files = [kept(tmp_path / "a.json", generator, 1 / 3, 2), kept(tmp_path / "b.json", generator, -0.1, 0)]
    for latents, classes in (load_latents(*files), fitting_latents(files, generator, "model.pt")):
        assert latents.tolist() == [[torch.tensor(value).item()] * 8 for value in (1 / 3, -0.1)]
        assert classes.tolist() == [2, 0]
    assert not caplog.records
    content = json.loads(files[0].read_text())
    assert content["photographs"] == ["a.png"]
    assert content["model"]["latent_dim"] == 8 and content["model"]["n_classes"] == 3


def test_other_weights_are_told_with_those_that_found_the_object(tmp_path, generator, caplog):
    file = kept(tmp_path / "a.json", generator)
    with torch.no_grad():
        next(generator.parameters()).add_(1)
    with caplog.at_level(logging.WARNING, "graf"):
        fitting_latents([file], generator, "other.pt")
    assert caplog.messages == [
        f"{file}: of other weights (results/cars/model.pt, step 4500) than other.pt, with which the object may look different"
    ]


def test_a_file_of_before_says_nothing_of_weights(tmp_path, generator, caplog):
    (tmp_path / "old.json").write_text(json.dumps({"checkpoint": "a.pt", "step": 3, "latents": [0.0] * 8, "class_index": 1}))
    assert fitting_latents([tmp_path / "old.json"], generator, "model.pt")[1].tolist() == [1]
    assert not caplog.records


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"latents": [0.0] * 7}, "7 latents, of another model; model.pt takes 8: name the model that fits"),
        ({"latents": [0.0] * 8, "class_index": 3}, "class 3, of another model; model.pt has classes 0 to 2: name the model"),
        ({"latents": [0.0] * 8, "class_index": -1}, "class_index: expected a whole number from 0, found -1"),
        ({"latents": [0.0] * 8, "class_index": True}, "class_index: expected a whole number from 0, found True"),
        ({"latents": [[0.0] * 8]}, "latents: expected a list of finite numbers; the file is damaged"),
        ({"latents": [float("nan")] * 8}, "latents: expected a list of finite numbers"),
        ({"latents": ["a"] * 8}, "latents: expected a list of finite numbers"),
        ({"latents": None}, "latents: expected a list of finite numbers"),
        ({"latents": [10**400] * 8}, "latents: expected a list of finite numbers"),
        ({"latents": []}, "latents: expected a list of finite numbers"),
        ({"frames": []}, "holds no latents; eval.py --invert writes such a file"),
        ([1, 2], "holds no latents"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path, generator, content, message):
    file = tmp_path / "latents.json"
    file.write_text(json.dumps(content))
    with pytest.raises(GrafError) as caught:
        fitting_latents([file], generator, "model.pt")
    assert str(caught.value).startswith(f"{file}: ") and message in str(caught.value)


def test_files_that_cannot_be_read_are_said(tmp_path, generator):
    cut = kept(tmp_path / "cut.json", generator)
    cut.write_bytes(cut.read_bytes()[:100])
    (tmp_path / "picture.json").write_bytes(b"\x89PNG\xff")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("nowhere.json", "no such file; eval.py --invert writes such a file"),
        ("cut.json", "damaged, or not JSON"),
        ("picture.json", "damaged, or not JSON"),
        ("folder", "cannot be read"),
    ):
        with pytest.raises(GrafError, match=f"{name}: {message}"):
            load_latents(tmp_path / name)


def test_files_of_different_models_do_not_go_together(tmp_path, smoke):
    files = [kept(tmp_path / f"{dim}.json", Generator(smoke(f"z_dist.dim={dim}")), class_index=0) for dim in (8, 12)]
    with pytest.raises(GrafError, match="12.json: 12 latents, but .*8.json has 8; they are of different models"):
        load_latents(*files)


def test_an_object_that_the_viewer_moved_is_said_to_be_taken_unmoved(tmp_path, generator, caplog):
    latents = torch.zeros(generator.config.z_dist.dim)
    for sd, told in (([0.0, 0.0], False), ([0.0, 1.5], True), ("damaged", False)):
        file = write_latents(tmp_path / "a.json", generator, latents, 0, "model.pt", 5, shape_sd=sd, appearance_sd=[0.0])
        caplog.clear()
        fitting_latents([file], generator, "model.pt")
        assert ("is taken unmoved" in caplog.text) == told


def test_no_file_is_told():
    with pytest.raises(GrafError, match="no file of latents is named"):
        load_latents()
