"""How soon view.py shows an object in a headless Chromium, and how many pictures per second it draws of an orbit.

python bench/measure_viewer.py [--checkpoint FILE] [--size 1280x800] [--screenshot docs/viewer.jpg]

Program and browser share this process's cores (taskset -c 0,1 python ... for two), and Chromium draws without a GPU.
The orbit is sent by a client that draws nothing: what is counted is what the program draws and sends.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from graf.errors import GrafError
from graf.runtime.command_line import Parser
from graf.runtime.console import log, run_script
from graf.runtime.files import whole_file

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
ORBIT_S, STEP_S, DEGREES = 8.0, 1 / 60, 1.0


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__)
    p.add_argument("--checkpoint", type=Path, default=ROOT / "weights" / "toy_cars.safetensors")
    p.add_argument("--size", default="1280x800", help="size of the window in pixels, such as 390x844 for a telephone")
    p.add_argument("--screenshot", type=Path, help="a JPEG of the window")
    return p


def main() -> int:
    args = parser().parse_args()
    try:
        from chromium import PROGRAM, Page, until  # with websockets, which viser brings
        from viewer_client import Window
    except ModuleNotFoundError:
        raise GrafError('the viewer needs viser, which is an optional extra: pip install -e ".[viewer]"') from None
    if PROGRAM is None:
        raise GrafError("no Chromium here; install it, on Debian with apt-get install chromium")
    size = tuple(map(int, args.size.split("x")))
    started = time.monotonic()
    command = [sys.executable, str(ROOT / "view.py"), "--checkpoint", str(args.checkpoint), "--port", "0"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = next(match[0] for line in program.stdout if (match := re.match(r"http://\S+", line)))
        log.info("%.1f s until the program listens", time.monotonic() - started)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Page(url, Path(folder), size) as page:
            until(lambda: "pixels" in status(page))
            log.info("%.1f s until the browser shows the object", time.monotonic() - started)
            until(lambda: "at rest" in status(page))
            log.info("%.1f s until it shows it in full: %s", time.monotonic() - started, status(page))
            if args.screenshot:
                page.evaluate("document.querySelector('.mantine-Notification-closeButton')?.click()")  # no card
                time.sleep(1)
                with whole_file(args.screenshot) as temporary:
                    picture = page.screenshot(Path(folder, "window.png"))
                    Image.open(picture).convert("RGB").save(temporary, quality=80, optimize=True)
            log.info("errors in the browser's console: %s", page.errors or "none")
        with Window(int(url.rsplit(":", 1)[1]), size) as window:
            window.look(0)
            window.wait(lambda: window.shows_all_pixels)
            told, before = len(window.messages), window.pictures
            for k in range(int(ORBIT_S / STEP_S)):
                window.look(DEGREES * k)
                time.sleep(STEP_S)
            sides = re.findall(r"(\d+) pixels", str(window.messages[told:]))
            side = Counter(sides).most_common(1)[0][0]
            log.info(
                "%.1f pictures per second of an orbit, most of %s pixels a side", (window.pictures - before) / ORBIT_S, side
            )
    finally:
        program.terminate()
        program.wait()
    return 0


def status(page) -> str:
    """The line of the panel that says what the window shows."""
    return next((line for line in page.text().splitlines() if re.search(r"\d pixels", line)), "")


if __name__ == "__main__":
    run_script(main)
