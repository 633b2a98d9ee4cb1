"""Batches are a function of seed and step alone."""

import itertools

import pytest
import torch

from graf.camera import Labels, poses_at
from graf.config import load_config
from graf.data import Views, build_loader, sample_labels
from graf.data.loader import EndlessBatches

N = 22


class Numbered(Views):
    """Image i is i everywhere but at its left edge, where it is 255; class i % 2."""

    def __init__(self, posed: bool):
        classes = torch.arange(N) % 2
        poses = poses_at(torch.arange(N) * 10.0, torch.full((N,), 0.4), 3.6)
        labels = Labels(poses, classes, torch.arange(N) % 3) if posed else None
        super().__init__([f"{i}.png" for i in range(N)], ["a", "b"], classes, labels, "fingerprint")

    def read(self, index):
        image = torch.full((3, 8, 8), index, dtype=torch.uint8)
        image[..., 0] = 255
        return image


def config(*overrides):
    return load_config(None, ["training.batch_size=4", "training.nworkers=0", *overrides])


def take(loader, n):
    batches = list(itertools.islice(loader, n))
    loader.close()
    return batches


def numbers(images):
    return ((images[:, 0, 0, 4] + 1) * 127.5).round().long().tolist()


def test_an_epoch_is_a_permutation_and_the_next_another():
    batches = take(build_loader(Numbered(True), config(), "cpu"), 10)  # 22 // 4 = 5 batches an epoch
    first, second = (sum((numbers(images) for images, _ in part), []) for part in (batches[:5], batches[5:]))
    assert len(set(first)) == len(set(second)) == 20 and set(first) <= set(range(N))
    assert first != second


def test_labels_belong_to_their_images():
    dataset = Numbered(True)
    for images, labels in take(build_loader(dataset, config(), "cpu"), 3):
        expected = dataset.labels[torch.tensor(numbers(images))]
        assert torch.equal(labels.pose_c2w, expected.pose_c2w)
        assert torch.equal(labels.class_index, expected.class_index)
        assert torch.equal(labels.elevation_index, expected.elevation_index)


@pytest.mark.parametrize("start", [1, 4, 5, 13])
def test_resuming_continues_the_sequence(start):
    dataset, settings = Numbered(False), config("data.hflip=true")
    whole = take(build_loader(dataset, settings, "cpu"), start + 6)
    resumed = take(build_loader(dataset, settings, "cpu", start_step=start), 6)
    for (expected, _), (images, _) in zip(whole[start:], resumed, strict=True):
        assert torch.equal(images, expected)


def test_workers_do_not_change_the_batches():
    dataset = Numbered(False)
    alone = take(build_loader(dataset, config("data.hflip=true"), "cpu", 2), 8)
    helped = take(build_loader(dataset, config("data.hflip=true", "training.nworkers=2"), "cpu", 2), 8)
    for (expected, _), (images, _) in zip(alone, helped, strict=True):
        assert torch.equal(images, expected)


def test_hflip_mirrors_about_half_and_only_when_asked():
    flipped = torch.cat([images for images, _ in take(build_loader(Numbered(False), config("data.hflip=true"), "cpu"), 50)])
    assert 0.35 < (flipped[:, 0, 0, -1] == 1).float().mean() < 0.65
    straight = torch.cat([images for images, _ in take(build_loader(Numbered(False), config(), "cpu"), 10)])
    assert (straight[:, 0, 0, 0] == 1).all() and (straight[:, 0, 0, -1] < 1).all()


def test_another_seed_is_another_order():
    orders = [numbers(take(build_loader(Numbered(True), config(f"training.seed={seed}"), "cpu"), 1)[0][0]) for seed in (0, 1)]
    assert orders[0] != orders[1]


def test_processes_share_each_batch():
    def batch(rank, world_size):
        return next(iter(EndlessBatches(N, 4, 0, False, 3, rank, world_size)))

    assert sorted(batch(0, 2) + batch(1, 2)) == sorted(batch(0, 1))
    assert len(batch(0, 2)) == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_the_global_random_state_is_left_alone(workers):
    state = torch.get_rng_state()
    take(build_loader(Numbered(True), config(f"training.nworkers={workers}"), "cpu"), 3)
    assert torch.equal(state, torch.get_rng_state())


def test_close_ends_the_workers():
    loader = build_loader(Numbered(True), config("training.nworkers=1"), "cpu")
    next(loader)
    workers = list(loader._batches._workers)
    assert all(worker.is_alive() for worker in workers) and workers
    loader.close()
    assert not any(worker.is_alive() for worker in workers)


def test_labels_of_fakes_come_from_the_data():
    dataset = Numbered(True)
    labels = sample_labels(dataset, 200, config().data, torch.Generator().manual_seed(0))
    source = torch.cdist(labels.pose_c2w.flatten(1), dataset.labels.pose_c2w.flatten(1)).argmin(1)
    assert torch.equal(labels.pose_c2w, dataset.labels.pose_c2w[source])
    assert torch.equal(labels.class_index, source % 2) and torch.equal(labels.elevation_index, source % 3)
    assert len(source.unique()) == N


def test_labels_of_fakes_of_unposed_data_are_drawn_from_the_config():
    dataset = Numbered(False)
    dataset.class_index = torch.tensor([0] * 20 + [1] * 2)
    labels = sample_labels(dataset, 2000, config("data.radius=3.5,3.7").data, torch.Generator().manual_seed(0))
    assert labels.class_index.float().mean().item() == pytest.approx(2 / 22, abs=0.03)
    distance = labels.pose_c2w[:, :, 3].norm(dim=1)
    assert distance.min() >= 3.5 and distance.max() <= 3.7001 and distance.std() > 0.05
