"""The conditional radiance field: positional encoding and the MLP from points to density and colour.

Legend: B images, R rays per image, S samples per ray, C channels, Z latents.

Latents are constant over an image and view directions over a ray, so their products are computed once per image or ray, not per
sample: a layer with several inputs keeps one weight tensor, as in GRAF, and splits its columns among them. `styles` of a field
are what it makes of latents alone, once per image and step; its `forward` takes points and styles.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from graf.config import Config
from graf.models.fields.fused_film import FusedFilm

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")


def positional_encoding(x: Tensor, n_frequencies: int) -> Tensor:
    """[x, sin(x), cos(x), sin(2 x), cos(2 x), sin(4 x), ...] (..., 3 + 6 n) of x (..., 3) (NeRF, eq. 4, with x itself).

    In memory each of these numbers lies beside the same one of other points: loops over three coordinates took twice as long.
    """
    coordinates = x.movedim(-1, 0).contiguous()  # (3, ...)
    octaves = 2.0 ** torch.arange(n_frequencies, device=x.device, dtype=x.dtype)
    angles = octaves.view(-1, *[1] * x.dim()) * coordinates  # (n, 3, ...)
    waves = torch.stack([angles.sin(), angles.cos()], dim=1)  # (n, 2, 3, ...)
    return torch.cat([coordinates, waves.flatten(0, 2)]).movedim(0, -1)


def encoding_width(n_frequencies: int) -> int:
    return 3 + 6 * n_frequencies


def split_linear(layer: nn.Linear, *inputs: Tensor) -> Tensor:
    """layer(concatenation of the inputs), each broadcast to the first's leading dimensions only after its product."""
    first, *others = layer.weight.split([x.shape[-1] for x in inputs], dim=1)
    return _add_products(F.linear(inputs[0], first), inputs[1:], others, layer.bias)


def folded_linear(layer: nn.Linear, before: nn.Linear, x: Tensor, *others: Tensor) -> Tensor:
    """split_linear(layer, before(x), *others) without making before(x): the two layers' weights are multiplied instead."""
    own, *columns = layer.weight.split([before.out_features, *(other.shape[-1] for other in others)], dim=1)
    return _add_products(F.linear(x, own @ before.weight), others, columns, own @ before.bias + layer.bias)


def _add_products(total: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor], bias: Tensor) -> Tensor:
    """Add the products to the total in place: only it is sure to have a value for every sample."""
    for x, weight in zip(inputs[:-1], weights[:-1], strict=True):
        total += F.linear(x, weight)
    total += F.linear(inputs[-1], weights[-1], bias)
    return total


def recomputed(function: Callable[..., T], *inputs: Any) -> T:
    """function(*inputs), which keeps only its inputs for the backward pass. That recomputes what it needs and no more, so a
    final product, for example, is not repeated. The function may not take random numbers: no random state is kept."""
    if not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


class ConcatField(nn.Module):
    """GRAF's conditional NeRF (Schwarz et al. 2020, fig. 3): the shape code beside the points, the appearance code beside
    the view direction. Its parameters have the official code's names and shapes.

    To save memory the backward pass recomputes what is cheap: encoded points and the first layer from the points, and the
    colour's narrow layer from the layer before it.

    Without view directions only the appearance code enters that layer; without both, density and colour share a layer.
    """

    def __init__(self, config: Config, depth: int, width: int):
        super().__init__()
        self.config, latents = config.nerf, config.z_dist
        self.shape_width = latents.dim - latents.dim_appearance
        views_width = encoding_width(self.config.multires_views) if self.config.use_viewdirs else 0
        views_width += latents.dim_appearance
        self.has_colour_layer = views_width > 0
        self.shape_mapping, self.appearance_mapping = nn.Identity(), nn.Identity()  # which graf/models/directions.py replaces
        self.skips = {4} if depth > 5 else set()  # the layer after the skip sees the points again
        points_width = encoding_width(self.config.multires) + self.shape_width
        widths = [points_width] + [width + (points_width if i in self.skips else 0) for i in range(depth - 1)]
        self.pts_linears = nn.ModuleList([nn.Linear(w, width) for w in widths])
        if self.has_colour_layer:
            self.views_linears = nn.ModuleList([nn.Linear(width + views_width, width // 2)])
            self.feature_linear = nn.Linear(width, width)
            self.alpha_linear = nn.Linear(width, 1)
            self.rgb_linear = nn.Linear(width // 2, 3)
        else:
            self.output_linear = nn.Linear(width, 4)

    def mapped(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """The shape and the appearance code of latents (B, Z) themselves: there is no mapping network."""
        shape, appearance = latents.tensor_split([self.shape_width], dim=-1)
        return self.shape_mapping(shape), self.appearance_mapping(appearance)

    def styles(self, latents: Tensor) -> Tensor:
        """Both codes of latents (B, Z), beside each other."""
        return torch.cat(self.mapped(latents), dim=-1)

    def forward(self, points: Tensor, view_directions: Tensor, styles: Tensor) -> tuple[Tensor, Tensor]:
        """points (B, R, S, 3) in scene units, view_directions (B, R, 3) of unit length, and the styles of B latents.

        Returns raw density (B, R, S) and raw colour (B, R, S, 3), before their activations, in float32.
        """
        shape, appearance = styles.tensor_split([self.shape_width], dim=-1)
        shape = shape[:, None, None]  # (B, 1, 1, Z)

        def encode(points: Tensor) -> Tensor:
            return positional_encoding(points, self.config.multires)  # (B, R, S, C)

        def first(points: Tensor) -> Tensor:
            return F.relu(split_linear(self.pts_linears[0], encode(points), shape), inplace=True)

        def second(points: Tensor) -> Tensor:
            return self.pts_linears[1](first(points))

        h = F.relu(recomputed(second, points), inplace=True) if len(self.pts_linears) > 1 else first(points)
        for i, layer in enumerate(self.pts_linears[2:], start=1):
            if i in self.skips:
                of_points, *columns = layer.weight.split(
                    [encoding_width(self.config.multires), self.shape_width, h.shape[-1]], dim=1
                )
                total = recomputed(lambda points, weight: F.linear(encode(points), weight), points, of_points)
                h = _add_products(total, (shape, h), columns, layer.bias)
            else:
                h = layer(h)
            h = F.relu(h, inplace=True)
        if not self.has_colour_layer:
            raw = self.output_linear(h).float()
            return raw[..., 3], raw[..., :3]
        density = self.alpha_linear(h)[..., 0]
        beside = [appearance[:, None, None]]
        if self.config.use_viewdirs:
            beside.insert(0, positional_encoding(view_directions, self.config.multires_views)[:, :, None])  # (B, R, 1, C)

        def colour_of(h: Tensor) -> Tensor:
            h = folded_linear(self.views_linears[0], self.feature_linear, h, *beside)
            return self.rgb_linear(F.relu(h, inplace=True))

        return density.float(), recomputed(colour_of, h).float()


class MappedField(nn.Module):
    """The mapping networks of fields whose layers the latents modulate: one of the shape code, one of the appearance code."""

    def _build_mapping(self, config: Config, width: int, n_shape_outputs: int, gain: float) -> None:
        """width: half of that of the hidden layers and of the appearance code's outputs; gain: that of `mapping_network`.

        Called last in a constructor: checkpoints and random numbers keep the order of parameters.
        """
        latents, depth = config.z_dist, config.nerf.mapping_depth
        self.shape_width = latents.dim - latents.dim_appearance
        appearance_width = latents.dim_appearance or self.shape_width
        self.shape_mapping = mapping_network(self.shape_width, 2 * width, n_shape_outputs, depth, gain)
        self.appearance_mapping = mapping_network(appearance_width, 2 * width, 2 * width, depth, gain)

    def mapped(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """The networks' outputs for latents (B, Z): (B, n_shape_outputs) of the shape code, and (B, 2 * width) of the
        appearance code, or of the shape code where there is no other."""
        shape, appearance = latents.tensor_split([self.shape_width], dim=-1)
        return self.shape_mapping(shape), self.appearance_mapping(appearance if appearance.shape[-1] else shape)


class FilmField(MappedField):
    """A radiance field whose layers are scaled and shifted by the latents (FiLM, Perez et al. 2018; pi-GAN, Chan et al. 2021).

    The scale is folded into each image's own copy of the weights, so that a layer costs one batched matrix product and one
    activation per sample. The shape code modulates the layers up to the density, the appearance code those of the colour.
    """

    fused = False  # whether all layers are one operation, where points need no gradient (graf/models/fields/fused_film.py)

    def __init__(self, config: Config, depth: int, width: int):
        super().__init__()
        self.config = config.nerf
        points_width = encoding_width(self.config.multires)
        views_width = encoding_width(self.config.multires_views) if self.config.use_viewdirs else 0
        self.layers = nn.ModuleList([nn.Linear(points_width if i == 0 else width, width) for i in range(depth)])
        self.density = nn.Linear(width, 1)
        self.colour_layer = nn.Linear(width + views_width, width)
        self.colour = nn.Linear(width, 3)
        self._build_mapping(config, width, depth * 2 * width, gain=0.25)

    def styles(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Scales and shifts (B, L, 2, C) of the L layers up to the density, and the colour's (B, 2, C), from latents (B, Z)."""
        of_layers, of_colour = self.mapped(latents)
        return of_layers.unflatten(-1, (len(self.layers), 2, -1)), of_colour.unflatten(-1, (2, -1))

    def forward(self, points: Tensor, view_directions: Tensor, styles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """See `ConcatField.forward`."""
        device_type = points.device.type
        if self.fused and torch.is_autocast_enabled(device_type) and not points.requires_grad:
            return self.fused_forward(points, styles, torch.get_autocast_dtype(device_type))
        b, r, s, _ = points.shape
        of_layers, of_colour = styles
        h = positional_encoding(points.flatten(1, 2), self.config.multires)  # (B, R S, C)
        for i, layer in enumerate(self.layers):
            h = F.relu(film_linear(layer, h, *of_layers[:, i].unbind(1)), inplace=True)
        density = self.density(h)
        if self.config.use_viewdirs:
            directions = positional_encoding(view_directions, self.config.multires_views)  # (B, R, C)
            directions = directions[:, :, None].expand(-1, -1, s, -1).flatten(1, 2).to(h.dtype)
            h = torch.cat([h, directions], dim=-1)
        h = F.relu(film_linear(self.colour_layer, h, *of_colour.unbind(1)), inplace=True)
        colour = self.colour(h)
        return density.float().view(b, r, s), colour.float().view(b, r, s, 3)

    def fused_forward(self, points: Tensor, styles: tuple[Tensor, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`forward` by a kernel that computes products in this number format."""
        width, layers = self.density.in_features, [*self.layers, self.colour_layer]
        of_layers, of_colour = styles
        scale, shift = torch.cat([of_layers, of_colour[:, None]], dim=1).float().unbind(2)  # (B, L + 1, C) each
        gain = 1 + scale
        weights = torch.stack([F.pad(layer.weight, (0, width - layer.in_features)) for layer in layers])  # (L + 1, C, C)
        biases = gain * torch.stack([layer.bias for layer in layers]) + shift
        heads = torch.cat([self.density.weight, self.colour.weight])
        head_biases = torch.cat([self.density.bias, self.colour.bias])
        inputs = points.flatten(1, 2), gain[..., None] * weights, biases, heads, head_biases, self.config.multires, dtype
        density, colour = FusedFilm.apply(*inputs)
        return density.view(points.shape[:3]), colour.view(points.shape)


def film_linear(layer: nn.Linear, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """(1 + scale) * layer(x) + shift, with x (B, N, C_in), scale and shift (B, C_out): (B, N, C_out)."""
    gain = 1 + scale
    weight = gain[:, :, None] * layer.weight  # (B, C_out, C_in)
    bias = (gain * layer.bias + shift)[:, None]
    if torch.compiler.is_compiling():  # which adds the bias in the activation's pass, where baddbmm takes one to copy it
        product = x @ weight.mT
        return product + bias.to(product.dtype)
    return torch.baddbmm(bias, x, weight.mT)


def mapping_network(width_in: int, width: int, width_out: int, depth: int, gain: float) -> nn.Sequential:
    """Latents to styles: `depth` layers. The styles start out as large as the last layer's input times `gain`; a small one
    leaves the field nearly unmodulated."""
    widths = [width_in, *[width] * (depth - 1)]
    layers: list[nn.Module] = []
    for a, b in zip(widths[:-1], widths[1:], strict=True):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    last = nn.Linear(widths[-1], width_out)
    nn.init.normal_(last.weight, std=gain / widths[-1] ** 0.5)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)
