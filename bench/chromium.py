"""A headless Chromium for tests, driven over its remote debugging protocol."""

import base64
import itertools
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from websockets.sync.client import connect

PATIENCE_S = 60
PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--hide-scrollbars"),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-dev-shm-usage"),
    "--remote-debugging-port=0",
)


class Page:
    """One page of a browser of its own, of `size` pixels; `errors` are those of its console. Use it in a with statement."""

    def __init__(self, url: str, folder: Path, size: tuple[int, int] = (1280, 800)):
        flags = (*FLAGS, f"--user-data-dir={folder}", f"--window-size={size[0]},{size[1]}")
        self.url, self.size, self.errors = url, size, []
        self._folder, self._numbers = folder, itertools.count(1)
        self._process = subprocess.Popen([PROGRAM, *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __enter__(self) -> "Page":
        file = self._folder / "DevToolsActivePort"
        until(lambda: file.exists() and file.read_text().count("\n"))
        port = file.read_text().split("\n")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            pages = [target for target in json.load(answer) if target["type"] == "page"]
        self._socket = connect(pages[0]["webSocketDebuggerUrl"], max_size=None)
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        width, height = self.size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Page.navigate", url=self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict:
        """The result of a command of the protocol; errors of the console that come meanwhile are kept."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict) -> None:
        told = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(told["exceptionDetails"]["text"])
        elif message.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"] + " " + told["entry"].get("url", ""))
        elif message.get("method") == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.errors.append(" ".join(str(part.get("value", "")) for part in told["args"]))

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def text(self) -> str:
        """All words on the page."""
        return self.evaluate("document.body.innerText") or ""

    def drag(self, start: tuple[int, int], end: tuple[int, int], steps: int = 10, pause_s: float = 0.0) -> None:
        """Press the mouse at a place, move and release it at another."""
        self._mouse("mousePressed", *start)
        for k in range(1, steps + 1):
            self._mouse("mouseMoved", *(round(a + (b - a) * k / steps) for a, b in zip(start, end, strict=True)))
            time.sleep(pause_s)
        self._mouse("mouseReleased", *end)

    def click(self, words: str) -> None:
        """Click on the innermost element of exactly these words."""
        place = self.evaluate(
            f"(() => {{ const found = [...document.querySelectorAll('*')].filter(e => e.innerText?.trim() === {words!r});"
            "if (!found.length) return null; const e = found[found.length - 1]; e.scrollIntoView({block: 'center'});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        assert place, f"nothing says {words!r}"
        self._mouse("mousePressed", *place)
        self._mouse("mouseReleased", *place)

    def _mouse(self, kind: str, x: float, y: float) -> None:
        buttons = {"button": "left", "buttons": 0 if kind == "mouseReleased" else 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **buttons)

    def screenshot(self, file: Path) -> Path:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return file


def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """The condition's value once it holds."""
    end = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end, f"not within {patience_s:g} s"
        time.sleep(0.1)
    return found
