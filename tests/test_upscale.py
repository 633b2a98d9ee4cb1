"""The tool that enlarges a photograph: exact where it projects, and plain about photographs it cannot take."""

import pytest
import torch
from PIL import Image

from graf.errors import GrafError
from graf.models.rrdb import RRDBNet
from tools.upscale import read_photo, upscale


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
    photo = read_photo(str(tmp_path / "photo.png"), shrink=2)
    assert photo.shape == (1, 3, 4, 6)
    torch.testing.assert_close(photo[0, :, 1, 1], torch.tensor([1.0, -1.0, -0.6]))


def test_a_photograph_that_is_none_or_too_large_is_refused(tmp_path):
    (tmp_path / "text.png").write_text("no photograph")
    with pytest.raises(GrafError, match=r"text\.png: cannot be read"):
        read_photo(str(tmp_path / "text.png"), 1)
    Image.new("RGB", (2000, 8)).save(tmp_path / "wide.png")
    with pytest.raises(GrafError, match="2000 x 8 pixels"):
        read_photo(str(tmp_path / "wide.png"), 1)
