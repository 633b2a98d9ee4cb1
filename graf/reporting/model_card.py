"""The model card beside an exported generator: what it is, what it was trained on and how it was measured, with a picture."""

import logging
import os
import re
import shlex
from pathlib import Path
from urllib.parse import quote

from graf.camera import elevation_of_v, rotation_poses
from graf.config import DataConfig, config_to_dict, flat
from graf.data.folders import find_folders, is_within, matching_folders
from graf.errors import GrafError
from graf.metrics.memorised import MEMORISED_CAVEAT
from graf.metrics.results import OF_IMAGES, title
from graf.metrics.shapes import VARIETY_CAVEAT
from graf.models.generator import Generator
from graf.pictures.outputs import as_uint8, write_grid
from graf.pictures.sampling import render_views, sample_objects
from graf.reporting.pages import TEMPLATES
from graf.runtime.files import file_sha256, write_text
from graf.version import __version__

log = logging.getLogger("graf")

OBJECTS, VIEWS, PICTURE_SEED = 4, 6, 0
LICENCE_NAME = re.compile(r"(licen[cs]e|copying)", re.IGNORECASE)
MAX_CHARACTERS = 20_000  # of a licence's text in the card
SAMPLED_BY = ("truncation", "sample_seed")  # of the result of `metrics.measure`
MAIN_KEYS = (
    *("data.type", "data.imsize", "data.alpha", "data.fov", "data.radius", "nerf.conditioning", "nerf.samples_per_ray"),
    *("z_dist.dim", "z_dist.dim_appearance", "ccsr.mode", "ccsr.scale_factor"),
    *("ccsr.unrefined_steps", "discriminator.condition"),
    *("training.batch_size", "training.max_steps", "training.seed"),
)


def write_card(export: Path, generator: Generator, step: int, fingerprint: str, measured: dict) -> list[Path]:
    """Write the card and the picture of an exported generator beside its file. Returns their paths.

    fingerprint: of the data that it was trained on, "" where that is not known. measured: content of its metrics.json.
    Raises GrafError as `require_free` does.
    """
    card, picture = require_free(export)
    poses = rotation_poses(VIEWS, generator.config.data)
    views = as_uint8(render_views(generator, sample_objects(generator, OBJECTS, PICTURE_SEED), poses).images)
    write_grid(picture, views, VIEWS)
    write_text(card, card_text(export, generator, step, fingerprint, measured))
    return [card, picture]


def require_free(export: Path) -> tuple[Path, Path]:
    """The paths of card and picture. Raises GrafError where there is a file already, which somebody may have edited."""
    paths = card, picture = export.with_suffix(".md"), export.with_suffix(".png")
    for path in filter(Path.exists, paths):
        raise GrafError(f"{path}: a model card replaces no file; move it away, or export under another name")
    return card, picture


def card_text(export: Path, generator: Generator, step: int, fingerprint: str, measured: dict) -> str:
    """The card in Markdown, by templates/model_card.md."""
    data = generator.config.data
    files = [(file.name, file.read_text(encoding="utf-8", errors="replace")) for file in licence_files(data)]
    absent = [folder for folder in data.datadir if data.type == "images" and not matching_folders(folder)]
    for folder in absent:
        log.warning("%s: not on this machine, so that the model card has no licence of it; add it to the card by hand", folder)
    entries = {name: measured[name] for name in OF_IMAGES if isinstance(measured.get(name), dict)}
    return TEMPLATES.get_template("model_card.md").render(
        export=export,
        quoted_name=shlex.quote(export.name),
        picture_url=quote(os.fsencode(export.with_suffix(".png").name)),
        sha256=file_sha256(export),
        version=__version__,
        step=step,
        n_objects=OBJECTS,
        n_views=VIEWS,
        seed=PICTURE_SEED,
        data=data,
        name_of=lambda folder: Path(folder).name,
        fingerprint=fingerprint,
        licences=files,
        absent=absent,
        MAX_CHARACTERS=MAX_CHARACTERS,
        settings=flat(config_to_dict(generator.config)),
        keys=MAIN_KEYS,
        measured=measured,
        samples="".join(f"; {name.replace('_', ' ')} {measured[name]:g}" for name in SAMPLED_BY if name in measured),
        values={title(name): value for name, value in measured.get("values", {}).items()},
        measures={
            name: {key.replace("_", " "): value for key, value in entry.items() if not key.endswith(("sha256", "fingerprint"))}
            for name, entry in entries.items()
        },
        caveats={"variety": VARIETY_CAVEAT, "memorised": MEMORISED_CAVEAT},
        azimuths=[f"{360 * u:.0f}" for u in data.u_range],
        elevations=[f"{elevation_of_v(v):.0f}" for v in reversed(data.v_range)],
    )


def licence_files(data: DataConfig) -> list[Path]:
    """Files named like licences, in the data's folders or in the folders within them that hold its images."""
    folders = [Path(root) for pattern in data.datadir for root in matching_folders(pattern)]
    if data.type == "images":
        homes = [folder.path for folder in find_folders(data).folders]
        folders += [home for home in homes if any(is_within(home, root) for root in folders)]
    found = (file for folder in dict.fromkeys(folders) if folder.is_dir() for file in sorted(folder.iterdir()))
    return [file for file in found if LICENCE_NAME.match(file.name) and file.is_file()]
