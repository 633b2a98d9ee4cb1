"""weights/toy_cars.safetensors, which a fresh clone renders: a small file, whose numbers are beside it."""

import json
from pathlib import Path

import graf
from graf.camera import poses_at
from graf.checkpoints.export import read_export
from graf.config import Config
from graf.config.digest import rendering_sha256
from graf.metrics.results import METRICS_FILE
from graf.reporting.model_card import card_text
from graf.runtime.files import file_sha256

import pytest
import torch

FILE = Path(__file__).parents[2] / "weights" / "toy_cars.safetensors"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason=f"{FILE.name} is not there; make weights")


@pytest.fixture(scope="module")
def generator():
    return graf.load_generator(FILE)


def test_it_is_small_and_of_the_default_run(generator):
    assert FILE.stat().st_size < 4e6
    assert (generator.config.nerf, generator.config.ccsr.mode) == (Config().nerf, "none")  # CCSR ends before the run does
    assert read_export(FILE)["step"] == Config().training.max_steps


def test_the_numbers_beside_it_are_of_this_file(generator):
    measured = json.loads(FILE.with_name(METRICS_FILE).read_text())
    assert (measured["checkpoint"], measured["checkpoint_sha256"]) == (FILE.name, file_sha256(FILE))
    rendered_by = rendering_sha256(generator.config)
    assert {measured[name]["rendering_sha256"] for name in ("consistency", "variety", "haze")} == {rendered_by}
    assert measured["rendering_sha256"] == rendered_by and measured["step"] == read_export(FILE)["step"]


def test_its_card_is_what_an_export_writes_today(generator):
    measured, export = json.loads(FILE.with_name(METRICS_FILE).read_text()), read_export(FILE)
    text = card_text(FILE, generator, export["step"], export["data_fingerprint"], measured)
    assert FILE.with_suffix(".md").read_text(encoding="utf-8") == text


def test_the_docs_tell_its_variety_with_coverage_and_mmd():
    """Coverage and MMD are of cars that it was not trained on; no page tells variety alone."""
    measured = json.loads(FILE.with_name(METRICS_FILE).read_text())
    variety, found = measured["variety"], measured["coverage"]
    assert found["reference_is"] == "toy cars that are in no data set"
    docs = FILE.parents[1] / "docs"
    lines = (docs / "evaluation.md").read_text().splitlines()
    rows = {cells[1]: cells[3:5] for cells in ([cell.strip() for cell in line.split("|")] for line in lines) if len(cells) > 5}
    assert rows["variety (`share_of_data`)"][0] == f"{variety['share_of_data']:.2f}"
    assert rows["coverage"] == [f"{found['coverage']:.2f}", f"`coverage_best`, {found['coverage_best']:.2f}"]
    assert rows["MMD x 1000"] == [f"{1000 * found['mmd']:.1f}", f"`mmd_best`, {1000 * found['mmd_best']:.1f}"]
    for page in [*docs.glob("*.md"), FILE.with_suffix(".md"), *docs.parent.glob("README*.md")]:
        text = page.read_text().lower()
        assert "variety" not in text or "mmd" in text, page


def test_a_car_stands_in_the_middle_and_nothing_at_the_edge(generator):
    latents = generator.sample_latents(4, torch.Generator().manual_seed(0))
    azimuths = torch.tensor([0.0, 90.0, 180.0, 270.0])
    view = generator.render(latents, poses_at(azimuths, torch.full((4,), 0.35), radius=3.6))
    assert view.images.shape == (4, 3, 64, 64) and view.images.isfinite().all()
    middle, edge = view.opacity[..., 28:36, 28:36], torch.cat([view.opacity[..., :2, :], view.opacity[..., -2:, :]], dim=-2)
    assert middle.mean() > 0.9
    assert edge.max() < 0.1
