"""The jobs of eval.py: which objects, folders and settings they are given."""

import argparse
import dataclasses
import functools
import json
from pathlib import Path
from types import SimpleNamespace

import eval as program
from graf.checkpoints.directions_file import load_directions
from graf.checkpoints.latents_file import write_latents
from graf.commands import eval as command
from graf.commands.eval import Evaluation
from graf.commands.jobs import Job
from graf.errors import GrafError
from graf.export.mesh import NoSurface
from graf.inversion.loss import InversionSettings
from graf.inversion.tuning import TuningSettings
from graf.metrics.measure import MeasureSettings, measure_generator
from graf.metrics.results import COMPARABLE, SAMPLES, ResultFile
from graf.metrics.shapes import VARIETY_CAVEAT
from graf.models.directions import principal_directions
from graf.models.generator import Generator
from graf.pictures.sampling import sample_objects

import pytest
import torch
from PIL import Image


@pytest.fixture
def evaluation(smoke, tmp_path):
    """Three objects of seed 0, their latents scaled by 0.7."""
    args = program.parser().parse_args(["--n_objects", "3", "--truncation", "0.7"])
    generator, out = Generator(smoke("reporting.max_metric_rows=123")).eval(), tmp_path / "out"
    results = ResultFile(out, tmp_path / "model.pt", "0a", 5, True, generator.config)
    return Evaluation(args, generator, 5, tmp_path / "run", out, results)


def test_an_object_without_a_surface_is_left_out_with_a_warning(evaluation, monkeypatch, caplog):
    found = iter((None, "mesh: nowhere half opaque", None))

    def extract(*_):
        if message := next(found):
            raise NoSurface(message)
        return "surface"

    monkeypatch.setattr(command, "extract_mesh", extract)
    monkeypatch.setattr(command, "write_mesh", lambda _, stem, painted: [stem])
    assert [file.name for file in evaluation.mesh()] == ["object_00", "object_02"]
    assert [record.getMessage() for record in caplog.records] == ["object 1: mesh: nowhere half opaque"]


def test_objects_without_any_surface_are_an_error(evaluation, monkeypatch):
    def extract(*_):
        raise NoSurface("mesh: nowhere half opaque")

    monkeypatch.setattr(command, "extract_mesh", extract)
    with pytest.raises(NoSurface):
        evaluation.mesh()


def test_the_truncation_sheet_truncates_whole_objects(evaluation, monkeypatch):
    given = {}
    for name in ("interpolation_sheet", "interpolation_video", "truncation_sheet"):
        monkeypatch.setattr(command, name, lambda _, objects, *a, name=name, **b: given.update({name: objects[0]}) or [])
    evaluation.sheets()
    torch.testing.assert_close(given["truncation_sheet"], sample_objects(evaluation.generator, 3, 0)[0])
    torch.testing.assert_close(given["interpolation_sheet"], 0.7 * sample_objects(evaluation.generator, 4, 0)[0])


@pytest.fixture
def kept(evaluation, tmp_path):
    """Files of two objects."""
    ones = torch.ones(evaluation.generator.config.z_dist.dim)
    write = functools.partial(write_latents, generator=evaluation.generator, class_index=0, checkpoint="model.pt", step=5)
    return [str(write(tmp_path / f"{i}.json", latents=i * ones)) for i in (1, 2)]


def test_objects_of_files_take_the_place_of_sampled_ones(asked, kept):
    evaluation = asked(latents=kept)
    assert evaluation.objects[0].tolist() == [pytest.approx([0.7 * i] * 8) for i in (1, 2)]
    assert evaluation.objects[1].tolist() == [0, 0]
    assert len(evaluation.trajectories["rotation"]) == 72 and evaluation.n_objects == 2


def test_sheets_lead_from_objects_of_files_to_sampled_ones(asked, kept, monkeypatch):
    given = {}
    for name in ("interpolation_sheet", "interpolation_video", "truncation_sheet"):
        monkeypatch.setattr(command, name, lambda _, objects, *a, name=name, **b: given.update({name: objects[0]}) or [])
    evaluation = asked(latents=kept)
    evaluation.sheets()
    assert torch.equal(given["interpolation_sheet"][:2], evaluation.objects[0])
    assert torch.equal(given["interpolation_sheet"][2:], evaluation.sample(4)[0][:2])
    assert given["truncation_sheet"][:, 0].tolist() == [1, 2]  # the sheet truncates them itself


def test_a_mesh_is_made_of_each_object_of_files(asked, kept, monkeypatch):
    given = []
    monkeypatch.setattr(command, "extract_mesh", lambda _, latents, *a: given.append(latents[0, 0].item()))
    monkeypatch.setattr(command, "write_mesh", lambda _, stem, painted: [stem])
    assert [file.name for file in asked(latents=kept).mesh()] == ["object_00", "object_01"]
    assert given == pytest.approx([0.7, 1.4])


def test_files_of_latents_are_read_before_any_work(asked, tmp_path):
    with pytest.raises(GrafError, match=r"nowhere\.json: no such file"):
        asked(latents=[str(tmp_path / "nowhere.json")]).run([begins("mesh")])


def test_directions_are_of_the_seed_and_shown_on_the_objects_that_the_flags_say(asked, monkeypatch, caplog):
    given = []
    monkeypatch.setattr(command, "direction_sheets", lambda _, objects, found, *rest: given.append((objects, found)) or [])
    evaluation = asked(directions=9, seed=4)
    with caplog.at_level("INFO", "graf"):
        (file,) = evaluation.directions()
    (latents, _), found = given[0]
    torch.testing.assert_close(latents, 0.7 * sample_objects(evaluation.generator, 3, 4)[0])
    wanted = principal_directions(evaluation.generator, 9, 4)
    read, content = load_directions(file), json.loads(file.read_text())
    assert all(torch.equal(part.offsets, wanted[name].offsets) for name, part in read.items())
    assert (content["step"], content["seed"], content["checkpoint"]) == (5, 4, str(evaluation.results.checkpoint))
    assert "--directions 9: there are no more of shape than these 4" in caplog.text


def test_sheets_of_directions_of_an_earlier_command_are_removed_and_told(asked, monkeypatch, caplog):
    caplog.set_level("INFO", "graf")
    evaluation = asked(directions=1)
    mine, earlier, other = (evaluation.out / f"direction_{name}.png" for name in ("shape_1", "shape_2", "of_a_user"))
    evaluation.out.mkdir(parents=True, exist_ok=True)
    for file in (mine, earlier, other):
        file.write_bytes(b"earlier")
    monkeypatch.setattr(command, "direction_sheets", lambda *_: mine.write_bytes(b"new") and [mine])
    evaluation.directions()
    assert mine.exists() and other.exists() and not earlier.exists()
    assert "removed what an earlier command wrote: direction_shape_2.png; --out keeps results apart" in caplog.text
    assert "replaced what an earlier command wrote: direction_shape_1.png" in caplog.text


def test_neighbours_are_of_the_objects_that_the_flags_say(evaluation, monkeypatch):
    given = []
    for name in ("neighbour_sheet", "real_against_fake_grid"):
        monkeypatch.setattr(command, name, lambda *_, **keys: given.append((keys["seed"], keys["truncation"])) or [])
    monkeypatch.setattr(command, "build_dataset", lambda _: None)
    evaluation.neighbours()
    assert given == [(0, 0.7)] * 2


def test_a_measure_is_told_with_its_caveat(asked, monkeypatch, caplog):
    for name in ("variety", "haze"):
        monkeypatch.setitem(command.OBJECT_MEASURES, name, lambda _, name=name: {name: 0.5})
    monkeypatch.setattr(command, "build_dataset", lambda _: None)
    with caplog.at_level("INFO", "graf"):
        asked(metrics=["variety", "haze"], dump_samples=None).metrics()
    assert caplog.messages == [f"variety: variety 0.5. {VARIETY_CAVEAT}", "haze: haze 0.5"]


def test_the_line_below_pictures_has_the_kid_of_such_pictures_only(asked, caplog):
    evaluation = asked(truncation=0.3)
    terms = {"extractor": "lite", "truncation": 0.3} | evaluation.results.rendered_by
    evaluation.results.keep(terms | {"values": {"kid_lite": 0.25}})
    assert evaluation.footer == "smoke, step 5, KID (lite) 0.25"
    assert asked(truncation=1.0).footer == "smoke, step 5"
    evaluation.results.keep({"values": {"kid_lite": float("nan")}})
    assert asked(truncation=0.3).footer == "smoke, step 5"


def test_kid_is_told_neither_of_a_tuned_model_nor_of_an_export_that_renders_otherwise(asked, monkeypatch, tmp_path):
    evaluation, told = asked(truncation=1.0, tune=2, export="a.safetensors"), []
    terms = {"extractor": "lite", "truncation": 1.0} | evaluation.results.rendered_by
    evaluation.results.keep(terms | {"values": {"kid_lite": 0.25}})
    fit = argparse.Namespace(psnr=[20.0])
    monkeypatch.setattr(command, "tune", lambda *_: (evaluation.generator, fit))
    monkeypatch.setattr(command, "write_inversion", lambda *given: told.append(given[-1]) or [])
    vars(evaluation).update(targets=(None, None), target_files=["a.png"])
    evaluation.tune(fit, tmp_path / "a")
    assert told == ["smoke, step 5, tuned in 2 steps"]
    monkeypatch.setattr(command, "write_export", lambda file, *_: file)
    monkeypatch.setattr(command, "write_card", lambda *given: told.append(given[-1].get("values")) or [])
    evaluation.export()
    evaluation.results.folder.joinpath("metrics.json").unlink()
    evaluation.results.keep(terms | {"values": {"kid_lite": 0.25}, "truncation": 0.3})
    evaluation.export()
    assert told[1:] == [{"kid_lite": 0.25}, None]


@pytest.mark.parametrize(("trained_on", "n_warnings"), [("", 0), ("0a", 0), ("0b", 1)])
def test_other_data_than_the_models_is_told_and_measured_all_the_same(asked, monkeypatch, caplog, trained_on, n_warnings):
    data = type("Data", (list,), {"fingerprint": "0a"})(range(3))
    monkeypatch.setattr(command, "build_dataset", lambda _: data)
    evaluation = dataclasses.replace(asked(), data_fingerprint=trained_on)
    assert evaluation.dataset is data
    assert [("trained on other data than these 3 images" in message) for message in caplog.messages] == [True] * n_warnings


@pytest.mark.parametrize("can_write", [True, False])
def test_features_of_a_run_that_cannot_be_written_are_kept_beside_the_results(asked, monkeypatch, can_write):
    evaluation, caches = asked(metrics=["kid"], dump_samples=None), []
    if not can_write:
        evaluation.run_dir.write_bytes(b"a file, for no permission stops an administrator")
    result = {"values": {"kid_lite": 0.5}, "n_fake": 2, "n_real": 2, "resolution": 16}
    monkeypatch.setattr(command, "build_dataset", lambda _: None)
    monkeypatch.setattr(command, "measure_generator", lambda *given: caches.append(given[3]) or result)
    evaluation.metrics()
    assert caches == [(evaluation.run_dir if can_write else evaluation.out) / "cache"]


@pytest.fixture
def reported(monkeypatch):
    """The arguments of each report."""
    given = []
    monkeypatch.setattr(command, "write_report", lambda *args: given.append(args))
    return given


def test_the_report_shows_what_was_just_made(asked, reported):
    evaluation = asked(mesh=True)
    evaluation.report()
    run = evaluation.run_dir
    assert reported == [(run, run / "report.html", evaluation.out, 123)]


def test_the_report_goes_where_results_go_by_the_flag(asked, reported):
    evaluation = asked(out=Path("plain"), sweep=True)
    evaluation.report()
    assert reported == [(evaluation.run_dir, Path("plain/report.html"), evaluation.out, 123)]


def test_a_folder_without_results_of_the_model_is_not_in_the_report(asked, reported):
    alone, found = asked(out=Path("photos")), asked(latents=["l.json"], directions=1)
    alone.report()
    found.report()  # its folder is within the evaluation's
    alone.results.keep({"variety": {"variety": 0.5} | alone.results.rendered_by})
    alone.report()  # measured before, by another command
    assert [newest for _, _, newest, _ in reported] == [None, None, alone.out]


def test_a_report_that_cannot_be_written_is_told_by_its_name_with_another_place(evaluation, monkeypatch):
    def write(*_):
        raise PermissionError(13, "Permission denied", "run/curves/losses.png")

    monkeypatch.setattr(command, "write_report", write)
    with pytest.raises(GrafError, match="^run/curves/losses.png: Permission denied; --out FOLDER writes the report to"):
        evaluation.report()


@pytest.fixture
def asked(evaluation):
    """The evaluation with other flags."""

    def asked(**flags):
        return dataclasses.replace(evaluation, flags=argparse.Namespace(**vars(evaluation.flags) | flags))

    return asked


def job(name: str, run=None) -> Job:
    """The job of that name, doing something else where `run` is given."""
    (found,) = (job for job in program.JOBS if job.name == name)
    return dataclasses.replace(found, run=run) if run else found


def begins(name: str) -> Job:
    return job(name, lambda _: pytest.fail(f"{name} began"))


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("sweep", {"n_objects": 57}, "57: an image grid or video of 4104 images, more than memory.max_test_outputs 4096"),
        (
            "sweep",
            {"n_objects": 33, "resolution": 512},
            "33: videos 16896 pixels wide, with 512 per object, and 16384 is the most",
        ),
        ("sheets", {"n_objects": 683}, "of 4098 images, more than memory.max_test_outputs 4096"),
        ("directions", {"n_objects": 586, "directions": 1}, "of 4102 images, more than memory.max_test_outputs 4096"),
        ("mesh", {"mesh_resolution": 2000000}, "--mesh_resolution 2000000: its grid takes 2.98e[+]10 GB of memory"),
        ("splats", {"mesh_resolution": 2000000}, "--mesh_resolution 2000000: its grid takes 2.98e[+]10 GB of memory"),
        ("invert", {"invert": ["nowhere.png"]}, "nowhere.png"),
        ("neighbours", {}, "no photographs"),
        ("export", {"export": __file__}, "test_eval_jobs.py: the generator would be written here"),
    ],
)
def test_what_a_job_needs_is_asked_for_before_any_work(asked, monkeypatch, name, flags, message):
    def missing(_):
        raise GrafError("no photographs")

    monkeypatch.setattr(command, "build_dataset", missing)
    with pytest.raises(GrafError, match=message):
        asked(**flags).run([begins("mesh"), begins(name)])


def test_a_folder_that_cannot_be_written_is_told_before_any_work(asked, monkeypatch):
    evaluation = asked(export="a.safetensors")
    evaluation.out.write_bytes(b"a file")
    monkeypatch.setattr(Evaluation, "trajectories", property(lambda _: pytest.fail("trajectories began")))
    with pytest.raises(GrafError, match=f"{evaluation.out}: results cannot be written .*; name another folder with --out"):
        evaluation.run([begins("sweep")])
    evaluation.run([job("export", lambda _: [Path("a.safetensors")])])  # whose file lies elsewhere


def test_a_folder_that_can_be_written_is_left_empty_by_asking(evaluation):
    evaluation.run([job("mesh", lambda self: list(self.out.iterdir()))])
    assert list(evaluation.out.iterdir()) == []


THEIRS = {
    "sweep": ("sweep_rgb.png", "sweep_nerf.png", "rotation_depth.mp4", "elevation_rgb.gif"),
    "sheets": ("interpolation_shape.png", "interpolation_both.mp4", "truncation.png", "classes.png"),
    "neighbours": ("neighbours.png", "neighbours.json", "real_against_fake.png"),
    "mesh": ("mesh/object_00.ply", "mesh/object_112.glb", "mesh/rendered_back.png"),
    "splats": ("splats/object_00.ply", "splats/rendered_back.png"),
    "report": ("curves/losses.png", "curves/metrics_lite_0a1b2c3d.png"),
}


@pytest.mark.parametrize("name", THEIRS)
def test_files_of_others_in_a_folder_that_was_named_are_set_aside(asked, caplog, name):
    """And those that are in nobody's way, or that the job wrote itself before, stay."""
    evaluation, theirs = asked(out=Path("named")), THEIRS[name]
    files = [evaluation.out / file for file in (*theirs, "sweep_of_the_floor.png", "mesh/object_0.ply", "notes.txt")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")

    def write(_):
        for file in files[: len(theirs)]:
            assert not file.exists()
            file.write_text("made")
        return []

    evaluation.run([job(name, write)])
    renamed = {file: file.with_stem(f"{file.stem}_1") for file in files[: len(theirs)]}
    assert all(file.read_text() == "mine" for file in (*renamed.values(), *files[len(theirs) :]))
    said = {f"{file}: not known as a file that eval.py made; it is now {aside.name}" for file, aside in renamed.items()}
    assert set(caplog.messages) == said
    caplog.clear()
    evaluation.run([job(name, lambda _: [])])
    assert not caplog.messages and all(file.read_text() == "made" for file in renamed)


def test_naming_the_folder_that_results_go_to_anyway_renames_nothing(asked, caplog):
    run_dir = asked().run_dir
    own = run_dir / "eval" / f"step_{asked().step:08d}"
    evaluation = dataclasses.replace(asked(out=own), out=own)
    sweep = evaluation.out / "sweep.png"
    sweep.parent.mkdir(parents=True, exist_ok=True)
    sweep.write_text("of the last evaluation")
    evaluation.run([job("sweep", lambda _: [])])
    assert sweep.read_text() == "of the last evaluation" and not caplog.messages


@pytest.mark.parametrize(("empty_cache", "times"), [("phases", 2), ("never", 0), (10, 0)])
def test_memory_goes_back_after_each_job_as_after_a_phase_of_training(evaluation, monkeypatch, smoke, empty_cache, times):
    cleaned = []
    monkeypatch.setattr(command, "clean_up", lambda: cleaned.append(1))
    evaluation.generator.config = smoke(f"memory.empty_cache={empty_cache}")
    evaluation.run([job(name, lambda _: []) for name in ("mesh", "report")])
    assert len(cleaned) == times


def test_a_folder_stands_for_its_images_in_the_order_of_their_names(asked, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("b.png", "a.JPG", ".hidden.png", "c.bmp"):
        Image.new("RGB", (16, 16)).save(folder / name)
    (folder / "notes.txt").write_text("mine")
    Image.new("RGB", (16, 16)).save(tmp_path / "0.png")
    evaluation = asked(invert=[str(folder), str(tmp_path / "0.png")])
    assert evaluation.target_files == [folder / "a.JPG", folder / "b.png", folder / "c.bmp", tmp_path / "0.png"]
    assert len(evaluation.targets[0]) == 4
    (tmp_path / "empty").mkdir()
    with pytest.raises(GrafError, match=r"empty: this folder holds no images \(\.png, "):
        asked(invert=[str(tmp_path / "empty")]).run([job("invert")])


def test_photographs_and_cameras_are_those_of_the_files(asked, tmp_path):
    Image.new("RGB", (16, 16), (255, 0, 0)).save(tmp_path / "a.png")
    photographs, poses = asked(invert=[str(tmp_path / "a.png")]).targets
    assert photographs[0, :, 3, 5].tolist() == [1, -1, -1] and poses is None


def test_a_model_without_surfaces_has_its_other_results_first(evaluation, caplog):
    def no_surface(_):
        raise NoSurface("mesh: nowhere half opaque")

    with caplog.at_level("INFO", "graf"), pytest.raises(NoSurface):
        evaluation.run([job("mesh", no_surface), job("report", lambda _: [Path("report.html")])])
    assert caplog.messages == ["report.html"]


@pytest.mark.parametrize(
    ("names", "of_images", "independent", "entries"),
    [
        (["prc", "fid"], ["fid", "prc"], False, []),
        (["kid_independent"], ["kid"], True, []),
        (["kid", "kid_independent", "haze"], ["kid"], True, ["haze"]),
        (["mmd"], None, None, ["coverage"]),
        (["haze", "coverage", "mmd", "variety"], None, None, ["variety", "coverage", "haze"]),
    ],
)
def test_metrics_are_measured_by_their_names_and_kept_in_one_file(asked, monkeypatch, names, of_images, independent, entries):
    """Whatever they are, a truncation of 0.7 is theirs; what toy cars alone decide is kept beside them."""
    given, subjects, cache = [], [], Path(asked().generator.config.data.datadir[0])
    protocol = dict.fromkeys((*COMPARABLE, *SAMPLES), 1) | {"extractor": "lite", "warnings": []}

    def distances(generator, dataset, settings, at, bar):
        given.append(settings)
        return protocol | {"values": {f"{name}_lite": 0.5 for name in settings.names}}

    monkeypatch.setattr(command, "measure_generator", distances)
    monkeypatch.setattr(command, "kid_independent", lambda *args: {"kid_independent_lite": 0.25})
    for name in command.OBJECT_MEASURES:
        monkeypatch.setitem(command.OBJECT_MEASURES, name, lambda subject: subjects.append(subject) or {"value": 1.5})
    monkeypatch.setattr(command, "build_dataset", lambda _: "photographs")
    evaluation = asked(metrics=names, dump_samples=None)
    files = evaluation.metrics()
    assert set(files) == {evaluation.out / "metrics.json"} and len(files) == len(entries) + bool(of_images)
    content = json.loads(files[0].read_text())
    assert [name for name in command.OBJECT_MEASURES if name in content] == entries
    assert all(content[name]["value"] == 1.5 and "rendering_sha256" in content[name] for name in entries)
    assert [settings.names for settings in given] == ([of_images] if of_images else [])
    assert ("kid_independent_lite" in content.get("values", {})) is bool(independent)
    assert all((subject.truncation, subject.cache, subject.n) == (0.7, cache, 256) for subject in subjects)


def test_meshes_of_other_objects_go_and_nothing_else_does(evaluation, monkeypatch):
    folder = evaluation.out / "mesh"
    folder.mkdir(parents=True)
    theirs = {"object_0.ply", "object_00.mtl", "object_01_mine.obj", "chair.ply"}
    for name in (*theirs, "object_00.ply", "object_07.obj", "object_100.glb"):
        (folder / name).write_bytes(b"")
    monkeypatch.setattr(command, "extract_mesh", lambda *_: "surface")
    monkeypatch.setattr(command, "write_mesh", lambda _, stem, painted: [stem])
    assert len(evaluation.mesh()) == 3
    assert {file.name for file in folder.iterdir()} == theirs


MADE = ("object_00.ply", "object_00.obj", "object_00.glb", "object_03.ply", "rendered_back.png")


@pytest.fixture
def earlier(evaluation):
    """What an earlier --mesh and --splats left, by their files."""
    files = [evaluation.out / folder / name for folder in ("mesh", "splats") for name in MADE]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"earlier")
    return files


@pytest.mark.parametrize("name", ["mesh", "splats"])
def test_objects_without_a_surface_leave_earlier_files_alone(evaluation, earlier, monkeypatch, name):
    def extract(*_):
        raise NoSurface("mesh: nowhere half opaque")

    monkeypatch.setattr(command, "extract_mesh", extract)
    with pytest.raises(NoSurface):
        getattr(evaluation, name)()
    assert {file.read_bytes() for file in earlier} == {b"earlier"}


def test_a_texture_that_fails_leaves_earlier_meshes_alone(asked, earlier, monkeypatch):
    made = []

    def paint(*_):
        made.append(1)
        if len(made) == 3:
            raise GrafError("no room for the texture")
        return "painted"

    monkeypatch.setattr(command, "extract_mesh", lambda *_: "surface")
    monkeypatch.setattr(command, "textured", paint)
    with pytest.raises(GrafError, match="no room"):
        asked(textured=True).mesh()
    assert {file.read_bytes() for file in earlier} == {b"earlier"}


def test_a_disk_that_is_full_leaves_meshes_that_were_not_written_yet(evaluation, earlier, monkeypatch):
    def write(_, stem, painted):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "extract_mesh", lambda *_: "surface")
    monkeypatch.setattr(command, "write_mesh", write)
    with pytest.raises(OSError, match="No space left"):
        evaluation.mesh()
    assert {file.read_bytes() for file in earlier} == {b"earlier"}


def test_fewer_objects_than_before_replace_earlier_ones_and_that_is_said(asked, earlier, monkeypatch, caplog):
    def write(_, stem, painted):
        assert (stem.parent / "object_03.ply").exists()  # it goes when all new ones stand
        stem.with_suffix(".ply").write_bytes(b"new")
        return [stem.with_suffix(".ply")]

    monkeypatch.setattr(command, "extract_mesh", lambda *_: "surface")
    monkeypatch.setattr(command, "write_mesh", write)
    evaluation = asked(n_objects=2)
    with caplog.at_level("INFO", "graf"):
        evaluation.mesh()
    folder = evaluation.out / "mesh"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {f"object_0{i}.ply": b"new" for i in (0, 1)}
    gone = "object_00.glb, object_00.obj, object_03.ply, rendered_back.png"
    assert f"{folder}: removed what an earlier command wrote: {gone}; --out keeps results apart" in caplog.text
    assert f"{folder}: replaced what an earlier command wrote: object_00.ply; --out keeps results apart" in caplog.text


def test_the_same_meshes_again_replace_nothing(asked, earlier, monkeypatch, caplog):
    def write(_, stem, painted):
        files = [stem.with_name(stem.name + suffix) for suffix in (".ply", ".obj", ".glb")]
        for file in files:
            file.write_bytes(b"earlier")
        return files

    monkeypatch.setattr(command, "extract_mesh", lambda *_: "surface")
    monkeypatch.setattr(command, "write_mesh", write)
    with caplog.at_level("INFO", "graf"):
        asked(n_objects=1).mesh()
    assert "removed" in caplog.text and "replaced" not in caplog.text


@pytest.mark.parametrize("checkpoint", ["model.pt", "checkpoints/model_00000002.pt"])
def test_a_run_that_has_logged_nothing_keeps_its_results(smoke, tmp_path, checkpoint):
    """Such as one of fewer steps than training.print_every."""
    for name in ("model.pt", "checkpoints/model_00000002.pt", "config.yaml"):
        (tmp_path / "short" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "short" / name).write_bytes(b"")
    assert command.run_folder_of(tmp_path / "short" / checkpoint, smoke()) == tmp_path / "short"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("runs/a/model.pt", "runs/a"),
        ("runs/../runs/a/checkpoints/model_00000002.pt", "runs/a"),
        ("link.pt", "runs/a"),
        ("../here/runs/a/model.pt", "runs/a"),
        ("../there/a/model.pt", "../there/a"),
    ],
)
def test_a_runs_folder_is_told_as_its_checkpoint_was_typed(smoke, tmp_path, monkeypatch, typed, told):
    """Relative to where the user is, as train.py tells it."""
    for run in (tmp_path / "here" / "runs" / "a", tmp_path / "there" / "a"):
        (run / "checkpoints").mkdir(parents=True)
        for name in ("model.pt", "checkpoints/model_00000002.pt", "metrics.jsonl"):
            (run / name).touch()
    monkeypatch.chdir(tmp_path / "here")
    Path("link.pt").symlink_to("runs/a/model.pt")
    assert command.run_folder_of(Path(typed), smoke()) == Path(told)
    assert command.run_folder_of(Path(typed).absolute(), smoke()) == Path(told).resolve()
    monkeypatch.chdir("runs/a/checkpoints")
    assert command.run_folder_of(Path("model_00000002.pt"), smoke()) == Path("..")


def test_a_runs_folder_on_another_drive_is_told_whole(smoke, tmp_path, monkeypatch):
    """Which is what os.path.relpath says ValueError to on Windows."""

    def relpath(_):
        raise ValueError("path is on mount 'C:', start on mount 'D:'")

    for name in ("model.pt", "metrics.jsonl"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.path.relpath", relpath)
    assert command.run_folder_of(Path("model.pt"), smoke()) == tmp_path.resolve()


def test_tuned_models_of_one_name_have_results_of_their_own(smoke, tmp_path):
    files = [tmp_path / run / "inversion" / "car" / "tuned" / "car.safetensors" for run in "ab"]
    folders = [command.run_folder_of(file, smoke()) for file in (*files, files[0])]
    assert all(folder.name.startswith("eval_tuned_car_") for folder in folders)
    assert folders[0] != folders[1] and folders[0] == folders[2]


def test_other_peoples_checkpoints_in_one_folder_have_results_of_their_own(smoke, tmp_path):
    folders = [command.run_folder_of(tmp_path / "downloads" / name, smoke()).name for name in ("chairs.pt", "cars.pt")]
    assert folders == ["eval_downloads_chairs", "eval_downloads_cars"]


def test_the_report_is_written_before_the_export():
    asked = program.asked_jobs(program.parser().parse_args(["--export", "a.safetensors", "--report", "--mesh"]))
    assert [job.name for job in asked] == ["mesh", "report", "export"]


def test_a_new_job_is_one_entry(evaluation, monkeypatch, capsys):
    """Its flags, their help, what is refused and its turn come from there."""
    monkeypatch.chdir(evaluation.run_dir.parent)
    depth = program.Flag("fog_depth", "how deep it is", int, 3)
    fog = Job(program.Flag("fog", "draw fog"), lambda evaluation: [Path(f"fog_{evaluation.flags.fog_depth}")], (depth,))
    monkeypatch.setattr(program, "JOBS", (fog, *program.JOBS))
    assert "draw fog" in program.parser().format_help()
    with pytest.raises(GrafError, match="--fog_depth: has no effect on --mesh; use it with --fog"):
        program.refuse_unused(program.parser().parse_args(["--mesh", "--fog_depth", "4"]))
    asked = program.asked_jobs(program.parser().parse_args(["--mesh", "--fog", "--fog_depth", "4"]))
    assert [job.name for job in asked] == ["fog", "mesh"]


def test_photographs_without_transparency_do_for_a_generator_that_was_judged_by_opacity(smoke, evaluation, tmp_path):
    """Only training compares opacity: measures of images need their colours."""
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    Image.new("RGB", (16, 16), (200, 0, 0)).save(photographs / "a.jpg")
    Image.new("RGBA", (16, 16), (200, 0, 0, 0)).save(photographs / "b.png")
    unposed = ("data.labels=none", "discriminator.condition=none", "training.batch_size=1")
    config = smoke("data.type=images", f"data.datadir={photographs}", "data.alpha=rgba", *unposed)
    dataset = dataclasses.replace(evaluation, generator=Generator(config)).dataset
    assert [item["image"].shape for item in (dataset[0], dataset[1])] == [(3, 16, 16)] * 2
    found = measured(Generator(config), dataset, tmp_path)
    assert found["n_real"] == 2 and any(name.startswith("kid") for name in found["values"])


def measured(generator, dataset, folder):
    options = dataclasses.replace(generator.config.metrics, n_real=2, n_fake=4, extractor="efficientnet-lite0", batch_size=2)
    return measure_generator(generator.eval(), dataset, MeasureSettings(["kid"], 0, options=options), folder)


def test_held_out_images_are_asked_for_where_they_are_needed_and_refused_elsewhere(asked):
    with pytest.raises(GrafError, match="--heldout: has no effect on these metrics; use it with --metrics memorised"):
        _ = asked(metrics=["kid"], heldout="others").heldout
    with pytest.raises(GrafError, match="--heldout others: toy cars need none"):
        _ = asked(metrics=["memorised"], heldout="others").heldout
    assert asked(metrics=["kid"]).heldout is None


class Given(Exception):
    """What a function was given, which is as far as a test needs to go."""


def test_consistency_is_of_the_seed_and_the_truncation_that_are_asked_for(asked, monkeypatch):
    evaluation, given = asked(seed=4), []
    evaluation.__dict__["dataset"] = SimpleNamespace(fingerprint="")
    for name in ("multi_view_consistency", "rotation_smoothness", "nyquist_against_real"):
        monkeypatch.setattr(command, name, lambda *values, **named: given.append((*values, *named.values())[-2:]) or {})
    monkeypatch.setattr(command, "sanity", lambda *_: {})
    evaluation.consistency()
    assert given == [(4, 0.7)] * 3


def test_a_mesh_has_the_resolution_and_the_level_that_are_asked_for(asked, monkeypatch):
    def extract(*given):
        raise Given(*given[-3:-1])

    monkeypatch.setattr(command, "extract_mesh", extract)
    with pytest.raises(Given) as given:
        asked(mesh_resolution=17, mesh_level=5.0).mesh()
    assert given.value.args == (17, 5.0)


def test_an_inversion_and_its_tuning_have_the_seed_that_is_asked_for(asked, monkeypatch, tmp_path):
    def invert(*given):
        raise Given(given[3])

    def tune(*given):
        raise Given(given[3])

    evaluation = asked(seed=4, invert=[], tune=9)
    evaluation.__dict__.update(targets=(None, None), target_files=[], estimator=None)
    monkeypatch.setattr(command, "most_renderings", lambda *_: 1)
    monkeypatch.setattr(command, "invert", invert)
    monkeypatch.setattr(command, "tune", tune)
    with pytest.raises(Given) as given:
        evaluation.invert()
    assert given.value.args == (InversionSettings(seed=4),)
    with pytest.raises(Given) as given:
        evaluation.tune(None, tmp_path)
    assert given.value.args == (TuningSettings(9, seed=4),)
