"""Pictures of a rendering: each kind shows what it says."""

from graf.commands.jobs import STAGES
from graf.models.generator import Generator
from graf.pictures.outputs import as_uint8, picture, write_gif, write_image

import pytest
import torch
from PIL import Image, ImageSequence


@pytest.fixture
def rendering(refine, labels):
    generator = Generator(refine()).eval()
    latents = generator.sample_latents(4, torch.Generator().manual_seed(0))
    return generator.render(latents, labels.pose_c2w)


def test_what_was_refined_and_what_the_field_rendered_are_told_apart(rendering):
    refined, field = (picture(rendering, kind, 2.6, 4.6) for kind in ("rgb", "nerf"))
    assert torch.equal(refined, as_uint8(rendering.images))
    assert torch.equal(field, as_uint8(rendering.low_images).repeat_interleave(2, -1).repeat_interleave(2, -2))
    assert not torch.equal(refined, field)


def test_stages_name_the_pictures_of_their_names():
    assert "rgb" in STAGES["refined"] and "nerf" not in STAGES["refined"]
    assert "nerf" in STAGES["nerf"] and "rgb" not in STAGES["nerf"]
    assert set(STAGES["both"]) == {*STAGES["refined"], *STAGES["nerf"]}


@pytest.mark.parametrize("values", [(0, 90, 200), (90, 90, 90), (90,)], ids=("three", "equal", "one"))
def test_a_gif_of_files_shows_the_last_picture_longest(tmp_path, values):
    """Equal pictures, such as those of a model that renders nothing, and all but one of another size are included."""
    write_image(tmp_path / "0.png", torch.zeros(3, 8, 8, dtype=torch.uint8))
    for i, value in enumerate(values, start=1):
        write_image(tmp_path / f"{i}.png", torch.full((3, 16, 16), value, dtype=torch.uint8))
    path = write_gif(tmp_path / "progress.gif", sorted(tmp_path.glob("*.png")))
    with Image.open(path) as gif:
        shown = [(frame.convert("RGB").getpixel((0, 0))[0], frame.info["duration"]) for frame in ImageSequence.Iterator(gif)]
    assert [value for value, _ in shown] == sorted(set(values))
    assert sum(duration for _, duration in shown) == 400 * (len(values) - 1) + 2000
