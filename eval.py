"""Render a trained run, or measure it: python eval.py renders angle sweeps, python eval.py --metrics fid,kid measures."""

import argparse
import logging
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from graf.checkpoints.checkpoint import NEWEST, read_checkpoint
from graf.checkpoints.foreign.recognition import checkpoint_step, recognise
from graf.checkpoints.generator_loading import as_trained, checkpoint_config, generator_of, trained_checkpoint
from graf.checkpoints.run_folder import FOLDERS
from graf.config import Config, load_config, override
from graf.errors import GrafError
from graf.evaluation import jobs
from graf.evaluation.jobs import Evaluation, Flag, Job
from graf.evaluation.results import ResultFile
from graf.reporting.report import write_report
from graf.runtime.command_line import Parser
from graf.runtime.console import run_script
from graf.runtime.device import choose_device, keep_freed_memory
from graf.runtime.files import file_sha256

log = logging.getLogger("graf")

LARGEST_SEED = 2**32  # as of training.seed


def report(evaluation: Evaluation) -> list[Path]:
    run_dir, points = evaluation.run_dir, evaluation.generator.config.reporting.max_metric_rows
    return [write_report(run_dir, run_dir / "report.html", evaluation.out, points)]


REPORT = Job(Flag("report", "report.html: all of the run's results on one page"), report, elsewhere=True)
JOBS = (*jobs.JOBS, REPORT, jobs.EXPORT)  # in the order in which they are done


def parser() -> argparse.ArgumentParser:
    p = Parser(
        __doc__,
        usage="%(prog)s [FLAGS]; --help lists them",  # all of them would bury an error's message
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    what = p.add_argument_group("what", "--sweep where none is named")
    for job in JOBS:
        job.flag.add_to(what)
    p.add_argument("--config", type=Path, help="YAML file of the run, or of a --checkpoint")
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="such as nerf.samples_per_ray=64")
    p.add_argument(
        "--run", type=Path, help="a run's folder; by default that of the config, and of configs/default.yaml without one"
    )
    p.add_argument("--checkpoint", type=Path, help="a checkpoint file, ours or other people's, instead of the run's newest")
    p.add_argument("--partial", action="store_true", help="load those of the checkpoint's weights that fit the config")
    for flag in shared_flags():
        flag.add_to(p)
    p.add_argument("--seed", type=seed, default=0, help="seed of the objects' latents and of the measured samples")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--out", type=Path, help="folder of the results; by default eval/step_N in the run's folder")
    return p


def shared_flags() -> list[Flag]:
    """The flags that only some jobs take."""
    return list(dict.fromkeys(flag for job in JOBS for flag in job.flags))


def with_signs(arguments: list[str]) -> list[str]:
    """The arguments with degrees such as -10,30 joined to their flag, for argparse takes them for a flag themselves."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in ("--azimuths", "--elevations") and re.match(r"-[\d.]", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def seed(text: str) -> int:
    if not text.isdigit() or int(text) > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to {LARGEST_SEED}, found {text!r}")
    return int(text)


def main() -> int:
    args = parser().parse_args(with_signs(sys.argv[1:]))
    if args.run and args.checkpoint:
        raise GrafError("--run beside --checkpoint: each names what to look at; leave one out (--out names the results)")
    if args.config and args.run:
        raise GrafError("--config beside --run: each names the run; leave one out (a run has its config, which --set changes)")
    refuse_unused(args)
    keep_freed_memory()
    checkpoint = args.checkpoint or trained_checkpoint(args.run or load_config(args.config, args.set).run_dir)
    content, sha256 = read_checkpoint(checkpoint), file_sha256(checkpoint)
    if args.config and args.checkpoint:
        config = load_config(args.config, args.set)
    else:
        config = override(checkpoint_config(checkpoint, content), args.set)
    config = as_trained(config, content, checkpoint)
    if args.resolution and args.resolution % config.rendered_scale:
        scale = config.rendered_scale
        raise GrafError(f"--resolution {args.resolution}: must be a multiple of ccsr.scale_factor {scale}")
    generator = generator_of(checkpoint, content, config, choose_device(args.device), args.partial)
    step = checkpoint_step(content)
    run_dir = run_of(checkpoint, config)
    out = args.out or run_dir / "eval" / f"step_{step:08d}"
    log.info("%s, step %d", checkpoint, step)
    if not args.out and run_dir.resolve() not in checkpoint.resolve().parents:
        log.info("the checkpoint is in no run's folder: results go to %s; --out names another", run_dir)
    results = ResultFile(out, checkpoint, sha256, step, recognise(content, checkpoint).averaged, config)
    Evaluation(args, generator, step, run_dir, out, results).run(asked_jobs(args))
    return 0


def asked_jobs(args: argparse.Namespace) -> list[Job]:
    return [job for job in JOBS if getattr(args, job.name)] or [job for job in JOBS if job.name == "sweep"]


def refuse_unused(args: argparse.Namespace) -> None:
    """Raises GrafError for a flag that nothing asked for takes."""
    asked = asked_jobs(args)
    for flag in shared_flags():
        if getattr(args, flag.name) != flag.default and not any(flag in job.flags for job in asked):
            taken_by = names(job for job in JOBS if flag in job.flags)
            raise GrafError(f"--{flag.name}: {flag.unused or f'changes nothing of {names(asked)}; it is for {taken_by}'}")


def names(some: Iterable[Job]) -> str:
    return ", ".join(f"--{job.name}" for job in some)


def run_of(checkpoint: Path, config: Config) -> Path:
    """The checkpoint's run; for a checkpoint from elsewhere, a folder of its own among the runs."""
    folder = checkpoint.resolve().parent
    run_dir = folder.parent if folder.name in FOLDERS else folder
    if (run_dir / "metrics.jsonl").exists() or ((run_dir / "config.yaml").exists() and (run_dir / NEWEST).exists()):
        return run_dir
    return Path(config.training.outdir) / f"eval_{folder.name}_{checkpoint.stem}"


if __name__ == "__main__":
    run_script(main)
