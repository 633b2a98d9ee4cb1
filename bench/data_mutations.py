"""A small data set, and what can be wrong with one: the mutations of bench/fuzz.py, each a function of a random state."""

import contextlib
import io
import json
import os
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graf.camera import poses_at
from mutations import ODD_VALUES, mutate_bytes

import torch
from PIL import Image


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
