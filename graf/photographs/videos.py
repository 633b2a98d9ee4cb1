"""The sharpest frame of each interval of a video, as a file."""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from graf.photographs.faults import sharpness
from graf.photographs.reading import luminance, shrunk
from graf.photographs.sources import Source, printable

import imageio_ffmpeg
import numpy as np
from PIL import Image

LONGEST = 1280  # pixels a frame is wide or high at most
JUDGED_PER_INTERVAL = 6
JUDGED = 512  # pixels of the longer side at which frames are compared
MOST_FRAMES = 2000  # of one video
FILTER = f"fps={{fps}},scale='if(gt(iw,ih),min({LONGEST},iw),-2)':'if(gt(iw,ih),-2,min({LONGEST},ih))'"

log = logging.getLogger("graf")


def video_frames(video: Source, every_s: float, folder: Path) -> list[Source]:
    """Write the sharpest frame of each interval of every_s seconds to a folder for this video alone. Returns them as
    photographs, named by the video and counted from 1. Raises ValueError where it has no frame that can be read.

    A video that breaks off is read as far as it goes, with a warning.
    """
    found: list[Source] = []
    place = PurePosixPath(video.place)
    folder.mkdir(exist_ok=True)
    try:
        for frame in _sharpest(video.file, every_s):
            name = f"{place.stem}_{len(found) + 1:04d}.png"
            file = folder / f"{len(found) + 1:04d}.png"
            frame.save(file, compress_level=1)
            found.append(Source(file, (place.parent / name).as_posix(), video=video.place))
            if len(found) == MOST_FRAMES:
                log.warning(
                    "%s: %d frames are taken, the rest is left; take a longer --every", printable(video.place), MOST_FRAMES
                )
                break
    except (RuntimeError, OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC:  # of the folder that frames are written to
            raise
        if found:
            log.warning("%s: breaks off after %d frames were taken", printable(video.place), len(found))
    if not found:
        raise ValueError("no frame of this video can be read; it is damaged, or of a kind that ffmpeg does not know")
    return found


def _sharpest(file: Path, every_s: float) -> Iterator[Image.Image]:
    best: tuple[float, Image.Image] | None = None
    for index, frame in enumerate(_frames(file, JUDGED_PER_INTERVAL / every_s)):
        sharp = sharpness(luminance(shrunk(frame, JUDGED)))[1]
        if best is None or sharp > best[0]:
            best = sharp, frame
        if index % JUDGED_PER_INTERVAL == JUDGED_PER_INTERVAL - 1:
            yield best[1]
            best = None
    if best is not None:
        yield best[1]


def _frames(file: Path, fps: float) -> Iterator[Image.Image]:
    """Upright frames of a video, so many per second. Raises OSError or RuntimeError where it cannot be read."""
    reader = imageio_ffmpeg.read_frames(
        str(file.resolve()),
        input_params=["-protocol_whitelist", "file"],  # a playlist must not lead to other machines
        output_params=["-vf", FILTER.format(fps=f"{fps:g}")],
    )
    try:
        size = next(reader)["size"]
        for data in reader:
            yield Image.fromarray(np.frombuffer(data, dtype=np.uint8).reshape(size[1], size[0], 3))
    finally:
        reader.close()
