"""Volume rendering along rays: where to sample, and how to composite samples into a pixel. Stateless functions.

Legend: R rays, S samples per ray; all leading dimensions before R pass through.
"""

import dataclasses

from graf.tensors import Rows

import torch
from torch import Tensor

FAR_AWAY = 1e10  # length of NeRF's last interval, which absorbs all remaining light


@dataclasses.dataclass(frozen=True)
class RayNoise(Rows):
    """Random numbers for the samples along rays (B, R); a field is None where that noise is not used.

    jitter (B, R, S) and, for the F samples of a fine network, fine_jitter (B, R, F) in [0, 1) place samples in their strata;
    density_noise (B, R, S) and fine_density_noise (B, R, S + F) are added to raw densities.
    """

    jitter: Tensor | None = None
    fine_jitter: Tensor | None = None
    density_noise: Tensor | None = None
    fine_density_noise: Tensor | None = None


def stratified_depths(near: Tensor, far: Tensor, n_samples: int, jitter: Tensor | None = None) -> Tensor:
    """Depths (..., R, S) from near to far (..., R, 1): evenly spaced, or placed within their strata by jitter (..., R, S) in
    [0, 1).

    NeRF (Mildenhall et al. 2020), eq. 2, with strata around the evenly spaced depths.
    """
    t = torch.linspace(0, 1, n_samples, device=near.device, dtype=near.dtype)
    depths = near * (1 - t) + far * t
    if jitter is None:
        return depths
    middles = (depths[..., 1:] + depths[..., :-1]) / 2
    lower = torch.cat([depths[..., :1], middles], dim=-1)
    upper = torch.cat([middles, depths[..., -1:]], dim=-1)
    return lower + (upper - lower) * jitter.to(depths)


def sample_pdf(depths: Tensor, weights: Tensor, n_samples: int, quantile: Tensor | None = None) -> Tensor:
    """n_samples further depths (..., R, n), sampled where the weights (..., R, S) of the depths (..., R, S) are large.

    Inverse transform sampling of the piecewise constant density between the midpoints of the intervals (NeRF, section 5.2), at
    the given quantiles (..., R, n) in [0, 1), or at evenly spaced ones. The result carries no gradient.
    """
    middles = (depths[..., 1:] + depths[..., :-1]) / 2
    probability = weights[..., 1:-1].detach() + 1e-5
    probability = probability / probability.sum(-1, keepdim=True)
    cumulative = torch.nn.functional.pad(_cumulative(probability), (1, 0))  # (..., R, S - 1)
    shape = (*weights.shape[:-1], n_samples)
    if quantile is None:
        quantile = torch.linspace(0, 1, n_samples, device=depths.device, dtype=depths.dtype).expand(shape)
    quantile = quantile.to(depths).contiguous()
    above = torch.searchsorted(cumulative.contiguous(), quantile, right=True)
    below = (above - 1).clamp_min(0)
    above = above.clamp_max(cumulative.shape[-1] - 1)
    cumulative_low, cumulative_high = cumulative.gather(-1, below), cumulative.gather(-1, above)
    middle_low, middle_high = middles.gather(-1, below), middles.gather(-1, above)
    span = cumulative_high - cumulative_low
    share = (quantile - cumulative_low) / torch.where(span < 1e-5, torch.ones_like(span), span)
    return (middle_low + share * (middle_high - middle_low)).detach()


def composite(density: Tensor, colour: Tensor, delta: Tensor) -> tuple[Tensor, Tensor]:
    """Alpha-composite samples along rays (NeRF, Mildenhall et al. 2020, eq. 3).

    density (..., R, S) in 1 / scene unit, colour (..., R, S, 3) in [0, 1], delta (..., R, S) in scene units.
    Returns colour (..., R, 3), without background, and weights (..., R, S).
    """
    optical_depth = density * delta
    before = torch.nn.functional.pad(_cumulative(optical_depth[..., :-1]), (1, 0))
    transmittance = torch.exp(-before)  # the product of 1 - alpha, with nothing to clamp
    weights = transmittance * -torch.expm1(-optical_depth)
    return (weights[..., None] * colour).sum(-2), weights


def _cumulative(x: Tensor) -> Tensor:
    """x.cumsum(-1), which is about three times slower on a GPU than along the first dimension."""
    return x.movedim(-1, 0).contiguous().cumsum(0).movedim(0, -1) if x.is_cuda else x.cumsum(-1)


def interval_lengths(depths: Tensor, rays_d: Tensor, endless: bool) -> Tensor:
    """Lengths (..., R, S), in scene units, of the intervals that begin at the depths (..., R, S) along rays_d (..., R, 3).

    With `endless` the last interval is practically infinite, as in NeRF, where the density can be 0 behind the object.
    Otherwise it is as long as the one before it: a density that is never quite 0 would make every ray opaque.
    """
    delta = depths[..., 1:] - depths[..., :-1]
    last = torch.full_like(delta[..., :1], FAR_AWAY) if endless else delta[..., -1:]
    return torch.cat([delta, last], dim=-1) * rays_d.norm(dim=-1, keepdim=True)
