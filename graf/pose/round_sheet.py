"""A sheet of a round that finds cameras: photographs by the azimuth that was read, and generated objects seen from there."""

from pathlib import Path

from graf.camera import middle_poses
from graf.data import Views
from graf.models.generator import Generator
from graf.pictures.captions import Captions
from graf.pictures.outputs import as_uint8, write_grid
from graf.pictures.sampling import render_views, sample_objects
from graf.pose.rounds import FoundCameras

import torch
from torch import Tensor

COLUMNS, ROWS = 12, 3  # of photographs, and as many rows of generated objects
WHITE = 255


def write_sheet(path: Path, photographs: Views, found: FoundCameras, generator: Generator, note: str) -> Path:
    """Write the sheet; in each column stand the surest photographs of its 30 degrees, blank where there are fewer."""
    width = 360 / COLUMNS
    azimuths = width * (torch.arange(COLUMNS) + 0.5)
    side = generator.config.data.imsize
    shown = torch.full((ROWS, COLUMNS, 3, side, side), WHITE, dtype=torch.uint8)
    for column in range(COLUMNS):
        for row, index in enumerate(surest(found, column, width)):
            shown[row, column] = as_uint8(photographs[index]["image"])
    views = render_views(generator, sample_objects(generator, ROWS, seed=0), middle_poses(azimuths, generator.config.data))
    pictures = torch.cat([shown.flatten(0, 1), as_uint8(views.images)])
    rows = [f"{name}\n{number + 1}" for name in ("photograph", "generated") for number in range(ROWS)]
    captions = Captions("columns: azimuth in degrees", [f"{azimuth:.0f}" for azimuth in azimuths.tolist()], rows, note)
    return write_grid(path, pictures, COLUMNS, captions)


def surest(found: FoundCameras, column: int, width: float) -> list[int]:
    """Indices of the photographs of a column, at most ROWS, the surest first."""
    inside = (found.azimuth_deg // width == column).nonzero()[:, 0]
    order: Tensor = found.confidence[inside].argsort(descending=True, stable=True)
    return inside[order[:ROWS]].tolist()
