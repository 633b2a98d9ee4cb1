"""The convolutions of discriminators, whose gradient by the images is differentiated again for a gradient penalty."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def product_dtype(images: Tensor) -> torch.dtype:
    """The format in which products with images are computed: that of mixed precision inside it, else their own."""
    kind = images.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else images.dtype


class PenalisedConv2d(nn.Conv2d):
    """A convolution whose gradient penalty costs half as much on a GPU.

    The penalty needs the gradient by the weights of g = d loss / d images. PyTorch computes it as a convolution whose kernel is
    as large as the maps. Here g is a transposed convolution, of which cuDNN has the gradient by the weights in one pass.
    """

    def __init__(self, width_in: int, width: int, kernel_size: int, stride: int = 1, padding: int = 0, bias: bool = True):
        super().__init__(width_in, width, kernel_size, stride, padding, bias=bias)

    def _conv_forward(self, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if images.shape[2:] == weight.shape[2:] and self.padding == (0, 0):  # one position: a product takes less
            return F.linear(images.flatten(1), weight.flatten(1), bias)[..., None, None]
        if not images.is_cuda:
            return super()._conv_forward(images, weight, bias)
        dtype = product_dtype(images)
        bias = None if bias is None else bias.to(dtype)
        return TwiceDifferentiatedConv.apply(images.to(dtype), weight.to(dtype), bias, self.stride, self.padding)


class TwiceDifferentiatedConv(torch.autograd.Function):
    """F.conv2d of images (B, C, h, w), weight (C_out, C, k, k) and bias (C_out,) or None."""

    by_images_alone = False  # whether no gradient by the parameters is asked for: a Function is not told

    @staticmethod
    def forward(ctx, images, weight, bias, stride, padding):
        ctx.save_for_backward(images, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(images, weight, bias, stride, padding)

    @staticmethod
    def backward(ctx, gradient):
        images, weight = ctx.saved_tensors
        of_images = of_weight = of_bias = None
        needs_images, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        if needs_images:
            sizes = zip(images.shape[2:], gradient.shape[2:], weight.shape[2:], ctx.stride, ctx.padding, strict=True)
            left_over = [size - (out - 1) * stride + 2 * padding - kernel for size, out, kernel, stride, padding in sizes]
            of_images = F.conv_transpose2d(gradient, weight, None, ctx.stride, ctx.padding, left_over)
        if needs_weight and not TwiceDifferentiatedConv.by_images_alone:
            of_weight = nn.grad.conv2d_weight(images, weight.shape, gradient, ctx.stride, ctx.padding)
        if needs_bias and not TwiceDifferentiatedConv.by_images_alone:
            of_bias = gradient.sum((0, 2, 3))
        return of_images, of_weight, of_bias, None, None


@contextlib.contextmanager
def gradients_by_images_alone() -> Iterator[None]:
    """A context in which backward passes through these convolutions leave out the gradients by their weights. A penalty asks
    for none, and autograd would compute them and throw them away."""
    TwiceDifferentiatedConv.by_images_alone = True
    try:
        yield
    finally:
        TwiceDifferentiatedConv.by_images_alone = False
