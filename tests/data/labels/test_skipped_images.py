"""What data.on_bad_file: skip leaves out changes nothing of the images that stay: no elevation, and no class without images."""

from pathlib import Path

from graf.camera import azimuth_and_v
from graf.data import build_dataset
from graf.data.views import expected_labels
from graf.errors import DataError

import pytest
from test_data_images import config, put


def test_a_skipped_name_does_not_shift_the_elevations_of_others(tmp_path):
    rings = [f"{elevation}_{azimuth:04d}.png" for elevation in (1, 2, 3) for azimuth in range(0, 360, 60)]
    for name in (*rings, "0_2024.png"):  # a date, no azimuth
        put(tmp_path / name)
    dataset = build_dataset(config(tmp_path, **{"data.v": "[0.2, 0.3, 0.4]", "data.on_bad_file": "skip"}))
    _, v = azimuth_and_v(dataset.labels.pose_c2w)
    expected = {file: {"1": 0.2, "2": 0.3, "3": 0.4}[Path(file).name[0]] for file in dataset.files}
    assert dict(zip(dataset.files, v.tolist(), strict=True)) == pytest.approx(expected) and len(dataset) == len(rings)


def test_no_ring_of_images_is_skipped_for_want_of_an_elevation(tmp_path):
    for name in ("0_0000.png", "1_0000.png", "2_0000.png"):
        put(tmp_path / name)
    with pytest.raises(DataError, match="data.v has only 2"):
        build_dataset(config(tmp_path, **{"data.v": "[0.2, 0.3]", "data.on_bad_file": "skip"}))


@pytest.mark.parametrize("stray", ["cover.png", "bus_0400.png"])
def test_a_class_whose_images_were_all_left_out_is_none(tmp_path, caplog, stray):
    for name in ("car_0000.png", "car_0090.png", "van_0000.png", stray):
        put(tmp_path / name)
    values = {"data.name_pattern": "<class>_<azimuth_deg>", "data.v": "[0.3]", "data.on_bad_file": "skip"}
    dataset = build_dataset(config(tmp_path, **values))
    assert dataset.class_names == ["car", "van"] and dataset.labels.class_index.tolist() == [0, 0, 1]
    assert "whose images were all left out" in caplog.text
    assert expected_labels(config(tmp_path, **values).data) == dataset.known_labels


def test_a_class_folder_of_damaged_images_is_no_class(tmp_path):
    for name in ("a/1.png", "b/1.png", "c/1.png", "c/2.png"):
        put(tmp_path / name)
    (tmp_path / "b" / "1.png").write_bytes(b"damaged")
    dataset = build_dataset(config(tmp_path, **{"data.labels": "none", "data.on_bad_file": "skip"}))
    assert dataset.class_names == ["a", "c"] and dataset.class_index.tolist() == [0, 1, 1]
