"""Camera pose of an image: a vision transformer (Dosovitskiy et al. 2021) whose tokens are patches, or come from convolutions.

Legend: B images, H x W their pixels, N tokens, D = d_model.
"""

import math

from graf.config.schema import PoseModelConfig
from graf.rotations import rotation_of_six

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FRAME = 16.0  # side of an image in units of the position embedding, whatever its pixels
LONGEST_WAVE = 100.0  # of the position embedding, in the same unit
GROUPS = 8  # of a normalisation in the convolutional stem
N_OUTPUTS = 9  # a translation, and a rotation as six numbers


class PoseEstimator(nn.Module):
    """Predicts the camera of an image of any size, a multiple of the token's side or not.

    `distance` is a buffer, the unit of the predicted translation: the mean distance of the training set's cameras.
    """

    distance: Tensor

    def __init__(self, config: PoseModelConfig, distance: float = 1.0, n_outputs: int = N_OUTPUTS):
        super().__init__()
        width, side = config.d_model, config.patch_size
        self.side = side
        self.tokens = _convolutional_stem(width, side) if config.token_type == "conv" else nn.Conv2d(3, width, side, side)
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width, config.num_heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(config.num_layers)
            )
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, n_outputs))
        self.register_buffer("distance", torch.tensor(float(distance)))

    def forward(self, images: Tensor) -> Tensor:
        """pose_c2w (B, 3, 4) of images (B, 3, H, W) in [-1, 1]; float32, under autocast too."""
        output = self.output(images)
        return torch.cat([rotation_of_six(output[:, 3:]), self.distance * output[:, :3, None]], dim=-1)

    def output(self, images: Tensor) -> Tensor:
        """The head's numbers (B, n_outputs), float32, of images (B, 3, H, W)."""
        height, width = images.shape[-2:]
        padding = (0, -width % self.side, 0, -height % self.side)
        maps = self.tokens(F.pad(images, padding, mode="replicate") if any(padding) else images)  # (B, D, h, w)
        tokens = maps.flatten(2).mT  # (B, N, D)
        features = self.layers(tokens + position_embedding(*maps.shape[-2:], maps.shape[1], images.device))  # (B, N, D)
        return self.head(features.mean(dim=1)).float()


def position_embedding(height: int, width: int, channels: int, device: torch.device | str) -> Tensor:
    """Sines and cosines (height * width, channels) of token positions, half of the channels for each direction.

    Positions are fractions of the frame, so that they do not depend on the resolution.
    """
    n = -(-channels // 4)  # frequencies, each with a sine and a cosine in both directions
    frequency = LONGEST_WAVE ** (-torch.arange(n, device=device) / n) * math.pi / 2
    y, x = (FRAME * (torch.arange(length, device=device) + 0.5) / length for length in (height, width))
    waves = [torch.cat([(place[:, None] * frequency).sin(), (place[:, None] * frequency).cos()], dim=1) for place in (y, x)]
    rows, columns = waves[0][:, None].expand(-1, width, -1), waves[1][None].expand(height, -1, -1)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)[:, :channels]


def _convolutional_stem(width: int, side: int) -> nn.Module:
    """Convolutions that halve the image until a token is `side` pixels wide (Xiao et al. 2021): learns from fewer images."""
    n, layers, before = int(math.log2(side)), [], 3
    for step in range(1, n + 1):
        after = width if step == n else GROUPS * max(1, width // (GROUPS * 2 ** (n - step)))
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(min(GROUPS, after), after), nn.GELU()]
        before = after
    return nn.Sequential(*layers, nn.Conv2d(before, width, 1))
