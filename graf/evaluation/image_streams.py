"""Generated and real images in the form that torch-fidelity draws from, and as folders of PNGs."""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from pathlib import Path

from graf.checkpoints.record import is_not_the_files
from graf.errors import GrafError
from graf.evaluation.extractors import Extractor
from graf.evaluation.outputs import as_uint8
from graf.runtime.guard import first_line

import imageio.v2 as imageio
import numpy as np
import torch
import torch_fidelity
from torch import Tensor
from torch.utils.data import Dataset

log = logging.getLogger("graf")

NUMPY_ARRAYS = [  # of which cached statistics are made
    np._core.multiarray._reconstruct,
    np.ndarray,
    np.dtype,
    type(np.dtype("float32")),
    type(np.dtype("float64")),
]


class RealSubset(Dataset):
    """The first n images of a seeded permutation of `real`, or all in their order, as torch-fidelity takes them: uint8."""

    def __init__(self, real: Dataset, n: int, seed: int):
        self.real, self.seed = real, seed
        permutation = torch.randperm(len(real), generator=torch.Generator().manual_seed(seed)).tolist()
        self.indices = permutation[:n] if n < len(real) else range(n)
        self.resolution = real[0]["image"].shape[-1]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Tensor:
        return as_uint8(self.real[self.indices[i]]["image"])

    def cache_name(self, extractor: Extractor) -> str:
        """A name of all that the features of these images depend on; torch-fidelity adds the extractor's name."""
        sources = repr((self.real.fingerprint, self.seed, extractor.sha256, extractor.resize))
        return f"real-{len(self)}-{self.resolution}px-{hashlib.sha256(sources.encode()).hexdigest()[:16]}"


def remove_damaged(cache_dir: Path, cache_name: str) -> None:
    """Remove cached features and statistics that cannot be read: torch-fidelity then computes them again."""
    for file in cache_dir.glob(f"{cache_name}-*.pt"):
        try:
            with torch.serialization.safe_globals(NUMPY_ARRAYS):
                torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a damaged file can make torch.load raise nearly anything
            if is_not_the_files(error):
                raise
            log.warning("%s: damaged (%s); removed, to be computed again from the photographs", file, first_line(error))
            file.unlink()


class NotFinite(GrafError):
    """Generated images have pixels that are nan or infinite, so no distance can be computed."""


class FakeStream(torch_fidelity.GenerativeModelBase):
    """Batches of generated images in the form of a torch-fidelity model, whose noise only gives the next batch's size.

    Raises NotFinite: rounded to 8 bits, nan would become an ordinary grey.
    """

    z_size = 1
    z_type = "normal"
    num_classes = 0

    def __init__(self, batches: Iterable[Tensor], resolution: int):
        super().__init__()
        self.images = chain.from_iterable(batches)
        self.resolution = resolution

    def forward(self, noise: Tensor) -> Tensor:
        images = list(islice(self.images, len(noise)))
        assert len(images) == len(noise), "the stream of generated images ended early"
        images = torch.stack(images).to(noise.device)  # (B, 3, H, W)
        assert images.shape[1:] == (3, self.resolution, self.resolution), f"generated images are {tuple(images.shape)}"
        finite = images.isfinite().all(dim=(1, 2, 3))
        if not finite.all():
            raise NotFinite(
                f"metrics: {int((~finite).sum())} of {len(images)} generated images have pixels that are not finite; "
                "look at the training's losses, and measure an earlier checkpoint"
            )
        return as_uint8(images)


def new_folder(folder: Path) -> Path:
    """The folder, made if need be. Raises GrafError where it holds something already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise GrafError(f"{folder}: not empty; samples would be mixed with what is there, name a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def written(batches: Iterable[Tensor], folder: Path) -> Iterator[Tensor]:
    """The batches (B, 3, H, W), each image of which is also written to `folder` as 000000.png, 000001.png and so on."""
    numbers = count()
    for batch in batches:
        for image in as_uint8(batch):
            imageio.imwrite(folder / f"{next(numbers):06d}.png", image.movedim(0, -1).numpy())
        yield batch
