"""The whole state of a run in one object: save it, load it in a new process, and training continues as if uninterrupted."""

import abc
import bisect
import copy
import importlib.util
import logging
import math
import os
import random
import shutil
from pathlib import Path
from typing import NamedTuple

from graf.checkpoints.architecture import differences
from graf.checkpoints.checkpoint import FORMAT, NETWORKS, Checkpoint, read_checkpoint
from graf.checkpoints.conditions import Conditions, report_changed_conditions, report_config_changes
from graf.checkpoints.export import class_names
from graf.checkpoints.partial_loading import load_partially, require_fit
from graf.config import Config, RunConfig, TrainingConfig
from graf.config.strict import listed
from graf.errors import CheckpointError, GrafError
from graf.foreign.checkpoints import ForeignCheckpoint, recognise
from graf.foreign.esrgan import load_esrgan_weights
from graf.memory.budget import budget_bytes
from graf.memory.planner import Estimate, estimate_step
from graf.memory.sizes import StepSizes, planning_budget, smallest_of_all, starting_sizes, with_sizes
from graf.models.fields.fusing import why_not_fused
from graf.models.generator import Generator, weights_hash
from graf.models.perception import feature_network
from graf.models.registry import build_discriminator
from graf.pieces import is_asynchronous
from graf.private_torch import SkippingRMSprop, move_towards
from graf.runtime.out_of_memory import is_out_of_memory
from graf.runtime.precision import AmpSettings
from graf.runtime.processes import ALONE, Processes
from graf.training.graphs import CudaRecorder, Graphs

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

log = logging.getLogger("graf")

ANNEALED_BETA2 = 0.9, 0.99  # Adam's second beta, first and last, with training.anneal: r3gan
TRITON_FROM = (7, 0)  # compute capability
ERROR_LINES = 5  # of PyTorch's, in a message
PLAIN_VALUES = (
    *("step", "images_seen", "bad_steps", "bad_since", "first_bad", "rollbacks"),
    *("best", "lowest_losses", "waited_s", "data_fingerprint", "class_names"),
)


class Player(NamedTuple):
    """A network that learns, with what updates it, and the name of its gradient's norm in the log."""

    grad_norm: str
    network: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler


class RunState(abc.ABC):
    """The state that every kind of training run has: networks and optimizers, its step and counts, its random
    states, equal in all of its processes. A subclass builds those that it names here as its attributes."""

    FORMAT: str  # the format of its checkpoints
    PROGRAM: str  # the program that trains it, for messages
    NETWORKS: tuple[str, ...]
    LEARNERS: tuple[str, ...]  # the networks that are trained, in the order of their steps
    OPTIMIZERS: tuple[str, ...]
    SCALERS: tuple[str, ...]
    n_classes = n_elevations = 1
    sizes: StepSizes

    def __init__(self, config: RunConfig, device: torch.device, processes: Processes):
        self.config = config
        self.device = device
        self.processes = processes
        self.graphs = Graphs()
        torch.manual_seed(config.training.seed)  # for the weights' initialisation, and for libraries
        random.seed(config.training.seed)  # these two for libraries alone
        np.random.seed(config.training.seed % 2**32)
        self.amp = AmpSettings.choose(config.training, device)
        self.conditions = Conditions.current(device, self.amp.number_format)
        self.savable = True  # False from a step's first update to its last: no checkpoint is saved then
        # What a run counts, and its random states
        self.step = 0
        self.images_seen = 0  # from the data set, in all steps
        self.bad_steps = 0  # in a row, with a non-finite loss or gradient
        self.bad_since = 0  # the first of them
        self.first_bad = ""  # what was not finite in the first of them
        self.rollbacks = 0  # to an earlier checkpoint, because of too many of them
        self.unread: list[tuple[int, tuple[str, ...], Tensor]] = []  # steps' names and numbers that are still on the device
        self.best: dict | None = None  # value, step and terms of the best measurement by training.save_best
        self.lowest_losses: dict[str, dict] = {}  # value and step of each loss, of the steps that were logged
        self.waited_s: dict[str, float] = {}  # seconds since what is done every so many minutes was, by its key
        self.data_fingerprint = ""  # the data that the steps were taken on; empty where it is not known
        self.class_names: list[str] = []  # of these data, as the networks number them
        self.rng = torch.Generator().manual_seed(config.training.seed + 1)  # for what a step samples: latents, cameras
        self.device_rng = torch.Generator(device).manual_seed(config.training.seed + 2)  # for what it samples on the device

    @classmethod
    def saved_parts(cls) -> tuple[str, ...]:
        """Names of the parts with a state_dict of their own, as a checkpoint has them."""
        return cls.NETWORKS + cls.OPTIMIZERS + cls.SCALERS

    @abc.abstractmethod
    def follow_schedule(self) -> None:
        """Give the optimizers the rates of this step, and have the networks do what it asks of them."""

    @abc.abstractmethod
    def learning_rates(self) -> dict[str, float]:
        """The rates that the optimizers have, by the config's keys in training."""

    def load_foreign(self, content: dict, path: Path) -> None:
        """Continue from a checkpoint of another format. Raises CheckpointError where that cannot be done."""
        raise CheckpointError(f"{path}: not a checkpoint of {self.PROGRAM}; name another with --resume FILE")

    @abc.abstractmethod
    def require_fit(self, content: dict, path: Path) -> object:
        """Raises CheckpointError, with what differs, where a checkpoint is of other networks."""

    def require_same_everywhere(self) -> None:
        """Raises GrafError where the processes of the run are at different steps or have different weights."""
        if not self.processes.alone:
            found = self.step, *(weights_hash(getattr(self, name)) for name in self.NETWORKS)
            self.processes.require_same(found, "step and weights")

    def gradient_scales(self) -> dict[str, float]:
        """Loss scale of each scaler, where the number format needs one so that no gradient rounds to 0."""
        scalers = {name.replace("scaler", "gradient_scale"): getattr(self, name) for name in self.SCALERS}
        return {name: scaler.get_scale() for name, scaler in scalers.items() if scaler.is_enabled()}

    def note_losses(self, scalars: dict[str, float]) -> None:
        """Record those losses of a step that are the lowest of the run so far."""
        for name, value in scalars.items():
            lowest = self.lowest_losses.get(name, {"value": math.inf})
            if name.startswith("loss") and math.isfinite(value) and value < lowest["value"]:
                self.lowest_losses[name] = {"value": value, "step": self.step}

    def advance(self) -> None:
        """Count a step and its images as done, and be ready for the next, with its learning rates and sizes."""
        self.savable = True
        self.step += 1
        self.images_seen += self.config.training.batch_size
        self.follow_schedule()
        if self.sizes.step_done():
            log.info("step %d: memory has sufficed for a while; trying %s again", self.step, self.sizes)

    def shrink(self) -> bool:
        """Let the next try of a step need less memory, in all processes alike: without recorded graphs, else in smaller parts.
        False where there is nothing smaller."""
        if self.processes.any(self.graphs.recorded > 0):
            self.graphs.give_up("out of memory")
            return True
        return self.sizes.shrink()

    def spare_bytes(self) -> int:
        """Bytes that the plan of a step leaves free on a GPU; 0 where there is no plan."""
        return 0

    def random_states(self) -> tuple[Tensor, Tensor]:
        """Random states of what a step samples, on the CPU and on the device."""
        return self.rng.get_state(), self.device_rng.get_state()

    def set_random_states(self, states: tuple[Tensor, Tensor]) -> None:
        """Go back to `random_states` of before."""
        for rng, state in zip((self.rng, self.device_rng), states, strict=True):
            rng.set_state(state)

    def checkpoint(self) -> Checkpoint:
        """The state as a checkpoint to be saved."""
        return Checkpoint(self.config, self.n_classes, self.n_elevations, self.conditions, self.state_dict(), self.FORMAT)

    def state_dict(self) -> dict:
        """Tensors and plain values only, so that torch.load(weights_only=True) reads it."""
        random_states = {"torch": torch.get_rng_state(), "draws": self.rng.get_state(), "noise": self.device_rng.get_state()}
        kind, numbers, *rest = np.random.get_state()
        random_states |= {"python": random.getstate(), "numpy": (kind, numbers.tolist(), *rest)}  # used by libraries alone
        if self.device.type == "cuda":
            random_states["cuda"] = torch.cuda.get_rng_state(self.device)
        return {
            **{name: getattr(self, name).state_dict() for name in self.saved_parts()},
            **{name: getattr(self, name) for name in PLAIN_VALUES},
            "sizes": self.sizes.state_dict(),
            "rng": random_states,
        }

    def load_state_dict(self, saved: dict) -> None:
        """Load a saved state; learning rates and number format stay those of the config.

        Raises KeyError or RuntimeError where it is of another architecture, ValueError where of another optimizer.
        """
        self.unread = []
        self.graphs.clear()
        # Networks, optimizers and scalers; scalers of an unfinished step cannot be reused
        for name in self.SCALERS:
            setattr(self, name, self.amp.scaler())
        for name in self.saved_parts():
            part = getattr(self, name)
            if isinstance(part, torch.amp.GradScaler) and not (part.is_enabled() and saved[name]):
                continue  # a scaler that is off has no state
            if isinstance(part, torch.optim.Optimizer):
                own = part.state_dict()
                if _is_adam(own) != _is_adam(saved[name]):
                    raise ValueError("training.optimizer is not the checkpoint's")
                part.load_state_dict(saved[name] | {"param_groups": own["param_groups"]})  # older ones have a single group
            else:
                part.load_state_dict(saved[name])
        # Counts and the parts of a step
        absent = {
            "first_bad": "",
            "bad_since": 0,
            "rollbacks": 0,
            "best": None,
            "lowest_losses": {},
            "waited_s": {},
            "data_fingerprint": "",
            "class_names": [],
        }  # in older files
        for name in PLAIN_VALUES:
            setattr(self, name, (absent | saved)[name])
        if "sizes" in saved:
            self.sizes.load_state_dict(saved["sizes"])
        self.follow_schedule()
        # Random states
        random_states = saved["rng"]
        torch.set_rng_state(random_states["torch"].cpu())
        self.rng.set_state(random_states["draws"].cpu())
        # A run moved to another kind of device goes on with new noise
        if self.device_rng.get_state().shape == random_states["noise"].shape:
            self.device_rng.set_state(random_states["noise"].cpu())
        if self.device.type == "cuda" and "cuda" in random_states:
            torch.cuda.set_rng_state(random_states["cuda"].cpu(), self.device)
        if "python" in random_states:  # older checkpoints have neither
            random.setstate(random_states["python"])
            np.random.set_state(random_states["numpy"])


class TrainState(RunState):
    """A generator's run: generator, its EMA, discriminator, and what trains them."""

    FORMAT, PROGRAM = FORMAT, "train.py"
    NETWORKS, LEARNERS = NETWORKS, ("discriminator", "generator")
    OPTIMIZERS, SCALERS = ("optimizer_g", "optimizer_d"), ("scaler_g", "scaler_d")

    def __init__(
        self,
        config: Config,
        device: torch.device,
        n_classes: int = 1,
        n_elevations: int = 1,
        processes: Processes = ALONE,
    ):
        super().__init__(config, device, processes)
        self.n_classes, self.n_elevations = n_classes, n_elevations
        # Networks and optimizers
        self.generator = Generator(config, n_classes).to(device)
        self.discriminator = build_discriminator(config, n_classes, n_elevations).to(device)
        self.generator_ema = copy.deepcopy(self.generator).eval().requires_grad_(False)
        self.why_not_fused = self._fuse_or_compile(config)
        self.perception = feature_network().to(device) if config.ccsr.perceptual_weight > 0 else None
        self.optimizer_g = _optimizer(self.generator, config.training, config.ccsr.lr_multiplier, config.restores_real_images)
        self.optimizer_d = _optimizer(self.discriminator, config.training)
        # Parts of a step
        budget = planning_budget(config.memory, device)
        sizes = starting_sizes(config, device.type, budget, n_classes, n_elevations, processes.world_size)
        self.sizes = smallest_of_all(sizes, processes)
        self.scaler_g, self.scaler_d = self.amp.scaler(), self.amp.scaler()
        if config.training.cuda_graphs == "auto" and device.type == "cuda":
            two_fit = 2 * self._planned_bytes() <= budget_bytes(config.memory, device)  # one recorded beside another's memory
            (fits_all,) = processes.minimum((two_fit,))
            self.graphs = Graphs(CudaRecorder if fits_all else None)
        self.follow_schedule()

    def _fuse_or_compile(self, config: Config) -> str:
        """Have the layers of fields that train computed as one operation, in all processes or in none, or compiled where the
        config says so; returns why they are not one here, or ""."""
        why_not = why_not_fused(config, self.device.type, self.amp.dtype)
        if why_not and self.device.type == "cuda" and self.amp.enabled and config.nerf.conditioning == "film":
            log.info("the field is computed layer by layer, which takes more time and memory: %s", why_not)
        (all_fuse,) = self.processes.minimum((not why_not,))
        if all_fuse:
            for field in self.generator.fields:
                field.fused = True
            if config.training.compile:
                log.info("training.compile: nothing to compile, the field's layers are one operation (training.fused_field)")
        elif config.training.compile:
            compile_fields(self.generator)
        return why_not or ("" if all_fuse else "another process cannot")

    @property
    def d(self) -> Player:
        """The discriminator, as `graf.training.learn` trains it."""
        return Player("grad_norm_d", self.discriminator, self.optimizer_d, self.scaler_d)

    @property
    def g(self) -> Player:
        """The generator, as `graf.training.learn` trains it."""
        return Player("grad_norm_g", self.generator, self.optimizer_g, self.scaler_g)

    def spare_bytes(self) -> int:
        """Half of what a step surely leaves free on a GPU, 0 on a CPU: samples and metrics need memory too, and a plan may be a
        quarter too low."""
        if self.device.type != "cuda":
            return 0
        held = (2 if self.graphs else 1) * self._planned_bytes()
        return max(0, int(budget_bytes(self.config.memory, self.device) - 1.25 * held) // 2)

    def estimate(self) -> Estimate:
        """The planner's estimate of a step of this process in its sizes."""
        config, world_size = with_sizes(self.config, self.sizes), self.processes.world_size
        return estimate_step(config, self.device.type, self.n_classes, self.n_elevations, world_size)

    def _planned_bytes(self) -> int:
        """The bytes that a step holds on a GPU beside its context, by the planner."""
        estimate = self.estimate()
        return estimate.total_bytes - estimate.process_bytes

    def load_pretrained_backbone(self, path: str) -> None:
        """Start CCSR's rrdb backbone, and its EMA, from a file of (Real-)ESRGAN weights. Raises CheckpointError."""
        load_esrgan_weights(self.generator.refinement.backbone.network, path)
        self.generator_ema.refinement.load_state_dict(self.generator.refinement.state_dict())

    def sample_latents(self, n: int) -> Tensor:
        """(n, Z) latents on the CPU, from the run's own random state."""
        return self.generator.sample_latents(n, self.rng)

    @torch.no_grad()
    def update_ema(self, learned: Tensor) -> None:
        """generator_ema follows the generator where that has `learned` (a bool), not where its step was skipped; in the first
        steps faster than model_average_beta, so as to forget its start."""
        half_life = self.annealed(1e-6, 1.0) if self.anneals else 1.0  # as a share of its final one
        beta = min(self.config.model_average_beta ** (1 / half_life), (1 + self.step) / (10 + self.step))
        averaged, current = list(self.generator_ema.parameters()), list(self.generator.parameters())
        if is_asynchronous(self.device.type):
            move_towards(averaged, current, (1 - beta) * learned)
        elif learned:
            get_ema_multi_avg_fn(beta)(averaged, current, None)
        for average, buffer in zip(self.generator_ema.buffers(), self.generator.buffers(), strict=True):
            average.copy_(buffer)

    def skip_to_whole_step(self) -> None:
        """Go on with a step of whole images and with a gradient penalty, as most steps with a discriminator are."""
        self._skip_to(self.config.short_steps)

    def skip_to_costliest_step(self) -> None:
        """Go on with a step of whole images, not refined if a run ends with such, and with a gradient penalty: but for CCSR's
        rrdb backbone no other takes more time or memory."""
        self._skip_to(max(self.config.short_steps, self.config.first_unrefined))

    def _skip_to(self, step: int) -> None:
        self.step = max(self.step, step)
        self.step += -(self.step + 1) % self.config.training.reg_every
        self.follow_schedule()

    @property
    def penalty_weight(self) -> float | None:
        """Weight of the discriminator's gradient penalty in the step taken now, which is number step + 1; None for a step
        without it, as all are but one in reg_every."""
        training = self.config.training
        if training.reg_type == "none" or (self.step + 1) % training.reg_every:
            return None
        return training.reg_param * (self.annealed(1.0, training.anneal_reg) if self.anneals else 1.0) * training.reg_every

    @property
    def anneals(self) -> bool:
        return self.config.training.anneal == "r3gan"

    def annealed(self, first: float, last: float) -> float:
        """A value that goes along a cosine from `first` at step 0 to `last`, which it keeps from step annealing_steps on
        (R3GAN, Huang et al. 2024)."""
        left = 0.5 * (1 + math.cos(math.pi * min(1.0, self.step / self.config.training.annealing_steps)))
        return last + (first - last) * left

    def follow_schedule(self) -> None:
        """Give the optimizers the config's rates, annealed or times lr_anneal for each milestone that the step has reached, of
        which CCSR has a share; in the last steps have the generators render without CCSR, which keeps its weights."""
        training, rendered = self.config.training, self.config.at(self.step)
        if rendered.rendered_scale != self.generator.config.rendered_scale:
            self.graphs.clear()
            if rendered.rendered_scale == 1:
                log.info(
                    "the last %d steps, from step %d on, render all pixels, without CCSR (ccsr.unrefined_steps); each takes "
                    "longer than those before",
                    *(training.max_steps - self.config.first_unrefined, self.config.first_unrefined),
                )
        self.generator.config = self.generator_ema.config = rendered
        milestones = bisect.bisect_right(self.config.milestones, self.step)
        factor = self.annealed(1.0, training.anneal_lr) if self.anneals else training.lr_anneal**milestones
        for optimizer, rate in ((self.optimizer_g, training.lr_g), (self.optimizer_d, training.lr_d)):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor * group["share"]
                if self.anneals:
                    group["betas"] = group["betas"][0], self.annealed(*ANNEALED_BETA2)

    def learning_rates(self) -> dict[str, float]:
        return {"lr_g": self.optimizer_g.param_groups[0]["lr"], "lr_d": self.optimizer_d.param_groups[0]["lr"]}

    def require_fit(self, content: dict, path: Path) -> ForeignCheckpoint:
        """The checkpoint's weights; the log tells what of it is left out."""
        found = recognise(content, path)
        self._require_as_many_classes(found.n_classes, content, path)
        found.report_left_out(path)
        require_fit({name: getattr(self, name) for name in self.NETWORKS}, found.parts, self.config, path)
        return found

    def _require_as_many_classes(self, n_known: int, content: dict, path: Path) -> None:
        """n_known: classes that the checkpoint's networks know, as far as their weights tell."""
        before, now = class_names(content, n_known), self.class_names
        of_other_data = content.get("n_classes") == n_known != len(now)  # else the config differs, as the shapes tell
        if not now or not of_other_data or self.generator.n_classes == n_known:
            return
        learned = f"{n_known} {'class' if n_known == 1 else 'classes'}{f' ({listed(before)})' if before else ''}"
        raise CheckpointError(
            f"{path}: learned {learned}, and data.datadir has {len(now)} ({listed(now)}); give it the same ones, or begin "
            f"another run: --set expname=NAME, and --resume {path} --partial to take the weights that fit"
        )

    def load_foreign(self, content: dict, path: Path) -> None:
        """Take the weights and the step of other people's checkpoint."""
        found = self.require_fit(content, path)
        for name in self.NETWORKS:
            getattr(self, name).load_state_dict(found.parts[name])
        self.step, self.images_seen = found.step, found.step * self.config.training.batch_size
        self.follow_schedule()
        log.warning("%s: %s; its weights are loaded, the optimizers start from scratch", path, found.description)


def compile_fields(generator: Generator) -> None:
    """Have the radiance fields compiled when they are first called, in place: names in checkpoints stay as they are.

    The rest stays as it is: the discriminator, because the double backward pass of its penalty cannot be compiled; CCSR's
    backbone, whose padding's backward pass torch 2.15 fails to compile; the EMA, which renders frames of all sizes.
    Raises GrafError without a C++ compiler, and for a GPU without Triton.
    """
    device = generator.background.device
    if device.type == "cuda" and (
        importlib.util.find_spec("triton") is None or torch.cuda.get_device_capability(device) < TRITON_FROM
    ):
        raise GrafError(
            "training.compile: on a GPU it takes Triton, which this PyTorch comes without or which does not know this GPU; set "
            "training.compile=false"
        )
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        raise GrafError("training.compile: no C++ compiler is found; install g++, or set training.compile=false")
    for field in generator.fields:
        # On a CPU the number of rays that hit the box changes from step to step
        field.compile(dynamic=not is_asynchronous(device.type))


def load_checkpoint(path: Path, state: RunState) -> None:
    """Continue from a checkpoint: everything from one of ours, the weights and the step from other people's.

    Raises CheckpointError where the checkpoint is of another architecture than the config; out of memory as it is.
    """
    content = read_checkpoint(path)
    if content.get("format") != state.FORMAT:
        state.load_foreign(content, path)
        return
    state.require_fit(content, path)
    try:
        report_config_changes(content["config"], state.config)
        images_seen = content["state"]["step"] * content["config"]["training"]["batch_size"]  # in older files
        state.load_state_dict({"images_seen": images_seen} | content["state"])
        report_changed_conditions(path, content.get("conditions", {}), state.conditions, state.step)
    except (KeyError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        raise CheckpointError(f"{path}: does not fit this config; {_first_lines(error)}") from None


def initialise_from(path: Path, state: TrainState) -> None:
    """Load into a new run those weights of a checkpoint that fit its networks; step and optimizers stay at their start.

    The log tells what was not loaded. Raises CheckpointError where less than half of a network's parameters would be.
    """
    content = read_checkpoint(path)
    found = recognise(content, path)
    found.report_left_out(path)
    if found.n_classes == state.generator.n_classes:
        state.class_names = list(class_names(content, found.n_classes)) or state.class_names
    for key, value, finding in differences(found.parts, state.config):
        log.info("%s: %s is %s in the config and %s in the file", path, key, value, finding)
    networks = {name: getattr(state, name) for name in NETWORKS}
    if "discriminator" in found.parts:
        networks["discriminator"] = state.discriminator.critic_of(found.parts["discriminator"])
        if networks["discriminator"] is not state.discriminator:
            log.warning("%s: its discriminator is one critic of a mixed one; the other starts from random weights", path)
    reports = {
        name: load_partially(network, found.parts[name], path) for name, network in networks.items() if name in found.parts
    }
    for name, report in reports.items():
        if name != "generator_ema" or report != reports["generator"]:
            report.log(f"{path}: {name}")
    for name in NETWORKS:
        if name not in reports:
            log.warning("%s: holds no %s, which starts from random weights", path, name)


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    more = [f"... and {len(lines) - ERROR_LINES} more"] if len(lines) > ERROR_LINES else []
    return "\n  ".join(lines[:ERROR_LINES] + more)


def _is_adam(optimizer_state: dict) -> bool:
    return "betas" in optimizer_state["param_groups"][0]


def _optimizer(
    network: nn.Module, training: TrainingConfig, lr_multiplier: float = 1.0, restores: bool = False
) -> torch.optim.Optimizer:
    """An optimizer of all parameters, in their order, with a group per part of the network and its share of the learning rate.

    Adam has no momentum, for gradients of networks that learn against each other turn around; where CCSR `restores`
    real images, which stay what they are, it has its usual one, as the encoder of real images has. A discriminator forgets
    the size of its gradients within ten steps. They are small while it is in balance, and if that is remembered for a hundred,
    steps along the first large ones are so long that its loss can rise to 200.
    """
    adam, groups = training.optimizer == "adam", []
    beta2 = 0.99 if isinstance(network, Generator) else 0.9
    for name, part in network.named_children():
        is_ccsr = name == "refinement"
        group = {"params": part.parameters(), "share": lr_multiplier if is_ccsr else 1.0}
        if adam:
            group["betas"] = (0.9 if is_ccsr and restores or name == "encoder" else 0.0, beta2)
        groups.append(group)
    if adam:
        return torch.optim.Adam(groups, eps=1e-8, fused=True)  # many small tensors
    return SkippingRMSprop(groups, alpha=0.99, eps=1e-8)
