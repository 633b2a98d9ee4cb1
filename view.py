"""Show a trained model in the browser (needs pip install -e ".[viewer]"): run python view.py, then orbit with the mouse."""

import argparse
import re
import sys
from pathlib import Path

from graf.runtime.command_line import Parser
from graf.runtime.console import run_script


def parser() -> argparse.ArgumentParser:
    p = Parser(__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    what = "a folder of runs to choose from, a run or a checkpoint; by default results/ and the shipped weights"
    p.add_argument("path", nargs="?", metavar="PATH", type=Path, help=what)
    p.add_argument("--run", type=Path, help="a run's folder; the viewer loads its checkpoint again when it changes")
    p.add_argument("--checkpoint", type=Path, help="a checkpoint file of this project or another one")
    p.add_argument(
        "--latents",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="file of an object to show first: latents.json of eval.py --invert, or one that the viewer saved; can be repeated",
    )
    p.add_argument("--host", default="127.0.0.1", help="address to listen on; with 0.0.0.0 other machines can connect")
    p.add_argument(
        "--allow_host",
        type=host_name,
        action="append",
        default=[],
        metavar="NAME",
        help="another host name, of this machine or of a proxy, by which browsers open the page; can be repeated",
    )
    p.add_argument(
        "--port", type=port, default=8080, help="port of the page; if it is in use, the next free port; 0: any free port"
    )
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 or mps")
    p.add_argument("--out", type=Path, help="folder for saved files; by default viewer in the run's folder")
    return p


def host_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+", text):
        raise argparse.ArgumentTypeError(f"expected a machine's name alone, such as gpu-box.lan, found {text!r}")
    return text


def port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {text!r}")
    return int(text)


def main() -> int:
    args = parser().parse_args(sys.argv[1:])
    from graf.commands.view import view  # with PyTorch

    return view(args)


if __name__ == "__main__":
    run_script(main)
