"""Train a linear probe for class or azimuth on the activations of a layer that tools/cache_activations.py cached.

    python tools/probe_activations.py results/default/activations --layer graf.main.3 --target azimuth

The score is measured on samples that were not used in training, and printed with the score of the best constant guess. Ctrl-C
keeps the best probe so far. Weights and result are in the folder, as probe_LAYER_TARGET.safetensors and .json.
"""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

from activations.files import CachedActivations
from graf.commands.jobs import seed
from graf.errors import GrafError
from graf.rotations import circular_distance
from graf.runtime.command_line import Parser, whole_number
from graf.runtime.console import log, progress, run_script
from graf.runtime.files import whole_file, write_text
from graf.runtime.interruption import Interruption

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

FEWEST_SAMPLES = 10
WEIGHT_DECAY = 0.01


class ClassTarget:
    """The class of a sample, by cross-entropy; the score is the accuracy."""

    score = "accuracy"

    def __init__(self, class_index: Tensor):
        self.classes, self.values = class_index.unique(return_inverse=True)
        self.width = len(self.classes)
        if self.width == 1:
            raise GrafError(f"all samples are of class {int(self.classes)}: nothing to tell apart; try --target azimuth")

    def loss(self, outputs: Tensor, index: Tensor) -> Tensor:
        return F.cross_entropy(outputs, self.values[index])

    def scores(self, outputs: Tensor, index: Tensor) -> Tensor:
        """1 for right and 0 for wrong, (n,)."""
        return (outputs.argmax(-1) == self.values[index]).float()

    def blind(self, train: Tensor, index: Tensor) -> Tensor:
        """The scores of always guessing the most frequent class."""
        return (self.values[index] == self.values[train].mode().values).float()


class AzimuthTarget:
    """The azimuth of a sample's camera, as (cos, sin); the score is the mean angular error in degrees."""

    score = "mean_angular_error_deg"
    width = 2

    def __init__(self, azimuth_deg: Tensor):
        self.azimuth_deg = azimuth_deg
        angle = torch.deg2rad(azimuth_deg)
        self.values = torch.stack([angle.cos(), angle.sin()], dim=-1)  # (N, 2)

    def loss(self, outputs: Tensor, index: Tensor) -> Tensor:
        return F.mse_loss(outputs, self.values[index])

    def scores(self, outputs: Tensor, index: Tensor) -> Tensor:
        """Degrees between the predicted and the true azimuth, (n,)."""
        return circular_distance(torch.rad2deg(torch.atan2(outputs[:, 1], outputs[:, 0])), self.azimuth_deg[index])

    def blind(self, train: Tensor, index: Tensor) -> Tensor:
        """The scores of always saying the one whole degree that suits the training samples best."""
        guesses = torch.arange(360.0)
        best = circular_distance(guesses[:, None], self.azimuth_deg[train]).mean(1).argmin()
        return circular_distance(guesses[best], self.azimuth_deg[index])


TARGETS = {"class": (ClassTarget, "class_index"), "azimuth": (AzimuthTarget, "azimuth_deg")}
Target = ClassTarget | AzimuthTarget


class LinearProbe(nn.Module):
    """A linear layer behind standardised features (B, D), which starts at 0.

    Features are divided by sqrt(D) as well, so that one learning rate suits layers of any width.
    """

    def __init__(self, mean: Tensor, std: Tensor, width: int):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("scale", std * len(mean) ** 0.5)
        self.linear = nn.Linear(len(mean), width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear((features - self.mean) / self.scale)


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a probe is trained; `held_out` is the share of samples kept for the score, and as many again for the choice."""

    epochs: int = 300
    learning_rate: float = 0.03
    batch_size: int = 32
    held_out: float = 0.2
    seed: int = 0


MEANINGS = {
    "epochs": "passes over the training samples",
    "learning_rate": "learning rate of the probe",
    "batch_size": "samples per step",
    "held_out": "share of the samples held out for the score; the same share is held out to choose the best probe",
    "seed": "random seed of the split and of the training",
}


TYPES = {"epochs": whole_number, "batch_size": whole_number, "seed": seed}  # of flags; the others are numbers of any kind


@dataclasses.dataclass
class Best:
    """The probe of the least validation loss so far, and how training ended."""

    epoch: int = 0
    loss: float = math.inf
    weights: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    ended: str = "all epochs done"
    finite: bool = True


class Experiment:
    """A probe, and the samples that it is trained on, chosen by and tested on. Raises GrafError for too few samples."""

    def __init__(self, cached: CachedActivations, target: Target, settings: Settings):
        self.cached, self.target, self.settings = cached, target, settings
        self.rng = torch.Generator().manual_seed(settings.seed)
        finite = torch.tensor([bool(cached[i][0].isfinite().all()) for i in range(len(cached))])
        n, self.skipped = int(finite.sum()), int((~finite).sum())
        if self.skipped:
            log.warning("%d of %d samples skipped, whose activations are not finite", self.skipped, len(cached))
        if n < FEWEST_SAMPLES:
            raise GrafError(f"{cached.folder}: {n} samples with finite activations, at least {FEWEST_SAMPLES} are needed")
        order = finite.nonzero()[:, 0][torch.randperm(n, generator=self.rng)]
        n_held_out = max(1, round(settings.held_out * n))
        self.test, self.validation, self.train = order.tensor_split([n_held_out, 2 * n_held_out])
        self.probe = LinearProbe(*self._moments(), target.width)

    def run(self, bar: tqdm | None = None, stopped: Callable[[], bool] = lambda: False) -> Best:
        """Train until the epochs are done, a loss is not finite, or `stopped` says so; the probe is then the best one."""
        rate = self.settings.learning_rate
        optimizer = torch.optim.AdamW(self.probe.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
        best = Best()
        for epoch in range(self.settings.epochs + 1):  # epoch 0 is the probe that has learned nothing
            loss = self._train_epoch(optimizer) if epoch else 0.0
            if math.isfinite(loss):
                loss = float(self.target.loss(self.outputs(self.validation), self.validation))
            if not math.isfinite(loss):
                best.finite, best.ended = False, f"the loss was {loss} in epoch {epoch}"
                log.warning("%s; the probe of epoch %d is kept, try a smaller --learning_rate", best.ended, best.epoch)
                break
            if loss < best.loss:
                best = Best(epoch, loss, {name: x.clone() for name, x in self.probe.state_dict().items()})
            if stopped():
                best.ended = f"interrupted after epoch {epoch}"
                break
            if bar is not None and epoch:
                bar.set_postfix_str(f"validation loss {loss:.4f}, best {best.loss:.4f}", refresh=False)
                bar.update()
        self.probe.load_state_dict(best.weights)
        return best

    def result(self, best: Best) -> dict:
        """The probe's score on the test samples beside that of chance, and how it came about."""
        scores = self.target.scores(self.outputs(self.test), self.test)
        n = {"train": len(self.train), "validation": len(self.validation), "test": len(self.test)}
        return {
            self.target.score: float(scores.mean()),
            "standard_error": float(scores.std() / len(scores) ** 0.5) if len(scores) > 1 else None,
            "chance": float(self.target.blind(self.train, self.test).mean()),
            "samples": n | {"skipped_not_finite": self.skipped},
            "best_epoch": best.epoch,
            "best_validation_loss": best.loss,
            "ended": best.ended,
            "settings": dataclasses.asdict(self.settings),
            "source": self.cached.manifest["source"],
        }

    @torch.no_grad()
    def outputs(self, index: Tensor) -> Tensor:
        """The probe's outputs for samples (n,): (n, width)."""
        return torch.cat([self.probe(self._features(some)) for some in index.split(self.settings.batch_size)])

    def _train_epoch(self, optimizer: torch.optim.Optimizer) -> float:
        """The last batch's loss, or the first that is not finite, which changes no weight."""
        order = self.train[torch.randperm(len(self.train), generator=self.rng)]
        for some in order.split(self.settings.batch_size):
            loss = self.target.loss(self.probe(self._features(some)), some)
            if not loss.isfinite():
                break
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    def _features(self, index: Tensor) -> Tensor:
        """(n, D) float32, D all numbers of an activation."""
        return torch.stack([self.cached[i][0].flatten() for i in index.tolist()]).float()

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (D,) of the training samples; 1 instead of the deviation of what is constant."""
        total = squares = 0.0
        for some in self.train.split(self.settings.batch_size):
            features = self._features(some).double()
            total, squares = total + features.sum(0), squares + (features**2).sum(0)
        mean = total / len(self.train)
        std = (squares / len(self.train) - mean**2).clamp_min(0).sqrt()
        return mean.float(), std.masked_fill(std <= 1e-6 * mean.abs(), 1).float()


def main() -> int:
    parser = Parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that tools/cache_activations.py wrote")
    parser.add_argument("--layer", help="layer to probe; by default the only one")
    parser.add_argument("--target", choices=list(TARGETS), required=True, help="what to predict from the activations")
    for field in dataclasses.fields(Settings):
        meaning = f"{MEANINGS[field.name]}; default {field.default}"
        parser.add_argument(f"--{field.name}", type=TYPES.get(field.name, field.type), default=field.default, help=meaning)
    args = parser.parse_args()
    settings = Settings(*(getattr(args, field.name) for field in dataclasses.fields(Settings)))
    if settings.epochs < 1 or settings.batch_size < 1 or not 0 < settings.learning_rate <= 1e30:
        raise GrafError("--epochs, --batch_size and --learning_rate must be finite numbers above 0")
    if not 0 < settings.held_out <= 0.4:
        raise GrafError(f"--held_out {settings.held_out}: expected a share above 0 and at most 0.4, which is left out twice")
    cached = CachedActivations(args.folder, args.layer)
    experiment = Experiment(cached, build_target(cached, args.target), settings)
    with Interruption() as interruption, progress(total=settings.epochs, desc="probe", unit="epoch") as bar:
        best = experiment.run(bar, lambda: interruption.signal is not None)
    result = {"layer": cached.layer, "target": args.target} | experiment.result(best)
    report(result, experiment.target.score)
    log.info("%s", write(args.folder / f"probe_{cached.layer}_{args.target}", result, best.weights))
    return interruption.exit_status or (0 if best.finite else 1)


def build_target(cached: CachedActivations, name: str) -> Target:
    """Raises GrafError where the samples do not have the label."""
    target, label = TARGETS[name]
    if label not in cached.labels:
        raise GrafError(f"{cached.folder}: its samples have no {label}, only {', '.join(cached.labels) or 'no labels'}")
    return target(cached.labels[label])


def report(result: dict, score: str) -> None:
    error, n = result["standard_error"], result["samples"]["test"]
    found = f"{score.replace('_', ' ')} {result[score]:.3g}" + ("" if error is None else f" ± {error:.2g}")
    ended = f"epoch {result['best_epoch']} was best, {result['ended']}"
    log.info("%s: %s on %d held-out samples, by chance %.3g; %s", result["layer"], found, n, result["chance"], ended)


def write(stem: Path, result: dict, weights: dict[str, Tensor]) -> Path:
    """STEM.safetensors with the weights and STEM.json with the result, whose path is returned."""
    weights_path, path = (stem.with_name(stem.name + suffix) for suffix in (".safetensors", ".json"))
    with whole_file(weights_path) as temporary:
        temporary.write_bytes(save(weights))  # save_file would let nobody else read it
    write_text(path, json.dumps(result, indent=1))
    return path


if __name__ == "__main__":
    run_script(main)
