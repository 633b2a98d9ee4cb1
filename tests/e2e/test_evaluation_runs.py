"""eval.py as a user types it, on a run of configs/smoke.yaml."""

import functools
import importlib.util
import json
import re
import shutil
import sys

import eval as evaluation
from graf.checkpoints.generator_loading import load_generator
from graf.commands import eval as command
from graf.config import load_config
from graf.export import rasters
from graf.inversion.loss import InversionSettings
from graf.metrics.consistency import rotation_smoothness
from graf.metrics.extractors import choose_extractor
from graf.pictures import sweep
from graf.pictures.outputs import write_image
from graf.runtime.files import file_sha256

import imageio.v2 as imageio
import pytest
import torch
import torch_fidelity
import trimesh
from command_line import SMOKE, call

LITE = "efficientnet-lite0"
FEW = ["metrics.n_fake=10", f"metrics.extractor={LITE}"]
HAS_XATLAS = importlib.util.find_spec("xatlas") is not None  # requirements.txt leaves it out where it has no wheel


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run of two steps."""
    folder = tmp_path_factory.mktemp("runs")
    call("train.py", *SMOKE, "--max_steps", "2", "--set", "training.sample_every=2", *FEW, cwd=folder)
    return folder


@pytest.fixture
def out(folder):
    return folder / "results" / "smoke" / "eval" / "step_00000002"


def test_metrics_are_those_of_torch_fidelity_on_the_dumped_samples(folder, out):
    said = call("eval.py", *SMOKE, "--metrics", "fid,kid,prc", "--dump_samples", "dump", cwd=folder)
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

    said = call("eval.py", *SMOKE, "--metrics", "kid", "--dump_samples", "dump", cwd=folder, status=2)
    assert "not empty" in said


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--dump_samples", "other"], "--dump_samples: writes the samples that --metrics measures"),
        (["--metrics", "haze", "--dump_samples", "other"], "--dump_samples: writes the samples that --metrics measures"),
        (
            ["--metrics", "is"],
            "expected some of fid,kid,prc,kid_independent,variety,coverage,haze,mmd,pose,memorised with commas",
        ),
        (["--truncation", "1.5"], "expected a number from 0 to 1, found '1.5'"),
        (["--invert", "nowhere.png"], "nowhere.png"),
        (["--run", "results/smoke"], "--config beside --run: each names the run"),
        (["--run", "results/smoke", "--checkpoint", "x.pt"], "--run beside --checkpoint: each names what to look at"),
        (["--seed", str(2**64)], "expected a whole number from 0 to 4294967296, found '18446744073709551616'"),
        (["--seed", "-1"], "expected a whole number from 0 to 4294967296, found '-1'"),
        (["--metrics", "kid", "--resolution", "32"], "--resolution: has no effect on --metrics; use it with --sweep"),
        (["--resolution", "33"], "--resolution 33: must be a multiple of ccsr.scale_factor 2"),
        (["--consistency", "--stage", "nerf"], "--stage: has no effect on --consistency; use it with --sweep"),
        (["--report", "--truncation", "0.5"], "--truncation: has no effect on --report"),
        (["--metrics", "kid", "--azimuths", "0,90"], "--azimuths: has no effect on --metrics; use it with --sweep"),
        (["--mesh", "--elevations", "10"], "--elevations: has no effect on --mesh; use it with --sweep"),
        (
            ["--invert", "x.png", "--n_objects", "2"],
            "--n_objects: has no effect on --invert; use it with --sweep, --sheets, --directions, --mesh",
        ),
        (["--mesh_resolution", "24"], "--mesh_resolution: has no effect on --sweep; use it with --mesh"),
        (["--mesh", "--mesh_resolution", "7"], "--mesh_resolution: expected at least 8 cells, found '7'"),
        (
            ["--metrics", "kid", "--sweep", "--resolution", "32"],
            "--resolution: has no effect on --metrics, which is asked for beside --sweep; ask for them one after the other",
        ),
        (
            ["--consistency", "--sweep", "--stage", "nerf"],
            "--stage: has no effect on --consistency, which is asked for beside",
        ),
        (["--invert", "x.png", "--mesh"], "--mesh beside --invert: would be of sampled objects, not of the photograph's"),
        (["--invert", "x.png", "--latents", "y.json"], "--latents: has no effect on --invert; use it with --sweep"),
        (["--latents", "nowhere.json"], "nowhere.json: no such file; eval.py --invert writes such a file"),
        (["--latents", "nowhere.json", "--n_objects", "2"], "--n_objects beside --latents: there are as many objects as files"),
        (["--sweep", "--metrics", "kid", "--latents", "x"], "--latents: has no effect on --metrics, which is asked for beside"),
        (["--sweep", "--tune", "9"], "--tune: has no effect on --sweep; use it with --invert"),
        (["--invert", "x.png", "--tune", "-1"], "--tune: expected a whole number of steps, found '-1'"),
        (["--invert", "x.png", "--sweep", "--splats"], "--sweep, --splats beside --invert: would be of sampled objects"),
        (["--invert", "x.png", "--reconstruction"], "--reconstruction beside --invert"),
        (["--sheets", "--mesh_level", "2"], "--mesh_level: has no effect on --sheets; use it with --mesh"),
    ],
)
def test_a_wrong_flag_is_said(folder, wrong, message):
    assert message in call("eval.py", *SMOKE, *wrong, cwd=folder, status=2)


@pytest.mark.parametrize(
    "flags",
    [
        ["--metrics", "kid", "--neighbours", "--truncation", "0.7"],
        ["--sweep", "--truncation", "0.7", "--resolution", "32", "--report", "--export", "a.safetensors"],  # these draw nothing
        ["--sweep", "--mesh", "--mesh_resolution", "64", "--azimuths", "0,90", "--n_objects", "2"],  # whose is whose is clear
        ["--sweep", "--metrics", "kid", "--plain"],
        ["--invert", "x.png", "--metrics", "kid", "--estimator", "results/pose"],
    ],
)
def test_flags_that_say_enough_go_together(flags):
    evaluation.refuse_unused(evaluation.parser().parse_args(flags))


def test_a_run_that_was_moved_asks_for_its_photographs(tmp_path):
    """By the run's config, which names them, and what to say instead."""
    photos = tmp_path / "trained" / "photos"
    for index in range(6):
        write_image(photos / f"IMG_{index}.png", torch.full((3, 16, 16), 40 * index, dtype=torch.uint8))
    call("train.py", *SMOKE, "--data_dir", "photos", "--max_steps", "1", "--set", *FEW, cwd=photos.parent)
    shutil.move(photos.parent / "results" / "smoke", tmp_path / "moved")
    measured = ("eval.py", "--run", "moved", "--device", "cpu", "--metrics", "kid")
    said = call(*measured, cwd=tmp_path, status=2)
    assert f"photos: no such folder in {tmp_path}; the run's config (moved/config.yaml) names it" in said
    assert "--set data.datadir=FOLDER" in said
    assert "nowhere: no such folder; set data.datadir" in call(
        *measured, "--set", "data.datadir=nowhere", cwd=tmp_path, status=2
    )
    assert "KID" in call(*measured, "--set", "data.datadir=trained/photos", *FEW, cwd=tmp_path)


def test_degrees_may_begin_with_a_minus():
    def parsed(*arguments):
        return evaluation.parser().parse_args(evaluation.with_signs(arguments))

    args = parsed("--azimuths", "-90,0", "--elevations", "-10", "--sweep")
    assert (args.azimuths, args.elevations, args.sweep) == ([-90, 0], [-10], True)
    assert parsed("--azimuths=-.5,1", "--elevations", "10,-30").elevations == [10, -30]
    with pytest.raises(SystemExit):
        parsed("--azimuths", "--sweep")


def test_what_was_measured_before_is_kept(folder, tmp_path, monkeypatch):
    """Distances and consistency under one checkpoint in one file; what cannot stand there is kept in others beside it."""
    monkeypatch.chdir(folder)

    def measured(*flags):
        arguments = evaluation.with_signs([*SMOKE, "--out", str(tmp_path), *flags])
        monkeypatch.setattr(sys, "argv", ["eval.py", *arguments])
        assert evaluation.main() == 0
        return json.loads((tmp_path / "metrics.json").read_text())

    kid = measured("--metrics", "kid", "--truncation", "0.5")
    assert kid["truncation"] == 0.5
    both = measured("--metrics", "prc", "--truncation", "0.5")
    assert both["values"].keys() > kid["values"].keys()
    assert not (tmp_path / "metrics_1.json").exists()
    assert measured("--metrics", "prc")["values"].keys() == both["values"].keys() - kid["values"].keys()
    assert json.loads((tmp_path / "metrics_1.json").read_text()) == both
    monkeypatch.setattr(command, "multi_view_consistency", lambda *_, **__: {"pairs": 1})
    monkeypatch.setattr(command, "rotation_smoothness", lambda *_, **__: {})
    found = measured("--consistency")
    assert found["consistency"]["mean_opacity"] > 0
    assert found["values"].keys() == both["values"].keys() - kid["values"].keys()
    monkeypatch.setattr(command, "multi_view_consistency", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measured("--metrics", "kid,prc", "--consistency")
    after = json.loads((tmp_path / "metrics.json").read_text())
    assert after["values"].keys() == both["values"].keys()
    assert after["consistency"] == found["consistency"]
    (tmp_path / "metrics.json").write_text(json.dumps(after | {"checkpoint_sha256": "another"}))
    assert "consistency" not in measured("--metrics", "kid")
    assert json.loads((tmp_path / "metrics_2.json").read_text()) == after | {"checkpoint_sha256": "another"}


def test_results_name_the_file_that_was_read_whatever_became_of_it(folder, tmp_path, monkeypatch):
    checkpoint = tmp_path / "model.pt"
    shutil.copy(folder / "results" / "smoke" / "model.pt", checkpoint)
    before, measure = file_sha256(checkpoint), command.measure_generator
    monkeypatch.chdir(folder)
    flags = ["--checkpoint", str(checkpoint), "--metrics", "kid", "--out", str(tmp_path), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["eval.py", *flags])
    monkeypatch.setattr(command, "measure_generator", lambda *a, **b: checkpoint.unlink() or measure(*a, **b))
    assert evaluation.main() == 0
    assert json.loads((tmp_path / "metrics.json").read_text())["checkpoint_sha256"] == before


def test_a_sweep_is_the_same_again_and_another_with_another_seed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "VIDEO_FRAMES", 8)
    command_line = ["eval.py", *SMOKE, "--sweep", "--n_objects", "1", "--azimuths", "0,90", "--out", str(tmp_path)]
    call(*command_line, cwd=folder)
    sheet = (tmp_path / "sweep_rgb.png").read_bytes()
    call(*command_line, cwd=folder)
    assert (tmp_path / "sweep_rgb.png").read_bytes() == sheet
    call(*command_line, "--seed", "1", cwd=folder)
    assert (tmp_path / "sweep_rgb.png").read_bytes() != sheet


def test_everything_there_is_to_look_at(folder, out, monkeypatch):
    monkeypatch.setattr(rasters, "DRAWN_SIDE", 64)  # exports are drawn for a window of this side, pixel by pixel
    monkeypatch.setattr(sweep, "VIDEO_FRAMES", 8)  # of 72, which test_training_runs.py counts
    few_steps = functools.partial(InversionSettings, azimuths=6, search_steps=2, fit_steps=4)  # no test of a fit's quality
    monkeypatch.setattr(command, "InversionSettings", few_steps)
    flags = ["--sweep", "--consistency", "--sheets", "--neighbours", "--mesh", "--splats", "--reconstruction", "--report"]
    flags += ["--directions", "2"]
    flags += ["--textured"] if HAS_XATLAS else []
    small = ["--n_objects", "1", "--mesh_resolution", "24", "--mesh_level", "0.2", "--truncation", "0.7"]
    call("eval.py", *SMOKE, *flags, *small, cwd=folder)
    for job in evaluation.JOBS:  # the files by which each knows those of others
        written = {path.relative_to(out).as_posix() for path in (*out.glob("*"), *out.glob("*/*")) if path.is_file()}
        assert job.name == "report" or not job.files or any(re.fullmatch(job.files, name) for name in written)
    kept = re.compile(r"metrics\.json|reconstruction/.*")
    known = "|".join(job.files for job in evaluation.JOBS if job.files)
    assert [name for name in written if not re.fullmatch(known, name) and not kept.fullmatch(name)] == []
    names = {path.name for path in out.iterdir()}
    assert {"interpolation_shape.png", "interpolation_appearance.mp4", "truncation.png", "neighbours.png"} <= names
    assert {"directions.json", "direction_shape_1.png", "direction_appearance_2.png"} <= names
    assert {"real_against_fake.png", "sweep_rgb.png", "rotation_depth.mp4"} <= names
    assert trimesh.load_mesh(out / "mesh" / "object_00.ply").is_watertight
    assert (out / "reconstruction" / "transforms.json").exists()
    assert {"object_00.ply", "rendered_back.png"} == {path.name for path in (out / "splats").iterdir()}
    found = json.loads((out / "metrics.json").read_text())
    assert (out / "mesh" / "rendered_back.png").exists() == HAS_XATLAS
    rendered = ("mesh", "splats") if HAS_XATLAS else ("splats",)
    assert all(found[name]["objects"] == 1 and found[name]["psnr_db"] > 0 for name in rendered)
    consistency = found["consistency"]
    assert consistency["popping"] == pytest.approx(
        rotation_smoothness(load_generator(out.parents[1]), 4, 0, truncation=0.7)["popping"], rel=0.01
    )
    assert consistency["truncation"] == 0.7
    assert 0 < consistency["mean_opacity"] < 1 and consistency["empty_share"] == 0
    assert found["sweep"]["low_resolution_error"] < 1e-5 < found["sweep"]["low_resolution_error_8bit"]
    page = (folder / "results" / "smoke" / "report.html").read_text()
    assert "sweep_rgb.png" in page
    assert "data:image/png;base64," in page

    photograph = out / "reconstruction" / "images" / "0000.png"
    trained = (folder / "results" / "smoke" / "model.pt").read_bytes()
    said = call("eval.py", *SMOKE, "--invert", str(photograph), "--tune", "2", cwd=folder)
    assert (folder / "results" / "smoke" / "model.pt").read_bytes() == trained
    assert "dB before tuning" in said
    kept = out / "inversion" / "0000"
    for place in (kept, kept / "tuned"):
        assert imageio.imread(place / "fit.png").ndim == 3
        assert len(json.loads((place / "latents.json").read_text())["photographs"]) == 1
    tuned = "--checkpoint", str(kept / "tuned" / "0000.safetensors"), "--latents", str(kept / "tuned" / "latents.json")
    said = call("eval.py", "--device", "cpu", *tuned, "--sweep", "--out", "of_tuned", cwd=folder)
    assert "of other weights" not in said and (folder / "of_tuned" / "sweep_rgb.png").exists()


def test_results_of_a_checkpoint_from_elsewhere_are_said_to_lie_apart(folder, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(folder)
    shutil.copy(folder / "results" / "smoke" / "model.pt", tmp_path / "chairs.pt")
    names = iter("abc")

    def said(*flags):
        caplog.clear()
        monkeypatch.setattr(
            sys, "argv", ["eval.py", "--device", "cpu", "--export", str(tmp_path / f"{next(names)}.safetensors"), *flags]
        )
        with caplog.at_level("INFO", logger="graf"):
            assert evaluation.main() == 0
        return [message for message in caplog.messages if "in no run's folder" in message]

    apart = f"results/eval_{tmp_path.name}_chairs"
    assert said("--checkpoint", str(tmp_path / "chairs.pt")) == [
        f"the checkpoint is in no run's folder: results go to {apart}; --out names another"
    ]
    assert said("--checkpoint", str(tmp_path / "chairs.pt"), "--out", str(tmp_path / "out")) == []
    assert said("--run", "results/smoke") == []
