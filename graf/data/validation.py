"""Checks of a data set before training begins: image files, and how the set fits the config."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from graf.config import Config, DataConfig
from graf.config.strict import one_line
from graf.data.decoding import Frame, open_with_alpha, square_side, square_tensor, stored_orientation, thumbnail
from graf.data.folders import Fault, Item
from graf.data.image_cache import OPAQUE, ImageCache
from graf.data.labels.framing import FOV_TOLERANCE_DEG, NARROWEST_FOV, fov_of_square
from graf.data.labels.intrinsics import problem_of_shape
from graf.data.masks import is_negative
from graf.errors import DataError
from graf.runtime.console import progress
from graf.runtime.limits import available_cores
from graf.runtime.threads import map_in_threads

import numpy as np
from torch import Tensor

LEAST_CLEAR = 0.05  # share of transparent pixels with which an image counts as cut out
EXAMPLES = 3  # of images that a warning names
LINES_SHOWN = 20
FILES_SHOWN_PER_PROBLEM = 3

log = logging.getLogger("graf")


def check_fit(config: Config, n_images: int, posed: bool, uses_radius: bool = True) -> list[Fault]:
    """Faults between the config and a set of n_images, which has cameras or not.

    uses_radius: the cameras are at data.radius, rather than where a file says.
    """
    data, batch_size, faults = config.data, config.training.batch_size, []
    if 0 < n_images < batch_size:
        cure = f"add images or set training.batch_size: {n_images}"
        faults.append(Fault("data", f"{n_images} images are fewer than a batch of {batch_size}; {cure}"))
    if data.hflip and posed:
        cure = (
            "set data.hflip: false, and where objects are symmetric data.mirror to the azimuth of their plane (0 for cars "
            "whose nose or tail points to azimuth 0); or data.labels: none to train without cameras"
        )
        faults.append(Fault("data.hflip", f"a mirrored image would need a mirrored camera; {cure}"))
    if data.mirror != "none" and not posed:
        cure = "set data.mirror: none, and data.hflip: true to mirror images without cameras"
        faults.append(Fault("data.mirror", f"the images have no cameras to mirror; {cure}"))
    if uses_radius and not data.near <= data.radius[1] <= data.far:
        margin = min((data.far - data.near) / 2, 0.9 * data.radius[1])
        near, far = data.radius[1] - margin, data.radius[1] + margin
        problem = f"cameras {data.radius[1]:g} from the object do not have it between data.near {data.near:g} and data.far"
        faults.append(Fault("data.radius", f"{problem} {data.far:g}; set data.near: {near:.4g} and data.far: {far:.4g}"))
    return faults


class CheckedImage(NamedTuple):
    """An image file, the side in pixels of its centre square, its fault if any, whether any of its pixels is transparent
    (not looked at with data.alpha: ignore), its thumbnail (3, 8, 8) uint8, None where it cannot be read, the square's field of
    view in degrees, None where it is not known, whether its camera may be of another orientation, whether its mask seems to be
    a negative, and the share of its pixels that are not opaque (1 where it has a mask, or no transparency)."""

    item: Item
    side: int
    fault: Fault | None
    transparent: bool = False
    thumbnail: Tensor | None = None
    fov: float | None = None
    may_be_turned: bool = False
    negative: bool = False
    clear: float = 1.0


def check_images(
    items: list[Item], frames: list[Frame], data: DataConfig, cache: ImageCache | None = None
) -> list[CheckedImage]:
    """Decode all files completely, on all cores, into `cache` unless it is filled already."""
    put = cache.put if cache and not cache.filled else None

    def check(index: int) -> CheckedImage:
        return check_image(items[index], frames[index], data, put and functools.partial(put, index))

    checked = map_in_threads(check, range(len(items)), available_cores())
    return list(progress(checked, desc="checking images", total=len(items), disable=not items))


def check_image(item: Item, frame: Frame, data: DataConfig, put: Callable[[Tensor], None] | None = None) -> CheckedImage:
    """Check one image file, and hand its pixels to `put`; its side is 0 where it cannot be read."""
    try:
        image, alpha = open_with_alpha(item.file, data, frame.mask)
        side, small = square_side(*image.size, data.center_crop), thumbnail(image, data)
        if put:
            put(square_tensor(image, alpha, data, frame))
    except ValueError as error:
        return CheckedImage(item, 0, Fault(str(item.file), str(error), of_image=True))
    fault, fov = None, None
    if problem := problem_of_shape(item.size, image.size):
        return CheckedImage(item, side, Fault(str(item.file), problem, of_image=True))
    if item.focal is not None and not data.orthographic:
        fov = fov_of_square(item, image.size, data)
        if frame.side is None and abs(fov - data.fov) > FOV_TOLERANCE_DEG:
            problem = f"its camera has a field of view of {fov:.2f} degrees over the square crop, data.fov is {data.fov:g}"
            fault = Fault(str(item.file), f"{problem}; set data.fov: {fov:.2f}")
    side = side if frame.side is None else round(frame.side * image.width)
    checked = CheckedImage(item, side, fault, False, small, fov, _may_be_turned(item, image.size))
    if alpha is None:
        return checked
    opacity = np.asarray(alpha)
    negative, clear = (is_negative(opacity > OPAQUE / 2), 1.0) if frame.mask else (False, float((opacity < OPAQUE).mean()))
    return checked._replace(transparent=bool(opacity.min() < OPAQUE), negative=negative, clear=clear)


def _may_be_turned(item: Item, size: tuple[int, int]) -> bool:
    """Whether an image is stored turned, and its shape does not tell whether its camera is of it so or upright."""
    orientation = 1 if item.pose_c2w is None else stored_orientation(item.file)
    return orientation != 1 and (orientation < 5 or item.size is None or size[0] == size[1])


def fov_fault(checked: Sequence[CheckedImage], frames: Sequence[Frame], data: DataConfig) -> list[Fault]:
    """A fault where data.fov is wider than what images cropped to it show, or cuts much off all of them."""
    shown = [(image.fov, image) for image, frame in zip(checked, frames, strict=True) if frame.side and image.fov]
    if not shown:
        return []
    narrowest, image = min(shown, key=lambda pair: pair[0])
    if NARROWEST_FOV * narrowest <= data.fov <= narrowest + FOV_TOLERANCE_DEG:
        return []
    widest = max(fov for fov, _ in shown)
    problem = (
        f"the square photographs have fields of view of {narrowest:.2f} ({image.item.file}) to {widest:.2f} degrees, data.fov "
        f"is {data.fov:g}; set data.fov: {narrowest:.2f}, to which all are cropped"
    )
    return [Fault("data.fov", problem)]


def alpha_of_images(images: Sequence[CheckedImage]) -> Literal["rgba", "ignore"]:
    """data.alpha in place of `auto`: rgba where all images have transparent pixels, and most have more than a few, else ignore;
    logged with the reason."""
    opaque, n = [image for image in images if not image.transparent], len(images)
    whole = [image for image in images if image.clear < LEAST_CLEAR]
    if not opaque and 2 * len(whole) > n:
        log.warning(
            "data.alpha: ignore, because %d of %d images have less than %.0f %% transparent pixels, as the rounded corners of "
            "screenshots, such as %s; if their objects are cut out, set data.alpha: rgba",
            *(len(whole), n, 100 * LEAST_CLEAR, one_line(str(whole[0].item.file))),
        )
        return "ignore"
    if not opaque:
        log.info("data.alpha: rgba, because all %d images have transparency", n)
    elif len(opaque) == n:
        log.info("data.alpha: ignore, because none of the %d images has transparency", n)
    else:
        log.info(
            "data.alpha: ignore, because %d of %d images have no transparency, such as %s; the discriminator sees opacity only "
            "where all have it",
            *(len(opaque), n, one_line(str(opaque[0].item.file))),
        )
    return "ignore" if opaque else "rgba"


def warn_of_turned(turned: Sequence[str], n_images: int) -> None:
    """Warn of photographs whose cameras may be of the pixels as they are stored, though the photographs are seen upright."""
    if turned:
        log.warning(
            "%d of %d photographs are stored turned, by their EXIF orientation, such as %s; their cameras are taken to be of "
            "the upright pictures. COLMAP's are of the stored ones: remove the orientation then",
            *(len(turned), n_images, one_line(turned[0])),
        )


def warn_of_negatives(images: Sequence[CheckedImage]) -> None:
    """Warn where most masks show the frame's edge as object."""
    negatives, n = [image for image in images if image.negative], sum(image.item.mask is not None for image in images)
    if 2 * len(negatives) > n:
        log.warning(
            "%d of %d masks seem to be negatives, such as %s: they are white along the edge of the frame, and white is the "
            "object. Invert them, or let prepare_photos.py do it",
            *(len(negatives), n, one_line(str(negatives[0].item.mask))),
        )


def warn_of_enlarged(images: list[CheckedImage], imsize: int) -> None:
    """Warn of images with fewer pixels than data.imsize: enlarged, they teach the generator to blur."""
    small = sorted((image for image in images if image.side < imsize), key=lambda image: image.side)
    if not small:
        return
    examples = ", ".join(f"{one_line(str(image.item.file))} ({image.side} pixels a side)" for image in small[:EXAMPLES])
    log.warning(
        "%d of %d images are smaller than data.imsize %d and are enlarged, up to %.1f times, which shows as blur: %s%s; "
        "take larger ones or leave them out, or set a smaller data.imsize",
        *(len(small), len(images), imsize, imsize / small[0].side, examples, ", ..." if len(small) > EXAMPLES else ""),
    )


def raise_or_skip(faults: list[Fault], data: DataConfig) -> None:
    """Raise a DataError with all faults, or log those of images where data.on_bad_file: skip leaves these out."""
    skipped = [fault for fault in faults if fault.of_image] if data.on_bad_file == "skip" else []
    fatal = [fault for fault in faults if fault not in skipped]
    if fatal:
        raise DataError(describe(fatal))
    if skipped:
        n_images = len({fault.where for fault in skipped})
        log.warning("left out %d faulty images (data.on_bad_file: skip)\n%s", n_images, describe(skipped))


def describe(faults: Sequence[Fault]) -> str:
    """One line per fault; a problem of many files is shown for the first of them and counted for the others."""
    files_of: dict[str, list[str]] = {}
    for fault in faults:
        files_of.setdefault(fault.problem, []).append(one_line(fault.where))
    lines, n_shown = [], 0
    for problem, files in files_of.items():
        if len(lines) >= LINES_SHOWN:
            lines.append(f"... and {len(faults) - n_shown:,} more")
            break
        lines += [f"{file}: {problem}" for file in files[:FILES_SHOWN_PER_PROBLEM]]
        if len(files) > FILES_SHOWN_PER_PROBLEM:
            lines.append(f"... and {len(files) - FILES_SHOWN_PER_PROBLEM:,} more with the same fault, to {files[-1]}")
        n_shown += len(files)
    head = [] if len(faults) == 1 else [f"{len(faults):,} faults in the data:"]
    return "\n".join([*head, *lines])
