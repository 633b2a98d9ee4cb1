"""The table of what minutes of training are worth: rows as they come, and what they are of."""

import json
import sys

import measure_training
from graf.models.rrdb import RRDBNet
from measure_training import CCSR, COLUMNS, DATA_ALONE, main, measured_rows, variant_config, write_table

import pytest
import torch
from command_line import ROOT, SMOKE, call

FEW = ("metrics.extractor=efficientnet-lite0", "metrics.n_real=4", "metrics.n_fake=4")
RRDB = ("ccsr.backbone=rrdb", "ccsr.rrdb.num_blocks=1", "ccsr.rrdb.nf=8", "ccsr.rrdb.gc=4")


def test_the_peak_is_measured_where_minute_0_is_too(tmp_path):
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

    def in_own_process(variant, minutes, keep):
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
        assert write_table(["good", "bad", "better"], [0.0, 5.0], str(rows)) == 2
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
    list(measured_rows(config, [0.0], torch.device("cpu")))
    assert torch.equal(found[0].refinement.backbone.network.conv_last.weight, other.conv_last.weight)


def test_the_discriminator_sees_the_same_pixels_in_all_variants():
    assert len({variant_config(None, [], scale).patch_size for scale in CCSR.values()}) == 1
