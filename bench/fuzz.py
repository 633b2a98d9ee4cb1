"""Does all bad input end in one clear message? Runs train.py --dry_run on mutated configs and data sets.

    python bench/fuzz.py [--mutations 500] [--seed S] [--json FILE]

Every mutation must end in a dry run that works or in exit status 2 with under ten lines, in time, and without a file left
behind; those that do not are listed, and make the exit status 1. What is legal is made small before it is run.
"""

import collections
import contextlib
import dataclasses
import faulthandler
import fnmatch
import functools
import importlib
import io
import json
import os
import random
import resource
import runpy
import signal
import struct
import sys
import tempfile
import time
import traceback
import typing
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from graf.camera import poses_at
from graf.config import CONFIG_DIR, Config, config_to_dict, flat, load_config
from graf.runtime.command_line import Parser, positive, whole_number
from graf.runtime.console import log, progress, run_script
from graf.runtime.files import write_text

import torch
import yaml
from PIL import Image

TRAIN = runpy.run_path(str(Path(__file__).resolve().parents[1] / "train.py"))["main"]
importlib.import_module("graf.commands.train")  # which it would import at each call
CPU_LIMIT_S, LIMIT_S = 60.0, 600.0  # of a mutation: the cores may be busy with other things
LINES, CHARACTERS = 10, 4000  # a message has fewer
TOY_CARS = "toy_cars_*.pt"
CAPS = {  # the largest that is run of what may be large
    32: ("data.imsize",),
    16: ("data.center_crop", "nerf.netwidth", "nerf.netwidth_fine", "ccsr.light.width", "ccsr.light.width_upsampled")
    + ("ccsr.num_views", "ccsr.code_size", "z_dist.dim"),
    8: ("nerf.samples_per_ray", "nerf.render_samples_per_ray", "ccsr.rrdb.nf", "ccsr.code_channels", "z_dist.dim_appearance")
    + ("discriminator.ndf",),
    4: ("data.n_images", "nerf.netdepth", "nerf.netdepth_fine", "nerf.importance_samples_per_ray", "ccsr.rrdb.gc")
    + ("ccsr.elevation_bins",),
    2: ("nerf.mapping_depth", "ccsr.light.depth", "discriminator.blur_sigma", "training.batch_size")
    + ("training.accumulation_steps",),
    1: ("ccsr.rrdb.num_blocks",),
    0: ("training.nworkers",),
}
DATA_SETTINGS = (
    *("data.type=images", "data.datadir=photos", "data.imsize=16", "data.v=[0.5, 0.4]"),
    *("training.batch_size=2", "discriminator.condition=none"),
)
ODD_VALUES = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 16, 2**31, 2**64, 10**5000, 0.5, -0.0, 1e-300, 1e30, 1e300),
    *(float("nan"), float("inf"), "", " ", "auto", "none", "1e3", "1_000", "9.5,10.5", ",", "a" * 5000, "a\nb", "a\0b"),
    *("ü 日本", "\ud800", "../..", "/dev/null", "/dev/zero", "~", "%s{0}", "[", [], [[]], [1], [3, 2, 1], list(range(2000))),
    *({}, {"a": 1}, {1: 2}, "!!python/object/apply:os.getcwd []"),
)
ODD_TEXT = (
    *("\t", "\0", "- ", ": ", "{", "}", "[", "]", "&a ", "*a", "<<: *a\n", "!!python/name:os.system ", "!!set ", "? ", "|\n"),
    *(">\n", "'", '"', "#", "---\n", "...\n", "%YAML 9.9\n", "\ufeff", "\u2028", "=", "0x", "1:30:30", "2024-02-30", "\r"),
)
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join(['*' + old] * 9)}]}}\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
WHOLE_FILES = (
    *("", "\0", "[" * 20_000, "{a: " * 3000, "- a\n- b\n", "words", "data:\nnerf:\n", LAUGHS + "data: *i\n", MERGES),
    *("inherit_from: /dev/zero\n", 'inherit_from: "a\\0b"\n', f"inherit_from: {'a' * 5000}\n", "inherit_from: mutated.yaml\n"),
    *("inherit_from: .\n", "data: {type: [carla]}\n", "data: &a {near: *a}\n", "inherit_from: loop\n"),
    *("nerf: {netwidth: 0x" + "f" * 9000 + "}", "nerf: 0x" + "f" * 9000, "? 0x" + "f" * 9000 + "\n: 3\n"),
    *("training: {lr_anneal_every: 1, chunk: 9, netchunk: 1}\n", "data: {type: carla, white_bkgd: []}\n", "a" * 3_000_000),
)
DATA_SETS = ("filename", "transforms", "none")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a mutation (`ran`, `refused`, or what must not be: `traceback`, `status 1`, `hang`, ...), and why."""

    kind: str
    said: str


class TooLong(BaseException):
    """A mutation has not ended in time; no `except Exception` may take it for its own."""


def generator_configs() -> list[Path]:
    """The project's configs of train.py."""
    return sorted(path for path in CONFIG_DIR.glob("*.yaml") if not path.stem.startswith("pose"))


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("--mutations", type=positive, default=500, help="mutations of each config, and of data sets")
    parser.add_argument("--seed", type=whole_number, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write counts and faults there too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    subjects = {path.name: functools.partial(fuzz_config, path) for path in generator_configs()}
    rows, faults = {}, []
    for name, fuzz in {**subjects, "data sets": fuzz_data}.items():
        rows[name], wrong = count(name, fuzz, args.mutations, args.seed)
        faults += wrong
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    log.info("| mutated | %s |\n|%s", " | ".join(kinds), " --- |" * (len(kinds) + 1))
    for name, row in rows.items():
        log.info("| %s | %s |", name, " | ".join(str(row.get(kind, 0)) for kind in kinds))
    if args.json:
        write_text(args.json, json.dumps({"seed": args.seed, "counts": rows, "faults": faults}, indent=1))
    return 1 if faults else 0


def count(name: str, fuzz: Callable[[random.Random], Outcome], n: int, seed: int) -> tuple[dict[str, int], list[dict]]:
    """How often n mutations ended how, with the seconds of the slowest, and each fault with the random state that made it."""
    counts: collections.Counter = collections.Counter(ran=0, refused=0)
    faults, slowest_s = [], 0.0
    for index in progress(range(n), desc=name):
        state, start = f"{seed} {name} {index}", time.monotonic()
        outcome = fuzz(random.Random(state))
        slowest_s = max(slowest_s, time.monotonic() - start)
        counts[outcome.kind] += 1
        if outcome.kind not in ("ran", "refused"):
            faults.append({"state": state, "kind": outcome.kind, "said": outcome.said})
            log.warning("%s: %s\n%s", state, outcome.kind, outcome.said[-3000:])
    return {**counts, "slowest_s": round(slowest_s, 1)}, faults


def fuzz_config(path: Path, rng: random.Random) -> Outcome:
    """One mutation of a config, in a folder of its own."""
    with workplace() as folder:
        mutated = folder / "mutated.yaml"
        text = path.read_text(encoding="utf-8").replace("inherit_from: ", f"inherit_from: {CONFIG_DIR}/")
        mutated.write_bytes(mutate_config(text, rng))
        (folder / "loop").symlink_to("loop")
        overrides: list[str] = []
        with contextlib.suppress(TooLong, Exception), time_limit():  # the run meets it again
            overrides = smaller(load_config(mutated), folder)
        return dry_run(["--config", str(mutated), *(["--set", *overrides] if overrides else [])])


def fuzz_data(rng: random.Random) -> Outcome:
    """One mutation of a data set, in a folder of its own."""
    labels = rng.choice(DATA_SETS)
    with workplace() as folder:
        make_data(folder / "photos", labels)
        done = [mutate_data(folder / "photos", rng)]
        settings = [f"data.labels={rng.choice((labels, 'auto'))}", f"data.on_bad_file={rng.choice(('error', 'skip'))}"]
        config = str(CONFIG_DIR / "smoke.yaml")
        outcome = dry_run(["--config", config, "--set", *DATA_SETTINGS, *settings])
        return dataclasses.replace(outcome, said=f"{', '.join(done)}\n{outcome.said}")


@contextlib.contextmanager
def workplace() -> Iterator[Path]:
    """A new folder, which is the working directory meanwhile."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="fuzz_") as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def smaller(config: Config, folder: Path) -> list[str]:
    """Overrides that leave of a legal config all that is odd about it, and take from it what is large."""
    values = flat(config_to_dict(config))
    caps = {key: cap for cap, keys in CAPS.items() for key in keys}
    caps["ray_sampler.rays_per_patch"] = max(16, (16 // config.rendered_scale) ** 2)  # a patch of 16 pixels
    overrides = [f"{key}={cap}" for key, cap in caps.items() if values[key] > cap]
    if config.training.micro_batch != "auto":
        overrides.append(f"training.micro_batch={min(2, config.training.micro_batch)}")
    if not any(os.path.isdir(name) or name.startswith("data/") for name in config.data.datadir):
        return overrides
    if config.data.type == "toy_cars":
        return [*overrides, f"data.datadir={Path(tempfile.gettempdir()) / 'fuzz_toy_cars'}"]
    make_data(folder / "photos", config.data.labels)
    return [*overrides, "data.datadir=photos"]


def dry_run(arguments: list[str]) -> Outcome:
    """The outcome of `train.py --dry_run` with the arguments, in this process and the working directory."""
    out, err, status = io.StringIO(), io.StringIO(), None
    before, limits = files_here(), resource.getrlimit(resource.RLIMIT_DATA)
    argv, sys.argv = sys.argv, ["train.py", *arguments, "--dry_run", "--device", "cpu"]
    handlers, log.handlers = log.handlers, []  # the run brings its own
    faulthandler.dump_traceback_later(2 * LIMIT_S, exit=True)  # of what does not even take a signal
    try:
        with time_limit(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            run_script(TRAIN)
    except SystemExit as ended:
        status = ended.code
    except TooLong:
        return Outcome("hang", traceback.format_exc())
    except Exception:
        return Outcome("traceback", traceback.format_exc())
    finally:
        sys.argv, log.handlers = argv, handlers
        resource.setrlimit(resource.RLIMIT_DATA, limits)  # which memory.budget_gb lowers
        faulthandler.cancel_dump_traceback_later()
    left = files_here() - before
    said = err.getvalue()
    if left:
        return Outcome("file left", str(sorted(left)))
    if "Traceback" in said:
        return Outcome("traceback", said)
    if status == 0:
        return Outcome("ran", said)
    if status != 2:
        return Outcome(f"status {status}", said)
    lines = [line for line in said.splitlines() if line.strip() and "%|" not in line]  # but for progress bars
    return Outcome("refused" if len(lines) < LINES and len(said) < CHARACTERS else "long message", said)


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """TooLong where the block takes longer than a mutation may."""

    def raise_too_long(*_: object) -> None:
        raise TooLong

    timers = (signal.ITIMER_PROF, signal.SIGPROF, CPU_LIMIT_S), (signal.ITIMER_REAL, signal.SIGALRM, LIMIT_S)
    for timer, number, seconds in timers:
        signal.signal(number, raise_too_long)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, *_ in timers:
            signal.setitimer(timer, 0)


def files_here() -> set[str]:
    """Every file below the working directory, but for kept toy cars."""
    found = (os.path.join(folder, name) for folder, _, names in os.walk(".") for name in names)
    return {file for file in found if not fnmatch.fnmatch(file, f"*{TOY_CARS}")}


def mutate_config(text: str, rng: random.Random) -> bytes:
    """A config's text with one to three things wrong, or right by chance: of its characters, or of its keys."""
    kind = rng.random()
    if kind < 0.05:
        return rng.choice(WHOLE_FILES).encode("utf-8", "surrogatepass")
    if kind < 0.3:
        return mutate_bytes(text.encode(), rng)
    raw = yaml.safe_load(text)
    for _ in range(rng.randint(1, 3)):
        _mutate_key(raw, rng)
    with contextlib.suppress(ValueError, yaml.YAMLError):  # an integer of thousands of digits cannot be written
        return yaml.safe_dump(raw, allow_unicode=True).encode("utf-8", "surrogatepass")
    return text.encode()


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """The content cut off, with a part left out, repeated or overwritten, or with something odd in it."""
    at, length = rng.randrange(len(content) + 1), rng.choice((1, 2, 8, 64))
    odd = rng.choice(ODD_TEXT).encode() if rng.random() < 0.7 else rng.randbytes(length)
    return rng.choice(
        (
            content[:at],
            content[:at] + content[at + length :],
            content[:at] + content[at : at + length] * 2 + content[at + length :],
            content[:at] + odd + content[at + len(odd) :],
            content[:at] + odd + content[at:],
        )
    )


def _mutate_key(raw: dict, rng: random.Random) -> None:
    section = rng.choice([f for f in dataclasses.fields(Config) if dataclasses.is_dataclass(f.type)])
    field = rng.choice(dataclasses.fields(section.type))
    part = raw.setdefault(section.name, {})
    if dataclasses.is_dataclass(field.type) and isinstance(part, dict):  # a section within the section
        part, field = part.setdefault(field.name, {}), rng.choice(dataclasses.fields(field.type))
    kind = rng.random()
    if kind < 0.8 and isinstance(part, dict):
        part[field.name] = _value(field, rng)
    elif kind < 0.85:
        raw[section.name] = rng.choice(ODD_VALUES)
    elif kind < 0.9 and isinstance(part, dict):
        part[rng.choice((field.name[:-1], field.name.upper(), "zzz", "", 3, True, None, "a\nb", "k" * 5000))] = 1
    elif kind < 0.95:
        raw[rng.choice((section.name + "s", "", 7, None, "expname", "inherit_from", "x" * 999))] = rng.choice(ODD_VALUES)
    elif raw:
        raw.pop(rng.choice(list(raw)))


def _value(field: dataclasses.Field, rng: random.Random) -> Any:
    """Something odd, something at or about the key's bounds, or one of its words."""
    low, high = field.metadata["low"], field.metadata["high"]
    if rng.random() < 0.3:
        return rng.choice(ODD_VALUES)
    candidates: list[Any] = [bound + step for bound in (low, high) if bound is not None for step in (-1, 0, 1)]
    if typing.get_origin(field.type) in (typing.Literal, typing.Union):
        candidates += [word for word in typing.get_args(field.type) if isinstance(word, str)] or [5, "auto"]
    elif field.type is bool:
        candidates += [True, False]
    elif field.type in (int, float):
        start = 0 if low is None else low
        candidates += [start + rng.randint(0, 8), start + rng.randint(0, 64), start + rng.random()]
    return rng.choice(candidates or ODD_VALUES)


def make_data(folder: Path, labels: str) -> None:
    """Eight sound images, for `filename`, `transforms` or `none`, seen by the smoke config's cameras."""
    folder.mkdir()
    frames = []
    for i in range(8):
        file = folder / f"{i % 2}_{40 * i:04d}{('.png', '.jpg', '.webp')[i % 3]}"
        Image.new("RGB", (20, 20), (30 * i, 90, 255 - 30 * i)).save(file)
        pose = poses_at(torch.tensor(40.0 * i), torch.tensor(0.4), 3.6).tolist()
        frames.append({"file_path": file.name, "transform_matrix": [*pose, [0, 0, 0, 1]]})
    if labels == "transforms":
        content = {"camera_angle_x": 0.5585, "w": 20, "h": 20, "cx": 10, "cy": 10, "frames": frames}
        (folder / "transforms.json").write_text(json.dumps(content), encoding="utf-8")


def mutate_data(folder: Path, rng: random.Random) -> str:
    """Make one thing about the data set in a folder wrong, or odd but right. Returns what."""
    images = sorted(p for p in folder.rglob("*") if p.suffix in (".png", ".jpg", ".webp"))
    transforms = sorted(folder.rglob("transforms.json"))
    if transforms and rng.random() < 0.6:
        return _mutate_transforms(rng.choice(transforms), rng)
    file = rng.choice(images)
    change = rng.choice(CHANGES)
    change(file, rng)
    return f"{change.__name__.strip('_')} {file.name!r}"


def _mutate_transforms(file: Path, rng: random.Random) -> str:
    if rng.random() < 0.25:
        file.write_bytes(mutate_bytes(file.read_bytes(), rng))
        return "bytes of transforms.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    node: Any = content
    while True:  # walk down to any value
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        extra = rng.choice(("cx", "cy", "fl_x", "fl_y", "w", "h", "k1", "p2", "camera_angle_x", "camera_model"))
        key = rng.choice([*keys, extra] if isinstance(node, dict) else keys)
        if isinstance(node, dict) and key not in node or not isinstance(node[key], (dict, list)) or rng.random() < 0.3:
            break
        node = node[key]
    paths = ("../../etc/passwd", "/etc/passwd", "a/../b", "images", "nowhere", "\0", "a" * 400, "0_0000.png", "x\ny", "\ud800")
    odd = (*ODD_VALUES[:-1], -0.5, 1e38, 1e40, *paths)
    node[key] = rng.choice(paths) if key == "file_path" and rng.random() < 0.7 else rng.choice(odd)
    with contextlib.suppress(ValueError):
        file.write_text(json.dumps(content), encoding="utf-8")
    return f"{key} of transforms.json"


def _bytes(file: Path, rng: random.Random) -> None:
    """Damaged bytes, the first ones alone, or noise."""
    content = file.read_bytes()
    kept = rng.choice((0, 1, 8, 33, len(content) // 2, len(content) - 1, len(content) - 20))
    file.write_bytes(rng.choice((mutate_bytes(content, rng), content[:kept], rng.randbytes(rng.choice((1, 100, 5000))))))


def _other_mode(file: Path, rng: random.Random) -> None:
    mode, format_ = rng.choice(
        (("1", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("I;16", "PNG"), ("RGBA", "PNG"), ("RGBA", "WEBP"))
        + (("CMYK", "JPEG"), ("L", "JPEG"), ("YCbCr", "JPEG"), ("P", "GIF"), ("F", "TIFF"), ("RGB", "BMP"), ("CMYK", "TIFF"))
        + (("RGB", "EPS"), ("RGB", "PDF"), ("RGB", "ICO"))
    )
    Image.new(mode, rng.choice(((20, 20), (1, 1), (40, 3), (1, 90)))).save(file, format_)


def _animated(file: Path, rng: random.Random) -> None:
    frames = [Image.new("RGB", (20, 20), (shade, 0, 0)) for shade in (10, 200)]
    frames[0].save(file, rng.choice(("PNG", "WEBP", "GIF")), save_all=True, append_images=frames[1:])


def _bomb(file: Path, rng: random.Random) -> None:
    """A PNG of a few bytes whose header declares a huge image."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    width, height = rng.choice(((2**31 - 1, 2**31 - 1), (100_000, 100_000), (12_000, 12_000), (0, 9), (2**31 - 1, 1)))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(bytes(10_000_000)))
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b""))


def _huge(file: Path, rng: random.Random) -> None:
    """A sound image of more pixels than a photograph has."""
    Image.new("1", (rng.choice((10_000, 14_000)), 10_000)).save(file, "PNG")


def _exif(file: Path, rng: random.Random) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 20)).save(buffer, "JPEG", exif=b"Exif\0\0" + rng.randbytes(rng.choice((1, 8, 60))))
    file.write_bytes(buffer.getvalue())


def _replaced(file: Path, rng: random.Random) -> None:
    """Replace the file by nothing, a pipe, a folder, or a link: to itself, nowhere, a device, its own folder, a text."""
    file.unlink()
    kind = rng.choice(("nothing", "pipe", "folder", "link", "link"))
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "link":
        file.symlink_to(rng.choice((file.name, "nowhere", "/dev/zero", "/dev/null", ".", "/etc/passwd", "..")))


def _loop(file: Path, rng: random.Random) -> None:
    (file.parent / "loop").symlink_to(rng.choice((".", "..", "loop")))


def _name(file: Path, rng: random.Random) -> None:
    names = ("a\nb.png", "ü日本.png", "\udcff.png", "0_-1.png", "0_360.png", "9_9_9.png", "0_" + "9" * 200 + ".png", " .png")
    file.rename(file.with_name(rng.choice((*names, ".hidden.png", "\u202e.png", "\x1b[31m.png", "%s.png", "{0}.png"))))


def _all_gone(file: Path, _: random.Random) -> None:
    for other in file.parent.iterdir():
        if other.is_file():
            other.unlink()


def _transforms_link(file: Path, rng: random.Random) -> None:
    place = file.parent / "transforms.json"
    place.unlink(missing_ok=True)
    place.symlink_to(rng.choice(("/dev/zero", "transforms.json", "/etc/passwd", ".", "nowhere")))


CHANGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(_bytes, _bytes, _bytes, _other_mode, _other_mode, _animated, _bomb, _huge, _exif),
    *(_replaced, _replaced, _replaced, _replaced, _loop, _name, _name, _all_gone, _transforms_link),
)


if __name__ == "__main__":
    run_script(main)
