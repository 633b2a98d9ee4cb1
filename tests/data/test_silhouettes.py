"""The opacity of a view belongs to its image: where it is 0 the image is background, where it is 1 nothing shines through."""

import dataclasses

from graf.config import Config, load_config
from graf.data import build_dataset, images

import numpy as np
import pytest
import torch
from PIL import Image


def photographs(folder, *images: Image.Image) -> tuple:
    """A data set of the images at 8 pixels a side on green, unposed, and its data config."""
    for number, image in enumerate(images):
        image.save(folder / f"{number}.png")
    base = load_config()
    data = dataclasses.replace(base.data, type="images", datadir=(str(folder),), imsize=8, background=(0.0, 1.0, 0.0))
    training = dataclasses.replace(base.training, batch_size=1)
    return build_dataset(dataclasses.replace(base, data=data, training=training)), data


@pytest.mark.parametrize("labels", ["auto", "none"])
def test_a_toy_cars_opacity_is_that_of_its_image(tmp_path, labels):
    """On black, and with the car's own colours left out, 1 - opacity is what white adds."""
    base = load_config().data
    settings = {"datadir": (str(tmp_path),), "n_images": 8, "imsize": 24, "labels": labels, "alpha": "ignore"}
    black, white = (dataclasses.replace(base, background=(level,) * 3, **settings) for level in (0.0, 1.0))
    on_black, on_white = (build_dataset(Config(data=data)) for data in (black, white))
    alpha = on_black.opacity(3, black)
    clear = (on_white[3]["image"] - on_black[3]["image"]) / 2  # (3, 24, 24)
    torch.testing.assert_close((1 - alpha).expand(3, -1, -1), clear, atol=1 / 255, rtol=0)
    assert alpha.min() == 0 and alpha.max() == 1
    judged = dataclasses.replace(black, alpha="rgba")
    torch.testing.assert_close(build_dataset(Config(data=judged)).opacity(3, judged), alpha, atol=0.5 / 255, rtol=0)


def test_a_photographs_opacity_is_cropped_and_resized_as_its_image_is(tmp_path):
    """A black square of 60 % on green: what is left of green says how opaque it is."""
    pixels = np.zeros((40, 56, 4), np.uint8)
    pixels[10:30, 18:38, 3] = 153
    dataset, data = photographs(tmp_path, Image.fromarray(pixels))
    alpha = dataset.opacity(0, data)
    assert alpha.shape == (8, 8) and alpha[4, 4] == pytest.approx(0.6, abs=0.03) and alpha[0].max() == 0
    green = (dataset[0]["image"][1] + 1) / 2
    torch.testing.assert_close(1 - alpha, green, atol=2 / 255, rtol=0)


def test_a_palette_with_a_clear_entry_has_a_silhouette_and_an_opaque_photograph_none(tmp_path):
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([9, 9, 9, 200, 100, 50])
    palette.putpixel((5, 2), 0)
    palette.info["transparency"] = 0
    sixteen_bits = Image.fromarray(np.full((8, 8), 257, np.uint16))
    dataset, data = photographs(tmp_path, palette, Image.new("RGB", (8, 8), (0, 255, 0)), sixteen_bits)
    alpha = dataset.opacity(0, data)
    assert (alpha == 0).nonzero().tolist() == [[2, 5]] and alpha.sum() == 63
    assert dataset.opacity(1, data) is None and dataset.opacity(2, data) is None


def test_an_opacity_that_is_decoded_is_not_read_again(tmp_path, monkeypatch):
    """data.alpha: rgba brings it with the image: at 8 pixels the file's own, at 4 their means."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 4), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "0.png")
    base = load_config()
    data = dataclasses.replace(base.data, type="images", datadir=(str(tmp_path),), imsize=8, alpha="rgba")
    training = dataclasses.replace(base.training, batch_size=1)
    dataset = build_dataset(dataclasses.replace(base, data=data, training=training))
    monkeypatch.setattr(images, "read_alpha", None)
    alpha = torch.tensor(pixels[..., 3]) / 255
    assert torch.equal(dataset.opacity(0, data), alpha)
    means = alpha.view(4, 2, 4, 2).mean((1, 3))
    torch.testing.assert_close(dataset.opacity(0, dataclasses.replace(data, imsize=4)), means)
