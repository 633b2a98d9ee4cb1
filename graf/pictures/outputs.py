"""Pictures and videos of renderings; files are written atomically."""

import errno
import math
from collections.abc import Sequence
from pathlib import Path

from graf.models.generator import Rendering
from graf.pictures.captions import DEPTH_COLOURS, Captions, captioned, enlarged
from graf.runtime.files import whole_file

import imageio.v2 as imageio
import matplotlib
import numpy as np
import torch
from torch import Tensor
from torchvision.utils import make_grid

BARE = Captions(None)
SMALLEST_VIDEO = 256  # pixels; a player's controls would cover less
WIDEST_VIDEO = 16_384  # pixels that libx264 encodes
FPS = 30  # of a video
PICTURE_MS, TIMES_OF_LAST = 400, 5  # of a gif of picture files
KINDS = ("rgb", "depth", "opacity")  # and "nerf", the field's own rendering where it is refined


def as_uint8(images: Tensor) -> Tensor:
    """Images in [-1, 1] as the nearest of 256 levels."""
    return ((images.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def picture(rendering: Rendering, kind: str, near: float, far: float) -> Tensor:
    """The rendering as uint8 pictures (B, 3, H, W) of a kind: rgb, depth in colours from near (bright) to far, opacity or nerf.

    nerf is the rendering of the field before refinement, enlarged.
    """
    if kind == "rgb":
        return as_uint8(rendering.images)
    if kind == "nerf":
        low = rendering.images if rendering.low_images is None else rendering.low_images
        return as_uint8(torch.nn.functional.interpolate(low, rendering.images.shape[-1], mode="nearest"))
    if kind == "opacity":
        return as_uint8(rendering.opacity * 2 - 1).expand(-1, 3, -1, -1)
    closeness = ((far - rendering.depth[:, 0]) / (far - near)).clamp(0, 1).numpy()
    colours = matplotlib.colormaps[DEPTH_COLOURS](closeness)[..., :3] * rendering.opacity[:, 0, :, :, None].numpy()
    return as_uint8(torch.from_numpy(colours).movedim(-1, 1) * 2 - 1)


def write_grid(path: Path, pictures: Tensor, columns: int, captions: Captions = BARE) -> Path:
    """Write uint8 pictures (N, 3, H, W) as one PNG with so many columns; captions enlarge small pictures."""
    if captions.footer is None:
        return write_image(path, make_grid(pictures, nrow=columns, padding=2, pad_value=255))
    return write_image(path, captioned(pictures, columns, captions))


def write_image(path: Path, picture: Tensor) -> Path:
    """Write a uint8 picture (3, H, W) as a PNG."""
    with whole_file(path) as temporary:
        imageio.imwrite(temporary, picture.movedim(0, -1).numpy())
    return path


def write_video(path: Path, frames: Tensor) -> Path:
    """Write uint8 frames (T, 3, H, W) as an mp4 or an endless gif, by the path's suffix.

    Frames are enlarged to at least SMALLEST_VIDEO pixels in width, for an mp4 in height too. Odd sizes gain a row or column.
    Raises OSError where the encoder fails, which leaves an earlier file as it is.
    """
    height, width = frames.shape[-2:]
    frames = enlarged(frames, SMALLEST_VIDEO / (width if path.suffix == ".gif" else min(height, width)))
    frames = torch.nn.functional.pad(frames, (0, frames.shape[-1] % 2, 0, frames.shape[-2] % 2))
    pictures = np.ascontiguousarray(frames.movedim(1, -1).numpy())
    with whole_file(path) as temporary:
        if path.suffix == ".gif":
            imageio.mimwrite(temporary, pictures, duration=1000 / FPS, loop=0)
        else:
            imageio.mimwrite(temporary, pictures, fps=FPS, codec="libx264", quality=8, macro_block_size=2)
        if not temporary.stat().st_size:  # ffmpeg has refused the frames, after the last was given to it
            raise OSError(errno.EIO, f"no video was made of {len(frames)} frames of {width} x {height} pixels", str(path))
    return path


def video_width(side: int, n_objects: int) -> int:
    """Width in pixels of an mp4 of square pictures of n objects beside each other, as `write_video` enlarges them."""
    return n_objects * side * max(1, math.ceil(SMALLEST_VIDEO / side))


def write_gif(path: Path, pictures: Sequence[Path]) -> Path:
    """Write picture files as an endless gif, each shown for PICTURE_MS and the last one TIMES_OF_LAST times as long.

    Pictures of another size than the last are left out.
    """
    last = imageio.imread(pictures[-1])
    with whole_file(path) as temporary, imageio.get_writer(temporary, duration=PICTURE_MS, loop=0) as writer:
        for picture in map(imageio.imread, pictures[:-1]):
            if picture.shape == last.shape:
                writer.append_data(picture)
        for _ in range(TIMES_OF_LAST):  # equal frames become one, with the sum of their times
            writer.append_data(last)
    return path


def side_by_side(pictures: Tensor, n_objects: int) -> Tensor:
    """Frames (V, 3, H, N * W) with N objects beside each other, of pictures (N * V, 3, H, W) object by object."""
    views = pictures.unflatten(0, (n_objects, -1))
    return torch.cat(views.unbind(0), dim=-1)
