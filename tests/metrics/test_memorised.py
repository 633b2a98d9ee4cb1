"""The test for copies: known copies are found, new objects are not, and several views of an object count as one."""

import dataclasses
from pathlib import Path

from graf.config import override
from graf.data import build_dataset
from graf.data.toy_cars import unseen_toy_cars
from graf.errors import DataError, GrafError
from graf.metrics import memorised
from graf.metrics.extractors import EFFICIENTNET
from graf.metrics.memorised import (
    ALARM,
    FEWEST_OBJECTS,
    Seen,
    cells_of,
    copying_z,
    held_out_of,
    hold_out,
    memorisation,
    nearest_silhouette,
    objects_of,
    one_per_object,
    p_values,
    share_nearer,
)
from graf.metrics.shapes import Subject
from graf.models.generator import Generator, Rendering
from graf.rays import mirrored_images

import pytest
import torch
from PIL import Image
from scipy.stats import ranksums
from torch import nn

WHOLE = torch.zeros(1000, dtype=torch.long)  # all in one cell


def points(n, rng, width=3):
    """Features of n objects of one distribution."""
    return torch.randn(n, width, generator=rng)


def p_of(samples, heldout, known):
    return p_values(Seen(samples, None), Seen(heldout, None), Seen(known, None))["p_value"]


def test_one_cell_is_the_rank_sum_test():
    rng = torch.Generator().manual_seed(0)
    samples, heldout = torch.rand(12, generator=rng), torch.rand(7, generator=rng)
    expected = ranksums(samples.numpy(), heldout.numpy()).statistic
    assert copying_z(samples, heldout, WHOLE[:12], WHOLE[:7]) == pytest.approx(expected)


def test_all_samples_nearer_than_all_held_out_images():
    """U is 0, so that Z is -(2 * 3 / 2) / sqrt(2 * 3 * 6 / 12) = -sqrt(3)."""
    near, far = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0, 5.0])
    assert copying_z(near, far, WHOLE[:2], WHOLE[:3]) == pytest.approx(-(3**0.5))
    assert copying_z(far, near, WHOLE[:3], WHOLE[:2]) == pytest.approx(3**0.5)
    assert (share_nearer(near, far), share_nearer(far, near), share_nearer(near, near)) == (1.0, 0.0, 0.5)


def test_cells_are_weighted_by_their_held_out_images():
    """Two cells: 3 held-out images with Z of -sqrt(3), and 1 with Z of sqrt(1.5), of 2 samples that are farther."""
    samples, cells = torch.tensor([1.0, 2.0, 8.0, 9.0]), torch.tensor([0, 0, 1, 1])
    heldout, of_heldout = torch.tensor([3.0, 4.0, 5.0, 7.0]), torch.tensor([0, 0, 0, 1])
    expected = (3 * -(3**0.5) + 1.5**0.5) / 10**0.5
    assert copying_z(samples, heldout, cells, of_heldout) == pytest.approx(expected)
    assert copying_z(samples, heldout, cells, of_heldout + 2) == 0.0


def test_silhouettes_are_compared_with_the_most_similar_one(monkeypatch):
    monkeypatch.setattr(memorised, "AT_ONCE", 2)
    known = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 0]], dtype=torch.bool)
    queries = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]], dtype=torch.bool)
    assert nearest_silhouette(queries, known).tolist() == [0, 0.5, 0.25]


def test_copies_in_some_cells_are_found_where_others_are_far():
    """Half of the samples repeat the left cluster, the other half is broken: over all, samples are not nearer."""
    rng = torch.Generator().manual_seed(0)
    sides = torch.tensor([[-20.0, 0, 0], [20.0, 0, 0]]).repeat(200, 1)
    known, heldout = points(400, rng) + sides, points(200, rng) + sides[:200]
    samples = torch.cat([known[::2][:75], known[1::2][:25] + 3])
    cells = cells_of(samples, heldout, known)
    assert len(cells[1].unique()) > 1
    assert p_of(samples, heldout, known) < 1e-6


def test_cells_with_few_images_of_either_kind_are_taken_together():
    rng = torch.Generator().manual_seed(0)
    known = torch.cat([points(50, rng) + 100 * i for i in range(4)])
    heldout = known[::2][: 3 * 25 + 2]  # two of the last cluster
    heldout = torch.cat([heldout, heldout[:64]])
    of_samples, of_heldout = cells_of(known[:40], heldout, known)  # samples of the first alone
    assert len(of_heldout.unique()) == 2 or set(of_heldout.tolist()) == {4}
    assert (of_samples.bincount(minlength=5)[:4] >= 5).sum() == len(of_samples.unique())


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_copier_is_found_and_new_objects_are_not(noise):
    rng = torch.Generator().manual_seed(1)
    known = points(300, rng)
    copies = known[:64] + noise * points(64, rng)
    assert p_of(copies, points(64, rng), known) < 1e-6
    alarms = [p_of(points(64, rng), points(64, rng), known) < ALARM for _ in range(40)]
    assert sum(alarms) < 0.05 * len(alarms)


def test_views_of_one_object_are_not_independent():
    """40 views of each of 8 objects raise false alarms where each view counts; with one view per object they do not."""
    rng = torch.Generator().manual_seed(2)
    known, names = points(300, rng), [f"object_{i // 40}" for i in range(320)]
    alarms = {"all": 0, "one": 0}
    for draw in range(40):
        views = points(8, rng).repeat_interleave(40, 0) + 0.05 * points(320, rng)
        samples = points(128, rng)
        alarms["all"] += p_of(samples, views, known) < ALARM
        alarms["one"] += p_of(samples, views[one_per_object(names, draw)], known) < ALARM
    assert alarms["one"] < 0.05 * 40 < alarms["all"]


def test_the_smaller_p_value_of_two_tests_counts_twice():
    rng = torch.Generator().manual_seed(0)
    found = p_values(*(Seen(points(40, rng), torch.rand(40, 64, generator=rng) > 0.5) for _ in range(3)))
    assert found["p_value"] == min(1, 2 * min(found["p_features"], found["p_silhouettes"])) < 1


def test_one_image_of_each_object_is_chosen():
    names = ["a", "b", "a", "c", "a", "b"]
    chosen = [one_per_object(names, seed) for seed in range(20)]
    assert all(sorted(names[i] for i in some) == ["a", "b", "c"] for some in chosen)
    assert {i for some in chosen for i in some} == set(range(6))


class Pixels(nn.Module):
    """A network whose features are the pixels."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images):
        return (self.scale * images.flatten(1),)


@pytest.fixture(autouse=True)
def quick_features(monkeypatch):
    monkeypatch.setattr(memorised, "extractor_network", lambda *_: Pixels())


@pytest.fixture
def subject(smoke, tmp_path):
    config = smoke(f"data.datadir={tmp_path}", "data.n_images=40", f"metrics.extractor={EFFICIENTNET}")
    dataset = build_dataset(config)
    return Subject(Generator(config), dataset, seed=0, truncation=1.0, cache=tmp_path, n=16)


def learned(views, data):
    """What a generator renders that has learned the first 16 of these images by heart."""
    images = torch.stack([views[i]["image"] for i in range(16)])
    opacity = torch.stack([views.opacity(i, data) for i in range(16)])[:, None]
    return lambda *_: iter([Rendering(images, opacity, opacity, opacity)])


def test_a_planted_copier_of_toy_cars_is_found_and_new_cars_are_not(subject, monkeypatch, caplog):
    data = subject.config.data
    heldout = held_out_of(unseen_toy_cars(data, 16, 0), 0)
    monkeypatch.setattr(memorised, "fresh_renderings", learned(unseen_toy_cars(data, 16, 1), data))
    assert memorisation(subject, heldout)["p_value"] > ALARM and not caplog.records
    monkeypatch.setattr(memorised, "fresh_renderings", learned(subject.dataset, data))
    found = memorisation(subject, heldout)
    assert max(found["p_features"], found["p_silhouettes"], found["p_value"]) < 1e-4
    assert found["share_nearer_features"] == found["share_nearer_silhouettes"] == 1.0
    assert caplog.messages[-1].startswith("memorised: samples are nearer to training images than images of other objects are")
    assert (found["held_out_images"], found["training_images"], found["n_objects"]) == (16, 40, 16)


def test_samples_have_the_seed_and_the_truncation_of_their_subject(subject, monkeypatch):
    asked, render = [], learned(subject.dataset, subject.config.data)
    monkeypatch.setattr(memorised, "fresh_renderings", lambda _generator, _sampler, *given: asked.append(given) or render())
    heldout = held_out_of(unseen_toy_cars(subject.config.data, 16, 0), 0)
    memorisation(dataclasses.replace(subject, seed=5, truncation=0.5), heldout)
    assert asked == [(16, subject.config.metrics.batch_size, 5, 0.5)]


@pytest.mark.parametrize("mirrors", ["data.mirror=0", "discriminator={hflip: true, condition: class}"])
def test_copies_of_mirrored_images_are_found_where_training_mirrors(subject, monkeypatch, mirrors):
    data = subject.config.data
    heldout, (rendering,) = held_out_of(unseen_toy_cars(data, 16, 0), 0), learned(subject.dataset, data)()
    images, opacity = mirrored_images(rendering.images), mirrored_images(rendering.opacity)
    monkeypatch.setattr(memorised, "fresh_renderings", lambda *_: iter([Rendering(images, opacity, opacity, opacity)]))
    assert memorisation(subject, heldout)["share_nearer_features"] < 1
    subject.generator.config = override(subject.config, [mirrors])
    found = memorisation(subject, heldout)
    assert found["share_nearer_features"] == found["share_nearer_silhouettes"] == 1
    assert found["training_images"] == 40


def test_samples_are_rendered_at_the_held_out_cameras(subject):
    heldout = unseen_toy_cars(subject.config.data, 16, 0)
    labels = memorised.labels_of_both(subject.dataset, heldout, subject.config)(8, torch.Generator().manual_seed(0))
    cameras = {tuple(pose.flatten().tolist()) for pose in heldout.labels.pose_c2w}
    assert {tuple(pose.flatten().tolist()) for pose in labels.pose_c2w} <= cameras


def test_toy_cars_that_are_held_out_are_in_no_data_set(subject):
    heldout = hold_out(subject.config, None, seed=0).views
    assert len(set(heldout.objects)) == len(heldout) == memorised.MOST_HELD_OUT
    assert heldout.fingerprint != subject.dataset.fingerprint
    images = heldout.images[:40, :3].flatten(1).float()
    assert torch.cdist(images, subject.dataset.images[:, :3].flatten(1).float()).min() > 0


@pytest.fixture
def photographs(smoke, tmp_path):
    """A config of photographs in the folder `trained`, and a function that writes n others into a folder."""

    def write(folder, names, first=0):
        (tmp_path / folder).mkdir(exist_ok=True)
        for i, name in enumerate(names, first):
            rng = torch.Generator().manual_seed(i)
            pixels = (torch.rand(16, 16, 3, generator=rng) * 255).byte().numpy()
            Image.fromarray(pixels).save(tmp_path / folder / f"{name}.png")
        return str(tmp_path / folder)

    folder = write("trained", [f"{letter}_1" for letter in "abcdefghijkl"])
    extractor = f"metrics.extractor={EFFICIENTNET}"
    return smoke("data.type=images", f"data.datadir={folder}", "training.batch_size=2", extractor), write


def test_photographs_need_a_folder_of_others(photographs, subject):
    config, _ = photographs
    with pytest.raises(GrafError, match=r"needs photographs to compare with; keep .* --heldout DIR\. Against training images"):
        hold_out(config, None, 0)
    with pytest.raises(DataError, match="no such folder"):
        hold_out(config, "nowhere", 0)
    with pytest.raises(GrafError, match="toy cars need none"):
        hold_out(subject.config, "nowhere", 0)


def test_photographs_of_one_kind_may_each_show_another_object(photographs, caplog):
    config, write = photographs
    named = hold_out(config, write("named", [f"{letter}_1" for letter in "mnopqrst"], 50), 0)
    assert named.objects_are == "one image per object" and sorted(named.chosen) == [*range(8)] and not caplog.messages
    numbered = hold_out(config, write("numbered", [f"cat_{i}" for i in range(9)], 70), 0)
    assert sorted(numbered.chosen) == [*range(9)] and len(set(numbered.views.objects)) == 1
    assert "each of the 9 held-out photographs is taken to show another object" in caplog.messages[-1]


class Few(list):
    """Images by the names of their objects."""

    def __init__(self, objects, posed):
        super().__init__(objects)
        self.objects, self.posed = objects, posed


@pytest.mark.parametrize(("posed", "n"), [(False, FEWEST_OBJECTS - 1), (True, 200)])
def test_too_few_objects_are_refused(posed, n):
    few = Few([f"object_{i % 2}" for i in range(n)], posed)
    with pytest.raises(GrafError, match=f"{n} images of 2 objects are too few; keep the photographs of some objects"):
        objects_of(few)


def test_training_images_among_those_held_out_are_refused(photographs, tmp_path):
    config, write = photographs
    generator, dataset = Generator(config), build_dataset(config)
    mixed = hold_out(config, write("mixed", [f"{letter}_1" for letter in "mnopqrst"], 10), 0)  # 10 and 11 are k and l
    with pytest.raises(GrafError, match=r"--heldout: 2 of 8 images are training images, such as .*mixed/[mn]_1\.png; name"):
        memorisation(Subject(generator, dataset, 0, 1.0, tmp_path, n=8), mixed)


def test_held_out_photographs_need_no_cameras_where_training_mirrors(photographs):
    config, write = photographs
    folder = write("others", [f"{letter}_1" for letter in "mnopq"], 50)
    assert len(hold_out(override(config, ["data.mirror=0"]), folder, 0).chosen) == 5


def test_held_out_photographs_may_have_cameras_where_training_mirrors_those_without(photographs):
    config, write = photographs
    (Path(config.data.datadir[0]).parent / "posed").mkdir()
    for name in ("car", "bus", "van"):
        folder = Path(write(f"posed/{name}", ["0_0000", "0_0090"], 50)).parent
    assert hold_out(override(config, ["data.hflip=true", "data.v=[0.4]"]), str(folder), 0).views.posed


def test_photographs_without_silhouettes_are_compared_by_features(photographs, tmp_path):
    config, write = photographs
    others = hold_out(config, write("others", [f"{letter}_1" for letter in "mnopqrst"], 50), 0)
    found = memorisation(Subject(Generator(config), build_dataset(config), 0, 1.0, tmp_path, n=8), others)
    assert found["p_value"] == found["p_features"] and "p_silhouettes" not in found
