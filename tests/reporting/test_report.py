"""The report: a story in one file, which holds every picture, asks no other machine, and runs nothing that a file says."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path, PureWindowsPath
from urllib.parse import unquote

from graf.commands.jobs import JOBS
from graf.errors import GrafError
from graf.pictures.outputs import write_video
from graf.reporting import pages, report, status_page
from graf.reporting.mesh_view import SCRIPT, read_mesh
from graf.reporting.report import write_report
from graf.reporting.run_status import read_status

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
import trimesh
from PIL import EpsImagePlugin, Image
from test_curves import LITE, result, write_rows

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge")
VOID = {"meta", "link", "img", "br", "hr", "input"}
EVIL = "<script>document.title = 'evil'</script>"


class Page(HTMLParser):
    """What a page consists of; each tag that opens must close."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.media, self.links, self.captions = [], [], [], [], []
        self.pieces = []
        self.feed(text)
        self.close()
        self.text = " ".join(" ".join(self.pieces).split())
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("img", "video"):
            self.media.append((tag, dict(attributes)))
        if tag == "a":
            self.links.append(dict(attributes)["href"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.pieces.append(data)
        if self.open[-2:] == ["figcaption", "code"]:
            self.captions.append(data)


def content(attributes):
    """Type and bytes of a data URI."""
    media, data = re.fullmatch(r"data:([a-z]+/[a-z0-9]+);base64,(.*)", attributes["src"], re.DOTALL).groups()
    return media, base64.b64decode(data, validate=True)


def put_png(path, level=0, side=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    imageio.imwrite(path, np.full((side, side, 3), level, dtype=np.uint8))
    return path


def page_of(run_dir, out=None):
    file = write_report(run_dir, out or run_dir / "report.html")
    return Page(file.read_text(encoding="utf-8"))


def make_run(run):
    """A run with two evaluations, three steps of samples, and a config that means no good."""
    for step, level in ((9, 90), (20, 120), (100, 250)):
        for kind in ("rgb", "depth"):
            put_png(run / "samples" / f"{step:08d}_{kind}.png", level)
    for step in (20, 100):
        put_png(run / "eval" / f"step_{step:08d}" / "sweep_rgb.png", step)
    newest = run / "eval" / "step_00000100"
    frames = torch.zeros(4, 3, 16, 16, dtype=torch.uint8)
    write_video(newest / "rotation_rgb.mp4", frames)
    write_video(newest / "rotation_rgb.gif", frames)
    write_video(newest / "lone.gif", frames)
    put_png(newest / "inversion" / "fit.png")
    (newest / "mesh").mkdir()
    (newest / "mesh" / "object 1.ply").write_bytes(bytes(500))
    (newest / ".sweep.7.partial.png").write_bytes(b"half")
    (run / "config.yaml").write_text(f"expname: {EVIL}\ndata:\n  imsize: 16\n", encoding="utf-8")
    return run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "chairs & <b>tables")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The same with numbers: an evaluation with a warning, curves under two protocols, a mesh. Its page is written once."""
    run = make_run(tmp_path_factory.mktemp("runs") / "chairs & <b>tables")
    newest = run / "eval" / "step_00000100"
    content = result(kid=0.123, warnings=[f"FID of few {EVIL}"]) | {
        "step": 100,
        "sample_seed": 7,
        "variety": {"share_of_data": 0.4375},
        "consistency": {"depth_warp_error_nerf": 1.5, "pairs": 64, "angle_deg": 15.0, "popping": None},
    }
    (newest / "metrics.json").write_text(json.dumps(content))
    put_png(newest / "neighbours.png", 30)
    (newest / "neighbours.json").write_text(json.dumps({"share_nearer": 0.25, "n_samples": 64}))
    ball = trimesh.creation.icosphere(1)
    ball.visual.vertex_colors = [[40 + 2 * i, 90, 90, 255] for i in range(len(ball.vertices))]
    ball.export(newest / "mesh" / "object_00.ply")
    rows = [{"step": i, "loss_d": 1.0 / i} for i in (1, 2, 3)]
    kids = [{"step": step, "evaluation": result(kid=kid)} for step, kid in ((1, 0.5), (3, 0.25))]
    write_rows(run, *rows, {"step": 2, "evaluation": result(n_fake=77)}, *kids, "damaged")
    times = ({"time": 1000.0 + 30 * i, "step": i, "phase": "train", "host_bytes": 2**30} for i in range(4))
    (run / "memory.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times))
    return run, page_of(run)


def test_every_picture_and_video_is_in_the_page_byte_for_byte(measured):
    run, page = measured
    files = {name: (run / name).read_bytes() for name in page.captions}
    shown = [content(attributes) for _, attributes in page.media]
    assert [data for _, data in shown] == list(files.values())
    expected = {path for path in run.rglob("*.*") if path.suffix in (".png", ".mp4", ".gif") and path.name[0] != "."}
    expected -= {run / "eval" / "step_00000100" / "rotation_rgb.gif"}  # an mp4 as well
    assert len(page.captions) == len(set(page.captions))
    assert {run / name for name in page.captions} == expected
    assert {path.name for path in expected if path.parent.name == "curves"} > {"losses.png", "kid.png", "memory.png"}
    types = {".png": "image/png", ".gif": "image/gif", ".mp4": "video/mp4"}
    assert [media for media, _ in shown] == [types[name[-4:]] for name in page.captions]
    for tag, attributes in page.media:
        assert tag == attributes["src"][5:].partition("/")[0].replace("image", "img")
        assert tag == "img" or {"controls", "loop", "muted"} <= set(attributes)
        assert tag == "img" or content({"src": attributes["poster"]})[0] == "image/png"


def test_the_page_tells_a_story_and_folds_the_terms_away(measured):
    run, page = measured
    text = (run / "report.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        "How it learned",
        "Is it 3D?",
        "What else it draws",
        "What it cannot do",
        "Terms, numbers and files",
    ]
    parts = re.split(r"<h2>.*?</h2>", text)
    shown = [re.findall(r"<figcaption>.*?<code>(.*?)</code>", part) for part in parts]
    newest = "eval/step_00000100"
    assert shown[:5] == [
        [f"{newest}/sweep_rgb.png"],
        [*(f"samples/{step:08d}_rgb.png" for step in (9, 20, 100)), "curves/kid.png", "curves/losses.png"],
        [f"{newest}/rotation_rgb.mp4"],
        [f"{newest}/inversion/fit.png", f"{newest}/lone.gif"],
        [f"{newest}/neighbours.png"],
    ]
    assert "<details" not in "".join(parts[:5])
    assert re.findall(r"<details.*?><summary>(.*?)</summary>", parts[5]) == [
        "measured in step_00000100",
        "all terms",
        "measured in training, step 2",
        "all terms",
        "measured in training, step 3",
        "all terms",
        "all curves of training",
        "memory",
        "samples of 3 steps of training",
        "step_00000020",
        "config.yaml",
    ]
    assert "<details open" not in text and text.count("<h1>") == 1


def test_what_the_numbers_say_comes_before_the_numbers(measured):
    run, page = measured
    before, _, terms = page.text.partition("Terms, numbers and files")
    for part in (
        "KID 0.123 FID 1.23 steps 3 run time 90 s pixels 16 x 16",
        "Measured at step 100 over 30 generated and 20 real images at 16 pixels",
        "metrics.jsonl: 1 lines cannot be read",
        "KID went from 0.5 at step 1 to 0.25 at step 3, the lowest so far.",
        "Views agree: a point of the surface, carried by its depth to a camera 15 degrees further on, meets a colour that "
        "differs by 1.5 of 255 steps on average (64 objects).",
        "The surface of one object: 80 faces.",
        "Silhouettes vary 44% as much as those of the data.",
        f"FID of few {EVIL}.",
        "25% of 64 samples are nearer to a training image",
    ):
        assert part in before, part
    assert "{" not in before and "None" not in page.text and "nan" not in before
    assert f"KID ({LITE}) 0.123" in terms
    assert "20 real and 77 generated images at 16 px" in terms
    assert "sample_seed 7" in terms and "imsize: 16" in terms
    assert "eval/step_00000100/mesh/object 1.ply (0.00 MB)" in terms


def test_a_page_that_is_given_away_alone_has_no_link_that_does_not_say_where_it_leads(measured):
    run, page = measured
    text = (run / "report.html").read_text(encoding="utf-8")
    story, _, terms = text.partition("<h2>Terms, numbers and files</h2>")
    assert "<a " not in story
    assert "The surface of one object: 80 faces. In the run's folder: eval/step_00000100/mesh/object_00.ply<" in story
    lists = terms.split("<ul>\n<li><a ")[:-1]
    assert lists and all(before.endswith("<p>In the run's folder, not in this page:</p>\n") for before in lists)


def test_nothing_that_a_file_says_is_run_or_fetched(run):
    evil_name = run / "samples" / "00000100_'\"><img src=x onerror=alert(1)>.png"
    put_png(evil_name)
    page = page_of(run)
    names = {tag for tag, _ in page.tags}
    assert not names & {"iframe", "object", "embed", "base", "form", "b"}
    assert [tag for tag, _ in page.tags].count("script") == 1  # ours, and no other may run
    text = (run / "report.html").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"<script>{SCRIPT}</script>" in text and f"script-src 'sha256-{digest}'" in text
    assert "://" not in text
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        assert all(attributes[name].startswith("data:") for name in ("src", "srcset", "poster") if name in attributes)
    assert f"samples/{evil_name.name}" in page.captions
    assert EVIL in page.text


def test_what_is_large_is_linked_and_said_to_be(run, monkeypatch):
    monkeypatch.setattr(pages, "MB", 1000)  # a file may have 8 kB, the page 64 kB
    big = run / "eval" / "step_00000100" / "a #1 50%.png"
    big.write_bytes(bytes(8001))
    for i in range(9):
        (run / "samples" / f"{i + 1:08d}_rgb.png").write_bytes(bytes(7900))
    page = page_of(run, run / "pages" / "report.html")
    assert "../eval/step_00000100/a%20%231%2050%25.png" in page.links
    assert "a #1 50%.png (8.00 MB): linked, not embedded (over 8 MB)" in page.text
    assert "_rgb.png (7.90 MB): linked, not embedded (the page holds its 64 MB already)" in page.text
    assert sum(len(content(attributes)[1]) for _, attributes in page.media) <= 64_000
    for link in page.links:
        assert (run / "pages" / unquote(link)).is_file()
    assert not [name for name in page.captions if "a #1" in name]


def test_earlier_evaluations_take_no_room_from_what_is_new(run, monkeypatch):
    monkeypatch.setattr(pages, "MB", 1000)  # the page may have 64 kB
    for i in range(9):
        (run / "eval" / "step_00000020" / f"{i}.png").write_bytes(bytes(7900))
    for name in ("samples/00000100_rgb.png", "videos/00000100_rotation.png"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(bytes(7900))
    page = page_of(run)
    assert {"samples/00000100_rgb.png", "samples/00000009_rgb.png", "videos/00000100_rotation.png"} <= set(page.captions)
    assert "eval/step_00000020/8.png (7.90 MB): linked, not embedded (the page holds its 64 MB already)" in page.text


def test_results_elsewhere_come_first(run, tmp_path):
    out = tmp_path / "made just now"
    put_png(out / "sweep_rgb.png", 33)
    page = Page(write_report(run, run / "report.html", out).read_text(encoding="utf-8"))
    assert page.captions[0] == (out / "sweep_rgb.png").as_posix()
    assert content(page.media[0][1])[1] == (out / "sweep_rgb.png").read_bytes()
    newest = run / "eval" / "step_00000020"
    page = Page(write_report(run, run / "report.html", newest).read_text(encoding="utf-8"))
    assert page.captions[0] == "eval/step_00000020/sweep_rgb.png" and page.captions.count(page.captions[0]) == 1
    alone = tmp_path / "eval_of_a_file_from_elsewhere"
    assert Page(write_report(alone, alone / "report.html", out).read_text(encoding="utf-8")).captions


def test_pictures_made_later_leave_the_numbers_of_the_newest_measurement(run, tmp_path):
    (run / "eval" / "step_00000020" / "metrics.json").write_text(json.dumps(result(kid=0.25) | {"step": 20}))
    put_png(tmp_path / "later" / "sweep_rgb.png", 33)
    text = write_report(run, run / "report.html", tmp_path / "later").read_text(encoding="utf-8")
    assert "Measured at step 20 " in text and "has not been measured: eval.py --run" not in text.partition("Is it 3D?")[0]
    write_rows(run, {"step": 60, "evaluation": result(kid=0.5)})  # of training, which has gone on
    assert "Measured at step 60 " in write_report(run, run / "report.html", tmp_path / "later").read_text(encoding="utf-8")


def test_numbers_of_an_earlier_evaluation_tell_their_step(run, tmp_path):
    found = {"consistency": {"depth_warp_error_nerf": 5.0}, "sweep": {"low_resolution_error": 0.1}, "haze": {"haze": 1.0}}
    (run / "eval" / "step_00000100" / "metrics.json").write_text(json.dumps(found | {"step": 100}))
    now = Page(write_report(run, run / "report.html").read_text(encoding="utf-8")).text
    put_png(tmp_path / "later" / "sweep_rgb.png", 33)
    later = Page(write_report(run, run / "report.html", tmp_path / "later").read_text(encoding="utf-8")).text
    for sentence in ("Views agree", "Scaled down", "Free space"):
        assert f"At step 100: {sentence}" in later and sentence in now
    assert "At step 100: " not in now and "At step 100: Training saw" not in later


@pytest.mark.parametrize("error", [SyntaxError("broken PNG file (chunk b'IDAT')"), Image.DecompressionBombError("too large")])
def test_a_damaged_picture_does_not_end_the_page(run, monkeypatch, error):
    def damaged(*_, **__):
        raise error

    monkeypatch.setattr(pages.Image, "open", damaged)
    assert "eval/step_00000100/sweep_rgb.png" in page_of(run).captions


def test_a_program_in_postscript_named_like_a_picture_is_not_run(run, monkeypatch):
    ran = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: ran.append(1) or Image.new("RGB", (4, 4)).im)
    file = run / "eval" / "step_00000100" / "sweep_rgb.png"
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\nshowpage\n%%EOF\n")
    assert "eval/step_00000100/sweep_rgb.png" in page_of(run).captions
    assert not ran


def test_links_are_of_the_web_on_windows_too(monkeypatch):
    monkeypatch.setattr(pages, "Path", PureWindowsPath)
    monkeypatch.setattr(pages.os.path, "relpath", lambda *_: "..\\eval\\a #1.png")
    assert pages.Embedder(Path("run"), Path("run/pages")).address(Path("run/eval/a #1.png")) == "../eval/a%20%231.png"


def test_a_link_to_another_drive_is_a_whole_one(monkeypatch, tmp_path):
    def relpath(*_):
        raise ValueError("path is on mount 'C:', start on mount 'D:'")

    monkeypatch.setattr(pages.os.path, "relpath", relpath)
    file = tmp_path.resolve() / "a #1.png"
    assert pages.Embedder(tmp_path, tmp_path).address(file) == f"file://{file.parent.as_posix()}/a%20%231.png"


def test_a_page_in_a_folder_of_its_own_still_shows_the_newest_results(measured, tmp_path):
    """Neither an earlier page nor its curves are results. eval.py knows the curves by their names."""
    run, beside = measured
    plain = tmp_path / "plain"
    pages = [write_report(run, plain / "report.html", plain).read_text(encoding="utf-8") for _ in range(3)]
    assert pages[0] == pages[1] == pages[2]
    assert [content(attributes) for _, attributes in Page(pages[2]).media] == [content(shown) for _, shown in beside.media]
    (names,) = (job.files for job in JOBS if job.name == "report")
    assert all(re.fullmatch(names, f"curves/{curve.name}") for curve in (plain / "curves").iterdir())
    results = put_png(plain / "sweep_rgb.png", 33)
    page = Page(write_report(run, plain / "report.html", plain).read_text(encoding="utf-8"))
    assert content(page.media[0][1])[1] == results.read_bytes()


def test_a_page_of_others_is_set_aside(run, caplog):
    page = run / "report.html"
    page.write_text("mine")
    for _ in range(2):
        write_report(run, page)
    assert (run / "report_1.html").read_text() == "mine" and not (run / "report_2.html").exists()
    assert [text for text in caplog.messages if "report" in text] == [
        f"{page}: not a page of this program; it is now report_1.html"
    ]


def test_each_fit_of_a_photograph_stands_with_its_psnr(run):
    folder = run / "eval" / "step_00000100" / "inversion"
    for name, psnr in (("dark", [2.54]), ("exact", [None]), ("both", [21.04, 11.9]), ("torn", ["x"])):
        put_png(folder / name / "fit.png")
        for other in ("sweep.png", "more.png", "another.png"):
            put_png(folder / name / other)
        rows = [{"photograph": "a.png", "psnr_db": value} for value in psnr]
        (folder / name / "latents.json").write_text(json.dumps({"photographs": rows}))
    page = page_of(run)  # with more files than a folder that is only linked, in folders of few
    for part in (
        "PSNR 2.5 dB: the photograph was not found. eval/step_00000100/inversion/dark/fit.png",
        "Equal to the photograph. eval/step_00000100/inversion/exact/fit.png",
        "PSNR 21.0 and 11.9 dB: 1 of 2 photographs were not found. eval/step_00000100/inversion/both/fit.png",
    ):
        assert part in page.text, part
    assert "eval/step_00000100/inversion/torn/fit.png" in page.captions


def test_links_out_of_the_run_are_refused(run, tmp_path, caplog):
    """In a run that somebody else made, a link may lead to any file of whoever writes the page."""
    secret = tmp_path / "private"
    newest = run / "eval" / "step_00000100"
    put_png(secret / "photo.png", 66)
    for name in ("text.json", "config.yaml", "key.png"):
        (secret / name).write_text('{"password": "hunter2"}')
    (newest / "photo.png").symlink_to(secret / "photo.png")
    (newest / "key.png").symlink_to("../../../private/key.png")
    (newest / "text.json").symlink_to(secret / "text.json")
    (newest / "metrics.json").symlink_to(secret / "text.json")
    (newest / "mesh" / "object_00.ply").symlink_to(secret / "key.png")
    (run / "config.yaml").unlink()
    (run / "config.yaml").symlink_to(secret / "config.yaml")
    (run / "memory_report.png").symlink_to(secret / "photo.png")
    (run / "eval" / "step_00000300").symlink_to(secret, target_is_directory=True)
    (run / "videos").symlink_to(secret, target_is_directory=True)
    (newest / "again.png").symlink_to("sweep_rgb.png")
    page = page_of(run)
    assert "eval/step_00000100/again.png" in page.captions
    assert page.captions[0] == "eval/step_00000100/sweep_rgb.png"  # of the newest evaluation that is the run's
    assert (secret / "photo.png").read_bytes() not in [content(attributes)[1] for _, attributes in page.media]
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "hunter2" not in text and base64.b64encode((secret / "key.png").read_bytes()).decode() not in text
    assert not [name for name in (*page.captions, *page.links) if "photo" in name or "key" in name or "text.json" in name]
    for name in ("photo.png", "key.png", "text.json", "config.yaml", "memory_report.png", "object_00.ply"):
        told = [record.getMessage() for record in caplog.records if name in record.getMessage()]
        assert told and all(str(secret.resolve()) in message for message in told)
    assert f"{newest / 'photo.png'}: not in the page, as it leads out of the run, to {secret / 'photo.png'}" in caplog.text


def test_links_that_lead_round_are_left_out(run):
    newest = run / "eval" / "step_00000100"
    for path in (newest / "mesh" / "object_00.ply", newest / "round.png", run / "samples" / "00000100_rgb.png"):
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(path.name)
    page = page_of(run)
    assert not [name for name in page.captions if "round" in name or "00000100_rgb" in name]
    assert status_page.html(read_status(run))


def test_rows_of_memory_that_lie_elsewhere_are_not_drawn(run, tmp_path, caplog):
    (tmp_path / "memory.jsonl").write_text('{"time": 1.0, "step": 1, "phase": "train", "host_bytes": 5}\n' * 2)
    (run / "memory.jsonl").unlink(missing_ok=True)
    (run / "memory.jsonl").symlink_to(tmp_path / "memory.jsonl")
    assert not [name for name in page_of(run).captions if "memory.png" in name]
    assert f"memory.jsonl: not in the page, as it leads out of the run, to {tmp_path / 'memory.jsonl'}" in caplog.text


def test_a_run_or_its_results_may_lie_behind_a_link(run, tmp_path):
    (tmp_path / "link").symlink_to(run, target_is_directory=True)
    out = put_png(tmp_path / "disk" / "sweep_rgb.png", 33).parent
    (tmp_path / "out").symlink_to(out, target_is_directory=True)
    file = write_report(tmp_path / "link", tmp_path / "link" / "report.html", tmp_path / "out")
    captions = Page(file.read_text(encoding="utf-8")).captions
    assert captions[0] == (tmp_path / "out" / "sweep_rgb.png").as_posix()
    assert {"samples/00000100_rgb.png", "eval/step_00000100/sweep_rgb.png"} <= set(captions)


def test_memory_is_shown_as_a_curve_and_as_watched_from_outside(run):
    rows = [json.dumps({"time": 1000.0 + i, "step": i, "phase": "train", "host_bytes": 2**30}) for i in range(300)]
    leak = json.dumps({"time": 1500.0, "step": 9, "leak": {}})
    (run / "memory.jsonl").write_text("\n".join([*rows, leak, '{"time": 1301, "host_b']))
    put_png(run / "memory_report.png", 77)
    page = page_of(run)
    assert {"curves/memory.png", "memory_report.png"} <= set(page.captions)


def test_curves_have_no_more_points_than_asked_for(run, monkeypatch):
    write_rows(run, *({"step": i, "loss_d": 1.0 / i} for i in range(1, 1001)))
    drawn = []
    monkeypatch.setattr(report, "draw_history", lambda history, _: drawn.append(history) or [])
    write_report(run, run / "report.html", max_points=100)
    assert len(drawn[0].training["loss_d"].points().steps) <= 100


def test_json_that_cannot_be_read_and_json_of_all_sorts(run):
    newest = run / "eval" / "step_00000100"
    (newest / "broken.json").write_text('{"values": ')
    (newest / "deep.json").write_text(100_000 * "[")
    (newest / "other.json").write_text(json.dumps({"a": [1, 2.5], "b": [{"c": None}], "d": {"values": {}, "extractor": "x"}}))
    (newest / "large.json").write_text(json.dumps("x" * 300_000))
    page = page_of(run)
    text = page.text
    assert "eval/step_00000100/broken.json cannot be read: Expecting value" in text
    assert "eval/step_00000100/deep.json cannot be read" in text
    assert "a 1, 2.5 b c – d x (weights ?)" in text
    assert page.links.count("eval/step_00000100/large.json") == 1


def test_a_folder_of_many_files_is_one_link(run):
    frames = run / "eval" / "step_00000100" / "frames"
    for i in range(17):
        put_png(frames / "rotation" / f"rgb_{i:05d}.png")
    (frames / "rotation" / "made_from.json").write_text("{}")
    page = page_of(run)
    assert page.links.count("eval/step_00000100/frames") == 1
    assert "eval/step_00000100/frames (18 files)" in page.text
    assert "made_from" not in page.text
    assert not [name for name in page.captions if "frames" in name]
    assert "eval/step_00000100/inversion/fit.png" in page.captions


def test_a_page_elsewhere_has_its_curves_beside_it(run, tmp_path):
    write_rows(run, {"step": 1, "loss_d": 1.0}, {"step": 2, "loss_d": 0.5})
    before = {path for path in run.rglob("*") if path.is_file()}
    page = page_of(run, tmp_path / "elsewhere" / "page.html")
    assert {path for path in run.rglob("*") if path.is_file()} == before
    assert (tmp_path / "elsewhere" / "curves" / "losses.png").is_file()
    assert "curves/losses.png" in page.captions
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["curves", "page.html"]


def test_a_run_that_has_just_begun_has_a_short_page(tmp_path):
    (tmp_path / "config.yaml").write_text("expname: a\n")
    page = page_of(tmp_path)
    assert page.media == []
    assert "expname: a" in page.text


def test_of_weights_from_elsewhere_their_results_tell_the_step_and_what_is_not_measured(tmp_path):
    folder = tmp_path / "eval_weights" / "eval" / "step_00003000"
    put_png(folder / "sweep_rgb.png")
    (folder / "metrics.json").write_text(json.dumps({"step": 3000, "sweep": {"low_resolution_error": 0.0}}))
    text = page_of(tmp_path / "eval_weights").text
    for part in (
        "steps 3,000",
        "not been measured: eval.py --checkpoint FILE --metrics",
        "not been measured: eval.py --checkpoint FILE --consistency",
        "0.0001 of 255",
    ):
        assert part in text


def test_a_video_of_all_of_training_takes_the_place_of_single_steps(run):
    write_video(run / "samples" / "progress.gif", torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
    text = write_report(run, run / "report.html").read_text(encoding="utf-8")
    learned = text.partition("How it learned")[2].partition("<h2>")[0]
    assert re.findall(r"<code>(.*?)</code>", learned) == ["samples/progress.gif"]
    assert "samples of 3 steps of training" in text


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(GrafError, match="no run here .none of config.yaml, metrics.jsonl.*name the folder of a run"):
        write_report(tmp_path, tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


PROBE = """<!DOCTYPE html><title>probe</title><iframe id="page" src="PAGE" width="WIDTH" height="900"></iframe>
<pre id="found"></pre>
<script>
const settled = (e, ok) => new Promise(done => {
  if (ok(e)) return done();
  for (const name of ["load", "loadedmetadata", "error"]) e.addEventListener(name, done);
});
document.getElementById("page").addEventListener("load", async event => {
  const page = event.target.contentDocument;
  const images = [...page.images], videos = [...page.querySelectorAll("video")];
  await Promise.all([...images.map(e => settled(e, x => x.complete)), ...videos.map(e => settled(e, x => x.readyState > 0))]);
  const broken = [], words = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), range = page.createRange();
  while (words.nextNode()) {
    if (words.currentNode.parentElement.closest("code, pre, a, .long")) continue;  // names of files, and digests
    for (const number of words.currentNode.data.matchAll(/[\\d.,\\/%]{2,}(e-?\\d+)?/g)) {
      range.setStart(words.currentNode, number.index);
      range.setEnd(words.currentNode, number.index + number[0].length);
      if (new Set([...range.getClientRects()].map(e => Math.round(e.top))).size > 1) broken.push(number[0]);
    }
  }
  const drawn = [...page.querySelectorAll("canvas")].map(canvas => {
    const copy = Object.assign(document.createElement("canvas"), {width: 72, height: 72}).getContext("2d");
    copy.drawImage(canvas, 0, 0, 72, 72);
    return copy.getImageData(0, 0, 72, 72).data.filter((value, i) => i % 4 == 0 && value < 200).length / 72 ** 2;
  });
  document.getElementById("found").textContent = JSON.stringify({
    broken,
    drawn,
    title: page.title,
    images: images.map(e => e.naturalWidth),
    videos: videos.map(e => e.videoWidth),
    below: videos.map(e => e.clientHeight - e.clientWidth * e.videoHeight / e.videoWidth),
    requests: event.target.contentWindow.performance.getEntriesByType("resource").map(e => e.name.slice(0, 5)),
    bodyWidth: [page.documentElement.scrollWidth, page.documentElement.clientWidth],
  });
});
</script>"""


def probed(page: Path, folder: Path, width: int) -> dict:
    """What a browser finds on the page in a window of this width, without a complaint."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser here (looked for {', '.join(BROWSERS)})")
    (folder / "probe.html").write_text(PROBE.replace("PAGE", page.name).replace("WIDTH", str(width)))
    done = subprocess.run(
        [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
            *(f"--user-data-dir={folder / 'profile'}", "--allow-file-access-from-files", "--enable-logging=stderr"),
            *("--enable-unsafe-swiftshader", "--virtual-time-budget=5000", "--dump-dom", (folder / "probe.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "GL Driver Message" not in line]
    assert not complaints
    return json.loads(unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout)[1]))


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_shows_every_picture_and_complains_of_nothing(measured, tmp_path, width):
    run, page = measured
    shutil.copy(run / "report.html", tmp_path)
    found = probed(tmp_path / "report.html", tmp_path, width)
    assert found["title"] == run.name
    assert len(found["images"]) == sum(tag == "img" for tag, _ in page.media) > 5
    assert min(found["images"]) > 0
    assert found["videos"] == [256]
    assert found["below"] == [pytest.approx(pages.CONTROLS, abs=1)]  # room for controls under the picture, not on it
    assert found["drawn"] == [pytest.approx(0.66, abs=0.05)]  # of the window: the ball, of radius 0.46 of its side
    assert set(found["requests"]) <= {"data:"}
    assert found["bodyWidth"][0] <= found["bodyWidth"][1]  # nothing to scroll sideways
    assert found["broken"] == []  # numbers, over two lines


def test_a_mesh_fills_the_ball_that_the_page_draws(tmp_path):
    """Two corners as far from the middle as any: at 1 in 32767ths, whatever the size and the place of the mesh."""
    box = trimesh.creation.box((4, 2, 2), transform=trimesh.transformations.translation_matrix([9, 0, 0]))
    box.export(tmp_path / "box.ply")
    vertices = base64.b64decode(read_mesh(tmp_path / "box.ply", "box").vertices)
    places = np.frombuffer(vertices, [("place", "<i2", 3), ("rest", "V6")])["place"].astype(float)
    assert np.linalg.norm(places, axis=1) == pytest.approx(32767, abs=2)
    assert np.abs(places).max(0) == pytest.approx(32767 / 6**0.5 * np.array([2, 1, 1]), abs=1)


def test_a_session_begins_with_a_row_of_step_0_before_which_no_time_is_of_the_run(tmp_path):
    times = ((0, 0), (30, 5), (9000, 0), (9010, 6))
    rows = [json.dumps({"time": 1000.0 + seconds, "step": step, "phase": "train"}) for seconds, step in times]
    (tmp_path / "memory.jsonl").write_text("\n".join(rows) + "\n")
    assert report._seconds(tmp_path / "memory.jsonl") == 40


def test_the_mesh_turns_where_it_is_dragged(measured, tmp_path):
    chromium = pytest.importorskip("chromium")
    if chromium.PROGRAM is None:
        pytest.skip("no Chromium here")
    run, _ = measured
    with chromium.Page((run / "report.html").as_uri(), tmp_path) as page:
        chromium.until(lambda: page.evaluate("document.readyState") == "complete")
        page.evaluate("document.querySelector('canvas').scrollIntoView({block: 'center'})")
        middle = "(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('canvas').getBoundingClientRect())"
        x, y = map(round, page.evaluate(middle))
        look = "document.querySelector('canvas').toDataURL()"
        seen = [page.evaluate(look)]
        page.drag((x, y), (x + 60, y + 20))
        seen.append(page.evaluate(look))
        page.click("shape without colours")
        seen.append(page.evaluate(look))
        assert page.errors == []
    assert len(set(seen)) == 3


def test_a_long_list_of_numbers_is_counted(run, tmp_path):
    path = tmp_path / "directions.json"
    path.write_text(json.dumps({"shape": [{"offset": [0.25] * 64, "share": 0.5}], "angles": [0, 45.5], "names": ["a"] * 64}))
    text = pages.json_html(path)
    assert "64 numbers" in text and "0.25" not in text and "0, 45.5" in text and "0.5" in text and text.count("a,") == 63
