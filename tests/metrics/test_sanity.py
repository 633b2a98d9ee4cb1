"""Signs of a collapse: opacity and depth of pictures that a reader can add up."""

import dataclasses
import math

from graf.data.car_shapes import make_car
from graf.data.toy_cars import render_cars
from graf.metrics.collapse import collapse_warning
from graf.metrics.consistency import camera_pairs, sanity
from graf.models.generator import Generator, Rendering

import pytest
import torch

NEAR, FAR = 2.6, 4.6


def rendering(depth, opacity):
    """Pictures of depth (B, h, w) and opacity (B, h, w)."""
    depth, opacity = depth[:, None], opacity[:, None]
    return Rendering(torch.zeros_like(depth).expand(-1, 3, -1, -1), depth, 1 / depth, opacity)


def pictures(depth, opacity, n=4):
    """n pictures of 20 x 20 in one depth and opacity."""
    return rendering(torch.full((n, 20, 20), depth), torch.full((n, 20, 20), opacity))


def test_numbers_by_hand():
    """The first picture: opacities 1, 1/2, 1/2, 0 at depths 3, 4, 4, 99, whose mean is 3.5 and variance 1/4. The second is
    empty, whatever its depths. The third is full, at depths 3 and 3.5 in halves, which deviate by 1/4."""
    depth = torch.tensor([[[3.0, 4.0], [4.0, 99.0]], [[3.0, 4.0], [4.0, 4.6]], [[3.0, 3.5], [3.0, 3.5]]])
    opacity = torch.tensor([[[1.0, 0.5], [0.5, 0.0]], [[0.1, 0.0], [0.0, 0.1]], [[1.0, 1.0], [1.0, 1.0]]])
    stats = sanity(rendering(depth, opacity), NEAR, FAR)
    assert stats == pytest.approx(
        {
            "mean_opacity": (2 + 0.2 + 4) / 12,
            "depth_spread": (0.5 + 0.25) / 2,
            "depth_range": 2.0,
            "empty_share": 1 / 3,
            "full_share": 1 / 3,
        }
    )
    assert all(type(value) is float for value in stats.values())


def test_an_image_is_empty_or_full_in_99_of_100_pixels():
    opacity = torch.zeros(4, 20, 20)
    opacity[0].view(-1)[:4] = 1  # 1 of 100: empty still
    opacity[1].view(-1)[:5] = 1
    opacity[2].view(-1)[:396] = 1  # 99 of 100: full
    opacity[3].view(-1)[:395] = 1
    stats = sanity(rendering(torch.full((4, 20, 20), 3.6), opacity), NEAR, FAR)
    assert (stats["empty_share"], stats["full_share"]) == (0.25, 0.25)


def test_nothing_collapses_to_numbers_and_a_message():
    stats = sanity(pictures(FAR, 0.0), NEAR, FAR)
    assert stats == pytest.approx({**stats, "mean_opacity": 0, "depth_spread": 0, "empty_share": 1, "full_share": 0})
    assert "100% of the sample images are empty (mean opacity 0.000)" in collapse_warning(stats)


def test_planes_are_named_whatever_their_opacity():
    for opacity in (0.4, 1.0):
        message = collapse_warning(sanity(pictures(3.6, opacity), NEAR, FAR))
        assert "varies 0.000 scene units" in message and f"mean opacity {opacity:.3f}" in message and "planes" in message


def test_the_first_hundred_steps_are_fog_and_no_warning():
    stats = sanity(pictures(3.6, 0.4), NEAR, FAR)
    assert collapse_warning({"step": 99} | stats) is None
    assert "planes" in collapse_warning({"step": 100} | stats)


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
@pytest.mark.parametrize("name", ["mean_opacity", "depth_spread"])
def test_what_is_not_finite_is_said_at_any_step(name, value):
    stats = sanity(pictures(3.6, 0.4), NEAR, FAR) | {name: value}
    assert "is not finite" in collapse_warning({"step": 1} | stats)


def test_depths_that_are_no_number_are_said():
    assert "is not finite" in collapse_warning(sanity(pictures(math.nan, 0.4), NEAR, FAR))


def test_walls_are_named():
    """Depths 2.6 to 4.6 in twenty steps, opaque everywhere: their deviation is 2 / sqrt(12), nearly."""
    depth = torch.linspace(NEAR, FAR, 20).expand(4, 20, 20)
    stats = sanity(rendering(depth, torch.ones_like(depth)), NEAR, FAR)
    assert stats["depth_spread"] == pytest.approx(2 / 12**0.5, rel=0.06)
    assert "100% of the sample images are opaque everywhere (mean opacity 1.000)" in collapse_warning(stats)


@pytest.mark.parametrize(("n_empty", "warned"), [(1, False), (2, True)])
def test_half_of_the_images_make_a_warning(n_empty, warned):
    depth = torch.linspace(NEAR, FAR, 20).repeat(4, 20, 1)
    opacity = torch.zeros(4, 20, 20)
    opacity[n_empty:, 5:15] = 1
    message = collapse_warning(sanity(rendering(depth, opacity), NEAR, FAR))
    assert (message is not None) == warned
    assert not warned or "50% of the sample images are empty" in message


def test_the_bound_of_flatness_follows_the_depth_range():
    """Deviations of 0.05 are flat between 0 and 10, where 0.2 is the bound, and not between 3 and 4."""
    depth = torch.tensor([3.45, 3.55]).repeat(4, 20, 10)
    view = rendering(depth, torch.full_like(depth, 0.5))
    assert "varies 0.050 scene units" in collapse_warning(sanity(view, 0.0, 10.0))
    assert collapse_warning(sanity(view, 3.0, 4.0)) is None


def test_toy_cars_are_fine(smoke):
    data = dataclasses.replace(smoke().data, imsize=32)
    seen = render_cars([make_car(0, index) for index in range(4)], camera_pairs(4, 15.0, data)[0], data)
    stats = sanity(rendering(seen.depth.where(seen.opacity > 0, data.far), seen.opacity), data.near, data.far)
    assert collapse_warning(stats) is None
    assert 0.1 < stats["depth_spread"] < 0.6 and 0.1 < stats["mean_opacity"] < 0.6


def test_fog_of_the_first_weights_is_flat(refine, labels):
    """The same from small maps and from enlarged ones."""
    generator = Generator(refine())
    latents = generator.sample_latents(4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        small = sanity(generator(latents, labels), NEAR, FAR)
    large = sanity(generator.render(latents, labels.pose_c2w), NEAR, FAR)
    assert small == pytest.approx(large, abs=1e-5)
    assert "planes" in collapse_warning(large)
