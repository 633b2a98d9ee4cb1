"""The sharpest frame of each interval of a video is taken; a damaged video is told or read as far as it goes."""

import errno
import os

from graf.photographs.sources import Source
from graf.photographs.videos import video_frames

import imageio.v2 as imageio
import numpy as np
import pytest
from PIL import Image, ImageFilter
from scenes import scene

FPS = 12
SIZE = (160, 128)


def write_video(file, frames):
    imageio.mimwrite(file, [np.asarray(frame) for frame in frames], fps=FPS, codec="libx264", quality=9, macro_block_size=2)


def frames_with_one_sharp(n_intervals: int) -> list[Image.Image]:
    """Half a second each, of which the fourth of six frames is not blurred; each interval has an object of its own."""
    frames = []
    for interval in range(n_intervals):
        sharp = scene(interval, size=SIZE)
        frames += [sharp if index == 3 else sharp.filter(ImageFilter.GaussianBlur(4)) for index in range(6)]
    return frames


def test_the_sharpest_frame_of_each_interval_is_taken(tmp_path):
    write_video(tmp_path / "clip.mp4", frames_with_one_sharp(3))
    found = video_frames(Source(tmp_path / "clip.mp4", "cars/clip.mp4"), 0.5, tmp_path)
    assert [source.place for source in found] == ["cars/clip_0001.png", "cars/clip_0002.png", "cars/clip_0003.png"]
    assert {source.video for source in found} == {"cars/clip.mp4"}
    for seed, source in enumerate(found):
        difference = np.asarray(Image.open(source.file), dtype=int) - np.asarray(scene(seed, size=SIZE), dtype=int)
        assert np.abs(difference).mean() < 8


def test_a_longer_interval_takes_fewer(tmp_path):
    write_video(tmp_path / "clip.mp4", frames_with_one_sharp(4))
    assert len(video_frames(Source(tmp_path / "clip.mp4", "clip.mp4"), 1.0, tmp_path)) == 2


def test_a_large_video_is_made_smaller(tmp_path):
    write_video(tmp_path / "high.mp4", [Image.new("RGB", (720, 1440), "white")] * 6)
    (found,) = video_frames(Source(tmp_path / "high.mp4", "high.mp4"), 0.5, tmp_path)
    assert Image.open(found.file).size == (640, 1280)


@pytest.mark.parametrize("content", [b"", b"no video", b"#EXTM3U\n#EXTINF:1,\nhttp://localhost/a.ts\n"])
def test_what_is_no_video_is_told(tmp_path, content):
    (tmp_path / "clip.mp4").write_bytes(content)
    with pytest.raises(ValueError, match="no frame of this video can be read"):
        video_frames(Source(tmp_path / "clip.mp4", "clip.mp4"), 0.5, tmp_path)


def test_a_video_that_was_cut_short_is_told_or_read_as_far_as_it_goes(tmp_path):
    """An mp4 has its index at the end, so that nothing is left; an avi is read until it breaks off."""
    write_video(tmp_path / "clip.mp4", frames_with_one_sharp(4))
    whole = (tmp_path / "clip.mp4").read_bytes()
    (tmp_path / "clip.mp4").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="no frame of this video can be read"):
        video_frames(Source(tmp_path / "clip.mp4", "clip.mp4"), 0.5, tmp_path)
    write_video(tmp_path / "clip.avi", frames_with_one_sharp(4))
    whole = (tmp_path / "clip.avi").read_bytes()
    (tmp_path / "clip.avi").write_bytes(whole[: len(whole) // 2])
    assert 1 <= len(video_frames(Source(tmp_path / "clip.avi", "clip.avi"), 0.5, tmp_path)) < 4


def test_a_full_disk_is_no_damaged_video(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_video(tmp_path / "clip.mp4", frames_with_one_sharp(1))
    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(OSError, match="No space left"):
        video_frames(Source(tmp_path / "clip.mp4", "clip.mp4"), 0.5, tmp_path)
