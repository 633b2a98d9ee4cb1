"""Image grids from one camera: interpolation between objects, truncation, principal directions, classes, and samples beside
real images.

A `footer` is a line below a grid, which then gets captions; without one a grid is the bare pictures.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from graf.camera import sample_poses, side_pose
from graf.config import LatentConfig
from graf.data.views import Views
from graf.errors import GrafError
from graf.models.directions import PARTS, Directions, edited
from graf.models.generator import Generator
from graf.pictures.captions import Captions, numbered
from graf.pictures.outputs import as_uint8, write_grid, write_video
from graf.pictures.sampling import VIEWS_AT_ONCE, Objects
from graf.runtime.console import progress

import torch
from torch import Tensor

MODES = ("shape", "appearance", "both")  # the codes that are interpolated; the other one is fixed
AMOUNTS = (-3, -2, -1, 0, 1, 2, 3)  # standard deviations along a direction, one per column
TRUNCATIONS = 6  # columns of truncation.png
INTERPOLATED = 7  # objects along each side of an interpolation sheet
INTERPOLATION_FRAMES = 72
NEARLY_PARALLEL = 1e-4  # sine of the angle under which an arc is a straight line
PAIRS_A_ROW = 8


def interpolation_sheet(
    generator: Generator,
    objects: Objects,
    out: Path,
    columns: int = INTERPOLATED,
    resolution: int | None = None,
    footer: str | None = None,
) -> list[Path]:
    """Write interpolation_<mode>.png for each mode: between four objects in the corners.

    objects: latents (4, Z) and classes; all pictures are of the first object's class, as classes are not interpolated.
    Raises GrafError, as all functions here, for more pictures than memory.max_test_outputs.
    """
    files, shares = [], [f"{share:.0%}" for share in torch.linspace(0, 1, columns).tolist()]
    for mode, pictures in _interpolated(generator, objects, latent_grid, columns, resolution):
        captions = Captions(footer, shares, shares, f"from object to object: {mode}")
        files.append(write_grid(out / f"interpolation_{mode}.png", pictures, columns, captions))
    return files


def interpolation_video(
    generator: Generator, objects: Objects, out: Path, n_frames: int = INTERPOLATION_FRAMES, resolution: int | None = None
) -> list[Path]:
    """Write interpolation_<mode>.mp4 for each mode: a loop from object to object. Arguments as for `interpolation_sheet`."""
    modes = _interpolated(generator, objects, latent_walk, n_frames, resolution)
    return [write_video(out / f"interpolation_{mode}.mp4", frames) for mode, frames in modes]


def truncation_sheet(
    generator: Generator,
    objects: Objects,
    out: Path,
    columns: int = TRUNCATIONS,
    resolution: int | None = None,
    footer: str | None = None,
) -> list[Path]:
    """Write truncation.png: one object per row, its latents scaled per column from 0 (the mean object) to 1 (unchanged)."""
    latents, classes = objects
    psi = torch.linspace(0, 1, columns)
    scaled = (psi[:, None] * latents[:, None]).flatten(0, 1)  # (N * columns, Z)
    pictures = _pictures(generator, scaled, classes.repeat_interleave(columns), resolution)
    captions = Captions(footer, [f"truncation {scale:.1f}" for scale in psi.tolist()], numbered(len(latents)))
    return [write_grid(out / "truncation.png", pictures, columns, captions)]


def direction_sheets(
    generator: Generator,
    objects: Objects,
    directions: Directions,
    out: Path,
    resolution: int | None = None,
    footer: str | None = None,
) -> list[Path]:
    """Write direction_<part>_<i>.png for each principal direction, counted from 1: one object per row, moved along it by -3
    to 3 standard deviations."""
    latents, classes = objects
    _check_number(generator, len(latents) * len(AMOUNTS))
    files, columns = [], ["unchanged" if amount == 0 else f"{amount:+d} sd" for amount in AMOUNTS]
    several = [(part, i) for part in PARTS for i in range(len(directions[part].shares))]
    for part, i in progress(several, desc="directions"):
        moved = [edited(generator, directions, **{part: [0.0] * i + [float(amount)]}) for amount in AMOUNTS]
        pictures = [torch.cat(list(_rendered(other, latents, classes, resolution))) for other in moved]
        share = directions[part].shares[i]
        captions = Captions(
            footer, columns, numbered(len(latents)), f"{part} {i + 1}: {share:.0%} of the variance; sd: standard deviations"
        )
        rows = torch.stack(pictures, dim=1).flatten(0, 1)
        files.append(write_grid(out / f"direction_{part}_{i + 1}.png", rows, len(AMOUNTS), captions))
    return files


def class_rows(
    generator: Generator, latents: Tensor, out: Path, resolution: int | None = None, footer: str | None = None
) -> list[Path]:
    """Write classes.png, of a model with classes: one class per row, the same latents (N, Z) in each."""
    n_classes = generator.n_classes
    classes = torch.arange(n_classes).repeat_interleave(len(latents))
    pictures = _pictures(generator, latents.repeat(n_classes, 1), classes, resolution)
    captions = Captions(footer, numbered(len(latents), "latents"), generator.class_names or numbered(n_classes, "class"))
    return [write_grid(out / "classes.png", pictures, len(latents), captions)]


def real_against_fake_grid(
    generator: Generator,
    dataset: Views,
    out: Path,
    n: int = 16,
    seed: int = 0,
    footer: str | None = None,
    truncation: float = 1.0,
) -> list[Path]:
    """Write real_against_fake.png: rows of real images, each above a row of fresh samples of the same cameras and classes.

    Where the data is unposed, cameras are sampled from the config's range. truncation as in `sample_objects`.
    """
    rng = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(dataset), generator=rng)[:n]
    reals = as_uint8(torch.stack([dataset[i]["image"] for i in index.tolist()]))
    poses = dataset.labels[index].pose_c2w if dataset.posed else sample_poses(len(index), generator.config.data, rng)
    latents = truncation * generator.sample_latents(len(index), rng)
    fakes = _pictures(generator, latents, dataset.class_index[index], reals.shape[-1], poses)
    rows = [row for pair in zip(reals.split(PAIRS_A_ROW), fakes.split(PAIRS_A_ROW), strict=True) for row in pair]
    columns = len(rows[0])
    padded = [torch.cat([row, row.new_full((columns - len(row), *row.shape[1:]), 255)]) for row in rows]  # with white
    captions = Captions(
        footer,
        rows=["real images", "generated"] * (len(rows) // 2),
        note=f"from {'the same' if dataset.posed else 'sampled'} cameras",
    )
    return [write_grid(out / "real_against_fake.png", torch.cat(padded), columns, captions)]


def latent_grid(corners: Tensor, columns: int, mode: str, config: LatentConfig) -> Tensor:
    """Latents (columns * columns, Z), row by row, between corners (4, Z), of which the first two are on top.

    The code that the mode fixes is the first corner's; a background's goes with the appearance.
    """
    share = torch.linspace(0, 1, columns)[:, None]
    left, right = (blend(corners[i], corners[i + 2], share, config) for i in (0, 1))  # (rows, Z)
    rows = blend(left[:, None], right[:, None], share, config)  # (rows, columns, Z)
    return _moving(rows.flatten(0, 1), corners[0], mode, config)


def latent_walk(corners: Tensor, n: int, mode: str, config: LatentConfig) -> Tensor:
    """n latents (n, Z) around the corners (4, Z) and back to the first, which is not repeated at the end."""
    loop = corners[[0, 1, 3, 2]]
    position = torch.arange(n) * (len(loop) / n)
    start = position.long()
    walk = blend(loop[start], loop.roll(-1, 0)[start], (position - start)[:, None], config)
    return _moving(walk, corners[0], mode, config)


def blend(first: Tensor, second: Tensor, share: Tensor, config: LatentConfig) -> Tensor:
    """Interpolate latents (..., Z) by a share (..., 1) in [0, 1] from the first to the second, shape, appearance and, if any,
    background separately.

    Gaussian codes are interpolated along the arc (slerp, Shoemake 1985): nearly all have a length of about sqrt(dim), and a
    straight line would pass through lengths that training has hardly sampled. Uniform codes fill a cube, which contains every
    straight line between two of its points, but not every arc.
    """
    ends = (config.dim - config.dim_appearance, config.dim)
    mix = _arc if config.type == "gauss" else _line
    codes = zip(first.tensor_split(ends, -1), second.tensor_split(ends, -1), strict=True)
    return torch.cat([mix(a, b, share) for a, b in codes], dim=-1)


def _line(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    return (1 - share) * first + share * second


def _arc(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    a, b, t = first.double(), second.double(), share.double()
    cosine = torch.nn.functional.cosine_similarity(a, b, dim=-1)[..., None].clamp(-1, 1)
    angle = cosine.acos()
    straight = angle.sin() < NEARLY_PARALLEL  # or opposite, where no arc is the shortest
    sine = angle.sin().masked_fill(straight, 1)
    arc = ((1 - t) * angle).sin() / sine * a + (t * angle).sin() / sine * b
    return torch.where(straight, _line(a, b, t), arc).to(first)


def _moving(latents: Tensor, still: Tensor, mode: str, config: LatentConfig) -> Tensor:
    """The latents (N, Z), with the code that the mode fixes taken from `still` (Z,)."""
    n_shape, still = config.dim - config.dim_appearance, still.expand_as(latents)
    shape = (still if mode == "appearance" else latents)[:, :n_shape]
    appearance = (still if mode == "shape" else latents)[:, n_shape:]
    return torch.cat([shape, appearance], dim=-1)


def _interpolated(
    generator: Generator, objects: Objects, path: Callable, n: int, resolution: int | None
) -> Iterator[tuple[str, Tensor]]:
    """Each mode and its pictures along path(corners, n, mode, config), which is `latent_grid` or `latent_walk`."""
    (corners, classes), config = objects, generator.config.z_dist
    for mode in MODES if 0 < config.dim_appearance < config.dim else ("both",):
        latents = path(corners, n, mode, config)
        yield mode, _pictures(generator, latents, classes[:1].expand(len(latents)), resolution)


def _pictures(
    generator: Generator, latents: Tensor, classes: Tensor, resolution: int | None, poses: Tensor | None = None
) -> Tensor:
    """uint8 pictures (N, 3, H, W) of latents (N, Z) and classes (N,) from cameras (N, 3, 4), by default that of `side_pose`.

    Raises GrafError where they are more than memory.max_test_outputs.
    """
    _check_number(generator, len(latents))
    batches = _rendered(generator, latents, classes, resolution, poses)
    return torch.cat(list(progress(batches, desc="sheets", total=-(-len(latents) // VIEWS_AT_ONCE))))


def _rendered(
    generator: Generator, latents: Tensor, classes: Tensor, resolution: int | None, poses: Tensor | None = None
) -> Iterator[Tensor]:
    """The pictures of `_pictures`, VIEWS_AT_ONCE at a time."""
    if poses is None:
        poses = side_pose(generator.config.data).expand(len(latents), -1, -1)
    for some, pose, class_index in zip(*(x.split(VIEWS_AT_ONCE) for x in (latents, poses, classes)), strict=True):
        yield as_uint8(generator.render(some, pose, resolution, class_index).images)


def check_objects(generator: Generator, n: int, of_directions: bool = False) -> None:
    """Raises GrafError where the `direction_sheets` of n objects, or else all other grids and videos, have more pictures than
    memory.max_test_outputs."""
    if of_directions:
        _check_number(generator, n * len(AMOUNTS))
        return
    fixed, most = max(INTERPOLATED**2, INTERPOLATION_FRAMES), generator.config.memory.max_test_outputs
    if fixed > most:
        raise GrafError(
            f"--sheets: interpolations of {fixed} images, more than memory.max_test_outputs {most}; raise it with --set"
        )
    of_classes = generator.n_classes if generator.class_embedding is not None else 0
    _check_number(generator, n * max(TRUNCATIONS, of_classes))


def _check_number(generator: Generator, n: int) -> None:
    """Raises GrafError where so many pictures are more than memory.max_test_outputs."""
    most = generator.config.memory.max_test_outputs
    if n > most:
        raise GrafError(
            f"an image grid or video of {n} images, more than memory.max_test_outputs {most}; take fewer objects with "
            "--n_objects, or raise it with --set"
        )
