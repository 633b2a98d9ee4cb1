"""Writes what stands beside prepared photographs: the table of those left out, cameras, a config to start from, a sheet."""

import csv
import json
from pathlib import Path

from graf.config import load_config
from graf.data.advice.warnings import with_steps
from graf.data.folders import CONFIG, IMAGES, TRANSFORMS
from graf.data.views import spread
from graf.errors import DataError
from graf.photographs.making import Made
from graf.photographs.prepare import Prepared, all_cut
from graf.photographs.reading import open_photograph
from graf.photographs.sources import photograph_of, printable
from graf.pictures.captions import Captions
from graf.pictures.outputs import write_grid
from graf.runtime.files import encodable, whole_file, write_text, write_unless_changed

import torch
import yaml
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import pil_to_tensor

LEFT_OUT = "left_out.csv"
PAIRS, PAIRS_PER_ROW = 24, 4
TILE = 128  # pixels
CHEQUER = 8  # pixels a side of the squares behind what is transparent
SIDES = (128, 64)  # data.imsize to choose from


def write_left_out(file: Path, left_out: dict[str, str]) -> None:
    """Write a table of the photographs that were left out, and why."""
    with whole_file(file) as temporary, open(temporary, "w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(("file", "reason"))
        rows.writerows((encodable(place), encodable(reason)) for place, reason in sorted(left_out.items()))


def write_cameras(out: Path, root: Path, prepared: Prepared) -> None:
    """Write each transforms.json below the images, with the frames of the photographs that were kept, as PNGs.

    Raises DataError for two whose folders become one.
    """
    homes: dict[Path, Path] = {}
    written = {made.source.file: made.file for made in prepared.made}
    for source, content in prepared.cameras.items():
        home = out / IMAGES / printable(source.parent.relative_to(root).as_posix())
        if (other := homes.setdefault(home, source)) != source:
            raise DataError(f"{source}: its folder and that of {other} would have one name; rename one of them")
        named = [(frame, written.get(photograph_of(frame, source))) for frame in content["frames"]]
        kept = [frame | {"file_path": file.relative_to(home).as_posix()} for frame, file in named if file]
        for frame in kept:
            frame.pop("mask_path", None)  # of a mask for the photograph as it was
        write_text(home / TRANSFORMS, json.dumps(content | {"frames": kept}, indent=1))


def write_config(out: Path, prepared: Prepared) -> None:
    """Write a config to start from. One that differs is the user's and stays, with a warning."""
    side = min(made.side for made in prepared.made)
    imsize = next((size for size in SIDES if size <= side), SIDES[-1])
    data = {
        "type": "images",
        "datadir": [str(out / IMAGES)],
        "labels": prepared.labels,
        "imsize": imsize,
        "alpha": "rgba" if all_cut(prepared.made) else "ignore",
    }
    if prepared.labels == "filename":
        data["name_pattern"] = prepared.name_pattern
    rays = {"ray_sampler": {"rays_per_patch": (imsize // load_config().rendered_scale) ** 2}} if imsize > SIDES[-1] else {}
    batch_size = min(load_config().training.batch_size, len(prepared.made))
    layer = {"expname": out.resolve().name, "data": data, **rays, "training": {"batch_size": batch_size}}
    content = with_steps(layer, len(prepared.made), posed=prepared.labels != "none")
    comment = _comment(prepared.labels, content.get("inherit_from", "default.yaml"))
    write_unless_changed(out / CONFIG, comment + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _comment(labels: str, parent: str) -> str:
    lines = [f"A config to start from; it says what differs from configs/{parent}. configs/default.yaml explains all keys."]
    if labels == "none":
        lines += [
            "Cameras are sampled all around the object. Where all photographs show it from the front, as of faces, set",
            "camera_prior: front and hflip: true below data:; configs/faces_64.yaml has the other keys for heads.",
        ]
    if labels == "filename":
        lines += [
            "Where names rank the camera's heights, say in data.v how high it stood for each: docs/datasets.md has a table."
        ]
        lines += [
            "Say what the camera was: data.fov (degrees, horizontal, of the centre square), data.radius, data.near, data.far."
        ]
    return "".join(f"# {line}\n" for line in lines)


def write_sheet(file: Path, made: list[Made]) -> None:
    """Write pairs of a photograph and what was made of it, evenly spread over all."""
    shown = spread(made, PAIRS)
    tiles = [tile for one in shown for tile in (_tile(open_photograph(one.source.file)), _tile(Image.open(one.file)))]
    captions = Captions("what is transparent is chequered", columns=("photograph", "prepared") * min(PAIRS_PER_ROW, len(shown)))
    write_grid(file, torch.stack(tiles), 2 * PAIRS_PER_ROW, captions)


def _tile(image: Image.Image) -> Tensor:
    """An image (3, TILE, TILE) as uint8, as large as fits, on white, chequered where it is transparent."""
    image = image.convert("RGBA")
    image.thumbnail((TILE, TILE))
    page = Image.new("RGBA", (TILE, TILE), "white")
    left, top = (TILE - image.width) // 2, (TILE - image.height) // 2
    page.paste(_chequered(image.size), (left, top))
    page.alpha_composite(image, (left, top))
    return pil_to_tensor(page.convert("RGB"))


def _chequered(size: tuple[int, int]) -> Image.Image:
    rows, columns = torch.arange(size[1])[:, None] // CHEQUER, torch.arange(size[0]) // CHEQUER
    return Image.fromarray(torch.where((rows + columns) % 2 == 0, 235, 190).to(torch.uint8).numpy())
