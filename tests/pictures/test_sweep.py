"""The errors that a sweep reports of its own renderings."""

import dataclasses

from graf.camera import middle_poses
from graf.models.generator import Generator, Rendering
from graf.pictures.sampling import render_views, sample_objects
from graf.pictures.sweep import low_resolution_error, low_resolution_errors, write_sweep

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


def test_the_errors_of_a_sweep_are_the_largest_of_its_renderings(generator, tmp_path):
    objects, poses = sample_objects(generator, 1, 0), middle_poses(torch.arange(9) * 40.0, generator.config.data)
    files, errors = write_sweep(generator, objects, {"turn": poses}, ("rgb",), [0.0], tmp_path)
    assert files == [tmp_path / "turn_rgb.mp4", tmp_path / "turn_rgb.gif"]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    each = [low_resolution_errors(generator, render_views(generator, objects, pose[None])) for pose in poses]
    assert errors["low_resolution_error"] < 1e-5
    assert errors["low_resolution_error_8bit"] == pytest.approx(max(error["low_resolution_error_8bit"] for error in each))
