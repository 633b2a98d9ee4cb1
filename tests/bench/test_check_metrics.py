"""Known damage to real images is ranked as it should be, by both metrics."""

import copy

from check_metrics import ORDER, damages, distances, halves, misranked, with_extractor
from graf.config import load_config
from graf.data import build_dataset
from graf.errors import GrafError
from graf.metrics import extractors

import pytest


def test_fid_and_kid_rank_known_damage_of_toy_cars(smoke, tmp_path, monkeypatch):
    monkeypatch.setattr(extractors.EfficientNetLite0, "RESOLUTION", 112)
    config = smoke("data.imsize=64", "data.n_images=64", f"data.datadir={tmp_path}", "metrics.extractor=efficientnet-lite0")
    reference, held_out = halves(build_dataset(config), 32)
    values = distances(damages(held_out.images), reference, config.metrics)
    assert set(values) == {name for chain in ORDER for name in chain}
    assert misranked(values) == []

    swapped = copy.deepcopy(values)
    swapped["held out"], swapped["blur of 9"] = values["blur of 9"], values["held out"]
    assert any("fid: held out is not nearer than blur of 3" in problem for problem in misranked(swapped))
    assert any("kid: blur of 5 is not nearer than blur of 9" in problem for problem in misranked(swapped))


def test_too_few_images_are_said_by_the_flag_that_asks_for_them():
    with pytest.raises(GrafError, match=r"--n 2: at least 4 images of each half"):
        halves([None] * 100, 2)
    with pytest.raises(GrafError, match="7 images: two halves of at least 4"):
        halves([None] * 7, 500)


def test_damage_is_made_one_at_a_time(photographs):
    names = damages(photographs)
    assert iter(names) is names
    assert [name for name, _ in names] == list(dict.fromkeys(name for chain in ORDER for name in chain))


def test_noise_has_the_standard_deviation_of_its_name(photographs):
    damaged = dict(damages(0 * photographs))
    assert abs(damaged["noise of 0.1"].std().item() / 2 - 0.1) < 0.01
    assert damaged["blur of 5"].abs().max() == 0


def test_a_chosen_extractor_is_not_chosen_again(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(extractors.torch.hub, "get_dir", lambda: str(tmp_path))  # where there are no Inception weights
    caplog.set_level("INFO", logger="graf")
    config = with_extractor(load_config(None).metrics)
    assert config.extractor == "efficientnet-lite0" and len(caplog.records) == 1
    assert with_extractor(config) == config and len(caplog.records) == 1
