"""The latents and the camera of photographs: what the generator must be told to draw them (GAN inversion, Zhu et al. 2016).

Latents and camera are optimised together. Where the camera is not known that starts from all around the object: from the wrong
side it fits worse than from the right one, but no gradient leads there.

Legend: H hypotheses, N photographs of one object, P pairs of both, Z latents, C classes, A azimuths, V heights, w side of the
pictures that are compared.
"""

import dataclasses
import json
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from efficientnet_lite_pytorch import EfficientNet
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from graf.camera import Labels, azimuth_and_v, elevation_of_v, focal_length, poses_at, rotation_poses, view_azimuths
from graf.config import Config, DataConfig
from graf.data.decoding import open_rgb, read_image, square_side
from graf.data.folders import LABEL, TRANSFORMS, Folder, is_image, items_by_name, v_cure
from graf.data.transforms import items_by_transforms
from graf.errors import GrafError
from graf.evaluation.outputs import as_uint8, picture, write_grid, write_video
from graf.evaluation.sampling import render_views
from graf.files import whole_file
from graf.models.generator import NOISE_STEPS, Generator
from graf.models.perception import feature_distance, feature_network, features_of
from graf.rays import full_grid, low_resolution_grid

log = logging.getLogger("graf")

RAYS_AT_ONCE = 4096  # with gradients: about half a gigabyte of the default field
FINALISTS = 2  # hypotheses that are compared more closely, and each from the opposite side too
APART_DEG = 45  # finalists' cameras are at least so far from each other
POLE = 1e-3  # v keeps so far from 0 and 1, where azimuth has no gradient
FOCAL_TOLERANCE = 0.01  # of a photograph's focal length, whose camera is taken as it stands
SWEEP_VIEWS, VIDEO_FRAMES = 8, 72


@dataclasses.dataclass(frozen=True)
class InversionSettings:
    """How thoroughly an object is looked for, and what counts.

    azimuths, heights: first guesses of the camera over the config's range; search_size, fit_size: about how many pixels a side
    are compared; rates: Adam's, in standard deviations of the latents, degrees, and v. The loss is the mean square of pixel
    differences, feature_weight times that of features, and latent_weight times the mean square of the latents.
    """

    azimuths: int = 24
    heights: int = 3
    search_size: int = 32
    search_steps: int = 20
    fit_size: int = 64
    fit_steps: int = 100
    latent_rate: float = 0.1
    azimuth_rate: float = 3.0
    v_rate: float = 0.01
    feature_weight: float = 0.05
    latent_weight: float = 0.01
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Inversion:
    """One object, latents (1, Z) and class_index (1,), as N photographs show it: their cameras pose_c2w (N, 3, 4), azimuth_deg
    and v (N,); its images (N, 3, W, W) in [-1, 1] from there, their PSNR in dB and SSIM (N numbers each), and the loss."""

    latents: Tensor
    class_index: Tensor
    pose_c2w: Tensor
    azimuth_deg: Tensor
    v: Tensor
    images: Tensor
    psnr: tuple[float, ...]
    ssim: tuple[float, ...]
    loss: float


@dataclasses.dataclass(frozen=True)
class Hypotheses:
    """H objects, latents (H, Z) and class_index (H,), each with N cameras, azimuth_deg and v (H, N)."""

    latents: Tensor
    class_index: Tensor
    azimuth_deg: Tensor
    v: Tensor

    def __len__(self) -> int:
        return len(self.latents)

    def __getitem__(self, index: Tensor | list[int]) -> "Hypotheses":
        return Hypotheses(*(values[index] for values in vars(self).values()))

    @staticmethod
    def cat(parts: Sequence["Hypotheses"]) -> "Hypotheses":
        return Hypotheses(*(torch.cat(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))


def read_photograph(path: Path | str, data: DataConfig) -> Tensor:
    """The file as (3, imsize, imsize) in [-1, 1], prepared as the photographs of training are.

    Raises GrafError for a file that cannot be read or is smaller than the model's images.
    """
    try:
        side = square_side(*open_rgb(path, data.background).size, data.center_crop)
        image = read_image(Path(path), data)
    except ValueError as error:
        raise GrafError(f"{path}: {str(error).partition(';')[0]}; give another photograph") from None
    if side < data.imsize:
        raise GrafError(f"{path}: {side} pixels a side, the model's images have {data.imsize}; give a larger photograph")
    return image / 127.5 - 1


def labelled_poses(paths: Sequence[Path | str], data: DataConfig) -> Tensor | None:
    """The cameras (N, 3, 4) that a transforms.json above the photographs or the names <elevation>_<azimuth> tell, or None where
    not every photograph has one.

    As in training the elevation of a name is a rank, here that among the names in the photographs' folders; with fewer of them
    than data.v has, it is not known. Raises GrafError for an azimuth or a rank that the config does not know.
    """
    paths = [Path(path) for path in paths]
    if not all(path.is_file() for path in paths):
        return None  # which reading them will say
    if data.labels in ("auto", "transforms"):
        poses = _poses_by_transforms(paths, data)
        if poses is not None:
            return poses
    if data.labels not in ("auto", "filename") or not all(LABEL.fullmatch(path.stem) for path in paths):
        return None
    beside = [file for folder in {path.parent for path in paths} for file in folder.iterdir() if is_image(file.name)]
    named = sorted({*paths, *(file for file in beside if LABEL.fullmatch(file.stem))})
    items, faults = items_by_name([Folder(paths[0].parent, tuple(named), has_transforms=False)], data)
    for fault in faults:
        if Path(fault.where) in paths:
            raise GrafError(f"{fault.where}: {fault.problem}")
    n_known = len({item.elevation_index for item in items})
    if n_known < len(data.v):
        log.warning(
            "%s: the names tell %d elevations, data.v %d, so that it is not known which they are; the cameras are searched for "
            "(to have theirs put the photographs among those of a whole set; if these are all of it, say what each is: %s)",
            *(paths[0].parent, n_known, len(data.v), v_cure(data.v, n_known)),
        )
        return None
    poses = {item.file: item.pose_c2w for item in items}
    return torch.stack([poses[path] for path in paths])


def _poses_by_transforms(paths: list[Path], data: DataConfig) -> Tensor | None:
    """The cameras (N, 3, 4) in the transforms.json next above each photograph, where they have the config's field of view."""
    homes = [next((folder for folder in path.parents if (folder / TRANSFORMS).is_file()), None) for path in paths]
    if None in homes:
        return None
    items, faults = items_by_transforms([Folder(home, (), has_transforms=True) for home in dict.fromkeys(homes)], data)
    wanted = focal_length(data.fov, 1)
    found = {item.file.resolve(): item for item in items}
    poses = []
    for path, home in zip(paths, homes, strict=True):
        item = found.get(path.resolve())
        if item is None or item.pose_c2w is None:
            about = {path.resolve()} if items else {path.resolve(), (home / TRANSFORMS).resolve()}
            told = [f"{fault.where}: {fault.problem}" for fault in faults if Path(fault.where).resolve() in about]
            reason = told[0] if told else f"{home / TRANSFORMS} has no frame of it"
        elif item.focal is not None and not math.isclose(item.focal, wanted, rel_tol=FOCAL_TOLERANCE):
            fov = math.degrees(2 * math.atan(0.5 / item.focal))
            reason = f"{home / TRANSFORMS} tells a field of view of {fov:.2f} degrees, data.fov is {data.fov:g}"
        else:
            poses.append(item.pose_c2w)
            continue
        log.warning("%s: its camera is not taken, %s", path, reason)
        return None
    return torch.stack(poses)


def invert(
    generator: Generator,
    photographs: Tensor,
    poses: Tensor | None = None,
    settings: InversionSettings | None = None,
    bar: tqdm | None = None,
) -> Inversion:
    """The object that N photographs (N, 3, W, W) in [-1, 1] show, W being data.imsize, and the camera of each.

    poses (N, 3, 4) are kept where given and searched for on the config's sphere where not; so is the class of a model that
    knows classes. The same seed gives the same answer. The bar counts renderings. Raises GrafError where the model draws
    nothing finite.
    """
    settings = settings or InversionSettings()
    device, width = generator.background.device, generator.config.data.imsize
    if photographs.shape[1:] != (3, width, width) or (poses is not None and len(poses) != len(photographs)):
        raise ValueError(f"photographs {tuple(photographs.shape)}: expected (N, 3, {width}, {width}) and, if any, N poses")
    photographs, poses = photographs.to(device), poses if poses is None else poses.to(device)
    network = feature_network().to(device)
    coarse = likeness(generator, photographs, poses, settings, settings.search_size, network)
    n, searched = len(photographs), settings.search_steps
    if bar is not None and poses is None:  # as many as there may be
        guesses = settings.azimuths * min(2, len(mean_objects(generator)[0]))
        bar.total = n * (searched * (guesses + 2 * FINALISTS) + settings.fit_steps)
    found = search_cameras(coarse, bar) if poses is None else objects_of_every_class(coarse)
    if bar is not None:
        bar.total = int(bar.n) + n * (searched * len(found) * (len(found) > 1) + settings.fit_steps)
    if len(found) > 1:
        found, losses = coarse.fit(found, settings.search_steps, bar)
        found = found[losses.argsort()[:1]]
    fine = likeness(generator, photographs, poses, settings, settings.fit_size, network)
    found, losses = fine.fit(found, settings.fit_steps, bar)
    if not losses.isfinite().all():
        raise GrafError("the model draws nothing finite, so that no photograph can be found in it; name another checkpoint")
    latents, class_index, pose_c2w = found.latents.cpu(), found.class_index.cpu(), fine.poses_of(found)[0].cpu()
    n = len(pose_c2w)
    images = generator.render(latents.expand(n, -1), pose_c2w, class_index=class_index.expand(n)).images
    psnr, ssim = zip(*map(similarity, photographs.cpu(), images), strict=True)
    return Inversion(latents, class_index, pose_c2w, *azimuth_and_v(pose_c2w), images, psnr, ssim, losses.item())


@dataclasses.dataclass(frozen=True)
class Likeness:
    """How unlike photographs (N, 3, w, w) an object is from its cameras, drawn through the grid (1, w, w, 2).

    Cameras are those of the hypotheses unless poses (N, 3, 4) are known. Without a network, pixels alone are compared.
    """

    generator: Generator
    settings: InversionSettings
    photographs: Tensor
    grid: Tensor
    poses: Tensor | None
    network: EfficientNet | None
    features: list[Tensor]

    def of_one(self, n: int) -> "Likeness":
        """To photograph n alone, by its pixels."""
        return dataclasses.replace(self, photographs=self.photographs[n : n + 1], network=None, features=[])

    def poses_of(self, h: Hypotheses) -> Tensor:
        """(H, N, 3, 4)."""
        if self.poses is not None:
            return self.poses.expand(len(h), -1, -1, -1)
        return poses_at(h.azimuth_deg, h.v, sum(self.generator.config.data.radius) / 2)

    def draw(self, latents: Tensor, class_index: Tensor, pose_c2w: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Images (P, 3, w, w); with a generator of fewer samples a ray, jittered, as in training."""
        labels = Labels(pose_c2w, class_index, torch.zeros_like(class_index))
        config, noise = self.generator.config, None
        if rng is not None:
            n_rays = self.grid[..., 0].numel() // config.rendered_scale**2
            noise = self.generator.draw_noise(len(latents), NOISE_STEPS, rng, n_rays)
        return self.generator(latents, labels, self.grid, config.data.imsize, noise).images

    def losses(self, h: Hypotheses, rows: Tensor, columns: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """(P,) of the hypotheses `rows` in the photographs `columns`."""
        images = self.draw(h.latents[rows], h.class_index[rows], self.poses_of(h)[rows, columns], rng)
        loss = (images - self.photographs[columns]).square().mean(dim=(1, 2, 3))
        if self.network is not None:
            distance = feature_distance(features_of(self.network, images), [known[columns] for known in self.features])
            loss = loss + self.settings.feature_weight * distance
        return loss + self.settings.latent_weight * h.latents[rows].square().mean(dim=1)

    @torch.no_grad()
    def evaluate(self, h: Hypotheses) -> Tensor:
        """(H,), without grain."""
        return torch.cat([self.losses(h, *pairs) for pairs in self._pairs(h)]).view(len(h), -1).mean(dim=1)

    def fit(self, h: Hypotheses, steps: int, bar: tqdm | None) -> tuple[Hypotheses, Tensor]:
        """The hypotheses, each improved for itself, with its loss (H,). Known cameras stay."""
        rates = {"latents": self.settings.latent_rate}
        if self.poses is None:
            rates |= {"azimuth_deg": self.settings.azimuth_rate, "v": self.settings.v_rate}
        h = Hypotheses(*(x.clone() for x in vars(h).values()))
        learned = [getattr(h, name).requires_grad_() for name in rates]
        groups = [{"params": [x], "lr": rate} for x, rate in zip(learned, rates.values(), strict=True)]
        optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps))
        rng = torch.Generator(self.grid.device).manual_seed(self.settings.seed)
        for _ in range(steps):
            optimizer.zero_grad()
            for rows, columns in self._pairs(h):
                loss = self.losses(h, rows, columns, rng).sum() / len(self.photographs)
                loss.backward(inputs=learned)
                if bar is not None:
                    bar.update(len(rows))
            optimizer.step()
            schedule.step()
            keep_in_range(h, self.generator.config)
        h = Hypotheses(*(x.detach() for x in vars(h).values()))
        return h, self.evaluate(h)

    def _pairs(self, h: Hypotheses) -> Iterator[tuple[Tensor, Tensor]]:
        """Every hypothesis with every photograph, some at a time."""
        n = len(self.photographs)
        rays = self.photographs[0, 0].numel() // self.generator.config.rendered_scale**2
        for pairs in torch.arange(len(h) * n, device=self.grid.device).split(max(1, RAYS_AT_ONCE // rays)):
            yield pairs // n, pairs % n


def likeness(
    generator: Generator,
    photographs: Tensor,
    poses: Tensor | None,
    settings: InversionSettings,
    size: int,
    network: EfficientNet | None,
) -> Likeness:
    """The likeness to photographs (N, 3, W, W) at about `size` pixels a side."""
    width = photographs.shape[-1]
    factor = pooling(width, size, generator.config.rendered_scale)
    grid = low_resolution_grid(full_grid(width, photographs.device), factor)
    small = F.avg_pool2d(photographs, factor)
    features = [] if network is None else features_of(network, small)
    return Likeness(generator, settings, small, grid, poses, network, features)


def pooling(width: int, size: int, scale: int) -> int:
    """The factor by which `width` pixels are pooled to about `size`, still a multiple of `scale`."""
    factors = [k for k in range(1, width + 1) if width % (k * scale) == 0]
    return min(factors, key=lambda k: abs(math.log(width / (k * size))))


@torch.no_grad()
def keep_in_range(h: Hypotheses, config: Config) -> None:
    """Cameras in the config's range and off the poles, uniform latents in theirs; in place."""
    data = config.data
    h.v.clamp_(max(data.vmin, POLE), min(data.vmax, 1 - POLE))
    if data.umax - data.umin < 1:
        h.azimuth_deg.clamp_(360 * data.umin, 360 * data.umax)
    if config.z_dist.type == "uniform":
        h.latents.clamp_(-1, 1)


def objects_of_every_class(to: Likeness) -> Hypotheses:
    """The mean object of each class, seen by the known cameras."""
    latents, class_index = mean_objects(to.generator)
    azimuth_deg, v = (x.expand(len(latents), -1) for x in azimuth_and_v(to.poses))
    return Hypotheses(latents, class_index, azimuth_deg, v)


def mean_objects(generator: Generator) -> tuple[Tensor, Tensor]:
    """Latents (C, Z) and class_index (C,) of the mean object of each class."""
    n_classes = 1 if generator.class_embedding is None else generator.class_embedding.num_embeddings
    device = generator.background.device
    return torch.zeros(n_classes, generator.config.z_dist.dim, device=device), torch.arange(n_classes, device=device)


def search_cameras(to: Likeness, bar: tqdm | None) -> Hypotheses:
    """The objects and cameras that look most like the photographs, none improved on all of them yet.

    Each photograph alone proposes a few; the others' cameras are then those from which that object looks most like them. As
    objects often look alike from in front and behind, or from both sides, each proposal is there from the opposite side too.
    """
    proposals = []
    for n in range(len(to.photographs)):
        one = to.of_one(n)
        alone, losses = one.fit(first_guesses(one), to.settings.search_steps, bar)
        proposals.append(with_other_cameras(to, alone[finalists(alone, losses)], n))
    together = Hypotheses.cat(proposals)
    together = together[finalists(together, to.evaluate(together))]
    opposite = dataclasses.replace(together, azimuth_deg=together.azimuth_deg + 180)
    return Hypotheses.cat([together, opposite])


def first_guesses(to: Likeness) -> Hypotheses:
    """At every azimuth the mean object, from its best height; of the two classes that fit best, where there are more."""
    latents, class_index = mean_objects(to.generator)
    losses, azimuth_deg, v = on_camera_grid(to, latents, class_index)
    heights = losses[..., 0].min(dim=2)  # (C, A)
    classes = heights.values.topk(min(2, len(latents)), dim=0, largest=False).indices  # (at most 2, A)
    columns = torch.arange(len(azimuth_deg), device=v.device).expand_as(classes)
    chosen, azimuths = classes.flatten(), columns.flatten()
    height = heights.indices[chosen, azimuths]
    return Hypotheses(latents[chosen], class_index[chosen], azimuth_deg[azimuths][:, None], v[height][:, None])


def with_other_cameras(to: Likeness, h: Hypotheses, n: int) -> Hypotheses:
    """Hypotheses about photograph n alone (one camera each) as ones about all N: the others' cameras are from the grid."""
    if len(to.photographs) == 1:
        return h
    losses, azimuth_deg, v = on_camera_grid(to, h.latents, h.class_index)
    best = losses.flatten(1, 2).argmin(dim=1)  # (H, N)
    azimuth_deg, v = azimuth_deg[best // len(v)], v[best % len(v)]
    azimuth_deg[:, n], v[:, n] = h.azimuth_deg[:, 0], h.v[:, 0]
    return Hypotheses(h.latents, h.class_index, azimuth_deg, v)


@torch.no_grad()
def on_camera_grid(to: Likeness, latents: Tensor, class_index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pixel losses (O, A, V, N) of O objects from a grid of cameras in each photograph; its azimuths (A,) and heights (V,)."""
    data, settings, device = to.generator.config.data, to.settings, latents.device
    azimuth_deg = view_azimuths(settings.azimuths, data).unique().to(device)
    v = data.vmin + (data.vmax - data.vmin) * (torch.arange(settings.heights, device=device) + 0.5) / settings.heights
    poses = poses_at(*torch.meshgrid(azimuth_deg, v, indexing="ij"), sum(data.radius) / 2).flatten(0, 1)  # (A V, 3, 4)
    rays = to.photographs[0, 0].numel() // to.generator.config.rendered_scale**2
    losses = []
    for latent, index in zip(latents, class_index, strict=True):
        for some in poses.split(max(1, RAYS_AT_ONCE // rays)):
            images = to.draw(latent.expand(len(some), -1), index.expand(len(some)), some)
            losses.append((images[:, None] - to.photographs).square().mean(dim=(2, 3, 4)))
    return torch.cat(losses).view(len(latents), len(azimuth_deg), len(v), -1), azimuth_deg, v


def finalists(h: Hypotheses, losses: Tensor) -> list[int]:
    """The indices of the best hypotheses whose cameras, or classes, differ; best first."""
    chosen: list[int] = []
    for i in losses.argsort().tolist():
        turn = ((h.azimuth_deg[i] - h.azimuth_deg[chosen] + 180) % 360 - 180).abs()  # (chosen, N)
        if ((turn > APART_DEG).any(dim=1) | (h.class_index[i] != h.class_index[chosen])).all():
            chosen.append(i)
    return chosen[:FINALISTS]


def similarity(photograph: Tensor, image: Tensor) -> tuple[float, float]:
    """PSNR in dB (infinite for equal images) and SSIM (Wang et al. 2004; windows of 7 x 7) of images (3, H, W) at 8 bits."""
    pair = [as_uint8(x).movedim(0, -1).numpy() for x in (photograph, image)]
    with np.errstate(divide="ignore"):
        psnr = peak_signal_noise_ratio(*pair, data_range=255)
    return float(psnr), float(structural_similarity(*pair, channel_axis=-1, data_range=255))


def invert_files(
    generator: Generator, paths: Sequence[Path | str], out: Path, poses: Tensor | None, seed: int, bar: tqdm | None = None
) -> list[Path]:
    """Find the object of photograph files and write what `write_inversion` does. Raises GrafError as `read_photograph` does."""
    photographs = torch.stack([read_photograph(path, generator.config.data) for path in paths])
    inversion = invert(generator, photographs, poses, InversionSettings(seed=seed), bar)
    for path, azimuth_deg, psnr in zip(paths, inversion.azimuth_deg.tolist(), inversion.psnr, strict=True):
        log.info("%s: azimuth %.0f degrees, PSNR %.1f dB", path, azimuth_deg, psnr)
    return write_inversion(generator, inversion, photographs, out, [str(path) for path in paths])


def write_inversion(
    generator: Generator, inversion: Inversion, photographs: Tensor, out: Path, names: Sequence[str]
) -> list[Path]:
    """The photographs (N, 3, W, W), each beside its fit; the object from around, as sheet and videos; all numbers as JSON."""
    data = generator.config.data
    pairs = torch.stack([photographs.cpu(), inversion.images], dim=1).flatten(0, 1)
    files = [write_grid(out / "fit.png", as_uint8(pairs), columns=2)]
    found = inversion.latents, inversion.class_index
    azimuth_deg = view_azimuths(SWEEP_VIEWS, data)
    poses = poses_at(azimuth_deg, inversion.v.mean().expand_as(azimuth_deg), sum(data.radius) / 2)
    sheet = picture(render_views(generator, found, poses), "rgb", data.near, data.far)
    files.append(write_grid(out / "sweep.png", sheet, SWEEP_VIEWS))
    frames = picture(render_views(generator, found, rotation_poses(VIDEO_FRAMES, data)), "rgb", data.near, data.far)
    files += [write_video(out / f"rotation{suffix}", frames) for suffix in (".mp4", ".gif")]
    with whole_file(out / "inversion.json") as temporary:
        temporary.write_text(json.dumps(as_json(inversion, names), indent=1, allow_nan=False), encoding="utf-8")
    return [*files, out / "inversion.json"]


def as_json(inversion: Inversion, names: Sequence[str]) -> dict:
    """Plain values; psnr_db is null where a fit equals its photograph."""
    rows = [
        {
            "photograph": name,
            "azimuth_deg": inversion.azimuth_deg[i].item(),
            "elevation_deg": elevation_of_v(inversion.v[i].item()),
            "v": inversion.v[i].item(),
            "pose_c2w": inversion.pose_c2w[i].tolist(),
            "psnr_db": inversion.psnr[i] if math.isfinite(inversion.psnr[i]) else None,
            "ssim": inversion.ssim[i],
        }
        for i, name in enumerate(names)
    ]
    return {
        "photographs": rows,
        "class_index": inversion.class_index.item(),
        "loss": inversion.loss,
        "latents": inversion.latents[0].tolist(),
    }
