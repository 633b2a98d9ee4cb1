"""The viewer's server and its browsers, with clients that draw nothing. Needs viser, an optional extra."""

import contextlib
import dataclasses
import http.client
import json
import socket
import threading
from pathlib import Path

from graf.camera import side_pose
from graf.errors import CheckpointError, GrafError
from graf.export.mesh import NoSurface
from graf.models.generator import Generator
from graf.reporting.viewer.object_view import Model, ObjectView

import numpy as np
import pytest
import torch
import trimesh

pytest.importorskip("viser")

from graf.reporting.viewer import browser as browser_module  # noqa: E402
from graf.reporting.viewer import models as models_module  # noqa: E402
from graf.reporting.viewer import server  # noqa: E402
from graf.reporting.viewer.access import Access  # noqa: E402
from graf.reporting.viewer.browser import pose_of  # noqa: E402
from graf.reporting.viewer.models import Models  # noqa: E402
from graf.reporting.viewer.server import Viewer  # noqa: E402
from viewer_client import Window, camera  # noqa: E402


@pytest.fixture
def model(refine, tmp_path) -> Model:
    torch.manual_seed(0)
    return Model(tmp_path / "model.pt", Generator(refine()).eval(), 7, tmp_path / "viewer")


@pytest.fixture
def viewer(model, tmp_path):
    """A viewer whose work is done in a thread, as `serve` does it in the program's own."""
    viewer, ended = Viewer(Models([tmp_path], lambda source: model), Access("127.0.0.1"), 0), threading.Event()

    def work() -> None:
        while not ended.is_set():
            if not viewer.advance():
                viewer.wake.wait(0.02)
                viewer.wake.clear()

    thread = threading.Thread(target=work)
    thread.start()
    yield viewer
    ended.set()
    thread.join()
    viewer.stop()


def opened(viewer: Viewer) -> Window:
    """A window that shows its first object in full."""
    window = Window(viewer.port)
    window.look(0)
    window.wait(lambda: window.shows_all_pixels)
    return window


def answer(viewer: Viewer, host: str, origin: str | None) -> int:
    """The HTTP status with which a websocket's handshake is answered: 101 where it is opened."""
    version = server.viser.__version__
    headers = {"Host": host, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    headers |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": f"viser-v{version}"}
    connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=60)
    connection.request("GET", "/", headers=headers | ({"Origin": origin} if origin else {}))
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_page_from_elsewhere_cannot_connect(viewer, caplog):
    here = f"127.0.0.1:{viewer.port}"
    assert answer(viewer, here, "http://evil.example") == 403
    assert answer(viewer, here, f"http://localhost:{viewer.port}") == 403  # another name is another page to a browser
    assert answer(viewer, here, "null") == 403  # of a file, or of a frame in a sandbox
    assert "http://evil.example" in caplog.text
    assert not viewer.browsers
    assert answer(viewer, here, f"http://{here}") == 101
    assert answer(viewer, here, None) == 101  # no browser: those always say which page it is


def test_a_page_whose_name_was_made_to_lead_here_cannot_connect(viewer):
    """DNS rebinding: page and viewer have one name then, so that the page is not foreign to it."""
    host = f"evil.example:{viewer.port}"
    assert answer(viewer, host, f"http://{host}") == 403
    host = f"localhost:{viewer.port}"
    assert answer(viewer, host, f"http://{host}") == 101


def test_a_viser_that_opens_its_port_in_another_way_is_not_served(model, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "Server", lambda **settings: None)
    with pytest.raises(GrafError, match="any web page could use it; install another one"):
        Viewer(Models([tmp_path], lambda source: model), Access("127.0.0.1"), 0)


@pytest.mark.parametrize("host", ["203.0.113.1", "a..b"])  # kept for documentation by RFC 5737; no name
def test_a_host_that_is_not_of_this_machine_is_refused(model, tmp_path, host):
    with pytest.raises(GrafError, match=f"--host {host}: cannot be listened on .*give an address of this machine"):
        Viewer(Models([tmp_path], lambda source: model), Access(host), 0)


def test_a_busy_port_gives_way_to_the_next_one_and_the_last_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        assert server.free_port("127.0.0.1", 0) == 0
        assert port < server.free_port("127.0.0.1", port)
    with socket.socket() as last:
        with contextlib.suppress(OSError):  # another program has it
            last.bind(("127.0.0.1", 65535))
        last.listen()
        with pytest.raises(GrafError, match="--port 65535: no free port from there to 65535"):
            server.free_port("127.0.0.1", 65535)


def test_each_browser_has_a_state_of_its_own(viewer):
    with opened(viewer) as one, opened(viewer):
        one.set("seed", 5)
        one.wait(lambda: any(browser.state().seed == 5 for browser in viewer.browsers.values()))
        assert sorted(browser.state().seed for browser in viewer.browsers.values()) == [0, 5]
        seen = one.pictures
        one.look(90)
        one.wait(lambda: one.pictures > seen)


def test_an_object_of_a_file_opens_first_with_its_class_and_the_seeds_can_be_chosen_instead(viewer, model, monkeypatch):
    latents = torch.ones(model.generator.config.z_dist.dim)
    with_two = dataclasses.replace(model, generator=Generator(model.generator.config, n_classes=2).eval())
    with_two.generator.class_names = "buses", "cars"
    found = {"car/latents.json": (latents, torch.tensor(1))}
    monkeypatch.setattr(viewer.models, "_load", lambda _: dataclasses.replace(with_two, found=found))
    viewer.models._loaded.clear()
    viewer.models._seen.clear()
    with opened(viewer) as window:
        (browser,) = viewer.browsers.values()
        assert (browser.state().found, browser.state().class_index) == ("car/latents.json", 1)
        window.set("object", browser_module.BY_SEED)
        window.wait(lambda: browser.state().found == browser_module.BY_SEED)
        assert browser._class.options == ("buses", "cars") and browser._class.visible
        window.set("class", "buses")
        window.wait(lambda: browser.state().class_index == 0)


def test_a_class_that_is_renamed_stays_the_one_that_is_chosen(viewer, model, monkeypatch):
    def of_classes(*names):
        twin = Generator(model.generator.config, n_classes=len(names)).eval()
        twin.class_names = names
        return dataclasses.replace(model, generator=twin)

    shown = of_classes("buses", "cars", "vans")
    monkeypatch.setattr(viewer.models, "get", lambda _: shown)
    with opened(viewer) as window:
        (browser,) = viewer.browsers.values()
        window.set("class", "vans")
        window.wait(lambda: browser.state().class_index == 2)
        shown = of_classes("buses", "cars", "lorries")
        viewer.wake.set()
        window.wait(lambda: browser._class.value == "lorries")
        assert browser.state().class_index == 2
        shown = of_classes("lorries", "buses", "cars")
        viewer.wake.set()
        window.wait(lambda: browser._class.options == ("lorries", "buses", "cars"))
        assert browser.state().class_index == 0
        window.set("class", "cars")
        window.wait(lambda: browser.state().class_index == 2)
        shown = of_classes("cars", "cars")
        viewer.wake.set()
        window.wait(lambda: browser._class.options == ("class 0", "class 1"))
        assert browser.state().class_index == 1


def test_a_slow_page_that_reports_its_old_camera_once_more_is_sent_to_the_start_again(viewer, model, monkeypatch):
    monkeypatch.setattr(browser_module, "ANSWER_S", np.inf)
    start = side_pose(model.generator.config.data)[:, 3].double().numpy()

    def sent(window):
        told = [message for message in list(window.messages) if message["type"] == "SetCameraPositionMessage"]
        return sum(np.allclose(message["position"], start, atol=1e-5) for message in told)

    with Window(viewer.port) as window:
        window.look(45)
        window.wait(lambda: sent(window) == 1)
        browser = next(iter(viewer.browsers.values()))
        browser._reported = start  # the first report, read only when the start stood in its place
        viewer.wake.set()
        window.wait(lambda: browser._reported is None)
        window.look(45)
        window.wait(lambda: sent(window) == 2)
        window.look(90)  # by the person before it
        window.set("seed", 5)
        window.wait(lambda: window.says("azimuth 90"))
        assert sent(window) == 2


def test_a_closed_tab_is_forgotten(viewer):
    with opened(viewer) as other:
        with opened(viewer) as window:
            window.wait(lambda: len(viewer.browsers) == 2)
        other.wait(lambda: len(viewer.browsers) == 1)
        seen = other.pictures
        other.look(45)
        other.wait(lambda: other.pictures > seen)


GARBAGE = {
    "bytes": b"\xff\x00garbage",
    "text": "hello",
    "unknown message": {"type": "NoSuchMessage"},
    "camera nowhere": camera((1280, 800), [float("nan")] * 4, [float("nan")] * 3),
    "camera without a rotation": camera((1280, 800), [0.0] * 4, [0.0] * 3),
    "window of no size": camera((0, 0), [1.0, 0.0, 0.0, 0.0], [3.6, 0.0, 0.0]),
    "half a camera": {"type": "ViewerCameraMessage", "wxyz": "abc"},
    "request for a public address": {"type": "ShareUrlRequest"},
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_ends_no_other_browsers_view(viewer, garbage):
    with opened(viewer) as other:
        with opened(viewer) as bad:
            bad.send(garbage)
        seen = other.pictures
        other.look(45)
        other.wait(lambda: other.pictures > seen)
    assert viewer._server._share_tunnel is None


@pytest.mark.parametrize("label", ["seed", "class"])
@pytest.mark.parametrize("value", [-5, 10**12, "many", [1, 2], None])
def test_a_slider_that_sends_nonsense_ends_no_view(viewer, value, label):
    with opened(viewer) as other:
        with opened(viewer) as bad:
            bad.set(label, value)
            bad.look(30)
        seen = other.pictures
        other.look(45)
        other.wait(lambda: other.pictures > seen)


def test_sliders_move_the_object_along_directions_and_go_back_with_another_one(viewer, model):
    with opened(viewer) as window:
        browser = next(iter(viewer.browsers.values()))
        window.set("shape 1", 2.0)
        window.wait(lambda: browser.state().shape_sd == (2.0, 0.0, 0.0, 0.0, 0.0))
        assert set(browser.state().appearance_sd) == {0.0}
        window.set("save latents", True)
        window.wait(lambda: window.says("latents_0001.json"))
        assert json.loads((model.out / "latents_0001.json").read_text())["shape_sd"] == [2.0, 0.0, 0.0, 0.0, 0.0]
        window.set("appearance 4", -1.0)
        window.wait(lambda: browser.state().appearance_sd[3] == -1.0)
        window.set("seed", 5)
        window.wait(lambda: browser.state().seed == 5 and not any(browser.state().shape_sd + browser.state().appearance_sd))


def test_sliders_of_directions_go_back_when_a_found_object_gives_way_to_the_seeds(viewer, model, monkeypatch):
    """Seed and class stay as they are."""
    found = {"car/latents.json": (torch.ones(model.generator.config.z_dist.dim), torch.tensor(0))}
    monkeypatch.setattr(viewer.models, "_load", lambda _: dataclasses.replace(model, found=found))
    viewer.models._loaded.clear()
    viewer.models._seen.clear()
    with opened(viewer) as window:
        (browser,) = viewer.browsers.values()
        window.set("shape 1", 2.0)
        window.wait(lambda: browser.state().shape_sd[0] == 2.0)
        window.set("object", browser_module.BY_SEED)
        window.wait(lambda: browser.state().found == browser_module.BY_SEED and not any(browser.state().shape_sd))


def test_sliders_without_a_direction_vanish(viewer):
    """The smoke config has 4 latents of each part, but 5 sliders."""
    with opened(viewer) as window:
        browser = next(iter(viewer.browsers.values()))
        window.set("shape 5", 1.0)
        for part in ("shape", "appearance"):
            window.wait(lambda part=part: [slider.visible for slider in browser._moves[part]] == [True] * 4 + [False])


def test_what_is_saved_is_told_and_replaces_nothing(viewer, model):
    with opened(viewer) as window:
        for name in ("latents_0001.json", "latents_0002.json"):
            window.set("save latents", True)
            window.wait(lambda name=name: window.says(str(model.out / name)))
    assert len(list(model.out.iterdir())) == 2


def test_an_error_is_told_in_the_browser(viewer, monkeypatch):
    def none_there(config):
        raise GrafError("photos: no such folder")

    monkeypatch.setattr(models_module, "training_views", none_there)
    with opened(viewer) as window:
        window.set("training cameras", True)
        window.wait(lambda: window.says("photos: no such folder"))


def test_the_mesh_of_another_object_does_not_stay_where_there_is_none(viewer, monkeypatch):
    def mesh(view, state):
        if state.seed == 5:
            raise NoSurface("mesh: no surface")
        return trimesh.creation.box()

    monkeypatch.setattr(ObjectView, "mesh", mesh)
    with opened(viewer) as window:
        window.set("mesh", True)
        window.wait(lambda: window.says("GlbMessage"))
        shown = len(window.messages)
        window.set("seed", 5)
        window.wait(lambda: window.says("mesh: no surface"))
        removals = [message for message in window.messages[shown:] if message["type"] == "RemoveSceneNodeMessage"]
        assert [message["name"] for message in removals] == ["/mesh"]


def test_an_error_of_ours_is_told_in_the_page_before_it_is_dropped(viewer, monkeypatch, caplog):
    def fail(*_):
        raise ValueError("a fault of ours")

    with opened(viewer) as window:
        monkeypatch.setattr(ObjectView, "picture", fail)
        window.look(45)
        window.wait(lambda: window.says("ValueError: a fault of ours; load this page again"))
        window.wait(lambda: not viewer.browsers)
    assert "a browser is not served any more (ValueError: a fault of ours)" in caplog.text


def test_a_browser_goes_on_after_out_of_memory(viewer, monkeypatch):
    def full(*_):
        raise MemoryError

    with opened(viewer) as window:
        with monkeypatch.context() as patch:
            patch.setattr(ObjectView, "picture", full)
            patch.setattr(ObjectView, "mesh", full)
            window.look(45)
            window.wait(lambda: window.says("out of memory at "))
            window.set("mesh", True)
            window.wait(lambda: window.says("out of memory (MemoryError)"))
            window.set("mesh", False)
            window.wait(lambda: not next(iter(viewer.browsers.values()))._mesh.value)
        seen = window.pictures
        window.look(90)
        window.wait(lambda: window.pictures > seen)


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]"), ("gpu-box", "gpu-box")],
)
def test_the_address_is_one_that_a_browser_opens(viewer, monkeypatch, caplog, host, address):
    monkeypatch.setattr(viewer, "host", host)
    with caplog.at_level("INFO", logger="graf"):
        viewer.log_address()
    assert f"http://{address}:{viewer.port} in a browser" in caplog.text


def test_training_cameras_come_and_go(viewer, labels, monkeypatch):
    photograph = np.zeros((4, 4, 3), np.uint8)
    monkeypatch.setattr(models_module, "training_views", lambda config: [(pose, photograph) for pose in labels.pose_c2w])
    with opened(viewer) as window:
        window.set("training cameras", True)
        window.wait(lambda: window.says("/cameras/3"))
        window.set("training cameras", False)
        window.wait(lambda: window.says("RemoveSceneNodeMessage") and window.says("'/cameras'"))


def test_a_model_is_read_again_when_its_checkpoint_changes(tmp_path, caplog):
    """And the one before is kept where the new one cannot be read."""
    file, seconds, steps = tmp_path / "model.pt", iter([0.0, 0.5, 2.0, 4.0, 6.0]), iter([1, 2])

    def load(source):
        if not file.exists() or file.read_text() == "damaged":
            raise CheckpointError("model.pt: damaged")
        return Model(file, None, next(steps), tmp_path)

    models = Models([tmp_path], load, lambda: next(seconds))
    file.write_text("a")
    assert models.get(tmp_path).step == 1
    file.write_text("longer")
    assert models.get(tmp_path).step == 1  # it was looked at half a second before
    assert models.get(tmp_path).step == 2
    file.write_text("damaged")
    assert models.get(tmp_path).step == 2
    assert "model.pt: damaged; the viewer goes on with step 2" in caplog.text
    file.unlink()
    assert models.get(tmp_path).step == 2


def test_a_model_that_cannot_be_read_is_told_before_anything_is_served(tmp_path):
    def load(source):
        raise CheckpointError("no such checkpoint")

    with pytest.raises(CheckpointError):
        Viewer(Models([tmp_path], load), Access("127.0.0.1"), 0)


def test_models_before_the_first_that_can_be_read_are_left_out(model, caplog):
    def load(source):
        if source.name != "car":
            raise CheckpointError(f"{source.name}/model.pt: no generator")
        return model

    models = Models([Path("pose"), Path("damaged"), Path("car"), Path("later")], load)
    models.load_first()
    assert models.sources == [Path("car"), Path("later")]
    assert "left out: pose/model.pt: no generator" in caplog.text and "left out: damaged/model.pt" in caplog.text
    with pytest.raises(CheckpointError, match="later/model.pt: no generator"):
        Models([Path("pose"), Path("later")], load).load_first()


def test_visers_cameras_look_along_z_and_ours_along_minus_z():
    assert pose_of([1.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0]).tolist() == [[1, 0, 0, 1], [0, -1, 0, 2], [0, 0, -1, 3]]
    assert pose_of([1.0], [1.0]) is None
