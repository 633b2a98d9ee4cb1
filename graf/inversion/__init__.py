"""GAN inversion (Zhu et al. 2016): find the latents and cameras with which the generator reproduces photographs of an object.

Latents and camera are optimised together. An unknown camera is searched for all around the object first, because no gradient
leads from the wrong side of the object to the right one.
"""

from graf.camera import azimuth_and_v
from graf.errors import GrafError
from graf.inversion.camera_search import (
    FINALISTS,
    mean_objects,
    objects_of_every_class,
    search_cameras,
    with_opposites,
)
from graf.inversion.likeness import InversionSettings, likeness_to
from graf.inversion.results import Inversion, similarity
from graf.models.generator import Generator
from graf.models.perception import feature_network

from torch import Tensor
from tqdm import tqdm


def invert(
    generator: Generator,
    photographs: Tensor,
    poses: Tensor | None = None,
    settings: InversionSettings | None = None,
    bar: tqdm | None = None,
    start: Tensor | None = None,
) -> Inversion:
    """The object that N photographs (N, 3, W, W) in [-1, 1] show, W being data.imsize, and the camera of each.

    poses (N, 3, 4) are kept where given and searched for on the config's sphere where not; so is the class of a model that
    knows classes. start (N, 3, 4): cameras to search from, and from the opposite side, instead of from all around; what they
    tell is the direction that they look from. The same seed gives the same answer. The bar counts renderings. Raises GrafError
    where the model draws nothing finite.
    """
    settings = settings or InversionSettings()
    device, width = generator.background.device, generator.config.data.imsize
    if photographs.shape[1:] != (3, width, width) or (poses is not None and len(poses) != len(photographs)):
        raise ValueError(f"photographs {tuple(photographs.shape)}: expected (N, 3, {width}, {width}) and, if any, N poses")
    photographs, poses = photographs.to(device), poses if poses is None else poses.to(device)
    network = feature_network().to(device)
    coarse = likeness_to(generator, photographs, poses, settings, settings.search_size, network)
    n, searched = len(photographs), settings.search_steps
    if bar is not None:
        bar.total = most_renderings(generator, photographs, poses, settings, start)
    if poses is not None:
        found = objects_of_every_class(coarse, poses)
    elif start is not None:
        found = with_opposites(objects_of_every_class(coarse, start.to(device)))
    else:
        found = search_cameras(coarse, bar)
    if bar is not None:  # a search may have needed fewer
        bar.total = int(bar.n) + n * (searched * len(found) * (len(found) > 1) + settings.fit_steps)
    if len(found) > 1:
        found, losses = coarse.fit(found, searched, bar)
        found = found[losses.argsort()[:1]]
    fine = likeness_to(generator, photographs, poses, settings, settings.fit_size, network)
    found, losses = fine.fit(found, settings.fit_steps, bar)
    if not losses.isfinite().all():
        raise GrafError("the model draws nothing finite, so that no photograph can be found in it; name another checkpoint")
    latents, class_index, pose_c2w = found.latents.cpu(), found.class_index.cpu(), fine.poses_of(found)[0].cpu()
    images = generator.render(latents.expand(n, -1), pose_c2w, class_index=class_index.expand(n)).images
    psnr, ssim = zip(*map(similarity, photographs.cpu(), images), strict=True)
    return Inversion(latents, class_index, pose_c2w, *azimuth_and_v(pose_c2w), images, psnr, ssim, losses.item())


def most_renderings(
    generator: Generator, photographs: Tensor, poses: Tensor | None, settings: InversionSettings, start: Tensor | None = None
) -> int:
    """How many renderings `invert` makes of these at most."""
    n_classes = len(mean_objects(generator)[0])
    if poses is None and start is None:
        compared = settings.azimuths * min(2, n_classes) + 2 * FINALISTS
    else:
        hypotheses = n_classes if poses is not None else 2 * n_classes
        compared = hypotheses * (hypotheses > 1)
    return len(photographs) * (settings.search_steps * compared + settings.fit_steps)
