"""Images that repeat others: copies, and photographs of a burst. Legend: N images."""

from typing import NamedTuple

import torch
from torch import Tensor

COMPARED = 1024  # images in a row of which each is compared with each
ALIKE = 1.0  # root mean square of the differences, 8-bit steps: what compression changes


class Repeats(NamedTuple):
    """Pairs (image, an earlier one that it repeats): with the same thumbnail, and with almost the same."""

    identical: list[tuple[int, int]]
    alike: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.identical) + len(self.alike)


def find_repeats(thumbnails: Tensor) -> Repeats:
    """The repeats among images with these thumbnails (N, 3, 8, 8) uint8.

    Copies are found wherever they are, images that are almost the same among COMPARED in a row, as a burst is.
    """
    first_with: dict[bytes, int] = {}
    identical, different = [], []
    for index, row in enumerate(thumbnails.flatten(1).numpy()):
        earlier = first_with.setdefault(row.tobytes(), index)
        if earlier == index:
            different.append(index)
        else:
            identical.append((index, earlier))
    alike = [pair for rows in torch.tensor(different).split(COMPARED) for pair in _alike(thumbnails, rows)]
    return Repeats(identical, alike)


def _alike(thumbnails: Tensor, rows: Tensor) -> list[tuple[int, int]]:
    """The pairs of almost the same images among these rows, each with the nearest of the rows before it."""
    values = thumbnails[rows].flatten(1).float()
    distance = torch.cdist(values, values) / values.shape[1] ** 0.5
    later = torch.ones(len(rows), len(rows), dtype=torch.bool).triu()
    nearest, earlier = distance.masked_fill(later, torch.inf).min(1)
    found = (nearest < ALIKE).nonzero()[:, 0]
    return list(zip(rows[found].tolist(), rows[earlier[found]].tolist(), strict=True))
