"""What lies in a folder is sorted: photographs, masks, videos, and what cannot be read."""

import json
from collections.abc import Sequence
from pathlib import Path

from graf.errors import DataError
from graf.photographs.sources import Source, find_sources, output_names, photograph_of, read_transforms, with_masks_of_frames

import pytest
from PIL import Image


@pytest.fixture
def folder(tmp_path):
    """Makes files below a folder: white squares of those in `masks`, the others empty."""

    def make(*names: str, masks: Sequence[str] = ()) -> Path:
        for name in (*names, *masks):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        for name in masks:
            square = Image.new("L", (9, 9))
            square.paste(255, (3, 3, 6, 6))
            square.save(tmp_path / name)
        return tmp_path

    return make


def places(sources: list[Source]) -> dict[str, str | None]:
    return {source.place: source.mask and source.mask.name for source in sources}


def test_folders_are_classes_and_hidden_files_are_none(folder):
    found = find_sources(folder("a.JPG", "chairs/b.heic", "chairs/._b.heic", ".trash/c.jpg", "@eaDir/a.JPG/x.jpg", "notes.txt"))
    assert places(found.photographs) == {"a.JPG": None, "chairs/b.heic": None}
    assert [source.folder for source in found.photographs] == [".", "chairs"]
    assert found.others == {".txt": 1}


@pytest.mark.parametrize("form", ["{}_mask.png", "{}-map.PNG", "masks/{}.png", "maps/{}-map.png"])
def test_masks_beside_photographs_are_theirs(folder, form):
    root = folder("a.jpg", "b.HEIC", "c.jpg", "mask.png", masks=[form.format(name) for name in "ab"])
    expected = {f"{name}.{kind}": Path(form.format(name)).name for name, kind in (("a", "jpg"), ("b", "HEIC"))}
    assert places(find_sources(root).photographs) == expected | {"c.jpg": None, "mask.png": None}


def test_one_photograph_may_be_named_and_has_its_mask(folder):
    found = find_sources(folder("a.jpg", "b.jpg", masks=["a_mask.png"]) / "a.jpg")
    assert places(found.photographs) == {"a.jpg": "a_mask.png"}


def test_a_folder_of_photographs_named_maps_is_a_class(folder):
    found = find_sources(folder("maps/africa.jpg", "maps/asia.jpg", "town.jpg", "old_map.png"))
    assert set(places(found.photographs)) == {"maps/africa.jpg", "maps/asia.jpg", "town.jpg", "old_map.png"}


def test_files_named_like_masks_that_are_taken_for_photographs_are_told(folder, caplog):
    root = folder("a.jpg", "a_mask.png")
    assert len(find_sources(root).photographs) == 2
    assert "1 photographs have a file named like a mask, such as" in caplog.text and "--cut masks DIR" in caplog.text


def test_masks_of_another_folder_are_found_by_subfolder_or_name(folder):
    root = folder("in/x/a.jpg", "in/x/b.jpg", "in/c.jpg", "in/m/x/a.png", "in/m/b_mask.gif")
    found = find_sources(root / "in", root / "in" / "m")
    assert places(found.photographs) == {"c.jpg": None, "x/a.jpg": "a.png", "x/b.jpg": "b_mask.gif"}


def test_masks_may_be_named_with_the_folder_of_the_photographs(folder):
    root = folder("a.jpg", "b.jpg", masks=["a_mask.png"])
    assert places(find_sources(root, root).photographs) == {"a.jpg": "a_mask.png", "b.jpg": None}


def test_the_moving_part_of_a_photograph_is_no_video(folder):
    found = find_sources(folder("IMG_1.HEIC", "IMG_1.MOV", "IMG_2.MOV"))
    assert [source.place for source in found.videos] == ["IMG_2.MOV"]
    assert "Live Photo" in found.left_out["IMG_1.MOV"]


def test_one_video_may_be_named(folder):
    found = find_sources(folder("clip.mp4", "other.mp4") / "clip.mp4")
    assert [source.place for source in found.videos] == ["clip.mp4"]


def test_links_are_followed_once(folder):
    root = folder("a/b.jpg")
    (root / "a" / "loop").symlink_to(root)
    (root / "c").symlink_to(root / "a")
    assert len(find_sources(root).photographs) == 1


def test_frames_may_name_links_to_photographs_and_masks_elsewhere(folder):
    root = folder("store/a.jpg", "set/b.jpg", masks=["store/m.png"]) / "set"
    (root / "images").mkdir()
    (root / "images" / "a.jpg").symlink_to(root.parent / "store" / "a.jpg")
    (root / "m.png").symlink_to(root.parent / "store" / "m.png")
    frames = [{"file_path": "./images/a", "mask_path": "m.png"}, {"file_path": str(root / "images" / "a.jpg")}]
    file = root / "transforms.json"
    assert [photograph_of(frame, file) for frame in frames] == 2 * [root / "images" / "a.jpg"]
    assert photograph_of({"file_path": "../store/a.jpg"}, file) is None
    photographs = with_masks_of_frames(find_sources(root).photographs, {file: {"frames": frames[:1]}})
    assert places(photographs) == {"b.jpg": None, "images/a.jpg": "m.png"}


def test_frames_of_splits_are_one_for_each_photograph(folder):
    file = folder("train/a.jpg") / "transforms.json"
    for split, names in (("train", ["./train/a", "gone"]), ("test", ["train/a.jpg", "gone"])):
        content = {"frames": [{"file_path": name} for name in names]}
        file.with_name(f"transforms_{split}.json").write_text(json.dumps(content))
    assert sorted(frame["file_path"] for frame in read_transforms(file)["frames"]) == ["./train/a", "gone"]


@pytest.mark.parametrize("content", ["", "[" * 200_000])
def test_a_transforms_json_that_is_no_json_is_told_with_what_to_do(folder, content):
    file = folder("a.jpg") / "transforms.json"
    file.write_text(content)
    with pytest.raises(DataError, match=r"not readable as JSON .*; correct or export it again, or take --labels none"):
        read_transforms(file)


def test_photographs_have_the_names_of_their_folder_on_disks_that_ignore_case(folder, monkeypatch):
    root = folder("IMG_1.JPG", "b.jpg")
    monkeypatch.setattr("os.path.isfile", lambda path: Path(path).name.lower() in ("img_1.jpg", "b.jpg"))
    for path in ("IMG_1", "IMG_1.jpg", "IMG_1.JPG"):
        assert photograph_of({"file_path": path}, root / "transforms.json") == root / "IMG_1.JPG"
    assert photograph_of({"file_path": "b"}, root / "transforms.json") == root / "b.jpg"


def test_names_are_told_apart_whatever_their_case():
    names = ["a.jpg", "A.png", "a.PNG", "x/a.jpg", "a_png.tif", "two\nlines.jpg", "na\udcffme.jpg"]
    found = output_names([Source(Path(name), name) for name in names])
    assert found["x/a.jpg"] == "x/a.png"
    assert found["two\nlines.jpg"] == "two_lines.png"
    assert found["na\udcffme.jpg"] == "na_me.png"
    assert found["a.jpg"] == "a.png"
    assert found["A.png"] == "A_png.png"
    assert len({name.lower() for name in found.values()}) == len(names)


def test_a_folder_that_may_not_be_read_is_told(folder, monkeypatch):
    root = folder("a.jpg", "b/c.jpg")
    (root / "b").chmod(0)
    try:
        next((root / "b").iterdir())
        pytest.skip("this user may read everything")
    except PermissionError:
        assert "the folder cannot be read" in find_sources(root).left_out["b"]
    finally:
        (root / "b").chmod(0o755)


def test_an_image_is_no_mask_without_its_photograph(folder, tmp_path):
    Image.new("L", (9, 9)).save(folder() / "party_mask.png")
    assert set(places(find_sources(tmp_path).photographs)) == {"party_mask.png"}
