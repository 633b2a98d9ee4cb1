"""Render, measure or export a trained model: eval.py renders sweeps of angles, eval.py --metrics fid,kid measures."""

import argparse
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from graf.commands.jobs import JOBS, OBJECTS, Flag, Job, seed
from graf.config import load_config
from graf.errors import GrafError
from graf.runtime.command_line import Parser
from graf.runtime.console import run_script


def parser() -> argparse.ArgumentParser:
    p = Parser(
        __doc__,
        usage="%(prog)s [FLAGS]; --help lists them",  # all of them would bury an error's message
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    jobs = p.add_argument_group("jobs", "what to make; by default --sweep")
    for job in JOBS:
        job.flag.add_to(jobs)
    p.add_argument("--config", type=Path, help="YAML file of the run or of the --checkpoint")
    changed = "override config keys, e.g. nerf.samples_per_ray=64"
    p.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help=changed)
    p.add_argument("--run", type=Path, help="a run's folder; by default the run of --config, else results/default")
    p.add_argument(
        "--checkpoint",
        type=Path,
        help="a checkpoint file of this project or another one, instead of the run's newest checkpoint",
    )
    p.add_argument(
        "--partial", action="store_true", help="load only those weights of the checkpoint whose shapes match the config"
    )
    for flag in shared_flags():
        flag.add_to(p)
    p.add_argument("--seed", type=seed, default=0, help="seed of the objects' latents and of the measured samples")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    p.add_argument("--out", type=Path, help="folder of the results; by default eval/step_N in the run's folder")
    return p


def shared_flags() -> list[Flag]:
    """The flags that some jobs take, each once."""
    return list(dict.fromkeys(flag for job in JOBS for flag in job.flags))


def with_signs(arguments: list[str]) -> list[str]:
    """Join degrees such as -10,30 to their flag, because argparse would read them as a flag."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] in ("--azimuths", "--elevations") and re.match(r"-[\d.]", argument):
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined


def main() -> int:
    args = parser().parse_args(with_signs(sys.argv[1:]))
    if args.run and args.checkpoint:
        raise GrafError("--run beside --checkpoint: each names what to look at; leave one out (--out names the results)")
    if args.config and args.run:
        raise GrafError("--config beside --run: each names the run; leave one out (a run has its config, which --set changes)")
    refuse_unused(args)
    of_config = args.config or not (args.run or args.checkpoint)
    config = load_config(args.config, args.set) if of_config else None
    from graf.commands.eval import evaluate  # with PyTorch

    return evaluate(args, asked_jobs(args), config)


def asked_jobs(args: argparse.Namespace) -> list[Job]:
    return [job for job in JOBS if getattr(args, job.name)] or [job for job in JOBS if job.name == "sweep"]


def refuse_unused(args: argparse.Namespace) -> None:
    """Raise GrafError for a flag that has no effect on a job asked for, and for sampled objects beside --invert."""
    asked = asked_jobs(args)
    for flag in shared_flags():
        if getattr(args, flag.name) == flag.default:
            continue
        taking = [job for job in asked if flag in job.flags]
        ignoring = [job for job in asked if flag not in job.flags and job.writes_results]
        if not taking:
            taken_by = names(job for job in JOBS if flag in job.flags)
            raise GrafError(f"--{flag.name}: {flag.unused or f'has no effect on {names(asked)}; use it with {taken_by}'}")
        if flag.general and ignoring:
            raise GrafError(
                f"--{flag.name}: has no effect on {names(ignoring)}, which is asked for beside {names(taking)}; ask for them "
                "one after the other"
            )
    if args.invert and (sampled := names(job for job in asked if job.samples_objects)):
        raise GrafError(
            f"{sampled} beside --invert: would be of sampled objects, not of the photograph's, whose mesh, splats and video "
            "--invert writes itself; the other jobs take it afterwards, by --latents"
        )
    if args.latents and args.n_objects != OBJECTS.default:
        raise GrafError("--n_objects beside --latents: there are as many objects as files; leave it out")


def names(some: Iterable[Job]) -> str:
    return ", ".join(f"--{job.name}" for job in some)


if __name__ == "__main__":
    run_script(main)
