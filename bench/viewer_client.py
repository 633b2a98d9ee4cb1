"""A window of view.py without a browser: it sends cameras, as viser's page does, and counts the pictures that come."""

import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import viser
import zstandard
from viser.transforms import SO3
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

PATIENCE_S = 60.0


class Window:
    """A client of `size` pixels. messages: all that came, as dictionaries; pictures: how many of them were pictures."""

    def __init__(self, port: int, size: tuple[int, int] = (1280, 800)):
        version = [f"viser-v{viser.__version__}"]
        self.size, self.messages = size, []
        self._socket = connect(f"ws://127.0.0.1:{port}", subprotocols=version, max_size=None, compression=None)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "Window":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _read(self) -> None:
        try:
            for frame in self._socket:
                self.messages.extend(decoded(frame))
        except ConnectionClosed:
            pass

    @property
    def pictures(self) -> int:
        return sum(message["type"] == "BackgroundImageMessage" for message in list(self.messages))

    @property
    def shows_all_pixels(self) -> bool:
        """Whether the status under its picture has told once that this is at rest; a label names the pixels at rest before."""
        return self.says("pixels at rest  ")  # and a new line

    def says(self, words: str) -> bool:
        """Whether anything that came has the words in it."""
        return any(words in str(message) for message in list(self.messages))

    def handle(self, label: str) -> str:
        """The identifier of the slider, box or button of that label."""
        found = (
            m["uuid"] for m in list(self.messages) if isinstance(m.get("props"), dict) and m["props"].get("label") == label
        )
        return next(found)

    def set(self, label: str, value: Any) -> None:
        """Move a slider, tick a box or press a button."""
        self.send({"type": "GuiUpdateMessage", "uuid": self.handle(label), "updates": {"value": value}})

    def look(self, azimuth_deg: float, elevation_deg: float = 20.0, distance: float = 3.6) -> None:
        """Move the camera, which looks at the origin."""
        azimuth, elevation = np.radians([azimuth_deg, elevation_deg])
        outwards = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
        right = np.cross(-outwards, [0, 0, 1]) / np.cos(elevation)
        rotation = np.column_stack([right, np.cross(-outwards, right), -outwards])
        self.send(camera(self.size, SO3.from_matrix(rotation).wxyz.tolist(), (distance * outwards).tolist()))

    def send(self, message: dict | bytes | str) -> None:
        self._socket.send(msgspec.msgpack.encode(message) if isinstance(message, dict) else message)

    def wait(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"not within {PATIENCE_S:g} s"
            time.sleep(0.02)


def camera(size: tuple[int, int], wxyz: list[float], position: list[float]) -> dict:
    """The message in which a page tells its camera."""
    shape = {"fov": 0.5, "near": 0.01, "far": 1000.0, "image_width": size[0], "image_height": size[1]}
    frame = {"wxyz": wxyz, "position": position, "look_at": [0.0, 0.0, 0.0], "up_direction": [0.0, 0.0, 1.0]}
    return {"type": "ViewerCameraMessage"} | frame | shape


def decoded(frame: bytes) -> Iterator[dict]:
    """The messages in a frame of viser's: sizes, a compressed msgpack, and arrays, which are left out."""
    _, size = struct.unpack("<QQ", frame[:16])
    yield from msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(frame[16 : 16 + size]))["messages"]
