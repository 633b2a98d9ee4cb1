"""The trained pose estimator of a checkpoint or of a run's folder, ready to read cameras off images."""

import dataclasses
from pathlib import Path

from graf.checkpoints.checkpoint import POSE_FORMAT, read_checkpoint, read_with_sha256
from graf.checkpoints.generator_loading import trained_checkpoint
from graf.config import PoseConfig, completed_config
from graf.config.older import translate_names
from graf.errors import CheckpointError
from graf.pose.mixture import build_estimator
from graf.pose.network import PoseEstimator

import torch


@dataclasses.dataclass(frozen=True)
class TrainedEstimator:
    """A pose estimator in eval mode, the config that it was trained with, and the checkpoint that it is from.

    validation: the newest `graf.pose.validation.Validation` as a dict; empty where the run has none yet.
    """

    network: PoseEstimator
    config: PoseConfig
    checkpoint: Path
    sha256: str
    validation: dict


def load_estimator(checkpoint: Path | str, device: torch.device | str = "cpu") -> TrainedEstimator:
    """The estimator of a checkpoint of train_pose.py, or of its run's folder. Raises CheckpointError for anything else."""
    path = Path(checkpoint)
    if path.is_dir():
        path = trained_checkpoint(path)
    content, sha256 = read_with_sha256(path)
    config = _stored_config(content, path)
    if config is None:
        raise CheckpointError(f"{path}: not a pose estimator; name a run of train_pose.py, such as results/pose")
    network = build_estimator(config.model)
    try:
        network.load_state_dict(content["state"]["estimator"])
    except RuntimeError as error:
        raise CheckpointError(f"{path}: its weights are not those of its config ({str(error).splitlines()[0]})") from None
    network = network.to(device).eval().requires_grad_(False)
    return TrainedEstimator(network, config, path, sha256, content["state"].get("validation") or {})


def trained_config(checkpoint: Path) -> PoseConfig | None:
    """The config that a pose estimator was trained with; None for a checkpoint of another network."""
    return _stored_config(read_checkpoint(checkpoint), checkpoint)


def _stored_config(content: dict, path: Path) -> PoseConfig | None:
    if content.get("format") != POSE_FORMAT:
        return None
    return completed_config(translate_names(content["config"], str(path)), str(path), PoseConfig)
