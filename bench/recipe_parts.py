"""The parts of the default recipe, each undone or exchanged, and what tells the difference: for measure_training.py recipe."""

from collections.abc import Sequence
from pathlib import Path

from explain_distance import draw, enlarged
from graf.config import Config, load_config
from graf.data import Views
from graf.errors import ConfigError, GrafError
from graf.metrics.consistency import sanity
from graf.metrics.haze import haze
from graf.metrics.measure import measure
from graf.metrics.shapes import Subject, silhouette_variety
from graf.models.generator import Generator
from graf.runtime.console import log

from torch import Tensor

DEFAULT = "default"
PARTS = {  # of the default recipe: what undoes or exchanges each; what the config is already is left out
    "no box": ("data.box=none",),
    "silhouettes not judged": ("data.alpha=ignore",),
    "film": ("nerf.conditioning=film",),
    "triplane": ("nerf.conditioning=triplane",),
    "blurred at first": ("discriminator.blur_sigma=2", "discriminator.blur_steps=700"),
    "CCSR learns from the discriminator": ("ccsr.learns_from=discriminator", "ccsr.lr_multiplier=0.1"),
    "CCSR at the field's rate": ("ccsr.learns_from=discriminator", "ccsr.lr_multiplier=1"),
    "relativistic": ("training.gan_type=relativistic", "training.reg_type=r1_r2", "training.reg_param=0.1"),
    "convolutions alone": ("discriminator.architecture=graf",),
    "mixed critics": ("discriminator.architecture=mixed",),
    "no encoder": ("encoder.first_steps=0", "encoder.weight=0"),
    "annealed": ("training.anneal=r3gan",),
    "R1 0.1": ("training.reg_param=0.1",),
    "half the pixels for 200 steps": ("discriminator.low_res_steps=200",),
    "R1 every 8 steps": ("training.reg_every=8",),
    "minibatches of 4": ("training.batch_size=4",),
    "a faster discriminator": ("training.lr_d=0.002",),
    "rates halved at 200 and 300": ("training.lr_anneal_every=[200,300]",),
    "average of 0.995": ("training.model_average_beta=0.995",),
    "refined to the last step": ("ccsr.unrefined_steps=0",),
    "planes of 64 x 64": ("nerf.plane_size=64",),
    "bicubic kernel": ("ccsr.kernel=bicubic",),
}
PART_COLUMNS = {  # of a row: its heading and format
    "name": ("", "{}"),
    "seed": ("seed", "{}"),
    "step": ("steps", "{}"),
    "kid": ("KID x 1000", "{:.0f}"),
    "kid_before_refinement": ("before refinement", "{:.0f}"),
    "share_of_variety": ("variety", "{:.2f}"),
    "haze": ("haze", "{:.2f}"),
    "mean_opacity": ("opacity", "{:.2f}"),
    "seconds_per_step": ("s / step", "{:.3f}"),
    "cpu_seconds_per_step": ("CPU s / step", "{:.3f}"),
}
FEWER_FAKES = "metrics.n_fake=500"  # of each part
VARIETY_OBJECTS = 64


def part_configs(file: Path | None, settings: Sequence[str], only: Sequence[str] | None = None) -> dict[str, Config]:
    """The file's config with the settings, and what each of PARTS makes of it, or only those, where it can be and differs."""
    settings = [FEWER_FAKES, *settings]
    default = load_config(file, settings)
    found = {DEFAULT: default}
    for name, overrides in PARTS.items():
        if only and name not in only:
            continue
        try:
            config = load_config(file, [*settings, *overrides])
        except ConfigError as error:
            if only:
                raise
            log.info("%s: left out: %s", name, error)
            continue
        if config != default:
            found[name] = config
    for name in only or ():
        if name not in found:
            raise GrafError(f"--only {name!r}: the config is so already ({' '.join(PARTS[name])})")
    return {name: found[name] for name in only or found}


def part_quality(generator: Generator, dataset: Views, cache: Path) -> dict:
    """KID of a generator's images and of its field's own renderings, enlarged as bench/explain_distance.py does it; how far
    the bodies differ; haze and opacity."""
    config = generator.config
    rendering, _ = draw(generator, dataset, config.metrics.counts[1], config.training.seed)
    cuda = generator.background.device.type == "cuda"

    def kid(images: Tensor) -> dict:
        result = measure(images.split(config.metrics.batch_size), dataset, config.metrics, cache, cuda, ["kid"])
        return {"kid": result["values"][f"kid_{result['extractor']}"], "extractor": result["extractor"]}

    before = rendering.low_images
    subject = Subject(generator, dataset, config.training.seed, truncation=1.0, cache=cache, n=VARIETY_OBJECTS)
    return kid(rendering.images) | {
        "kid_before_refinement": None if before is None else kid(enlarged(before, config.data.imsize))["kid"],
        "share_of_variety": silhouette_variety(subject)["share_of_data"],
        "haze": haze(subject)["haze"],
        "mean_opacity": sanity(rendering, config.data.near, config.data.far)["mean_opacity"],
    }
