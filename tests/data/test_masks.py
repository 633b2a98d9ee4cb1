"""Masks as files of their own: found beside the photographs, cut the objects out, and are never taken for photographs."""

import dataclasses
import logging

from graf.config import load_config
from graf.data import build_dataset
from graf.data.decoding import looks_like_mask, mask_opacity
from graf.data.folders import find_folders
from graf.data.masks import is_negative
from graf.errors import DataError

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from test_disk import finds_by_any_capitals

SIDE = 16


def photograph(file, colour=(10, 200, 30), size=(SIDE, SIDE)):
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(file.name)).integers(0, 90, (*size[::-1], 3))
    Image.fromarray((noise + np.array(colour) // 2).astype(np.uint8)).save(file)


def mask(file, value=255, size=(SIDE, SIDE)):
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros(size[::-1], np.uint8)
    pixels[size[1] // 4 : -size[1] // 4, size[0] // 4 : -size[0] // 4] = value
    Image.fromarray(pixels).save(file)


def config(folder, *keys):
    sizes = [f"data.imsize={SIDE}", "training.batch_size=1", "ray_sampler.rays_per_patch=256"]
    return load_config(None, ["data.type=images", f"data.datadir={folder}", *sizes, *keys])


@pytest.fixture(params=[False, True], ids=["", "any capitals"])
def any_disk(request, monkeypatch):
    if request.param:
        finds_by_any_capitals(monkeypatch)


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize(
    ("photographs", "masks", "keys"),
    [
        (("a.png", "b.png"), ("a_mask.png", "b_mask.png"), ()),
        (("a.jpg", "b.jpg"), ("a-map.png", "b-map.png"), ()),
        (("1/a.png", "2/a.png"), ("1/maps/a-map.png", "2/maps/a-map.png"), ()),
        (("images/a.jpg", "images/b.jpg"), ("masks/a.png", "masks/b.png"), ()),
        (("images/1/a.jpg", "images/2/a.jpg"), ("Masks/1/a.png", "Masks/2/a.png"), ()),
        (("a.jpg", "b.jpg"), ("a_mask.gif", "b_mask.GIF"), ()),
        (("images/a.jpg", "images/b.jpg"), ("masks/a.jpg.png", "masks/b.jpg.png"), ()),  # COLMAP's
        (("a.png", "b.png"), ("cut/a.x.png", "cut/b.x.png"), ("data.masks=cut/NAME.x",)),
        (("a.png", "b.png"), ("cut/a.png", "cut/b.png"), ("data.masks=cut",)),
    ],
)
@pytest.mark.parametrize("value", [255, 1])
def test_masks_cut_out_and_are_no_photographs(tmp_path, caplog, photographs, masks, keys, value):
    for name in photographs:
        photograph(tmp_path / name)
    for name in masks:
        mask(tmp_path / name, value)
    views = build_dataset(config(tmp_path, *keys))
    assert [file.removeprefix(f"{tmp_path}/") for file in views.files] == list(photographs)
    assert views.alpha == "rgba"
    expected = torch.zeros(SIDE, SIDE)
    expected[4:-4, 4:-4] = 1
    for i in range(2):
        assert torch.equal(views.read(i)[3] / 255, expected)
        assert (views.read(i)[:3, expected == 0] == 255).all()  # data.background
        assert torch.equal(views.opacity(i, views.data), expected)
    assert "formats that are not read" not in caplog.text


def test_a_folder_of_masks_may_be_elsewhere(tmp_path, monkeypatch):
    photograph(tmp_path / "photos/cars/a.png")
    mask(tmp_path / "cut/cars/a.png")
    monkeypatch.chdir(tmp_path)
    for place in (tmp_path / "cut", "cut"):
        assert build_dataset(config(tmp_path / "photos", f"data.masks={place}")).alpha == "rgba"


@pytest.mark.parametrize("masks", ["../../CUT/FOLDER/NAME", "CUT"])
def test_a_folder_of_masks_may_be_named_by_other_capitals_where_the_disk_finds_it_so(tmp_path, monkeypatch, masks):
    finds_by_any_capitals(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("hats/a.png", "shoes/a.png"):
        photograph(tmp_path / "photos" / name)
        mask(tmp_path / "Cut" / name)
    assert build_dataset(config(tmp_path, f"data.masks={masks}")).class_names == ["hats", "shoes"]


@pytest.mark.parametrize(
    ("photographs", "masks"),
    [
        ("set", "{here}/set/cut"),
        ("{here}/set", "set/cut"),
        ("../{here.name}/set", "set/cut"),
        ("{here}/set", "../{here.name}/set/cut"),
    ],
)
def test_masks_among_the_photographs_are_none_of_them_however_both_are_named(tmp_path, monkeypatch, photographs, masks):
    monkeypatch.chdir(tmp_path)
    for name in ("hats/a.png", "shoes/a.png"):
        photograph(tmp_path / "set/photos" / name)
        mask(tmp_path / "set/cut" / name)
    views = build_dataset(config(photographs.format(here=tmp_path), f"data.masks={masks.format(here=tmp_path)}"))
    assert views.class_names == ["hats", "shoes"] and views.alpha == "rgba"


def test_photographs_named_like_masks_stay_photographs(tmp_path):
    for name in ("cars/1.png", "maps/1.png"):
        photograph(tmp_path / name)
    assert build_dataset(config(tmp_path)).class_names == ["cars", "maps"]


@pytest.mark.usefixtures("any_disk")
def test_a_class_named_masks_beside_others_of_the_same_names_is_one(tmp_path):
    for folder in ("hats", "masks", "shoes"):
        for name in ("1.png", "2.png"):
            photograph(tmp_path / folder / name)
    assert build_dataset(config(tmp_path)).class_names == ["hats", "masks", "shoes"]
    for name in ("1.png", "2.png"):
        (tmp_path / "shoes" / name).unlink()
    with pytest.raises(DataError, match=r"2 images have a file named like a mask, .*; set \.\./masks/NAME to take them"):
        build_dataset(config(tmp_path))


@pytest.mark.parametrize("name", ["{}_mask.png", "masks/{}.png"])
def test_files_named_like_masks_that_do_not_look_like_them_are_a_fault(tmp_path, name):
    for photo, value in {"a": 128, "b": 128, "c": 255}.items():
        photograph(tmp_path / f"{photo}.jpg")
        mask(tmp_path / name.format(photo), value)
    pattern = name.format("NAME").removesuffix(".png")
    with pytest.raises(DataError, match=f"3 images have a file named like a mask, .*; set {pattern} to take them for masks"):
        build_dataset(config(tmp_path))
    assert len(build_dataset(config(tmp_path, f"data.masks={pattern}"))) == 3
    assert len(build_dataset(config(tmp_path, "data.masks=none"))) == 6


def test_a_picture_of_one_grey_is_no_mask(tmp_path):
    """Folders of the names of masks may hold silhouettes alone, or blank pages."""
    for name, value in {"white": 255, "black": 0}.items():
        Image.new("L", (SIDE, SIDE), value).save(tmp_path / f"{name}.png")
        assert not looks_like_mask(tmp_path / f"{name}.png")
    mask(tmp_path / "mask.png")
    assert looks_like_mask(tmp_path / "mask.png")


def test_none_takes_every_file_for_a_photograph(tmp_path):
    photograph(tmp_path / "a.png")
    mask(tmp_path / "a_mask.png")
    assert len(build_dataset(config(tmp_path, "data.masks=none"))) == 2


def test_a_photograph_without_the_mask_that_others_have_is_a_fault(tmp_path, caplog):
    for name in ("a", "b", "c"):
        photograph(tmp_path / f"{name}.png")
    for name in ("a", "b"):
        mask(tmp_path / f"masks/{name}.png")
    with pytest.raises(DataError, match=r"c\.png: has no mask beside the others'; add it, or set data\.masks: none"):
        build_dataset(config(tmp_path))
    with caplog.at_level(logging.WARNING, "graf"):
        assert len(build_dataset(config(tmp_path, "data.on_bad_file=skip"))) == 2


@pytest.mark.parametrize("masks", ["nowhere", "NAME_m.png"])
def test_named_masks_that_are_missing_are_faults(tmp_path, masks):
    photograph(tmp_path / "a.png")
    with pytest.raises(DataError, match=f"has no mask at data.masks: {masks}"):
        build_dataset(config(tmp_path, f"data.masks={masks}"))


def test_a_mask_of_another_shape_is_a_fault_and_of_another_size_is_not(tmp_path):
    photograph(tmp_path / "a.png", size=(32, 32))
    mask(tmp_path / "a_mask.png", size=(16, 16))
    assert build_dataset(config(tmp_path)).alpha == "rgba"
    mask(tmp_path / "a_mask.png", size=(32, 16))
    with pytest.raises(DataError, match="is 32 x 16, of another shape than 32 x 32"):
        build_dataset(config(tmp_path))


def test_a_damaged_mask_is_a_fault(tmp_path):
    photograph(tmp_path / "a.png")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut/a.png").write_bytes(b"not a picture")
    with pytest.raises(DataError, match=r"a\.png: its mask cannot be used: cut/a\.png cannot be read \(not an image"):
        build_dataset(config(tmp_path, "data.masks=cut"))


def test_transparency_is_a_mask_and_opaque_black_is_none(tmp_path):
    photograph(tmp_path / "a.png")
    mask(tmp_path / "grey.png")
    grey = Image.open(tmp_path / "grey.png")
    clear = Image.new("RGBA", grey.size, "white")
    clear.putalpha(grey)
    for image in (grey.convert("RGBA"), clear, grey.convert("LA")):
        image.save(tmp_path / "mask.png")
        assert mask_opacity(tmp_path / "mask.png", grey.size).tobytes() == grey.tobytes()


def test_an_empty_mask_does_not_make_photographs_of_the_others(tmp_path):
    for name in ("a", "b", "c"):
        photograph(tmp_path / f"{name}.png")
        mask(tmp_path / f"{name}_mask.png", value=0 if name == "b" else 255)
    assert len(build_dataset(config(tmp_path))) == 3


@pytest.mark.parametrize(("inverted", "told"), [("abc", True), ("ab", True), ("a", False)])
def test_negatives_are_told(tmp_path, caplog, inverted, told):
    for name in ("a", "b", "c"):
        photograph(tmp_path / f"{name}.png")
        mask(file := tmp_path / f"{name}_mask.png")
        if name in inverted:
            ImageOps.invert(Image.open(file)).save(file)
    build_dataset(config(tmp_path))
    assert (f"{len(inverted)} of 3 masks seem to be negatives, such as {tmp_path}/a_mask.png" in caplog.text) == told


def test_a_thin_line_around_a_mask_makes_no_negative_and_hides_none():
    mask = np.zeros((200, 200), dtype=bool)
    mask[80:120, 80:120] = True
    lined = np.pad(mask[1:-1, 1:-1], 1, constant_values=True)
    assert not is_negative(mask) and not is_negative(lined) and is_negative(~mask)


@pytest.mark.usefixtures("any_disk")
def test_masks_without_photographs_are_left_out_with_the_others(tmp_path):
    for name in ("a", "b"):
        photograph(tmp_path / f"{name}.png")
    for name in ("a", "b", "gone"):
        mask(tmp_path / f"masks/{name}.png")
    (folder,) = find_folders(config(tmp_path).data).folders
    assert [file.name for file in folder.images] == ["a.png", "b.png"]


def test_another_mask_is_another_data_set(tmp_path):
    photograph(tmp_path / "a.png")
    plain = build_dataset(config(tmp_path)).fingerprint
    mask(tmp_path / "a_mask.png")
    settings = config(tmp_path)
    cut = build_dataset(settings).fingerprint
    mask(tmp_path / "a_mask.png", value=254)
    changed = build_dataset(settings).fingerprint
    none = dataclasses.replace(settings.data, masks="none", on_bad_file="skip")
    assert len({plain, cut, changed}) == 3
    assert build_dataset(dataclasses.replace(settings, data=none)).fingerprint != cut
