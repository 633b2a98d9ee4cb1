"""Principal directions of a generator's shapes and appearances, and objects moved along them.

GANSpace (Härkönen et al., NeurIPS 2020, arXiv 2004.02546): the principal components of what the mapping networks make of
sampled latents. Fields without a mapping network have latents that vary alike in all directions, so there the components are
those of the opacity and the colour that the field has at fixed points, and a regression leads back to the latents, as GANSpace
does for BigGAN.

Legend: N sampled latents, W outputs of a part's mapping networks, the fine field's last, P points, K directions.
"""

import dataclasses
import math
from collections.abc import Sequence

from graf.camera import Labels
from graf.errors import GrafError
from graf.models.generator import Generator
from graf.private_torch import shallow_copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PARTS = ("shape", "appearance")
SAMPLES = 2048  # latents; a standard deviation is then known to some 2 %
POINTS = 256  # at which a field without a mapping network is looked at
AT_ONCE = 64  # latents, at all points
NEGLIGIBLE = 1e-9  # variance, as a share of the mean square, that is rounding


@dataclasses.dataclass(frozen=True)
class Principal:
    """The first K principal directions of one part, by falling variance.

    offsets (K, W): what one standard deviation along each adds to the outputs of the part's mapping networks, on the CPU;
    deviations (K,): the standard deviations; shares (K,): of the whole variance, in [0, 1].
    """

    offsets: Tensor
    deviations: Tensor
    shares: Tensor


Directions = dict[str, Principal]  # by PARTS


class Moved(nn.Module):
    """A mapping network whose outputs (..., W) are moved by an offset (W,)."""

    def __init__(self, mapping: nn.Module, offset: Tensor):
        super().__init__()
        self.mapping = mapping
        self.register_buffer("offset", offset)

    def forward(self, code: Tensor) -> Tensor:
        return self.mapping(code) + self.offset


def edited(
    generator: Generator, directions: Directions, shape: Sequence[float] = (), appearance: Sequence[float] = ()
) -> Generator:
    """A copy of the generator, which shares its weights and whose objects are moved along the first directions by so many
    standard deviations each.

    CCSR sees the latents as they are. Raises GrafError for more amounts than directions, for amounts that are not finite, and
    for another model's directions.
    """
    device, twin = generator.background.device, _twin(generator)
    for name, field in zip(("field", "field_fine"), generator.fields, strict=False):
        setattr(twin, name, _twin(field))
    outputs = _mapped(generator, torch.zeros(1, generator.config.z_dist.dim, device=device))
    for part, amounts in zip(PARTS, (shape, appearance), strict=True):
        widths = [of_field.shape[-1] for of_field in outputs[part]]
        offset = _offset(directions[part], part, amounts, sum(widths)).to(device)
        for field, of_field in zip(twin.fields, offset.split(widths), strict=True):
            setattr(field, f"{part}_mapping", Moved(getattr(field, f"{part}_mapping"), of_field))
    return twin


def _offset(known: Principal, part: str, amounts: Sequence[float], width: int) -> Tensor:
    """The offset (W,) of a part that is moved by so many standard deviations along each of its first directions."""
    amounts = torch.as_tensor(amounts, dtype=torch.float32)
    if amounts.ndim != 1 or not amounts.isfinite().all():
        raise GrafError(f"amounts of {part}: expected a list of finite numbers, found {amounts.tolist()}")
    if len(amounts) > len(known.offsets):
        raise GrafError(f"{len(amounts)} amounts of {part}, but only {len(known.offsets)} directions are known; give fewer")
    if len(amounts) == 0:
        return torch.zeros(width)
    if known.offsets.shape[1] != width:
        found = f"{known.offsets.shape[1]} numbers each, and this model's have {width}"
        raise GrafError(f"directions of {part}: {found}, so they are another model's; find its own")
    return amounts @ known.offsets[: len(amounts)]


@torch.inference_mode()
def principal_directions(generator: Generator, n: int, seed: int = 0) -> Directions:
    """The first n principal directions of shape and of appearance, or all that there are, the same for the same seed.

    Where the model knows classes they are those within a class: which class an object is of is not among them. Raises
    GrafError for a field that has no `mapped`, and for a negative n.
    """
    if n < 0:
        raise GrafError(f"directions: {n} of them are asked for; give 0 or more")
    if not all(hasattr(field, "mapped") for field in generator.fields):
        raise GrafError(f"directions: {type(generator.field).__name__} has no `mapped`, whose outputs' directions they are")
    device = generator.background.device
    latents = generator.sample_latents(SAMPLES, torch.Generator().manual_seed(seed)).to(device)
    classes = torch.arange(SAMPLES, device=device) % generator.n_classes
    labels = Labels(None, classes, classes)
    outputs = _mapped(generator, generator.condition(latents, labels))
    joined = {part: torch.cat(of_fields, dim=1) for part, of_fields in outputs.items()}
    responses = joined if has_mapping(generator) else _seen(generator, latents, labels)
    return {part: principal(responses[part], joined[part], classes, n) for part in PARTS}


def principal(responses: Tensor, outputs: Tensor, classes: Tensor, n: int) -> Principal:
    """The first n principal directions of responses (N, R), carried over to outputs (N, W) by regression, within classes (N,).

    For the outputs' own directions, give them as responses too: the regression is then exact. Directions without variance are
    left out. The numbers of an offset sum up to 0 or more, as the sign of a direction is arbitrary.
    """
    responses, outputs, classes = (values.cpu() for values in (responses, outputs, classes))  # MPS has no float64
    rounding = NEGLIGIBLE * responses.double().square().mean(0).sum()
    responses, outputs = (_without_class_means(values.double(), classes) for values in (responses, outputs))
    variances, coordinates = _coordinates(responses, n if outputs.shape[1] else 0, rounding)
    offsets = coordinates.mT @ outputs / len(outputs)  # least squares, as the coordinates are orthogonal
    offsets = torch.where(offsets.sum(1, keepdim=True) < 0, -offsets, offsets)
    shares = variances / responses.square().mean(0).sum()
    return Principal(*(values.float() for values in (offsets, variances.sqrt(), shares)))


def _coordinates(responses: Tensor, n: int, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """The n largest variances (K,), of those above rounding, of centred responses (N, R), and coordinates (N, K) of unit
    variance along their axes; from the smaller of the two matrices of products."""
    tall = len(responses) > responses.shape[1]
    products = responses.mT @ responses if tall else responses @ responses.mT
    variances, vectors = torch.linalg.eigh(products / len(responses))  # ascending
    variances, vectors = variances.flip(0)[:n], vectors.flip(1)[:, :n]
    kept = variances > rounding
    variances, vectors = variances[kept], vectors[:, kept]
    return variances, responses @ vectors / variances.sqrt() if tall else vectors * math.sqrt(len(responses))


def has_mapping(generator: Generator) -> bool:
    """Whether mapping networks with weights stand between the latents and the fields."""
    return any(True for field in generator.fields for _ in field.shape_mapping.parameters())


def _mapped(generator: Generator, latents: Tensor) -> dict[str, tuple[Tensor, ...]]:
    """The outputs of each field's mapping networks for latents (B, Z) with the class in them, by part."""
    return dict(zip(PARTS, zip(*(field.mapped(latents) for field in generator.fields), strict=True), strict=True))


def _seen(generator: Generator, latents: Tensor, labels: Labels) -> dict[str, Tensor]:
    """Opacity (N, P) of the objects of latents (N, Z) at fixed points, and the colour (N, 3 P) there that their appearance
    codes give the mean shape, weighted by how often something is there."""
    mean_shape = latents.clone()
    mean_shape[:, : generator.field.shape_width] = 0
    opacity, _ = _at_points(generator, latents, labels)
    _, colour = _at_points(generator, mean_shape, labels)
    return {"shape": opacity, "appearance": (colour * opacity.mean(0)[:, None]).flatten(1)}


def _at_points(generator: Generator, latents: Tensor, labels: Labels) -> tuple[Tensor, Tensor]:
    """Opacity (N, P) over a step of rendering, and colour (N, P, 3) in [0, 1], at fixed points of the field that is seen."""
    field, nerf, data, device = generator.fields[-1], generator.config.nerf, generator.config.data, latents.device
    half = (data.far - data.near) / 2
    low, high = generator.box if generator.box is not None else torch.tensor([[-half], [half]], device=device).expand(2, 3)
    points = low + (high - low) * torch.rand(POINTS, 3, generator=torch.Generator().manual_seed(0)).to(device)
    step = (data.far - data.near) / nerf.first_samples_per_ray
    activation = F.relu if nerf.density_activation == "relu" else F.softplus
    found = []
    for some in torch.arange(len(latents), device=device).split(AT_ONCE):
        styles = field.styles(generator.condition(latents[some], labels[some]))
        down = points.new_tensor([0.0, 0.0, -1.0]).expand(len(some), POINTS, 3)
        density, colour = field(points.expand(len(some), -1, -1)[:, :, None], down, styles)
        found.append((1 - torch.exp(-step * activation(density[..., 0])), colour[:, :, 0].sigmoid()))
    opacity, colour = zip(*found, strict=True)
    return torch.cat(opacity), torch.cat(colour)


def _without_class_means(values: Tensor, classes: Tensor) -> Tensor:
    """Values (N, C) minus the mean of their class."""
    members = F.one_hot(classes).to(values)  # (N, number of classes)
    return values - members @ (members.mT @ values / members.sum(0)[:, None])


def _twin(network: nn.Module) -> nn.Module:
    """A copy that shares all parameters and parts."""
    return shallow_copy(network, lambda parameter: parameter, lambda part: part)
