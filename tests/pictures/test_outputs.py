"""Pictures of a rendering: each kind shows what it says."""

import dataclasses

from graf.commands.jobs import STAGES
from graf.models.generator import Generator
from graf.pictures.outputs import as_uint8, picture, video_width, write_gif, write_image, write_video

import imageio.v2 as imageio
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


def test_depth_is_bright_where_it_is_near_and_black_where_nothing_is(rendering):
    depth = torch.tensor([2.6, 3.6, 4.6, 2.6])[:, None, None, None].expand_as(rendering.opacity)
    opacity = torch.tensor([1.0, 1.0, 1.0, 0.0])[:, None, None, None].expand_as(rendering.opacity)
    shown = picture(dataclasses.replace(rendering, depth=depth, opacity=opacity), "depth", 2.6, 4.6)
    near, middle, far, nothing = shown.sum(dim=(1, 2, 3)).tolist()
    assert near > middle > far > nothing == 0


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


def test_a_video_that_the_encoder_refuses_replaces_no_earlier_one(tmp_path, monkeypatch):
    """With few frames, ffmpeg ends after the last was given to it, and leaves an empty file without an error."""
    file = write_video(tmp_path / "turn.mp4", torch.zeros(2, 3, 16, 16, dtype=torch.uint8))
    before = file.read_bytes()
    monkeypatch.setattr(imageio, "mimwrite", lambda path, *_, **options: path.write_bytes(b""))
    with pytest.raises(OSError, match="no video was made of 3 frames of 16 x 8 pixels") as caught:
        write_video(file, torch.zeros(3, 3, 8, 16, dtype=torch.uint8))
    assert caught.value.filename == str(file) and file.read_bytes() == before


@pytest.mark.parametrize(("side", "n"), [(16, 3), (100, 2), (300, 2)])
def test_the_width_of_a_video_is_known_beforehand(tmp_path, side, n):
    file = write_video(tmp_path / "turn.mp4", torch.zeros(2, 3, side, n * side, dtype=torch.uint8))
    assert imageio.get_reader(file).get_meta_data()["size"][0] == video_width(side, n)
