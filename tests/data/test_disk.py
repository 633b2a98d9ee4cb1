"""Disks that find a file by any capitals, as those of Macs and of Windows do."""

import os
import unicodedata
from pathlib import Path

from graf.data.disk import Disk

import pytest


def finds_by_any_capitals(monkeypatch):
    """Let the disk find files and folders by any capitals and accents; their names keep those that they have."""

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


def test_a_file_has_the_name_that_the_disk_lists(photos, monkeypatch):
    missing = photos / "cars"
    assert Disk([photos]).folder(missing) == missing  # here it is another folder
    finds_by_any_capitals(monkeypatch)
    disk = Disk([photos])
    assert disk.folder(missing) == photos / "Cars"
    assert disk.file(photos / "CARS/a.JPG") == photos / "Cars/A.jpg"
    assert disk.names(photos / "cars") == {"A.jpg"}
    (photos / "Cars/Cafe\N{COMBINING ACUTE ACCENT}.jpg").touch()
    assert Disk([photos]).file(photos / "cars/café.JPG").name == "Cafe\N{COMBINING ACUTE ACCENT}.jpg"


def test_a_known_folder_keeps_the_name_that_the_user_gave_it(photos, monkeypatch):
    finds_by_any_capitals(monkeypatch)
    named = photos.with_name("photos")
    assert Disk([named]).file(named / "cars/a.jpg") == named / "Cars/A.jpg"


@pytest.mark.parametrize("known", ["relative", "absolute"])
def test_paths_are_relative_or_absolute_as_the_known_folders_are(photos, known):
    known = Path("Photos") if known == "relative" else photos
    disk = Disk([known])
    for path in (Path("Photos/Cars"), photos / "Cars"):
        assert disk.folder(path) == known / "Cars"
    assert disk.folder(photos.parent / "elsewhere") == photos.parent / "elsewhere"


def test_of_two_names_that_differ_in_capitals_alone_each_file_keeps_its_own(photos):
    (photos / "cars").mkdir()
    disk = Disk([photos])
    assert [disk.folder(photos / name) for name in ("cars", "Cars")] == [photos / "cars", photos / "Cars"]


def test_a_file_that_was_renamed_since_its_folder_was_read_has_its_new_name(photos):
    disk = Disk([photos])
    assert disk.file(photos / "Cars/A.jpg") == photos / "Cars/A.jpg"
    (photos / "Cars/A.jpg").rename(photos / "Cars/a.jpg")
    assert disk.file(photos / "Cars/a.jpg") == photos / "Cars/a.jpg"
