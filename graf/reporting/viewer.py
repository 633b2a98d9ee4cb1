"""The viewer in the browser, on viser: the windows' sliders and cameras become states, and states the pictures in the windows.

The main thread draws, a picture at a time for each browser in turn. viser's threads only note what has changed: nothing is
locked, a slow browser holds up no other, and Ctrl-C ends the program between two operations.
"""

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from http import HTTPStatus
from pathlib import Path
from typing import Any

from graf.camera import middle_poses, side_azimuth
from graf.config import DataConfig
from graf.errors import GrafError
from graf.reporting.object_view import (
    KINDS,
    LARGEST_SEED,
    Model,
    ObjectView,
    ViewState,
    distances,
    moving_side,
    resting_side,
    sides,
    training_views,
    turned,
    vertical_fov,
)
from graf.reporting.viewer_access import Access

import numpy as np
import torch
import viser
import websockets.asyncio.server
from torch import Tensor
from torch.nn import functional as F
from viser.transforms import SO3

log = logging.getLogger("graf")

STILL_AFTER_S = 0.3  # without a change, the picture is drawn in full
ANSWER_S = 5.0  # at most, until a page has taken a camera
RELOAD_EVERY_S = 1.0
SECONDS_PER_TURN = 12.0
FRUSTUM, OUTSIDE = 0.07, 2.0  # length of a frustum, and distance from which all are seen, in data.radius
POLL_S = 0.1
INTERRUPTED = 130  # exit status after Ctrl-C, as everywhere here
LOCAL = ("127.0.0.1", "localhost", "::1")
NOTHING = "nothing"
Y_DOWN = np.diag([1.0, -1.0, -1.0])  # from our cameras, which look along -z, to viser's, which look along z

Job = Callable[[], Iterator[bool]]  # it yields between pieces of its work: whether it can go on at once


class Models:
    """The models of all browsers, read once each, and again when their checkpoint has changed."""

    def __init__(self, sources: list[Path], load: Callable[[Path], Model], clock: Callable[[], float] = time.monotonic):
        """sources: runs' folders and checkpoints; load: reads the model of one, and raises GrafError."""
        self.sources, self._load, self._clock = sources, load, clock
        self._loaded: dict[Path, Model] = {}
        self._seen: dict[Path, tuple[float, tuple]] = {}  # when a source was looked at, and the stamp of its file
        self._views: dict[Path, Future] = {}

    def get(self, source: Path) -> Model:
        """The model of a source. Where its checkpoint cannot be read any more, that is logged and the one before is kept."""
        now = self._clock()
        checked, stamp = self._seen.get(source, (-math.inf, ()))
        if now - checked < RELOAD_EVERY_S:
            return self._loaded[source]
        found = _stamp(source)
        if found != stamp or source not in self._loaded:
            try:
                self._loaded[source] = self._load(source)
            except GrafError as error:
                if source not in self._loaded:
                    raise
                log.warning("%s; the viewer goes on with step %d", error, self._loaded[source].step)
            else:
                log.info("%s: step %d", self._loaded[source].checkpoint, self._loaded[source].step)
        self._seen[source] = now, found
        return self._loaded[source]

    def training_views(self, source: Path) -> Future:
        """Those of `object_view.training_views`, read once, in the background: a data set may have to be made first."""
        if source not in self._views or (self._views[source].done() and self._views[source].exception()):
            config = self.get(source).generator.config
            self._views[source] = in_background(lambda: training_views(config))
        return self._views[source]


def in_background(work: Callable[[], Any]) -> Future:
    """The work, done in a thread that does not keep the program from ending."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _stamp(source: Path) -> tuple:
    """What changes where a checkpoint is written anew: of a run its model.pt, of a file itself."""
    with contextlib.suppress(OSError):
        found = (source / "model.pt" if source.is_dir() else source).stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
    return ()


class Server(viser.ViserServer):
    """viser's server without its tunnel: no browser may put this machine's viewer on the internet."""

    def request_share_url(self, verbose: bool = True) -> None:
        log.warning("a browser asked for a public address of this viewer, which it does not get")


@contextlib.contextmanager
def checked_requests(access: Access) -> Iterator[None]:
    """A server that viser starts in this block answers requests, of pages and of websockets, only as far as `access` allows.

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
            "install another one: pip install 'viser==1.1.1'"
        )


class Session:
    """One browser: its sliders, its state, and what is drawn for it."""

    def __init__(self, client: viser.ClientHandle, models: Models, wake: threading.Event):
        self.client, self.models, self._wake = client, models, wake
        self._jobs: deque[Job] = deque()
        self._running: Iterator[bool] | None = None
        self._source = models.sources[0]
        self._view = ObjectView(models.get(self._source))
        self._aspect = 0.0
        self._drawn: tuple | None = None  # what the window shows, and whether in full
        self._meshed: tuple | None = None  # the object whose mesh it shows
        self._turned_at: float | None = None
        self._frustums: viser.SceneNodeHandle | None = None  # with all of them in it
        self._left: tuple[np.ndarray, float] | None = None  # where the start was asked for, and until when to hold it
        self._reported: np.ndarray | None = None  # the newest place of the camera that the page has told
        self._changed_at = -math.inf
        self._seconds_per_pixel = math.inf  # until a picture was drawn: the first one is the smallest
        self._frames: deque[float] = deque(maxlen=20)  # when pictures were drawn
        self._build()
        self._new_model(first=True)
        client.camera.on_update(self._camera_reported)

    # What the browser shows beside the picture

    def _build(self) -> None:
        gui, models, camera = self.client.gui, self.models, self.client.camera
        roomy = camera.image_width > camera.image_height  # on a telephone the sliders would cover the picture
        gui.configure_theme(show_logo=False, show_share_button=False, control_width="medium")
        gui.main_panel.dock_right()
        self._status = gui.add_markdown("")
        names = [str(source) for source in models.sources]
        self._run = gui.add_dropdown("model", names, visible=len(names) > 1)
        with gui.add_folder("Object", expand_by_default=roomy):
            self._class = gui.add_slider("class", 0, max(1, self._view.n_classes - 1), 1, 0, visible=self._view.n_classes > 1)
            self._seed = gui.add_slider("seed", 0, LARGEST_SEED, 1, 0)
            self._to_seed = gui.add_slider("towards seed", 0, LARGEST_SEED, 1, 1)
            self._shape = gui.add_slider("shape", 0.0, 1.0, 0.01, 0.0, hint="share of the second seed's shape code")
            self._appearance = gui.add_slider(
                "appearance", 0.0, 1.0, 0.01, 0.0, hint="share of the second seed's appearance code"
            )
            self._truncation = gui.add_slider("truncation", 0.0, 1.0, 0.01, 1.0, hint="less is more typical")
        with gui.add_folder("Picture", expand_by_default=roomy):
            self._kind = gui.add_dropdown("shows", list(KINDS))
            self._beside = gui.add_dropdown("beside it", [NOTHING, *KINDS])
            self._still = gui.add_dropdown("pixels at rest", ["64"])
            self._within = gui.add_checkbox("trained elevations only", True)
            self._turn = gui.add_checkbox("turn", False)
            gui.add_button("back to the start").on_click(lambda _: self._do(self._reset_camera))
        with gui.add_folder("Scene", expand_by_default=False):
            self._mesh = gui.add_checkbox("mesh", False, hint="instead of the picture")
            self._cameras = gui.add_checkbox("training cameras", False)
        with gui.add_folder("Save", expand_by_default=False):
            for what in ("picture", "video", "mesh", "latents"):
                gui.add_button(f"save {what}").on_click(lambda _, what=what: self._do(lambda: self._save(what)))
        for handle in (self._run, self._class, self._seed, self._to_seed, self._shape, self._appearance, self._truncation):
            handle.on_update(lambda _: self._wake.set())
        for handle in (self._kind, self._beside, self._still, self._within, self._turn):
            handle.on_update(lambda _: self._wake.set())
        self._mesh.on_update(lambda _: self._do(self._show_mesh))
        self._cameras.on_update(lambda _: self._do(self._show_cameras))

    def _do(self, job: Job) -> None:
        """Leave a job to the main thread."""
        self._jobs.append(job)
        self._wake.set()

    async def _camera_reported(self, camera: viser.CameraHandle) -> None:  # viser calls it in the order of the messages
        self._reported = np.array(camera.position)
        self._wake.set()

    def state(self) -> ViewState:
        """What the sliders and the camera ask for."""
        camera = self.client.camera
        beside = self._beside.value
        return ViewState(
            seed=self._seed.value,
            to_seed=self._to_seed.value,
            shape=self._shape.value,
            appearance=self._appearance.value,
            truncation=self._truncation.value,
            class_index=self._class.value,
            kind=self._kind.value,
            beside=None if beside == NOTHING else beside,
            pose_c2w=pose_of(camera.wxyz, camera.position),
            within=self._within.value,
            aspect=camera.image_width / max(1, camera.image_height),
        ).checked(self._view.n_classes)

    # What the main thread does

    def advance(self) -> bool:
        """Draw the next picture and do a piece of a job. Returns whether there is more to do at once."""
        self._reload()
        if self._running is None and self._jobs:
            self._running = self._jobs.popleft()()
        busy = self._advance_job()
        self._hold_start()
        self._turn_camera()
        return self._draw() or busy or (self._running is None and bool(self._jobs))

    def _advance_job(self) -> bool:
        if self._running is None:
            return False
        try:
            return next(self._running)
        except StopIteration:
            self._running = None
        except (GrafError, OSError) as error:
            self._running = None
            self._tell("Not done", str(error))
        return True

    def _reload(self) -> None:
        chosen = self._run.value
        source = next((path for path in self.models.sources if str(path) == chosen), self._source)
        try:
            model = self.models.get(source)
        except GrafError as error:
            self._tell("This model cannot be read", str(error))
            self._run.value = str(self._source)
            return
        if model is not self._view.model:
            other = source != self._source
            self._source, self._view = source, ObjectView(model)
            self._new_model(first=other)

    def _new_model(self, first: bool) -> None:
        """Fit the sliders to the model, and where it is another run's the camera."""
        self._drawn = None
        config = self._view.model.generator.config
        self.client.gui.set_panel_label(f"step {self._view.model.step:,}")
        if first:
            choices = sides(config)
            self._class.max, self._class.visible = max(1, self._view.n_classes - 1), self._view.n_classes > 1
            self._still.options = [str(side) for side in choices]
            self._still.value = str(resting_side(choices))
            self._jobs.append(self._reset_camera)
            self._cameras.value = False
            self._jobs.append(self._show_cameras)
        self._meshed = None
        self._jobs.append(self._show_mesh)

    def _turn_camera(self) -> None:
        now, before = time.monotonic(), self._turned_at
        self._turned_at = now if self._turn.value else None
        pose = self.state().pose_c2w
        if before is not None and self._turn.value and pose is not None:
            self._place(turned(pose, 360 * min(0.5, now - before) / SECONDS_PER_TURN))

    def _draw(self) -> bool:
        """Draw what the window should show, where it does not show it yet. Returns whether something moves."""
        state, view, rest = self.state(), self._view, self._side()
        started = time.monotonic()
        wanted = (state.object_of, state.kind, state.beside, state.within, state.aspect, _rounded(state.pose_c2w), rest)
        self._fit_window(state.aspect)
        shown, in_full = self._drawn or (None, False)
        if wanted == shown and in_full:
            return False
        if wanted == shown and started - self._changed_at < STILL_AFTER_S:
            return False  # it is drawn in full unless it moves on
        moving = wanted != shown
        if moving:
            self._changed_at = started
        if in_full:
            self._frames.clear()
        side = moving_side(sides(view.model.generator.config), rest, self._seconds_per_pixel) if moving else rest
        if self._mesh.value:
            picture = np.full((8, 8, 3), view.surround("colour"), np.uint8)
        else:
            picture = view.picture(state, side)
            self._seconds_per_pixel = (time.monotonic() - started) / side**2
        self.client.scene.set_background_image(picture, format="jpeg", jpeg_quality=85 if moving else 95)
        self._frames.append(time.monotonic())
        self._drawn = wanted, not moving
        if not moving:
            self._at_rest(state)
        self._tell_status(state, side, moving)
        return True

    def _at_rest(self, state: ViewState) -> None:
        """What waits until nothing moves: the camera comes back from where it went too far, and the mesh follows the object."""
        if state.pose_c2w is not None:
            self._place(self._view.pose(state))
        if self._mesh.value and self._meshed != state.object_of:
            self._do(self._show_mesh)

    def _tell_status(self, state: ViewState, side: int, moving: bool) -> None:
        seconds = self._frames[-1] - self._frames[0]
        pace = f"{(len(self._frames) - 1) / seconds:.0f} frames per second, " if moving and seconds > 0 else ""
        pixels = "mesh" if self._mesh.value else f"{side} pixels"
        self._status.content = f"{pace}{pixels}{'' if moving else ' at rest'}  \n{self._view.caption(state)}"

    def _side(self) -> int:
        """Pixels of a picture at rest."""
        choices = sides(self._view.model.generator.config)
        return next((side for side in choices if str(side) == self._still.value), resting_side(choices))

    def _fit_window(self, aspect: float) -> None:
        """Show the scene in the field of view of the picture."""
        if aspect != self._aspect:
            self._aspect = aspect
            self.client.camera.fov = vertical_fov(self._view.data, aspect)

    def _place(self, pose_c2w: Tensor) -> None:
        """Move the browser's camera, which goes on looking at the origin."""
        position = pose_c2w[:, 3].double().numpy()
        if not np.allclose(position, self.client.camera.position, atol=1e-3):
            with self.client.atomic():
                self.client.camera.position = position
                self.client.camera.look_at = np.zeros(3)

    def _reset_camera(self) -> Iterator[bool]:
        camera, data = self.client.camera, self._view.data
        nearest, farthest = distances(data)
        camera.max_orbit_distance, camera.min_orbit_distance = farthest, nearest
        self._left, self._reported = (np.array(camera.position), time.monotonic() + ANSWER_S), None
        self._place(start_pose(data))
        yield True

    def _hold_start(self) -> None:
        """Send the camera to the start again where a slow page, which has not taken that yet, reports its old one once more."""
        if self._left is None or self._reported is None:
            return
        (left, until), reported, self._reported = self._left, self._reported, None
        start = start_pose(self._view.data)
        if time.monotonic() < until and np.allclose(reported, left, atol=1e-3):
            self._place(start)
        elif not np.allclose(reported, start[:, 3], atol=1e-3):  # an old report, read late, looks as if it were there already
            self._left = None

    def _show_mesh(self) -> Iterator[bool]:
        self._drawn = None
        if not self._mesh.value:
            self.client.scene.remove_by_name("/mesh")
            self._meshed = None
            return
        view, state = self._view, self.state()
        if self._meshed == state.object_of:
            return
        self._meshed = state.object_of  # where it has no surface it is not tried again
        self._status.content = "making the mesh"
        yield from _until_done(made := in_background(lambda: view.mesh(state)))
        self.client.scene.add_mesh_trimesh("/mesh", made.result())

    def _show_cameras(self) -> Iterator[bool]:
        if self._frustums is not None:
            self._frustums.remove()
            self._frustums = None
        if not self._cameras.value:
            return
        data = self._view.data
        yield from _until_done(views := self.models.training_views(self._source))
        self._frustums = self.client.scene.add_frame("/cameras", show_axes=False)
        for i, (pose_c2w, photograph) in enumerate(views.result()):
            self.client.scene.add_camera_frustum(
                f"/cameras/{i}",
                fov=vertical_fov(data, 1),
                aspect=1,
                scale=FRUSTUM * data.radius[1],
                thickness=FRUSTUM * data.radius[1] / 40,
                image=photograph,
                wxyz=SO3.from_matrix(pose_c2w[:, :3].double().numpy() @ Y_DOWN).wxyz,
                position=pose_c2w[:, 3].double().numpy(),
            )
        pose = self.state().pose_c2w
        if pose is not None and pose[:, 3].norm() < OUTSIDE * data.radius[1]:  # from where the cameras are in sight
            self._place(torch.cat([pose[:, :3], OUTSIDE * data.radius[1] * F.normalize(pose[:, 3:], dim=0)], dim=1))

    def _save(self, what: str) -> Iterator[bool]:
        view, state, files = self._view, self.state(), []
        if what == "video":
            for done in view.save_video(state, self._side()):
                if isinstance(done, list):
                    files = done
                else:
                    self._status.content = f"video: {done:.0%}"
                yield True
        elif what == "mesh":
            self._status.content = "making the mesh"
            yield from _until_done(made := in_background(lambda: view.save_mesh(state)))
            files = made.result()
        else:
            files = view.save_picture(state, self._side()) if what == "picture" else view.save_latents(state)
        log.info("%s", ", ".join(map(str, files)))
        self._drawn = None
        self._tell("Saved", ", ".join(map(str, files)))

    def _tell(self, title: str, body: str) -> None:
        self.client.add_notification(title, body, auto_close_seconds=10)


def _until_done(future: Future) -> Iterator[bool]:
    while not future.done():
        yield False


def pose_of(wxyz: np.ndarray, position: np.ndarray) -> Tensor | None:
    """pose_c2w (3, 4) of a viser camera; None for one that is none."""
    if np.shape(wxyz) != (4,) or np.shape(position) != (3,):
        return None
    rotation = SO3(np.asarray(wxyz, dtype=float)).as_matrix() @ Y_DOWN
    return torch.tensor(np.column_stack([rotation, position]), dtype=torch.float32)


def start_pose(data: DataConfig) -> Tensor:
    """(3, 4) camera that a browser starts with."""
    return middle_poses(torch.tensor(side_azimuth(data)), data)


def _rounded(pose_c2w: Tensor | None) -> tuple:
    """What changes where a camera visibly moves."""
    return () if pose_c2w is None else tuple(round(x, 4) for x in pose_c2w.flatten().tolist())


class Viewer:
    """The server and the browsers that look at it. `advance` does the work, in the thread that calls it."""

    def __init__(self, models: Models, access: Access, port: int):
        """port: the next free one is taken where it is in use, any where it is 0; `port` is the one that was free."""
        models.get(models.sources[0])  # what is wrong with it is told before any browser is open
        warnings.filterwarnings("ignore", message="Queued a", category=UserWarning)  # viser's, where a tab was closed meanwhile
        self.models, self.host, self.wake = models, access.host, threading.Event()
        self.sessions: dict[int, Session] = {}
        self._arrived: deque[viser.ClientHandle] = deque()
        with _viser_silent(), checked_requests(access):
            self._server = Server(host=access.host, port=port, verbose=False)
        self.port = self._server.get_port()
        self._server.on_client_connect(self._arrive)

    def _arrive(self, client: viser.ClientHandle) -> None:
        self._arrived.append(client)
        self.wake.set()

    def advance(self) -> bool:
        """One piece of work for each browser. Returns whether there is more to do at once."""
        while self._arrived:
            client = self._arrived.popleft()
            with self._of_one_browser(client.client_id):
                self.sessions[client.client_id] = Session(client, self.models, self.wake)
        busy, there = False, self._server.get_clients()
        for client_id in list(self.sessions):
            if client_id not in there:
                del self.sessions[client_id]
                continue
            with self._of_one_browser(client_id):
                busy = self.sessions[client_id].advance() or busy
        return busy

    @contextlib.contextmanager
    def _of_one_browser(self, client_id: int) -> Iterator[None]:
        """What one browser sends ends its own view at most, until its page is loaded again."""
        try:
            yield
        except Exception as error:
            self.sessions.pop(client_id, None)
            log.warning("a browser is not served any more (%s: %s); load its page again", type(error).__name__, error)

    def tell(self) -> None:
        """Log where the viewer is, and who can reach it."""
        log.info(
            "http://%s:%d in a browser; Ctrl-C ends the viewer", LOCAL[0] if self.host == "0.0.0.0" else self.host, self.port
        )
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
    viewer.tell()
    while True:
        if not viewer.advance():
            viewer.wake.wait(POLL_S if viewer.sessions else RELOAD_EVERY_S)
            viewer.wake.clear()


def _end_at_once(*_: object) -> None:
    """End the program where it is: an exception might be lost in a callback, Python would wait for viser, and abort where the
    background is inside PyTorch."""
    with contextlib.suppress(OSError, RuntimeError):  # a stream that is being written to
        sys.stderr.write("\ninterrupted\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(INTERRUPTED)


@contextlib.contextmanager
def _viser_silent() -> Iterator[None]:
    """viser prints where it listens, and that it stops, in a form of its own; we say it in ours."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield
