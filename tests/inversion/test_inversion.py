"""Finding photographs in a generator: its own pictures come back, known cameras stay, others are found."""

import argparse
import dataclasses
import functools
import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace

from graf import inversion as module
from graf.camera import azimuth_and_v, poses_at
from graf.checkpoints.latents_file import load_latents
from graf.commands import eval as command
from graf.commands.eval import Evaluation
from graf.errors import GrafError
from graf.inversion import camera_search, invert, loss, most_renderings, results
from graf.inversion.camera_search import finalists, with_other_cameras
from graf.inversion.loss import Hypotheses, InversionSettings, inversion_loss, keep_in_range, pooling
from graf.inversion.results import similarity, write_inversion
from graf.metrics.extractors import EFFICIENTNET, EfficientNetLite0
from graf.metrics.results import ResultFile
from graf.models import perception
from graf.models.generator import Generator
from graf.models.perception import feature_network, features_of

import imageio.v2 as imageio
import pytest
import torch
from PIL import Image
from torch import nn

QUICK = InversionSettings(azimuths=12, heights=2, search_size=8, search_steps=10, fit_size=16, fit_steps=15)
RADIUS = 3.6


network = functools.cache(feature_network)


@pytest.fixture(autouse=True)
def quick_features(monkeypatch):
    """Features of small pictures, by a network that is read once."""
    monkeypatch.setattr(perception, "SIZE", 32)
    monkeypatch.setattr(module, "feature_network", network)


class TwoBalls(nn.Module):
    """In place of a field: a ball on either side of the origin along x, whose sizes (shape code) and colours (appearance code)
    are those of the latents (B, 8). The front one is reddish, the one behind bluish and smaller."""

    def styles(self, latents):
        return latents

    def forward(self, points, view_directions, latents):
        centres = torch.tensor([[0.5, 0.0, 0.0], [-0.5, 0.0, 0.1]])
        radii = torch.tensor([0.6, 0.45]) * (1 + 0.3 * latents[:, :2].tanh())  # (B, 2)
        distance = (points[..., None, :] - centres).norm(dim=-1)  # (B, R, S, 2)
        inside = 1 - distance / radii[:, None, None]
        tint = latents[:, None, None, 4:7]
        colours = torch.tensor([[1.0, -2.0, -2.0], [-2.0, -1.0, 2.0]])
        colour = (inside * 20).softmax(-1) @ colours + tint
        return 12 * inside.amax(-1), colour


class Nothing(TwoBalls):
    """In place of a field: empty space."""

    def forward(self, points, view_directions, latents):
        density, colour = super().forward(points, view_directions, latents)
        return density - 1e6, colour


def with_balls(config, n_classes=1) -> Generator:
    """A generator of two balls, refined by untrained networks where the config refines."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        generator = Generator(config, n_classes)
    generator.field = TwoBalls()
    return generator.eval().requires_grad_(False)


@pytest.fixture
def generator(refine):
    return with_balls(refine())


def latents_of(generator, seed=5):
    return 0.7 * generator.sample_latents(1, torch.Generator().manual_seed(seed))


def cameras(*azimuths_deg, v=0.3):
    return poses_at(torch.tensor(azimuths_deg), torch.full((len(azimuths_deg),), v), RADIUS)


def photograph(generator, latents, poses, class_index=0):
    n = len(poses)
    return generator.render(latents.expand(n, -1), poses, class_index=torch.full((n,), class_index)).images


def angle_between(a, b):
    return ((a - b + 180) % 360 - 180).abs()


def losses_from(generator, photographs, poses, latents, settings=QUICK):
    """(H,) losses of latents (H, Z) with known cameras, as the last stage of `invert` counts them."""
    to = inversion_loss(generator, photographs, poses, settings, settings.fit_size, network())
    azimuth_deg, v = (x.expand(len(latents), -1) for x in azimuth_and_v(poses))
    return to.evaluate(Hypotheses(latents, torch.zeros(len(latents), dtype=torch.long), azimuth_deg, v))


def test_a_known_camera_is_kept_and_the_latents_come_to_draw_the_photograph(generator):
    poses, latents = cameras(30.0), latents_of(generator)
    photographs = photograph(generator, latents, poses)
    found = invert(generator, photographs, poses, QUICK)
    assert torch.equal(found.pose_c2w, poses)
    torch.testing.assert_close(found.azimuth_deg, torch.tensor([30.0]), atol=1e-3, rtol=0)
    torch.testing.assert_close(found.v, torch.tensor([0.3]))
    before, after = losses_from(generator, photographs, poses, torch.cat([torch.zeros_like(latents), found.latents])).tolist()
    assert found.loss == pytest.approx(after, rel=1e-5)
    assert after < 0.3 * before
    assert found.psnr[0] > 20 > similarity(photographs[0], photograph(generator, torch.zeros_like(latents), poses)[0])[0]
    assert torch.equal(found.images, photograph(generator, found.latents, poses))


@pytest.mark.parametrize("azimuth_deg", [75.0, 255.0])
def test_an_unknown_camera_is_found_on_the_side_that_it_stands(generator, azimuth_deg):
    poses = cameras(azimuth_deg, v=0.35)
    found = invert(generator, photograph(generator, latents_of(generator), poses), settings=QUICK)
    assert angle_between(found.azimuth_deg, azimuth_deg).item() < 8
    assert found.psnr[0] > 22
    torch.testing.assert_close(found.pose_c2w, poses_at(found.azimuth_deg, found.v, RADIUS))


def test_several_photographs_share_the_object_and_have_a_camera_each(generator):
    poses = cameras(40.0, 170.0)
    photographs = photograph(generator, latents_of(generator), poses)
    found = invert(generator, photographs, settings=QUICK)
    assert found.latents.shape == (1, 8)
    assert (angle_between(found.azimuth_deg, torch.tensor([40.0, 170.0])) < 10).all()
    assert torch.equal(found.images, photograph(generator, found.latents, found.pose_c2w))
    assert len(found.psnr) == len(found.ssim) == 2
    assert min(found.psnr) > 22


def test_the_loss_of_several_photographs_is_the_mean_of_theirs(generator, monkeypatch):
    poses, latents = cameras(10.0, 100.0, 250.0), generator.sample_latents(2, torch.Generator().manual_seed(1))
    photographs = photograph(generator, latents_of(generator), poses)
    alone = [losses_from(generator, photographs[n : n + 1], poses[n : n + 1], latents) for n in range(3)]
    torch.testing.assert_close(losses_from(generator, photographs, poses, latents), torch.stack(alone).mean(0))
    together = losses_from(generator, photographs, poses, latents)
    monkeypatch.setattr(loss, "RAYS_AT_ONCE", 64)  # a picture at a time
    torch.testing.assert_close(losses_from(generator, photographs, poses, latents), together)


def test_the_loss_is_pixels_plus_features_plus_prior(generator):
    poses, latents = cameras(10.0), latents_of(generator)
    black = torch.full((1, 3, 16, 16), -1.0)
    parts = [
        losses_from(generator, black, poses, latents, dataclasses.replace(QUICK, feature_weight=a, latent_weight=b)).item()
        for a, b in ((0, 0), (1, 0), (0, 1), (2, 3))
    ]
    pixels, features, prior = parts[0], parts[1] - parts[0], parts[2] - parts[0]
    image = photograph(generator, latents, poses)
    assert pixels == pytest.approx((image + 1).square().mean().item(), rel=1e-4)
    assert prior == pytest.approx(latents.square().mean().item(), rel=1e-4)
    a, b = (features_of(network(), x) for x in (image, black))
    cosines = [(x * y).sum(1).mean().item() for x, y in zip(a, b, strict=True)]
    assert features == pytest.approx(sum(2 - 2 * cosine for cosine in cosines) / 3, rel=1e-3)  # |a - b|^2 of unit vectors
    assert parts[3] == pytest.approx(pixels + 2 * features + 3 * prior, rel=1e-4)


def test_an_object_that_is_drawn_right_has_no_loss_but_the_priors(generator):
    poses, latents = cameras(200.0), latents_of(generator)
    loss = losses_from(generator, photograph(generator, latents, poses), poses, latents)
    assert loss.item() == pytest.approx(QUICK.latent_weight * latents.square().mean().item(), rel=1e-3)


def test_the_same_seed_gives_the_same_answer(generator):
    photographs = photograph(generator, latents_of(generator), cameras(120.0))
    settings = [dataclasses.replace(QUICK, search_steps=3, fit_steps=3, seed=seed) for seed in (4, 4, 5)]
    one, same, other = (invert(generator, photographs, settings=s) for s in settings)
    assert torch.equal(one.latents, same.latents) and torch.equal(one.pose_c2w, same.pose_c2w) and one.loss == same.loss
    assert not torch.equal(one.latents, other.latents)


def test_the_generator_is_left_as_it_was(refine):
    generator = with_balls(refine()).train().requires_grad_()
    before = {name: value.clone() for name, value in generator.state_dict().items()}
    state = torch.get_rng_state()
    poses = cameras(120.0)
    invert(generator, torch.zeros(1, 3, 16, 16), poses, dataclasses.replace(QUICK, fit_steps=2))
    feature_network()
    assert all(parameter.grad is None for parameter in generator.parameters())
    assert all(torch.equal(value, before[name]) for name, value in generator.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("posed", [True, False])
def test_the_class_is_found_too(refine, posed):
    generator = with_balls(refine(), n_classes=3)
    with torch.no_grad():
        generator.class_embedding.weight.zero_()
        generator.class_embedding.weight[:, 4:7] = torch.tensor([[4.0, -4, -4], [-4, 4, -4], [-4, -4, 4]])
    poses, latents = cameras(300.0), 0.1 * latents_of(generator)
    found = invert(generator, photograph(generator, latents, poses, 2), poses if posed else None, QUICK)
    assert found.class_index.tolist() == [2]
    assert torch.equal(found.images, photograph(generator, found.latents, found.pose_c2w, 2))


def test_a_model_without_refinement_is_searched_too(smoke):
    generator = with_balls(smoke("nerf.samples_per_ray=16"))
    photographs = photograph(generator, latents_of(generator), cameras(160.0))
    found = invert(generator, photographs, settings=QUICK)
    assert angle_between(found.azimuth_deg, 160.0).item() < 8


def test_a_model_that_draws_nothing_finite_is_told(generator):
    generator.refinement.backbone.last.weight.data.fill_(math.nan)
    with pytest.raises(GrafError, match="renders non-finite images"):
        invert(generator, torch.zeros(1, 3, 16, 16), settings=dataclasses.replace(QUICK, search_steps=1, fit_steps=1))


def test_wrong_shapes_are_our_own_mistake(generator):
    for shape, poses in (((1, 3, 8, 8), None), ((3, 16, 16), None), ((2, 3, 16, 16), cameras(0.0))):
        with pytest.raises(ValueError, match=r"expected \(N, 3, 16, 16\)"):
            invert(generator, torch.zeros(shape), poses)


def hypotheses(azimuths_deg, classes=None):
    n = len(azimuths_deg)
    return Hypotheses(
        torch.zeros(n, 8),
        torch.tensor(classes or [0] * n),
        torch.tensor(azimuths_deg),
        torch.full((n, len(azimuths_deg[0])), 0.3),
    )


def test_finalists_are_the_best_of_each_side_or_class():
    h = hypotheses([[10.0], [350.0], [100.0], [20.0], [220.0]])
    losses = torch.tensor([0.2, 0.1, 0.4, 0.15, 0.3])
    assert finalists(h, losses) == [1, 4]  # 10 and 20 degrees stand beside 350
    assert finalists(hypotheses([[10.0], [350.0], [15.0]], [0, 0, 1]), torch.tensor([0.2, 0.1, 0.3])) == [1, 2]
    assert finalists(hypotheses([[10.0, 90.0], [12.0, 270.0]]), torch.tensor([0.2, 0.1])) == [1, 0]  # the second camera differs
    assert finalists(hypotheses([[10.0], [12.0]]), torch.tensor([math.nan, math.nan])) != []


def test_a_fitted_camera_is_kept_beside_the_best_of_the_grid_for_other_photographs(monkeypatch):
    losses = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])  # (O, A, V, N): the first photograph is seen from behind
    grid = losses, torch.tensor([0.0, 180.0]), torch.tensor([0.4])
    monkeypatch.setattr(camera_search, "on_camera_grid", lambda *_: grid)
    h = with_other_cameras(SimpleNamespace(targets=[0, 0]), hypotheses([[77.0]]), 1)
    assert torch.equal(h.azimuth_deg, torch.tensor([[180.0, 77.0]])) and torch.equal(h.v, torch.tensor([[0.4, 0.3]]))


def test_hypotheses_stay_in_the_configs_range(refine):
    def kept(config, azimuth_deg, v, latent):
        h = dataclasses.replace(hypotheses([[azimuth_deg]]), v=torch.tensor([[v]]), latents=torch.full((1, 8), latent))
        keep_in_range(h, config)
        return h.azimuth_deg.item(), pytest.approx(h.v.item()), h.latents[0, 0].item()

    assert kept(refine(), -50.0, 0.6, 3.0) == (-50.0, 0.47, 3.0)
    assert kept(refine("data.umin=0.25", "data.umax=0.5"), 200.0, 0.1, 3.0) == (180.0, 0.21, 3.0)
    front = refine("data.umin=-0.1", "data.umax=0.1")
    assert [kept(front, azimuth_deg, 0.3, 0.0)[0] for azimuth_deg in (350.0, 530.0, -170.0, 50.0)] == [-10.0, 36.0, -36.0, 36.0]
    assert kept(refine("data.vmin=0", "z_dist.type=uniform"), 400.0, 0.0, -3.0) == (400.0, 1e-3, -1.0)


def test_pooling_comes_near_the_size_and_suits_the_refinement():
    assert pooling(64, 32, 2) == 2
    assert pooling(64, 64, 2) == 1
    assert pooling(256, 32, 4) == 8
    assert pooling(16, 32, 2) == 1  # never enlarged
    assert pooling(74, 32, 2) == 1  # 37 would leave 2 pixels
    assert pooling(100, 32, 1) == 4  # 25 pixels; 20 and 50 are further off


def test_pooled_pictures_are_of_the_same_frame(smoke):
    """A small picture is that of the large one's blocks, without a shift: what is drawn through the pooled grid agrees."""
    generator = with_balls(smoke("nerf.samples_per_ray=64"))
    poses = cameras(30.0)
    large = photograph(generator, torch.zeros(1, 8), poses)
    to = inversion_loss(generator, large, poses, QUICK, 8, None)
    small = to.render(torch.zeros(1, 8), torch.zeros(1, dtype=torch.long), poses)
    difference = (small - to.targets).square().mean()
    moved = [(small.roll(shift, dim) - to.targets).square().mean() for shift in (-1, 1) for dim in (2, 3)]
    assert difference < 0.15 * min(moved)


def test_features_are_those_of_the_metrics_extractor_and_differentiable(whole_extractors, monkeypatch):
    monkeypatch.setattr(perception, "SIZE", EfficientNetLite0.RESOLUTION)
    photographs = torch.randint(0, 256, (1, 3, 20, 20), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    extractor = EfficientNetLite0(EFFICIENTNET, [EfficientNetLite0.LAYER], perception.EFFICIENTNET_WEIGHTS).eval()
    seen = []
    extractor.network._blocks[10].register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        extractor(photographs)
    images = (photographs / 127.5 - 1).requires_grad_()
    features = features_of(network(), images)
    assert [x.shape[1:] for x in features] == [(24, 56, 56), (40, 28, 28), (112, 14, 14)]
    torch.testing.assert_close(features[2], nn.functional.normalize(seen[0], dim=1), atol=1e-4, rtol=1e-3)
    for x in features:
        torch.testing.assert_close(x.square().sum(1), torch.ones_like(x[:, 0]))
    features[2][0, 0, 0, 0].backward()
    assert images.grad.abs().sum() > 0


def test_psnr_and_ssim_are_those_worked_out_by_hand():
    def flat(level):
        return torch.full((3, 12, 12), level / 127.5 - 1)

    psnr, ssim = similarity(flat(100), flat(110))
    assert psnr == pytest.approx(10 * math.log10(255**2 / 10**2))  # 28.13 dB
    c = (0.01 * 255) ** 2
    assert ssim == pytest.approx((2 * 100 * 110 + c) / (100**2 + 110**2 + c))  # without variance only the means count
    half = flat(100)
    half[:, :, 6:] = flat(120)[:, :, 6:]
    assert similarity(flat(100), half)[0] == pytest.approx(10 * math.log10(255**2 / 200))  # half the pixels are off by 20
    assert similarity(flat(100), flat(100)) == (math.inf, 1.0)
    assert similarity(flat(255), flat(300)) == (math.inf, 1.0)  # beyond white is white


@pytest.mark.parametrize("posed", [True, False])
def test_the_bar_knows_how_far_it_is(generator, posed):
    class Bar:
        n, total, totals = 0, None, None

        def update(self, n):
            self.n += n
            self.totals = {*(self.totals or ()), self.total}
            assert self.n <= self.total

    poses, bar = cameras(20.0, 110.0), Bar()
    photographs = photograph(generator, latents_of(generator), poses)
    settings = dataclasses.replace(QUICK, search_steps=2, fit_steps=2)
    known = poses if posed else None
    invert(generator, photographs, known, settings, bar)
    assert bar.n == bar.total
    assert max(bar.totals) <= most_renderings(generator, photographs, known, settings)
    assert None not in bar.totals


def test_what_is_written(tmp_path, generator):
    poses = cameras(20.0, 110.0)
    photographs = photograph(generator, latents_of(generator), poses)
    found = invert(generator, photographs, poses, dataclasses.replace(QUICK, fit_steps=2))
    found = dataclasses.replace(found, psnr=(math.inf, found.psnr[1]))
    files = write_inversion(generator, found, photographs, tmp_path / "out", ["a.png", "b.png"], (Path("model.pt"), 7))
    pictures = {"fit.png", "sweep.png", "rotation.mp4", "rotation.gif"}
    assert {file.name for file in files} == {"latents.json", *pictures, "mesh.ply", "mesh.obj", "mesh.glb", "splats.ply"}
    assert sorted(files) == sorted((tmp_path / "out").iterdir())
    sheet = imageio.imread(tmp_path / "out" / "fit.png")
    assert sheet.shape == (2 * 18 + 2, 2 * 18 + 2, 3)  # two rows of a photograph and its fit, 2 pixels between
    shown = torch.from_numpy(sheet[20:36, 2:18]).movedim(-1, 0) / 127.5 - 1
    torch.testing.assert_close(shown, photographs[1].clamp(-1, 1), atol=1 / 127, rtol=0)
    told = json.loads((tmp_path / "out" / "latents.json").read_text())
    assert load_latents(tmp_path / "out" / "latents.json")[0].equal(found.latents)
    assert (told["model"]["checkpoint"], told["model"]["step"], told["class_index"]) == ("model.pt", 7, 0)
    assert [row["photograph"] for row in told["photographs"]] == ["a.png", "b.png"]
    assert [row["azimuth_deg"] for row in told["photographs"]] == pytest.approx([20.0, 110.0], abs=1e-3)
    assert [row["psnr_db"] for row in told["photographs"]] == [None, found.psnr[1]]
    assert told["photographs"][0]["elevation_deg"] == pytest.approx(math.degrees(math.asin(0.4)), abs=1e-3)
    assert told["loss"] == found.loss


def test_an_object_without_a_surface_leaves_no_mesh_of_an_earlier_one(tmp_path, generator, caplog, monkeypatch):
    def write():
        return write_inversion(generator, found, photographs, tmp_path, ["a.png"], (Path("model.pt"), 7))

    monkeypatch.setattr(results, "VIDEO_FRAMES", 2)
    poses = cameras(20.0)
    photographs = photograph(generator, latents_of(generator), poses)
    found = invert(generator, photographs, poses, dataclasses.replace(QUICK, fit_steps=0))
    write()
    generator.field = Nothing()
    left = {"latents.json", "fit.png", "sweep.png", "rotation.mp4", "rotation.gif"}
    assert {file.name for file in write()} == {file.name for file in tmp_path.iterdir()} == left
    assert f"{tmp_path}: neither mesh nor splats of this object; mesh: this object is nowhere half opaque" in caplog.text


def test_files_are_found_and_reported_by_name(tmp_path, refine, monkeypatch, caplog, capsys):
    monkeypatch.setattr(command, "InversionSettings", lambda seed: dataclasses.replace(QUICK, fit_steps=1, seed=seed))
    monkeypatch.setattr(results, "VIDEO_FRAMES", 2)
    path = tmp_path / "0.5_0090.png"
    Image.new("RGB", (32, 24), (200, 100, 50)).save(path)
    flags = argparse.Namespace(invert=[str(path)], seed=3, estimator=None, metrics=None, plain=True, tune=0)
    generator, out = with_balls(refine("data.v=[0.45]")), tmp_path / "out"
    file = ResultFile(out, tmp_path / "model.pt", "0a", 5, True, generator.config)
    evaluation = Evaluation(flags, generator, 0, tmp_path, out, file)
    with caplog.at_level(logging.INFO, logger="graf"):
        files = evaluation.invert()
    kept = tmp_path / "out" / "inversion" / "0.5_0090" / "latents.json"
    told = json.loads(kept.read_text())
    assert len(files) == 9
    assert f"other jobs, and view.py, show this object with --latents {kept}" in caplog.text
    assert told["photographs"][0]["photograph"] == str(path)
    assert f"{path}: azimuth 90 degrees" in caplog.text
    bar = capsys.readouterr().err
    assert "inversion: 0rendering" not in bar and "0/1" in bar and "1/1" in bar


def test_each_photograph_has_a_folder_of_its_own(tmp_path, caplog):
    """The first one of a name has it; another of that name, from another folder or after it was changed, has a number."""
    red, green = torch.zeros(1, 3, 16, 16), torch.ones(1, 3, 16, 16)

    def folder(photographs, *names):
        found = results.inversion_folder(tmp_path, photographs, names)
        if not found.exists():
            found.mkdir()
            rows = [{"pixels_sha256": digest} for digest in results.digests(photographs)]
            (found / "latents.json").write_text(json.dumps({"photographs": rows}))
        return found.name

    with caplog.at_level(logging.INFO, logger="graf"):
        assert folder(red, "a/car.png") == "car"
        assert folder(green, "b/car.png") == "car_2"
        assert folder(green, "b/van.png") == "van"
        assert folder(torch.cat([red, green]), "a/car.png", "b/car.png") == "car_and_1_more"
        assert caplog.text == ""
        long = folder(red, f"{'汽' * 200}.png", "b/car.png")
        assert len(long.encode()) <= 255 and folder(green, f"{'汽' * 200}.png", "b/car.png") == f"{long}_2"
        assert folder(red, "a/car.png") == "car"
    assert f"{tmp_path / 'car'}: holds results of the same images, which are replaced" in caplog.text
    (tmp_path / "mine").write_text("a file of mine")
    (tmp_path / "mine_2").mkdir()
    (tmp_path / "mine_3").mkdir()
    (tmp_path / "mine_3" / "latents.json").write_text('{"photographs": 7}')
    assert folder(red, "mine.png") == "mine_4"


def test_a_fit_that_failed_is_told_with_what_may_be_done(generator):
    """Before black where the model draws white, and an object that it does not know."""
    images = torch.ones(3, 3, 16, 16)
    black, strange = -images[0], images[1].clone()
    strange[:, 2:14, 2:14] = -1
    pose = cameras(20.0)[0]
    found = results.Inversion(
        torch.zeros(1, 8),
        torch.zeros(1),
        pose.expand(3, -1, -1),
        torch.zeros(3),
        torch.zeros(3),
        images,
        (0.0, 3.5, 12.0),
        (0.0,) * 3,
        1.0,
    )
    first, second = results.failures(found, torch.stack([black, strange, images[2]]), ["black.png", "strange.png", "fair.png"])
    assert first.startswith("black.png: not found, PSNR 0.0 dB (a good fit has about 20)")
    assert "its border is about (0, 0, 0), where the model renders (255, 255, 255): cut the object out" in first
    assert second.startswith("strange.png: not found, PSNR 3.5 dB") and "border" not in second
    assert "one of the objects that the model was trained on" in second
