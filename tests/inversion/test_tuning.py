"""Pivotal tuning: a copy renders the photograph better, everything that was given stays."""

import dataclasses
import functools

from graf.camera import azimuth_and_v, poses_at, sample_poses
from graf.errors import GrafError
from graf.inversion import tuning
from graf.inversion.results import Inversion, as_rendered, similarity
from graf.inversion.tuning import TuningSettings, tune
from graf.models import perception
from graf.models.generator import Generator, weights_hash
from graf.models.perception import feature_network

import pytest
import torch

network = functools.cache(feature_network)


@pytest.fixture(autouse=True)
def quick_features(monkeypatch):
    monkeypatch.setattr(perception, "SIZE", 32)
    monkeypatch.setattr(tuning, "feature_network", network)


@pytest.fixture
def generator(refine) -> Generator:
    torch.manual_seed(0)
    return Generator(refine()).eval().requires_grad_(False)


@pytest.fixture
def photographs(generator):
    """Two views of another network's object."""
    torch.manual_seed(1)
    other = Generator(generator.config).eval()
    return other.render(torch.ones(2, 8), cameras()).images.clone()


def cameras():
    return poses_at(torch.tensor([20.0, 110.0]), torch.full((2,), 0.3), 3.6)


def found_in(generator, photographs) -> Inversion:
    """The mean object as what was found."""
    n = len(photographs)
    found = Inversion(torch.zeros(1, 8), torch.zeros(1, dtype=torch.long), cameras()[:n], *azimuth_and_v(cameras()[:n]))
    return as_rendered(generator, found, photographs, 1.0)


def test_the_copy_renders_the_photographs_better_and_the_model_stays(generator, photographs):
    found, before = found_in(generator, photographs), weights_hash(generator)
    tuned, seen = tune(generator, found, photographs, TuningSettings(15, rate=3e-3))
    assert min(after - psnr for after, psnr in zip(seen.psnr, found.psnr, strict=True)) > 1
    assert weights_hash(generator) == before != weights_hash(tuned)
    assert torch.equal(seen.latents, found.latents) and torch.equal(seen.pose_c2w, found.pose_c2w)
    assert torch.equal(seen.images, tuned.render(found.latents.expand(2, -1), found.pose_c2w).images)
    assert not any(p.requires_grad for p in (*tuned.parameters(), *generator.parameters()))
    assert 0 < seen.loss < 1


@pytest.mark.parametrize("keep_weight", [0.0, 0.1])
def test_the_same_seed_gives_the_same_weights(generator, photographs, monkeypatch, keep_weight):
    found, hashes, elsewhere = found_in(generator, photographs[:1]), [], []
    monkeypatch.setattr(tuning, "sample_poses", lambda *given: elsewhere.append(sample_poses(*given)) or elsewhere[-1])
    for seed in (0, 0, 1):
        tuned, _ = tune(generator, found, photographs[:1], TuningSettings(1, keep_weight=keep_weight, seed=seed))
        hashes.append(weights_hash(tuned))
    assert hashes[0] == hashes[1] != hashes[2]
    assert len(elsewhere) == (3 if keep_weight else 0)
    assert not elsewhere or torch.equal(*elsewhere[:2]) and not torch.equal(*elsewhere[1:])


def test_views_from_elsewhere_are_kept_by_their_weight(generator, photographs):
    found, behind = found_in(generator, photographs[:1]), poses_at(torch.tensor([200.0]), torch.tensor([0.3]), 3.6)
    before = generator.render(found.latents, behind).images[0]

    def similarity_behind(weight):
        tuned, _ = tune(generator, found, photographs[:1], TuningSettings(15, rate=3e-3, keep_weight=weight))
        return similarity(before, tuned.render(found.latents, behind).images[0])[0]

    much, little, none = map(similarity_behind, (3.0, 0.3, 0.0))
    assert much > little > none and much > none + 1


def test_memory_that_runs_out_is_answered_with_fewer_rays(generator, photographs, monkeypatch, caplog):
    """And the result is nearly the same, as the same gradients are computed in smaller pieces."""
    found, settings = found_in(generator, photographs[:1]), TuningSettings(2)
    whole, _ = tune(generator, found, photographs[:1], settings)
    given, work = [], tuning._tuned

    def small_memory(*args):
        given.append(args[4])
        if args[4] > 16:
            raise MemoryError("out of memory")
        return work(*args)

    class Bar:
        n = 0

        def update(self, n=1):
            self.n += n

    bar = Bar()
    monkeypatch.setattr(tuning, "RAYS_AT_ONCE", 64)
    monkeypatch.setattr(tuning, "FEWEST_RAYS", 16)
    monkeypatch.setattr(tuning, "_tuned", small_memory)
    pieces, _ = tune(generator, found, photographs[:1], settings, bar)
    assert given == [64, 32, 16] and bar.n == 2
    assert "tuning: out of memory" in caplog.text
    for a, b in zip(whole.parameters(), pieces.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=0)


def test_weights_that_run_away_are_said(generator, photographs):
    found = found_in(generator, photographs[:1])
    with pytest.raises(GrafError, match="--tune: the tuned model renders non-finite images; take fewer steps"):
        tune(generator, found, photographs[:1], dataclasses.replace(TuningSettings(3), rate=float("inf")))
