"""From a rendering to the image that a user sees: CCSR with the field's camera and latents.

Legend: B images, h x w low-resolution pixels, s scale factor, Z latents.
"""

from graf.camera import azimuth_and_v
from graf.config import Config
from graf.models.ccsr import ConsistencyEnforcingModule, LightBackbone, ViewCodes
from graf.models.esrgan_weights import load_esrgan_weights
from graf.models.rrdb import RRDBBackbone, RRDBNet

from torch import Tensor, nn


class Refinement(nn.Module):
    """Consistency-controlling super-resolution (Super-NeRF, arXiv 2304.13518): code of the view, backbone, projection.

    The downsampling of what it answers with is exactly what it was given.
    """

    def __init__(self, config: Config):
        super().__init__()
        ccsr, data = config.ccsr, config.data
        self.view_codes = ViewCodes(
            ccsr.num_views, ccsr.elevation_bins, ccsr.code_channels, (data.vmin, data.vmax), ccsr.code_size
        )
        if ccsr.backbone == "light":
            self.backbone = LightBackbone(
                ccsr.scale_factor, ccsr.code_channels, config.z_dist.dim, ccsr.width, ccsr.depth, ccsr.width_upsampled
            )
        else:
            network = RRDBNet(ccsr.scale_factor, ccsr.num_rrdb_blocks, ccsr.nf, ccsr.gc)
            network.requires_grad_(not ccsr.freeze_backbone)
            self.backbone = RRDBBackbone(network, ccsr.code_channels, config.z_dist.dim)
        self.projection = ConsistencyEnforcingModule(ccsr.kernel, ccsr.scale_factor)

    def load_pretrained(self, path: str) -> None:
        """Start the rrdb backbone from a file of (Real-)ESRGAN weights. Raises CheckpointError."""
        load_esrgan_weights(self.backbone.network, path)

    def forward(self, low: Tensor, latents: Tensor, pose_c2w: Tensor, low_grid: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Images (B, 3, s h, s w), nothing clamped, of renderings low (B, 3, h, w), both about [-1, 1]; and the drift (B, 1) of
        the proposals that they were made of.

        latents (B, Z); pose_c2w (B, 3, 4); low_grid (B or 1, h, w, 2) where the rendering's rays pass, in pixels of a frame of
        side `width`.
        """
        codes = self.view_codes(*azimuth_and_v(pose_c2w), low_grid, width)
        proposal = self.backbone(low, codes, latents)
        return self.projection(proposal, low), self.projection.drift(proposal, low)
