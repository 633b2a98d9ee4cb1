"""The state of a pose estimator's run: the network, its optimizer, and the newest validation."""

import math
from pathlib import Path

from graf.checkpoints.checkpoint import POSE_FORMAT
from graf.config import PoseConfig, PoseModelConfig
from graf.errors import CheckpointError
from graf.memory.sizes import StepSizes, smallest_of_all
from graf.pose.mixture import build_estimator
from graf.runtime.processes import ALONE, Processes
from graf.training.state import Player, RunState

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.99)


class PoseState(RunState):
    """Network, optimizer, scaler, step, random state and newest validation of a run, equal in all processes."""

    FORMAT, PROGRAM = POSE_FORMAT, "train_pose.py"
    NETWORKS, LEARNERS, OPTIMIZERS, SCALERS = ("estimator",), ("estimator",), ("optimizer",), ("scaler",)
    config: PoseConfig

    def __init__(
        self,
        config: PoseConfig,
        device: torch.device,
        distance: float,
        processes: Processes = ALONE,
        estimator: nn.Module | None = None,
    ):
        """distance: the unit of translations, the mean distance of the training cameras; estimator: a network to train in place
        of the config's."""
        super().__init__(config, device, processes)
        self.estimator = (build_estimator(config.model, distance) if estimator is None else estimator).to(device)
        training, decay = config.training, config.training.weight_decay
        fused = device.type == "cuda" or None  # which skips a step without being waited for
        self.optimizer = torch.optim.AdamW(
            self.estimator.parameters(), lr=training.lr, betas=BETAS, weight_decay=decay, fused=fused
        )
        images = min(config.images_at_once, processes.share_of(training.batch_size))
        self.sizes = smallest_of_all(StepSizes(images, rays=0, n_rays=1), processes)
        self.scaler = self.amp.scaler()
        self.validation: dict[str, float | Tensor] = {}  # the newest one, as `graf.pose.validation.Validation` has it
        self.follow_schedule()

    @property
    def player(self) -> Player:
        """The network and its optimizer, for `graf.training.learn`."""
        return Player("grad_norm", self.estimator, self.optimizer, self.scaler)

    def follow_schedule(self) -> None:
        """Warm up to training.lr over warm_up_steps; anneal along a cosine to 0 at max_steps (Loshchilov and Hutter 2017)."""
        training = self.config.training
        rise = min(1.0, (self.step + 1) / max(training.warm_up_steps, 1))
        done = min(1.0, self.step / max(training.max_steps, 1))
        for group in self.optimizer.param_groups:
            group["lr"] = training.lr * rise * (1 + math.cos(math.pi * done)) / 2

    def learning_rates(self) -> dict[str, float]:
        return {"lr": self.optimizer.param_groups[0]["lr"]}

    def require_fit(self, content: dict, path: Path) -> None:
        """Raises CheckpointError where model.* is not the checkpoint's."""
        saved, own = vars(PoseModelConfig()) | content["config"].get("model", {}), vars(self.config.model)
        if differing := [f"model.{key} {saved[key]} (here {own[key]})" for key in own if saved[key] != own[key]]:
            raise CheckpointError(
                f"{path}: of another network, {', '.join(differing)}; continue with its config, or set expname=NAME"
            )

    def state_dict(self) -> dict:
        return super().state_dict() | {"validation": self.validation}

    def load_state_dict(self, saved: dict) -> None:
        super().load_state_dict(saved)
        self.validation = saved["validation"]
