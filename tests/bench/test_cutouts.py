"""Cut-outs are measured against the opacity that was pasted."""

from cutouts import busy_wall, images_below, iou, main, measure, pasted, plain_wall
from graf.errors import GrafError

import numpy as np
import pytest
from PIL import Image
from scenes import cut, scene


def test_iou_by_hand():
    one, other = np.array([1, 1, 0, 0.4]), np.array([1, 0, 1, 0])
    assert iou(one, other) == pytest.approx(1 / 3)
    assert iou(one, one) == 1


def test_each_way_is_measured(tmp_path):
    for seed in range(2):
        cut(seed).save(tmp_path / f"{seed}.png")
    rows = {row.way: row for row in measure(images_below(tmp_path), {"plain": plain_wall})}
    assert set(rows) == {"auto", "plain", "grabcut", "masks", "none"}
    assert rows["plain"].mean > 0.9 and rows["plain"].n == 2
    assert rows["auto"].mean > 0.9
    assert rows["masks"].mean > 0.97
    assert rows["none"].mean < 0.4
    (busy,) = [row for row in measure(images_below(tmp_path), {"busy": busy_wall}) if row.way == "plain"]
    assert (busy.n, busy.left_out) == (0, 2)


def test_what_is_pasted_is_in_the_photograph(tmp_path):
    cut(1).save(tmp_path / "a.png")
    rng = np.random.default_rng(0)
    image, opacity = pasted(tmp_path / "a.png", Image.new("RGB", (256, 256), (0, 255, 0)), rng)
    pixels = np.asarray(image)
    assert (pixels[opacity == 0] == (0, 255, 0)).all()
    assert (pixels[opacity == 1][:, 1] < 200).all()


def test_faults_are_told(tmp_path, monkeypatch):
    with pytest.raises(GrafError, match="no images in it"):
        images_below(tmp_path)
    scene(1).save(tmp_path / "a.png")
    monkeypatch.setattr("sys.argv", ["cutouts.py", str(tmp_path)])
    with pytest.raises(GrafError, match=r"a\.png: has no transparency to compare with"):
        main()
