"""Disks that find a file by any capitals, as those of Macs and of Windows do."""

import os
import unicodedata
from pathlib import Path

from graf.data.disk import Disk, as_listed

import pytest


def finds_by_any_capitals(monkeypatch):
    """Let the disk find files and folders by any capitals and accents, as far as `listdir`, `exists` and `isfile` tell; their
    names keep those that they have."""

    def key(name):
        return unicodedata.normalize("NFD", name).lower()

    def found(path, listdir=os.listdir):
        place = Path(Path(path).anchor)
        for part in Path(path).parts[bool(place.anchor) :]:
            names = listdir(place) if place.is_dir() else []
            place /= part if part in names else next((name for name in names if key(name) == key(part)), part)
        return place

    for module, name in ((os, "listdir"), (os.path, "exists"), (os.path, "isfile")):
        ask = getattr(module, name)
        monkeypatch.setattr(module, name, lambda path=".", ask=ask: ask(found(path)))


@pytest.fixture
def photos(tmp_path, monkeypatch):
    (tmp_path / "Photos/Cars").mkdir(parents=True)
    (tmp_path / "Photos/Cars/A.jpg").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "Photos"


@pytest.fixture
def told_apart(photos):
    """Photographs on a disk that tells names in other capitals apart."""
    if (photos / "CARS").exists():
        pytest.skip("this disk finds files by any capitals")
    return photos


def test_a_file_has_the_name_that_the_disk_lists(photos, monkeypatch):
    (photos / "Cars/Cafe\N{COMBINING ACUTE ACCENT}.jpg").touch()
    finds_by_any_capitals(monkeypatch)
    for name, listed in (("a.JPG", "A.jpg"), ("café.JPG", "Cafe\N{COMBINING ACUTE ACCENT}.jpg"), ("A.jpg", "A.jpg")):
        assert as_listed(photos / "CARS" / name, photos).relative_to(photos).as_posix() == f"Cars/{listed}"


def test_files_that_come_and_go_are_seen(told_apart):
    cars = told_apart / "Cars"
    assert as_listed(cars / "A.jpg", told_apart) == cars / "A.jpg"
    (cars / "a.jpg").touch()
    os.utime(cars, (1, 1))  # some disks tell a change only after seconds
    assert [as_listed(cars / name, told_apart) for name in ("a.jpg", "A.jpg")] == [cars / "a.jpg", cars / "A.jpg"]


@pytest.mark.parametrize("given", ["Photos/Cars", "{here}/Photos/Cars", "../{here.name}/Photos/Cars", "{here}/linked/Cars"])
@pytest.mark.parametrize("asked", ["Photos/Cars", "{here}/Photos/Cars", "../{here.name}/Photos/Cars", "{here}/linked/Cars"])
def test_a_folder_is_known_by_whatever_path_leads_to_it(photos, given, asked):
    here = photos.parent
    try:
        (here / "linked").symlink_to("Photos")
    except OSError:
        pytest.skip("a disk without links")
    given = Path(given.format(here=here))
    assert Disk([given]).folder(Path(asked.format(here=here))) == given


def test_of_two_paths_to_one_folder_the_first_is_taken_and_each_is_itself(photos):
    here, paths = photos.parent, [Path("Photos"), photos]
    for given in (paths, paths[::-1]):
        disk = Disk(given)
        assert disk.folder(here / ".." / here.name / "Photos") == given[0]
        assert [disk.folder(path) for path in paths] == paths


@pytest.mark.parametrize("given", ["Photos/Cars", "photos/CARS"])
def test_a_folder_is_known_by_any_capitals_where_the_disk_finds_it_so(photos, monkeypatch, given):
    finds_by_any_capitals(monkeypatch)
    disk = Disk([Path(given)])
    assert {disk.folder(place) for place in (Path("PHOTOS/cars"), photos / "cars", Path(given))} == {Path(given)}
    assert disk.names(photos / "cars") == {"A.jpg"}


def test_folders_that_are_none_of_these_or_do_not_exist_stay_as_they_are(told_apart):
    other = told_apart / "cars"
    assert Disk([told_apart / "Cars"]).folder(other) == other
    other.mkdir()
    disk = Disk([told_apart / "Cars", other])
    assert [disk.folder(place) for place in (Path("Photos/cars"), Path("Photos/Cars"))] == [other, told_apart / "Cars"]
    assert disk.names(told_apart / "gone") == disk.names(told_apart / "Cars/A.jpg") == frozenset()
