"""The consistency-enforcing projection: linear algebra that a reader can redo, at every kernel, scale and odd size."""

from graf.models.projection import ConsistencyEnforcingModule, downsampling_matrix, projection_operators

import pytest
import torch
import torch.nn.functional as F

KERNELS = ("box", "bilinear", "bicubic", "gaussian")
SCALES = (2, 3, 4, 8)
CPU = torch.device("cpu")

every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_scale = pytest.mark.parametrize("scale", SCALES)
every_size = pytest.mark.parametrize(("h", "w"), [(7, 12), (1, 5), (33, 16)])
every_type = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])


def every_case(test):
    return every_kernel(every_scale(every_size(every_type(test))))


def images(*shape, dtype=torch.float64, seed=0):
    """Images in [-1, 1]."""
    return 2 * torch.rand(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)) - 1


def proposal_and_target(scale, dtype=torch.float64, h=7, w=12):
    return images(2, 3, scale * h, scale * w, dtype=dtype), images(2, 3, h, w, dtype=dtype, seed=1)


@every_case
def test_the_refined_image_downsamples_to_the_rendering(kernel, scale, h, w, dtype, tolerance):
    project = ConsistencyEnforcingModule(kernel, scale)
    x, y = proposal_and_target(scale, dtype, h, w)
    refined = project(x, y)
    assert refined.dtype == dtype
    assert (project.downsample(refined) - y).abs().max() < tolerance


@every_kernel
@every_scale
def test_a_proposal_that_drifted_far_off_is_refined_as_exactly(kernel, scale):
    """No gradient holds what H sees of a proposal: it may come to be many times as large as an image."""
    project = ConsistencyEnforcingModule(kernel, scale)
    x, y = proposal_and_target(scale, torch.float32, 33, 16)
    seen = project(torch.zeros_like(x), images(*y.shape, dtype=torch.float32, seed=2))
    refined = project(x + 300 * seen, y)
    assert (project.downsample(refined) - y).abs().max() < 2e-6


@every_case
def test_projecting_twice_is_projecting_once(kernel, scale, h, w, dtype, tolerance):
    project = ConsistencyEnforcingModule(kernel, scale)
    x, y = proposal_and_target(scale, dtype, h, w)
    once = project(x, y)
    torch.testing.assert_close(project(once, y), once, rtol=0, atol=tolerance)


@every_case
def test_what_downsampling_cannot_see_is_untouched(kernel, scale, h, w, dtype, tolerance):
    project = ConsistencyEnforcingModule(kernel, scale)
    x, y = proposal_and_target(scale, dtype, h, w)
    black = torch.zeros_like(y)
    unseen = project(x, black)  # the null-space part: of all images that downsample to nothing, the nearest
    torch.testing.assert_close(project(project(x, y), black), unseen, rtol=0, atol=tolerance)
    torch.testing.assert_close(project(unseen, black), unseen, rtol=0, atol=tolerance)


@every_case
def test_the_step_is_square_to_every_consistent_image(kernel, scale, h, w, dtype, tolerance):
    """Pythagoras: |x - z|^2 = |x - x'|^2 + |x' - z|^2, so no image z with H z = y is farther from x' than from x."""
    project = ConsistencyEnforcingModule(kernel, scale)
    x, y = proposal_and_target(scale, dtype, h, w)
    consistent = project(images(*x.shape, dtype=dtype, seed=2), y)
    refined = project(x, y)
    legs = (x - refined).square().sum() + (refined - consistent).square().sum()
    torch.testing.assert_close((x - consistent).square().sum(), legs, rtol=tolerance, atol=0)


@every_scale
def test_a_box_is_averaging_and_its_inverse_is_repeating(scale):
    project = ConsistencyEnforcingModule("box", scale)
    x, y = proposal_and_target(scale)
    torch.testing.assert_close(project.downsample(x), F.avg_pool2d(x, scale), rtol=0, atol=1e-12)
    by_hand = x + F.interpolate(y - F.avg_pool2d(x, scale), scale_factor=scale, mode="nearest")
    torch.testing.assert_close(project(x, y), by_hand, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
@every_scale
def test_the_antialiased_kernels_are_pytorchs(kernel, scale):
    x, y = proposal_and_target(scale)
    expected = F.interpolate(x, size=y.shape[-2:], mode=kernel, antialias=True)
    torch.testing.assert_close(ConsistencyEnforcingModule(kernel, scale).downsample(x), expected, rtol=0, atol=1e-7)


def test_a_gaussian_row_by_hand():
    """Scale 2: pixels at 1/4, 3/4, 5/4 low-resolution pixels from the centre weigh exp(-2 t^2)."""
    row = downsampling_matrix("gaussian", 2, 9)[4]
    heights = torch.tensor([0.0439369, 0.3246525, 0.8824969], dtype=torch.float64)
    expected = torch.cat([heights, heights.flip(0)]) / (2 * heights.sum())
    torch.testing.assert_close(row[6:12], expected, rtol=0, atol=1e-6)
    assert row[:6].eq(0).all() and row[12:].eq(0).all()


@every_kernel
@every_scale
@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 65])
def test_the_operators_are_a_well_conditioned_pair(kernel, scale, n):
    down = downsampling_matrix(kernel, scale, n)
    assert torch.linalg.cond(down) < 2.5
    torch.testing.assert_close(down.sum(dim=1), torch.ones(n, dtype=torch.float64))
    up = projection_operators(kernel, scale, n, torch.float64, CPU)[1]
    torch.testing.assert_close(up, torch.linalg.pinv(down), rtol=0, atol=1e-12)


@every_kernel
def test_a_flat_image_stays_flat(kernel):
    project = ConsistencyEnforcingModule(kernel, 4)
    flat = torch.full((1, 3, 20, 28), 0.3, dtype=torch.float64)
    torch.testing.assert_close(project(flat, project.downsample(flat)), flat)
    torch.testing.assert_close(project.downsample(flat), torch.full((1, 3, 5, 7), 0.3, dtype=torch.float64))


@every_kernel
def test_gradients_reach_proposal_and_rendering(kernel):
    x = images(1, 1, 6, 4).requires_grad_()
    y = images(1, 1, 3, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(ConsistencyEnforcingModule(kernel, 2), (x, y))


def test_the_drift_teaches_the_proposal_and_not_the_rendering():
    x, y = (image.requires_grad_() for image in proposal_and_target(2))
    drift = ConsistencyEnforcingModule("box", 2).drift(x, y)
    drift.sum().backward()
    torch.testing.assert_close(drift[:, 0], (F.avg_pool2d(x, 2) - y).square().flatten(1).mean(1))
    assert x.grad.abs().sum() > 0 and y.grad is None


def test_autocast_does_not_reach_it():
    project = ConsistencyEnforcingModule("bicubic", 2)
    x, y = proposal_and_target(2, torch.float32)
    expected = project(x, y)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(project(x, y), expected)
        from_bfloat16 = project(x.bfloat16(), y)
        low = project.downsample(x.bfloat16())
    assert from_bfloat16.dtype == low.dtype == torch.float32
    assert (project.downsample(from_bfloat16) - y).abs().max() < 1e-5


def test_it_trains_after_it_was_first_used_for_samples():
    """Tensors made in inference mode cannot be kept for a backward pass, and the operators of a size are made once."""
    project = ConsistencyEnforcingModule("gaussian", 2)
    projection_operators.cache_clear()
    x, y = proposal_and_target(2, torch.float32)
    with torch.inference_mode():
        project(x, y)
    x.requires_grad_()
    project(x, y).square().sum().backward()
    assert x.grad.abs().sum() > 0


def test_it_has_nothing_to_save():
    assert not ConsistencyEnforcingModule("bicubic", 2).state_dict()


def test_an_unknown_kernel_is_named():
    with pytest.raises(ValueError, match="lanczos"):
        ConsistencyEnforcingModule("lanczos", 2).downsample(torch.zeros(1, 3, 4, 4))
