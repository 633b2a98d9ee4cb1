"""GAN inversion (Zhu et al. 2016): find the latents and cameras of images of an object.

Latents and cameras are optimised together so that the generator reproduces the target images. An unknown camera is searched for
all around the object first, because no gradient leads from the wrong side of the object to the right one.
"""

from graf.camera import azimuth_and_v
from graf.errors import GrafError
from graf.inversion.camera_search import FINALISTS, mean_objects, objects_of_every_class, search_cameras, with_opposites
from graf.inversion.loss import InversionSettings, inversion_loss
from graf.inversion.results import Inversion, as_rendered
from graf.models.generator import Generator
from graf.models.perception import feature_network

from torch import Tensor
from tqdm import tqdm


def invert(
    generator: Generator,
    targets: Tensor,
    poses: Tensor | None = None,
    settings: InversionSettings | None = None,
    bar: tqdm | None = None,
    start: Tensor | None = None,
) -> Inversion:
    """Find the object that N target images (N, 3, W, W) in [-1, 1] show, W being data.imsize, and the camera of each.

    poses (N, 3, 4) are kept where given, else searched for on the config's sphere, as is the class of a conditional model.
    start (N, 3, 4): cameras whose directions, and the opposite ones, the search starts from, instead of from all around. The
    same seed gives the same result. The bar counts renderings. Raises GrafError where the model renders non-finite images.
    """
    settings = settings or InversionSettings()
    device, width = generator.background.device, generator.config.data.imsize
    if targets.shape[1:] != (3, width, width) or (poses is not None and len(poses) != len(targets)):
        raise ValueError(f"target images {tuple(targets.shape)}: expected (N, 3, {width}, {width}) and, if any, N poses")
    targets, poses = targets.to(device), poses if poses is None else poses.to(device)
    network = feature_network().to(device)
    coarse_loss = inversion_loss(generator, targets, poses, settings, settings.search_size, network)
    n = len(targets)
    if bar is not None:
        bar.total = most_renderings(generator, targets, poses, settings, start)
    if poses is not None:
        found = objects_of_every_class(coarse_loss, poses)
    elif start is not None:
        found = with_opposites(objects_of_every_class(coarse_loss, start.to(device)))
    else:
        found = search_cameras(coarse_loss, bar)
    if bar is not None:  # a search may have needed fewer
        bar.total = int(bar.n) + n * (settings.search_steps * len(found) * (len(found) > 1) + settings.fit_steps)
    if len(found) > 1:
        found, losses = coarse_loss.fit(found, settings.search_steps, bar)
        found = found[losses.argsort()[:1]]
    fine_loss = inversion_loss(generator, targets, poses, settings, settings.fit_size, network)
    found, losses = fine_loss.fit(found, settings.fit_steps, bar)
    if not losses.isfinite().all():
        raise GrafError("the model renders non-finite images, so nothing can be found with it; name another checkpoint")
    latents, class_index, pose_c2w = found.latents.cpu(), found.class_index.cpu(), fine_loss.poses_of(found)[0].cpu()
    found = Inversion(latents, class_index, pose_c2w, *azimuth_and_v(pose_c2w))
    return as_rendered(generator, found, targets, losses.item())


def most_renderings(
    generator: Generator, targets: Tensor, poses: Tensor | None, settings: InversionSettings, start: Tensor | None = None
) -> int:
    """The largest number of renderings that `invert` makes for these arguments."""
    n_classes = len(mean_objects(generator)[0])
    if poses is None and start is None:
        compared = settings.azimuths * min(2, n_classes) + 2 * FINALISTS
    else:
        hypotheses = n_classes if poses is not None else 2 * n_classes
        compared = hypotheses * (hypotheses > 1)
    return len(targets) * (settings.search_steps * compared + settings.fit_steps)
