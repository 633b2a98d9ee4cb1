"""The bench of the test for copies: copies of toy cars are found in each draw, new cars are not."""

from check_memorised import COPIED, HALF, NEW, drawn_p_values, mistaken
from graf.errors import GrafError
from graf.metrics.memorised import ALARM

import pytest


def test_copies_of_toy_cars_are_found_and_new_cars_are_not(smoke, tmp_path):
    config = smoke("data.n_images=16", f"data.datadir={tmp_path}", "metrics.extractor=efficientnet-lite0")
    found = drawn_p_values(config, n=8, draws=1)
    assert found[COPIED][0] < ALARM < found[NEW][0] and len(found[HALF]) == 1
    assert mistaken(found) == []


def test_what_is_wrong_is_told():
    wrong = mistaken({NEW: [0.001] + 19 * [0.5], COPIED: [0.001, 0.5], HALF: [1.0]})
    assert wrong == [
        "training images with noise: not found in 50% of the draws",
        "new cars: false alarms in 5.0% of the draws, not under 5%",
    ]


def test_photographs_and_too_few_images_are_refused(smoke):
    with pytest.raises(GrafError, match="new objects are made of toy cars alone"):
        drawn_p_values(smoke("data.type=images", "data.datadir=x"), 8, 1)
    with pytest.raises(GrafError, match="--n 2: from 3 to data.n_images"):
        drawn_p_values(smoke(), 2, 1)
