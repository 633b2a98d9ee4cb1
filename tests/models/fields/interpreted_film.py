"""Prints, as JSON, what test_fused_film.py asserts of the fused field in Triton's interpreter.

By the layers' width: how far outputs and gradients are from the layers', each relative, in float32; the same in float16, of all
together; and whether a weight that is no number shows in the outputs. Each image has 204 samples, and its backward pass takes
four pieces.
"""

import json

from graf.config import CONFIG_DIR, load_config
from graf.models.fields import fused_film
from graf.models.fields.fusing import largest_error
from graf.models.fields.radiance_field import FilmField, recomputed

import torch

fused_film.TILE, fused_film.SCRATCH_BYTES = 64, 0
N_IMAGES, N_RAYS, N_SAMPLES = 2, 17, 12


def main() -> None:
    torch.manual_seed(0)
    print(json.dumps({width: facts(width) for width in fused_film.SAMPLES_AND_WARPS}))


def facts(width: int) -> dict:
    config = load_config(CONFIG_DIR / "default.yaml")
    field = FilmField(config, depth=3, width=width)
    latents, points = torch.randn(N_IMAGES, config.z_dist.dim), torch.rand(N_IMAGES, N_RAYS, N_SAMPLES, 3) * 2 - 1
    weights = torch.randn(N_IMAGES, N_RAYS, N_SAMPLES), torch.randn(N_IMAGES, N_RAYS, N_SAMPLES, 3)
    by_layers = values(field, latents, points, weights, field.forward)
    fused = values(field, latents, points, weights, fused_in(field, torch.float32))
    repeated = values(field, latents, points, weights, lambda *inputs: recomputed(fused_in(field, torch.float32), *inputs))
    field.layers[1].weight.data[0, 0] = torch.nan
    unfit = fused_in(field, torch.float16)(points, None, field.styles(latents))
    field.layers[1].weight.data[0, 0] = 0
    return {
        "float32": {name: ((fused[name] - x).norm() / x.norm()).item() for name, x in by_layers.items()},
        "float16": largest_error(field, latents, points, torch.float16),
        "recomputed": all(torch.equal(fused[name], x) for name, x in repeated.items()),
        "not finite": [not x.isfinite().any().item() for x in unfit],
    }


def fused_in(field: FilmField, dtype: torch.dtype):
    """The fused field as a function of what the field takes."""
    return lambda points, view_directions, styles: field.fused_forward(points, styles, dtype)


def values(field, latents, points, weights, evaluate) -> dict[str, torch.Tensor]:
    field.zero_grad()
    outputs = evaluate(points, points[:, :, 0], field.styles(latents))
    torch.autograd.backward(outputs, weights)
    gradients = {name: p.grad.clone() for name, p in field.named_parameters()}
    return dict(zip(("density", "colour"), (x.detach() for x in outputs), strict=True)) | gradients


if __name__ == "__main__":
    main()
