"""The generator: latents and cameras -> images, by volume-rendering a conditional radiance field.

Legend: B images, R = h * w rays per image, S samples per ray, Z latents.
"""

import copy
import dataclasses
import hashlib
from numbers import Integral
from typing import Any

from graf.camera import Labels
from graf.config import Config
from graf.errors import GrafError
from graf.models.background import BackgroundPlane
from graf.models.ccsr import Refinement
from graf.models.encoder import Encoder
from graf.models.fields.radiance_field import recomputed
from graf.models.projection import ConsistencyEnforcingModule
from graf.models.registry import build_field
from graf.pieces import is_asynchronous, rays_of_a_piece, render_images
from graf.private_torch import shallow_copy
from graf.rays import camera_rays, clip_to_box, depth_bounds, full_grid, low_resolution_grid
from graf.rendering import RayNoise, composite, interval_lengths, sample_pdf, stratified_depths
from graf.tensors import each_tensor

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NOISE_STEPS = 5000  # over which nerf.decrease_noise takes the density noise to zero (GRAF)
TOGETHER = 64  # rays or samples of an image are computed in multiples of this number
EMPTY_DISPARITY = 1e10  # of a ray that hits nothing (NeRF)


@dataclasses.dataclass(frozen=True)
class Rendering:
    """The generator's output; h x w is the full frame or a patch.

    images (B, 3, h, w) in [-1, 1], or about that where CCSR refines them; depth (B, 1, h, w) in scene units, planar, `far`
    where the ray is empty; disparity (B, 1, h, w) = 1 / depth, 1e10 where the ray is empty; opacity (B, 1, h, w) in [0, 1].
    With a fine network, coarse_images and coarse_opacity are the coarse network's: the loss is on both, or the coarse one
    would never learn. Where ccsr.mode is refine, low_images (B, 3, h / s, w / s) are the field's own rendering, which the
    images' downsampling equals, drift (B, 1) is how far CCSR's proposals were from it, and depth, disparity and opacity have
    its size until `at` enlarges them.
    """

    images: Tensor
    depth: Tensor
    disparity: Tensor
    opacity: Tensor
    coarse_images: Tensor | None = None
    coarse_opacity: Tensor | None = None
    low_images: Tensor | None = None
    drift: Tensor | None = None

    def at(self, width: int) -> "Rendering":
        """Depth, disparity and opacity enlarged to a side of `width` pixels, as refined images have it."""
        if self.depth.shape[-1] == width:
            return self
        maps = {"depth": self.depth, "disparity": self.disparity, "opacity": self.opacity}
        return dataclasses.replace(self, **{name: F.interpolate(x, width, mode="nearest") for name, x in maps.items()})

    def to(self, device: torch.device | str) -> "Rendering":
        return each_tensor(self, lambda x: x.to(device))

    @staticmethod
    def cat(parts: list["Rendering"], dim: int = 0) -> "Rendering":
        """The parts joined along a dimension, map by map."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return Rendering(*(None if maps[0] is None else torch.cat(maps, dim) for maps in columns))

    def unflatten(self, height: int) -> "Rendering":
        """Maps of rays (B, h * w, C) as pictures (B, C, h, w)."""
        return each_tensor(self, lambda x: x.mT.unflatten(-1, (height, -1)))


class Generator(nn.Module):
    """A conditional radiance field and its renderer (GRAF, Schwarz et al. 2020).

    With ccsr.mode: refine the field is rendered at 1 / scale_factor of the resolution and refined; with `consistency` it is
    rendered at full resolution, and `restore` is what training pulls it towards. With more than one class and a discriminator
    that knows it, the class enters as an embedding added to the latents.
    """

    evaluated_share = 1.0  # of a ray's samples, in `render`
    class_names: tuple[str, ...] = ()  # where they are known: as the data's folders were called

    def __init__(self, config: Config, n_classes: int = 1):
        super().__init__()
        self.config = config
        nerf, latents = config.nerf, config.z_dist
        self.field = build_field(config, nerf.netdepth, nerf.netwidth)
        self.field_fine = None
        if nerf.importance_samples_per_ray > 0:
            self.field_fine = build_field(config, nerf.netdepth_fine, nerf.netwidth_fine)
        self.refinement = Refinement(config) if config.ccsr.mode != "none" else None
        self.class_embedding = None
        if n_classes > 1 and config.discriminator.knows_classes:
            self.class_embedding = nn.Embedding(n_classes, latents.dim)
        self.register_buffer("background", torch.tensor(config.data.background), persistent=False)
        self.background_model = BackgroundPlane(config) if config.data.background_model == "plane" else None
        self.encoder = Encoder(config, self.latent_dim) if config.encodes_images else None
        box = config.data.box  # auto, where no data set is there that would tell it, is none
        self.register_buffer("box", None if isinstance(box, str) else torch.tensor(box).view(2, 3), persistent=False)

    @property
    def fields(self) -> list[nn.Module]:
        """Its radiance fields, the fine one last."""
        return [self.field] if self.field_fine is None else [self.field, self.field_fine]

    @property
    def n_classes(self) -> int:
        """The number of classes that it knows, at least 1."""
        return 1 if self.class_embedding is None else self.class_embedding.num_embeddings

    @property
    def projection(self) -> ConsistencyEnforcingModule | None:
        """CCSR's, with the downsampling H of which refined images are consistent; None where images are not refined."""
        return self.refinement.projection if self.config.ccsr.mode == "refine" else None

    @property
    def latent_dim(self) -> int:
        """The width of its latents: shape, appearance and, where it has backgrounds of its own, theirs."""
        return self.config.z_dist.dim + (0 if self.background_model is None else self.background_model.dim)

    def without_background(self) -> "Generator":
        """The generator, which shares its weights, of the same latents' objects before data.background."""
        twin = copy.copy(self)
        twin.config = dataclasses.replace(self.config, data=dataclasses.replace(self.config.data, background_model="none"))
        return twin

    def unrefined(self) -> "Generator":
        """The generator, which shares its weights, of the field's own renderings, without CCSR."""
        twin = shallow_copy(self, lambda parameter: parameter, lambda part: part)  # whose parts can be others
        twin.config, twin.refinement = self.config.unrefined(), None
        return twin

    def sample_latents(self, n: int, rng: torch.Generator | None = None) -> Tensor:
        """(n, Z) latents sampled as z_dist says, on the generator's device (the CPU without one)."""
        latents, device = self.config.z_dist, rng.device if rng else "cpu"
        if latents.type == "gauss":
            return torch.randn(n, self.latent_dim, generator=rng, device=device)
        return 2 * torch.rand(n, self.latent_dim, generator=rng, device=device) - 1

    def forward(
        self,
        latents: Tensor,
        labels: Labels,
        grid: Tensor | None = None,
        resolution: int | None = None,
        noise: RayNoise | None = None,
        rays_at_once: int = 0,
    ) -> Rendering:
        """Render latents (B, Z) from the labels' cameras, and of their classes.

        grid (B or 1, h, w, 2): positions in the frame, in pixels; the full frame of `resolution` (default data.imsize)
        pixels a side without it. With `noise`, which `sample_noise` makes, samples lie as training has them; without it, the
        picture is free of grain. Activations are held of rays_at_once rays at a time and computed again for the others in the
        backward pass (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016); 0 holds all. Where CCSR learns from
        real images, its weights get no gradient from here, but from `restore_with_drift`.
        """
        width = resolution or self.config.data.imsize
        grid = low_resolution_grid(full_grid(width, latents.device) if grid is None else grid, self.config.rendered_scale)
        rays, device_type = len(latents) * grid[0, ..., 0].numel(), latents.device.type
        recompute = 0 < rays_at_once < rays
        at_once = rays_at_once if recompute else rays_of_a_piece(self.config.nerf, rays, device_type)
        piece, fixed_shapes = max(1, at_once // len(latents)), is_asynchronous(device_type)
        return self._render_grid(latents, labels, grid, width, piece, noise, recompute, fixed_shapes)

    @torch.inference_mode()
    def render(
        self, latents: Tensor, pose_c2w: Tensor, resolution: int | None = None, class_index: Tensor | None = None
    ) -> Rendering:
        """The full frame of latents (B, Z) from cameras pose_c2w (B, 3, 4), without grain, in the pieces of graf/pieces.py.

        resolution in pixels (default data.imsize), class_index (B,), or one for all, for a model that knows classes. Numbers of
        any type are taken as float32. The result is on the latents' device. Raises GrafError for shapes, a resolution or
        classes that do not fit the model, and OutOfMemory where memory does not suffice for a hundred rays.
        """
        latents, pose_c2w = (torch.as_tensor(numbers, dtype=torch.float32) for numbers in (latents, pose_c2w))
        n = latents.shape[:1].numel()
        if latents.shape != (n, self.latent_dim) or pose_c2w.shape != (n, 3, 4) or n == 0:
            raise GrafError(
                f"latents {tuple(latents.shape)} and pose_c2w {tuple(pose_c2w.shape)}: expected one row of {self.latent_dim} "
                "latents per camera (3, 4), and at least one camera"
            )
        width, scale, device = resolution, self.config.rendered_scale, self.background.device
        if resolution is None:
            width = self.config.data.imsize
        elif not isinstance(resolution, Integral) or resolution < 1 or resolution % scale:
            raise GrafError(
                f"resolution {resolution!r}: must be a whole number above 0, and a multiple of ccsr.scale_factor {scale}"
            )
        labels = Labels.of_poses(pose_c2w.to(device))
        if class_index is not None:
            classes = torch.as_tensor(class_index)
            known = self.class_embedding is None or bool(((classes >= 0) & (classes < self.n_classes)).all())
            if classes.shape not in ((), (1,), (n,)) or classes.is_floating_point() or not known:
                wanted = f"a whole number from 0 to {self.n_classes - 1}, for each of the {n} cameras or for all"
                raise GrafError(f"class_index {classes.tolist()}: expected {wanted}")
            labels = dataclasses.replace(labels, class_index=classes.to(device, torch.long).expand(n))
        grid = low_resolution_grid(full_grid(width, device), scale)

        def render_some(images: slice, chunk: int) -> Rendering:
            rendering = self._render_grid(latents[images].to(device), labels[images], grid, width, piece=chunk)
            return rendering.at(width).to(latents.device)

        n_rays = grid[..., 0].numel()
        return Rendering.cat(render_images(render_some, len(latents), n_rays, self.config.nerf, device, self.evaluated_share))

    def _render_grid(
        self,
        latents: Tensor,
        labels: Labels,
        grid: Tensor,
        width: int,
        piece: int,
        noise: RayNoise | None = None,
        recompute: bool = False,
        fixed_shapes: bool = False,
    ) -> Rendering:
        """The rays through the grid (B or 1, h, w, 2) of a frame of `width` pixels, `piece` of each image at a time, refined.

        With `recompute` activations of the pieces are computed again in the backward pass. Rays that miss the box are left
        out, or with `fixed_shapes` have samples of length 0.
        """
        codes, latents = latents[:, self.config.z_dist.dim :], self.condition(latents, labels)
        rays_o, rays_d = camera_rays(labels.pose_c2w, grid, width, self.config.data)
        near, far = (x[:, None].expand(-1, rays_o.shape[1], -1) for x in depth_bounds(labels.pose_c2w, self.config.data))
        rays, index = (rays_o, rays_d, near, far), None
        if self.box is not None:
            rays = rays_o, rays_d, *clip_to_box(*rays, self.box)
            if not fixed_shapes:
                index = indices_of((rays[2] < rays[3])[..., 0])
                rays = [take_rows(x, index) for x in rays]
                noise = noise and each_tensor(noise, lambda x: take_rows(x, index))
        styles, pieces = self.styles(latents), []
        for start in range(0, rays[0].shape[1], piece):
            some = (slice(None), slice(start, start + piece))
            o, d, *bounds = (x[some] for x in rays)
            inputs = o, d, tuple(bounds), styles, noise and noise[some]
            pieces.append(recomputed(self.render_rays, *inputs) if recompute else self.render_rays(*inputs))
        rendering = Rendering.cat(pieces, dim=1)
        if index is not None:
            rendering = self._among_misses(rendering, index, far)
        if self.box is not None:  # what is empty lies beyond the box
            depth = torch.where(rendering.disparity == EMPTY_DISPARITY, far, rendering.depth)
            rendering = dataclasses.replace(rendering, depth=depth)
        rendering = rendering.unflatten(grid.shape[1])
        if self.config.data.background_model == "plane":
            rendering = self._before_plane(rendering, self.background_model(codes, grid, width))
        if self.config.ccsr.mode != "refine":
            return rendering
        refinement, coarse = self.refinement, rendering.coarse_images
        if torch.is_grad_enabled() and self.config.restores_real_images:
            refinement = without_learning(refinement)  # the field learns through it
        refined, drift = refinement(rendering.images, latents, labels.pose_c2w, grid, width)
        if coarse is not None:
            coarse, _ = refinement(coarse, latents, labels.pose_c2w, grid, width)
        return dataclasses.replace(rendering, images=refined, low_images=rendering.images, coarse_images=coarse, drift=drift)

    def _among_misses(self, rendering: Rendering, index: Tensor, far: Tensor) -> Rendering:
        """Maps of all rays (B, R, C), of the maps (B, H, C) of those at `index` (B, H); the others see the background, at `far`
        (B, R, 1)."""
        background, nothing = self.background * 2 - 1, torch.zeros_like(far)
        missed = Rendering(background, far, nothing + EMPTY_DISPARITY, nothing, background, nothing)

        def spread(found: Tensor | None, empty: Tensor) -> Tensor | None:
            if found is None:
                return None
            empty = empty.to(found).expand(*far.shape[:2], found.shape[-1])
            return empty.scatter(1, index[..., None].expand_as(found), found)

        return Rendering(*(spread(*pair) for pair in zip(vars(rendering).values(), vars(missed).values(), strict=True)))

    def _before_plane(self, rendering: Rendering, plane: Tensor) -> Rendering:
        """The rendering before a plane (B, 3, h, w) in [-1, 1], in place of the background's colour."""
        difference = plane - (self.background * 2 - 1).view(3, 1, 1)
        images, coarse = rendering.images + (1 - rendering.opacity) * difference, rendering.coarse_images
        if coarse is not None:
            coarse = coarse + (1 - rendering.coarse_opacity) * difference
        return dataclasses.replace(rendering, images=images, coarse_images=coarse)

    def condition(self, latents: Tensor, labels: Labels) -> Tensor:
        """The object's own latents (B, z_dist.dim), with the class in them where the model knows classes."""
        latents = latents[:, : self.config.z_dist.dim]
        return latents if self.class_embedding is None else latents + self.class_embedding(labels.class_index)

    def styles(self, latents: Tensor) -> tuple[Any, ...]:
        """Each radiance field's styles, the fine one's last, for latents (B, Z) with the class in them: once for all rays."""
        return tuple(field.styles(latents) for field in self.fields)

    def restore(self, images: Tensor, latents: Tensor, labels: Labels, grid: Tensor) -> Tensor:
        """Images (B, 3, h, w) downsampled and restored by CCSR; arguments as for forward."""
        return self.restore_with_drift(images, latents, labels, grid)[0]

    def restore_with_drift(self, images: Tensor, latents: Tensor, labels: Labels, grid: Tensor) -> tuple[Tensor, Tensor]:
        """`restore`, with the drift (B, 1) of CCSR's proposals."""
        low = self.refinement.projection.downsample(images)
        low_grid = low_resolution_grid(grid, self.config.ccsr.scale_factor)
        latents = self.condition(latents, labels)
        return self.refinement(low, latents, labels.pose_c2w, low_grid, self.config.data.imsize)

    def sample_noise(self, n: int, step: int, rng: torch.Generator, n_rays: int) -> RayNoise:
        """The noise of n times n_rays rays at a step, where the config has any; on the device of `rng`."""
        nerf = self.config.nerf
        coarse, fine = nerf.samples_per_ray, nerf.importance_samples_per_ray
        std = nerf.raw_noise_std * (max(0.0, 1 - step / NOISE_STEPS) if nerf.decrease_noise else 1.0)

        def uniform(n_samples: int) -> Tensor | None:
            wanted = nerf.perturb and n_samples > 0
            return torch.rand(n, n_rays, n_samples, generator=rng, device=rng.device) if wanted else None

        def normal(n_samples: int) -> Tensor | None:
            wanted = std > 0 and n_samples > 0
            return std * torch.randn(n, n_rays, n_samples, generator=rng, device=rng.device) if wanted else None

        return RayNoise(uniform(coarse), uniform(fine), normal(coarse), normal(coarse + fine if fine else 0))

    def render_rays(
        self,
        rays_o: Tensor,
        rays_d: Tensor,
        bounds: tuple[Tensor, Tensor],
        styles: tuple[Any, ...],
        noise: RayNoise | None = None,
    ) -> Rendering:
        """Maps of rays (B, R, C) along rays (B, R, 3) within bounds near and far (B, R, 1), of the fields in these `styles`,
        with the noise of those rays."""
        nerf, (near, far) = self.config.nerf, bounds
        n_samples = nerf.samples_per_ray
        if noise is None:
            n_samples, noise = nerf.first_samples_per_ray, RayNoise()
        depths = stratified_depths(near, far, n_samples, noise.jitter)  # (B, R, S)
        colour, weights = self._shade(self.field, rays_o, rays_d, depths, styles[0], noise.density_noise)
        coarse = None, None
        if self.field_fine is not None:
            coarse = self._on_background(colour, weights), weights.sum(-1, keepdim=True)
            further = sample_pdf(depths, weights, nerf.importance_samples_per_ray, noise.fine_jitter)
            depths = torch.cat([depths, further], dim=-1).sort(dim=-1).values
            colour, weights = self._shade(self.field_fine, rays_o, rays_d, depths, styles[1], noise.fine_density_noise)
        opacity = weights.sum(-1, keepdim=True)
        empty = opacity < 1e-10
        depth = (weights * depths).sum(-1, keepdim=True) / opacity.masked_fill(empty, 1)
        disparity = (1 / depth.clamp_min(1 / EMPTY_DISPARITY)).masked_fill(empty, EMPTY_DISPARITY)
        return Rendering(self._on_background(colour, weights), torch.where(empty, far, depth), disparity, opacity, *coarse)

    def _on_background(self, colour: Tensor, weights: Tensor) -> Tensor:
        """Colour (B, R, 3) in [0, 1] over the background, in [-1, 1]."""
        return (colour + (1 - weights.sum(-1, keepdim=True)) * self.background) * 2 - 1

    def _shade(
        self,
        field: nn.Module,
        rays_o: Tensor,
        rays_d: Tensor,
        depths: Tensor,
        styles: Any,
        density_noise: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Colour (B, R, 3) without background and weights (B, R, S) of the field in its styles at the depths (B, R, S)."""
        points = rays_o[..., None, :] + rays_d[..., None, :] * depths[..., None]  # (B, R, S, 3)
        can_be_empty = self.config.nerf.density_activation == "relu"
        leaves_out = can_be_empty and torch.is_grad_enabled() and not is_asynchronous(points.device.type)
        evaluate = evaluate_dense if leaves_out else evaluate_all
        density, colour = evaluate(field, points, F.normalize(rays_d, dim=-1), styles, density_noise)
        density = F.relu(density) if can_be_empty else F.softplus(density)
        endless = can_be_empty and self.box is None  # nothing is behind a box
        return composite(density, colour.sigmoid(), interval_lengths(depths, rays_d, endless))


def without_learning(network: nn.Module) -> nn.Module:
    """The network with the same weights, which get no gradient, while its inputs do. The network itself stays as it is, for
    other threads use it."""
    return shallow_copy(network, Tensor.detach, without_learning)  # a deep copy of CCSR took a hundredth of a step


def evaluate_all(
    field: nn.Module, points: Tensor, directions: Tensor, styles: Any, density_noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Raw density (B, R, S), with the density_noise (B, R, S) added, and raw colour (B, R, S, 3) at points (B, R, S, 3)."""
    density, colour = field(points, directions, styles)
    return density if density_noise is None else density + density_noise.to(density), colour


def evaluate_dense(
    field: nn.Module, points: Tensor, directions: Tensor, styles: Any, density_noise: Tensor | None
) -> tuple[Tensor, Tensor]:
    """evaluate_all for a density that is a ReLU's: samples where that is 0 cannot be seen and pass no gradient on, so that
    activations are kept, and gradients computed, of the others alone."""
    device = points.device.type
    # Weights that autocast converts here are not kept: older versions of PyTorch would use them below, without gradients
    with torch.no_grad(), torch.autocast(device, enabled=torch.is_autocast_enabled(device), cache_enabled=False):
        density, colour = evaluate_all(field, points, directions, styles, density_noise)
        index = indices_of((density > 0).flatten(1))  # (B, N)

    def of_samples(x: Tensor) -> Tensor:
        """(B, N, 1, C) of values (B, R, S, C)."""
        return take_rows(x.flatten(1, 2), index)[:, :, None]

    directions = of_samples(directions[:, :, None].expand_as(points))[:, :, 0]
    density_noise = None if density_noise is None else of_samples(density_noise[..., None])[..., 0]
    found = evaluate_all(field, of_samples(points), directions, styles, density_noise)  # (B, N, 1), (B, N, 1, 3)
    density = density.flatten(1).scatter(1, index, found[0][..., 0])
    colour = colour.flatten(1, 2).scatter(1, index[..., None].expand(-1, -1, 3), found[1][:, :, 0])
    return density.view(points.shape[:3]), colour.view(points.shape)


def indices_of(wanted: Tensor) -> Tensor:
    """Indices (B, N) of the rays or samples of each image that are wanted (B, R), in their order; images with fewer are filled
    up with others.

    N is the most of an image, rounded up to a multiple of TOGETHER or to R: with a size of its own in each step, tensors
    would not fit into the memory that those of earlier steps have left.
    """
    most = max(1, int(wanted.sum(1).max()))
    most = min(wanted.shape[1], -(-most // TOGETHER) * TOGETHER)
    return wanted.byte().argsort(dim=1, descending=True, stable=True)[:, :most]


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """The rows at `index` (B, N) of values (B, R, C): (B, N, C)."""
    return torch.take_along_dim(x, index[..., None], dim=1)


def weights_hash(network: nn.Module) -> str:
    """sha256 of a network's parameters and buffers, by which results name the network that they are of."""
    digest = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
