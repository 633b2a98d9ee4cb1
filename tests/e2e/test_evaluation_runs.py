"""eval.py as a user types it, on a run of configs/smoke.yaml."""

import json

import imageio.v2 as imageio
import pytest
import torch_fidelity
import trimesh
from command_line import SMOKE, run

from graf.config import load_config
from graf.evaluation.extractors import choose_extractor

LITE = "efficientnet-lite0"
FEW = ["metrics.n_fake=10", f"metrics.extractor={LITE}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a run of two steps is."""
    folder = tmp_path_factory.mktemp("runs")
    run("train.py", *SMOKE, "--max_steps", "2", "--set", "training.sample_every=2", *FEW, cwd=folder)
    return folder


@pytest.fixture
def out(folder):
    return folder / "results" / "smoke" / "eval" / "step_00000002"


def test_metrics_are_those_of_torch_fidelity_on_the_dumped_samples(folder, out):
    said = run("eval.py", *SMOKE, "--metrics", "fid,kid,prc", "--dump_samples", "dump", cwd=folder)
    assert f"FID ({LITE})" in said
    result = json.loads((out / "metrics.json").read_text())
    extractor = choose_extractor(load_config(None, FEW).metrics)
    direct = torch_fidelity.calculate_metrics(
        input1=str(folder / "dump"),
        input2=str(folder / "dump" / "real"),
        fid=True,
        kid=True,
        prc=True,
        kid_subset_size=10,
        feature_extractor=LITE,
        feature_extractor_weights_path=str(extractor.weights),
        cuda=False,
        cache=False,
        verbose=False,
        save_cpu_ram=True,
    )
    assert result["values"][f"fid_{LITE}"] == pytest.approx(direct["frechet_inception_distance"], rel=1e-6)
    assert result["values"][f"kid_{LITE}"] == pytest.approx(direct["kernel_inception_distance_mean"], rel=1e-6)
    assert result["values"][f"precision_{LITE}"] == direct["precision"]
    assert (result["step"], result["ema"], result["n_fake"], result["protocol"]) == (2, True, 10, "counts")
    assert len(result["checkpoint_sha256"]) == len(result["generator_sha256"]) == 64
    assert len(list((folder / "dump").glob("*.png"))) == 10

    said = run("eval.py", *SMOKE, "--metrics", "kid", "--dump_samples", "dump", cwd=folder, status=2)
    assert "not empty" in said


def test_a_dump_without_metrics_is_refused(folder):
    assert "--metrics" in run("eval.py", *SMOKE, "--dump_samples", "other", cwd=folder, status=2)


@pytest.mark.parametrize("wrong", [["--metrics", "is"], ["--truncation", "1.5"], ["--invert", "nowhere.png"]])
def test_a_wrong_flag_is_said(folder, wrong):
    said = run("eval.py", *SMOKE, *wrong, cwd=folder, status=2)
    assert wrong[1] in said


def test_a_sweep_goes_on_where_it_was(folder, tmp_path):
    sweep = ["eval.py", *SMOKE, "--sweep", "--n_objects", "2", "--azimuths", "0,90", "--out", str(tmp_path)]
    run(*sweep, cwd=folder)
    frames = sorted((tmp_path / "frames" / "rotation").glob("rgb_*.png"))
    sheet, kept = (tmp_path / "sweep_rgb.png").read_bytes(), [frame.stat().st_mtime_ns for frame in frames]
    assert len(frames) == 72
    lost = frames[-1].read_bytes()
    frames[-1].unlink()
    run(*sweep, cwd=folder)
    assert frames[-1].read_bytes() == lost
    assert [frame.stat().st_mtime_ns for frame in frames[:-1]] == kept[:-1]
    assert (tmp_path / "sweep_rgb.png").read_bytes() == sheet
    said = run(*sweep, "--seed", "1", cwd=folder)
    assert "are replaced" in said
    assert (tmp_path / "sweep_rgb.png").read_bytes() != sheet


def test_everything_there_is_to_look_at(folder, out):
    flags = ["--sweep", "--consistency", "--sheets", "--neighbours", "--mesh", "--reconstruction", "--report"]
    small = ["--n_objects", "1", "--mesh_resolution", "24", "--mesh_level", "0.5", "--truncation", "0.7"]
    run("eval.py", *SMOKE, *flags, *small, cwd=folder)
    names = {path.name for path in out.iterdir()}
    assert {"interpolation_shape.png", "interpolation_appearance.mp4", "truncation.png", "neighbours.png"} <= names
    assert {"real_against_fake.png", "sweep_rgb.png", "rotation_depth.mp4"} <= names
    assert trimesh.load_mesh(out / "mesh" / "object_00.ply").is_watertight
    assert (out / "reconstruction" / "transforms.json").exists()
    consistency = json.loads((out / "metrics.json").read_text())["consistency"]
    assert consistency["popping"] >= 1
    page = (folder / "results" / "smoke" / "report.html").read_text()
    assert "sweep_rgb.png" in page
    assert "data:image/png;base64," in page

    photograph = out / "frames" / "sweep" / "rgb_00000.png"
    run("eval.py", *SMOKE, "--invert", str(photograph), cwd=folder)
    found = json.loads((out / "inversion" / "inversion.json").read_text())
    assert imageio.imread(out / "inversion" / "fit.png").ndim == 3
    assert len(found["photographs"]) == 1
