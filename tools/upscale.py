"""Enlarge a photograph with ESRGAN or Real-ESRGAN weights, to check them before a run starts from them.

    python tools/upscale.py data/weights/realesrgan-x4plus.pth photo.png results/upscaled.png

The output shows, side by side: the photograph's enlarged pixels, the network's output, and its projection onto the images whose
downsampling is the photograph, as in CCSR.
"""

from pathlib import Path

from graf.data.decoding import open_rgb
from graf.errors import CheckpointError, GrafError
from graf.foreign.esrgan import (
    FIRST,
    FIRST_CHANNELS,
    load_esrgan_weights,
    network_size,
    read_weights,
    to_basicsr,
)
from graf.models.projection import ConsistencyEnforcingModule
from graf.models.rrdb import RRDBNet
from graf.pictures.outputs import as_uint8, write_grid
from graf.runtime.command_line import Parser, whole_number
from graf.runtime.console import log, run_script

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.functional import pil_to_tensor

LARGEST = 1536  # side of the enlarged square, pixels, of which the network holds three copies of 0.6 GB in 64 channels


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("weights", type=Path, help="file of weights, for example from tools/convert_realesrgan.py")
    parser.add_argument("photo", type=Path, help="the photograph")
    parser.add_argument("output", type=Path, help="new PNG file to write")
    parser.add_argument("--scale", type=int, choices=[2, 4], default=4, help="scale factor of the weights")
    parser.add_argument("--shrink", type=whole_number, default=1, help="first shrink the photograph by this factor")
    args = parser.parse_args()
    if args.output.suffix.lower() != ".png":
        raise GrafError(f"{args.output}: expected the name of a PNG file, such as {args.output}.png")
    if args.output.exists() and args.photo.exists() and args.output.samefile(args.photo):
        raise GrafError(f"{args.output}: the photograph itself, which would be replaced; name another file to write")
    if args.output.exists():
        raise GrafError(f"{args.output}: exists already; move it away, or name another file to write")
    network = load_network(args.weights, args.scale)
    photo = read_photo(args.photo, args.shrink, args.scale)
    pictures, before, after = upscale(network, photo, args.scale)
    write_grid(args.output, as_uint8(pictures), columns=3)
    log.info("max |H x - y| of images in [-1, 1]: %.1e by the network alone, %.1e projected", before, after)
    log.info("%s", args.output)


def load_network(path: Path | str, scale: int) -> RRDBNet:
    """The network of a file of weights, of the size that they are of. Raises CheckpointError."""
    weights = to_basicsr(read_weights(Path(path)), path)
    n_blocks, nf, gc = network_size(weights)
    if not nf or not gc:
        raise CheckpointError(f"{path}: not an RRDBNet; expected weights of ESRGAN or Real-ESRGAN")
    if scale == 4 and weights[FIRST].shape[1] == FIRST_CHANNELS[1]:
        raise CheckpointError(f"{path}: weights of scale 2; give --scale 2")
    network = RRDBNet(scale, n_blocks, nf, gc).eval().requires_grad_(False)
    load_esrgan_weights(network, path)
    return network


def read_photo(path: Path | str, shrink: int, scale: int) -> Tensor:
    """The photograph (1, 3, H, W) in [-1, 1]. Raises GrafError for what cannot be read or is too large to enlarge."""
    if shrink < 1:
        raise GrafError(f"--shrink {shrink}: expected a whole number above 0")
    try:
        picture = open_rgb(path, (1.0, 1.0, 1.0))
    except ValueError as error:
        raise GrafError(f"{path}: {str(error).partition(';')[0]}; give another photograph") from None
    width, height = (side // shrink for side in picture.size)
    if min(width, height) < 1:
        raise GrafError(
            f"--shrink {shrink}: nothing is left of {picture.width} x {picture.height} pixels; take a smaller number"
        )
    if width * height * scale**2 > LARGEST**2:
        raise GrafError(
            f"{path}: {width} x {height} pixels, and at most {(LARGEST // scale) ** 2:,} can be enlarged {scale} times; make "
            "it smaller with --shrink"
        )
    image = pil_to_tensor(picture)[None] / 127.5 - 1
    return F.interpolate(image, (height, width), mode="bicubic", antialias=True).clamp(-1, 1) if shrink > 1 else image


@torch.inference_mode()
def upscale(network: RRDBNet, photo: Tensor, scale: int) -> tuple[Tensor, float, float]:
    """The photograph (1, 3, h, w) enlarged three ways (3, 3, s h, s w), and max |H x - y| without and with projection."""
    projection = ConsistencyEnforcingModule("bicubic", scale)
    proposal = network((photo + 1) / 2) * 2 - 1
    projected = projection(proposal, photo)
    before, after = (float((projection.downsample(x) - photo).abs().max()) for x in (proposal, projected))
    pixels = F.interpolate(photo, scale_factor=scale, mode="nearest")
    return torch.cat([pixels, proposal, projected]), before, after


if __name__ == "__main__":
    run_script(main)
