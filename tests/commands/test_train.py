"""What train.py continues, and with what."""

import argparse
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

from graf.checkpoints.checkpoint import NEWEST, read_checkpoint, save_checkpoint
from graf.commands import run as frame
from graf.commands.run import announce, log_if_done, note_data, set_up
from graf.commands.run_files import find_checkpoint, keep_earlier_files, require_free_folder, require_own_folder, write_config
from graf.commands.train import config_of, dry_run
from graf.data import build_dataset
from graf.errors import CheckpointError, GrafError
from graf.foreign.checkpoints import checkpoint_step
from graf.training.health import Derailed
from graf.training.state import TrainState

import pytest
import torch


def test_a_run_on_toy_cars_does_not_go_on_with_photographs_unless_it_is_named(smoke, tmp_path):
    config = smoke("data.alpha=rgba")
    save_checkpoint(tmp_path / NEWEST, TrainState(config, torch.device("cpu")).checkpoint())
    assert config_of(tmp_path / NEWEST, "toy_cars", named=False).data.alpha == "rgba"
    with pytest.raises(CheckpointError, match=r"of a run on toy_cars, where data.type is images now; --set expname=NAME"):
        config_of(tmp_path / NEWEST, "images", named=False)
    assert config_of(tmp_path / NEWEST, "images", named=True).data.alpha == "rgba"
    assert config_of(None, "images", named=False) is None


@pytest.fixture
def new_run(smoke, tmp_path):
    """The config of a run in an empty folder, whose checkpoints come every 10 steps."""
    config = smoke(f"training.outdir={tmp_path}", "expname=run", "training.save_every=10")
    config.run_dir.mkdir()
    return config


def test_a_run_is_known_by_its_folder_also_where_its_name_is_written_in_other_case(new_run, tmp_path, monkeypatch):
    """A link stands for it, as `resolve` restores no case on macOS."""
    write_config(new_run)
    save_checkpoint(new_run.run_dir / NEWEST, TrainState(new_run, torch.device("cpu")).checkpoint())
    (tmp_path / "same").symlink_to(new_run.run_dir)
    monkeypatch.setattr(Path, "resolve", lambda path: Path(os.path.abspath(path)))
    require_own_folder(tmp_path / "same" / "config.yaml", (), new_run)
    assert find_checkpoint(str(tmp_path / "same" / NEWEST), new_run.run_dir) == tmp_path / "same" / NEWEST


def rows_to(step):
    return "".join(json.dumps({"step": i, "loss_d": 1.0}) + "\n" for i in range(1, step + 1))


def contents(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"config.yaml": "my: notes\n"}, "holds config.yaml, which no such run wrote"),
        ({"metrics.jsonl": "precious\n"}, "holds metrics.jsonl, which"),
        ({"config.yaml": "my: notes\n", "metrics.jsonl": '{"mine": 1}\n'}, "holds config.yaml and metrics.jsonl, which"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_files_that_no_run_wrote_are_refused(new_run, files, named, is_new):
    for name, text in files.items():
        (new_run.run_dir / name).write_text(text)
    with pytest.raises(CheckpointError, match=named + ".*move what is there elsewhere, or name another folder"):
        require_free_folder(new_run, is_new)
    assert contents(new_run.run_dir) == files


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"metrics.jsonl": rows_to(24)},
            "metrics.jsonl goes to step 24, but there is no checkpoint that can be read; put one back",
        ),
        (
            {"metrics.jsonl": rows_to(20), "model.pt.damaged": ""},
            r"goes to step 20, but there is no checkpoint that can be read \(model.pt.damaged is left\); put one back",
        ),
        ({"model.pt.damaged": "", "model.pt.json": "{}"}, r"saved here, .* \(model.pt.damaged, model.pt.json are left\)"),
    ],
)
def test_a_run_whose_checkpoints_are_gone_is_not_begun_again(new_run, files, said):
    write_config(new_run)
    for name, text in files.items():
        (new_run.run_dir / name).write_text(text)
    with pytest.raises(CheckpointError, match=said):
        require_free_folder(new_run, is_new=True)
    require_free_folder(new_run, is_new=False)  # --resume FILE puts one back
    (new_run.run_dir / NEWEST).touch()
    require_free_folder(new_run, is_new=True)


@pytest.mark.parametrize("last_step", [0, 3, 10])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again_and_keeps_its_rows(new_run, last_step, caplog):
    """At step 10 it was killed while the checkpoint was written."""
    write_config(new_run)
    before = contents(new_run.run_dir)
    rows = {"metrics.jsonl": rows_to(last_step)} if last_step else {}
    for name, text in rows.items():
        (new_run.run_dir / name).write_text(text)
    for begun in (1, 2):
        require_free_folder(new_run, is_new=True)
        keep_earlier_files(new_run, 0)
        assert contents(new_run.run_dir) == before | {f"{name}.{begun}": text for name, text in rows.items()}
        before = contents(new_run.run_dir)
        for name, text in rows.items():
            (new_run.run_dir / name).write_text(text)
    assert ("metrics.jsonl: was here before this run, which begins at step 0; kept as metrics.jsonl.2" in caplog.text) == bool(
        rows
    )


def test_the_cadence_that_counts_is_that_of_the_run_that_was_killed(new_run, smoke):
    write_config(new_run)
    (new_run.run_dir / "metrics.jsonl").write_text(rows_to(9))
    overrides = (f"training.outdir={new_run.run_dir.parent}", "expname=run")
    require_free_folder(smoke(*overrides, "training.save_every=5"), is_new=True)
    write_config(smoke(*overrides, "training.save_every=0"))  # no checkpoint before the end
    (new_run.run_dir / "metrics.jsonl").write_text(rows_to(99))
    require_free_folder(new_run, is_new=True)


def test_a_config_that_was_typed_in_the_folder_of_its_run_is_kept(new_run, caplog):
    typed = "# mine\nexpname: run\n"
    (new_run.run_dir / "config.yaml").write_text(typed)
    require_free_folder(new_run, is_new=True)
    keep_earlier_files(new_run, 0)
    assert contents(new_run.run_dir) == {"config.yaml.1": typed}
    assert "config.yaml: was here before this run" in caplog.text


def test_a_row_that_a_crash_cut_short_does_not_keep_a_run_from_beginning_again(new_run):
    write_config(new_run)
    (new_run.run_dir / "metrics.jsonl").write_text('{"step": 10, "lo')
    require_free_folder(new_run, is_new=True)
    keep_earlier_files(new_run, 0)
    assert (new_run.run_dir / "metrics.jsonl.1").read_text() == '{"step": 10, "lo'


@pytest.mark.parametrize("inside", [True, False])
def test_a_run_from_a_checkpoint_of_elsewhere_keeps_what_is_in_its_folder(new_run, tmp_path, inside):
    """A checkpoint put into the folder makes its rows the run's own."""
    state = TrainState(new_run, torch.device("cpu"))
    state.step, rows = 500, rows_to(3)
    (new_run.run_dir / "metrics.jsonl").write_text(rows)
    announce(state, [], (new_run.run_dir if inside else tmp_path) / "copy.pt")
    assert (new_run.run_dir / "metrics.jsonl.1").exists() != inside


def test_a_run_from_another_file_than_its_newest_has_a_checkpoint_before_its_first_step(new_run, tmp_path):
    """Whatever ends it, --resume auto goes on from there: neither from random weights nor from where the run was before."""
    state, newest = TrainState(new_run, torch.device("cpu")), new_run.run_dir / NEWEST
    announce(state, [], None)
    assert not newest.exists()
    state.step = 70
    announce(state, [], new_run.run_dir / "backups" / "model_00000070.pt")
    assert checkpoint_step(read_checkpoint(newest)) == 70
    state.step = 80
    announce(state, [], newest)
    assert checkpoint_step(read_checkpoint(newest)) == 70
    for _ in range(3):  # starts of which none takes a step: they remove nothing
        announce(state, [], tmp_path / "other.pt")
        assert checkpoint_step(read_checkpoint(newest)) == 80
    assert (new_run.run_dir / "checkpoints" / "model_00000070.pt").is_file()


def test_without_a_checkpoint_the_folder_is_named(new_run, smoke, caplog):
    state = TrainState(smoke("training.max_steps=0"), torch.device("cpu"))
    with caplog.at_level("INFO", "graf"):
        assert log_if_done(state, None, "auto") and log_if_done(state, None, "none")
    assert caplog.text.count(f"{state.config.run_dir} is at step 0 already") == 2


def test_a_dry_run_says_what_is_not_finite(smoke, tmp_path, monkeypatch):
    config = smoke("training.max_bad_steps=1", f"data.datadir={tmp_path / 'cars'}", "data.n_images=8")
    state = TrainState(config, torch.device("cpu"))
    with torch.no_grad():
        next(state.discriminator.parameters()).fill_(math.nan)
    with pytest.raises(Derailed, match="loss_d is nan"):
        dry_run(state, build_dataset(config))


def test_a_file_from_elsewhere_does_not_take_the_place_of_the_run_in_the_folder(new_run, tmp_path):
    own, other = new_run.run_dir / NEWEST, tmp_path / "other.pt"
    other.touch()
    assert find_checkpoint(str(other), new_run.run_dir) == other
    own.touch()
    with pytest.raises(CheckpointError, match=r"holds another run than .*other\.pt, which would be written over"):
        find_checkpoint(str(other), new_run.run_dir)
    assert find_checkpoint(str(own), new_run.run_dir) == own


def test_data_that_has_changed_is_told_once_and_noted(new_run, caplog):
    class Images(list):
        fingerprint = "new"

    state = SimpleNamespace(config=new_run, step=5, data_fingerprint="old")
    for _ in range(2):
        note_data(state, Images("ab"), None)
    assert state.data_fingerprint == "new"
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith("the data has changed since step 5")


def test_a_run_is_held_to_its_budget_before_anything_is_built(smoke, tmp_path, monkeypatch):
    monkeypatch.setattr(frame, "measure_process", lambda: None)
    config = smoke("memory.budget_gb=0.01", f"training.outdir={tmp_path}")
    flags = {"device": "cpu", "config": None, "set": [], "data_dir": None, "use_amp": False, "dry_run": True}
    message = "memory.budget_gb: 0.01 GB is less than"
    with pytest.raises(GrafError, match=message), set_up(argparse.Namespace(**flags), None, config):
        pytest.fail("it was set up")
