"""Conditions that a checkpoint was made under: recorded, compared on restore, and told in one line where they changed."""

import dataclasses
import logging

from graf.checkpoints import conditions
from graf.checkpoints.checkpoint import NEWEST, read_checkpoint, save_checkpoint
from graf.checkpoints.conditions import Conditions, loaded_source, report_config_changes, source_digest
from graf.training.state import TrainState, load_checkpoint

import pytest
import torch

CPU, CARD = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def warnings_of_restore(smoke, tmp_path, caplog):
    """What a restore here says of a checkpoint that was made under conditions in which this is different."""

    def warnings(**changed) -> list[str]:
        state = TrainState(smoke(), CPU)
        state.step = 7
        state.conditions = dataclasses.replace(state.conditions, **changed)
        save_checkpoint(tmp_path / NEWEST, state.checkpoint())
        with caplog.at_level(logging.WARNING, "graf"):
            load_checkpoint(tmp_path / NEWEST, TrainState(smoke(), CPU))
        return caplog.messages

    return warnings


def test_a_checkpoint_tells_what_it_was_made_under(smoke, tmp_path):
    save_checkpoint(tmp_path / NEWEST, TrainState(smoke(), CPU).checkpoint())
    assert read_checkpoint(tmp_path / NEWEST)["conditions"] == {
        "torch": torch.__version__,
        "source": loaded_source(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "number_format": "float32",
    }


@pytest.mark.parametrize(
    ("name", "before", "label"),
    [
        ("threads", 1000, "threads"),
        ("cpu_capability", "VSX", "instructions of the CPU"),
        ("source", "0123456789ab", "source of graf/ and configs/"),
        ("torch", "1.0", "PyTorch"),
    ],
)
def test_a_restore_under_other_conditions_says_so_in_one_line(warnings_of_restore, name, before, label):
    (message,) = warnings_of_restore(**{name: before})
    assert f"({label} {before} -> {getattr(Conditions.current(CPU, 'float32'), name)})" in message
    assert "from step 7 on, the run may differ from one that was never stopped" in message
    assert "\n" not in message


def test_all_that_changed_is_one_line(warnings_of_restore):
    (message,) = warnings_of_restore(threads=1000, cpu_capability="VSX")
    assert message.count("->") == 2


def test_another_number_format_is_another_run_for_certain(warnings_of_restore):
    (message,) = warnings_of_restore(number_format="bfloat16")
    assert "(number format bfloat16 -> float32); from step 7 on, the run will differ" in message


def test_a_restore_under_the_same_conditions_is_silent(warnings_of_restore):
    assert warnings_of_restore() == []


def test_a_run_keeps_the_digest_of_what_it_has_loaded_though_files_are_edited(monkeypatch):
    before = loaded_source()
    monkeypatch.setattr(conditions, "source_digest", lambda: "edited since")
    assert Conditions.current(CPU, "float32").source == before != "edited since"


def test_a_key_that_an_older_checkpoint_lacks_is_told_with_what_it_was_then(smoke, caplog):
    """But none that nothing reads, such as CCSR's without CCSR."""
    with caplog.at_level(logging.INFO, "graf"):
        report_config_changes({"ccsr": {"num_views": 4}}, smoke("data.alpha=rgba", "ccsr.num_views=5"))
    assert "data.alpha changed since the checkpoint: ignore -> rgba" in caplog.messages
    assert "num_views" not in caplog.text


def test_checkpoints_of_before_they_were_kept_load_silently(smoke, tmp_path, caplog):
    state = TrainState(smoke(), CPU)
    save_checkpoint(tmp_path / NEWEST, state.checkpoint())
    content = read_checkpoint(tmp_path / NEWEST)
    del content["conditions"]
    torch.save(content, tmp_path / "older.pt")
    with caplog.at_level(logging.WARNING, "graf"):
        load_checkpoint(tmp_path / "older.pt", state)
    assert caplog.messages == []


def test_on_a_card_threads_and_the_cpus_instructions_do_not_count():
    here = Conditions.current(CPU, "float32")
    saved = dataclasses.asdict(dataclasses.replace(here, threads=1000, cpu_capability="VSX"))
    assert len(here.changes_since(saved)) == 2
    assert Conditions.current(CARD, "float32").changes_since(saved) == {}


def test_the_sources_digest_follows_names_and_bytes(tmp_path):
    package, configs = tmp_path / "graf", tmp_path / "configs"
    (package / "models").mkdir(parents=True)
    configs.mkdir()

    def write(path, text):
        path.write_text(text)
        return source_digest(package, configs)

    digests = [
        write(package / "rays.py", "a = 1"),
        write(package / "rays.py", "a = 2"),
        write(package / "models" / "rays.py", "a = 1"),
        write(configs / "smoke.yaml", "a: 1"),
    ]
    (package / "rays.py").rename(package / "camera.py")
    digests.append(source_digest(package, configs))
    assert len(set(digests)) == 5
    (package / ".#camera.py").symlink_to("nobody@nowhere")  # an editor's lock on a file that it holds open
    assert write(package / "camera.pyc", "compiled") == digests[-1]
