"""The status of a run as text, and as a web page of a small local server.

The server knows one address, `/`. The page holds its pictures itself, so that no request ever names a file.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from graf.errors import GrafError
from graf.reporting.html_pieces import FILE_MB, MB, Embedder, head
from graf.reporting.run_status import CPU, HEAT, RunStatus, thinned, trend
from graf.runtime.console import duration
from graf.runtime.limits import GB

ADDRESS = "127.0.0.1"
NAMES = (ADDRESS, "localhost")  # hosts to answer; another one means DNS rebinding by a foreign page
REFRESH_S = 5
CURVE_POINTS, CURVE_HEIGHT = 200, 40
COLUMNS = ("last", "lowest", "highest", "trend")
FAR_S = 10 * 365 * 86400  # an end further away gets no date

log = logging.getLogger("graf")


def facts(status: RunStatus) -> dict[str, str]:
    """State, step, speed, end, quality, CPU and GPU as text, as far as known; the last two only while it runs."""
    percent = f" of {status.max_steps:,} ({status.step / status.max_steps:.1%})" if status.max_steps else ""
    found = {"state": _state(status), "step": f"{status.step:,}{percent}"}
    if status.steps_per_s is not None:
        found["speed"] = f"{status.steps_per_s:.3g} steps per second"
    if (left := status.seconds_left) is not None:
        date = time.strftime(", about %Y-%m-%d %H:%M", time.localtime(status.time + left)) if left < FAR_S else ""
        found["end"] = f"in {duration(left)}{date}"
    if (measured := status.measured) is not None:
        newest = ", ".join(f"{name} {loss(values[-1])}" for name, values in measured.values.items())
        found["quality"] = f"{newest} at step {measured.step:,} ({measured.terms})"
    units = {"gpu_temperature_c": "C", "gpu_utilization_percent": "% busy", "gpu_power_w": "W"}
    if status.state != "running":  # the last measurements are out of date
        return found
    if status.cpu.keys() >= set(CPU):
        run, machine = (status.cpu[name] for name in CPU)
        heat = f", {status.cpu[HEAT]:.0f} C" if HEAT in status.cpu else ""
        found["cpu"] = f"{run / 100:.1f} cores busy with the run, {machine:.0f} % of the machine's in all{heat}"
    if status.gpu:
        found["gpu"] = ", ".join(f"{value:.0f} {units[name]}" for name, value in status.gpu.items())
    return found


def columns(values: Sequence[float], shown: Callable[[float], str], moves: bool = True) -> tuple[str, ...]:
    """The COLUMNS of a curve; a trend only where it `moves`."""
    return shown(values[-1]), shown(min(values)), shown(max(values)), trend(values) if moves else ""


def loss(value: float) -> str:
    return f"{value:.4g}"


def gigabytes(value: float) -> str:
    return f"{value / GB:.2f} GB"


def memory_title(status: RunStatus) -> str:
    return f"memory, last {duration(status.memory_s)}"


def html(status: RunStatus) -> str:
    """The page: how far the run is, all of the status, the newest samples, and curves."""
    name = escape(status.run_dir.resolve().name)
    percent = f"{status.step / status.max_steps:.0%} " if status.max_steps else ""
    rows = "".join(f"<tr><th>{key}</th><td>{escape(text)}</td></tr>\n" for key, text in facts(status).items())
    return (
        head(f"{percent}{name}")
        + f"<h1>{name}</h1>\n{_progress(status)}<table>\n{rows}</table>\n"
        + "".join(f'<p class="note">{escape(warning)}</p>\n' for warning in status.warnings)
        + "".join(_samples(status))
        + _curves("distance to the data, lower is better", status.measured.values if status.measured else {}, loss)
        + _curves("losses", status.losses, loss)
        + _curves(memory_title(status), status.memory, gigabytes, moves=status.state == "running")
        + "</body>\n</html>\n"
    )


def make_server(read: Callable[[], RunStatus], port: int) -> ThreadingHTTPServer:
    """A server, for this machine only, of the page of the status that `read` returns; port 0 takes any free one.

    Raises GrafError where the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Host", ADDRESS).partition(":")[0] not in NAMES:
                self.send_error(HTTPStatus.FORBIDDEN, f"ask for {ADDRESS}")
            elif self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                body = html(read()).encode("utf-8", "xmlcharrefreplace")
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("Refresh", str(REFRESH_S))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            log.debug("web: " + format, *values)

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            log.debug("web: a request failed, such as by a browser that left", exc_info=True)

    try:
        return Server((ADDRESS, port), Handler)
    except (OSError, OverflowError) as error:
        raise GrafError(f"--port {port}: cannot be served at ({error}); name another, or 0 for any that is free") from None


def _state(status: RunStatus) -> str:
    if status.state == "starting":
        return "has not taken a step yet"
    if status.state == "silent":
        return f"silent for {duration(status.time - status.written)}: it was killed, or hangs"
    if status.state == "stopped":
        return "stopped; the same command continues"
    phase = f", in phase {status.phase}" if status.state == "running" and status.phase not in (None, "train") else ""
    return status.state + phase


def _progress(status: RunStatus) -> str:
    """A bar of the steps taken, and the time left."""
    if not status.max_steps:
        return ""
    left = f", {duration(status.seconds_left)} left" if status.seconds_left is not None else ""
    done = f"{status.step / status.max_steps:.0%}{left}"
    return f'<p class="bar"><progress max="{status.max_steps}" value="{status.step}">{done}</progress> {done}</p>\n'


def _curves(heading: str, series: dict[str, tuple[float, ...]], shown: Callable[[float], str], moves: bool = True) -> str:
    if not series:
        return ""
    heads = "".join(f"<th>{name}</th>" for name in ("", *COLUMNS, ""))
    rows = []
    for name, values in series.items():
        cells = "".join(f'<td class="whole">{text}</td>' for text in columns(values, shown, moves))
        rows.append(f'<tr><th>{escape(name)}</th>{cells}<td class="curve">{_curve(values)}</td></tr>\n')
    return f'<h2>{heading}</h2>\n<table class="curves">\n<tr>{heads}</tr>\n' + "".join(rows) + "</table>\n"


def _curve(values: Sequence[float]) -> str:
    """An SVG line of the values, from the lowest to the highest."""
    points = thinned(values, CURVE_POINTS)
    low, high = min(points), max(points)
    heights = [(value - low) / ((high - low) or 1) * (CURVE_HEIGHT - 2) + 1 for value in points]
    line = " ".join(f"{i},{CURVE_HEIGHT - height:.1f}" for i, height in enumerate(heights))
    return (
        f'<svg height="{CURVE_HEIGHT}" viewBox="0 0 {max(len(points) - 1, 1)} {CURVE_HEIGHT}" '
        f'preserveAspectRatio="none"><polyline points="{line}" fill="none" stroke="currentColor" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )


def _samples(status: RunStatus) -> Iterator[str]:
    """The newest samples, except those that disappear meanwhile or are too large."""
    if not status.samples:
        return
    embedder = Embedder(status.run_dir, status.run_dir)
    yield '<h2>newest samples</h2>\n<div class="files">\n'
    for path in filter(embedder.owns, status.samples):
        with contextlib.suppress(OSError):
            is_small = path.stat().st_size <= FILE_MB * MB
            yield embedder.figure(path) if is_small else f"<p>{escape(str(path))}: over {FILE_MB} MB, not shown</p>\n"
    yield "</div>\n"
