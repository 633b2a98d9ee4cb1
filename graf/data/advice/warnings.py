"""Warnings about data sets that can be trained on, but from which little will be learned, each with its evidence and cures.

What is few follows from three runs: the default recipe learned from 2,048 renderings of as many toy cars and from 3,200
photographs of 200 real cars, cut out and with cameras; configs/few_images.yaml learned from 400 of ten toy cars.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from graf.camera import elevation_of_v
from graf.config import Config, DataConfig, DiscriminatorConfig
from graf.config.strict import one_line
from graf.data.advice.evidence import Evidence
from graf.data.cameras.seen_from import FEWEST_OF_A_RING, in_degrees, other_azimuths, other_heights, u_of_azimuths, v_of_heights
from graf.data.labels.placement import across_axes, looked_at, missed_by, upward
from graf.data.views import Views
from graf.rotations import GUESSED_RIGHT

import torch
from torch import Tensor

FEW_IMAGES, FEW_OBJECTS = 500, 50
FOR_FEW = "few_images.yaml"  # in configs/
STEPS_WITH_CAMERAS, STEPS_WITHOUT_CAMERAS, STEPS_OF_FRONTS = 6000, 20000, 10000  # the second was not measured
FEWEST_OF_A_CLASS = 100  # images, on the mean: folders of fewer may show one object each, as of a turntable
UNSURE = 0.5  # mean confidence of cameras that were found: half of them are expected to be wrong
TILTED_DEG = 20.0  # of horizontal axes, off the horizon
ALIKE = 0.1  # sines by which two explanations of that fit alike
OFF_CENTRE, CLEARLY = 0.15, 3.0  # by how much the cameras look past the origin: of their distance, and of how they miss a point
LEAST_TURN = 0.02  # of cameras that tell what point they look at: 8 degrees to either side
REPEATED = 0.02  # share of the images that makes a warning
HALF_CIRCLE_DEG = 180
SAME_COLOUR = 0.1  # of 1, in each channel
CUT_OUT = "cut the objects out (python tools/prepare_photos.py), or name their masks in data.masks"
FRONT = "set data.camera_prior=front data.hflip=true, as configs/faces_64.yaml and configs/cat_faces_64.yaml do"


def warnings_about(dataset: Views, config: Config, evidence: Evidence) -> list[str]:
    """The warnings about a data set; none about the built-in toy cars."""
    data = config.data
    if data.type == "toy_cars":
        return []
    return [
        *_few(dataset, config, evidence),
        *_small_classes(dataset, config.discriminator),
        *_repeated(dataset.files, evidence),
        *_backgrounds(data, evidence),
        *_unsure_cameras(dataset),
        *_tilted_world(dataset, data),
        *_other_azimuths(dataset, data),
        *_other_heights(dataset, data),
    ]


def sampled_all_around(dataset: Views, evidence: Evidence) -> str | None:
    """A warning that cameras are sampled from more than half a circle; None where they are known, or it is less."""
    if dataset.posed or evidence.span_deg <= HALF_CIRCLE_DEG:
        return None
    return (
        f"the images have no cameras, so these are sampled over {evidence.span_deg:.0f} degrees of azimuth: right for objects "
        "photographed from all sides. Objects photographed from the front alone, as faces are, would get their front on all "
        f"sides: for them {FRONT}"
    )


def has_small_classes(dataset: Views) -> bool:
    """Whether the classes have so few images that each may be one object."""
    n_classes = n_classes_of(dataset)
    return n_classes > 1 and len(dataset) < FEWEST_OF_A_CLASS * n_classes


def steps_for(n_images: int, posed: bool, camera_prior: str = "circle") -> int | None:
    """The training.max_steps for so many images, with cameras or without; None for few, which have a config of their own."""
    if n_images < FEW_IMAGES:
        return None
    if posed:
        return STEPS_WITH_CAMERAS
    return STEPS_OF_FRONTS if camera_prior == "front" else STEPS_WITHOUT_CAMERAS


def with_steps(layer: dict[str, Any], n_images: int, posed: bool) -> dict[str, Any]:
    """The keys of a new config with the steps that so many images take; few images have all that few_images.yaml says."""
    if (steps := steps_for(n_images, posed)) is None:
        return {"inherit_from": FOR_FEW} | layer
    return layer | {"training": layer.get("training", {}) | {"max_steps": steps}}


def too_few_steps(config: Config, ours: Config, n_images: int, posed: bool) -> list[str]:
    """A warning where images are given the number of steps that a config for toy cars has, and take more.

    ours: the config in configs/ that the user's own changes; posed: whether the images have cameras, or are about to.
    """
    steps, enough = config.training.max_steps, steps_for(n_images, posed, config.data.camera_prior)
    of_toy_cars = ours.data.type == "toy_cars" and steps == ours.training.max_steps
    if config.data.type != "images" or not of_toy_cars or enough is None or steps >= enough:
        return []
    cameras = "" if posed else " (if their names tell the cameras, set data.name_pattern)"
    return [
        f"training.max_steps: {steps} is for toy cars; images {'with' if posed else 'without'} cameras take about "
        f"{enough:,}{cameras}: --max_steps {enough}, or training.max_steps: {enough} in your config"
    ]


def n_classes_of(dataset: Views) -> int:
    """The number of classes that have images."""
    return len(dataset.class_index.unique())


def _few(dataset: Views, config: Config, evidence: Evidence) -> Iterator[str]:
    n_images, n_objects, found = evidence.n_different, evidence.n_objects, []
    if n_images < FEW_IMAGES:
        found.append(f"{n_images:,} different image{'s' * (n_images != 1)}")
    if n_objects is not None and n_objects < FEW_OBJECTS and dataset.posed:
        found.append(f"{n_objects} object{'s' * (n_objects != 1)}, by folders and file names")
    if not found:
        return
    several = dataset.posed and n_objects > 1  # without cameras, names that count views look like those of objects
    single = (
        ""
        if several
        else ". A single object is a matter for nerfstudio, which reconstructs it; several are told by a folder of each"
    )
    mirror = "" if dataset.posed or config.data.hflip else ", or let training mirror these at random by data.hflip: true"
    advice = f", which a config of your own takes over by inherit_from: {FOR_FEW}. Or add"
    if config.discriminator.augment:  # of our configs few_images.yaml alone has it, so this one inherits from it
        advice = ". Add"
    yield (
        f"little to learn from: {'; '.join(found)}. The default recipe learned from 2,048 images of as many objects and from "
        "3,200 of 200; of ten toys with cameras, 400 sufficed for --config few_images without --max_steps"
        f"{advice} photographs of other objects, until there are at least {FEW_IMAGES} photographs of {FEW_OBJECTS} objects"
        f"{mirror}{single}"
    )


def _small_classes(dataset: Views, discriminator: DiscriminatorConfig) -> Iterator[str]:
    if discriminator.knows_classes and has_small_classes(dataset):
        n_classes = n_classes_of(dataset)
        yield (
            f"each of {n_classes:,} folders is a class, with {len(dataset) / n_classes:.0f} images on the mean, which "
            "discriminator.condition or label_loss tells both networks. If each folder shows one object, the generator "
            "does not learn what all objects have in common: put the images of all objects into one folder (find_cameras.py "
            "does so by itself)"
        )


def _unsure_cameras(dataset: Views) -> Iterator[str]:
    known = [value for value in dataset.confidence or [] if value is not None]
    if known and (mean := sum(known) / len(known)) < UNSURE:
        yield (
            f"the estimator that found the cameras is unsure of them: their mean confidence is {mean:.2f}, where guessing has "
            f"{GUESSED_RIGHT:.2f}. Train without them (data.labels: none), or find better ones: tools/find_cameras.py with "
            "more --max_steps, or photographs of more objects"
        )


def _tilted_world(dataset: Views, data: DataConfig) -> Iterator[str]:
    """Of cameras that are taken as their file has them."""
    if dataset.label_source != "transforms" or data.align_cameras != "auto" or len(dataset) < FEWEST_OF_A_RING:
        return
    pose_c2w = dataset.labels.pose_c2w.double()
    cure = "set data.align_cameras: always"
    tilt = math.degrees(math.asin(min(1.0, _rms(pose_c2w[:, 2, 0]))))
    if tilt > TILTED_DEG:
        axis = f"as if another axis than z were upward in transforms.json: {cure}"
        roll = (
            "as if the cameras were rolled: set data.roll_deg to 90 or -90, by which validate_data.py shows the objects upright"
        )
        fits = sorted([(_rms(pose_c2w[:, 2, 1]), roll), (_rms(pose_c2w[:, :, 0] @ upward(pose_c2w)), axis)])
        likely = [cause for off, cause in fits if off < fits[0][0] + ALIKE]
        yield f"the cameras' horizontal axes are {tilt:.0f} degrees off the horizon, {'; or '.join(likely)}"
    centre, distance = looked_at(pose_c2w), pose_c2w[:, :, 3].norm(dim=1).mean().item()
    if centre is None or torch.linalg.eigvalsh(across_axes(pose_c2w).mean(0))[0] < LEAST_TURN:
        return
    past_origin, past_centre = (missed_by(pose_c2w, point).item() for point in (torch.zeros_like(centre), centre))
    if past_origin > max(OFF_CENTRE * distance, CLEARLY * past_centre):
        away = centre.norm().item()
        yield (
            f"the cameras look at a point {away:.3g} from the origin of transforms.json, where the object is expected, and are "
            f"{distance:.3g} from it: if the object is where they look, {cure}"
        )


def _rms(values: Tensor) -> float:
    return values.square().mean().sqrt().item()


def _other_azimuths(dataset: Views, data: DataConfig) -> Iterator[str]:
    if azimuths := other_azimuths(dataset, data):
        of_azimuths = u_of_azimuths(*azimuths)
        prior = "" if data.camera_prior == "circle" else "data.camera_prior=circle "
        yield (
            f"the cameras stand at azimuth {in_degrees(*azimuths)} degrees, but samples, videos and measures look from "
            f"{360 * data.u_range[0]:.0f} to {360 * data.u_range[1]:.0f}: set {prior}data.umin={of_azimuths['umin']:g} "
            f"data.umax={of_azimuths['umax']:g}"
        )


def _other_heights(dataset: Views, data: DataConfig) -> Iterator[str]:
    if heights := other_heights(dataset, data):
        of_heights = v_of_heights(*heights)
        top, middle, bottom = map(elevation_of_v, (data.vmin, (data.vmin + data.vmax) / 2, data.vmax))
        yield (
            f"the cameras stand {in_degrees(*heights)} degrees above the horizon, but samples and videos are seen from "
            f"{middle:.0f}, and measures of shapes and eval.py --invert look from {bottom:.0f} to {top:.0f}: set "
            f"data.vmin={of_heights['vmin']:g} data.vmax={of_heights['vmax']:g}"
        )


def _repeated(files: Sequence[str], evidence: Evidence) -> Iterator[str]:
    repeats = evidence.repeats
    if not repeats or len(repeats) < REPEATED * evidence.n_images:
        return
    kinds = {"identical": repeats.identical, "almost identical": repeats.alike}
    found = [f"{len(pairs):,} {kind}, such as {_example(files, pairs)}" for kind, pairs in kinds.items() if pairs]
    yield (
        f"{len(repeats):,} of {evidence.n_images:,} images repeat others at 8 x 8 pixels ({'; '.join(found)}), which leaves "
        f"{evidence.n_different:,} to learn from; keep one of each"
    )


def _example(files: Sequence[str], pairs: Sequence[tuple[int, int]]) -> str:
    """The last pair, whose image is the furthest from the first."""
    image, earlier = (Path(files[index]) for index in pairs[-1])
    n_parts = 1 if image.name != earlier.name else 2
    return " of ".join(one_line("/".join(file.parts[-n_parts:])) for file in (image, earlier))


def _backgrounds(data: DataConfig, evidence: Evidence) -> Iterator[str]:
    background = evidence.background
    if background is None or data.background_model == "plane":
        return
    if background.kind == "plain":
        if max(abs(a - b) for a, b in zip(background.colour, data.background, strict=True)) > SAME_COLOUR:
            yield (
                f"the backgrounds are plain, about {list(background.colour)}, but data.background is {list(data.background)}: "
                f'the field would have to build the wall; --set "data.background={_flag(background.colour)}", or {CUT_OUT}'
            )
    elif evidence.span_deg > HALF_CIRCLE_DEG:  # of fewer degrees, it is a wall behind the object, as in GRAF's faces
        what = {"busy": f"busy in {background.n_busy:,} of {evidence.n_images:,} images", "varied": "of many colours"}
        yield (
            f"the backgrounds, by the edges of the centre squares, are {what[background.kind]}. No field can hold another "
            f"background for each photograph, seen from all sides: it builds walls around the object; {CUT_OUT}, or set "
            "data.background_model=plane"
        )


def _flag(colour: Sequence[float]) -> str:
    return f"[{','.join(f'{value:g}' for value in colour)}]"
