"""Monitor a run by the files in its folder: step, speed, estimated end, losses, memory, CPU, GPU, warnings.

    python tools/monitor_training.py                             # the newest run in results/
    python tools/monitor_training.py results/default             # live in the terminal, until Ctrl-C
    python tools/monitor_training.py results/default --once      # one page; the default if the output is a file or a pipe
    python tools/monitor_training.py results/default --web       # in a browser on this machine, with the newest samples

The run may be running, about to start, or finished; its files are only read. For a run on another machine, use ssh with `-t`,
or forward the page's port: ssh -L 8010:127.0.0.1:8010 HOST.
"""

import argparse
import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from graf.errors import GrafError
from graf.reporting.run_status import RUN_FILES, Limits, RunStatus, is_run, read_status, runs_below, thinned
from graf.reporting.status_page import COLUMNS, columns, facts, gigabytes, loss, make_server, memory_title
from graf.runtime.command_line import Parser
from graf.runtime.console import log, run_script
from graf.runtime.run_lock import NAME as LOCK

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

BARS, ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
TRACES = (LOCK, "model.pt")  # of a run that is about to write its RUN_FILES, or has none
RESULTS = Path("results")  # training.outdir
CURVE_WIDTH, BAR_WIDTH = 24, 60  # characters
STATE_STYLE = {"starting": "cyan", "running": "green", "silent": "yellow", "stopped": "yellow", "finished": "bold green"}


def main() -> int:
    arguments = parse(sys.argv[1:])
    limits = Limits(arguments.card_percent, arguments.slowdown, arguments.hot_c, arguments.hot_cpu_c)
    run_dir = arguments.run or newest_run(RESULTS)
    require_one_run(run_dir)
    read = functools.partial(read_status, run_dir, limits)
    sys.stdout.reconfigure(errors="replace")  # a terminal that has not all characters
    with contextlib.suppress(KeyboardInterrupt):
        if arguments.web:
            with make_server(read, arguments.port) as server:
                log.info("%s is shown at http://%s:%d until Ctrl-C", run_dir, *server.server_address)
                server.serve_forever()
        else:
            show(read, Console(), arguments.interval_s, arguments.once)
    return 0


def parse(words: list[str]) -> argparse.Namespace:
    parser = Parser(__doc__)
    folder = "the run's folder, such as results/default; by default the newest in results"
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help=folder)
    parser.add_argument("--once", action="store_true", help="print one page and exit")
    parser.add_argument("--interval_s", type=float, default=2.0, help="seconds between updates (default 2)")
    parser.add_argument("--web", action="store_true", help="serve a page on 127.0.0.1 that refreshes itself")
    parser.add_argument("--port", type=int, default=8010, help="port of the page (default 8010); 0: any free port")
    parser.add_argument(
        "--card_percent",
        type=float,
        default=Limits.card_percent,
        help="warn if more than this percentage of a GPU's memory is used (default %(default)g)",
    )
    parser.add_argument(
        "--slowdown",
        type=float,
        default=Limits.slowdown,
        help="warn if a step takes this many times the usual time (default %(default)g)",
    )
    parser.add_argument(
        "--hot_c",
        type=float,
        default=Limits.hot_c,
        help="warn at this temperature of a GPU, degrees Celsius (default %(default)g)",
    )
    parser.add_argument(
        "--hot_cpu_c",
        type=float,
        default=Limits.hot_cpu_c,
        help="warn at this temperature of the CPU, degrees Celsius (default %(default)g)",
    )
    arguments = parser.parse_args(words)
    if not 0 < arguments.interval_s < math.inf:
        parser.error(f"--interval_s {arguments.interval_s}: expected seconds above 0")
    if arguments.once and arguments.web:
        parser.error("--once prints to the terminal, --web serves a page; expected one of them")
    return arguments


def newest_run(folder: Path) -> Path:
    """The run in the folder that was written last. Raises GrafError where there is none."""
    runs = runs_below(folder)
    if not runs:
        raise GrafError(f"{folder}: no run here; start one with python train.py, or name the folder of one")
    return runs[0]


def require_one_run(folder: Path) -> None:
    """Raises GrafError for what is no folder, one that holds runs and is none, whose states it lists, and one without a run."""
    if folder.is_file():
        raise GrafError(f"{folder}: a file; name the folder of the run, such as {folder.parent}")
    if not folder.is_dir():
        raise GrafError(f"{folder}: no such folder; name that of a run, such as results/default")
    if is_run(folder) or any((folder / name).exists() for name in TRACES):
        return
    runs = runs_below(folder)
    if not runs:
        files = ", ".join((*RUN_FILES, *TRACES))
        raise GrafError(f"{folder}: no run here (none of {files}); name the folder of one that train.py made or is starting")
    found = [(run, facts(read_status(run))) for run in runs]
    lines = (f"  {run}: step {status['step']}, {status['state']}" for run, status in found)
    raise GrafError("\n".join([f"{folder}: name one of the runs in it, the newest first:", *lines]))


def show(read: Callable[[], RunStatus], console: Console, interval_s: float, once: bool) -> None:
    """Pages until Ctrl-C on a terminal, which keeps the last one; one page elsewhere."""
    bars = ASCII_BARS if console.options.ascii_only else BARS
    current = page(read(), bars)
    if console.is_terminal and not once:
        try:
            with Live(current, console=console, screen=True, auto_refresh=False) as live:
                while True:
                    live.update(current, refresh=True)
                    time.sleep(interval_s)
                    current = page(read(), bars)
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
    parts += [Text(f"warning: {warning}", style="yellow") for warning in status.warnings]  # a small terminal shows no more
    if status.losses:
        parts.append(curves("losses", status.losses, loss, bars))
    if status.memory:
        parts.append(curves(memory_title(status), status.memory, gigabytes, bars, moves=status.state == "running"))
    if status.samples:
        names = (path.relative_to(status.run_dir).as_posix() for path in status.samples)
        parts.append(Text(f"newest samples: {', '.join(names)}"))
    return Group(*parts)


def curves(
    title: str, series: dict[str, tuple[float, ...]], shown: Callable[[float], str], bars: str, moves: bool = True
) -> Table:
    """A row per curve."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in ("", *COLUMNS, ""):
        table.add_column(heading, justify="right" if heading in COLUMNS[:3] else "left", no_wrap=True, overflow="crop")
    for name, values in series.items():
        table.add_row(Text(name), *columns(values, shown, moves), sparkline(values, CURVE_WIDTH, bars))
    return table


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """The values in at most `width` characters, from bars[0] for the lowest to bars[-1] for the highest."""
    points = thinned(values, width)
    low, high = min(points), max(points)
    scale = (len(bars) - 1) / (high - low) if high > low else 0
    return "".join(bars[round((point - low) * scale)] for point in points)


if __name__ == "__main__":
    run_script(main)
