"""The consistency-enforcing projection: of all images whose downsampling is a given rendering, the one nearest to a proposal.

Downsampling is linear and separable, H x = A x A^T with one A (n, s n) for the height and one for the width. The images x' with
H x' = y form an affine subspace, and the point of it nearest to x is

    x' = x + A^+ (y - A x A^T) (A^+)^T,        A^+ = A^T (A A^T)^-1

The part of x that H sees is replaced by y; the part in the null space of H stays as proposed. This is the consistency enforcing
module of Bahat & Michaeli, Explorable Super Resolution, CVPR 2020; they filter, we solve, so that it is exact at borders too.

Low-resolution pixel j covers high-resolution pixels s j to s j + s - 1; its centre is s j + (s - 1) / 2.
Legend: B images, C channels, h x w low-resolution pixels, s scale factor.
"""

import functools
from typing import Literal

import torch
from torch import Tensor, nn

Kernel = Literal["box", "bilinear", "bicubic", "gaussian"]


class ConsistencyEnforcingModule(nn.Module):
    """Projects onto the images whose downsampling, by a kernel and an integer factor, is a given image. It has no parameters.

    It computes and returns float32 (float64 if an input is), outside autocast, because it has to be exact.
    """

    def __init__(self, kernel: Kernel, scale_factor: int):
        super().__init__()
        self.kernel = kernel
        self.scale_factor = scale_factor

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The image nearest to the proposal x (B, C, s h, s w) whose downsampling is y (B, C, h, w): (B, C, s h, s w)."""
        dtype = torch.promote_types(torch.promote_types(x.dtype, y.dtype), torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            x, y = x.to(dtype), y.to(dtype)
            (_, up_h), (_, up_w) = (self._operators(n, x) for n in y.shape[-2:])
            for _ in range(2):  # the second time removes the rounding error of a proposal far from y
                x = x + up_h @ (y - self.downsample(x)) @ up_w.mT
            return x

    def drift(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean square of H x - y (B, 1), without gradient to y: how far each proposal x is from its rendering."""
        return (self.downsample(x) - y.detach()).square().mean(dim=(1, 2, 3))[:, None]

    def downsample(self, x: Tensor) -> Tensor:
        """H x: images (B, C, s h, s w) at low resolution (B, C, h, w)."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            (down_h, _), (down_w, _) = (self._operators(n // self.scale_factor, x) for n in x.shape[-2:])
            return down_h @ x @ down_w.mT

    def _operators(self, n: int, like: Tensor) -> tuple[Tensor, Tensor]:
        return projection_operators(self.kernel, self.scale_factor, n, like.dtype, like.device)


@functools.lru_cache(maxsize=64)
def projection_operators(kernel: Kernel, scale: int, n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """A (n, scale * n) and its pseudo-inverse A^+ (scale * n, n), computed in float64, once per size."""
    with torch.inference_mode(False):  # a sample rendered before the first step must not leave tensors unfit for training
        down = downsampling_matrix(kernel, scale, n)
        up = torch.linalg.solve(down @ down.mT, down).mT.contiguous()
        return down.to(dtype).to(device), up.to(dtype).to(device)  # Apple GPUs have no float64


def downsampling_matrix(kernel: Kernel, scale: int, n: int) -> Tensor:
    """A (n, scale * n) in float64: one row per low-resolution pixel, the kernel around its centre, which sums to 1.

    At the borders the part outside the image is left out and the rest is normalised to 1. For `bilinear` and `bicubic` this is
    what F.interpolate does with antialias=True.
    """
    centres = scale * torch.arange(n, dtype=torch.float64) + (scale - 1) / 2
    pixels = torch.arange(scale * n, dtype=torch.float64)
    rows = kernel_height(kernel, (pixels - centres[:, None]).abs() / scale)
    return rows / rows.sum(dim=1, keepdim=True)


def kernel_height(kernel: Kernel, t: Tensor) -> Tensor:
    """The kernel, up to a factor, at distances t >= 0 from its centre in low-resolution pixels."""
    match kernel:
        case "box":
            return (t < 0.5).to(t)
        case "bilinear":
            return (1 - t).clamp_min(0)
        case "bicubic":  # Keys 1981 with a = -1/2, as Pillow and the antialiased F.interpolate have it
            inner = (1.5 * t - 2.5) * t**2 + 1
            outer = ((-0.5 * t + 2.5) * t - 4) * t + 2
            return torch.where(t < 1, inner, torch.where(t < 2, outer, 0))
        case "gaussian":  # standard deviation 1/2, cut off at three of them
            return torch.exp(-2 * t**2) * (t < 1.5)
    raise ValueError(f"no kernel '{kernel}'; known are box, bilinear, bicubic and gaussian")
