"""The viewer's server, on viser, and its main loop.

The main thread renders, a picture at a time for each browser in turn. viser's threads only note what has changed: nothing is
locked, a slow browser holds up no other, and Ctrl-C ends the program between two operations.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from graf.errors import GrafError
from graf.reporting.viewer.access import Access
from graf.reporting.viewer.browser import Browser
from graf.reporting.viewer.models import RELOAD_EVERY_S, Models

import viser
import websockets.asyncio.server

log = logging.getLogger("graf")

POLL_S = 0.1
INTERRUPTED = 130  # exit status after Ctrl-C, as everywhere here
LOCAL = ("127.0.0.1", "localhost", "::1")


class Server(viser.ViserServer):
    """viser's server without its tunnel, by which a browser could put this machine's viewer on the internet."""

    def request_share_url(self, verbose: bool = True) -> None:
        log.warning("refused: a browser asked for a public address of this viewer")


@contextlib.contextmanager
def checked_requests(access: Access) -> Iterator[None]:
    """Have a server that viser starts in this block answer only those requests, of pages and websockets, that `access` allows.

    viser has no setting for that, but opens its port with `serve` of websockets, whose `process_request` sees requests first.
    Raises GrafError where it opened one in another way: any page could use that viewer.
    """
    serve, served = websockets.asyncio.server.serve, []

    def checked(*args: Any, process_request: Callable, **settings: Any) -> Any:
        def process(connection: Any, request: Any) -> Any:
            reason = access.refusal(request.headers.get_all("Host"), request.headers.get_all("Origin"))
            return connection.respond(HTTPStatus.FORBIDDEN, f"{reason}\n") if reason else process_request(connection, request)

        served.append(True)
        return serve(*args, process_request=process, **settings)

    websockets.asyncio.server.serve = checked
    try:
        yield
    finally:
        websockets.asyncio.server.serve = serve
    if not served:
        raise GrafError(
            f"viser {viser.__version__} opens its port in a way that this viewer does not know, and any web page could use it; "
            "install another one: pip install viser==1.1.1"
        )


def free_port(host: str, port: int) -> int:
    """The first free port of the host from `port` on; 0 for 0. viser looks for one too, but never returns if it finds none.

    Raises GrafError where the host is no address of this machine, or no port is free.
    """

    async def listen(port: int) -> None:
        (await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)).close()

    try:
        asyncio.run(listen(0))
    except (OSError, UnicodeError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).rpartition(": ")[2]
        raise GrafError(f"--host {host}: cannot be listened on ({reason}); give an address of this machine") from None
    for candidate in range(port, 2**16):
        with contextlib.suppress(OSError):
            asyncio.run(listen(candidate))
            return candidate
    raise GrafError(f"--port {port}: no free port from there to 65535; give a smaller one, or 0 for any")


class Viewer:
    """The server and its browsers. `advance` does the work, in the thread that calls it."""

    def __init__(self, models: Models, access: Access, port: int):
        """port: if it is in use the next free one is taken, for 0 any; the attribute `port` is the one that was taken."""
        models.load_first()  # a fault is raised before any browser is open
        warnings.filterwarnings("ignore", message="Queued a", category=UserWarning)  # viser's, after a tab was closed
        self.models, self.host, self.wake = models, access.host, threading.Event()
        self.browsers: dict[int, Browser] = {}
        self._arrived: deque[viser.ClientHandle] = deque()
        port = free_port(access.host, port)
        with _viser_silent(), checked_requests(access):
            self._server = Server(host=access.host, port=port, verbose=False)
        self.port = self._server.get_port()
        self._server.on_client_connect(self._arrive)

    def _arrive(self, client: viser.ClientHandle) -> None:
        self._arrived.append(client)
        self.wake.set()

    def advance(self) -> bool:
        """Do a piece of work for each browser. Returns whether there is more to do at once."""
        while self._arrived:
            client = self._arrived.popleft()
            with self._contained(client):
                self.browsers[client.client_id] = Browser(client, self.models, self.wake)
        busy, there = False, self._server.get_clients()
        for client_id in list(self.browsers):
            if client_id not in there:
                del self.browsers[client_id]
                continue
            with self._contained(there[client_id]):
                busy = self.browsers[client_id].advance() or busy
        return busy

    @contextlib.contextmanager
    def _contained(self, client: viser.ClientHandle) -> Iterator[None]:
        """Confine an error to one browser, which is told and then dropped until its page is loaded again."""
        try:
            yield
        except Exception as error:
            self.browsers.pop(client.client_id, None)
            told = f"{type(error).__name__}: {error}"
            log.warning("a browser is not served any more (%s); load its page again", told)
            with contextlib.suppress(Exception):  # its page may be gone
                client.add_notification("Not served any more", f"{told}; load this page again")

    def log_address(self) -> None:
        """Log the viewer's address, and who can reach it."""
        name = {"0.0.0.0": LOCAL[0], "::": "::1"}.get(self.host, self.host)
        name = f"[{name}]" if ":" in name else name
        log.info("http://%s:%d in a browser; Ctrl-C ends the viewer", name, self.port)
        if self.host in LOCAL:
            log.info("only browsers on this machine reach it; --host 0.0.0.0 lets other machines in")
        else:
            log.warning("--host %s: whoever opens this page can use the viewer and save files with it", self.host)

    def stop(self) -> None:
        with _viser_silent():
            self._server.stop()


def serve(models: Models, access: Access, port: int) -> None:
    """Serve the viewer until Ctrl-C, which ends the program with status 130."""
    signal.signal(signal.SIGINT, _end_at_once)
    viewer = Viewer(models, access, port)
    viewer.log_address()
    while True:
        if not viewer.advance():
            viewer.wake.wait(POLL_S if viewer.browsers else RELOAD_EVERY_S)
            viewer.wake.clear()


def _end_at_once(*_: object) -> None:
    """End the program at once: an exception might be lost in a callback, and Python would wait for viser, or abort while a
    background thread is inside PyTorch."""
    with contextlib.suppress(OSError, RuntimeError):  # a stream that is being written to
        sys.stderr.write("\ninterrupted\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def _viser_silent() -> Iterator[None]:
    """Hide what viser prints when it starts and stops; we log that ourselves."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
