"""The layers of a FiLM field as one operation on a GPU, which keeps only its inputs for the backward pass.

PyTorch writes each layer's outputs into the GPU's memory and reads them back. Here a block of samples goes through all layers
in one kernel. The backward pass computes them again, and writes what the gradients of the weights need, of some samples at a
time.
"""

import math

import torch

SCRATCH_BYTES = 512 * 2**20  # at a time, of layers' inputs and gradients in the backward pass; or a TILE of each image
TILE = 2048  # samples whose gradients of weights are summed by one product
OPTIONS = {"num_stages": 1, "enable_fp_fusion": True}  # of Triton, which warns where the second is not given
MOST_REGISTERS = 168  # of a thread in the backward pass, so that three programs of four warps fit on a multiprocessor
SAMPLES_AND_WARPS = {  # of a program, forward and backward, by the layers' width; measured on an H100
    64: ((128, 4), (64, 4)),
    128: ((64, 4), (64, 8)),
}


def rows_at_once(n_images: int, n_samples: int, n_layers: int, width: int, itemsize: int) -> int:
    """Samples of each image, a multiple of TILE, whose layers' inputs and gradients the backward pass holds at a time."""
    most = SCRATCH_BYTES // scratch_bytes(n_images, TILE, n_layers, width, itemsize)
    return TILE * max(1, min(most, math.ceil(n_samples / TILE)))


def scratch_bytes(n_images: int, rows: int, n_layers: int, width: int, itemsize: int) -> int:
    """Bytes of the inputs and gradients of so many rows of each image."""
    return 2 * n_images * rows * n_layers * width * itemsize


class FusedFilm(torch.autograd.Function):
    """(density (B, N), colour (B, N, 3)), raw and in float32, of points (B, N, 3) that need no gradient.

    weights (B, L, C, C) are those of L layers with ReLUs, the first padded with zeros to C inputs, the last the colour's; then
    biases (B, L, C), heads (4, C) and head_biases (4,) of density and colour. All are float32, and products are computed in
    `dtype`.
    """

    @staticmethod
    def forward(ctx, points, weights, biases, heads, head_biases, n_frequencies, dtype):
        from graf.models.fields.film_kernels import film_forward  # needs Triton, which PyTorch has on some systems only

        (n_images, n, _), (_, n_layers, width, _) = points.shape, weights.shape
        tensors = [x.contiguous() for x in (points, weights.to(dtype), biases, heads, head_biases)]
        density, colour = points.new_empty(n_images, n), points.new_empty(n_images, n, 3)
        block, n_warps = SAMPLES_AND_WARPS[width][0]
        grid = math.ceil(n / block), n_images
        sizes = n, n_frequencies, n_layers, width, block
        film_forward[grid](*tensors, density, colour, *sizes, num_warps=n_warps, **OPTIONS)
        ctx.save_for_backward(*tensors[:4])
        ctx.n_frequencies = n_frequencies
        return density, colour

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_density, d_colour):
        from graf.models.fields.film_kernels import film_backward

        points, weights, biases, heads = ctx.saved_tensors
        (n_images, n, _), (_, n_layers, width, _) = points.shape, weights.shape
        block, n_warps = SAMPLES_AND_WARPS[width][1]
        rows = rows_at_once(n_images, n, n_layers, width, weights.itemsize)
        n_blocks = rows // block
        inputs, d_outputs = (weights.new_empty(n_layers, n_images, rows, width) for _ in range(2))
        of_biases = biases.new_empty(n_images, n_blocks, n_layers, width)
        of_heads = biases.new_empty(n_images, n_blocks, 4, width)
        d_weights, d_biases, d_heads = (torch.zeros_like(x, dtype=torch.float32) for x in (weights, biases, heads))
        tensors = points, weights, biases, heads, d_density.contiguous(), d_colour.contiguous()
        options = OPTIONS | ({"maxnreg": MOST_REGISTERS} if n_warps == 4 else {})
        for start in range(0, n, rows):
            written = inputs, d_outputs, of_biases, of_heads
            sizes = n, start, inputs.stride(0), ctx.n_frequencies, n_layers, width, block
            film_backward[n_blocks, n_images](*tensors, *written, *sizes, num_warps=n_warps, **options)
            taken, given = (x.unflatten(2, (-1, TILE)) for x in (inputs, d_outputs))  # (L, B, tiles, TILE, C)
            d_weights += (given.mT @ taken).sum(2, dtype=torch.float32).transpose(0, 1)
            d_biases += of_biases.sum(1)
            d_heads += of_heads.sum((0, 1))
        d_head_biases = torch.cat([d_density.sum()[None], d_colour.sum((0, 1))])
        return None, d_weights, d_biases, d_heads, d_head_biases, None, None
