"""The built-in data set: procedural toy cars, ray-cast on first use and kept in data.datadir.

World z-up; a car's bounding box has diagonal 2 and its centre at the origin; its front is towards +x. Every image has its own
car and its own camera, sampled from the config's range, as in GRAF's carla set.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from graf.camera import Labels, azimuth_and_v, sample_poses
from graf.config import DataConfig
from graf.data.car_shapes import make_car
from graf.data.raycast import Solids, cast
from graf.data.views import Views, toy_car_elevations
from graf.errors import DataError
from graf.rays import camera_rays
from graf.rng import seeded_rng
from graf.runtime.console import progress
from graf.runtime.files import make_writable_folder, whole_file
from graf.runtime.limits import GB, available_cores, memory_limit
from graf.runtime.out_of_memory import is_machine_fault
from graf.runtime.threads import map_in_threads

import torch
from torch import Tensor

VERSION = 1  # of shapes and rendering; raise it when either changes, so that kept sets are made again
SUPERSAMPLING = 3  # rays along each side of a pixel
KEYS = (
    *("imsize", "n_images", "seed", "background"),
    *("near", "far", "radius", "fov", "orthographic", "umin", "umax", "vmin", "vmax"),
)

log = logging.getLogger("graf")


class CarViews(NamedTuple):
    """images (N, 3, H, W) in [-1, 1]; depth (N, H, W), planar, the mean over rays that hit, 0 where none did; opacity
    (N, H, W) in [0, 1], the share of the pixel covered by the car."""

    images: Tensor
    depth: Tensor
    opacity: Tensor


class ToyCars(Views):
    """The set in memory: images (N, data.channels, H, W) uint8 and their labels."""

    def __init__(self, images: Tensor, labels: Labels | None, fingerprint: str, n_elevations: int = 1):
        self.images = images
        super().__init__(
            files=[f"toy car {index}" for index in range(len(images))],
            class_names=["toy_cars"],
            class_index=torch.zeros(len(images), dtype=torch.long),
            labels=labels,
            fingerprint=fingerprint,
            n_elevations=n_elevations,
            alpha="rgba" if images.shape[1] > 3 else "ignore",
        )

    def read(self, index: int) -> Tensor:
        return self.images[index]

    def opacity(self, index: int, data: DataConfig, supersampling: int | None = None) -> Tensor:
        kept = self.images[index, 3:]
        if len(kept) and kept.shape[-1] == data.imsize:
            return kept[0] / 255
        poses = self.labels.pose_c2w if self.posed else sample_poses(data.n_images, data, seeded_rng(data.seed))
        car, pose_c2w = make_car(data.seed, index), poses[index : index + 1]
        return render_cars([car], pose_c2w, data, supersampling or SUPERSAMPLING).opacity[0]

    @property
    def objects(self) -> list[str]:
        return self.files  # one car per image


def load_toy_cars(data: DataConfig) -> ToyCars:
    """The data set of a config, read from its file in data.datadir or made and written there; unposed if data.labels is none.

    With data.alpha: auto they have their opacity. Raises DataError where they cannot be kept, or where memory has no room.
    """
    if data.alpha == "auto":
        log.info("data.alpha: rgba, for toy cars know their opacity")
        data = dataclasses.replace(data, alpha="rgba")
    if not data.datadir:
        raise DataError("data.datadir: name the folder where the toy cars are kept, for example data/toy_cars")
    fingerprint = cars_fingerprint(data)
    folder = Path(data.datadir[0])
    file = folder / f"toy_cars_{fingerprint[:16]}.pt"
    kept = _read(file, data)
    if kept is None:
        with _writing_to(folder):  # found out before the cars are made
            make_writable_folder(folder)
        log.info(
            "making %d toy cars of %d x %d pixels, once; they are kept in %s (data.datadir)",
            *(data.n_images, data.imsize, data.imsize, file.resolve()),
        )
        kept = make_toy_cars(data)
        with _writing_to(folder), whole_file(file) as temporary:
            torch.save(kept, temporary)
    return _cars_of(kept, data, fingerprint)


def unseen_toy_cars(data: DataConfig, n: int, seed: int) -> ToyCars:
    """n cars with their opacity that are in no data set, made anew: those of a negative seed, which no config may have."""
    data = dataclasses.replace(data, seed=-1 - seed, n_images=n, alpha="rgba")
    return _cars_of(make_toy_cars(data), data, cars_fingerprint(data))


def cars_fingerprint(data: DataConfig) -> str:
    """sha256 of all that a set's images and cameras depend on."""
    depends_on = [VERSION, {key: getattr(data, key) for key in KEYS}]
    if data.alpha == "rgba":
        depends_on.append("alpha")
    if data.camera_prior == "front":
        depends_on.append([data.azimuth_std_deg, data.elevation_std_deg])
    return hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()


def _cars_of(made: dict[str, Tensor], data: DataConfig, fingerprint: str) -> ToyCars:
    labels = None if data.labels == "none" else toy_car_labels(made["pose_c2w"], data)
    return ToyCars(made["images"], labels, fingerprint, toy_car_elevations(data))


def toy_car_labels(pose_c2w: Tensor, data: DataConfig) -> Labels:
    """Labels of cameras (N, 3, 4): one class, and elevation bins that divide the config's v_range evenly."""
    _, v = azimuth_and_v(pose_c2w)
    edges = torch.linspace(*data.v_range, toy_car_elevations(data) + 1)[1:-1]
    return dataclasses.replace(Labels.of_poses(pose_c2w), elevation_index=torch.bucketize(v, edges))


def make_toy_cars(data: DataConfig) -> dict[str, Tensor]:
    """images (N, data.channels, H, W) uint8 and pose_c2w (N, 3, 4), a function of the config alone. Raises DataError where
    memory has no room for them."""
    pose_c2w = sample_poses(data.n_images, data, seeded_rng(data.seed))
    images = _empty_images(data)

    def make(index: int) -> None:
        view = render_cars([make_car(data.seed, index)], pose_c2w[index : index + 1], data)
        images[index, :3] = ((view.images[0] + 1) * 127.5).round().to(torch.uint8)
        if data.alpha == "rgba":
            images[index, 3] = (view.opacity[0] * 255).round().to(torch.uint8)

    made = map_in_threads(make, range(data.n_images), available_cores())  # a single car is too small for several threads
    for _ in progress(made, desc="toy cars", total=data.n_images, unit="car"):
        pass
    return {"images": images, "pose_c2w": pose_c2w}


def _empty_images(data: DataConfig) -> Tensor:
    shape = data.n_images, data.channels, data.imsize, data.imsize
    size = math.prod(shape)
    if size <= memory_limit():  # the system would grant more, and kill the process once it is written to
        with contextlib.suppress(RuntimeError):
            return torch.empty(shape, dtype=torch.uint8)
    raise DataError(
        f"data.n_images: {data.n_images:,} toy cars of {data.imsize} x {data.imsize} pixels take {size / GB:.1f} GB of memory, "
        "more than there is; make fewer, or smaller ones with data.imsize"
    )


def render_cars(cars: Sequence[Solids], pose_c2w: Tensor, data: DataConfig, supersampling: int = SUPERSAMPLING) -> CarViews:
    """One view of each car from its camera (N, 3, 4), with ground-truth depth and opacity.

    The same car from several cameras: `render_cars([make_car(seed, index)] * n, pose_c2w, data)`. A pixel is the mean of
    supersampling^2 rays spread over it; with 1 it is the ray of `graf.rays.camera_rays`.
    """
    width = data.imsize
    position = torch.arange(width * supersampling) / supersampling - (supersampling - 1) / (2 * supersampling)
    y, x = torch.meshgrid(position, position, indexing="ij")
    grid = torch.stack([x, y], dim=-1)[None]
    views = [_render(car, *camera_rays(pose[None], grid, width, data), data) for car, pose in zip(cars, pose_c2w, strict=True)]
    return CarViews(*(torch.stack(parts) for parts in zip(*views, strict=True)))


def _render(car: Solids, rays_o: Tensor, rays_d: Tensor, data: DataConfig) -> tuple[Tensor, Tensor, Tensor]:
    colour, distance, hit = cast(car, rays_o[0], rays_d[0])

    def pixel_sum(values: Tensor) -> Tensor:
        """(R, C) over the rays of each pixel: (C, H, W)."""
        n = round(len(values) ** 0.5) // data.imsize
        return values.view(data.imsize, n, data.imsize, n, -1).sum(dim=(1, 3)).permute(2, 0, 1)

    rays, hits = pixel_sum(torch.ones_like(distance)), pixel_sum(hit.to(colour))
    opacity = hits / rays
    background = torch.tensor(data.background)[:, None, None]
    image = pixel_sum(colour) / rays + background * (1 - opacity)
    return image * 2 - 1, (pixel_sum(distance) / hits.clamp_min(1))[0], opacity[0]


def _read(file: Path, data: DataConfig) -> dict[str, Tensor] | None:
    """The kept set, or None where it is missing, damaged or of other shapes."""
    try:
        with zipfile.ZipFile(file) as archive:
            if part := archive.testzip():  # torch.load does not check it
                raise zipfile.BadZipFile(f"{part} has a wrong checksum")
        kept = torch.load(file, weights_only=True)
        found = {name: (tuple(kept[name].shape), kept[name].dtype) for name in ("images", "pose_c2w")}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # torch.load raises whatever its zip or pickle reader does for a damaged file
        if is_machine_fault(error):
            raise
        log.warning("%s: not readable (%s), making it again", file, error)
        return None
    n, side = data.n_images, data.imsize
    expected = {"images": ((n, data.channels, side, side), torch.uint8), "pose_c2w": ((n, 3, 4), torch.float32)}
    return kept if found == expected else None


@contextlib.contextmanager
def _writing_to(folder: Path) -> Iterator[None]:
    """Raise a DataError where the block cannot write its file."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError for a full disk
        raise DataError(f"{folder}: the toy cars cannot be kept there ({error}); set data.datadir to another folder") from None
