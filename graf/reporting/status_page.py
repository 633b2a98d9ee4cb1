"""The status of a run as text, and as a web page of a small local server.

The server knows one address, `/`. The page holds its pictures itself, so that no request ever names a file.
"""

import logging
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from graf.errors import GrafError
from graf.reporting.pages import FILE_MB, TEMPLATES, Embedder, content_policy
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
    """State, step, speed, end (or when a step is taken after which they take another time), quality, CPU and GPU as text, as
    far as known; the last two only while it runs."""
    percent = f" of {status.max_steps:,} ({status.step / status.max_steps:.1%})" if status.max_steps else ""
    found = {"state": _state(status), "step": f"{status.step:,}{percent}"}
    if status.steps_per_s is not None:
        found["speed"] = f"{status.steps_per_s:.3g} steps per second"
    if (left := status.seconds_left) is not None:
        date = time.strftime(", about %Y-%m-%d %H:%M", time.localtime(status.time + left)) if left < FAR_S else ""
        found["end" if _to_the_end(status) else f"step {status.known_until:,}"] = f"in {duration(left)}{date}"
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


def _to_the_end(status: RunStatus) -> bool:
    """Whether `seconds_left` counts to the run's last step."""
    return status.known_until == status.max_steps


def columns(values: Sequence[float], shown: Callable[[float], str], moves: bool) -> tuple[str, ...]:
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
    name, embedder = status.run_dir.resolve().name, Embedder(status.run_dir, status.run_dir)
    what = "left" if _to_the_end(status) else f"to step {status.known_until:,}"
    left = f", {duration(status.seconds_left)} {what}" if status.seconds_left is not None else ""
    percent = f"{status.step / status.max_steps:.0%}" if status.max_steps else ""
    return TEMPLATES.get_template("status.html").render(
        title=f"{percent} {name}".strip(),
        name=name,
        policy=content_policy(),
        status=status,
        done=percent + left,
        facts=facts(status),
        embedder=embedder,
        samples=[*filter(embedder.has_file, status.samples)],
        max_mb=FILE_MB,
        memory_title=memory_title(status),
        columns=columns,
        loss=loss,
        gigabytes=gigabytes,
        polyline=polyline,
        COLUMNS=COLUMNS,
        CURVE_HEIGHT=CURVE_HEIGHT,
    )


def polyline(values: Sequence[float]) -> list[str]:
    """Heights in pixels, from above, of a curve of the values from the lowest to the highest."""
    points = thinned(values, CURVE_POINTS)
    low, high = min(points), max(points)
    scale = (CURVE_HEIGHT - 2) / ((high - low) or 1)
    return [f"{CURVE_HEIGHT - 1 - (value - low) * scale:.1f}" for value in points]


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
