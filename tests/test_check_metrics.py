"""Known damage to real images is ranked as it should be, by both metrics."""

import copy

from graf.data import build_dataset
from tools.check_metrics import ORDER, damages, distances, misranked


def test_fid_and_kid_rank_known_damage_of_toy_cars(smoke, tmp_path):
    config = smoke("data.imsize=64", "data.n_images=80", f"data.datadir={tmp_path}", "metrics.extractor=efficientnet-lite0")
    values = distances(build_dataset(config), 40, config.metrics)["values"]
    assert set(values) == {name for chain in ORDER for name in chain}
    assert misranked(values) == []

    swapped = copy.deepcopy(values)
    swapped["held out"], swapped["blur of 9"] = values["blur of 9"], values["held out"]
    assert any("fid: held out is not nearer than blur of 3" in problem for problem in misranked(swapped))
    assert any("kid: blur of 5 is not nearer than blur of 9" in problem for problem in misranked(swapped))


def test_noise_has_the_standard_deviation_of_its_name(photographs):
    damaged = damages(0 * photographs)
    assert abs(damaged["noise of 0.1"].std().item() / 2 - 0.1) < 0.01
    assert damaged["blur of 5"].abs().max() == 0
