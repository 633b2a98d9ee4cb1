"""Variety of silhouettes and coverage of surfaces: whether objects differ in shape, which FID and KID do not see.

Generated and exact objects are seen along the same rays, those of the field: a ray is on the object where its opacity exceeds
one half, and the surface is at its mean depth there.

Legend: N objects, V views of each, h rays along each side of a view.
"""

import dataclasses
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from graf.camera import poses_at, side_pose, view_azimuths
from graf.config import Config, DataConfig
from graf.data import Views
from graf.data.car_shapes import make_car
from graf.data.raycast import Solids, cast
from graf.metrics.consistency import stages
from graf.models.generator import Generator
from graf.pictures.sampling import Objects, sample_objects
from graf.rays import camera_rays, full_grid, low_resolution_grid
from graf.rng import seeded_rng
from graf.runtime.console import progress
from graf.runtime.files import kept_json
from graf.runtime.limits import available_cores

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn import functional as F

OPAQUE = 0.5
MOST_RAYS = 64  # h at most
NEAREST_IMAGES, SINGLE_OBJECTS = 32, 4
WIDE_DEG = 20.0  # between cameras, from which silhouettes differ by more than the objects' shapes
SURFACE_RAYS, SURFACE_VIEWS = 32, 6
POINTS = 1024  # of a surface
VIEWS_AT_ONCE = 8
VARIETY_CAVEAT = (  # silhouettes are compared with one another only, not with the data's
    "Blobs and fragments differ from one another too: whether shapes are like the data's, coverage and mmd tell, or a look at "
    "the sheets."
)

log = logging.getLogger("graf")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A generator and its data, measured on n objects sampled with `seed`, their latents scaled by `truncation`.

    cache: a folder for results that depend on the data alone.
    """

    generator: Generator
    dataset: Views
    seed: int
    truncation: float
    cache: Path
    n: int = 256

    @property
    def config(self) -> Config:
        return self.generator.config

    @property
    def terms(self) -> dict:
        of_data = {"real_fingerprint": self.dataset.fingerprint}
        return {"n_objects": self.n, "seed": self.seed, "truncation": self.truncation} | of_data


class Surfaces(NamedTuple):
    """Surfaces seen from B cameras: opaque (B, h, h) bool, and the world points (B, h, h, 3) of the surface where opaque."""

    opaque: Tensor
    points: Tensor


class Silhouettes(NamedTuple):
    """Silhouettes of the data: masks (B, h, h) bool from cameras (B, 3, 4) of class_index (B,); terms say what they are of."""

    masks: Tensor
    pose_c2w: Tensor
    class_index: Tensor
    terms: dict


def silhouette_variety(subject: Subject) -> dict:
    """The mean pairwise 1 - IoU of objects' silhouettes, and its share of the data's own, ready for JSON.

    The data's own is that of as many exact toy cars from one camera, or of real images by `real_silhouettes`, from whose
    cameras the objects are then rendered, one each; `variety_of_cameras` is what these cameras alone make of single objects.
    The share is None where the data has no silhouettes.
    """
    config, pose_c2w = subject.config, side_pose(subject.config.data)
    side = min(MOST_RAYS, config.data.imsize // config.rendered_scale)
    if config.data.type == "toy_cars":
        found = exact_silhouettes(pose_c2w, subject.n, side, config)
    else:
        found = real_silhouettes(subject.dataset, pose_c2w, side, config.data)
    if isinstance(found, Silhouettes):
        poses, classes = found.pose_c2w, found.class_index
        of_data = {"variety_data": dissimilarity(found.masks)} | found.terms
    else:
        log.warning("variety is not compared with the data's own: %s", found)
        poses, classes = pose_c2w.expand(subject.n, -1, -1), None
        of_data = {"variety_data": None, "unavailable": found}
    latents, own_classes = sample_objects(subject.generator, len(poses), subject.seed, subject.truncation)
    objects = latents, own_classes if classes is None else classes
    masks = generated_surfaces(subject.generator, objects, poses, side, "silhouettes").opaque
    variety, of_cameras = dissimilarity(masks), 0.0
    if not torch.equal(poses, poses[:1].expand_as(poses)):
        of_cameras = variety_of_cameras(subject.generator, objects, poses, side)
    share = share_of_variety(variety, of_data["variety_data"], of_cameras)
    if share is None and of_data["variety_data"] is not None:
        of_data["unavailable"] = "the cameras alone change silhouettes as much as the objects of the data do"
        log.warning("variety is not compared with the data's own: %s", of_data["unavailable"])
    return {
        "variety": variety,
        "share_of_data": share,
        "variety_of_cameras": of_cameras,
        "empty_share": (~masks.any(dim=(1, 2))).float().mean().item(),
        **of_data,
        **subject.terms,
        "n_objects": len(poses),
        "rays": side,
    }


def dissimilarity(masks: Tensor) -> float:
    """Mean of `silhouette_distances` over all pairs of masks (N, h, w) bool."""
    flat = masks.flatten(1)
    return (silhouette_distances(flat, flat).sum() / (len(masks) * (len(masks) - 1))).item()  # 0 on the diagonal


def silhouette_distances(a: Tensor, b: Tensor) -> Tensor:
    """1 - intersection / union (A, B) of masks (A, P) and (B, P) bool; two empty masks are equal."""
    a, b = a.double(), b.double()
    both = a @ b.T
    either = a.sum(1)[:, None] + b.sum(1) - both
    return torch.where(either > 0, 1 - both / either.clamp_min(1), 0.0)


def variety_of_cameras(generator: Generator, objects: Objects, poses: Tensor, side: int) -> float:
    """Dissimilarity of one object's silhouettes from all cameras (B, 3, 4), the mean over the first SINGLE_OBJECTS objects."""
    each = tuple(values[:SINGLE_OBJECTS].repeat_interleave(len(poses), 0) for values in objects)
    n = len(each[0]) // len(poses)
    masks = generated_surfaces(generator, each, poses.repeat(n, 1, 1), side, "cameras").opaque
    return sum(dissimilarity(some) for some in masks.split(len(poses))) / n


def share_of_variety(variety: float, of_data: float | None, of_cameras: float) -> float | None:
    """sqrt((variety^2 - of_cameras^2) / (of_data^2 - of_cameras^2)); None where the data has no more variety than the cameras.

    Objects and cameras change an outline independently, so their squares add up where objects differ gradually. Of a generator
    with few kinds of objects the share is larger than from one camera, to which two images of a kind are equal.
    """
    if of_data is None or of_data <= of_cameras:
        return None
    return (max(0.0, variety**2 - of_cameras**2) / (of_data**2 - of_cameras**2)) ** 0.5


def exact_silhouettes(pose_c2w: Tensor, n: int, side: int, config: Config) -> Silhouettes:
    """Silhouettes of the first n toy cars of the config's seed from a camera (3, 4)."""
    poses = pose_c2w.expand(n, -1, -1)
    masks = exact_surfaces([make_car(config.data.seed, i) for i in range(n)], poses, side, config).opaque
    return Silhouettes(masks, poses, torch.zeros(n, dtype=torch.long), {"data_is": "exact toy cars from the same camera"})


def real_silhouettes(dataset: Views, pose_c2w: Tensor, side: int, data: DataConfig) -> Silhouettes | str:
    """Silhouettes, by transparency, of the NEAREST_IMAGES whose cameras are nearest in angle to a camera (3, 4).

    Several may show the same object, which the data does not tell. Returns the reason where there are none.
    """
    if not dataset.posed or len(dataset) < 2:
        return "the images have no cameras" if len(dataset) > 1 else "a single image has no variety"
    to_camera, to_all = (F.normalize(poses[..., 3], dim=-1) for poses in (pose_c2w, dataset.labels.pose_c2w))
    angles_deg = torch.rad2deg((to_all @ to_camera).clamp(-1, 1).acos())
    apart_deg, index = (values[:NEAREST_IMAGES] for values in angles_deg.sort(stable=True))
    alphas = [dataset.opacity(i, data) for i in index.tolist()]
    if any(alpha is None for alpha in alphas):
        return "images without transparency do not show their silhouettes"
    if apart_deg[-1] > WIDE_DEG:
        log.warning("variety: images up to %.0f degrees from the camera are compared, as none are nearer", apart_deg[-1])
    terms = {"data_is": "images nearest to the camera", "apart_deg": apart_deg[-1].item()}
    masks = F.adaptive_avg_pool2d(torch.stack(alphas), side) > OPAQUE
    return Silhouettes(masks, dataset.labels.pose_c2w[index], dataset.class_index[index], terms)


def surface_coverage(subject: Subject) -> dict:
    """Coverage and minimum matching distance of generated toy cars (Achlioptas et al. 2018, section 3), ready for JSON.

    Distances are Chamfer's in square scene units, between points on the surfaces that SURFACE_VIEWS cameras see. The reference
    is n exact cars with numbers below 0, which no data set has: repeating the training set gains nothing. `coverage_best` and
    `mmd_best` are measured between the reference and n other exact cars: no generator can be expected to do better.
    """
    config, n = subject.config, subject.n
    if config.data.type != "toy_cars":
        unavailable = "only toy cars have exact surfaces"
        log.warning("coverage and mmd are not measured: %s", unavailable)
        return {"coverage": None, "mmd": None, "unavailable": unavailable}
    poses, numbers, others = surface_poses(config.data), range(-n, 0), range(-2 * n, -n)
    reference = exact_clouds(numbers, poses, config)
    terms = (subject.dataset.fingerprint, config.rendered_scale, numbers, others, POINTS, SURFACE_RAYS, SURFACE_VIEWS)
    digest = hashlib.sha256(repr(terms).encode()).hexdigest()[:16]

    def best() -> list:
        return coverage_and_mmd(chamfer_distances(exact_clouds(others, poses, config), reference))

    best_coverage, best_mmd = kept_json(subject.cache / f"surfaces-{digest}.json", best)
    objects = sample_objects(subject.generator, n, subject.seed, subject.truncation)
    clouds = generated_clouds(subject.generator, objects, poses)
    coverage, mmd = coverage_and_mmd(chamfer_distances(clouds, reference)) if clouds else (0.0, None)
    return {
        "coverage": coverage,
        "mmd": mmd,
        "coverage_best": best_coverage,
        "mmd_best": best_mmd,
        "empty_share": 1 - len(clouds) / n,
        "reference_is": "toy cars that are in no data set",
        "points": POINTS,
        **subject.terms,
    }


def coverage_and_mmd(distances: np.ndarray) -> list[float]:
    """Coverage and MMD of distances (G, R) from generated to reference objects: the share of reference objects that are nearest
    to some generated one, and the mean distance of a reference object to its nearest generated one."""
    return [len(set(distances.argmin(1).tolist())) / distances.shape[1], float(distances.min(0).mean())]


def chamfer_distances(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> np.ndarray:
    """(G, R) between G and R clouds of points (P, 3): mean square distance to the nearest point, both ways added."""
    return one_way(ours, theirs) + one_way(theirs, ours).T


def one_way(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> np.ndarray:
    """(G, R): the mean square distance of the points of ours[g] to the nearest points of theirs[r]."""
    points, columns = np.concatenate(ours), []
    for cloud in progress(theirs, desc="Chamfer distances", unit="object"):
        distance, _ = cKDTree(cloud).query(points, workers=available_cores())
        columns.append((distance**2).reshape(len(ours), -1).mean(1))
    return np.stack(columns, axis=1)


def surface_poses(data: DataConfig) -> Tensor:
    """pose_c2w (SURFACE_VIEWS, 3, 4) around the object, alternating between the top and bottom of the config's heights."""
    azimuth_deg, low = view_azimuths(SURFACE_VIEWS, data), torch.arange(SURFACE_VIEWS) % 2 == 1
    top, bottom = data.v_range
    return poses_at(azimuth_deg, torch.where(low, bottom, top), sum(data.radius) / 2)


def exact_clouds(numbers: range, poses: Tensor, config: Config) -> list[np.ndarray]:
    """Points (POINTS, 3) per toy car, on the surface that cameras (V, 3, 4) see."""
    cars = [make_car(config.data.seed, i) for i in numbers for _ in poses]
    return clouds_of(exact_surfaces(cars, poses.repeat(len(numbers), 1, 1), SURFACE_RAYS, config), len(poses))


def generated_clouds(generator: Generator, objects: Objects, poses: Tensor) -> list[np.ndarray]:
    """Points (POINTS, 3) per generated object, without objects that are opaque nowhere."""
    latents, classes = (values.repeat_interleave(len(poses), 0) for values in objects)
    poses_of_all = poses.repeat(len(objects[0]), 1, 1)
    return clouds_of(generated_surfaces(generator, (latents, classes), poses_of_all, SURFACE_RAYS, "surfaces"), len(poses))


def clouds_of(seen: Surfaces, n_views: int) -> list[np.ndarray]:
    """POINTS points (POINTS, 3) per object, each seen in n_views views, sampled evenly from all points that are seen.

    Points are repeated where they are too few. Objects that are opaque nowhere are left out.
    """
    clouds = []
    for i, (opaque, points) in enumerate(zip(seen.opaque.split(n_views), seen.points.split(n_views), strict=True)):
        if len(found := points[opaque]):
            order = torch.randperm(len(found), generator=seeded_rng(i)).repeat(-(-POINTS // len(found)))
            clouds.append(found[order[:POINTS]].double().numpy())
    return clouds


def exact_surfaces(cars: Sequence[Solids], poses: Tensor, side: int, config: Config) -> Surfaces:
    """The surface of each car from its camera (B, 3, 4)."""
    rays = field_rays(poses, side, config)
    views = [cast(car, rays_o, rays_d) for car, rays_o, rays_d in zip(cars, *rays, strict=True)]
    _, depth, hit = map(torch.stack, zip(*views, strict=True))
    return surfaces(hit, depth, rays)


def generated_surfaces(generator: Generator, objects: Objects, poses: Tensor, side: int, desc: str) -> Surfaces:
    """The surface of each object (latents, classes) from its camera (B, 3, 4)."""
    views = []
    for some in progress(torch.arange(len(poses)).split(VIEWS_AT_ONCE), desc=desc, unit="batch"):
        latents, classes = (values[some] for values in objects)
        rendering = generator.render(latents, poses[some], side * generator.config.rendered_scale, classes)
        views.append(stages(rendering, poses[some])["nerf"])
    opacity, depth = (torch.cat([getattr(view, name) for view in views]).flatten(1) for name in ("opacity", "depth"))
    return surfaces(opacity > OPAQUE, depth, field_rays(poses, side, generator.config))


def surfaces(opaque: Tensor, depth: Tensor, rays: tuple[Tensor, Tensor]) -> Surfaces:
    """The surfaces that rays (B, h * h, 3) meet at planar depth (B, h * h) where they are opaque (B, h * h)."""
    points = rays[0] + depth[..., None] * rays[1]
    side = round(opaque.shape[1] ** 0.5)
    return Surfaces(opaque.unflatten(1, (side, side)), points.unflatten(1, (side, side)))


def field_rays(pose_c2w: Tensor, side: int, config: Config) -> tuple[Tensor, Tensor]:
    """rays_o and rays_d (B, h * h, 3) along which the field renders h = `side` rays per side from cameras (B, 3, 4)."""
    scale = config.rendered_scale
    return camera_rays(pose_c2w, low_resolution_grid(full_grid(side * scale), scale), side * scale, config.data)
