"""tools/find_cameras.py as a user types it: rounds to their end, and again after an interruption."""

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace

from graf.checkpoints.checkpoint import read_checkpoint
from graf.config import load_config
from graf.data import build_dataset
from graf.finding import rounds
from graf.finding.rounds import Round
from graf.runtime.run_lock import run_lock
from tools import find_cameras

import pytest
import torch
from command_line import ROOT, call
from PIL import Image

ESTIMATOR = """
model: {azimuth_bins: 12, d_model: 8, num_heads: 2, num_layers: 1}
training: {max_steps: 2, batch_size: 4, nworkers: 0, monitoring: none}
"""
# Comes to its end although it gets a signal, which the tool passes on.
DEAF = """
import os, signal, time
signal.signal(signal.NAME, lambda *_: None)
time.sleep(0.3)
os.kill(os.getppid(), signal.NAME)
time.sleep(0.3)
"""
ENCODER = ("--set", "encoder.first_steps=4", "encoder.weight=1", "ccsr.unrefined_steps=0")
PARTS = ("views", "estimator", "photographs", "generator", "sheet.png", "round.json")


@pytest.fixture
def find(tmp_path, monkeypatch):
    """Runs the tool on sixteen cars; train.py and train_pose.py run in this process, and draw nothing. `ends_after`: a number
    of runs; `at_step`: where the next one is interrupted, which otherwise does not begin."""
    monkeypatch.setattr("graf.commands.run.draw_curves", lambda *_: [])
    monkeypatch.setattr("graf.commands.train_pose.draw_validation", lambda _: None)
    (tmp_path / "estimator.yaml").write_text(ESTIMATOR)

    def find(
        out: str,
        *flags: str,
        ends_after: int | None = None,
        at_step: int | None = None,
        status: int = 0,
        n_rounds: int = 1,
        max_steps: int = 4,
        config: Path = ROOT / "configs" / "smoke.yaml",
    ) -> str:
        runs: list[str] = []

        def run(command: list[str]) -> int:
            if len(runs) == ends_after:
                if at_step:
                    call(Path(command[0]).name, *command[1:], "--max_steps", str(at_step), cwd=tmp_path)
                return 130
            runs.append(call(Path(command[0]).name, *command[1:], cwd=tmp_path))
            return 0

        monkeypatch.setattr(find_cameras, "run", run)
        small = [*flags, "--config", str(config), "--estimator", "estimator.yaml", "--device", "cpu"]
        small += ["--views", "16", "--rounds", str(n_rounds), "--set", "data.n_images=16", f"training.max_steps={max_steps}"]
        return call("tools/find_cameras.py", "--out", out, *small, cwd=tmp_path, status=status)

    return find


def content_of(folder: Path) -> dict[str, bytes | list[torch.Tensor]]:
    """What is to be the same bit for bit: the weights of runs, and all files that are not of a run."""
    found: dict = {name: (folder / name).read_bytes() for name in ("sheet.png", "round.json")}
    for part in ("views", "photographs"):
        found |= {str(file.relative_to(folder)): file.read_bytes() for file in (folder / part).rglob("*.*")}
    for run, network in (("estimator", "estimator"), ("generator", "generator_ema")):
        state = read_checkpoint(folder / run / "model.pt")["state"][network]
        found[run] = [value for _, value in sorted(state.items())]
    return found


def assert_same(whole: dict, resumed: dict) -> None:
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        assert value == resumed[name] if isinstance(value, bytes) else all(map(torch.equal, value, resumed[name])), name


def test_views_of_another_seed_and_of_a_later_round_are_of_other_objects(tmp_path, monkeypatch):
    seeds = []
    monkeypatch.setattr(find_cameras, "load_generator", lambda run, device: SimpleNamespace(config=load_config(run)))
    monkeypatch.setattr(find_cameras, "build_dataset", lambda config: None)
    monkeypatch.setattr(rounds, "view_sampler", lambda dataset, data: None)
    monkeypatch.setattr(rounds, "write_views", lambda folder, generator, sampler, n, seed: seeds.append(seed))
    for number, training in enumerate(("{seed: 1, max_steps: 10}", "{seed: 1, max_steps: 30}", "{seed: 2, max_steps: 10}")):
        (tmp_path / f"{number}.yaml").write_text(f"training: {training}")
        find_cameras.make_views(tmp_path / "views", tmp_path / f"{number}.yaml", 5, torch.device("cpu"))
    assert len(set(seeds)) == 3


def test_a_round_goes_on_bit_for_bit(find, tmp_path):
    said = find("whole")
    for part in PARTS:
        assert (tmp_path / "whole" / "round_1" / part).exists(), said
    assert (tmp_path / "whole" / "round_0" / "sheet.png").exists()
    assert len(load_config(tmp_path / "whole" / "round_1" / "generator" / "config.yaml").data.box) == 6  # by the found cameras
    whole = content_of(tmp_path / "whole" / "round_1")
    for ends_after in (0, 1, 1):
        find("resumed", ends_after=ends_after, status=130)
    find("resumed")
    assert_same(whole, content_of(tmp_path / "resumed" / "round_1"))
    record = json.loads(whole["round.json"])
    assert 0 < record["confidence"] <= 1 and record["held_out_views"]["calibration"]
    assert "is done" in find("whole", ends_after=0)
    assert "expect errors as large" in said  # two steps teach nothing
    assert "these cameras are not to be trusted" in find("whole", ends_after=0)
    assert "round 0 has not ended (exit status 130); the same command continues it" in find("new", ends_after=0, status=130)
    assert "choose another --out" in find("whole", "--keep", "0.5", status=2)
    assert "is done" in find("whole", "--set", "training.fid_every=7", "training.sample_every=1min", ends_after=0)
    machine = (
        "training.nworkers=1",
        "data.cache_gb=0.5",
        "memory.budget_gb=9",
        "training.max_hours=3",
        "reporting.max_metric_rows=900",
    )
    assert "is done" in find("whole", "--set", *machine, ends_after=0)
    with run_lock(tmp_path / "whole"):
        assert "is training in this folder; wait for it or end it, or name another folder with --out" in find("whole", status=2)


def test_too_few_steps_for_photographs_are_told(find, tmp_path, monkeypatch):
    monkeypatch.setattr("graf.data.advice.warnings.FEW_IMAGES", 16)
    (tmp_path / "photos").mkdir()
    for index in range(16):
        Image.new("RGB", (16, 16), (16 * index, 0, 0)).save(tmp_path / "photos" / f"{index}.png")
    own = tmp_path / "own.yaml"
    own.write_text(f"inherit_from: {ROOT / 'configs' / 'smoke.yaml'}\ndata: {{type: images, datadir: photos}}\n")
    said = find("new", config=own, max_steps=20, ends_after=0, status=130)
    assert "training.max_steps: 20 is for toy cars; images with cameras take about 6,000" in said
    photograph, settings = tmp_path / "photos" / "3.png", tmp_path / "new" / "settings.json"
    os.utime(photograph, (1, 1))  # as a copy on another machine
    assert "continuing the set in it" in find("new", config=own, max_steps=20, ends_after=0, status=130)
    photograph.write_bytes(photograph.read_bytes() + b"more")
    assert "other photographs" in find("new", config=own, max_steps=20, status=2)
    unposed = rounds.unposed(load_config(own, [f"data.datadir={tmp_path}/photos"]), Round(tmp_path / "new", 0))
    older = {"photographs": build_dataset(unposed).fingerprint}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | older))
    assert "continuing the set in it" in find("new", config=own, max_steps=20, ends_after=0, status=130)


def test_a_folder_of_an_older_version_goes_on(find, tmp_path):
    find("old", ends_after=0, status=130)
    file = tmp_path / "old" / "settings.json"
    settings = json.loads(file.read_text())
    del settings["config"]["training"]["fused_field"], settings["estimator"]["training"]["blur"], settings["corrections"]
    settings["config"]["training"]["fid_every"] = 1000
    settings["config"]["discriminator"]["projected_weight"] = 2.0  # which nothing reads
    file.write_text(json.dumps(settings))
    assert "continuing the set in it" in find("old", ends_after=0, status=130)
    for decisive in ("training.fused_field=none", "training.reg_every=4"):
        assert "choose another --out" in find("old", "--set", decisive, status=2)
    file.write_text(json.dumps(settings | {"photographs": "others"}))
    assert "contains a set with other photographs (see settings.json); choose another --out" in find("old", status=2)
    for config in (None, "text", {}):
        file.write_text(json.dumps({"config": config}))
        assert "settings.json: cannot be read; choose another --out" in find("old", status=2)


def test_corrections_go_on_bit_for_bit(find, tmp_path):
    assert "training.max_steps 2 to images with all" not in find("whole", *ENCODER, max_steps=12)  # corrections need none
    for ends_after, at_step in ((2, None), (1, 1), (2, None), (2, 9)):  # the estimator is asked for again
        find("resumed", *ENCODER, ends_after=ends_after, at_step=at_step, status=130, max_steps=12)
    find("resumed", *ENCODER, max_steps=12)
    whole, resumed = (tmp_path / out / "round_1" for out in ("whole", "resumed"))
    assert_same(content_of(whole), content_of(resumed))
    corrections = [Round(tmp_path / "whole", 1, correction=number) for number in (1, 2)]
    for correction in corrections:
        name = correction.cameras.relative_to(whole)
        assert (whole / name).read_bytes() == (resumed / name).read_bytes()
        assert load_config(correction.generator / "config.yaml").training.max_steps == 2
        assert len(list((correction.photographs / "000_toy_cars").glob("*.png"))) == 14
    assert not Round(tmp_path / "whole", 1, correction=3).folder.exists()
    told = json.loads(corrections[-1].cameras.read_text())
    frames = json.loads((whole / "photographs" / "000_toy_cars" / "transforms.json").read_text())["frames"]
    kept = {frame["confidence"] for frame in frames}
    assert kept <= {round(confidence, 3) for confidence in told["confidence"]} and len(frames) == 14  # 0.9 of them
    last, record = load_config(whole / "generator" / "config.yaml"), json.loads((whole / "round.json").read_text())
    assert (last.training.max_steps, last.encoder.first_steps) == (12, 4)
    assert record["confidence"] == pytest.approx(sum(told["confidence"]) / 16)
    before, after = (torch.tensor(json.loads(each.cameras.read_text())["azimuth_deg"]) for each in corrections)
    assert record["turned"][1:] == [((before - after + 180) % 360 - 180).abs().gt(90).double().mean()]


def test_the_last_of_several_rounds_alone_is_corrected_and_begins_anew(find, tmp_path):
    find("two", *ENCODER, "--corrections", "1", n_rounds=2, max_steps=12)
    first, last = (load_config(Round(tmp_path / "two", number).generator / "config.yaml") for number in (1, 2))
    assert (first.encodes_images, last.encodes_images) == (False, True)
    assert (first.training.max_steps, last.training.max_steps) == (3, 12)
    metrics = (Round(tmp_path / "two", 2).generator / "metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[0])["step"] == 1
    assert sorted(path.name for path in (tmp_path / "two").glob("round_*/correction_*")) == ["correction_1"]
    assert Round(tmp_path / "two", 2, correction=1).cameras.exists()


def test_the_last_generator_has_the_files_discriminator_and_what_comes_before_convolutions_alone(find, tmp_path):
    config = tmp_path / "mixed.yaml"
    config.write_text(f"inherit_from: {ROOT / 'configs' / 'smoke.yaml'}\ndiscriminator: {{architecture: mixed}}")
    said = find("mixed", *ENCODER, "--corrections", "1", config=config, max_steps=12, ends_after=3, status=130)
    assert "discriminator.architecture=graf before the last generator" in said
    last = Round(tmp_path / "mixed", 1)
    rounds_before = (Round(tmp_path / "mixed", 0), dataclasses.replace(last, correction=1))
    configs = [load_config(find_cameras.config_file(each.generator)) for each in (*rounds_before, last)]
    assert [each.discriminator.architecture for each in configs] == ["graf", "graf", "mixed"]
    assert "choose another --out" in find(
        "mixed", *ENCODER, "discriminator.ndf=9", "--corrections", "1", config=config, status=2
    )


def test_first_steps_that_leave_none_to_the_discriminator_are_told_before_the_first_round(find):
    said = find("few", *ENCODER, "encoder.first_steps=12", max_steps=12, ends_after=0, status=130)
    assert "leave none of training.max_steps 12" in said


def test_without_an_encoder_nothing_is_corrected(find, tmp_path):
    find("none", "--corrections", "0", ends_after=0, status=130)
    settings = json.loads((tmp_path / "none" / "settings.json").read_text())
    assert settings["corrections"] == 0 and settings["config"]["encoder"]["weight"] == 0
    find("none", ends_after=0, status=130)
    assert "--corrections 1: needs a config with an encoder" in find("none", "--corrections", "1", status=2)


def test_cameras_of_a_narrow_range_are_not_corrected(find, tmp_path):
    said = find("narrow", *ENCODER, "data.umax=0.5", ends_after=2, status=130, max_steps=12)
    assert "azimuths are from 0 to 180 degrees, not all around, so no camera is corrected" in said
    assert Round(tmp_path / "narrow", 1).generator.with_name("generator.yaml").exists()
    assert not Round(tmp_path / "narrow", 1, correction=1).folder.exists()


def test_a_set_that_an_older_version_began_goes_on_without_the_encoder_of_its_config(find, tmp_path):
    find("old", ends_after=0, status=130)
    file = tmp_path / "old" / "settings.json"
    settings = json.loads(file.read_text())
    del settings["corrections"]
    settings["config"]["encoder"] |= {"first_steps": 4, "weight": 1.0}
    file.write_text(json.dumps(settings))
    said = find("old", *ENCODER, status=2)
    assert "settings.json: an older version began this set, whose last generator has no encoder; it goes on with --set" in said
    assert "continuing the set in it" in find("old", ends_after=0, status=130)


def test_a_start_that_is_not_possible_is_told(find, monkeypatch):
    monkeypatch.setattr(rounds, "STARTS", (lambda *_: None,))
    assert "start 1: not possible with these photographs" in find("told", "--starts", "2", ends_after=0, status=130)


def test_an_out_within_the_photographs_is_refused(tmp_path):
    (tmp_path / "photos").mkdir()
    for out in ("photos", "photos/cameras"):
        said = call("tools/find_cameras.py", "--data_dir", "photos", "--out", out, cwd=tmp_path, status=2)
        assert f"--out {out}: lies within the photographs' folder photos" in said


def test_the_second_round_goes_on_with_the_generator_of_the_first_and_its_box(find, tmp_path):
    asked = {"n_rounds": 2, "max_steps": 8}
    find("whole", **asked)
    first, second = (tmp_path / "whole" / f"round_{number}" / "generator" / "config.yaml" for number in (1, 2))
    assert load_config(first).data.box == load_config(second).data.box != "none"
    assert [load_config(file).training.max_steps for file in (first, second)] == [2, 7]
    find("resumed", ends_after=4, status=130, **asked)
    find("resumed", ends_after=1, at_step=5, status=130, **asked)
    assert (tmp_path / "resumed" / "round_2" / "generator").exists()
    find("resumed", **asked)
    assert_same(*(content_of(tmp_path / name / "round_2") for name in ("whole", "resumed")))


def test_starts_go_on_bit_for_bit(find, tmp_path):
    for out, endings in (("whole", [6]), ("resumed", [1, 2, 4, 3])):  # a start has three runs, which are asked for again
        for ends_after in endings:
            find(out, "--starts", "2", ends_after=ends_after, status=130)
    first, again = (tmp_path / out / "round_0" for out in ("whole", "resumed"))
    assert (first / "round.json").read_bytes() == (again / "round.json").read_bytes()
    for start in ("start_0", "start_1"):
        for name in ("round.json", "sheet.png"):
            assert (first / start / name).read_bytes() == (again / start / name).read_bytes()
        for run, network in (("generator", "generator_ema"), ("estimator", "estimator"), ("estimator_again", "estimator")):
            ours, theirs = (read_checkpoint(folder / start / run / "model.pt")["state"][network] for folder in (first, again))
            assert all(torch.equal(ours[name], theirs[name]) for name in ours), (start, run)


def test_the_start_about_which_two_estimators_agree_is_taken(find, tmp_path, monkeypatch):
    answers = iter((0.2, 0.7, 0.4))
    monkeypatch.setattr(find_cameras, "agreement", lambda first, second: next(answers))
    find("chosen", "--starts", "3", ends_after=9, status=130)
    first = Round(tmp_path / "chosen", 0)
    record = json.loads(first.record.read_text())
    assert (record["start"], record["agreements"]) == (1, [0.2, 0.7, 0.4])
    assert first.generator == tmp_path / "chosen" / "round_0" / "start_1" / "generator"
    assert first.sheet == first.generator.with_name("sheet.png") and first.sheet.exists()
    configs = [load_config(first.folder / f"start_{n}" / "generator.yaml") for n in (0, 1, 2)]
    assert [config.training.seed for config in configs] == [0, 1, 2]
    assert [config.data.labels for config in configs] == ["none", "transforms", "none"]  # those by silhouettes were written
    assert [config.data.umax - config.data.umin for config in configs] == [1, 1, 0.25]
    assert (tmp_path / "chosen" / "round_1" / "views" / "transforms.json").exists()


def test_rounds_have_convolutions_alone_whatever_the_file_says_unless_another_is_set(find, tmp_path):
    config = tmp_path / "mixed.yaml"
    config.write_text(f"inherit_from: {ROOT / 'configs' / 'smoke.yaml'}\ndiscriminator: {{architecture: mixed}}")
    told = "discriminator.architecture=graf in all rounds"
    for out, flags in (("graf", ()), ("mixed", ("--set", "discriminator.architecture=mixed"))):
        said = find(out, *flags, config=config, ends_after=1, status=130)  # the silhouettes' generator has a config
        of_round = load_config(Round(tmp_path / out, 0).folder / "generator.yaml")
        assert of_round.discriminator.architecture == out and (told in said) == (out == "graf")


@pytest.mark.parametrize(
    "flags, told",
    [
        (["--keep", "0"], "--keep 0: expected a share"),
        (["--estimator", "pose"], "model.azimuth_bins is 0; set it to 24"),
        (
            ["--rounds", "2", "--set", "training.max_steps=3"],
            "training.max_steps: 3 steps are too few for 2 rounds and the first",
        ),
        (["--rounds", "2", "--set", "training.max_steps=0"], "set more steps, or fewer --rounds"),
        (
            ["--config", "convolutional", "--rounds", "1", "--set", "training.max_steps=0"],
            "training.max_steps: 0 steps are too few for 1 round and the first; set more steps\n",
        ),
        (
            ["--set", "training.max_steps=3", "encoder.weight=1"],
            "training.max_steps: 3 steps are too few for 1 round and the first, with corrections; set more steps\n",
        ),
        (["--corrections", "-1"], "--corrections -1: expected a number from 0"),
        (["--data_dir", "phtos"], "phtos"),
        (
            ["--set", "data.n_images=8", "data.imsize=16"],
            "7 of 8 photographs are left by --keep 0.9, fewer than training.batch",
        ),
        (
            ["--views", "30", "--set", "data.n_images=9", "data.imsize=16"],
            "--views 30: an estimator learns from some 24 of them, fewer than the training.batch_size 32",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(find, tmp_path, flags, told):
    said = call("tools/find_cameras.py", *flags, cwd=tmp_path, status=2)
    assert told in said
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 15)", 143),
        (DEAF.replace("NAME", "SIGINT"), 130),
        (DEAF.replace("NAME", "SIGUSR1"), 3),
    ],
)
def test_the_status_of_a_run_is_that_of_its_program(program, status):
    assert find_cameras.run(["-c", program]) == status
