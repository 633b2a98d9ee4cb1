"""Nearest training images: hand-made points, an image that is its own neighbour, and samples that are copies."""

import json
import logging

from graf.data import Views
from graf.errors import GrafError
from graf.metrics import neighbours
from graf.metrics.extractors import EFFICIENTNET, choose_extractor
from graf.metrics.neighbours import find_neighbours, nearest, neighbour_sheet
from graf.models.generator import Generator
from graf.pictures.outputs import as_uint8
from graf.pictures.sheets import real_against_fake_grid

import imageio.v2 as imageio
import pytest
import torch
from test_measure import Photographs, checkers


class TrainingSet(Photographs):
    """Photographs with file names and classes, unposed."""

    labels_at, objects = Views.labels_at, Views.objects

    def __init__(self, images):
        super().__init__(images)
        self.labels, self.posed = None, False
        self.class_names = ["photos"]
        self.class_index = torch.zeros(len(images), dtype=torch.long)
        self.files = [f"photo_{i}.png" for i in range(len(images))]


@pytest.fixture
def extractor(smoke):
    return choose_extractor(smoke(f"metrics.extractor={EFFICIENTNET}").metrics)


def test_points_on_a_line():
    known = torch.tensor([[0.0, 0.0], [10.0, 0.0], [13.0, 0.0], [0.0, 4.0]])
    distance, index = nearest(torch.tensor([[12.0, 0.0], [3.0, 4.0]]), known, k=2)
    assert index.tolist() == [[2, 1], [3, 0]]
    assert distance.tolist() == [[1, 2], [3, 5]]


def test_what_is_excluded_is_no_neighbour_but_its_twin_is():
    known = torch.tensor([[0.0], [5.0], [5.0], [7.0]])
    distance, index = nearest(known, known, k=1, apart=(torch.arange(4), torch.arange(4)))
    assert distance[:, 0].tolist() == [5, 0, 0, 2]
    assert index[1:3, 0].tolist() == [2, 1]
    assert index[3, 0] in (1, 2)


@pytest.mark.parametrize("at_once", [7, 64, 1000])
def test_blocks_find_what_one_matrix_finds(monkeypatch, at_once):
    monkeypatch.setattr(neighbours, "AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(0)
    known, queries = torch.randn(100, 32, generator=rng), torch.randn(30, 32, generator=rng)
    expected = torch.cdist(queries.double(), known.double()).topk(5, largest=False)
    distance, index = nearest(queries, known, k=5)
    assert torch.equal(index, expected.indices)
    torch.testing.assert_close(distance.double(), expected.values, rtol=1e-5, atol=0)
    itself = torch.arange(30, 60)
    alone = nearest(known[itself], known, k=1, apart=(itself, torch.arange(len(known))))[0]
    gram = torch.cdist(known.double(), known.double()).fill_diagonal_(torch.inf)[itself].min(dim=1).values
    torch.testing.assert_close(alone[:, 0].double(), gram, rtol=1e-5, atol=0)


def test_equal_rows_are_at_distance_zero_where_matrix_products_round():
    known = 100 + torch.randn(60, 1280, generator=torch.Generator().manual_seed(0))
    distance, index = nearest(known, known, k=1)
    assert (torch.cdist(known, known).diagonal() > 0).any()
    assert torch.equal(index[:, 0], torch.arange(60))
    assert torch.equal(distance, torch.zeros(60, 1))


def test_a_training_image_is_its_own_neighbour(extractor):
    images = checkers(9, seed=1)
    found = find_neighbours([as_uint8(images[[7]]), as_uint8(images[[2, 4]])], TrainingSet(images), extractor, 3, batch_size=4)
    assert found.index.shape == found.distance.shape == (3, 3)
    assert found.index[:, 0].tolist() == [7, 2, 4]
    assert found.distance[:, 0].max() < 1e-3 * found.typical_distance
    assert found.distance[:, 1].min() > 0.5 * found.typical_distance
    assert found.share_nearer == 1


def test_other_images_are_farther_than_training_images_from_one_another(extractor):
    real, noise = 0.3 * checkers(9, seed=1), torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(5)) * 2 - 1
    found = find_neighbours([as_uint8(noise)], TrainingSet(real), extractor, 20, batch_size=4)
    assert found.index.shape == (3, 9)  # all there are
    assert found.share_nearer == 0
    assert found.distance.min() > found.typical_distance


def test_the_typical_distance_is_the_median_over_the_nearest_others(extractor):
    images = checkers(5, seed=1)
    found = find_neighbours([as_uint8(images)], TrainingSet(images), extractor, 2, batch_size=5)
    assert found.typical_distance == pytest.approx(found.distance[:, 1].median().item(), rel=1e-4)


def test_the_typical_distance_is_to_another_object(extractor, monkeypatch):
    """Of each object there are two nearly equal views."""
    views = checkers(4, seed=1).repeat_interleave(2, 0)
    views[1::2] *= 0.99
    dataset, new = TrainingSet(views), [as_uint8(checkers(6, seed=9))]

    def typical(posed, name_of, differ=True):
        dataset.posed, dataset.files = posed, [name_of(i) for i in range(8)]
        found = find_neighbours(new, dataset, extractor, 2, batch_size=4)
        assert found.objects_differ == differ
        return found.typical_distance

    of_objects = typical(True, lambda i: f"cars/car{i // 2}_{i % 2}.png")
    of_each = find_neighbours(new, TrainingSet(views[::2]), extractor, 2, batch_size=4).typical_distance
    assert of_objects == pytest.approx(of_each, rel=0.2)
    of_photographs = typical(False, lambda i: f"cars/car{i // 2}_{i % 2}.png")  # names of photographs may be anything
    assert of_photographs < 0.3 * of_objects
    assert typical(True, lambda i: f"cars/IMG_{i:04d}.png", differ=False) == of_photographs
    dataset.class_names = ["cars", "vans"]
    assert typical(True, lambda i: f"{('cars', 'vans')[i % 2]}/IMG_{i:04d}.png", differ=False) == of_photographs


def test_one_photograph_is_too_few(extractor):
    with pytest.raises(GrafError, match="need others to be compared with, found 1; add images"):
        find_neighbours([], TrainingSet(checkers(1, seed=1)), extractor, 3, batch_size=4)


def test_a_sheet_shows_the_nearest_samples_first_beside_their_neighbours(smoke, tmp_path, monkeypatch, caplog):
    images = checkers(6, seed=1, side=16)
    noise = torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(5)) * 2 - 1
    noise[2] = images[5]  # learned by heart
    monkeypatch.setattr(neighbours, "fresh_samples", lambda *_, truncation: noise.split(3))
    generator = Generator(smoke(f"metrics.extractor={EFFICIENTNET}", "metrics.batch_size=4"))
    before = torch.get_rng_state()
    with caplog.at_level(logging.INFO, logger="graf"):
        found = neighbour_sheet(generator, TrainingSet(images), tmp_path, n_samples=4, k=2, n_shown=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.share_nearer == 0.25
    assert "25% of 4 samples are nearer" in caplog.text

    sheet = torch.from_numpy(imageio.imread(tmp_path / "neighbours.png"))
    assert sheet.shape == (2 + 2 * 18, 2 + 3 * 18, 3)
    first, second = sheet[2:18, 2:18], sheet[2:18, 20:36]
    assert torch.equal(first, second)
    assert torch.equal(first, as_uint8(images[5]).movedim(0, -1))

    summary = json.loads((tmp_path / "neighbours.json").read_text())
    assert (summary["extractor"], summary["n_samples"], summary["n_training_images"]) == (EFFICIENTNET, 4, 6)
    assert [len(row["files"]) for row in summary["shown"]] == [2, 2]
    assert summary["shown"][0]["files"][0] == "photo_5.png"
    assert summary["shown"][0]["distances"][0] < summary["shown"][1]["distances"][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["neighbours.json", "neighbours.png"]


def test_samples_are_truncated_as_asked(smoke, tmp_path, monkeypatch):
    """And so are those beside real images: seeds and cameras stay, latents are 0.5 times as large."""
    generator, given = Generator(smoke(f"metrics.extractor={EFFICIENTNET}", "metrics.batch_size=4")), []
    render = generator.render
    monkeypatch.setattr(
        generator, "render", lambda latents, *args, **keys: given.append(latents) or render(latents, *args, **keys)
    )
    dataset = TrainingSet(checkers(4, seed=1, side=16))
    for truncation in (1.0, 0.5):
        neighbour_sheet(generator, dataset, tmp_path, n_samples=4, k=1, truncation=truncation)
        real_against_fake_grid(generator, dataset, tmp_path, n=4, truncation=truncation)
    whole, half = torch.cat(given).chunk(2)
    assert len(whole) == 8
    torch.testing.assert_close(half, 0.5 * whole)
    summary = json.loads((tmp_path / "neighbours.json").read_text())
    assert (summary["truncation"], summary["seed"]) == (0.5, 0)


def test_a_generators_own_samples_are_searched_for(smoke, tmp_path, capsys):
    generator = Generator(smoke(f"metrics.extractor={EFFICIENTNET}", "metrics.batch_size=4"))
    found = neighbour_sheet(generator, TrainingSet(checkers(4, seed=1, side=16)), tmp_path, n_samples=5, k=3)
    assert found.index.shape == (5, 3)
    assert "5/5" in capsys.readouterr().err  # samples, on the progress bar
    again = neighbour_sheet(generator, TrainingSet(checkers(4, seed=1, side=16)), tmp_path / "again", n_samples=5, k=3)
    assert torch.equal(again.distance, found.distance)
