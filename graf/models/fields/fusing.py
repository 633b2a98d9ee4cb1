"""Whether training computes its fields' layers as one operation (graf/models/fields/fused_film.py)."""

import functools
import importlib.util

from graf.config import Config, NerfConfig
from graf.models.fields.fused_film import SAMPLES_AND_WARPS, TILE
from graf.models.fields.radiance_field import FilmField, encoding_width
from graf.runtime.out_of_memory import first_line, is_out_of_memory

import torch
from torch import Tensor

LEAST_CAPABILITY = 8, 0  # of an NVIDIA GPU: Ampere
LARGEST_ERROR = 0.1  # relative, of outputs and gradients, of which rounding to 16 bits makes 0.02


def why_not_fused(config: Config, device_type: str, dtype: torch.dtype) -> str:
    """Why the config's fields are computed layer by layer on this machine's devices of the type, in this number format; ""
    where they are not. The kernels are built for it, and compared with the layers, once per process."""
    nerf = config.nerf
    fields = [(nerf.netdepth, nerf.netwidth), (nerf.netdepth_fine, nerf.netwidth_fine)]
    fields = fields[: 2 if nerf.importance_samples_per_ray > 0 else 1]
    if config.training.fused_field == "none":
        return "training.fused_field=none"
    if device_type != "cuda" or not torch.cuda.is_available() or torch.version.cuda is None:
        return "no NVIDIA GPU is here"
    if dtype == torch.float32:
        return "numbers are float32"
    if nerf.conditioning != "film" or nerf.use_viewdirs:
        return "only a film field without view directions is fused"
    if wrong := [width for _, width in fields if width not in SAMPLES_AND_WARPS]:
        return f"nerf.netwidth is {wrong[0]}, not {' or '.join(map(str, SAMPLES_AND_WARPS))}"
    if (widest := encoding_width(nerf.multires)) > min(width for _, width in fields):
        return f"nerf.multires={nerf.multires} makes {widest} channels, more than nerf.netwidth"
    if torch.cuda.get_device_capability() < LEAST_CAPABILITY:
        return f"this {torch.cuda.get_device_name()} is older than Ampere"
    if importlib.util.find_spec("triton") is None:
        return "this PyTorch comes without Triton"
    return next(filter(None, (fault_of_kernels(depth, width, nerf.multires, dtype) for depth, width in fields)), "")


@functools.lru_cache
def fault_of_kernels(depth: int, width: int, multires: int, dtype: torch.dtype) -> str:
    """The fault of a fused field of this size on the GPU at hand, or "" without one; no random state is changed."""
    try:
        with torch.inference_mode(False), torch.enable_grad(), torch.random.fork_rng(devices=[torch.cuda.current_device()]):
            torch.manual_seed(0)
            config = Config(nerf=NerfConfig(multires=multires))
            field = FilmField(config, depth, width).to("cuda")
            latents, points = torch.randn(1, config.z_dist.dim), torch.rand(1, TILE // 16, 16, 3) * 2 - 1
            error = largest_error(field, latents.to("cuda"), points.to("cuda"), dtype)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return f"the kernel cannot be built, which often lacks a C compiler or Python's headers: {first_line(error)}"
    return "" if error <= LARGEST_ERROR else f"the kernel is off by {error:.0%} on this {torch.cuda.get_device_name()}"


def largest_error(field: FilmField, latents: Tensor, points: Tensor, dtype: torch.dtype) -> float:
    """The largest relative difference of a fused field's outputs and gradients from its layers'; inf where one is not
    finite. The layers compute in float32."""
    styles, found = field.styles(latents), []
    for outputs in (field(points, points[:, :, 0], styles), field.fused_forward(points, styles, dtype)):
        total = sum(output.square().sum() for output in outputs)
        found.append([*outputs, *torch.autograd.grad(total, list(field.parameters()), retain_graph=True)])
    errors = [((value - right).norm() / right.norm()).nan_to_num(torch.inf) for right, value in zip(*found, strict=True)]
    return max(error.item() for error in errors)
