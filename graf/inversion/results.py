"""Results of an inversion: numbers, and the pictures, videos, meshes, splats and JSON that keep the object."""

import dataclasses
import hashlib
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from graf.camera import elevation_of_v, poses_at, rotation_poses, view_azimuths
from graf.checkpoints.latents_file import NAME, write_latents
from graf.data.views import edge_pixels
from graf.export.mesh import SUFFIXES, NoSurface, extract_mesh, write_mesh
from graf.export.splats import splats_of_surface, write_splats
from graf.models.generator import Generator
from graf.pictures.captions import Captions
from graf.pictures.outputs import as_uint8, picture, write_grid, write_video
from graf.pictures.sampling import Objects, fast_renderers, render_each, render_views
from graf.pictures.sweep import VIDEO_FRAMES, VIEWS, sheet_captions
from graf.runtime.files import read_object

import numpy as np
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

log = logging.getLogger("graf")

INVERSIONS = "inversion"  # the folder in an evaluation's that has a folder per inversion
MESH, SPLATS = "mesh", "splats.ply"
LONGEST_FOLDER = 60  # characters of it in that folder's name, which may take 255 bytes
LONGEST_NAME = 24  # characters of a target's caption
FAILED_DB, GOOD_DB = 12.0, 20.0  # PSNR below which the fit failed, and that of a typical fit
OTHER_BORDER = 0.5  # mean difference of two borders in [-1, 1] from which they are of different colours


@dataclasses.dataclass(frozen=True)
class Inversion:
    """One object, latents (1, Z) and class_index (1,), as N targets show it: their cameras pose_c2w (N, 3, 4), azimuth_deg
    and v (N,).

    `as_rendered` adds its images (N, 3, W, W) in [-1, 1] from there, their PSNR in dB and SSIM (N numbers each), and the loss.
    """

    latents: Tensor
    class_index: Tensor
    pose_c2w: Tensor
    azimuth_deg: Tensor
    v: Tensor
    images: Tensor | None = None
    psnr: tuple[float, ...] = ()
    ssim: tuple[float, ...] = ()
    loss: float = math.nan


def similarity(target: Tensor, image: Tensor) -> tuple[float, float]:
    """PSNR in dB (infinite for equal images) and SSIM (Wang et al. 2004; windows of 7 x 7) of images (3, H, W) at 8 bits."""
    pair = [as_uint8(x).movedim(0, -1).numpy() for x in (target, image)]
    with np.errstate(divide="ignore"):
        psnr = peak_signal_noise_ratio(*pair, data_range=255)
    return float(psnr), float(structural_similarity(*pair, channel_axis=-1, data_range=255))


def as_rendered(generator: Generator, inversion: Inversion, targets: Tensor, loss: float) -> Inversion:
    """The object and cameras of an inversion as a generator renders them, compared with targets (N, 3, W, W)."""
    n = len(targets)
    latents, class_index = inversion.latents.expand(n, -1), inversion.class_index.expand(n)
    images = generator.render(latents, inversion.pose_c2w, class_index=class_index).images
    psnr, ssim = zip(*map(similarity, targets.cpu(), images), strict=True)
    return dataclasses.replace(inversion, images=images, psnr=psnr, ssim=ssim, loss=loss)


def write_inversion(
    generator: Generator,
    inversion: Inversion,
    targets: Tensor,
    out: Path,
    names: Sequence[str],
    checkpoint: tuple[Path, int],
    footer: str | None = None,
) -> list[Path]:
    """Write what is left of an inversion: latents.json, targets (N, 3, W, W) beside their fits, an image grid and videos of the
    object from all sides, its mesh and its splats.

    checkpoint: the generator's, and its step. Image grids have captions where there is a footer.
    """
    numbers = as_json(inversion, targets, names)
    found = inversion.latents[0], inversion.class_index.item()
    kept = write_latents(out / NAME, generator, *found, *checkpoint, **numbers)  # first: `inversion_folder` reads it
    pictures = _write_pictures(generator, inversion, targets, out, names, footer)
    return [kept, *pictures, *_write_surface(generator, (inversion.latents, inversion.class_index), out)]


def _write_pictures(
    generator: Generator, inversion: Inversion, targets: Tensor, out: Path, names: Sequence[str], footer: str | None
) -> list[Path]:
    """Write targets beside their fits, and the object from all sides."""
    data = generator.config.data
    pairs = torch.stack([targets.cpu(), inversion.images], dim=1).flatten(0, 1)
    captions = Captions(footer, ("target", "found"), [Path(name).name[-LONGEST_NAME:] for name in names])
    files = [write_grid(out / "fit.png", as_uint8(pairs), 2, captions)]
    found = inversion.latents, inversion.class_index
    azimuth_deg = view_azimuths(VIEWS, data)
    poses = poses_at(azimuth_deg, inversion.v.mean().expand_as(azimuth_deg), sum(data.radius) / 2)
    sheet = picture(render_views(generator, found, poses), "rgb", data.near, data.far)
    captions = sheet_captions(poses, 1, azimuth_deg.tolist(), "rgb", data, footer)
    files.append(write_grid(out / "sweep.png", sheet, VIEWS, captions))
    renderers = fast_renderers(generator, found, VIDEO_FRAMES)
    frames = picture(render_each(renderers, rotation_poses(VIDEO_FRAMES, data)), "rgb", data.near, data.far)
    return files + [write_video(out / f"rotation{suffix}", frames) for suffix in (".mp4", ".gif")]


def _write_surface(generator: Generator, found: Objects, out: Path) -> list[Path]:
    """Write the object's mesh and splats. Where it has no surface, earlier ones in the folder are removed, with a warning."""
    try:
        mesh = extract_mesh(generator, *found)
    except NoSurface as error:
        log.warning("%s: neither mesh nor splats of this object; %s", out, error)
        for name in (SPLATS, *(MESH + suffix for suffix in SUFFIXES)):
            (out / name).unlink(missing_ok=True)
        return []
    return [*write_mesh(mesh, out / MESH), write_splats(out / SPLATS, splats_of_surface(mesh))]


def inversion_folder(parent: Path, targets: Tensor, names: Sequence[str]) -> Path:
    """The folder below parent for the results of targets (N, 3, W, W), named after the first one.

    It gets a number where the name is taken by other targets. Results of the same targets are replaced, which is logged.
    """
    first = Path(names[0]).stem[:LONGEST_FOLDER] + (f"_and_{len(names) - 1}_more" if len(names) > 1 else "")
    candidates = (parent / (first if i == 1 else f"{first}_{i}") for i in itertools.count(1))
    folder = next(folder for folder in candidates if not folder.exists() or _is_of(folder, targets))
    if folder.exists():
        log.info("%s: holds results of the same images, which are replaced", folder)
    return folder


def _is_of(folder: Path, targets: Tensor) -> bool:
    """Whether an existing folder has the results of these targets."""
    fits = read_object(folder / NAME).get("photographs") if folder.is_dir() else None
    fits = fits if isinstance(fits, list) else []
    return [fit.get("pixels_sha256") for fit in fits if isinstance(fit, dict)] == digests(targets)


def digests(targets: Tensor) -> list[str]:
    """The sha256 of each of targets (N, 3, W, W), by its pixels."""
    return [hashlib.sha256(target.cpu().numpy().tobytes()).hexdigest() for target in targets]


def failures(inversion: Inversion, targets: Tensor, names: Sequence[str]) -> Iterator[str]:
    """A warning per target whose fit failed by its PSNR, with advice."""
    for name, psnr, target, image in zip(names, inversion.psnr, targets.cpu(), inversion.images, strict=True):
        if psnr >= FAILED_DB:
            continue
        real, rendered = (_border(picture) for picture in (target, image))
        if (real - rendered).abs().mean() >= OTHER_BORDER:
            colours = (tuple(((colour + 1) * 127.5).round().int().tolist()) for colour in (real, rendered))
            cure = (
                "its border is about {}, where the model renders {}: cut the object out (transparent pixels get the model's "
                "background), or photograph it in front of that colour"
            ).format(*colours)
        else:
            cure = "is it one of the objects that the model was trained on, upright, in the middle and as large as those?"
        yield f"{name}: not found, PSNR {psnr:.1f} dB (a good fit has about {GOOD_DB:.0f}); {cure}"


def _border(picture: Tensor) -> Tensor:
    """(3,) median colour of the outermost pixels of a picture (3, H, W) in [-1, 1]."""
    return edge_pixels(picture).median(dim=1).values.clamp(-1, 1)


def as_json(inversion: Inversion, targets: Tensor, names: Sequence[str]) -> dict:
    """The inversion ready for JSON; psnr_db is null where a fit equals its target."""
    sha256 = digests(targets)
    fits = [
        {
            "photograph": name,
            "pixels_sha256": sha256[i],
            "azimuth_deg": inversion.azimuth_deg[i].item(),
            "elevation_deg": elevation_of_v(inversion.v[i].item()),
            "v": inversion.v[i].item(),
            "pose_c2w": inversion.pose_c2w[i].tolist(),
            "psnr_db": inversion.psnr[i] if math.isfinite(inversion.psnr[i]) else None,
            "ssim": inversion.ssim[i],
        }
        for i, name in enumerate(names)
    ]
    return {"photographs": fits, "loss": inversion.loss}
