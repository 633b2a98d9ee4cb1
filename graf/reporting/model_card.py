"""The model card beside an exported generator: what it is, what it was trained on and how it was measured, with a picture."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graf.camera import elevation_of_v, rotation_poses
from graf.config import Config, DataConfig, config_to_dict, flat
from graf.data.folders import find_folders, is_within
from graf.errors import GrafError
from graf.metrics.results import COMPARABLE, OF_IMAGES, protocol_title, title
from graf.metrics.shapes import VARIETY_CAVEAT
from graf.models.generator import Generator
from graf.pictures.outputs import as_uint8
from graf.pictures.sampling import render_views, sample_objects
from graf.runtime.files import encodable, file_sha256, whole_file, write_text
from graf.version import __version__

from PIL import Image, PngImagePlugin, UnidentifiedImageError
from torchvision.utils import make_grid

MARK = "model card by graf_ccsr"  # of the files that may be replaced
FIRST_LINE = re.compile(rf"<!-- {MARK}, of the text below: ([0-9a-f]{{64}}) -->\n")
OBJECTS, VIEWS, PICTURE_SEED = 4, 6, 0
LICENCE_NAME = re.compile(r"(licen[cs]e|copying)", re.IGNORECASE)
MOST_CHARACTERS = 20_000  # of a licence's text in the card
MAIN_KEYS = (
    *("data.type", "data.imsize", "data.alpha", "data.fov", "data.radius", "nerf.conditioning", "nerf.samples_per_ray"),
    *("z_dist.dim", "z_dist.dim_appearance", "ccsr.mode", "ccsr.scale_factor", "discriminator.condition"),
    *("training.batch_size", "training.max_steps", "training.seed"),
)


def write_card(export: Path, generator: Generator, step: int, fingerprint: str, measured: dict) -> list[Path]:
    """Write the card and the picture of an exported generator beside its file. Returns their paths.

    fingerprint: of the data that it was trained on, empty where that is not known. measured: content of its metrics.json.
    Raises GrafError as `require_free` does.
    """
    card, picture = require_free(export)
    _write_picture(picture, generator)
    text = encodable(card_text(export, generator, step, fingerprint, measured))
    write_text(card, f"<!-- {MARK}, of the text below: {hashlib.sha256(text.encode()).hexdigest()} -->\n{text}")
    return [card, picture]


def require_free(export: Path) -> tuple[Path, Path]:
    """The paths of card and picture. Raises GrafError where other files have these names, or a card that was edited since."""
    paths = card, picture = export.with_suffix(".md"), export.with_suffix(".png")
    for path, ours in zip(paths, (_is_our_card, _is_our_picture), strict=True):
        if path.exists() and not ours(path):
            raise GrafError(
                f"{path}: the model card would be written here, but this is another file, or was edited since; move it away, "
                "or export under another name"
            )
    return card, picture


def card_text(export: Path, generator: Generator, step: int, fingerprint: str, measured: dict) -> str:
    """The card in Markdown, without its first line."""
    parts = (
        _head(export, step),
        _use(export),
        _trained_on(generator.config.data, fingerprint, measured),
        _settings(generator.config),
        _measurements(measured),
        _limits(generator.config),
    )
    return "\n".join(line for part in parts for line in (*part, ""))


def licence_files(data: DataConfig) -> list[Path]:
    """Files of the data's folders, or of the folders above its images within them, that are named as licences are."""
    folders = [Path(root) for root in data.datadir]
    if data.type == "images":
        homes = [folder.path for folder in find_folders(data).folders]
        folders += [home for home in homes if any(is_within(home, root) for root in folders)]
    found = (file for folder in dict.fromkeys(folders) if folder.is_dir() for file in sorted(folder.iterdir()))
    return [file for file in found if LICENCE_NAME.match(file.name) and file.is_file()]


def _head(export: Path, step: int) -> Iterator[str]:
    yield f"# {export.stem}\n"
    yield f"![{OBJECTS} objects of it, one per row, from {VIEWS} azimuths]({export.stem}.png)\n"
    yield (
        f"A 3D-aware generator of graf_ccsr {__version__} after {step:,} training steps: a latent code and a camera go in, an "
        f"image of an object comes out. The picture shows the objects of seed {PICTURE_SEED}, none of them chosen."
    )


def _use(export: Path) -> Iterator[str]:
    yield f"    python eval.py --checkpoint {export.name}\n"
    yield "or from Python\n"
    yield f'    import graf\n    generator = graf.load_generator("{export.name}")\n'
    yield f"The file's sha256 is `{file_sha256(export)}`."


def _trained_on(data: DataConfig, fingerprint: str, measured: dict) -> Iterator[str]:
    yield "## Data\n"
    toy_cars, folders = data.type == "toy_cars", ", ".join(f"`{Path(folder).name}`" for folder in data.datadir)
    if toy_cars:
        yield f"The {data.n_images:,} toy cars that graf_ccsr draws by itself (seed {data.seed}), and no photographs."
    else:
        yield f"The images of {folders}."
    yield f"\nFingerprint of the data: {f'`{fingerprint}`' if fingerprint else 'the checkpoint does not say'}."
    if not fingerprint and (real := measured.get("real_fingerprint")):
        yield f"It was measured against data of fingerprint `{real}`."
    licences = licence_files(data)
    if not licences and not toy_cars:
        yield "\nNo licence file was found in the data's folder here. Ask where the data comes from what it permits."
    for file in licences:
        yield f"\n`{file.name}`, found in the data's folder:\n"
        text = file.read_text(encoding="utf-8", errors="replace")
        yield from (f"    {line}" for line in text[:MOST_CHARACTERS].splitlines())
        if len(text) > MOST_CHARACTERS:
            yield f"\n({len(text):,} characters, of which these are the first {MOST_CHARACTERS:,})"


def _settings(config: Config) -> Iterator[str]:
    yield "## Config\n"
    values = flat(config_to_dict(config))
    yield from _table(("key", "value"), ((f"`{key}`", f"`{values[key]}`") for key in MAIN_KEYS))
    yield "\nThe file holds all keys: `generator.config`."


def _measurements(measured: dict) -> Iterator[str]:
    yield "## Measured\n"
    if not any(name in measured for name in ("values", *OF_IMAGES)):
        yield "Not measured. `eval.py --metrics kid --consistency` measures; the next `--export` tells the values here."
        return
    if "values" in measured:
        yield from _table(("measure", "value"), ((title(key), _number(value)) for key, value in measured["values"].items()))
        yield f"\nBy {protocol_title({name: measured.get(name) for name in COMPARABLE})}. Lower is better for FID and KID."
        yield from (f"\n- {warning}" for warning in measured.get("warnings", ()))
    for name in OF_IMAGES:
        if isinstance(entry := measured.get(name), dict):
            yield f"\n### {name.capitalize()}\n"
            rows = ((key.replace("_", " "), _number(value)) for key, value in entry.items() if not key.endswith("sha256"))
            yield from _table(("measure", "value"), rows)
            if name == "variety":
                yield f"\n{VARIETY_CAVEAT}"
    yield "\ndocs/metrics.md of graf_ccsr says what these mean."


def _limits(config: Config) -> Iterator[str]:
    data = config.data
    low, high = (elevation_of_v(v) for v in (data.vmax, data.vmin))
    yield "## Limits\n"
    yield (
        f"Training had cameras at azimuths from {360 * data.umin:.0f} to {360 * data.umax:.0f} and elevations from {low:.0f} "
        f"to {high:.0f} degrees; nothing was learned of how objects look from elsewhere. This card gives no licence to the "
        "weights: that is for their owner to do."
    )


def _table(head: tuple[str, str], rows: Any) -> Iterator[str]:
    yield from (f"| {left} | {right} |" for left, right in (head, ("---", "---"), *rows))


def _number(value: Any) -> str:
    return "nothing to compare" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _write_picture(path: Path, generator: Generator) -> None:
    poses = rotation_poses(VIEWS, generator.config.data)
    views = as_uint8(render_views(generator, sample_objects(generator, OBJECTS, PICTURE_SEED), poses).images)
    sheet = make_grid(views, nrow=VIEWS, padding=2, pad_value=255).movedim(0, -1).numpy()
    ours = PngImagePlugin.PngInfo()
    ours.add_text("Software", MARK)
    with whole_file(path) as temporary:
        Image.fromarray(sheet).save(temporary, pnginfo=ours)


def _is_our_card(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    first = FIRST_LINE.match(text)
    return first is not None and hashlib.sha256(text[first.end() :].encode()).hexdigest() == first[1]


def _is_our_picture(path: Path) -> bool:
    try:
        with Image.open(path) as image:
            return image.info.get("Software") == MARK
    except (OSError, UnidentifiedImageError):
        return False
