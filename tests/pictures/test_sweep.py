"""What a sweep says of its own frames."""

import dataclasses
import json

from graf.camera import middle_poses
from graf.errors import GrafError
from graf.models.generator import Generator, Rendering
from graf.pictures.sampling import sample_objects
from graf.pictures.sweep import Frames, low_resolution_error, low_resolution_errors

import pytest
import torch


@pytest.fixture
def generator(refine):
    torch.manual_seed(0)
    return Generator(refine("ccsr.kernel=box")).eval()


def rendering(images, low):
    maps = torch.ones(1, 1, 4, 4)
    return Rendering(images, maps, maps, maps, low_images=low)


def test_the_error_is_the_largest_difference_of_the_means_of_blocks(generator):
    images = torch.zeros(1, 3, 4, 4)
    images[0, 1, 2, 3] = 1.0  # in the lower right block, whose mean is 1/4
    seen = rendering(images, torch.zeros(1, 3, 2, 2))
    assert low_resolution_error(generator, seen) == pytest.approx(0.25, abs=1e-6)
    seen = dataclasses.replace(seen, low_images=torch.tensor([[0.0, 0.0], [0.0, 0.25]]).expand(1, 3, 2, 2))
    assert low_resolution_error(generator, seen) == pytest.approx(0.25, abs=1e-6)  # of the other two channels
    assert low_resolution_error(generator, dataclasses.replace(seen, low_images=None)) == 0


def test_files_are_clamped_and_rounded(generator):
    """Two of four pixels at 1.4 are written as 1, whose block has then a mean of 1/2 in place of 0.7."""
    images = torch.zeros(1, 3, 4, 4)
    images[:, :, 0, :2] = 1.4
    low = torch.tensor([[0.7, 0.0], [0.0, 0.0]]).expand(1, 3, 2, 2)
    errors = low_resolution_errors(generator, rendering(images, low))
    assert errors["low_resolution_error"] < 1e-6
    assert errors["low_resolution_error_8bit"] == pytest.approx(0.2, abs=1 / 255)


def test_errors_of_frames_that_are_kept_count_still(generator, tmp_path, caplog):
    objects, poses = sample_objects(generator, 1, 0), middle_poses(torch.tensor([0.0, 90.0]), generator.config.data)
    frames = Frames(tmp_path / "turn", generator, objects, poses, ("rgb",), None)
    errors = frames.render()
    assert errors["low_resolution_error"] < 1e-5 < errors["low_resolution_error_8bit"]
    assert Frames(tmp_path / "turn", generator, objects, poses, ("rgb",), None).render() == errors
    manifest = tmp_path / "turn" / "made_from.json"
    content = json.loads(manifest.read_text())
    del content["low_resolution_error_8bit"]
    manifest.write_text(json.dumps(content))  # as it was before files were looked at
    caplog.set_level("INFO", logger="graf")
    assert Frames(tmp_path / "turn", generator, objects, poses, ("rgb",), None).render() == errors
    assert "frames whose errors are not all known are replaced" in caplog.text


@pytest.fixture
def turn(generator, tmp_path):
    """The frames of two cameras."""
    objects, poses = sample_objects(generator, 1, 0), middle_poses(torch.tensor([0.0, 90.0]), generator.config.data)
    return Frames(tmp_path / "turn", generator, objects, poses, ("rgb",), None)


def test_a_folder_of_the_users_is_left_alone(turn):
    turn.folder.mkdir()
    turn.path("rgb", 0).write_bytes(b"mine")
    with pytest.raises(GrafError, match="turn: pictures would be written here, .* another folder with --out"):
        turn.render()
    assert [file.read_bytes() for file in turn.folder.iterdir()] == [b"mine"]


@pytest.mark.parametrize("damaged", ["", "{", "[1]", "null"])
def test_frames_beside_a_damaged_manifest_are_replaced_and_nothing_else_is(turn, damaged):
    errors = turn.render()
    turn.path("rgb", 1).write_bytes(b"other")
    turn.path("depth", 0).write_bytes(b"other")
    (turn.folder / "notes.txt").write_text("mine")
    turn.manifest.write_text(damaged)
    assert turn.render() == errors
    assert sorted(file.name for file in turn.folder.iterdir()) == [
        *("made_from.json", "notes.txt", "rgb_00000.png", "rgb_00001.png")
    ]
    assert turn.read("rgb").shape == (2, 3, 16, 16)
