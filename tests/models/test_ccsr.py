"""CCSR: view codes that turn with the camera without a jump, a light backbone that cannot make a checkerboard, and both in the
generator and in training: exact at low resolution from every angle, and really learning."""

import dataclasses
import math

from graf.camera import Labels, poses_at
from graf.errors import CheckpointError, GrafError
from graf.models.ccsr import LightBackbone, Refinement, ViewCodes, conv3x3
from graf.models.generator import Generator, without_learning
from graf.models.rrdb import RRDBNet
from graf.rays import full_grid, low_resolution_grid
from graf.training import step as steps
from graf.training.inputs import generator_batch
from graf.training.learn import learn
from graf.training.losses import consistency_loss, consistency_weight
from graf.training.state import TrainState
from graf.training.step import generator_objective

import pytest
import torch
from halves import discriminator_step, generator_step
from torch import nn
from torch.nn import functional as F

SCALES = (2, 4, 8)
FROZEN = ("ccsr.rrdb.freeze=true", "ccsr.rrdb.pretrained_path=weights.pth")
RRDB = ("ccsr.backbone=rrdb", "ccsr.rrdb.num_blocks=1", "ccsr.rrdb.nf=8", "ccsr.rrdb.gc=4")
PATCH = ("data.imsize=32", "ray_sampler.min_scale=0.5", "ray_sampler.random_scale=true", "ray_sampler.random_shift=true")


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def view_codes(num_views=8, elevation_bins=3, channels=4, map_size=5):
    return ViewCodes(num_views, elevation_bins, channels, v_range=(0.1, 0.5), map_size=map_size)


def test_a_bins_centre_has_the_bins_map():
    codes = view_codes()
    azimuth_deg = torch.tensor([0.0, 90.0, 315.0, -45.0, 720.0])
    v = torch.tensor([0.1, 0.3, 0.5, 0.5, 0.1])
    expected = codes.maps[[0, 1, 2, 2, 0], [0, 2, 7, 7, 0]]
    torch.testing.assert_close(codes.interpolate(azimuth_deg, v), expected)


def test_between_four_bins_each_has_its_share():
    codes = view_codes()
    v = torch.tensor([0.1 + 0.2 * 0.75])  # three quarters of the way from row 0 to row 1
    found = codes.interpolate(torch.tensor([315 + 45 * 0.25]), v)[0]
    maps = codes.maps
    expected = 0.25 * (0.75 * maps[0, 7] + 0.25 * maps[0, 0]) + 0.75 * (0.75 * maps[1, 7] + 0.25 * maps[1, 0])
    torch.testing.assert_close(found, expected)


def test_bins_before_the_front_go_from_one_end_of_the_azimuths_to_the_other():
    codes = ViewCodes(5, 1, 4, v_range=(0.4, 0.6), map_size=5, u_range=(-40 / 360, 40 / 360))
    azimuth_deg = torch.tensor([-40.0, 340.0, 0.0, 40.0, -90.0, 180.0, 90.0, 10.0])
    expected = codes.maps[0, [0, 1, 2, 4, 0, 0, 4, 2]]
    expected[-1] = (codes.maps[0, 2] + codes.maps[0, 3]) / 2
    torch.testing.assert_close(codes.interpolate(azimuth_deg, torch.full((8,), 0.5)), expected)


def test_elevations_outside_the_bins_take_the_nearest():
    codes = view_codes()
    azimuth_deg = torch.full((2,), 45.0)
    torch.testing.assert_close(codes.interpolate(azimuth_deg, torch.tensor([0.0, 1.0])), codes.maps[[0, 2], 1])


def test_one_elevation_bin_ignores_the_elevation():
    codes = view_codes(elevation_bins=1)
    first, second = codes.interpolate(torch.tensor([77.0, 77.0]), torch.tensor([0.0, 0.9]))
    assert torch.equal(first, second)


def test_a_turn_in_one_degree_steps_never_jumps():
    """Between bins a and b, 45 degrees apart, every degree moves the code by |b - a| / 45, across 360 degrees too."""
    codes = view_codes()
    azimuth_deg = torch.arange(361.0)
    maps = codes.interpolate(azimuth_deg, torch.full((361,), 0.23)).flatten(1)
    steps = (maps[1:] - maps[:-1]).norm(dim=1)
    centres = maps[:-1:45]
    expected = (centres.roll(-1, 0) - centres).norm(dim=1).repeat_interleave(45) / 45
    torch.testing.assert_close(steps, expected, rtol=1e-3, atol=0)


def test_the_circle_closes():
    codes = view_codes()
    before, after = codes.interpolate(torch.tensor([359.999, 0.0]), torch.tensor([0.2, 0.2]))
    torch.testing.assert_close(before, after, rtol=0, atol=1e-4)


def test_a_rise_never_jumps():
    codes = view_codes()
    maps = codes.interpolate(torch.full((101,), 10.0), torch.linspace(0.1, 0.5, 101)).flatten(1)
    steps = (maps[1:] - maps[:-1]).norm(dim=1)
    rows = codes.interpolate(torch.full((3,), 10.0), torch.tensor([0.1, 0.3, 0.5])).flatten(1)
    expected = (rows[1:] - rows[:-1]).norm(dim=1).repeat_interleave(50) / 50
    torch.testing.assert_close(steps, expected, rtol=1e-3, atol=0)


def test_gradients_reach_the_bins_beside_the_views_and_no_others():
    codes = view_codes()
    azimuth_deg, v = torch.tensor([50.0, 350.0]), torch.tensor([0.2, 0.4])
    codes(azimuth_deg, v, full_grid(6), 6).sum().backward()
    reached = codes.maps.grad.abs().sum(dim=(2, 3, 4)) > 0  # (elevations, azimuths)
    expected = torch.zeros(3, 8, dtype=torch.bool)
    expected[[0, 0, 1, 1], [1, 2, 1, 2]] = True  # 50 degrees between 45 and 90, v 0.2 between 0.1 and 0.3
    expected[[1, 1, 2, 2], [7, 0, 7, 0]] = True  # 350 degrees between 315 and 0, v 0.4 between 0.3 and 0.5
    assert torch.equal(reached, expected)


def test_the_full_frame_at_a_maps_own_size_is_the_map():
    codes = view_codes(map_size=6)
    azimuth_deg, v = torch.tensor([10.0, 200.0]), torch.tensor([0.2, 0.4])
    torch.testing.assert_close(codes(azimuth_deg, v, full_grid(6), 6), codes.interpolate(azimuth_deg, v))


def test_the_full_frame_at_any_size_is_a_bilinear_resize():
    codes = view_codes(map_size=6)
    azimuth_deg, v = torch.tensor([10.0, 200.0]), torch.tensor([0.2, 0.4])
    expected = F.interpolate(codes.interpolate(azimuth_deg, v), size=(32, 32), mode="bilinear")
    torch.testing.assert_close(codes(azimuth_deg, v, full_grid(32), 32), expected)


def test_a_patch_has_the_codes_of_its_place():
    codes = view_codes()
    azimuth_deg, v = torch.tensor([10.0, 200.0]), torch.tensor([0.2, 0.4])
    grids = torch.cat([full_grid(32)[:, 4:12, 8:16], full_grid(32)[:, 20:28:1, 0:8]])
    whole = codes(azimuth_deg, v, full_grid(32), 32)
    expected = torch.stack([whole[0, :, 4:12, 8:16], whole[1, :, 20:28, 0:8]])
    torch.testing.assert_close(codes(azimuth_deg, v, grids, 32), expected)


def test_codes_keep_their_precision_under_autocast():
    codes = view_codes()
    inputs = torch.tensor([10.0]), torch.tensor([0.2]), full_grid(64), 64
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(codes(*inputs), codes(*inputs).float())


def light(scale=2):
    return LightBackbone(scale, code_channels=4, latent_dim=6, width=24, depth=3, width_upsampled=8)


def inputs(b=2, h=7, w=10):
    return torch.rand(b, 3, h, w) * 2 - 1, torch.randn(b, 4, h, w), torch.randn(b, 6)


@pytest.mark.parametrize("scale", SCALES)
def test_light_starts_near_the_interpolation(scale):
    low, codes, latents = inputs()
    proposal = light(scale)(low, codes, latents)
    assert proposal.shape == (2, 3, 7 * scale, 10 * scale)
    detail = proposal - F.interpolate(low, scale_factor=scale, mode="bicubic")
    assert 0.001 < detail.std() < 0.3


def test_latents_scale_and_shift_light_features_by_a_quarter_at_the_start():
    torch.manual_seed(0)
    backbone = LightBackbone(2, code_channels=4, latent_dim=64, width=24, depth=3, width_upsampled=8)
    assert backbone.modulation(torch.randn(200, 64)).std().item() == pytest.approx(0.25, rel=0.1)


@pytest.mark.parametrize("scale", SCALES)
def test_a_flat_input_gives_no_checkerboard_at_any_weights(scale):
    """Away from the borders, where padding is seen, all pixels of a flat input's proposal are alike."""
    backbone = light(scale)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ones = torch.ones(1, 1, 21, 21)
    low, codes, latents = 0.4 * ones.expand(-1, 3, -1, -1), ones.expand(-1, 4, -1, -1), torch.randn(1, 6)
    proposal = backbone(low, codes, latents)
    middle = proposal[..., 8 * scale : -8 * scale, 8 * scale : -8 * scale]
    assert (proposal - 0.4).abs().max() > 1e-2  # the weights do something
    torch.testing.assert_close(middle, middle[..., :1, :1].expand_as(middle), rtol=1e-4, atol=1e-5)


def test_everything_that_enters_light_matters_and_learns():
    backbone = light()
    low, codes, latents = (x.requires_grad_() for x in inputs())
    backbone(low, codes, latents).square().mean().backward()
    for tensor in (low, codes, latents, *backbone.parameters()):
        assert tensor.grad.abs().sum() > 0


def test_light_runs_under_autocast():
    backbone = light()
    low, codes, latents = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        found = backbone(low, codes, latents)
    torch.testing.assert_close(found.float(), backbone(low, codes, latents), rtol=0, atol=0.03)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_edges_are_repeated_in_the_number_format_of_the_image(dtype, monkeypatch):
    plain, conv = nn.Conv2d(3, 8, 3, padding=1, padding_mode="replicate"), conv3x3(3, 8)
    conv.load_state_dict(plain.state_dict())
    image = torch.randn(2, 3, 5, 6).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        expected = plain(image)
        padded, pad = [], F.pad
        monkeypatch.setattr(F, "pad", lambda *args, **kwargs: padded.append(pad(*args, **kwargs)) or padded[-1])
        assert torch.equal(conv(image), expected)
    assert [x.dtype for x in padded] == [dtype]


@pytest.mark.parametrize("overrides", [(), RRDB])
def test_a_twin_without_learning_has_the_networks_own_weights(refine, overrides):
    network = Refinement(refine(*overrides))
    twin = without_learning(network)
    for (name, own), (found, shared) in zip(network.named_parameters(), twin.named_parameters(), strict=True):
        assert name == found and own.data_ptr() == shared.data_ptr()
        assert own.requires_grad and not shared.requires_grad


def state_of(config) -> TrainState:
    return TrainState(config, torch.device("cpu"), n_classes=2, n_elevations=3)


def photographs(n: int, width: int) -> torch.Tensor:
    return torch.rand(n, 3, width, width, generator=torch.Generator().manual_seed(5)) * 2 - 1


@pytest.mark.parametrize("kernel", ["box", "bilinear", "bicubic", "gaussian"])
def test_refined_images_have_the_fields_low_resolution_content(refine, labels, kernel):
    generator = Generator(refine(f"ccsr.kernel={kernel}"))
    seen = generator.render(generator.sample_latents(4), labels.pose_c2w)
    assert seen.images.shape == (4, 3, 16, 16)
    assert seen.low_images.shape == (4, 3, 8, 8)
    error = generator.refinement.projection.downsample(seen.images) - seen.low_images
    assert error.abs().max() < 1e-5


def test_maps_of_a_refined_rendering_have_the_images_size(refine, labels):
    generator = Generator(refine())
    seen = generator.render(generator.sample_latents(4), labels.pose_c2w, resolution=24)
    assert all(getattr(seen, name).shape == (4, 1, 24, 24) for name in ("depth", "disparity", "opacity"))
    with pytest.raises(GrafError, match="multiple of ccsr.scale_factor 2"):
        generator.render(generator.sample_latents(4), labels.pose_c2w, resolution=25)


def test_rays_of_a_rendering_pass_the_centres_of_its_pixels():
    centres = low_resolution_grid(full_grid(8), 4)[0]
    torch.testing.assert_close(centres[0, :, 0], torch.tensor([1.5, 5.5]))
    torch.testing.assert_close(centres[:, 0, 1], torch.tensor([1.5, 5.5]))


@pytest.mark.parametrize("overrides", [(), ("discriminator.dual=true",), PATCH, ("nerf.importance_samples_per_ray=4",)])
@pytest.mark.parametrize("mode", ["refine", "photographs", "consistency"])
def test_gradients_reach_field_backbone_and_codes(refine, labels, mode, overrides):
    if mode == "consistency":
        if "discriminator.dual=true" in overrides:
            pytest.skip("no low-resolution rendering to show")
        overrides = (*overrides, "ray_sampler.rays_per_patch=256")
    config = refine("ccsr.learns_from=photographs" if mode == "photographs" else f"ccsr.mode={mode}", *overrides)
    state, images = state_of(config), photographs(4, config.data.imsize)
    discriminator_step(state, images, labels, labels)
    generator_step(state, labels, images, labels)
    silent = [name for name, p in state.generator.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_only_the_codes_beside_the_views_learn(refine):
    state = state_of(refine("ccsr.num_views=8"))
    poses = poses_at(torch.tensor([90.0, 100.0]), torch.tensor([0.3, 0.3]), 3.6)  # bins 2, and 2 with 3
    generator_step(state, Labels.of_poses(poses))
    learnt = state.generator.refinement.view_codes.maps.grad[0].abs().sum(dim=(1, 2, 3)) > 0
    assert learnt.nonzero().flatten().tolist() == [2, 3]


@pytest.mark.parametrize("source", ["discriminator", "photographs"])
def test_frozen_stays_frozen_and_the_rest_learns(refine, labels, source):
    state, images = state_of(refine(*RRDB, *FROZEN, f"ccsr.learns_from={source}")), photographs(4, 16)
    network = state.generator.refinement.backbone.network
    frozen = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    codes = state.generator.refinement.view_codes.maps.detach().clone()
    for _ in range(3):
        discriminator_step(state, images, labels, labels)
        generator_step(state, labels, images, labels)
        state.advance()
    assert all(torch.equal(tensor, frozen[name]) for name, tensor in network.state_dict().items())
    assert not torch.equal(state.generator.refinement.view_codes.maps, codes)


def test_pretrained_weights_start_the_backbone_and_its_average(refine, tmp_path):
    other = RRDBNet(2, num_blocks=1, nf=8, gc=4)
    torch.save(other.state_dict(), tmp_path / "esrgan.pth")
    state = state_of(refine(*RRDB))
    state.load_pretrained_backbone(str(tmp_path / "esrgan.pth"))
    for generator in (state.generator, state.generator_ema):
        network = generator.refinement.backbone.network
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in network.state_dict().items())


def test_frozen_weights_must_come_from_the_file(refine, tmp_path):
    """The first convolution of x2 weights has 12 channels, that of scale 4 has 3, and would stay as it was drawn."""
    torch.save(RRDBNet(2, num_blocks=1, nf=8, gc=4).state_dict(), tmp_path / "x2.pth")
    torch.save(RRDBNet(4, num_blocks=1, nf=8, gc=4).state_dict(), tmp_path / "x4.pth")
    scale = ("ccsr.scale_factor=4", "data.imsize=32", "ray_sampler.rays_per_patch=16")
    frozen = state_of(refine(*RRDB, *scale, *FROZEN))
    before = frozen.generator.refinement.backbone.network.conv_last.weight.clone()
    with pytest.raises(CheckpointError, match=r"x2\.pth.*leaves conv_first\.weight at random values.*ccsr.rrdb.freeze: false"):
        frozen.load_pretrained_backbone(str(tmp_path / "x2.pth"))
    assert torch.equal(frozen.generator.refinement.backbone.network.conv_last.weight, before)
    frozen.load_pretrained_backbone(str(tmp_path / "x4.pth"))
    state_of(refine(*RRDB, *scale)).load_pretrained_backbone(str(tmp_path / "x2.pth"))


def test_consistency_renders_at_full_resolution_and_restores_exactly(refine, labels):
    config = refine("ccsr.mode=consistency", "ray_sampler.rays_per_patch=256")
    generator = Generator(config)
    latents, grid = generator.sample_latents(4), full_grid(16)
    rendered = generator(latents, labels, grid).images
    restored = generator.restore(rendered, latents, labels, grid)
    assert rendered.shape == restored.shape == (4, 3, 16, 16)
    down = generator.refinement.projection.downsample
    torch.testing.assert_close(down(restored), down(rendered), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("detach", "learns"), [("none", (True, True)), ("nerf", (False, True)), ("ccsr", (True, False))])
def test_detach_names_who_does_not_learn(detach, learns):
    rendered, restored = torch.zeros(1, requires_grad=True), torch.full((1,), 3.0, requires_grad=True)
    loss = consistency_loss(rendered, restored, detach)
    assert loss == 9
    loss.backward()
    assert (rendered.grad is not None, restored.grad is not None) == learns


def objective(state, batch):
    return generator_objective(state, batch, 0.0, 1.0)  # no blur, and the consistency loss weighted by 1


@pytest.mark.parametrize("judge", ["rendered", "restored"])
@pytest.mark.parametrize(("detach", "learns"), [("none", (True, True)), ("nerf", (False, True)), ("ccsr", (True, False))])
def test_the_consistency_loss_teaches_field_and_refinement_as_detach_says(refine, labels, detach, learns, judge):
    config = refine("ccsr.mode=consistency", "ray_sampler.rays_per_patch=256", f"ccsr.detach={detach}", f"ccsr.judge={judge}")
    state = state_of(config)
    _, stats = objective(state, generator_batch(state, labels, photographs(4, 16), labels))
    networks = state.generator.field, state.generator.refinement

    def taught(value):
        gradients = (torch.autograd.grad(value, list(n.parameters()), retain_graph=True, allow_unused=True) for n in networks)
        return tuple(any(gradient is not None and gradient.any() for gradient in some) for some in gradients)

    assert taught(stats["loss_ccsr"]) == learns
    assert taught(stats["loss_g"]) == (True, judge == "restored")


def test_consistency_weight_halves_at_its_half_life(refine):
    ccsr = dataclasses.replace(refine().ccsr, alpha_init=2.0, alpha_decay=0.01)
    assert consistency_weight(ccsr, 0) == 2
    assert consistency_weight(ccsr, 69) == pytest.approx(1.003, abs=1e-3)  # ln 2 / 0.01 = 69.3


@pytest.mark.parametrize(("step", "weight"), [(0, 2000.0), (30, 2000 * math.exp(-0.3))])
def test_the_generator_pays_for_inconsistency_by_the_weight_of_its_step(refine, labels, step, weight, monkeypatch):
    alpha = ("ccsr.alpha_init=2000", "ccsr.alpha_decay=0.01")
    state = state_of(refine("ccsr.mode=consistency", "ray_sampler.rays_per_patch=256", *alpha))
    state.step = step
    found = []

    def spy(state, player, batch, objective, constants):
        found.append(objective(state, batch, *constants))
        return learn(state, player, batch, objective, constants)

    monkeypatch.setattr(steps, "learn", spy)
    steps.generator_step(state, generator_batch(state, labels, photographs(4, 16), labels))
    ((loss, stats),) = found
    torch.testing.assert_close(loss, stats["loss_g"] + weight * stats["loss_ccsr"])
    assert weight * stats["loss_ccsr"] > 0.1


def test_refinement_runs_the_same_in_mixed_precision(refine, labels):
    state = state_of(refine("training.use_amp=true"))
    with state.amp.autocast():
        seen = state.generator(state.sample_latents(4), labels)
    assert seen.images.dtype == torch.float32
    error = state.generator.refinement.projection.downsample(seen.images) - seen.low_images
    assert error.abs().max() < 1e-5


def test_drift_is_of_proposals_whose_downsampling_is_not_the_rendering(refine, labels):
    generator = Generator(refine("ccsr.kernel=box"))
    latents = generator.sample_latents(4, torch.Generator().manual_seed(0))
    with torch.no_grad():
        generator.refinement.backbone.last.weight.zero_()
        flat = generator(latents, labels)
        generator.refinement.backbone.last.bias += 0.5
        moved = generator(latents, labels)
    torch.testing.assert_close(moved.images, flat.images, atol=1e-5, rtol=0)  # the projection takes all of it
    residual = F.avg_pool2d(F.interpolate(flat.low_images, scale_factor=2, mode="bicubic"), 2) - flat.low_images
    for shift, seen in ((0.0, flat), (0.5, moved)):
        expected = (residual + shift).square().mean(dim=(1, 2, 3))[:, None]
        torch.testing.assert_close(seen.drift, expected, atol=1e-5, rtol=1e-4)


def test_what_the_judged_image_does_not_hold_the_drift_loss_does(refine, labels):
    def learned(weight):
        state = state_of(refine(f"ccsr.drift_weight={weight}", "ccsr.kernel=box"))
        backbone = state.generator.refinement.backbone
        with torch.no_grad():
            backbone.last.weight.zero_()
            backbone.last.bias += 0.5
        loss, stats = objective(state, generator_batch(state, labels, photographs(4, 16), labels))
        torch.testing.assert_close(loss, stats["loss_g"] + weight * stats["ccsr_drift"])
        return torch.autograd.grad(loss, backbone.last.bias)[0]

    assert learned(0).abs().max() < 1e-6
    torch.testing.assert_close(learned(2).sum(), torch.tensor(2 * 2 * 0.5), atol=0.2, rtol=0)  # d/db of the mean of (r + b)^2


def assert_near(found, expected):
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= 1e-3 * y.norm()


@pytest.mark.parametrize(
    "overrides", [(), PATCH, ("nerf.importance_samples_per_ray=4",), RRDB], ids=("frame", "patch", "fine", "rrdb")
)
def test_ccsr_learns_from_photographs_alone_and_the_field_through_it(refine, labels, overrides):
    """Its gradient is the restoration's; the field's is that of a CCSR which the discriminator teaches."""

    def gradients(source):
        state = state_of(refine(f"ccsr.learns_from={source}", "ccsr.drift_weight=0", "nerf.conditioning=film", *overrides))
        with torch.no_grad():  # a discriminator's first logits hardly depend on the image
            state.discriminator.main[-1].weight.mul_(30)
        images = photographs(4, state.config.data.imsize)
        loss, stats = objective(state, generator_batch(state, labels, images, labels))
        of_field, of_ccsr = (list(getattr(state.generator, name).parameters()) for name in ("field", "refinement"))
        if source == "photographs":
            own = stats["loss_restore"]
            found, expected = (torch.autograd.grad(x, of_ccsr, retain_graph=True) for x in (loss, own))
            assert_near(found, expected)
            assert any(x.any() for x in expected)
            assert not any(x is not None for x in torch.autograd.grad(own, of_field, retain_graph=True, allow_unused=True))
        return torch.autograd.grad(loss, of_field)

    assert_near(gradients("photographs"), gradients("discriminator"))


def test_a_restoration_is_judged_by_its_mean_absolute_difference(refine, labels):
    """One that proposes nothing repeats the means of 2 x 2 pixels."""
    state, images = state_of(refine("ccsr.learns_from=photographs", "ccsr.kernel=box")), photographs(4, 16)
    state.generator.refinement.backbone.forward = lambda low, *_: torch.zeros(len(low), 3, 16, 16)
    repeated = F.interpolate(F.avg_pool2d(images, 2), scale_factor=2, mode="nearest")
    found = generator_step(state, labels, images, labels)["loss_restore"]
    assert found.item() == pytest.approx((repeated - images).abs().mean().item(), rel=1e-4)


def test_what_photographs_teach_sharpens_photographs(refine, labels):
    """After some steps restored photographs are nearer to themselves than interpolated ones: stripes, which repeat."""
    state = state_of(refine("ccsr.learns_from=photographs"))
    stripes = (torch.arange(16) // 3 % 2 * 2.0 - 1).expand(4, 3, 16, 16).contiguous()
    errors = []
    for _ in range(40):
        errors.append(float(generator_step(state, labels, stripes, labels)["loss_restore"]))
        state.advance()
    assert errors[-1] < 0.5 * errors[0]


def test_a_photograph_is_restored_with_its_own_class_and_camera_or_a_drawn_one(refine, labels):
    """The one of the fake in its row, where its own is not known; latents, which hold the class, and view codes tell."""

    def loss(own):
        state = state_of(refine("ccsr.learns_from=photographs", "discriminator.condition=class"))
        with torch.no_grad():
            state.generator.refinement.backbone.last.weight.mul_(10)
        return float(generator_step(state, labels, photographs(4, 16), own)["loss_restore"])

    known = loss(labels)
    assert loss(dataclasses.replace(labels, pose_c2w=None)) == known
    assert abs(loss(dataclasses.replace(labels, pose_c2w=labels.pose_c2w.roll(1, 0))) - known) > 1e-4
    assert abs(loss(dataclasses.replace(labels, class_index=1 - labels.class_index)) - known) > 1e-4
