"""The same photograph is found however it was saved; other objects and other views are told apart."""

from graf.photographs.duplicates import NEAR, difference, duplicates, look_of

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scenes import busy, saved_again, scene

CHANGES = {
    "nothing": lambda image: image,
    "saved again": lambda image: saved_again(image, 40),
    "half the size": lambda image: image.resize((80, 60)),
    "twice the size": lambda image: image.resize((320, 240)),
    "cropped": lambda image: image.crop((8, 2, 155, 117)),
    "cropped at one corner": lambda image: image.crop((10, 8, 160, 120)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.08),
    "noise": lambda image: Image.fromarray(
        (np.asarray(image) + np.random.default_rng(0).normal(0, 4, (120, 160, 3))).clip(0, 255).astype(np.uint8)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("seed", range(3))
def test_a_changed_copy_is_the_same(change, seed):
    for image in (scene(seed), scene(seed, wall=busy(seed))):
        assert difference(look_of(image), look_of(CHANGES[change](image))) < NEAR


@pytest.mark.parametrize("seed", range(5))
def test_another_object_before_the_same_wall_is_another(seed):
    wall = busy(0)
    assert difference(look_of(scene(seed, wall=wall)), look_of(scene(seed + 50, wall=wall))) > NEAR
    assert difference(look_of(scene(seed)), look_of(scene(seed, colours=[(200, 30, 30), (20, 160, 20)]))) > NEAR


def test_an_object_that_has_moved_before_its_wall_is_another_photograph():
    assert difference(look_of(scene(1, wall=busy(0))), look_of(scene(1, wall=busy(0), shift=(25, 0)))) > NEAR


def test_the_first_of_a_group_is_kept_and_a_chain_does_not_collapse():
    """Each of a chain is near the one before; those far from the first are kept."""
    looks = {f"{shift}": look_of(scene(1, wall=busy(0), shift=(shift, 0))) for shift in range(20)}
    found = duplicates(looks)
    assert "0" not in found
    assert found["1"] == "0"
    assert 2 <= len(looks) - len(found) < len(looks)
    assert set(found.values()).isdisjoint(found)


def test_nothing_is_a_duplicate_of_nothing():
    assert duplicates({}) == {}
    assert duplicates({"a": look_of(scene(1))}) == {}
