"""The mutations of bench/fuzz.py, which break a config or a data set: each is a function of a random state."""

import contextlib
import dataclasses
import io
import json
import os
import random
import struct
import typing
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graf.camera import poses_at
from graf.config import Config

import torch
import yaml
from PIL import Image

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
    change = rng.choice((*CONTENTS, *PLACES))
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


def _cut(file: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.choice((0, 1, 8, 33, len(content) // 2, len(content) - 1, len(content) - 20))])


def _bytes(file: Path, rng: random.Random) -> None:
    file.write_bytes(mutate_bytes(file.read_bytes(), rng))


def _noise(file: Path, rng: random.Random) -> None:
    file.write_bytes(rng.randbytes(rng.choice((1, 100, 5000))))


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
    """A PNG of a few bytes that says it is huge."""

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


def _link(file: Path, rng: random.Random) -> None:
    """A link in the file's place: to itself, to nothing, to a device, to its own folder, to a text."""
    file.unlink()
    file.symlink_to(rng.choice((file.name, "nowhere", "/dev/zero", "/dev/null", ".", "/etc/passwd", "..")))


def _pipe(file: Path, _: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def _folder(file: Path, _: random.Random) -> None:
    file.unlink()
    file.mkdir()


def _loop(file: Path, rng: random.Random) -> None:
    (file.parent / "loop").symlink_to(rng.choice((".", "..", "loop")))


def _name(file: Path, rng: random.Random) -> None:
    names = ("a\nb.png", "ü日本.png", "\udcff.png", "0_-1.png", "0_360.png", "9_9_9.png", "0_" + "9" * 200 + ".png", " .png")
    file.rename(file.with_name(rng.choice((*names, ".hidden.png", "\u202e.png", "\x1b[31m.png", "%s.png", "{0}.png"))))


def _gone(file: Path, _: random.Random) -> None:
    file.unlink()


def _all_gone(file: Path, _: random.Random) -> None:
    for other in file.parent.iterdir():
        if other.is_file():
            other.unlink()


def _transforms_link(file: Path, rng: random.Random) -> None:
    place = file.parent / "transforms.json"
    place.unlink(missing_ok=True)
    place.symlink_to(rng.choice(("/dev/zero", "transforms.json", "/etc/passwd", ".", "nowhere")))


Change = Callable[[Path, random.Random], None]
CONTENTS: tuple[Change, ...] = (_cut, _bytes, _noise, _other_mode, _other_mode, _animated, _bomb, _huge, _exif)
PLACES: tuple[Change, ...] = (_link, _pipe, _folder, _loop, _name, _name, _gone, _all_gone, _transforms_link)
