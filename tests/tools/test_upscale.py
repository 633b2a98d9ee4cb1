"""The tool that enlarges a photograph: exact where it projects, and plain about photographs it cannot take."""

from graf.errors import CheckpointError, GrafError
from graf.models.rrdb import RRDBNet
from upscale import load_network, main, read_photo, upscale

import pytest
import torch
from PIL import Image


def test_the_projected_picture_downsamples_to_the_photograph_and_the_proposal_does_not():
    torch.manual_seed(0)
    photo = torch.rand(1, 3, 6, 9) * 2 - 1
    pictures, before, after = upscale(RRDBNet(4, 1, 4, 4).eval(), photo, 4)
    assert pictures.shape == (3, 3, 24, 36)
    assert torch.equal(pictures[0, :, ::4, ::4], photo[0])
    assert before > 0.1
    assert after < 1e-5


def test_a_photograph_is_read_and_shrunk(tmp_path):
    Image.new("RGB", (12, 8), (255, 0, 51)).save(tmp_path / "photo.png")
    photo = read_photo(str(tmp_path / "photo.png"), shrink=2, scale=4)
    assert photo.shape == (1, 3, 4, 6)
    torch.testing.assert_close(photo[0, :, 1, 1], torch.tensor([1.0, -1.0, -0.6]))


@pytest.mark.parametrize(
    ("shrink", "message"),
    [(0, "--shrink 0: expected"), (-2, "--shrink -2: expected"), (20, "--shrink 20: nothing is left of 12 x 8 pixels")],
)
def test_a_photograph_is_not_shrunk_to_nothing(tmp_path, shrink, message):
    Image.new("RGB", (12, 8)).save(tmp_path / "photo.png")
    with pytest.raises(GrafError, match=message):
        read_photo(str(tmp_path / "photo.png"), shrink, 4)


def test_a_photograph_that_is_none_or_too_large_is_refused(tmp_path):
    """By the pixels of the enlarged one: 384 x 384 of the photograph at scale 4, 768 x 768 at scale 2."""
    (tmp_path / "text.png").write_text("no photograph")
    with pytest.raises(GrafError, match=r"text\.png: cannot be read"):
        read_photo(str(tmp_path / "text.png"), 1, 4)
    Image.new("RGB", (386, 384)).save(tmp_path / "wide.png")
    with pytest.raises(GrafError, match="386 x 384 pixels, and at most 147,456 can be .*--shrink"):
        read_photo(str(tmp_path / "wide.png"), 1, 4)
    assert read_photo(str(tmp_path / "wide.png"), 2, 4).shape == (1, 3, 192, 193)
    assert read_photo(str(tmp_path / "wide.png"), 1, 2).shape == (1, 3, 384, 386)


def test_the_network_has_the_size_of_its_weights(tmp_path):
    other = RRDBNet(4, 2, 8, 4)
    torch.save(other.state_dict(), tmp_path / "small.pth")
    network = load_network(str(tmp_path / "small.pth"), 4)
    assert torch.equal(network.conv_last.weight, other.conv_last.weight)
    assert (len(network.body), network.conv_first.out_channels) == (2, 8)


def test_weights_of_another_scale_factor_are_told(tmp_path):
    torch.save(RRDBNet(2, 1, 8, 4).state_dict(), tmp_path / "x2.pth")
    with pytest.raises(CheckpointError, match=r"x2\.pth: weights of scale 2; give --scale 2"):
        load_network(str(tmp_path / "x2.pth"), 4)


def test_weights_of_another_network_are_told(tmp_path):
    torch.save({"conv_body.weight": torch.zeros(3), "conv_first.weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=r"other\.pth: not an RRDBNet"):
        load_network(str(tmp_path / "other.pth"), 4)


def test_an_output_that_is_no_png_is_refused_before_anything_is_read(monkeypatch):
    monkeypatch.setattr("sys.argv", ["upscale.py", "nowhere.pth", "nowhere.png", "results/upscaled"])
    with pytest.raises(GrafError, match=r"results/upscaled: expected the name of a PNG file, such as results/upscaled\.png"):
        main()


def test_the_photograph_is_not_replaced(tmp_path, monkeypatch):
    photo = tmp_path / "photo.png"
    Image.new("RGB", (4, 4)).save(photo)
    before = photo.read_bytes()
    torch.save(RRDBNet(4, 1, 8, 4).state_dict(), tmp_path / "small.pth")
    monkeypatch.setattr(
        "sys.argv", ["upscale.py", str(tmp_path / "small.pth"), str(photo), f"{tmp_path}/../{tmp_path.name}/photo.png"]
    )
    with pytest.raises(GrafError, match=r"photo\.png: the photograph itself, which would be replaced"):
        main()
    assert photo.read_bytes() == before


def test_a_picture_that_is_there_is_not_replaced(tmp_path, monkeypatch):
    mine = tmp_path / "mine.png"
    mine.write_text("mine")
    monkeypatch.setattr("sys.argv", ["upscale.py", "nowhere.pth", "nowhere.png", str(mine)])
    with pytest.raises(GrafError, match=r"mine\.png: exists already; move it away, or name another file"):
        main()
    assert mine.read_text() == "mine"
