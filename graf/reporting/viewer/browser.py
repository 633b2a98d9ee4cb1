"""One browser of the viewer, on viser: its sliders and camera become a state, and the state the picture in its window."""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from graf.camera import side_pose
from graf.errors import GrafError
from graf.export.reconstruction import OPENCV_AXES
from graf.models.directions import PARTS
from graf.reporting.viewer.models import Models
from graf.reporting.viewer.object_view import (
    DIRECTIONS,
    FARTHEST_SD,
    KINDS,
    LARGEST_SEED,
    ObjectView,
    ViewState,
    camera_distances,
    moving_side,
    resting_side,
    sides,
    turned,
    vertical_fov,
)
from graf.runtime.out_of_memory import first_line, is_out_of_memory

import numpy as np
import torch
import viser
from torch import Tensor
from torch.nn import functional as F
from viser.transforms import SO3

log = logging.getLogger("graf")

STILL_AFTER_S = 0.3  # without a change, the picture is drawn in full
ANSWER_S = 5.0  # at most, until a page has taken a camera
SECONDS_PER_TURN = 12.0
FRUSTUM, OUTSIDE = 0.07, 2.0  # length of a frustum, and distance from which all are seen, in data.radius
NOTHING = "nothing"
BY_SEED = "of the seed"

Job = Iterator[bool]  # yields between pieces of its work: whether it can go on at once


class Browser:
    """One browser's sliders, state and rendered pictures. `advance` does the work, in the thread that calls it."""

    def __init__(self, client: viser.ClientHandle, models: Models, wake: threading.Event):
        self.client, self.models, self._wake = client, models, wake
        self._jobs: deque[Job] = deque()  # the first of which is being done
        self._source = models.sources[0]
        self._view = ObjectView(models.get(self._source))
        self._directed = False  # whether the model's directions are found
        self._moved_object = self._view, BY_SEED, 0, 0  # the object that their sliders move: model, found object, class, seed
        self._aspect = 0.0
        self._drawn: tuple | None = None  # the view that the window shows, and whether in full
        self._out_of_memory = False  # whether the last picture did not fit
        self._meshed: tuple | None = None  # the object whose mesh it shows
        self._turned_at: float | None = None
        self._frustums: viser.SceneNodeHandle | None = None  # the parent node of all
        self._left: tuple[np.ndarray, float] | None = None  # position before a reset of the camera, and when to give up on it
        self._reported: np.ndarray | None = None  # the newest position of the camera that the page has sent
        self._changed_at = -math.inf
        self._seconds_per_pixel = math.inf  # until a picture was drawn: the first one is the smallest
        self._frames: deque[float] = deque(maxlen=20)  # times of the last pictures
        self._build()
        self._new_model(first=True)
        client.camera.on_update(self._note_camera)

    # Called by viser's threads

    def _build(self) -> None:
        gui, models, camera = self.client.gui, self.models, self.client.camera
        roomy = camera.image_width > camera.image_height  # on a telephone the sliders would cover the picture
        gui.configure_theme(show_logo=False, show_share_button=False, control_width="medium")
        gui.main_panel.dock_right()
        self._status = gui.add_markdown("")
        names = [str(source) for source in models.sources]
        self._run = gui.add_dropdown("model", names, visible=len(names) > 1)
        with gui.add_folder("Object", expand_by_default=roomy):
            self._found = gui.add_dropdown("object", [BY_SEED])
            self._class = gui.add_dropdown("class", self._view.classes, visible=self._view.n_classes > 1)
            self._seed = gui.add_slider("seed", 0, LARGEST_SEED, 1, 0)
            self._to_seed = gui.add_slider("towards seed", 0, LARGEST_SEED, 1, 1)
            self._shape = gui.add_slider("shape", 0.0, 1.0, 0.01, 0.0, hint="share of the second seed's shape code")
            self._appearance = gui.add_slider(
                "appearance", 0.0, 1.0, 0.01, 0.0, hint="share of the second seed's appearance code"
            )
            self._truncation = gui.add_slider("truncation", 0.0, 1.0, 0.01, 1.0, hint="less is more typical")
        with gui.add_folder("Directions", expand_by_default=False):
            self._moves = {part: [self._direction_slider(f"{part} {i + 1}") for i in range(DIRECTIONS)] for part in PARTS}
        with gui.add_folder("Picture", expand_by_default=roomy):
            self._kind = gui.add_dropdown("shows", list(KINDS))
            self._beside = gui.add_dropdown("beside it", [NOTHING, *KINDS])
            self._still = gui.add_dropdown("pixels at rest", ["64"])
            self._within = gui.add_checkbox("trained elevations only", True)
            self._turn = gui.add_checkbox("turn", False)
            gui.add_button("back to the start").on_click(lambda _: self._enqueue(self._reset_camera()))
        with gui.add_folder("Scene", expand_by_default=False):
            self._mesh = gui.add_checkbox("mesh", False, hint="instead of the picture")
            self._cameras = gui.add_checkbox("training cameras", False)
        with gui.add_folder("Save", expand_by_default=False):
            for what in ("picture", "video", "mesh", "latents"):
                gui.add_button(f"save {what}").on_click(lambda _, what=what: self._enqueue(self._save(what)))
        sliders = (self._seed, self._to_seed, self._shape, self._appearance, self._truncation)
        choices = (self._class, self._found, self._run, self._kind, self._beside, self._still)
        self._found.on_update(lambda _: self._take_class())
        for handle in (*sliders, *choices, self._within, self._turn):
            handle.on_update(lambda _: self._wake.set())
        self._mesh.on_update(lambda _: self._enqueue(self._show_mesh()))
        self._cameras.on_update(lambda _: self._enqueue(self._show_cameras()))

    def _direction_slider(self, label: str) -> viser.GuiSliderHandle:
        """A slider along a principal direction, in standard deviations, whose first move has the directions found."""
        slider = self.client.gui.add_slider(label, -FARTHEST_SD, FARTHEST_SD, 0.1, 0.0, hint="standard deviations")
        slider.on_update(lambda _: self._wake.set() if self._directed else self._enqueue(self._find_directions()))
        return slider

    def _enqueue(self, job: Job) -> None:
        """Have the main thread do a job."""
        self._jobs.append(job)
        self._wake.set()

    def _take_class(self) -> None:
        """Set the class to that of an object that was found."""
        if self._found.value in self._view.model.found:
            self._class.value = self._view.classes[int(self._view.model.found[self._found.value][1])]

    def _class_index(self) -> int:
        """The number of the chosen class, 0 for a name that there is not."""
        return next((i for i, name in enumerate(self._class.options) if name == self._class.value), 0)

    async def _note_camera(self, camera: viser.CameraHandle) -> None:  # viser calls it in the order of the messages
        self._reported = np.array(camera.position)
        self._wake.set()

    def state(self) -> ViewState:
        """The state that sliders and camera are set to."""
        camera = self.client.camera
        beside = self._beside.value
        return ViewState(
            seed=self._seed.value,
            to_seed=self._to_seed.value,
            found=self._found.value,
            shape=self._shape.value,
            appearance=self._appearance.value,
            truncation=self._truncation.value,
            class_index=self._class_index(),
            **self._amounts(),
            kind=self._kind.value,
            beside=None if beside == NOTHING else beside,
            pose_c2w=pose_of(camera.wxyz, camera.position),
            within=self._within.value,
            aspect=camera.image_width / max(1, camera.image_height),
        ).checked(self._view.n_classes)

    def _amounts(self) -> dict[str, tuple[float, ...]]:
        """The sliders of the directions, at 0 until these are found."""
        return {f"{part}_sd": tuple(s.value if self._directed else 0.0 for s in self._moves[part]) for part in PARTS}

    # Called by the main thread

    def advance(self) -> bool:
        """Render the next picture and do a piece of a job. Returns whether there is more to do at once."""
        self._reload()
        busy = self._advance_job()
        self._stay_with_object()
        self._hold_start()
        self._turn_camera()
        return self._draw() or busy

    def _advance_job(self) -> bool:
        if not self._jobs:
            return False
        try:
            return next(self._jobs[0])
        except StopIteration:
            self._jobs.popleft()
        except Exception as error:
            self._jobs.popleft()
            if is_out_of_memory(error):
                self._notify("Not done", f"out of memory ({first_line(error)})")
            elif isinstance(error, (GrafError, OSError)):
                self._notify("Not done", str(error))
            else:
                raise
        return True

    def _reload(self) -> None:
        chosen = self._run.value
        source = next((path for path in self.models.sources if str(path) == chosen), self._source)
        try:
            model = self.models.get(source)
        except GrafError as error:
            self._notify("This model cannot be read", str(error))
            self._run.value = str(self._source)
            return
        if model is not self._view.model:
            other = source != self._source
            self._source, self._view = source, ObjectView(model)
            self._new_model(first=other)

    def _new_model(self, first: bool) -> None:
        """Fit the sliders to a new model, and to one of another source (`first`) also the camera."""
        self._drawn = None
        config = self._view.model.generator.config
        self.client.gui.set_panel_label(f"step {self._view.model.step:,}")
        if self._class.options != self._view.classes:  # another source, or a class that has another name now
            chosen, number = self._class.value, min(self._class_index(), self._view.n_classes - 1)
            self._class.options, self._class.visible = self._view.classes, self._view.n_classes > 1
            self._class.value = chosen if chosen in self._view.classes else self._view.classes[number]
        if first:
            choices = sides(config)
            self._found.options = [*self._view.model.found, BY_SEED]
            self._found.value, self._found.visible = self._found.options[0], bool(self._view.model.found)
            self._take_class()
            self._still.options = [str(side) for side in choices]
            self._still.value = str(resting_side(choices))
            self._jobs.append(self._reset_camera())
            self._cameras.value = False
            self._jobs.append(self._show_cameras())
        self._meshed = None
        self._jobs.append(self._show_mesh())

    def _find_directions(self) -> Job:
        view = self._view
        if self._directed:
            return
        self._status.content = "finding the principal directions"
        yield from _until_done(found := self.models.background.submit(lambda: view.model.directions))
        if view is self._view:
            self._directed = True
            for part, sliders in self._moves.items():
                for i, slider in enumerate(sliders):
                    slider.visible = i < len(found.result()[part].shares)

    def _stay_with_object(self) -> None:
        """Set the sliders of the directions back once there is another object, or another model."""
        chosen = self._view, self._found.value, self._class_index(), self._seed.value
        if chosen == self._moved_object:
            return
        self._directed, self._moved_object = self._directed and chosen[0] is self._moved_object[0], chosen
        for slider in (slider for sliders in self._moves.values() for slider in sliders):
            slider.value, slider.visible = 0.0, slider.visible or not self._directed

    def _turn_camera(self) -> None:
        now, before = time.monotonic(), self._turned_at
        self._turned_at = now if self._turn.value else None
        pose = self.state().pose_c2w
        if before is not None and self._turn.value and pose is not None:
            self._place(turned(pose, 360 * min(0.5, now - before) / SECONDS_PER_TURN))

    def _draw(self) -> bool:
        """Render the state, unless the window shows it already. Returns whether something moves."""
        state, view, rest = self.state(), self._view, self._side()
        started = time.monotonic()
        wanted = (state.object_of, state.kind, state.beside, state.within, state.aspect, _rounded(state.pose_c2w), rest)
        if state.aspect != self._aspect:  # the scene has the picture's field of view
            self._aspect, self.client.camera.fov = state.aspect, vertical_fov(view.data, state.aspect)
        shown, in_full = self._drawn or (None, False)
        moving = wanted != shown
        if not moving and (in_full or started - self._changed_at < STILL_AFTER_S):
            return False  # later it is rendered in full, unless it moves on
        if moving:
            self._changed_at = started
        if in_full:
            self._frames.clear()
        side = moving_side(sides(view.model.generator.config), rest, self._seconds_per_pixel) if moving else rest
        if self._mesh.value:
            picture = np.full((8, 8, 3), view.surround("colour"), np.uint8)
        else:
            try:
                picture = view.picture(state, side)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._drawn = wanted, True  # not tried again until something changes
                if not self._out_of_memory:  # told once, not for each picture of a turn
                    self._notify("Not shown", f"out of memory at {side} pixels ({first_line(error)}); choose fewer pixels")
                self._out_of_memory = True
                return False
            self._out_of_memory = False
            self._seconds_per_pixel = (time.monotonic() - started) / side**2
        self.client.scene.set_background_image(picture, format="jpeg", jpeg_quality=85 if moving else 95)
        self._frames.append(time.monotonic())
        self._drawn = wanted, not moving
        if not moving and state.pose_c2w is not None:
            self._place(view.pose(state))  # back from where the camera may not be
        if not moving and self._mesh.value and self._meshed != state.object_of:
            self._enqueue(self._show_mesh())
        self._show_status(state, side, moving)
        return True

    def _show_status(self, state: ViewState, side: int, moving: bool) -> None:
        seconds = self._frames[-1] - self._frames[0]
        pace = f"{(len(self._frames) - 1) / seconds:.0f} frames per second, " if moving and seconds > 0 else ""
        pixels = "mesh" if self._mesh.value else f"{side} pixels"
        self._status.content = f"{pace}{pixels}{'' if moving else ' at rest'}  \n{self._view.caption(state)}"

    def _side(self) -> int:
        """Side in pixels of a picture at rest."""
        choices = sides(self._view.model.generator.config)
        return next((side for side in choices if str(side) == self._still.value), resting_side(choices))

    def _place(self, pose_c2w: Tensor) -> None:
        """Move the browser's camera, which keeps looking at the origin."""
        position = pose_c2w[:, 3].double().numpy()
        if not np.allclose(position, self.client.camera.position, atol=1e-3):
            with self.client.atomic():
                self.client.camera.position = position
                self.client.camera.look_at = np.zeros(3)

    def _reset_camera(self) -> Job:
        camera, data = self.client.camera, self._view.data
        nearest, farthest = camera_distances(data)
        camera.max_orbit_distance, camera.min_orbit_distance = farthest, nearest
        self._left, self._reported = (np.array(camera.position), time.monotonic() + ANSWER_S), None
        self._place(side_pose(data))
        yield True

    def _hold_start(self) -> None:
        """Send the camera to the start again where a slow page, which has not moved it yet, reports its old position."""
        if self._left is None or self._reported is None:
            return
        (left, until), reported, self._reported = self._left, self._reported, None
        start = side_pose(self._view.data)
        if time.monotonic() < until and np.allclose(reported, left, atol=1e-3):
            self._place(start)
        elif not np.allclose(reported, start[:, 3], atol=1e-3):  # a late report of the start may be older than the reset
            self._left = None

    def _show_mesh(self) -> Job:
        self._drawn = None
        if not self._mesh.value:
            self.client.scene.remove_by_name("/mesh")
            self._meshed = None
            return
        view, state = self._view, self.state()
        if self._meshed == state.object_of:
            return
        self._meshed = state.object_of  # an object without a surface is not tried again
        self._status.content = "making the mesh"
        yield from _until_done(made := self.models.background.submit(view.mesh, state))
        if made.exception():  # the mesh in the window is another object's
            self.client.scene.remove_by_name("/mesh")
        self.client.scene.add_mesh_trimesh("/mesh", made.result())

    def _show_cameras(self) -> Job:
        if self._frustums is not None:
            self._frustums.remove()
            self._frustums = None
        if not self._cameras.value:
            return
        data = self._view.data
        yield from _until_done(views := self.models.training_views(self._source))
        self._frustums = self.client.scene.add_frame("/cameras", show_axes=False)
        for i, (pose_c2w, image) in enumerate(views.result()):
            self.client.scene.add_camera_frustum(
                f"/cameras/{i}",
                fov=vertical_fov(data, 1),
                aspect=1,
                scale=FRUSTUM * data.radius[1],
                thickness=FRUSTUM * data.radius[1] / 40,
                image=image,
                wxyz=SO3.from_matrix(pose_c2w[:, :3].double().numpy() @ OPENCV_AXES).wxyz,
                position=pose_c2w[:, 3].double().numpy(),
            )
        pose = self.state().pose_c2w
        if pose is not None and pose[:, 3].norm() < OUTSIDE * data.radius[1]:  # too near to see the cameras
            self._place(torch.cat([pose[:, :3], OUTSIDE * data.radius[1] * F.normalize(pose[:, 3:], dim=0)], dim=1))

    def _save(self, what: str) -> Job:
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
            yield from _until_done(made := self.models.background.submit(view.save_mesh, state))
            files = made.result()
        else:
            files = view.save_picture(state, self._side()) if what == "picture" else view.save_latents(state)
        log.info("%s", ", ".join(map(str, files)))
        self._drawn = None
        self._notify("Saved", ", ".join(map(str, files)))

    def _notify(self, title: str, body: str) -> None:
        self.client.add_notification(title, body, auto_close_seconds=10)


def _until_done(future: Future) -> Job:
    while not future.done():
        yield False


def pose_of(wxyz: np.ndarray, position: np.ndarray) -> Tensor | None:
    """pose_c2w (3, 4) of a viser camera; None if the arrays are not those of a camera."""
    if np.shape(wxyz) != (4,) or np.shape(position) != (3,):
        return None
    rotation = SO3(np.asarray(wxyz, dtype=float)).as_matrix() @ OPENCV_AXES
    return torch.tensor(np.column_stack([rotation, position]), dtype=torch.float32)


def _rounded(pose_c2w: Tensor | None) -> tuple:
    """The pose's numbers rounded to what is visible."""
    return () if pose_c2w is None else tuple(round(x, 4) for x in pose_c2w.flatten().tolist())
