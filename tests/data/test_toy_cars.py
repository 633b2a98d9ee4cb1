"""The toy cars: what is seen from where, depth against geometry, determinism, the kept file."""

import dataclasses
import errno
import logging
import tempfile

from graf.camera import focal_length, poses_at, sample_poses
from graf.config import load_config
from graf.data import build_dataset, resolve, toy_cars
from graf.data.car_shapes import make_car
from graf.data.raycast import AMBIENT, DIFFUSE, LIGHT, Solids, cast, slanted_box
from graf.data.toy_cars import load_toy_cars, make_toy_cars, render_cars, unseen_toy_cars
from graf.errors import DataError

import pytest
import torch

DATA = dataclasses.replace(load_config().data, imsize=48, n_images=6)


def view(azimuth_deg: float, index: int = 0):
    pose = poses_at(torch.tensor([azimuth_deg]), torch.tensor([0.4]), 3.6)
    return render_cars([make_car(0, index)], pose, DATA)


def share_of(image, is_colour) -> float:
    """Share of the pixels (3, H, W) in [-1, 1] for which is_colour(r, g, b) in [0, 1] holds."""
    return is_colour(*((image + 1) / 2)).float().mean().item()


def yellow(r, g, b):
    return (r > 0.8) & (g > 0.7) & (b < 0.4)


def red(r, g, b):
    return (r > 0.5) & (g < 0.15) & (b < 0.15)


def test_a_ray_meets_a_box_where_it_should():
    box = Solids(
        torch.tensor([slanted_box((-1.0, 1.0, 0.5, -1.0), (-1.0, 0.0, 0.5, 1.0))]),  # the front leans from x = 1 to x = 0
        torch.tensor([[0.0, 0.0, 0.0, 0.1, 0.1]]),
        torch.ones(2, 3),
        torch.ones(3),
    )
    rays_o = torch.tensor([[4.0, 0.0, 0.0], [0.0, 3.0, 0.0], [4.0, 0.6, 0.0]])
    rays_d = torch.tensor([[-2.0, 0.0, 0.0], [0.0, -1.0, 0.0], [-1.0, 0.0, 0.0]])
    colour, distance, hit = cast(box, rays_o, rays_d)
    assert hit.tolist() == [True, True, False]
    torch.testing.assert_close(distance, torch.tensor([1.75, 2.5, 0.0]))  # x 0.5 at z 0, y 0.5, past the side
    front = AMBIENT + DIFFUSE * (2 * LIGHT[0] + LIGHT[2]) / 5**0.5  # of the normal (2, 0, 1); the side has none of it
    torch.testing.assert_close(colour[:, 0], torch.tensor([front, AMBIENT, 0.0]))


def test_a_ray_meets_the_rim_and_the_side_of_a_disc():
    far_box = slanted_box((8.0, 9.0, 0.1, 8.0), (8.0, 9.0, 0.1, 9.0))
    disc = Solids(torch.tensor([far_box]), torch.tensor([[0.0, 0.0, 0.0, 0.5, 0.25]]), torch.ones(2, 3), torch.ones(3))
    rays_o = torch.tensor([[3.0, 0.0, 0.3], [0.4, 2.0, 0.0], [0.45, 2.0, 0.45]])
    rays_d = torch.tensor([[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, -1.0, 0.0]])
    _, distance, hit = cast(disc, rays_o, rays_d)
    assert hit.tolist() == [True, True, False]
    torch.testing.assert_close(distance[:2], torch.tensor([2.6, 1.75]))  # x = sqrt(0.5^2 - 0.3^2) = 0.4, y = 0.25


@pytest.mark.parametrize("index", [1, 3])  # cars that are neither red nor yellow
def test_yellow_lamps_face_plus_x_and_red_ones_minus_x(index):
    front, behind = view(0.0, index).images[0], view(180.0, index).images[0]
    assert share_of(front, yellow) > 0.003 > share_of(front, red)
    assert share_of(behind, red) > 0.003 > share_of(behind, yellow)


def test_the_background_is_exact_and_the_car_opaque():
    seen = view(40.0)
    assert (seen.images[0][:, seen.opacity[0] == 0] == 1).all()
    assert seen.opacity.max() == 1
    assert seen.opacity[0, 24, 24] == 1
    assert (seen.depth[seen.opacity == 0] == 0).all()


def test_the_bounding_box_has_diagonal_two_and_holds_every_surface_point():
    car = make_car(0, 4)
    assert car.half_size.norm().item() == pytest.approx(1, abs=1e-6)
    points = torch.cat([unprojected(car, azimuth)[0] for azimuth in (10.0, 100.0, 190.0, 280.0)])
    assert (points.abs() <= car.half_size + 1e-4).all()
    assert (points.abs().amax(0) > 0.9 * car.half_size).all()


def unprojected(car, azimuth_deg: float):
    """World points (P, 3) of the opaque pixels, with the pose (3, 4): straight from depth, by the camera's definition."""
    pose = poses_at(torch.tensor(azimuth_deg), torch.tensor(0.4), 3.6)
    seen = render_cars([car], pose[None], DATA, supersampling=1)
    row, column = torch.nonzero(seen.opacity[0] == 1, as_tuple=True)
    depth, focal = seen.depth[0, row, column], focal_length(DATA.fov, DATA.imsize)
    in_camera = torch.stack([(column - 24) / focal * depth, -(row - 24) / focal * depth, -depth], dim=-1)
    return in_camera @ pose[:, :3].T + pose[:, 3], pose


def test_a_surface_seen_from_one_camera_is_where_another_sees_it():
    car, data = make_car(0, 2), DATA
    points, _ = unprojected(car, 30.0)
    other = poses_at(torch.tensor(50.0), torch.tensor(0.35), 3.6)
    in_camera = (points - other[:, 3]) @ other[:, :3]
    depth, focal = -in_camera[:, 2], focal_length(data.fov, data.imsize)
    column = (in_camera[:, 0] / depth * focal + 24).round().long()
    row = (-in_camera[:, 1] / depth * focal + 24).round().long()
    seen = render_cars([car], other[None], data, supersampling=1).depth[0, row, column]
    agrees = (seen - depth).abs() < 0.06  # half a pixel along a slanted surface
    nearer = (seen > 0) & (seen < depth)  # hidden behind another part
    assert agrees.float().mean() > 0.75
    assert (agrees | nearer).float().mean() > 0.95


def test_supersampling_smooths_edges_without_shifting_them():
    pose = poses_at(torch.tensor([70.0]), torch.tensor([0.4]), 3.6)
    fine, plain = (render_cars([make_car(0, 0)], pose, DATA, n).opacity[0] for n in (3, 1))
    assert set(plain.unique().tolist()) == {0.0, 1.0}
    assert len(fine.unique()) > 4
    x = torch.arange(48.0)
    for axis in (0, 1):
        centres = [(x * opacity.sum(axis)).sum() / opacity.sum() for opacity in (fine, plain)]
        assert abs(centres[0] - centres[1]) < 0.1


def test_the_depth_of_a_pixel_is_that_of_its_part_that_is_covered():
    seen = view(70.0)
    partly = (seen.opacity > 0) & (seen.opacity < 1)
    assert partly.any() and (seen.depth[partly] > 3.6 - 1).all() and (seen.depth[seen.opacity == 0] == 0).all()


def test_cars_differ_by_index_and_seed_and_repeat_exactly():
    same, again = make_car(5, 1), make_car(5, 1)
    assert torch.equal(same.faces, again.faces)
    assert not torch.allclose(same.faces, make_car(5, 2).faces)
    assert not torch.allclose(same.faces, make_car(6, 1).faces)
    first, second = make_toy_cars(DATA), make_toy_cars(DATA)
    assert torch.equal(first["images"], second["images"])
    assert not torch.equal(first["images"], make_toy_cars(dataclasses.replace(DATA, seed=1))["images"])


def test_unseen_cars_are_in_no_set():
    data = dataclasses.replace(DATA, n_images=2)
    of_sets = torch.cat([make_toy_cars(dataclasses.replace(data, seed=seed))["images"] for seed in (0, 1)])
    unseen = torch.cat([unseen_toy_cars(data, 2, seed).images[:, :3] for seed in (0, 1)])
    every = torch.cat([of_sets, unseen])
    assert len(every.unique(dim=0)) == 8


def test_making_cars_leaves_global_randomness_and_threads_alone():
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    make_toy_cars(DATA)
    assert torch.equal(state, torch.get_rng_state())
    assert threads == torch.get_num_threads()


def test_cameras_stay_in_the_configs_range():
    pose = sample_poses(500, DATA, torch.Generator().manual_seed(0))
    torch.testing.assert_close(pose[:, :, 3].norm(dim=1), torch.full((500,), 3.6))
    v = (1 - pose[:, 2, 3] / 3.6) / 2
    assert DATA.vmin - 1e-5 <= v.min() and v.max() <= DATA.vmax + 1e-5


def test_the_set_is_made_once_and_a_damaged_file_is_made_again(tmp_path):
    data = dataclasses.replace(DATA, datadir=(str(tmp_path / "cars"),))
    first = load_toy_cars(data)
    (file,) = (tmp_path / "cars").iterdir()  # one file, no temporary left
    made_at = file.stat().st_mtime_ns
    assert torch.equal(load_toy_cars(data).images, first.images)
    assert file.stat().st_mtime_ns == made_at
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert torch.equal(load_toy_cars(data).images, first.images)
    assert file.stat().st_size == len(whole)


def test_a_set_with_a_flipped_bit_is_made_again(tmp_path):
    data = dataclasses.replace(DATA, datadir=(str(tmp_path),))
    first = load_toy_cars(data)
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1  # of a pixel, which most of the file is
    file.write_bytes(content)
    assert torch.equal(load_toy_cars(data).images, first.images)


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(DataError, match="No space left"):
        load_toy_cars(dataclasses.replace(DATA, datadir=(str(tmp_path),)))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_told_before_the_cars_are_made(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.EACCES, "Permission denied")

    (tmp_path / "file").touch()
    monkeypatch.setattr(toy_cars, "make_toy_cars", lambda data: pytest.fail("made in full"))
    with pytest.raises(DataError, match="file/cars: the toy cars cannot be kept there"):
        load_toy_cars(dataclasses.replace(DATA, datadir=(str(tmp_path / "file" / "cars"),)))
    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(DataError, match="cars: the toy cars cannot be kept there .*Permission denied"):
        load_toy_cars(dataclasses.replace(DATA, datadir=(str(tmp_path / "cars"),)))


def test_other_keys_make_another_set(tmp_path):
    data = dataclasses.replace(DATA, datadir=(str(tmp_path),))
    sets = [load_toy_cars(data), load_toy_cars(dataclasses.replace(data, fov=40.0)), load_toy_cars(data)]
    assert sets[0].fingerprint == sets[2].fingerprint != sets[1].fingerprint
    assert len(list(tmp_path.iterdir())) == 2


def test_elevation_bins_make_no_other_set(tmp_path):
    data = dataclasses.replace(DATA, datadir=(str(tmp_path),))
    sets = [load_toy_cars(data), load_toy_cars(dataclasses.replace(data, v=(0.5,)))]
    assert sets[0].fingerprint == sets[1].fingerprint and len(list(tmp_path.iterdir())) == 1
    assert [cars.n_elevations for cars in sets] == [4, 1]
    assert sets[0].labels.elevation_index.any() and not sets[1].labels.elevation_index.any()


def test_the_default_config_builds_posed_cars_and_labels_none_unposed_ones(tmp_path):
    small = [f"data.datadir={tmp_path}", "data.n_images=16", "data.imsize=16"]
    posed = build_dataset(load_config(None, small))
    assert posed.posed and posed[3]["pose_c2w"].shape == (3, 4) and posed[3]["image"].shape == (3, 16, 16)
    unposed = build_dataset(load_config(None, [*small, "data.labels=none", "discriminator.condition=none"]))
    assert not unposed.posed and "pose_c2w" not in unposed[3]


def test_a_set_that_no_memory_holds_is_refused_before_it_is_made(tmp_path):
    overrides = ["data.n_images=10000000", "data.imsize=2048", "data.alpha=ignore", f"data.datadir={tmp_path}"]
    data = load_config(None, overrides).data
    with pytest.raises(DataError, match="10,000,000 toy cars of 2048 x 2048 pixels take 117187.5 GB"):
        load_toy_cars(data)


@pytest.mark.parametrize("name", ["images", "pose_c2w"])
def test_a_kept_set_of_other_numbers_is_made_anew(tmp_path, name):
    data = dataclasses.replace(load_config().data, datadir=(str(tmp_path),), imsize=8, n_images=2)
    first = load_toy_cars(data)
    (file,) = tmp_path.iterdir()
    kept = torch.load(file)
    torch.save(kept | {name: kept[name].double()}, file)
    assert torch.equal(load_toy_cars(data).images, first.images)
    assert torch.load(file)[name].dtype == kept[name].dtype


def test_opacity_is_kept_beside_the_image_where_it_is_judged(tmp_path):
    """In a file of its own: sets that were made without it are still found."""
    data = dataclasses.replace(DATA, datadir=(str(tmp_path),), alpha="ignore")
    plain = load_toy_cars(data)
    (file,) = tmp_path.iterdir()
    assert file.name == "toy_cars_f3839cdfabfbf8f1.pt"
    cars = load_toy_cars(dataclasses.replace(data, alpha="rgba"))
    assert len(list(tmp_path.iterdir())) == 2 and cars.fingerprint != plain.fingerprint
    assert cars.images.shape == (6, 4, 48, 48) and torch.equal(cars.images[:, :3], plain.images)
    view = render_cars([make_car(DATA.seed, 2)], cars.labels.pose_c2w[2:3], DATA)
    torch.testing.assert_close(cars[2]["alpha"], 2 * view.opacity - 1, atol=1 / 255, rtol=0)
    assert torch.equal(cars[2]["image"], plain[2]["image"]) and "alpha" not in plain[2]
    assert torch.equal(load_toy_cars(dataclasses.replace(data, alpha="rgba")).images, cars.images)


@pytest.mark.parametrize("labels", [[], ["data.labels=none", "discriminator.condition=none"]])
def test_toy_cars_are_judged_by_opacity_too_where_it_is_left_to_them(tmp_path, caplog, labels):
    """They are those that `rgba` makes, and are made once."""
    small = [f"data.datadir={tmp_path}", "data.n_images=16", "data.imsize=16", *labels]
    config = load_config(None, [*small, "data.alpha=auto"])
    with caplog.at_level(logging.INFO, "graf"):
        dataset = build_dataset(config)
    judged = build_dataset(load_config(None, [*small, "data.alpha=rgba"]))
    assert "data.alpha: rgba, for toy cars know their opacity" in caplog.text
    assert (dataset.alpha, dataset.fingerprint) == (judged.alpha, judged.fingerprint) and len(list(tmp_path.iterdir())) == 1
    assert len(dataset.read(0)) == resolve(config, dataset).data.channels == 4
    assert build_dataset(load_config(None, [*small, "data.alpha=ignore"])).alpha == "ignore"


def test_cars_before_the_front_are_a_set_of_their_own(tmp_path):
    settings = [f"data.datadir=[{tmp_path}]", "data.n_images=8", "data.imsize=16", "data.camera_prior=front"]
    first, wider = (build_dataset(load_config(None, settings + more)) for more in ([], ["data.azimuth_std_deg=40"]))
    assert first.fingerprint != wider.fingerprint and not torch.equal(first.images, wider.images)
    assert first.n_elevations == 4 and set(first.labels.elevation_index.tolist()) <= {0, 1, 2, 3}
    again = build_dataset(load_config(None, settings))
    assert again.fingerprint == first.fingerprint and torch.equal(again.images, first.images)
