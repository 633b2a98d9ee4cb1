"""CCSR in the generator and in training: exact at low resolution from every angle, and really learning."""

import dataclasses
import math

from graf.camera import Labels, poses_at
from graf.errors import CheckpointError, GrafError
from graf.models.generator import Generator
from graf.models.rrdb import RRDBNet
from graf.rays import full_grid, low_resolution_grid
from graf.training.draws import draw
from graf.training.losses import consistency_loss, consistency_weight
from graf.training.state import TrainState
from graf.training.steps import _generator_loss, discriminator_step, generator_step

import pytest
import torch
from torch.nn import functional as F

FROZEN = ("ccsr.freeze_backbone=true", "ccsr.pretrained_path=weights.pth")
RRDB = ("ccsr.backbone=rrdb", "ccsr.num_rrdb_blocks=1", "ccsr.nf=8", "ccsr.gc=4")
PATCH = ("data.imsize=32", "ray_sampler.min_scale=0.5", "ray_sampler.random_scale=true", "ray_sampler.random_shift=true")


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


@pytest.mark.parametrize("overrides", [(), ("discriminator.dual=true",), PATCH, ("nerf.N_importance=4",)])
@pytest.mark.parametrize("mode", ["refine", "consistency"])
def test_gradients_reach_field_backbone_and_codes(refine, labels, mode, overrides):
    if mode == "consistency":
        if "discriminator.dual=true" in overrides:
            pytest.skip("no low-resolution rendering to show")
        overrides = (*overrides, "ray_sampler.N_samples=256")
    config = refine(f"ccsr.mode={mode}", *overrides)
    state = state_of(config)
    discriminator_step(state, photographs(4, config.data.imsize), labels, labels)
    generator_step(state, labels)
    silent = [name for name, p in state.generator.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_only_the_codes_beside_the_views_learn(refine):
    state = state_of(refine("ccsr.num_views=8"))
    poses = poses_at(torch.tensor([90.0, 100.0]), torch.tensor([0.3, 0.3]), 3.6)  # bins 2, and 2 with 3
    generator_step(state, Labels.of_poses(poses))
    learnt = state.generator.refinement.view_codes.maps.grad[0].abs().sum(dim=(1, 2, 3)) > 0
    assert learnt.nonzero().flatten().tolist() == [2, 3]


def test_frozen_stays_frozen_and_the_rest_learns(refine, labels):
    state = state_of(refine(*RRDB, *FROZEN))
    network = state.generator.refinement.backbone.network
    frozen = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    codes = state.generator.refinement.view_codes.maps.detach().clone()
    for _ in range(3):
        discriminator_step(state, photographs(4, 16), labels, labels)
        generator_step(state, labels)
        state.advance()
    assert all(torch.equal(tensor, frozen[name]) for name, tensor in network.state_dict().items())
    assert not torch.equal(state.generator.refinement.view_codes.maps, codes)


def test_pretrained_weights_start_the_backbone_and_its_average(refine, tmp_path):
    other = RRDBNet(2, num_rrdb_blocks=1, nf=8, gc=4)
    torch.save(other.state_dict(), tmp_path / "esrgan.pth")
    state = state_of(refine(*RRDB))
    state.load_pretrained_backbone(str(tmp_path / "esrgan.pth"))
    for generator in (state.generator, state.generator_ema):
        network = generator.refinement.backbone.network
        assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in network.state_dict().items())


def test_frozen_weights_must_come_from_the_file(refine, tmp_path):
    """The first convolution of x2 weights has 12 channels, that of scale 4 has 3, and would stay as it was drawn."""
    torch.save(RRDBNet(2, num_rrdb_blocks=1, nf=8, gc=4).state_dict(), tmp_path / "x2.pth")
    torch.save(RRDBNet(4, num_rrdb_blocks=1, nf=8, gc=4).state_dict(), tmp_path / "x4.pth")
    scale = ("ccsr.scale_factor=4", "data.imsize=32", "ray_sampler.N_samples=16")
    frozen = state_of(refine(*RRDB, *scale, *FROZEN))
    before = frozen.generator.refinement.backbone.network.conv_last.weight.clone()
    with pytest.raises(CheckpointError, match=r"x2\.pth.*leaves conv_first\.weight as drawn at random.*freeze_backbone: false"):
        frozen.load_pretrained_backbone(str(tmp_path / "x2.pth"))
    assert torch.equal(frozen.generator.refinement.backbone.network.conv_last.weight, before)
    frozen.load_pretrained_backbone(str(tmp_path / "x4.pth"))
    state_of(refine(*RRDB, *scale)).load_pretrained_backbone(str(tmp_path / "x2.pth"))


def test_consistency_renders_at_full_resolution_and_restores_exactly(refine, labels):
    config = refine("ccsr.mode=consistency", "ray_sampler.N_samples=256")
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


@pytest.mark.parametrize("judge", ["rendered", "restored"])
@pytest.mark.parametrize(("detach", "learns"), [("none", (True, True)), ("nerf", (False, True)), ("ccsr", (True, False))])
def test_the_consistency_loss_teaches_field_and_refinement_as_detach_says(refine, labels, detach, learns, judge):
    config = refine("ccsr.mode=consistency", "ray_sampler.N_samples=256", f"ccsr.detach={detach}", f"ccsr.judge={judge}")
    state = state_of(config)
    _, stats = _generator_loss(state, draw(state, labels))
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
def test_the_generator_pays_for_inconsistency_by_the_weight_of_its_step(refine, labels, step, weight):
    alpha = ("ccsr.alpha_init=2000", "ccsr.alpha_decay=0.01")
    state = state_of(refine("ccsr.mode=consistency", "ray_sampler.N_samples=256", *alpha))
    state.step = step
    loss, stats = _generator_loss(state, draw(state, labels))
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
        loss, stats = _generator_loss(state, draw(state, labels))
        torch.testing.assert_close(loss, stats["loss_g"] + weight * stats["ccsr_drift"])
        return torch.autograd.grad(loss, backbone.last.bias)[0]

    assert learned(0).abs().max() < 1e-6
    torch.testing.assert_close(learned(2).sum(), torch.tensor(2 * 2 * 0.5), atol=0.2, rtol=0)  # d/db of the mean of (r + b)^2
