"""view.py once its arguments are parsed: find what can be looked at, and serve it."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from graf.checkpoints.checkpoint import read_checkpoint
from graf.checkpoints.generator_loading import checkpoint_config, generator_from_content, trained_checkpoint
from graf.checkpoints.latents_file import fitting_latents
from graf.checkpoints.run_folder import run_checkpoints, run_folder_of
from graf.config import Config
from graf.errors import GrafError
from graf.foreign.checkpoints import checkpoint_step
from graf.reporting.run_status import runs_below
from graf.reporting.viewer.access import Access
from graf.reporting.viewer.models import Models
from graf.reporting.viewer.object_view import Model
from graf.runtime.device import choose_device, keep_freed_memory

import torch

log = logging.getLogger("graf")

SHIPPED = Path(__file__).resolve().parents[2] / "weights" / "toy_cars.safetensors"


def view(args: argparse.Namespace) -> int:
    """Serve what the flags of view.py name, until Ctrl-C."""
    sources = found_sources(args.path, args.run, args.checkpoint)
    try:
        from graf.reporting.viewer.server import serve
    except ModuleNotFoundError as error:
        if error.name != "viser":
            raise
        raise GrafError('the viewer needs viser, which is an optional extra: pip install -e ".[viewer]"') from None
    keep_freed_memory()
    device = choose_device(args.device)
    if len(sources) > 1:
        log.info("%d models to choose from in the browser:", len(sources))
        for source in sources:
            log.info("  %s", source)
    models = Models(sources, lambda source: load_model(source, device, args.out, args.latents))
    serve(models, Access(args.host, args.allow_host), args.port)
    return 0


def found_sources(path: Path | None, run: Path | None, checkpoint: Path | None) -> list[Path]:
    """The runs' folders and checkpoints to choose from, the first of them to begin with.

    path: a folder of runs, a run or a checkpoint; without any of the three, the runs in the default folder and the shipped
    weights. Raises GrafError where there is nothing to look at.
    """
    if sum(named is not None for named in (path, run, checkpoint)) > 1:
        raise GrafError("PATH, --run and --checkpoint each name what to look at; leave all but one out")
    if checkpoint is not None or (path is not None and path.is_file()):
        return [checkpoint or path]
    if run is not None:
        return [run]
    folder = path or Path(Config().training.outdir)
    if run_checkpoints(folder):
        return [folder]
    runs = [found for found in runs_below(folder) if run_checkpoints(found)]
    if path is None:
        runs += [SHIPPED] * SHIPPED.exists()
    if not runs:
        raise GrafError(f"{folder}: no run with a checkpoint here; train one with train.py, or name a file with --checkpoint")
    return runs


def load_model(source: Path, device: torch.device, out: Path | None, latents: Sequence[Path] = ()) -> Model:
    """The model of a run's folder, or of a checkpoint of ours or others, with the objects in files of latents.

    Raises CheckpointError or ConfigError, and GrafError for latents that do not fit.
    """
    checkpoint = trained_checkpoint(source) if source.is_dir() else source
    content = read_checkpoint(checkpoint)
    config = checkpoint_config(checkpoint, content)
    generator = generator_from_content(checkpoint, content, config, device)
    found = {}
    if latents:
        found = dict(zip(map(str, latents), zip(*fitting_latents(latents, generator, checkpoint), strict=True), strict=True))
    out = out or run_folder_of(checkpoint, config) / "viewer"
    return Model(checkpoint, generator, checkpoint_step(content), out, found)
