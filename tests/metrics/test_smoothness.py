"""Popping and checkerboards: hand-computed on planted ones."""

import dataclasses

from graf.camera import azimuth_and_v
from graf.data import build_dataset
from graf.metrics import consistency
from graf.metrics.consistency import nyquist_against_real, nyquist_energy, popping, rotation_smoothness, turn
from graf.models.generator import Generator

import pytest
import torch


def test_popping_is_the_largest_difference_over_the_median():
    even, jump, still = [1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 2.0, 9.0, 1.0], [0.0] * 5
    assert popping(torch.tensor([even, jump, still])).tolist() == [1.0, 4.5, 1.0]


def test_popping_of_a_frame_that_is_not_a_number_is_none():
    assert popping(torch.tensor([[1.0, float("nan"), 1.0], [float("nan")] * 3])).isnan().all()


def test_popping_of_a_still_that_jumps_once_is_large():
    assert popping(torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0]])).item() > 1e6


def test_a_turn_goes_from_end_to_end(smoke):
    data = dataclasses.replace(smoke().data, umin=0.25, umax=0.5)
    azimuth_deg, v = azimuth_and_v(turn(10.0, data))
    torch.testing.assert_close(azimuth_deg, torch.arange(90.0, 181.0, 10.0), atol=1e-3, rtol=0)
    assert torch.allclose(v, torch.full_like(v, (data.vmin + data.vmax) / 2), atol=1e-6)
    assert len(turn(1.0, smoke().data)) == 361


def test_of_a_single_azimuth_there_is_no_turn(smoke):
    for umax in (0.2, 0.202):  # 0.72 degrees
        found = rotation_smoothness(Generator(smoke("data.umin=0.2", f"data.umax={umax}")).eval(), n_objects=1, seed=0)
        unknown = dict.fromkeys(("frame_difference_median", "frame_difference_max", "popping"))
        assert found == {"turn_step_deg": 1.0} | unknown


def test_samples_and_photographs_are_told_apart(smoke, tmp_path, capsys):
    config = smoke(f"data.datadir={tmp_path}", "data.n_images=4")
    generator, dataset = Generator(config).eval(), build_dataset(config)
    found = nyquist_against_real(generator, dataset, 5, seed=0)  # of four photographs all
    photographs = torch.stack([dataset[i]["image"] for i in range(4)])
    assert found["nyquist_ppm_real"] == pytest.approx(nyquist_energy(photographs))
    assert found["nyquist_ppm_generated"] != found["nyquist_ppm_real"]
    assert "5/5" in capsys.readouterr().err  # images, on the progress bar
    others = [nyquist_against_real(generator, dataset, 5, *asked)["nyquist_ppm_generated"] for asked in ((1, 1.0), (0, 0.5))]
    assert len({found["nyquist_ppm_generated"], *others}) == 3  # by the seed and the truncation


def test_smoothness_of_a_refined_rotation_agrees_with_its_frames(refine, capsys, monkeypatch):
    monkeypatch.setattr(consistency, "FRAMES_AT_ONCE", 2)  # every second difference is that of two batches
    torch.manual_seed(0)
    generator = Generator(refine("data.umin=0", "data.umax=0.125")).eval()
    found = rotation_smoothness(generator, n_objects=2, seed=3)
    latents = generator.sample_latents(2, torch.Generator().manual_seed(3))
    poses = turn(1.0, generator.config.data)
    frames = torch.stack([generator.render(latent.expand(len(poses), -1), poses).images for latent in latents])
    steps = (frames[:, 1:] - frames[:, :-1]).abs().mean(dim=(2, 3, 4)) * 127.5
    assert len(poses) == 46
    assert "92/92" in capsys.readouterr().err  # images, on the progress bar
    assert found["frame_difference_max"] == pytest.approx(steps.max().item(), rel=1e-3)
    assert found["popping"] == pytest.approx(popping(steps).max().item(), rel=1e-3)


def test_nyquist_energy_of_waves_is_their_share_of_the_variance():
    x = torch.arange(16.0)
    checkers = ((-1) ** x)[:, None] * (-1) ** x  # (16, 16), variance 1
    wave = torch.cos(2 * torch.pi * x / 16).expand(16, 16)  # variance 1/2, far from Nyquist
    assert nyquist_energy(wave.expand(1, 3, 16, 16)) == pytest.approx(0, abs=1e-6)
    assert nyquist_energy((5 + checkers).expand(1, 3, 16, 16)) == pytest.approx(1e6)
    assert nyquist_energy((wave + 0.1 * checkers).expand(1, 3, 16, 16)) == pytest.approx(1e6 * 0.01 / 0.51, rel=1e-5)
    assert nyquist_energy((wave + 0.1 * (-1) ** x).expand(2, 3, 16, 16)) == pytest.approx(1e6 * 0.01 / 0.51, rel=1e-5)


def test_nyquist_energy_of_a_flat_image_is_0():
    assert nyquist_energy(torch.ones(1, 3, 8, 8)) == 0


def test_of_odd_sides_the_last_row_and_column_count_for_nothing():
    images = torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    assert nyquist_energy(images) == nyquist_energy(images[..., :8, :8]) > 0
