"""Watch a run from its folder alone: step, speed, estimated end, losses, memory, temperature, warnings.

    python tools/monitor_training.py results/default             # live in the terminal, until Ctrl-C
    python tools/monitor_training.py results/default --once      # one page, as also into a file or a pipe
    python tools/monitor_training.py results/default --web       # in a browser on this machine, with the newest samples

The run may be on its way, still to begin, or over; nothing of it is touched. For a run on another machine, read over ssh with
`-t`, or forward the page's port: ssh -L 8010:127.0.0.1:8010 HOST.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from graf.console import log, run_script  # noqa: E402
from graf.evaluation.run_status import RunReader, RunStatus, thinned  # noqa: E402
from graf.evaluation.status_page import COLUMNS, columns, facts, gigabytes, loss, make_server, memory_title  # noqa: E402

BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
CURVE_WIDTH, BAR_WIDTH = 24, 60  # characters
STATE_STYLE = {"starting": "cyan", "running": "green", "silent": "yellow", "finished": "bold green"}


def main() -> int:
    arguments = parse(sys.argv[1:])
    reader = RunReader(arguments.run)
    sys.stdout.reconfigure(errors="replace")  # a terminal that has not all characters
    with contextlib.suppress(KeyboardInterrupt):
        if arguments.web:
            serve(reader, arguments.port)
        else:
            show(reader, Console(), arguments.interval_s, arguments.once)
    return 0


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder, such as results/default")
    parser.add_argument("--once", action="store_true", help="print one page and leave")
    parser.add_argument("--interval_s", type=float, default=2.0, help="seconds between looks at the files")
    parser.add_argument("--web", action="store_true", help="serve a page on 127.0.0.1 instead, which refreshes itself")
    parser.add_argument("--port", type=int, default=8010, help="of the page; 0 for any that is free")
    arguments = parser.parse_args(words)
    if arguments.interval_s <= 0:
        parser.error(f"--interval_s {arguments.interval_s}: expected more than 0 seconds")
    if arguments.once and arguments.web:
        parser.error("--once prints to the terminal, --web serves a page; expected one of them")
    return arguments


def serve(reader: RunReader, port: int) -> None:
    with make_server(reader, port) as server:
        log.info("%s is shown at http://%s:%d until Ctrl-C", reader.run_dir, *server.server_address)
        server.serve_forever()


def show(reader: RunReader, console: Console, interval_s: float, once: bool) -> None:
    """Pages until Ctrl-C on a terminal, which keeps the last one; one page elsewhere."""
    bars = ASCII_BARS if console.options.ascii_only else BARS
    current = page(reader.status(), bars)
    if console.is_terminal and not once:
        try:
            with Live(current, console=console, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(current, refresh=True)
                    time.sleep(interval_s)
                    current = page(reader.status(), bars)
        except KeyboardInterrupt:
            pass
    console.print(current)


def page(status: RunStatus, bars: str = BARS) -> RenderableType:
    """All of the status for a terminal, its curves drawn with `bars` from low to high."""
    lines = Table.grid(padding=(0, 2))
    for name, text in facts(status).items():
        lines.add_row(Text(name, style="dim"), Text(text, style=STATE_STYLE[status.state] if name == "state" else ""))
    if status.max_steps:
        lines.add_row("", ProgressBar(total=status.max_steps, completed=status.step, width=BAR_WIDTH))
    parts: list[RenderableType] = [Text(str(status.run_dir), style="bold"), lines]
    if status.losses:
        parts.append(curves("losses", status.losses, loss, bars))
    if status.memory:
        parts.append(curves(memory_title(status), status.memory, gigabytes, bars))
    parts += [Text(f"warning: {warning}", style="yellow") for warning in status.warnings]
    if status.samples:
        names = (path.relative_to(status.run_dir).as_posix() for path in status.samples)
        parts.append(Text(f"newest samples: {', '.join(names)}"))
    return Group(*parts)


def curves(title: str, series: dict[str, tuple[float, ...]], shown: Callable[[float], str], bars: str) -> Table:
    """A row a curve."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in ("", *COLUMNS, ""):
        table.add_column(heading, justify="right" if heading in COLUMNS[:3] else "left", no_wrap=True, overflow="crop")
    for name, values in series.items():
        table.add_row(Text(name), *columns(values, shown), sparkline(values, CURVE_WIDTH, bars))
    return table


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """The values in at most `width` characters, from bars[0] for the lowest to bars[-1] for the highest."""
    points = thinned(values, width)
    low, high = min(points), max(points)
    scale = (len(bars) - 1) / (high - low) if high > low else 0
    return "".join(bars[round((point - low) * scale)] for point in points)


if __name__ == "__main__":
    run_script(main)
