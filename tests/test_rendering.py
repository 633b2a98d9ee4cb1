"""Sampling along rays and alpha compositing, in numbers worked out by hand."""

import math

from graf.rendering import FAR_AWAY, composite, interval_lengths, sample_pdf, stratified_depths

import numpy as np
import torch

LN2 = math.log(2)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=rng(seed))


def weights_of(density, delta):
    density, delta = torch.tensor([density]), torch.tensor([delta])
    return composite(density, torch.ones(1, density.shape[-1], 3), delta)[1][0]


def test_two_half_opaque_samples_share_the_light():
    torch.testing.assert_close(weights_of([0.0, LN2, LN2], [1.0, 1.0, 1.0]), torch.tensor([0.0, 0.5, 0.25]))


def test_length_counts_as_density_does():
    torch.testing.assert_close(weights_of([LN2, LN2 / 2], [2.0, 2.0]), torch.tensor([0.75, 0.125]))


def test_colour_is_the_weighted_sum():
    density = torch.full((1, 2), LN2)
    colour = torch.tensor([[[1.0, 0, 0.4], [0, 1, 0.4]]])
    rgb, _ = composite(density, colour, torch.ones(1, 2))
    torch.testing.assert_close(rgb, torch.tensor([[0.5, 0.25, 0.3]]))


def test_a_far_away_last_interval_takes_the_rest_exactly():
    weights = weights_of([LN2, 1.0], [1.0, FAR_AWAY])
    torch.testing.assert_close(weights, torch.tensor([0.5, 0.5]), atol=1e-7, rtol=0)
    assert weights.sum() == 1


def test_a_far_away_last_interval_does_not_round_off_what_lies_before_it():
    """1e10 + 1e-3 = 1e10 in float32: a running sum over the last interval would lose the thin samples."""
    thin = 1e-3
    weights = weights_of([thin, thin, 1.0], [1.0, 1.0, FAR_AWAY])
    alpha = -math.expm1(-thin)
    expected = torch.tensor([alpha, alpha * math.exp(-thin), math.exp(-2 * thin)])
    torch.testing.assert_close(weights, expected, atol=0, rtol=1e-6)


def test_weights_are_the_product_of_alphas_written_out():
    density, delta = torch.rand(5, 9, generator=rng(1)) * 3, torch.rand(5, 9, generator=rng(2))
    _, weights = composite(density, torch.ones(5, 9, 3), delta)
    for ray in range(5):
        light = 1.0
        for sample in range(9):
            alpha = 1 - math.exp(-density[ray, sample].item() * delta[ray, sample].item())
            assert abs(weights[ray, sample].item() - light * alpha) < 1e-6
            light *= 1 - alpha


def test_gradients_are_finite_behind_an_opaque_wall():
    density = torch.tensor([[0.0, 1e6, 1e6, 0.0]], requires_grad=True)
    rgb, weights = composite(density, torch.full((1, 4, 3), 0.3), torch.tensor([[1.0, 1.0, 1.0, FAR_AWAY]]))
    (rgb.sum() + weights.sum()).backward()
    assert weights.sum() == 1
    assert torch.isfinite(density.grad).all()


def test_interval_lengths_are_in_scene_units():
    depths = torch.tensor([[1.0, 2.0, 4.0]])
    rays_d = torch.tensor([[3.0, 0.0, 4.0]])  # 5 scene units of ray a unit of depth
    torch.testing.assert_close(interval_lengths(depths, rays_d, endless=True), torch.tensor([[5.0, 10.0, 5 * FAR_AWAY]]))
    torch.testing.assert_close(interval_lengths(depths, rays_d, endless=False), torch.tensor([[5.0, 10.0, 10.0]]))


def test_depths_without_jitter_are_evenly_spaced_between_each_rays_bounds():
    near, far = torch.tensor([[2.0], [1.0]]), torch.tensor([[4.0], [1.8]])
    depths = stratified_depths(near, far, 5, None)
    torch.testing.assert_close(depths, torch.tensor([[2.0, 2.5, 3.0, 3.5, 4.0], [1.0, 1.2, 1.4, 1.6, 1.8]]))


def test_jittered_depths_keep_to_their_strata_and_fill_them():
    near, far = torch.zeros(3000, 1), torch.full((3000, 1), 4.0)
    depths = stratified_depths(near, far, 5, uniform(3000, 5))
    edges = torch.tensor([0.0, 0.5, 1.5, 2.5, 3.5, 4.0])  # around 0, 1, 2, 3, 4
    assert (depths >= edges[:-1]).all()
    assert (depths <= edges[1:]).all()
    torch.testing.assert_close(depths.mean(dim=0), (edges[1:] + edges[:-1]) / 2, atol=0.03, rtol=0)  # sigma 0.29 / 55


def test_jitter_of_zero_and_one_are_the_edges_of_the_strata():
    near, far = torch.tensor([[2.0]]), torch.tensor([[4.0]])
    torch.testing.assert_close(stratified_depths(near, far, 3, torch.zeros(1, 3)), torch.tensor([[2.0, 2.5, 3.5]]))
    torch.testing.assert_close(stratified_depths(near, far, 3, torch.ones(1, 3)), torch.tensor([[2.5, 3.5, 4.0]]))


def test_importance_samples_are_where_the_weights_are():
    depths = torch.linspace(0, 10, 11)[None]
    weights = torch.zeros(1, 11)
    weights[0, 7] = 1.0  # the interval between the middles 6.5 and 7.5
    further = sample_pdf(depths, weights, 200, uniform(1, 200))
    inside = (further > 6.49) & (further < 7.51)
    assert inside.float().mean() > 0.97  # 1e-5 of every other interval remains
    assert further.min() >= 0.5
    assert further.max() <= 9.5


def test_importance_quantiles_of_two_equal_peaks_fall_in_halves():
    depths = torch.linspace(0, 10, 11)[None]
    weights = torch.zeros(1, 11)
    weights[0, 2] = weights[0, 7] = 100.0
    further = sample_pdf(depths, weights, 101, None)[0]
    assert (further.diff() >= 0).all()
    first, second = further[1:50], further[51:100]  # quantiles 0.01 to 0.49 and 0.51 to 0.99
    assert ((first > 1.49) & (first < 2.51)).all()
    assert ((second > 6.49) & (second < 7.51)).all()
    torch.testing.assert_close(
        further[25], torch.tensor(2.0), atol=1e-2, rtol=0
    )  # the first quarter is the first peak's middle


def test_importance_samples_of_even_weights_are_even():
    depths = torch.linspace(0, 4, 5)[None]
    further = sample_pdf(depths, torch.full((1, 5), 0.2), 4, None)
    torch.testing.assert_close(further, torch.tensor([[0.5, 1.5, 2.5, 3.5]]), atol=1e-5, rtol=0)


def test_importance_is_the_inverse_of_the_piecewise_linear_distribution():
    depths = torch.rand(6, 9, generator=rng(1)).sort(dim=-1).values
    weights = torch.rand(6, 9, generator=rng(2))
    further = sample_pdf(depths, weights, 20, None)
    for ray in range(6):
        middles = (depths[ray, 1:] + depths[ray, :-1]) / 2
        probability = weights[ray, 1:-1].double().numpy() + 1e-5
        cumulative = np.concatenate([[0.0], np.cumsum(probability / probability.sum())])
        expected = np.interp(np.linspace(0, 1, 20), cumulative, middles.numpy())
        torch.testing.assert_close(further[ray].double(), torch.from_numpy(expected), atol=1e-5, rtol=0)


def test_no_gradient_flows_into_importance_samples():
    weights = torch.rand(1, 6, requires_grad=True)
    depths = torch.linspace(0, 1, 6)[None].requires_grad_()
    assert not sample_pdf(depths, weights, 4, None).requires_grad


def test_importance_samples_of_nothing_are_finite_and_inside():
    further = sample_pdf(torch.linspace(2, 4, 6)[None], torch.zeros(1, 6), 5, uniform(1, 5))
    assert ((further >= 2) & (further <= 4)).all()
