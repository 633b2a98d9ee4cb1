"""The comparison of runs that should be the same says where planted differences are."""

import json
import shutil
import tempfile
from pathlib import Path

from graf.checkpoints.checkpoint import backup_name, save_checkpoint
from graf.training.state import TrainState

import pytest
import torch
from compare_runs import require_same_run

ONE_SOURCE = {"straight run": "0123456789ab", "first half": "0123456789ab", "second half": "0123456789ab"}


class Runs:
    """Folders of a straight and a resumed run of two steps, the same but for what a test plants."""

    def __init__(self, folder: Path, state: TrainState):
        self.straight, self.resumed = folder / "straight", folder / "resumed"
        run_dir = self.straight / "results" / "smoke"
        for state.step in (1, 2):
            save_checkpoint(run_dir / backup_name(state.step), state.checkpoint())
        rows = [{"step": 1, "depth_spread": 0.5}, *({"step": step, "loss_d": 1.25, "loss_g": 0.5} for step in (1, 2))]
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.straight / "data" / "toy_cars").mkdir(parents=True)
        torch.save({"images": torch.zeros(2, 3, 4, 4, dtype=torch.uint8)}, self.straight / "data" / "toy_cars" / "cars.pt")
        shutil.copytree(self.straight, self.resumed)
        for run in (self.straight, self.resumed):
            (run / "log.txt").write_text(f"what the {run.name} run said")

    def plant(self, step: int, change) -> None:
        """Change the resumed run's checkpoint of a step."""
        path = self.resumed / "results" / "smoke" / backup_name(step)
        content = torch.load(path, weights_only=True)
        change(content)
        path.with_name(path.name + ".json").unlink()
        torch.save(content, path)

    def message(self, sources=ONE_SOURCE) -> str:
        with pytest.raises(AssertionError) as failure:
            require_same_run(self.straight, self.resumed, 2, sources)
        return str(failure.value)


@pytest.fixture
def runs(refine, tmp_path, monkeypatch) -> Runs:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Runs(tmp_path, TrainState(refine(), torch.device("cpu")))


def add_to_two_weights(content: dict) -> None:
    weight = content["state"]["discriminator"]["main.0.weight"].view(-1)
    weight[3] += 0.25
    weight[5] += 0.5


def test_runs_that_are_the_same_pass(runs):
    require_same_run(runs.straight, runs.resumed, 2, ONE_SOURCE)
    assert not list(runs.straight.parent.glob("runs_that_differ_*"))


def test_it_names_the_first_step_the_network_the_tensor_how_many_elements_and_by_how_much(runs):
    runs.plant(2, add_to_two_weights)
    first, network, *_ = runs.message().splitlines()
    assert first == "step 2 is the first that differs"
    state = torch.load(runs.straight / "results" / "smoke" / backup_name(2), weights_only=True)["state"]["discriminator"]
    size = state["main.0.weight"].numel()
    assert network == (
        f"discriminator: 1 of {len(state)} entries differ, first main.0.weight: 2 of {size} elements, by 0.5 at most"
    )


def test_an_earlier_step_comes_first(runs):
    runs.plant(1, add_to_two_weights)
    runs.plant(2, add_to_two_weights)
    assert "step 1 is the first that differs" in runs.message()
    assert "step 2" not in runs.message()


@pytest.mark.parametrize("value", [-0.0, float("nan"), 1e-45])
def test_one_bit_of_one_number_is_enough(runs, value):
    def change(content):
        bias = content["state"]["generator"]["field.shape_mapping.0.bias"]  # starts at 0
        bias[0] = value

    runs.plant(2, change)
    assert "first field.shape_mapping.0.bias: 1 of 64 elements" in runs.message()


def remove_a_bias(content: dict) -> None:
    del content["state"]["discriminator"]["main.0.bias"]


def cut_a_bias(content: dict) -> None:
    content["state"]["discriminator"]["main.0.bias"] = torch.zeros(5)


def draw_once(content: dict) -> None:
    draws = torch.Generator()
    draws.set_state(content["state"]["rng"]["draws"])
    torch.rand(1, generator=draws)
    content["state"]["rng"]["draws"] = draws.get_state()


def another_rate(content: dict) -> None:
    content["state"]["optimizer_g"]["param_groups"][0]["lr"] = 0.25


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (remove_a_bias, "discriminator: 1 of 13 entries differ, first main.0.bias: tensor("),
        (cut_a_bias, "first main.0.bias: torch.float32 (32,) and torch.float32 (5,)"),
        (draw_once, "first draws: "),
        (another_rate, "first param_groups.0.lr: 0.001 and 0.25"),
        (lambda content: content["conditions"].update(threads=1000), "'threads': 1000"),
    ],
)
def test_all_of_a_checkpoint_is_compared(runs, change, told):
    runs.plant(2, change)
    assert told in runs.message()


def test_rows_of_metrics_are_compared_exactly(runs):
    path = runs.resumed / "results" / "smoke" / "metrics.jsonl"
    path.write_text(path.read_text().replace("1.25", "1.2500000000000002"))
    lines = runs.message().splitlines()
    assert lines[:2] == ["step 1 is the first that differs", "metrics.jsonl, loss_d: 1.25 and 1.2500000000000002"]


def test_other_toy_cars_are_told(runs):
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    images[1, 2, 3, 3] = 1
    torch.save({"images": images}, runs.resumed / "data" / "toy_cars" / "cars.pt")
    assert (
        runs.message().splitlines()[0] == "data, cars.pt: 1 of 1 entries differ, first images: 1 of 96 elements, by 1 at most"
    )


def test_a_source_that_changed_between_the_runs_fails_by_itself(runs):
    message = runs.message(ONE_SOURCE | {"second half": "ba9876543210"})
    assert "graf/ or configs/ changed between the runs" in message
    assert "before the first half: 0123456789ab" in message
    assert "before the second half: ba9876543210" in message


def test_a_failure_prints_both_logs_and_keeps_both_folders(runs):
    runs.plant(2, add_to_two_weights)
    message = runs.message()
    assert "what the straight run said" in message
    assert "what the resumed run said" in message
    (kept,) = runs.straight.parent.glob("runs_that_differ_*")
    assert str(kept) in message
    for run in ("straight", "resumed"):
        assert (kept / run / "results" / "smoke" / backup_name(2)).is_file()
