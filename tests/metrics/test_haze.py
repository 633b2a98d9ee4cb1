"""Haze: 0 for the data, and by hand for renderings of known colours."""

from graf.config import override
from graf.data import build_dataset
from graf.metrics import haze as module
from graf.metrics.haze import clear_blocks, haze, haze_in, never_covered
from graf.metrics.shapes import Subject
from graf.models.generator import Generator, Rendering

import pytest
import torch
from PIL import Image
from test_mesh import Radial


@pytest.fixture
def cut_outs(smoke, tmp_path):
    """Two photographs of 16 pixels: of the left half and the upper half, red on grey; more of any other images."""
    left, upper = Image.new("RGBA", (16, 16)), Image.new("RGBA", (16, 16))
    left.paste((255, 0, 0, 255), (0, 0, 8, 16))
    upper.paste((255, 0, 0, 40), (0, 0, 16, 8))

    def of(*images):
        for number, image in enumerate((left, upper, *images)):
            image.save(tmp_path / f"{number}.png")
        config = smoke(
            "data.type=images",
            f"data.datadir={tmp_path}",
            "data.background=[0.5, 0.5, 0.5]",
            "training.batch_size=2",
            "metrics.batch_size=2",
        )
        return config, build_dataset(config)

    return of


def subject(config, dataset, cache, n=5):
    return Subject(Generator(config), dataset, seed=0, truncation=1.0, cache=cache, n=n)


def test_a_pixel_is_free_where_no_silhouette_covers_even_a_part_of_it(cut_outs):
    config, dataset = cut_outs()
    free = torch.tensor(never_covered(dataset, config.data))
    expected = torch.zeros(16, 16, dtype=torch.long)
    expected[8:, 8:] = 1
    torch.testing.assert_close(free.long(), expected)


@pytest.mark.parametrize("kind", ["toy_cars", "images"])
def test_the_data_has_no_haze(smoke, cut_outs, tmp_path, kind):
    config, dataset = cut_outs()
    if kind == "toy_cars":
        config = smoke(f"data.datadir={tmp_path}", "data.n_images=8")
        dataset = build_dataset(config)
    clear = torch.tensor(never_covered(dataset, config.data), dtype=torch.bool)
    images = torch.stack([item["image"] for item in (dataset[i] for i in range(len(dataset)))])
    background = 2 * torch.tensor(config.data.background)[:, None] - 1
    assert clear.float().mean() > 0.2
    assert (images[..., clear] - background).abs().max() <= 1 / 127.5  # of 8 bits
    assert (images[..., ~clear] - background).abs().max() > 0.5


def test_a_block_is_clear_where_all_of_its_pixels_are():
    free = torch.ones(4, 4, dtype=torch.bool)
    free[0, 1] = free[3, 3] = False
    blocks = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    assert torch.equal(clear_blocks(free, 2), blocks)
    assert torch.equal(clear_blocks(free, 1), free)


def test_haze_is_the_mean_difference_in_8_bit_steps_over_clear_pixels(smoke):
    """On white: one image with 0.2 less red in all pixels, one that is black where it is not clear."""
    images, opacity = torch.ones(2, 3, 2, 2), torch.zeros(2, 1, 2, 2)
    images[0, 0], opacity[0] = 1 - 0.4, 0.25
    images[1, :, 0, 0], opacity[1, :, 0, 0] = -1, 1
    clear = torch.tensor([[False, True], [True, True]])
    colour, alpha = haze_in(Rendering(images, opacity, opacity, opacity), clear, smoke())
    assert colour.item() == pytest.approx(255 * 0.2 / 3 / 2) and alpha.item() == pytest.approx(0.25 / 2)


def test_haze_of_samples_is_the_mean_over_all_of_them(cut_outs, tmp_path, monkeypatch):
    """Batches of 2, 2 and 1 with 1, 2 and 3 tenths of opacity."""
    config, dataset = cut_outs()

    def samples(generator, label_sampler, n, batch_size, seed, truncation):
        for number, size in enumerate((2, 2, 1)):
            opacity = torch.full((size, 1, 16, 16), 0.1 * (number + 1))
            yield Rendering((opacity * 2).expand(-1, 3, -1, -1), opacity, opacity, opacity)

    monkeypatch.setattr(module, "fresh_renderings", samples)
    result = haze(subject(config, dataset, tmp_path / "cache"))
    assert result["haze_opacity"] == pytest.approx((0.2 + 0.4 + 0.3) / 5)
    assert result["haze"] == pytest.approx(255 * (0.2 + 0.4 + 0.3) / 5)  # from 0, which is the grey, to twice the opacity
    assert result["clear_share"] == 0.25 and result["n_objects"] == 5


def test_haze_is_of_objects_without_the_background_of_the_generator(cut_outs, tmp_path):
    """Of an empty field, whose pictures are of the grey alone."""
    config, dataset = cut_outs()
    with_plane = subject(override(config, ["data.background_model=plane"]), dataset, tmp_path / "cache", n=2)
    with_plane.generator.field = Radial(lambda distance: torch.full_like(distance, -1e4))
    assert haze(with_plane)["haze"] == pytest.approx(0, abs=1e-4)


def test_silhouettes_are_read_once(cut_outs, tmp_path, monkeypatch):
    config, dataset = cut_outs()
    of_two = subject(config, dataset, tmp_path / "cache", n=2)
    first = haze(of_two)
    assert first["haze"] > 0 and 0 < first["haze_opacity"] < 1  # of a field that nobody has trained
    monkeypatch.setattr(type(dataset), "opacity", lambda *_: pytest.fail("read again"))
    assert haze(of_two) == first


@pytest.mark.parametrize(
    ("mode", "reason"),
    [("RGB", "2.png has no transparency"), ("RGBA", "silhouettes leave no pixel free")],
)
def test_haze_is_not_measured_without_a_pixel_that_is_known_to_be_free(cut_outs, tmp_path, caplog, mode, reason):
    config, dataset = cut_outs(Image.new(mode, (16, 16), (255,) * len(mode)))
    result = haze(subject(config, dataset, tmp_path / "cache"))
    assert result["haze"] is result["haze_opacity"] is None
    assert reason in result["unavailable"] and reason in caplog.text
