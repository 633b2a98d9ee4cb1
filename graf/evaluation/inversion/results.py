"""Results of an inversion: numbers, and the pictures, videos and JSON that show them."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

from graf.camera import elevation_of_v, poses_at, rotation_poses, view_azimuths
from graf.evaluation.captions import Captions
from graf.evaluation.outputs import as_uint8, picture, write_grid, write_video
from graf.evaluation.sampling import fast_renderers, render_each, render_views
from graf.evaluation.sweep import VIDEO_FRAMES, VIEWS, sheet_captions
from graf.models.generator import Generator
from graf.runtime.files import write_text

import numpy as np
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

LONGEST_NAME = 24  # characters of a photograph's name beside it


@dataclasses.dataclass(frozen=True)
class Inversion:
    """One object, latents (1, Z) and class_index (1,), as N photographs show it: their cameras pose_c2w (N, 3, 4), azimuth_deg
    and v (N,); its images (N, 3, W, W) in [-1, 1] from there, their PSNR in dB and SSIM (N numbers each), and the loss."""

    latents: Tensor
    class_index: Tensor
    pose_c2w: Tensor
    azimuth_deg: Tensor
    v: Tensor
    images: Tensor
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    loss: float


def similarity(photograph: Tensor, image: Tensor) -> tuple[float, float]:
    """PSNR in dB (infinite for equal images) and SSIM (Wang et al. 2004; windows of 7 x 7) of images (3, H, W) at 8 bits."""
    pair = [as_uint8(x).movedim(0, -1).numpy() for x in (photograph, image)]
    with np.errstate(divide="ignore"):
        psnr = peak_signal_noise_ratio(*pair, data_range=255)
    return float(psnr), float(structural_similarity(*pair, channel_axis=-1, data_range=255))


def write_inversion(
    generator: Generator,
    inversion: Inversion,
    photographs: Tensor,
    out: Path,
    names: Sequence[str],
    footer: str | None = None,
) -> list[Path]:
    """Write photographs (N, 3, W, W) beside their fits, the object from all sides as sheet and videos, and numbers as JSON; the
    sheets with captions where there is a footer."""
    data = generator.config.data
    pairs = torch.stack([photographs.cpu(), inversion.images], dim=1).flatten(0, 1)
    captions = Captions(footer, ("photograph", "found"), [Path(name).name[-LONGEST_NAME:] for name in names])
    files = [write_grid(out / "fit.png", as_uint8(pairs), 2, captions)]
    found = inversion.latents, inversion.class_index
    azimuth_deg = view_azimuths(VIEWS, data)
    poses = poses_at(azimuth_deg, inversion.v.mean().expand_as(azimuth_deg), sum(data.radius) / 2)
    sheet = picture(render_views(generator, found, poses), "rgb", data.near, data.far)
    captions = sheet_captions(poses, 1, VIEWS, "rgb", data, footer)
    files.append(write_grid(out / "sweep.png", sheet, VIEWS, captions))
    renderers = fast_renderers(generator, found, VIDEO_FRAMES)
    frames = picture(render_each(renderers, rotation_poses(VIDEO_FRAMES, data)), "rgb", data.near, data.far)
    files += [write_video(out / f"rotation{suffix}", frames) for suffix in (".mp4", ".gif")]
    write_text(out / "inversion.json", json.dumps(as_json(inversion, names), indent=1, allow_nan=False))
    return [*files, out / "inversion.json"]


def as_json(inversion: Inversion, names: Sequence[str]) -> dict:
    """Plain values; psnr_db is null where a fit equals its photograph."""
    rows = [
        {
            "photograph": name,
            "azimuth_deg": inversion.azimuth_deg[i].item(),
            "elevation_deg": elevation_of_v(inversion.v[i].item()),
            "v": inversion.v[i].item(),
            "pose_c2w": inversion.pose_c2w[i].tolist(),
            "psnr_db": inversion.psnr[i] if math.isfinite(inversion.psnr[i]) else None,
            "ssim": inversion.ssim[i],
        }
        for i, name in enumerate(names)
    ]
    return {
        "photographs": rows,
        "class_index": inversion.class_index.item(),
        "loss": inversion.loss,
        "latents": inversion.latents[0].tolist(),
    }
