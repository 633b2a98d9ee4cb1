"""A sheet of a round that finds cameras: generated objects from all around, and photographs by the azimuth that was found."""

from pathlib import Path

from graf.camera import middle_poses
from graf.data import Views
from graf.finding.rounds import FoundCameras
from graf.models.generator import Generator
from graf.pictures.captions import Captions
from graf.pictures.outputs import as_uint8, write_grid
from graf.pictures.sampling import render_views, sample_objects

import torch
from torch import Tensor

COLUMNS, ROWS = 12, 3  # of photographs, and as many rows of generated objects
WHITE = 255


def write_sheet(path: Path, generator: Generator, note: str, read: tuple[Views, FoundCameras] | None = None) -> Path:
    """Write the sheet. Above the generated objects stand, of photographs whose cameras were read, the surest of a column's 30
    degrees, blank where there are fewer."""
    width = 360 / COLUMNS
    azimuths = width * (torch.arange(COLUMNS) + 0.5)
    views = render_views(generator, sample_objects(generator, ROWS, seed=0), middle_poses(azimuths, generator.config.data))
    pictures, names = [as_uint8(views.images)], ["generated"]
    if read is not None:
        pictures.insert(0, surest_photographs(*read, width, generator.config.data.imsize))
        names.insert(0, "photograph")
    rows = [f"{name}\n{number + 1}" for name in names for number in range(ROWS)]
    captions = Captions("columns: azimuth in degrees", [f"{azimuth:.0f}" for azimuth in azimuths.tolist()], rows, note)
    return write_grid(path, torch.cat(pictures), COLUMNS, captions)


def surest_photographs(photographs: Views, found: FoundCameras, width: float, side: int) -> Tensor:
    """The photographs (ROWS * COLUMNS, 3, side, side) of uint8, in columns of `width` degrees, white where there are fewer."""
    shown = torch.full((ROWS, COLUMNS, 3, side, side), WHITE, dtype=torch.uint8)
    for column in range(COLUMNS):
        for row, index in enumerate(surest(found, column, width)):
            shown[row, column] = as_uint8(photographs[index]["image"])
    return shown.flatten(0, 1)


def surest(found: FoundCameras, column: int, width: float) -> list[int]:
    """Indices of the photographs of a column, at most ROWS, the surest first."""
    inside = (found.azimuth_deg // width == column).nonzero()[:, 0]
    order: Tensor = found.confidence[inside].argsort(descending=True, stable=True)
    return inside[order[:ROWS]].tolist()
