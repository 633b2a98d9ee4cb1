"""Objects by the names of their images, and sets that share none of them."""

import hashlib
import os

from graf.camera import Labels, sample_poses
from graf.data import Views
from graf.data.folders import object_of
from graf.errors import DataError
from graf.pose.splits import split_by_object

import pytest
import torch


class Named(Views):
    """Posed black photographs of these names."""

    def __init__(self, files, config):
        poses = sample_poses(len(files), config.data, torch.Generator().manual_seed(0))
        super().__init__(files, ["things"], torch.zeros(len(files), dtype=torch.long), Labels.of_poses(poses), "fingerprint")

    def read(self, index):
        return torch.full((3, 16, 16), index, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("cars/bus_03.png", "cars/bus"),
        ("cars/155-DTM_00_07.png", "cars/155-DTM_00"),
        ("cars/bus-4.png", "cars/bus"),
        ("cars/bus.png", "cars/bus"),
        ("chairs/red/0.5_0090.png", "red"),
        ("chairs/red/0090.png", "red"),
    ],
)
def test_an_object_is_known_by_its_name_or_its_folder(file, name):
    assert object_of(file) == name


def test_no_object_is_in_two_sets_and_no_image_is_left_out(smoke):
    views = Named([f"cars/car{i}_{j:02}.png" for i in range(20) for j in range(4)], smoke())
    splits = split_by_object(views, 0.1, 0.2)
    assert splits.by_object
    assert [len(part) for part in splits[:3]] == [14 * 4, 2 * 4, 4 * 4]
    objects = [set(part.objects) for part in splits[:3]]
    assert len(set.union(*objects)) == sum(map(len, objects)) == 20
    assert sorted(file for part in splits[:3] for file in part.files) == sorted(views.files)


def test_a_part_has_the_images_and_cameras_of_its_rows(smoke):
    views = Named([f"cars/car{i}_0.png" for i in range(10)], smoke())
    test = split_by_object(views, 0.1, 0.3).test
    for index, file in enumerate(test.files):
        row = views.files.index(file)
        assert int(test.read(index)[0, 0, 0]) == row
        assert torch.equal(test[index]["pose_c2w"], views.labels.pose_c2w[row])


def test_an_object_stays_in_its_set_whatever_the_order(smoke):
    files = [f"cars/car{i}_0.png" for i in range(30)]
    one, other = (split_by_object(Named(names, smoke()), 0.1, 0.1) for names in (files, files[::-1]))
    assert set(one.test.files) == set(other.test.files)


def test_names_that_are_not_utf_8_are_cut_too_and_others_fall_where_they_did(smoke):
    """By the sha256 of a name's bytes, smallest first: two of ten objects to test, one to validate."""
    names = [b"caf\xe9", b"\xff", "caf\u00e9".encode(), *(b"car%d" % i for i in range(7))]
    splits = split_by_object(Named([os.fsdecode(b"cars/" + name + b"_0.png") for name in names], smoke()), 0.1, 0.2)
    *test, validation = sorted((b"cars/" + name for name in names), key=lambda name: hashlib.sha256(name).digest())[:3]
    assert {os.fsencode(name) for name in splits.test.objects} == set(test)
    assert [os.fsencode(name) for name in splits.validation.objects] == [validation]


def test_views_of_one_object_are_cut_by_image_and_the_log_says_so(smoke, caplog):
    splits = split_by_object(Named([f"cars/r_{i}.png" for i in range(20)], smoke()), 0.1, 0.1)
    assert not splits.by_object
    assert [len(part) for part in splits[:3]] == [16, 2, 2]
    assert "split by image" in caplog.text


def test_what_cannot_be_cut_is_refused(smoke):
    with pytest.raises(DataError, match="2 images cannot be split"):
        split_by_object(Named(["a/x.png", "b/x.png"], smoke()), 0.1, 0.1)
    with pytest.raises(DataError, match="leave none of 3 objects"):
        split_by_object(Named(["a/x.png", "b/x.png", "c/x.png"], smoke()), 0.5, 0.5)
