"""data.mirror and data.hflip: what a mirrored camera sees of a mirrored object is the mirrored image."""

import dataclasses
import itertools

from graf.camera import Labels, azimuth_and_v, mirrored_poses, poses_at, sample_poses
from graf.config import load_config
from graf.data import Views, build_dataset, build_loader, raycast
from graf.data.car_shapes import make_car
from graf.data.raycast import Solids
from graf.data.toy_cars import ToyCars, render_cars
from graf.errors import DataError
from graf.pictures.sampling import labels_as_in_data
from graf.rays import mirrored_images
from graf.rng import seeded_rng
from graf.training.inputs import sample_fake_labels
from graf.training.state import TrainState

import pytest
import torch

AZIMUTHS_DEG, V = torch.tensor([20.0, 110.0, 260.0]), torch.tensor([0.4, 0.25, 0.6])
N = 24


def boxes(turn_deg: float, plane_deg: float | None = None) -> Solids:
    """The boxes of a car, turned about z, without those on its left, so that it has no symmetry; mirrored in a plane."""
    car = make_car(0, 3)
    kept = [i for i in range(len(car.faces)) if i not in (8, 9)]  # the lamps of one side
    x, y, z, offset = car.faces[kept].double().unbind(-1)
    angle = torch.deg2rad(torch.tensor(turn_deg, dtype=torch.float64))
    normal = torch.stack([angle.cos() * x - angle.sin() * y, angle.sin() * x + angle.cos() * y, z], dim=-1)
    if plane_deg is not None:
        across = torch.deg2rad(torch.tensor(plane_deg + 90, dtype=torch.float64))
        across = torch.stack([across.cos(), across.sin(), torch.zeros_like(across)])
        normal = normal - 2 * (normal @ across)[..., None] * across  # Householder
    faces = torch.cat([normal, offset[..., None]], dim=-1)
    away = torch.tensor([[100, 0, 0, 1e-3, 1e-3]], dtype=torch.float64)  # a disc that no ray meets; their axis is y
    colours = torch.cat([car.colours[kept], car.colours[:1]]).double()
    return Solids(faces, away, colours, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("plane_deg", [0.0, 25.0, -90.0])
def test_the_mirrored_image_of_the_mirrored_object_is_what_the_mirrored_camera_sees(monkeypatch, plane_deg):
    monkeypatch.setattr(raycast, "LIGHT", (0.0, 0.0, 1.0))  # which no vertical plane moves
    data, poses = load_config(None, ["data.imsize=32"]).data, poses_at(AZIMUTHS_DEG.double(), V.double(), 3.6)
    object_, mirrored = boxes(17.0), boxes(17.0, plane_deg)
    seen = render_cars([object_] * 3, mirrored_poses(poses, plane_deg), data).images
    shown = mirrored_images(render_cars([mirrored] * 3, poses, data).images)
    assert (seen - render_cars([object_] * 3, poses, data).images).abs().amax() > 0.5
    torch.testing.assert_close(shown[..., 1:], seen[..., 1:], atol=1e-6, rtol=0)  # nobody saw column 0


class Dots(Views):
    """Image i is i, with one bright dot right of the optical axis."""

    def __init__(self, posed: bool = True):
        classes = torch.arange(N) % 2
        labels = Labels(poses_at(torch.arange(N) * 5.0, torch.full((N,), 0.4), 3.6), classes, torch.arange(N) % 3)
        super().__init__([f"{i}.png" for i in range(N)], ["a", "b"], classes, labels if posed else None, "fingerprint", 3)

    def read(self, index):
        image = torch.full((3, 8, 8), index, dtype=torch.uint8)
        image[:, 3, 6] = 255
        return image


def config(*overrides):
    small = ("training.batch_size=8", "training.nworkers=0", "data.imsize=16", "ray_sampler.rays_per_patch=64")
    return load_config("smoke", [*small, *overrides])


def taken(n, *overrides, start=0, posed=True):
    loader = build_loader(Dots(posed), config(*overrides), "cpu", start)
    found = list(itertools.islice(loader, n))
    loader.close()
    return found


def test_half_of_the_images_are_mirrored_with_their_cameras_and_keep_their_class():
    n_mirrored, dots = 0, Dots()
    for images, labels in taken(30, "data.mirror=10"):
        index = ((images[:, 0, 0, 0] + 1) * 127.5).round().long()
        is_mirrored = images[:, 0, 3, 2] == 1  # 2 at the other side of pixel 4, the optical axis
        assert torch.equal(is_mirrored, images[:, 0, 3, 6] != 1)
        azimuth_deg, v = azimuth_and_v(labels.pose_c2w)
        expected = torch.where(is_mirrored, 20 - 5.0 * index, 5.0 * index)
        assert ((azimuth_deg - expected + 180) % 360 - 180).abs().max() < 1e-3 and (v - 0.4).abs().max() < 1e-5
        assert torch.equal(labels.class_index, dots.class_index[index])
        assert torch.equal(labels.elevation_index, dots.labels.elevation_index[index])
        n_mirrored += int(is_mirrored.sum())
    assert 0.4 < n_mirrored / 240 < 0.6


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_continues_mirrors_the_same_images(workers):
    whole, resumed = taken(9, "data.mirror=0"), taken(4, "data.mirror=0", f"training.nworkers={workers}", start=5)
    for (images, labels), (expected, known) in zip(resumed, whole[5:], strict=True):
        assert torch.equal(images, expected) and torch.equal(labels.pose_c2w, known.pose_c2w)


def test_images_are_those_of_the_same_run_without_mirror_where_they_are_not_mirrored():
    for (images, labels), (plain, known) in zip(taken(6, "data.mirror=0"), taken(6), strict=True):
        kept = images[:, 0, 3, 6] == 1
        assert torch.equal(images[kept], plain[kept]) and torch.equal(labels.pose_c2w[kept], known.pose_c2w[kept])
        assert torch.equal(images[~kept], mirrored_images(plain[~kept]))


def test_fakes_of_training_stand_at_mirrored_cameras_too_and_those_of_metrics_do_not():
    state = TrainState(config("data.mirror=200"), torch.device("cpu"))
    own = {round(5.0 * i) for i in range(N)}  # 0 to 115 degrees; mirrored, 285 to 400

    def share_of_own(labels):
        azimuth_deg, _ = azimuth_and_v(labels.pose_c2w)
        return sum(round(angle) in own for angle in azimuth_deg.tolist()) / len(azimuth_deg)

    assert 0.5 < share_of_own(sample_fake_labels(state, Dots(), 400)) < 0.7  # 0 to 40 are both
    assert share_of_own(labels_as_in_data(Dots(), state.config.data)(400, torch.Generator().manual_seed(0))) == 1


def test_without_mirror_fakes_take_no_random_number_more():
    state, rng = TrainState(config(), torch.device("cpu")), torch.Generator()
    rng.set_state(state.rng.get_state())
    expected = Dots().labels[torch.randint(N, (50,), generator=rng)]
    assert torch.equal(sample_fake_labels(state, Dots(), 50).pose_c2w, expected.pose_c2w)
    assert torch.equal(state.rng.get_state(), rng.get_state())


@pytest.mark.parametrize(
    "settings, told",
    [
        (("data.hflip=true",), "set data.hflip: false, and where objects are symmetric data.mirror to the azimuth"),
        (("data.hflip=true", "data.mirror=0"), "set data.hflip: false, and where objects are symmetric data.mirror to"),
        (("data.mirror=0", "data.labels=none"), "set data.mirror: none, and data.hflip: true to mirror images without cameras"),
        (("data.mirror=0", "data.hflip=true", "data.labels=none"), "data.mirror: the images have no cameras to mirror"),
    ],
)
def test_the_wrong_key_is_a_fault_that_names_the_right_one(tmp_path, settings, told):
    with pytest.raises(DataError) as error:
        build_dataset(config(f"data.datadir=[{tmp_path}]", "data.n_images=8", *settings))
    assert told in str(error.value)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mirrored_car_and_its_opacity_are_what_the_mirrored_camera_sees(tmp_path, monkeypatch, workers):
    """A car is the same on both sides of y = 0, and so is this light: the mirrored camera's view is rendered, not flipped."""
    monkeypatch.setattr(raycast, "LIGHT", (0.6, 0.0, 0.8))
    settings = ("data.labels=none", "data.hflip=true", "data.imsize=32", "data.n_images=8", f"data.datadir=[{tmp_path}]")
    run = config(*settings, "ray_sampler.rays_per_patch=256", f"training.nworkers={workers}")
    dataset: ToyCars = build_dataset(run)
    data = dataclasses.replace(run.data, alpha="rgba")
    azimuth_deg, v = azimuth_and_v(sample_poses(8, data, seeded_rng(data.seed)))
    cars = [make_car(data.seed, i) for i in range(8)]
    expected = []
    for sign in (1, -1):
        views = render_cars(cars, poses_at(sign * azimuth_deg, v, 3.6), data)
        expected += torch.cat([views.images, 2 * views.opacity[:, None] - 1], dim=1)
    expected = torch.stack(expected)  # (16, 4, H, W)
    loader = build_loader(dataset, dataclasses.replace(run, data=data), "cpu")
    images, _ = next(loader)
    loader.close()
    far = (images[:, None, ..., 1:] - expected[None, ..., 1:]).abs().amax(dim=(2, 3, 4))  # (8, 16)
    assert far.amin(1).max() <= 1.1 / 255
    is_mirrored = far.argmin(1) >= 8
    assert 0 < is_mirrored.sum() < 8
    assert torch.equal(images[is_mirrored][..., 0], images[is_mirrored][..., 1])  # nobody saw what is there
