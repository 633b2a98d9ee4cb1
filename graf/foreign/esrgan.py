"""Loads public ESRGAN and Real-ESRGAN weights into an RRDBNet, from any of their three layouts.

old architecture    model.1.sub.0.RDB1.conv1.0.weight      ESRGAN's first release, most community models
new architecture    RRDB_trunk.0.RDB1.conv1.weight         ESRGAN's second release
BasicSR             body.0.rdb1.conv1.weight               Real-ESRGAN, wrapped in `params_ema` or `params`
"""

import logging
import re
from pathlib import Path

from graf.errors import CheckpointError
from graf.foreign.checkpoints import Weights, some

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

log = logging.getLogger("graf")

FIRST = "conv_first.weight"
FIRST_CHANNELS = (3, 12, 48)  # that the first convolution takes, by scale factor
NEW_TO_BASICSR = (
    ("RRDB_trunk.", "body."),
    (".RDB", ".rdb"),
    ("trunk_conv.", "conv_body."),
    ("upconv", "conv_up"),
    ("HRconv.", "conv_hr."),
)


def load_esrgan_weights(network: nn.Module, path: Path | str) -> None:
    """Copy the file's weights into a models.rrdb.RRDBNet, all of them but those that another scale factor replaces.

    Those are the first convolution's weight where it takes other channels and, in the old architecture, upsampling
    convolutions that only one of the two has; each is named in the log. Raises CheckpointError for a file that cannot be read,
    is incomplete or holds another network, and where what it leaves at random values is frozen.
    """
    content = read_weights(Path(path))
    weights = to_basicsr(content, path)
    own = network.state_dict()
    old = "model.0.weight" in content
    if old and network.unshuffle > 1 and "conv_up2.weight" not in weights:
        raise CheckpointError(
            f"{path}: of the old architecture at scale 2, whose layers work on single pixels, which this network's do not; "
            "take weights of a x4 network, or of Real-ESRGAN's x2"
        )
    first, folded = weights.get(FIRST), ""
    if first is not None and first.shape[1:] == (3, 3, 3) and network.unshuffle > 1:
        weights[FIRST] = fold_first_convolution(first, network.unshuffle)
        folded = f"; {FIRST}, of a x4 network, sees the means of {network.unshuffle} x {network.unshuffle} pixels"
    taken = {name: tensor for name, tensor in weights.items() if name in own and tensor.shape == own[name].shape}
    left = sorted((weights.keys() | own.keys()) - taken.keys())
    if not taken or not _replaced(weights, own, upsamplings_vary=old).issuperset(left):
        raise CheckpointError(_mismatch(path, weights, own, left))
    frozen = [name for name, parameter in network.named_parameters() if name in left and not parameter.requires_grad]
    if frozen:
        raise CheckpointError(
            f"{path}: of another scale factor, which leaves {', '.join(frozen)} at random values, and frozen; take weights "
            "of this scale factor, or set ccsr.rrdb.freeze: false"
        )
    network.load_state_dict(taken, strict=False)
    log.info("%s: took %d of %d tensors%s", path, len(taken), len(weights), folded)
    if left:
        log.warning("%s: of another scale factor; not taken, or not in it: %s", path, ", ".join(left))


def read_weights(path: Path) -> Weights:
    """The tensors of a .pth, .pt or .safetensors file by name, on the CPU. Raises CheckpointError."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file of pretrained weights")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can make either library raise nearly anything
        raise CheckpointError(f"{path}: not weights that can be read ({type(error).__name__}: {error})") from None
    if isinstance(content, dict):
        content = content.get("params_ema", content.get("params", content))
    if not isinstance(content, dict) or not all(isinstance(tensor, Tensor) for tensor in content.values()):
        raise CheckpointError(f"{path}: expected tensors by name, as BasicSR and ESRGAN save them")
    return content


def to_basicsr(weights: Weights, path: Path | str) -> Weights:
    """The weights under BasicSR's names. Raises CheckpointError for a layout that is none of the three."""
    if "conv_body.weight" in weights:
        return dict(weights)
    if "trunk_conv.weight" in weights:
        return {_replace_all(name, NEW_TO_BASICSR): tensor for name, tensor in weights.items()}
    if "model.0.weight" in weights:
        return _from_old_architecture(weights, path)
    raise CheckpointError(f"{path}: not weights of ESRGAN's RRDBNet in a known layout; its tensors are {some([*weights])}")


def fold_first_convolution(weight: Tensor, u: int) -> Tensor:
    """A first convolution (nf, 3, 3, 3) for an input folded u x u: (nf, 3 u u, 3, 3), the same upon the input's u x u means.

    So a x4 network serves a smaller scale factor with its trunk at the size that it was trained for. What the means lose, the
    projection puts back.
    """
    return weight.repeat_interleave(u * u, dim=1) / u**2


def _replace_all(name: str, replacements: tuple[tuple[str, str], ...]) -> str:
    for old, new in replacements:
        name = name.replace(old, new)
    return name


def _replaced(weights: Weights, own: Weights, upsamplings_vary: bool) -> set[str]:
    """Names of what another scale factor replaces: a first convolution of as many filters for other channels and, where their
    number varies, whole upsampling convolutions."""
    names = set()
    filters, _, *kernel = own[FIRST].shape
    if FIRST in weights and weights[FIRST].shape in [(filters, channels, *kernel) for channels in FIRST_CHANNELS]:
        names.add(FIRST)
    for module in {name.rpartition(".")[0] for name in weights.keys() | own.keys() if name.startswith("conv_up")}:
        both = {f"{module}.weight", f"{module}.bias"}
        if upsamplings_vary and (both.isdisjoint(weights) or both.isdisjoint(own)):
            names |= both
    return names


def _from_old_architecture(weights: Weights, path: Path | str) -> Weights:
    """model.0 is the first convolution, model.1.sub the trunk, behind it the others, numbered among layers without weights."""
    tail = sorted({int(number) for number in re.findall(r"^model\.(\d+)\.", "\n".join(weights), re.MULTILINE)} - {0, 1})
    n = len(tail) - 2
    if tail != [*range(3, 3 * n + 1, 3), 3 * n + 2, 3 * n + 4]:  # after each upsampling an activation and the next enlargement
        raise CheckpointError(f"{path}: layers {tail} behind the trunk are not all of an RRDBNet's; the file is incomplete")
    upsampling = [f"conv_up{i + 1}" for i in range(n)]
    names = {f"model.{i}.": f"{new}." for i, new in zip(tail, [*upsampling, "conv_hr", "conv_last"], strict=True)}
    names["model.0."] = "conv_first."
    renamed = {}
    for name, tensor in weights.items():
        new = re.sub(r"^model\.1\.sub\.(\d+)\.RDB(\d)\.conv(\d)\.0\.", r"body.\1.rdb\2.conv\3.", name)
        new = re.sub(r"^model\.1\.sub\.\d+\.(weight|bias)$", r"conv_body.\1", new)
        renamed[_replace_all(new, tuple(names.items()))] = tensor
    return renamed


def _mismatch(path: Path | str, weights: Weights, own: Weights, left: list[str]) -> str:
    message = f"{path}: another network than the config's; {len(left)} tensors do not match, as {', '.join(left[:3])}"
    found, expected = ("num_blocks {}, nf {}, gc {}".format(*(n or "?" for n in network_size(of))) for of in (weights, own))
    return f"{message}. The file has {found}, the config {expected}"


def network_size(weights: Weights) -> tuple[int, int, int]:
    """The values of num_blocks, nf and gc that weights under BasicSR's names are of; 0 for what they do not tell."""
    blocks = {name.split(".")[1] for name in weights if name.startswith("body.")}
    growth = weights.get("body.0.rdb1.conv1.weight")
    gc, nf = growth.shape[:2] if growth is not None and growth.ndim == 4 else (0, 0)
    return len(blocks), nf, gc
