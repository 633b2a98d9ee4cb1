"""Model cards: what they say of data and measurements, and whose files they never replace."""

import json

from graf.checkpoints.export import write_export
from graf.errors import GrafError
from graf.models.generator import Generator
from graf.reporting.model_card import OBJECTS, VIEWS, card_text, licence_files, write_card

import numpy as np
import pytest
from command_line import ROOT, SMOKE, call
from PIL import Image

MEASURED = {
    "values": {"kid_lite": 0.12345},
    "extractor": "lite",
    "weights_sha256": "ab" * 32,
    "resize": "none",
    "resolution": 16,
    "n_real": 7,
    "n_fake": 5,
    "real_fingerprint": "cd" * 32,
    "kid_subsets": 3,
    "kid_subset_size": 2,
    "seed": 9,
    "warnings": ["too few"],
    "consistency": {"popping": 1.5, "depth_warp_excess": None, "rendering_sha256": "ef"},
}


@pytest.fixture
def generator(smoke):
    return Generator(smoke()).eval()


@pytest.fixture
def export(generator, tmp_path):
    return write_export(tmp_path / "cars.safetensors", generator, 12)


def text(export, generator, fingerprint="", measured=None):
    return card_text(export, generator, 12, fingerprint, measured or {})


def test_measurements_stand_with_their_protocol(export, generator):
    card = text(export, generator, "0a1b", MEASURED)
    assert (
        "| KID (lite) | 0.1235 |" in card
        and "| popping | 1.5 |" in card
        and "| depth warp excess | nothing to compare |" in card
    )
    assert "7 real and 5 generated images at 16 px; real images cdcdcdcd, seed 9; KID over 3 subsets of 2" in card
    assert "subsets of 2. Lower" in card  # of an earlier version, which recorded no truncation
    of_samples = text(export, generator, measured=MEASURED | {"truncation": 1.0, "sample_seed": 7})
    assert "subsets of 2; truncation 1; sample seed 7. Lower" in of_samples
    assert "- too few" in card and "ef |" not in card and "Not measured" not in card
    assert "Fingerprint of the data: `0a1b`." in card and "after 12 training steps" in card


def test_variety_comes_with_a_warning_of_what_raises_it(export, generator):
    card = text(export, generator, measured=MEASURED | {"variety": {"variety": 0.5, "share_of_data": 2.0}})
    assert "| share of data | 2 |\n\nBlobs and fragments differ from one another too" in card
    assert "Blobs" not in text(export, generator, measured=MEASURED)


def test_the_test_for_copies_stands_with_what_it_says(export, generator):
    card = text(export, generator, measured=MEASURED | {"memorised": {"p_value": 0.25, "rendering_sha256": "ef"}})
    assert "### Memorised\n\n| measure | value |\n| --- | --- |\n| p value | 0.25 |\n\nSamples repeat" in card
    assert "Samples repeat" not in text(export, generator, measured=MEASURED)
    assert "1234" not in text(export, generator, measured=MEASURED | {"haze": {"haze": 0.5, "real_fingerprint": "1234"}})


def test_what_is_not_known_is_said(export, generator):
    card = text(export, generator)
    assert "Not measured." in card and "the checkpoint does not say" in card
    assert "measured against data of fingerprint `cdcd" in text(export, generator, "", MEASURED)


@pytest.mark.parametrize("name", ["LICENSES", "licence.txt", "COPYING"])
def test_the_licence_of_the_data_comes_along(export, smoke, tmp_path, name):
    data = tmp_path / "private" / "chairs"
    (data / "a").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(data / "a" / "0.5_0000.png")
    (data / "notes.txt").write_text("no licence")
    (tmp_path / "private" / "LICENSE").write_text("of something else")
    generator = Generator(smoke("data.type=images", f"data.datadir={data}"))
    assert "No licence file was found" in text(export, generator)
    for folder in (data, data / "a"):
        (folder / name).write_text(f"by the carpenter of {folder.name}\n")
    assert licence_files(generator.config.data) == [data / name, data / "a" / name]
    card = text(export, generator)
    assert f"`{name}`" in card and "    by the carpenter of chairs" in card and "    by the carpenter of a" in card
    assert str(tmp_path) not in card


def test_of_data_that_is_elsewhere_the_licence_is_not_said_to_be_missing(export, smoke, tmp_path, caplog):
    generator = Generator(smoke("data.type=images", f"data.datadir={tmp_path / 'chairs'}"))
    card = text(export, generator)
    assert "The data's folder `chairs` is not on this machine; its licence was not looked for" in card
    assert "No licence file was found" not in card and str(tmp_path) not in card
    assert f"{tmp_path / 'chairs'}: not on this machine" in caplog.text


def test_the_picture_is_of_objects_by_views_and_the_same_for_each_export(export, generator):
    card, picture = write_card(export, generator, 12, "", {})
    with Image.open(picture) as image:
        assert image.size == (VIEWS * 18 + 2, OBJECTS * 18 + 2)  # 16 pixels and a border of 2
        first = np.asarray(image)
    assert f"]({picture.name})" in card.read_text()
    assert set(export.parent.iterdir()) == {export, card, picture}
    card.unlink()
    picture.unlink()
    write_card(export, generator, 13, "", {})
    assert "after 13 training steps" in card.read_text() and (np.asarray(Image.open(picture)) == first).all()


@pytest.mark.parametrize("suffix", [".md", ".png"])
def test_a_card_or_picture_that_is_there_is_not_replaced(export, generator, suffix):
    there = export.with_suffix(suffix)
    there.write_text("mine")
    with pytest.raises(GrafError, match=rf"cars\{suffix}: .*move it away, or export under another name"):
        write_card(export, generator, 13, "", {})
    assert there.read_text() == "mine" and set(export.parent.iterdir()) == {export, there}


def test_a_card_that_names_a_file_whose_name_is_not_utf_8_is_written(export, generator):
    other = export.with_name("caf\udce9.safetensors")
    try:
        export.rename(other)
    except OSError:  # as on a Mac
        pytest.skip("the disk takes no such names")
    card, _ = write_card(other, generator, 12, "", {})
    assert 'graf.load_generator("caf\\udce9.safetensors")' in card.read_text(encoding="utf-8")


def test_a_name_with_spaces_is_one_word_of_the_command_and_a_link_to_the_picture(export, generator):
    card = text(export.rename(export.with_name("my (red) cars.safetensors")), generator)
    assert "](my%20%28red%29%20cars.png)\n" in card
    assert "    python eval.py --checkpoint 'my (red) cars.safetensors'\n" in card


def test_eval_py_writes_it_beside_the_export_and_refuses_before_the_export(smoke, tmp_path):
    config = smoke("training.outdir=" + str(tmp_path / "runs"))
    given = write_export(tmp_path / "given.safetensors", Generator(config), 3, "0a1b")
    flags = [*SMOKE[2:], "--checkpoint", str(given), "--export", "mine.safetensors"]
    call("eval.py", *flags, cwd=tmp_path)
    assert "`0a1b`" in (tmp_path / "mine.md").read_text() and (tmp_path / "mine.png").exists()
    (tmp_path / "mine.md").write_text("edited")
    (tmp_path / "mine.safetensors").unlink()
    assert "mine.md" in call("eval.py", *flags, cwd=tmp_path, status=2)
    assert (tmp_path / "mine.md").read_text() == "edited"
    assert not (tmp_path / "mine.safetensors").exists()


def test_the_card_of_the_shipped_weights_is_of_this_file_and_its_numbers():
    export = ROOT / "weights" / "toy_cars.safetensors"
    card, measured = export.with_suffix(".md").read_text(), json.loads((ROOT / "weights" / "metrics.json").read_text())
    assert f"`{measured['checkpoint_sha256']}`" in card
    assert all(f"| {value:.4g} |" in card for value in measured["values"].values())
