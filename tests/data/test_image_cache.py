"""Photographs that are kept decoded: the same pixels and batches as read from their files, in memory and in a file."""

import pickle
import shutil
from collections import namedtuple
from pathlib import Path

from graf.config import load_config
from graf.data import build_dataset, build_loader, decoding, image_cache, validation
from graf.errors import DataError

import numpy as np
import pytest
import torch
from PIL import Image

IN_A_FILE = 1e-6  # GB, less than the images take


def put_images(folder: Path, n: int = 5, mode: str = "RGB") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for index in range(n):
        pixels = rng.integers(0, 256, (20, 24, len(mode)), dtype=np.uint8)
        Image.fromarray(pixels, mode).save(folder / f"{index}.png")


def config(folder: Path, cache_gb: float, **overrides):
    values = {"data.type": "images", "data.datadir": folder, "data.imsize": 16, "training.batch_size": 2, **overrides}
    values |= {"data.cache_gb": cache_gb, "ray_sampler.rays_per_patch": 64, "discriminator.condition": "none"}
    return load_config(None, [f"{key}={value}" for key, value in values.items()])


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("cache_gb", [1, IN_A_FILE])
@pytest.mark.parametrize(("mode", "alpha"), [("RGB", "auto"), ("RGBA", "auto"), ("RGBA", "rgba"), ("RGBA", "ignore")])
def test_what_is_kept_is_what_the_files_give(tmp_path, cache_gb, mode, alpha):
    put_images(tmp_path / "photographs", mode=mode)
    settings = config(tmp_path / "photographs", cache_gb, **{"data.alpha": alpha})
    plain, kept = build_dataset(settings), build_dataset(settings, tmp_path / "cache")
    assert plain.alpha == kept.alpha and len(files_in(tmp_path / "cache")) == (cache_gb == IN_A_FILE)
    for index in range(len(kept)):
        assert kept.read(index).shape == (4 if kept.alpha == "rgba" else 3, 16, 16)
        assert torch.equal(kept.read(index), plain.read(index))


def test_images_in_memory_need_no_file_any_more(tmp_path):
    put_images(tmp_path / "photographs")
    settings = config(tmp_path / "photographs", 1)
    expected = [build_dataset(settings).read(index) for index in range(5)]
    kept = build_dataset(settings, tmp_path / "cache")
    shutil.rmtree(tmp_path / "photographs")
    assert all(torch.equal(kept.read(index), image) for index, image in enumerate(expected))


@pytest.mark.parametrize("cache_gb", [1, IN_A_FILE])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_with_and_without_it(tmp_path, cache_gb, workers):
    put_images(tmp_path / "photographs")
    settings = config(tmp_path / "photographs", cache_gb, **{"training.nworkers": workers, "data.hflip": True})
    taken = []
    for dataset in (build_dataset(settings), build_dataset(settings, tmp_path / "cache")):
        batches = build_loader(dataset, settings, "cpu")
        taken.append([next(batches)[0] for _ in range(4)])
        batches.close()
    assert all(map(torch.equal, *taken))


def test_a_faulty_image_is_not_among_those_kept(tmp_path):
    put_images(tmp_path / "photographs")
    (tmp_path / "photographs" / "1.png").write_text("no image")
    settings = config(tmp_path / "photographs", IN_A_FILE, **{"data.on_bad_file": "skip"})
    plain, kept = build_dataset(settings), build_dataset(settings, tmp_path / "cache")
    assert len(kept) == 4 and all(torch.equal(plain.read(index), kept.read(index)) for index in range(4))


def test_a_file_is_used_again_until_the_photographs_change(tmp_path, monkeypatch):
    put_images(tmp_path / "photographs")
    settings = config(tmp_path / "photographs", IN_A_FILE)
    build_dataset(settings, tmp_path / "cache")
    first = files_in(tmp_path / "cache")
    monkeypatch.setattr(image_cache.ImageCache, "put", lambda *args: pytest.fail("kept once more"))
    build_dataset(settings, tmp_path / "cache")
    monkeypatch.undo()
    put_images(tmp_path / "photographs", n=6)
    changed = build_dataset(settings, tmp_path / "cache")
    assert len(first) == len(files_in(tmp_path / "cache")) == 1 != (first == files_in(tmp_path / "cache"))
    assert torch.equal(changed.read(5), build_dataset(settings).read(5))


def test_a_file_that_is_removed_or_cut_off_costs_time_alone(tmp_path):
    put_images(tmp_path / "photographs")
    settings = config(tmp_path / "photographs", IN_A_FILE)
    dataset = build_dataset(settings, tmp_path / "cache")
    expected = dataset.read(4)
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    assert torch.equal(dataset.read(4), expected)
    assert torch.equal(build_dataset(settings, tmp_path / "cache").read(4), expected)
    file.unlink()
    assert torch.equal(dataset.read(4), expected)


def test_a_full_disk_is_told_and_survived(tmp_path, monkeypatch, caplog):
    def full(self, index, image):
        self._failure = OSError(28, "No space left on device")

    put_images(tmp_path / "photographs")
    monkeypatch.setattr(image_cache.ImageCache, "put", full)
    dataset = build_dataset(config(tmp_path / "photographs", IN_A_FILE), tmp_path / "cache")
    assert "No space left on device" in caplog.text and "data.cache_gb" in caplog.text
    assert files_in(tmp_path / "cache") == [] and dataset.read(4).shape == (3, 16, 16)


def test_a_folder_that_cannot_be_written_is_told_and_survived(tmp_path, caplog):
    put_images(tmp_path / "photographs")
    (tmp_path / "cache").write_text("a file in the folder's place")
    dataset = build_dataset(config(tmp_path / "photographs", IN_A_FILE), tmp_path / "cache")
    assert "cannot be written" in caplog.text and dataset.read(4).shape == (3, 16, 16)


def test_what_a_killed_run_left_is_removed(tmp_path):
    put_images(tmp_path / "photographs")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".photographs_0.4194305.partial.pixels").touch()
    build_dataset(config(tmp_path / "photographs", IN_A_FILE), tmp_path / "cache")
    assert len(files_in(tmp_path / "cache")) == 1


def test_processes_that_are_not_forked_share_a_file(tmp_path, monkeypatch):
    put_images(tmp_path / "photographs")
    monkeypatch.setattr(image_cache, "start_method", lambda: "spawn")
    settings = config(tmp_path / "photographs", 1, **{"training.nworkers": 2})
    dataset = build_dataset(settings, tmp_path / "cache")
    assert len(files_in(tmp_path / "cache")) == 1
    assert torch.equal(pickle.loads(pickle.dumps(dataset)).read(3), dataset.read(3))


def test_memory_is_taken_only_where_there_is_plenty(tmp_path):
    put_images(tmp_path / "photographs")
    budget = {"memory.budget_gb": 5 * 16 * 16 * 3 * 7 / 2**30, "training.nworkers": 0}
    build_dataset(config(tmp_path / "photographs", 1, **budget), tmp_path / "cache")
    assert len(files_in(tmp_path / "cache")) == 1


def test_none_are_kept_where_the_config_says_so(tmp_path):
    put_images(tmp_path / "photographs")
    assert build_dataset(config(tmp_path / "photographs", 0), tmp_path / "cache").cache is None
    assert build_dataset(config(tmp_path / "photographs", 1)).cache is None


@pytest.mark.parametrize("cache_gb", [0, 1, IN_A_FILE])
def test_a_link_to_nothing_is_a_fault_of_the_data(tmp_path, cache_gb):
    put_images(tmp_path / "photographs")
    (tmp_path / "photographs" / "5.png").symlink_to(tmp_path / "photographs" / "gone.png")
    with pytest.raises(DataError, match=r"5\.png: is missing"):
        build_dataset(config(tmp_path / "photographs", cache_gb), tmp_path / "cache")
    skipping = config(tmp_path / "photographs", cache_gb, **{"data.on_bad_file": "skip"})
    assert len(build_dataset(skipping, tmp_path / "cache")) == 5


def assert_reads_the_files(settings, cache: Path, n: int) -> None:
    plain, kept = build_dataset(settings), build_dataset(settings, cache)
    assert len(kept) == n and all(torch.equal(kept.read(index), plain.read(index)) for index in range(n))


def test_an_image_that_could_be_read_only_later_is_not_black(tmp_path, monkeypatch):
    put_images(tmp_path / "photographs")
    settings = config(tmp_path / "photographs", IN_A_FILE, **{"data.on_bad_file": "skip"})
    opened = decoding.Image.open

    def not_permitted(file, *args, **kwargs):
        if Path(file).name == "4.png":
            raise PermissionError(13, "Permission denied")
        return opened(file, *args, **kwargs)

    monkeypatch.setattr(decoding.Image, "open", not_permitted)
    assert len(build_dataset(settings, tmp_path / "cache")) == 4
    monkeypatch.undo()
    assert_reads_the_files(settings, tmp_path / "cache", 5)


def test_an_image_that_had_no_opacity_to_judge_is_not_black(tmp_path):
    put_images(tmp_path / "photographs", mode="RGBA")
    put_images(tmp_path / "photographs" / "opaque", n=3)
    values = {"data.on_bad_file": "skip", "data.labels": "none"}
    judged = config(tmp_path / "photographs", IN_A_FILE, **values, **{"data.alpha": "rgba"})
    assert len(build_dataset(judged, tmp_path / "cache")) == 5
    assert_reads_the_files(config(tmp_path / "photographs", IN_A_FILE, **values), tmp_path / "cache", 8)


def test_a_file_of_a_start_that_looked_for_opacity_serves_one_that_knows_there_is_none(tmp_path, monkeypatch):
    put_images(tmp_path / "photographs")
    build_dataset(config(tmp_path / "photographs", IN_A_FILE, **{"data.alpha": "auto"}), tmp_path / "cache")
    monkeypatch.setattr(image_cache.ImageCache, "put", lambda *args: pytest.fail("kept once more"))
    assert_reads_the_files(config(tmp_path / "photographs", IN_A_FILE, **{"data.alpha": "ignore"}), tmp_path / "cache", 5)


def test_an_interrupted_check_leaves_no_file(tmp_path, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    put_images(tmp_path / "photographs")
    monkeypatch.setattr(validation, "check_image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_dataset(config(tmp_path / "photographs", IN_A_FILE), tmp_path / "cache")
    assert files_in(tmp_path / "cache") == []


@pytest.mark.parametrize("cache_gb", [0, 1])
def test_a_file_that_is_not_needed_any_more_is_removed(tmp_path, cache_gb):
    put_images(tmp_path / "photographs")
    build_dataset(config(tmp_path / "photographs", IN_A_FILE), tmp_path / "cache")
    (tmp_path / "cache" / "notes.txt").touch()
    build_dataset(config(tmp_path / "photographs", cache_gb), tmp_path / "cache")
    assert files_in(tmp_path / "cache") == ["notes.txt"]


def test_a_disk_without_room_is_not_filled(tmp_path, monkeypatch, caplog):
    put_images(tmp_path / "photographs")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(image_cache.shutil, "disk_usage", lambda folder: usage(10**6, 10**6 - 100, 100))
    monkeypatch.setattr(image_cache.ImageCache, "put", lambda *args: pytest.fail("written"))
    dataset = build_dataset(config(tmp_path / "photographs", IN_A_FILE), tmp_path / "cache")
    assert "No space left on device" in caplog.text and dataset.cache is None
    assert files_in(tmp_path / "cache") == []


def test_a_disk_that_fails_while_it_is_written_costs_time_alone(tmp_path, monkeypatch, caplog):
    put_images(tmp_path / "photographs")
    keep = image_cache.ImageCache.put

    def removed_first(self, index, image):
        self._unfinished.unlink(missing_ok=True)
        keep(self, index, image)

    monkeypatch.setattr(image_cache.ImageCache, "put", removed_first)
    assert_reads_the_files(config(tmp_path / "photographs", IN_A_FILE), tmp_path / "cache", 5)
    assert "cannot be written" in caplog.text and files_in(tmp_path / "cache") == []


def test_processes_of_a_machine_share_the_memory_that_there_is(tmp_path, monkeypatch):
    put_images(tmp_path / "photographs")
    settings = config(tmp_path / "photographs", 1, **{"memory.budget_gb": 5 * 16 * 16 * 4 * 9 / 2**30, "training.nworkers": 0})
    build_dataset(settings, tmp_path / "cache")
    assert files_in(tmp_path / "cache") == []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    build_dataset(settings, tmp_path / "cache")
    assert len(files_in(tmp_path / "cache")) == 1
