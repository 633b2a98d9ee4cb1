"""The table of what minutes of training are worth: rows as they come, and what they are of."""

import json
import sys

import bench.measure_training as program  # as command_line.call has it
import measure_training
from graf.config import CONFIG_DIR
from graf.errors import GrafError
from graf.models.rrdb import RRDBNet
from graf.runtime.files import json_rows
from measure_training import (
    CCSR,
    COLUMNS,
    DATA_ALONE,
    TIMED,
    main,
    measured_rows,
    timed_jobs,
    variant_config,
    write_table,
)
from recipe_parts import DEFAULT, PARTS, part_configs

import pytest
import torch
from command_line import ROOT, SMOKE, call

FEW = ("metrics.extractor=efficientnet-lite0", "metrics.n_real=4", "metrics.n_fake=4")
RRDB = ("ccsr.backbone=rrdb", "ccsr.rrdb.num_blocks=1", "ccsr.rrdb.nf=8", "ccsr.rrdb.gc=4")


def in_this_process(variant, flags, keep):
    """What measure_training.in_own_process does, without a process for each row, which would load PyTorch again."""
    lines = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [*sys.argv, "--variant", variant, *flags])
        patch.setattr(program.log, "info", lambda line, *values: lines.append(line % values if values else line))
        status = program.main()
    for row in json_rows(lines):
        keep(row)
    return status


def test_the_peak_is_measured_where_minute_0_is_too(tmp_path, monkeypatch):
    """In a process of its own; the others are this one, which has loaded PyTorch."""
    in_own_process = program.in_own_process

    def for_the_peak(variant, flags, keep):
        return (in_own_process if "0.0001" in flags else in_this_process)(variant, flags, keep)

    monkeypatch.setattr(program, "in_own_process", for_the_peak)
    rows = tmp_path / "new" / "rows.json"
    minutes = ["--minutes", "0", "0.0001", "--json", str(rows)]
    said = call("bench/measure_training.py", "progress", *SMOKE, "--set", *FEW, f"data.datadir={tmp_path}", *minutes, cwd=ROOT)
    start, end = json.loads(rows.read_text())
    assert (start["minutes"], end["minutes"]) == (0, 0.0001)
    assert start["step"] == 0 < end["step"]
    assert start["peak_bytes"] is None and end["peak_bytes"] > 0
    assert sum(line.startswith("| trained |") for line in said.splitlines()) == 2


def test_rows_are_printed_and_kept_as_they_come_and_outlive_a_variant_that_fails(monkeypatch, tmp_path, caplog):
    started, rows = [], tmp_path / "rows.json"

    def in_own_process(variant, flags, keep):
        minutes = [float(word) for word in flags[1:-2]]  # the last two name the cache
        started.append((variant, minutes))
        if variant == "bad":
            return 2
        if variant != DATA_ALONE:
            for goal in minutes:
                keep(dict.fromkeys(COLUMNS) | {"name": variant, "minutes": goal, "extractor": "none"})
                assert json.loads(rows.read_text())[-1]["minutes"] == goal
                assert caplog.messages[-1].startswith(f"| {variant} | {goal:g} |")
        return 0

    monkeypatch.setattr(measure_training, "in_own_process", in_own_process)
    with caplog.at_level("INFO", "graf"):
        assert write_table(timed_jobs(["good", "bad", "better"], [0.0, 5.0]), TIMED, str(rows))[1] == 2
    assert started[0][0] == DATA_ALONE
    assert started[1:] == [(name, [goal]) for name in ("good", "bad", "better") for goal in (0.0, 5.0)]
    assert [row["name"] for row in json.loads(rows.read_text())] == ["good", "good", "better", "better"]
    assert sum("| minutes |" in message for message in caplog.messages) == 1


def arguments(monkeypatch, *more):
    monkeypatch.setattr(sys, "argv", ["measure_training.py", "ccsr", *SMOKE, "--set", *FEW, *more])


def test_a_config_that_does_not_fit_is_said_before_anything_is_done(monkeypatch, tmp_path):
    monkeypatch.setattr(measure_training, "in_own_process", lambda *_: pytest.fail("started"))
    arguments(monkeypatch, "data.imsize=18")  # not a multiple of 4
    with pytest.raises(Exception, match=r"must divide data\.imsize 18, found 4"):
        main()


def test_a_file_that_cannot_be_written_is_said_before_anything_is_done(monkeypatch, tmp_path):
    monkeypatch.setattr(measure_training, "in_own_process", lambda *_: pytest.fail("started"))
    arguments(monkeypatch, "--json", str(tmp_path))
    with pytest.raises(OSError):
        main()


def test_training_starts_from_pretrained_weights(refine, tmp_path, monkeypatch):
    other = RRDBNet(2, num_blocks=1, nf=8, gc=4)
    torch.save(other.state_dict(), tmp_path / "esrgan.pth")
    config = refine(*RRDB, f"ccsr.rrdb.pretrained_path={tmp_path / 'esrgan.pth'}", f"data.datadir={tmp_path}")
    found = []
    monkeypatch.setattr(measure_training, "quality", lambda state, *_: found.append(state.generator_ema) or {})
    list(measured_rows(config, [0.0], torch.device("cpu"), tmp_path))
    assert torch.equal(found[0].refinement.backbone.network.conv_last.weight, other.conv_last.weight)


def test_the_discriminator_sees_the_same_pixels_in_all_variants():
    assert len({variant_config(None, [], scale).patch_size for scale in CCSR.values()}) == 1


def test_the_recipe_is_a_row_of_each_variant_and_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "in_own_process", in_this_process)
    rows = tmp_path / "rows.json"
    recipe = ["recipe", "--steps", "2", "--seeds", "3", "4", "--only", DEFAULT, "R1 0.1", "--json", str(rows)]
    said = call("bench/measure_training.py", *recipe, *SMOKE, "--set", *FEW, f"data.datadir={tmp_path}", cwd=ROOT)
    found = json.loads(rows.read_text())
    assert [(row["name"], row["seed"], row["step"]) for row in found] == [
        (name, seed, 2) for seed in (3, 4) for name in (DEFAULT, "R1 0.1")
    ]
    assert len({row["kid"] for row in found}) == 4  # each is a run of its own
    for row in found:
        assert row["kid"] != row["kid_before_refinement"]
        assert row["haze"] >= 0 and 0 <= row["mean_opacity"] <= 1 and row["seconds_per_step"] > 0
        assert row["share_of_variety"] >= 0
    assert sum(line.startswith("| R1 0.1 | ") for line in said.splitlines()) == 3  # the last is of both seeds


def test_without_refinement_there_is_no_kid_before_it(smoke, tmp_path):
    row = measure_training.part_row(smoke(*FEW, f"data.datadir={tmp_path}"), 1, torch.device("cpu"), tmp_path)
    assert row["kid_before_refinement"] is None and row["kid"] > 0


def test_each_part_changes_the_recipe_and_what_it_is_already_is_left_out():
    convolutional = CONFIG_DIR / "convolutional.yaml"  # with which each can be
    for name, overrides in PARTS.items():
        assert name not in part_configs(convolutional, overrides)
    assert {"convolutions alone", "no encoder"} <= part_configs(None, []).keys()
    configs = part_configs(convolutional, [])
    assert [*configs] == [DEFAULT, *(name for name in PARTS if name in configs)]
    assert len({*map(repr, configs.values())}) == len(configs)
    assert ("film" in configs) + ("triplane" in configs) == 1


def test_what_cannot_be_of_a_config_is_left_out_of_it_but_not_where_it_is_asked_for(caplog):
    projected = ["discriminator.architecture=projected"]
    with caplog.at_level("INFO", "graf"):
        assert "relativistic" not in part_configs(None, projected)
    assert "relativistic: left out: " in caplog.text
    assert [*part_configs(None, projected, ["triplane"])] == ["triplane"]
    with pytest.raises(GrafError, match="reg_type"):
        part_configs(None, projected, ["relativistic"])


def test_a_variant_that_the_config_is_already_is_said_before_anything_is_done(monkeypatch):
    monkeypatch.setattr(measure_training, "in_own_process", lambda *_: pytest.fail("started"))
    monkeypatch.setattr(sys, "argv", ["measure_training.py", "recipe", "--set", "data.box=none", "--only", "no box"])
    with pytest.raises(GrafError, match=r"'no box': the config is so already \(data\.box=none\)"):
        main()


def test_steps_that_end_before_all_parts_learn_are_too_few(monkeypatch):
    monkeypatch.setattr(measure_training, "in_own_process", lambda *_: pytest.fail("started"))
    flags = ["recipe", "--steps", "5", *SMOKE, "--only", DEFAULT]
    short = "discriminator.low_res_steps=3", "encoder.first_steps=2"
    monkeypatch.setattr(sys, "argv", ["measure_training.py", *flags, "--set", *short])
    with pytest.raises(GrafError, match="--steps 5: the first 5 steps are without a discriminator or of low resolution"):
        main()


def test_the_spread_over_seeds_is_the_mean_with_least_and_most(caplog):
    rows = [
        {"name": name, "kid": kid, "share_of_variety": variety, "cpu_seconds_per_step": 0.5}
        for name, kid, variety in (("a", 0.2, 0.4), ("b", 0.1, None), ("a", 0.3, 0.5), ("a", 0.25, 0.6))
    ]
    with caplog.at_level("INFO", "graf"):
        measure_training.print_spread(rows)
    assert caplog.messages[-2:] == [
        "| a | 3 | 250 (200 to 300) | 0.50 (0.40 to 0.60) | 0.50 |",
        "| b | 1 | 100 (100 to 100) |  | 0.50 |",
    ]
