"""Triton kernels of `graf.models.fields.fused_film`: a block of samples goes through all layers without leaving the chip.

Legend: B images, N samples per image, M of them per program, L layers of C channels, the last of which is the colour's.
"""

import triton
import triton.language as tl


@triton.jit
def film_forward(
    points,  # (B, N, 3) float32
    weights,  # (B, L, C, C)
    biases,  # (B, L, C) float32
    heads,  # (4, C) float32: of density and colour
    head_biases,  # (4,) float32
    density,  # (B, N) float32, written
    colour,  # (B, N, 3) float32, written
    n,
    FREQUENCIES: tl.constexpr,
    L: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    rows, channels = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, C)
    weights += image * L * C * C
    biases += image * L * C
    h = encoded(points + image * n * 3, rows, n, FREQUENCIES, C).to(weights.dtype.element_ty)
    for i in tl.static_range(L - 1):
        h = activated_layer(h, weights, biases, i, C).to(weights.dtype.element_ty)
    raw = tl.sum(h.to(tl.float32) * tl.load(heads + channels)[None, :], 1) + tl.load(head_biases)
    tl.store(density + image * n + rows, raw, rows < n)
    activated = activated_layer(h, weights, biases, L - 1, C)
    for k in tl.static_range(3):
        raw = tl.sum(activated * tl.load(heads + (k + 1) * C + channels)[None, :], 1) + tl.load(head_biases + k + 1)
        tl.store(colour + (image * n + rows) * 3 + k, raw, rows < n)


@triton.jit
def film_backward(
    points,  # as above
    weights,
    biases,
    heads,
    d_density,  # gradients of the outputs
    d_colour,
    inputs,  # (L, B, R, C), written: what each layer takes, of R rows of samples of each image
    d_outputs,  # (L, B, R, C), written: gradients of what each layer puts out before its activation
    d_biases,  # (B, R / M, L, C) float32, written: sums over each program's samples
    d_heads,  # (B, R / M, 4, C) float32, likewise
    n,
    start,  # the first of these R rows
    layer_stride,  # B * R * C
    FREQUENCIES: tl.constexpr,
    L: tl.constexpr,
    C: tl.constexpr,
    M: tl.constexpr,
):
    image, program = tl.program_id(1).to(tl.int64), tl.program_id(0)
    local_rows, channels = program * M + tl.arange(0, M), tl.arange(0, C)
    rows = start + local_rows
    dtype = weights.dtype.element_ty
    weights += image * L * C * C
    biases += image * L * C
    d_biases += (image * tl.num_programs(0) + program) * L * C
    d_heads += (image * tl.num_programs(0) + program) * 4 * C
    layer_stride = layer_stride.to(tl.int64)
    own = image * tl.num_programs(0) * M * C + local_rows[:, None] * C + channels[None, :]
    inputs += own
    d_outputs += own

    h = encoded(points + image * n * 3, rows, n, FREQUENCIES, C).to(dtype)
    tl.store(inputs, h)
    for i in tl.static_range(L - 1):
        h = activated_layer(h, weights, biases, i, C).to(dtype)
        tl.store(inputs + (i + 1) * layer_stride, h)
    activated = activated_layer(h, weights, biases, L - 1, C)
    row = tl.arange(0, 16)[:, None]  # of the smallest product: of density, then of three colours, others empty
    of_density = tl.load(d_density + image * n + rows, rows < n, 0.0)
    of_colours = tl.load(d_colour + (image * n + rows[None, :]) * 3 + row - 1, (rows < n)[None, :] & (row > 0) & (row < 4), 0.0)
    of_outputs = tl.where(row == 0, of_density[None, :], of_colours).to(dtype)  # (16, M)
    d_heads += row * C + channels[None, :]
    tl.store(d_heads, tl.dot(of_outputs, h), row == 0)
    tl.store(d_heads, tl.dot(of_outputs, activated.to(dtype)), (row > 0) & (row < 4))
    gradient = tl.zeros_like(activated)
    for k in tl.static_range(3):
        of_colour = tl.load(d_colour + (image * n + rows) * 3 + k, rows < n, 0.0)
        gradient += of_colour[:, None] * tl.load(heads + (k + 1) * C + channels)[None, :]
    gradient = tl.where(activated <= 0, 0.0, gradient)

    tl.debug_barrier()  # other threads of this program read below what these have stored
    for i in tl.static_range(L - 1, -1, -1):
        narrow = gradient.to(dtype)
        sums = tl.dot(tl.full((16, M), 1.0, dtype), narrow)  # a third of the time of tl.sum
        tl.store(d_biases + i * C + 0 * row + channels[None, :], sums, row == 0)
        tl.store(d_outputs + i * layer_stride, narrow)
        if i > 0:
            gradient = tl.dot(narrow, tl.load(weights + i * C * C + channels[:, None] * C + channels[None, :]))
            if i == L - 1:
                gradient += of_density[:, None] * tl.load(heads + channels)[None, :]
            gradient = tl.where(tl.load(inputs + i * layer_stride) <= 0, 0.0, gradient)


@triton.jit
def encoded(points, rows, n, FREQUENCIES: tl.constexpr, C: tl.constexpr):
    """positional_encoding of these rows of an image's points, with zeros up to C channels: (M, C)."""
    channels = tl.arange(0, C)
    among_waves = tl.maximum(channels - 3, 0)
    octave, wave = among_waves // 6, among_waves % 6  # sines of three coordinates, then their cosines
    coordinate = tl.where(channels < 3, channels, wave % 3)
    exists = (rows < n)[:, None] & (channels < 3 + 6 * FREQUENCIES)[None, :]
    x = tl.load(points + rows[:, None] * 3 + coordinate[None, :], exists, 0.0)
    angles = x * (1 << octave).to(tl.float32)[None, :]
    waves = tl.where((wave < 3)[None, :], tl.sin(angles), tl.cos(angles))
    return tl.where(exists, tl.where((channels < 3)[None, :], x, waves), 0.0)


@triton.jit
def activated_layer(h, weights, biases, i: tl.constexpr, C: tl.constexpr):
    """ReLU of layer i of h (M, C), in float32."""
    channels = tl.arange(0, C)
    transposed = tl.load(weights + i * C * C + channels[None, :] * C + channels[:, None])  # (C_in, C_out)
    raw = tl.dot(h, transposed) + tl.load(biases + i * C + channels)[None, :]
    return tl.maximum(raw, 0.0, propagate_nan=tl.PropagateNan.ALL)  # a step that is not finite must show it
