"""What eval.py does of itself: which objects, folders and settings its jobs are given."""

import dataclasses
import importlib
import json

import pytest
import torch

from graf.evaluation.mesh import NoSurface
from graf.evaluation.sampling import sample_objects
from graf.models.generator import Generator

program = importlib.import_module("eval")


@pytest.fixture
def evaluation(smoke, tmp_path):
    """Three objects of seed 0, their latents scaled by 0.7."""
    args = program.parser().parse_args(["--n_objects", "3", "--truncation", "0.7"])
    generator = Generator(smoke("memory.max_metric_rows=123")).eval()
    return program.Evaluation(args, generator, tmp_path / "model.pt", 5, True, tmp_path / "run", tmp_path / "out")


def test_an_object_without_a_surface_is_left_out_with_a_warning(evaluation, monkeypatch, caplog):
    found = iter((None, "mesh: nowhere half opaque", None))

    def extract(*_):
        if message := next(found):
            raise NoSurface(message)
        return "surface"

    monkeypatch.setattr(program, "extract_mesh", extract)
    monkeypatch.setattr(program, "write_mesh", lambda _, stem: [stem])
    assert [file.name for file in evaluation.mesh()] == ["object_00", "object_02"]
    assert [record.getMessage() for record in caplog.records] == ["object 1: mesh: nowhere half opaque"]


def test_objects_without_any_surface_are_an_error(evaluation, monkeypatch):
    def extract(*_):
        raise NoSurface("mesh: nowhere half opaque")

    monkeypatch.setattr(program, "extract_mesh", extract)
    with pytest.raises(NoSurface):
        evaluation.mesh()


def test_the_truncation_sheet_truncates_whole_objects(evaluation, monkeypatch):
    given = {}
    for name in ("interpolation_sheet", "interpolation_video", "truncation_sheet"):
        monkeypatch.setattr(program, name, lambda _, objects, *a, name=name, **b: given.update({name: objects[0]}) or [])
    evaluation.sheets()
    torch.testing.assert_close(given["truncation_sheet"], sample_objects(evaluation.generator, 3, 0)[0])
    torch.testing.assert_close(given["interpolation_sheet"], 0.7 * sample_objects(evaluation.generator, 4, 0)[0])


def test_the_report_shows_what_was_just_made(evaluation, monkeypatch):
    given = []
    monkeypatch.setattr(program, "write_report", lambda *args: given.append(args))
    evaluation.report()
    run = evaluation.run_dir
    assert given == [(run, run / "report.html", evaluation.out, 123)]


def test_numbers_of_images_drawn_otherwise_do_not_stay_beside_new_ones(evaluation, smoke):
    evaluation.checkpoint.write_bytes(b"weights")
    names = ("consistency", "sweep")
    evaluation.keep({"values": {}} | {name: {"error": 1.0} | evaluation.rendered_by for name in names})
    assert all(evaluation.kept()[name]["error"] == 1.0 for name in names)
    other = dataclasses.replace(evaluation, generator=Generator(smoke("nerf.N_samples_render=9")).eval())
    other.keep({"sweep": {"error": 2.0} | other.rendered_by})
    content = json.loads((evaluation.out / "metrics.json").read_text())
    assert content["sweep"]["error"] == 2.0
    assert "consistency" not in content and "values" in content
