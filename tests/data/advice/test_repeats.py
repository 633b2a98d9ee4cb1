"""Copies and photographs of a burst are found, and nothing else."""

from graf.data.advice.repeats import COMPARED, find_repeats

import pytest
import torch


def random_thumbnails(n: int) -> torch.Tensor:
    return torch.randint(0, 250, (n, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_random_images_repeat_nothing():
    assert len(find_repeats(random_thumbnails(50))) == 0


def test_copies_are_found_however_far_apart_and_named_with_the_first():
    thumbnails = random_thumbnails(COMPARED + 10)
    thumbnails[[5, COMPARED + 5]] = thumbnails[2].clone()
    repeats = find_repeats(thumbnails)
    assert repeats.identical == [(5, 2), (COMPARED + 5, 2)] and repeats.alike == []


@pytest.mark.parametrize(("step", "found"), [(0, []), (1, [(7, 3)]), (2, [])])
def test_images_are_alike_where_compression_could_have_changed_them(step, found):
    """Half of the values differ by 1, which is 0.71 in the root mean square, or by 2, which is 1.41."""
    thumbnails = random_thumbnails(10)
    thumbnails[7] = thumbnails[3]
    thumbnails[7, :, ::2] += step
    repeats = find_repeats(thumbnails)
    assert repeats.alike == found and repeats.identical == ([] if step else [(7, 3)])


def test_one_image_of_a_burst_is_different_from_all_before_it():
    burst = random_thumbnails(1).repeat(5, 1, 1, 1)
    burst[:, 0, 0, 0] = torch.arange(5)
    repeats = find_repeats(burst)
    assert [image for image, _ in repeats.alike] == [1, 2, 3, 4]
