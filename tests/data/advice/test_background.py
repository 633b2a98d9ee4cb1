"""Backgrounds by the edges of thumbnails: one colour, many colours, or busy."""

from graf.data.advice.background import background_of

import pytest
import torch

BLUE = torch.tensor([51, 102, 204], dtype=torch.uint8)[:, None, None]


def noise(n: int) -> torch.Tensor:
    return torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def walls(colours: torch.Tensor) -> torch.Tensor:
    """Images (N, 3, 8, 8) of busy objects before walls of colours (N, 3, 1, 1)."""
    images = noise(len(colours))
    images[..., [0, -1], :] = colours
    images[..., [0, -1]] = colours
    return images


def test_a_wall_of_one_colour_behind_busy_objects():
    assert background_of(walls(BLUE.expand(9, 3, 1, 1))) == ("plain", 0, (0.2, 0.4, 0.8))


def test_an_object_that_reaches_the_edge_makes_no_busy_background():
    images = walls(BLUE.expand(9, 3, 1, 1))
    images[..., 3:5, :] = noise(9)[..., 3:5, :]  # it leaves the frame at the left and at the right
    images[..., -1, 1:-1] = 0  # and stands on a black stripe
    assert background_of(images) == ("plain", 0, (0.2, 0.4, 0.8))


def test_cloth_with_folds_is_plain():
    images = BLUE.expand(9, 3, 8, 8) + noise(9) // 20  # 0 to 12
    assert background_of(images).kind == "plain"


@pytest.mark.parametrize(("n_busy", "kind"), [(2, "plain"), (3, "busy"), (8, "busy")])
def test_more_than_a_quarter_of_busy_images_makes_a_busy_set(n_busy, kind):
    images = torch.cat([noise(n_busy), walls(BLUE.expand(8 - n_busy, 3, 1, 1))])
    assert background_of(images)[:2] == (kind, n_busy)
    assert (background_of(images).colour is None) == (n_busy == 8)


def test_walls_of_many_colours():
    greys = torch.linspace(0, 255, 9).to(torch.uint8)[:, None, None, None].expand(9, 3, 1, 1)
    assert background_of(walls(greys)).kind == "varied"
