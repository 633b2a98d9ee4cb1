"""Command lines take what users of similar projects type: hyphens, ~, other suites' flags, and say what the rest may mean."""

import argparse
import importlib
import os
import re
import runpy
import sys
from pathlib import Path

from graf import __version__
from graf.config import load_config
from graf.errors import ConfigError, GrafError
from graf.runtime.command_line import (
    Parser,
    add_run_flags,
    as_typed,
    folder_overrides,
    hints,
    positive,
    run_overrides,
    whole_number,
)

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))  # as Windows names it
    return tmp_path


@pytest.fixture
def parser():
    p = Parser("a program")
    p.add_argument("--max_steps", type=int)
    p.add_argument("--out", type=Path)
    p.add_argument("--set", nargs="+", action="extend", default=[])
    return p


@pytest.fixture(params=["train", "eval"])
def program(request, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module(request.param)


@pytest.mark.parametrize("words", [["--max_steps", "9"], ["--max-steps", "9"], ["--max-steps=9"], ["--max-st", "9"]])
def test_hyphens_are_underscores(parser, words):
    assert parser.parse_args(words).max_steps == 9


def test_hyphens_in_values_stay(parser):
    assert parser.parse_args(["--out", "max-steps", "--set", "expname=--max-steps"]).out == Path("max-steps")
    assert parser.parse_known_args(["--other-flag", "a-b"])[1] == ["--other-flag", "a-b"]


@pytest.mark.parametrize("text", ["~/runs", "$HOME/runs", "${HOME}/runs"])
def test_paths_of_the_command_line_know_home(parser, home, text):
    assert parser.parse_args([f"--out={text}"]).out == home / "runs"


def test_every_path_of_eval_and_train_knows_home(home, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    train, evaluation = (importlib.import_module(name).parser() for name in ("train", "eval"))
    words = [f"--{name}=~/a" for name in ("config", "run", "checkpoint", "out", "dump_samples")]
    args = evaluation.parse_args([*words, "--invert", "~/a", "~/b", "--export=~/a.safetensors"])
    assert {str(value) for name, value in vars(args).items() if name in "config run checkpoint out dump_samples"} == {
        str(home / "a")
    }
    assert args.invert == [str(home / "a"), str(home / "b")]
    assert args.export == str(home / "a.safetensors")
    args = train.parse_args([f"--{name}=~/a" for name in ("config", "resume", "data_dir", "output_dir")])
    assert [Path(getattr(args, name)) for name in ("config", "resume", "data_dir", "output_dir")] == [home / "a"] * 4
    assert train.parse_args([]).resume == "auto"


@pytest.mark.parametrize(
    ("words", "on_windows", "elsewhere"),
    [
        (["--run", r"results\default"], r"--run results\default", r"--run 'results\default'"),
        (["--run", "my run"], '--run "my run"', "--run 'my run'"),
        (["--set", 'expname="a b"'], r'--set "expname=\"a b\""', """--set 'expname="a b"'"""),
    ],
)
def test_commands_to_copy_are_quoted_for_the_systems_own_shell(monkeypatch, words, on_windows, elsewhere):
    typed = []
    for name in ("nt", "posix"):
        with monkeypatch.context() as system:  # pytest's own paths are not to become Windows'
            system.setattr(os, "name", name)
            typed.append(as_typed(*words))
    assert typed == [on_windows, elsewhere]


def test_no_other_place_quotes_commands_but_the_model_card_which_goes_to_other_systems():
    files = [path for folder in ("graf", "tools") for path in (ROOT / folder).rglob("*.py")]
    found = {path.name for path in files if re.search(r"shlex\.(quote|join)", path.read_text(encoding="utf-8"))}
    assert found == {"command_line.py", "model_card.py"}


def test_every_tool_has_the_shared_parser():
    """So that what is tested here holds for each."""
    plain = [path.name for path in (ROOT / "tools").glob("*.py") if "argparse.ArgumentParser(" in path.read_text("utf-8")]
    assert plain == []


def test_version(program, capsys):
    with pytest.raises(SystemExit) as ended:
        program.parser().parse_args(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(rf"graf_ccsr {re.escape(__version__)}, PyTorch \d\S+, Python 3\.\S+\n", capsys.readouterr().out)


def test_the_project_has_the_version_of_the_package():
    assert 'version = { attr = "graf.version.__version__" }' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_key_as_a_flag_is_told_with_set(program, capsys):
    with pytest.raises(SystemExit):
        program.parser().parse_args(["--batch-size", "4"])
    said = capsys.readouterr().err
    assert "unrecognized arguments: --batch-size 4" in said
    assert "--set training.batch_size=4" in said


def test_hints_name_each_flag_with_its_value():
    assert hints(["--training.lr_g=3", "--grad_clip", "--foo", "1", "--imsize", "64"]) == [
        "; --training.lr_g: use --set training.lr_g=3",
        "; --grad_clip: use --set training.grad_clip=...",
        "; --imsize: use --set data.imsize=64",
    ]


def test_flags_of_other_suites_are_told_by_our_names():
    (hint,) = hints(["--num-workers", "8"])
    assert "training.nworkers" in hint


def test_a_typing_error_in_a_flag_is_told_the_nearest_one(program, capsys):
    with pytest.raises(SystemExit):
        program.parser().parse_args(["--devize=cpu"])
    assert "unrecognized arguments: --devize=cpu; --devize: did you mean --device?" in capsys.readouterr().err


def test_without_set_there_is_no_hint(capsys):
    with pytest.raises(SystemExit):
        Parser("no config").parse_args(["--batch_size", "4"])
    assert "training.batch_size" not in capsys.readouterr().err


def test_two_folders_make_a_run(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    train = importlib.import_module("train")
    photographs, runs = tmp_path / "my: photos \U0001f431", tmp_path / "runs #1"
    photographs.mkdir()
    words = ["--data_dir", str(photographs), "--output-dir", str(runs), "--set", "expname=a"]
    config = load_config(None, train.run_overrides(train.parser().parse_args(words)))
    assert (config.data.type, config.data.datadir) == ("images", (str(photographs),))
    assert config.run_dir == runs / "a"


def test_a_fault_is_told_with_the_flags_that_were_typed(tmp_path):
    """And not with the overrides that stand for them."""
    (tmp_path / "my photos").mkdir()
    p = Parser("a program")
    add_run_flags(p)
    words = ["--data_dir", str(tmp_path / "my photos"), "--use_amp", "--max_steps", "9", "--set", "expname=a", "data.fov=0"]
    with pytest.raises(ConfigError) as raised:
        load_config(None, run_overrides(p.parse_args(words)))
    typed = f"--set expname=a data.fov=0 --data_dir '{tmp_path}/my photos' --use_amp --max_steps 9"
    assert str(raised.value) == f"{typed}: data.fov: must be at least 0.1, found 0"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["photos"], "; photos: name a folder of images with --data_dir photos"),
        (["my photos", "--use_amp"], "; my photos: name a folder of images with --data_dir 'my photos'"),
        (["chairs.yaml"], "; chairs.yaml: name a config with --config chairs.yaml"),
        (["nowhere"], ""),
        (["--epochs", "photos"], "; --epochs: here it is training.max_steps"),
    ],
)
def test_a_word_without_a_flag_is_told_its_flag(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "my photos"):
        Path(folder).mkdir()
    Path("chairs.yaml").touch()
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "train.py"))["parser"]().parse_args(words)
    said = capsys.readouterr().err.partition("unrecognized arguments: ")[2].strip()
    assert said.startswith(" ".join(word for word in words if word != "--use_amp") + told)
    assert told or "name a" not in said


def test_runs_and_checkpoints_without_a_flag_are_told_theirs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("model.pt").touch()
    for word, told in (("runs", "a run's folder with --run runs"), ("model.pt", "a checkpoint with --checkpoint model.pt")):
        with pytest.raises(SystemExit):
            runpy.run_path(str(ROOT / "eval.py"))["parser"]().parse_args([word])
        assert f"unrecognized arguments: {word}; {word}: name {told}" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(GrafError, match="--data_dir .*missing: no such folder"):
        folder_overrides(tmp_path / "missing")
    with pytest.raises(GrafError, match="test_command_line.py: a file, not a folder; name the folder of your images"):
        folder_overrides(Path(__file__))


@pytest.mark.parametrize("spelled", ["--local-rank=1", "--local_rank=1"])
@pytest.mark.parametrize(("variable", "expected"), [(None, "1"), ("3", "3")])
def test_local_rank_of_the_older_launcher(monkeypatch, spelled, variable, expected):
    monkeypatch.syspath_prepend(str(ROOT))
    train = importlib.import_module("train")
    monkeypatch.setenv("LOCAL_RANK", "")
    monkeypatch.delenv("LOCAL_RANK") if variable is None else monkeypatch.setenv("LOCAL_RANK", variable)

    def stop(device: str) -> None:
        raise GrafError(os.environ["LOCAL_RANK"])

    monkeypatch.setattr("graf.commands.run.processes_of_run", stop)
    monkeypatch.setattr(sys, "argv", ["train.py", spelled])
    with pytest.raises(GrafError, match=f"^{expected}$"):
        train.main()


def test_help_of_defaults_is_kept():
    p = Parser("", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--n", default=3, help="count")
    assert "count (default: 3)" in p.format_help()


def test_help_says_no_default_of_a_flag_that_is_not_given():
    p = Parser("", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--run", help="folder of a run whose results are to be read and whose checkpoint is the newest one")
    p.add_argument("--set", nargs="+", default=[], help="keys")
    p.add_argument("--web", action="store_true", help="a browser")
    assert "default" not in p.format_help() and "newest one\n" in p.format_help()


def test_a_count_of_nothing_is_refused():
    assert positive("3") == 3
    assert positive("1e4") == positive("1.0e4") == positive("10_000") == 10_000
    for text in ("0", "-1", "2.5", "many", ""):
        with pytest.raises(argparse.ArgumentTypeError, match=f"expected a number above 0, found '{text}'"):
            positive(text)


@pytest.mark.parametrize(
    ("tool", "flags"),
    [
        ("benchmark", ("speed", "--steps", "0")),
        ("benchmark_scaling", ("--steps", "0")),
        ("check_metrics", ("--n", "0")),
        ("explain_distance", ("model.pt", "--n", "0")),
        ("fuzz", ("--mutations", "0")),
        ("measure_budget", ("--steps", "0")),
    ],
)
def test_tools_refuse_to_measure_nothing(monkeypatch, capsys, tool, flags):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    monkeypatch.setattr(sys, "argv", [f"{tool}.py", *flags])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(tool).main()
    assert ended.value.code == 2
    assert "expected a number above 0, found '0'" in capsys.readouterr().err


def test_a_faulty_config_is_told_before_processes_are_started(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = importlib.import_module("benchmark_scaling")
    monkeypatch.setattr(tool, "run_in", lambda n: pytest.fail("processes were started"))
    monkeypatch.setattr(sys, "argv", ["benchmark_scaling.py", "--config", "missing.yaml"])
    with pytest.raises(GrafError, match="missing.yaml: no such config file"):
        tool.main()


def test_whole_numbers_may_be_written_with_an_exponent():
    """Configs read them so, and exactly."""
    p = Parser("a program")
    add_run_flags(p)
    args = p.parse_args(["--max_steps", "1e4", "--seed", "4294967295"])
    assert (args.max_steps, args.seed) == (10_000, 4_294_967_295)
    assert "training.max_steps=10000" in run_overrides(args)
    assert whole_number("-3") == -3 and whole_number("9007199254740993") == 2**53 + 1
    for text in ("1.5", "1e-3", "many", "inf", "nan", "", "\u00b2", "1e999"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected a whole number, such as 20000 or 2e4, found"):
            whole_number(text)
    assert runpy.run_path(str(ROOT / "eval.py"))["parser"]().parse_args(["--seed", "1e4"]).seed == 10_000
