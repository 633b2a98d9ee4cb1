"""A pose estimator's run: its losses and augmentation by hand, and through the suite's loop: resume, memory, validation."""

import copy
import dataclasses
import math

from graf.camera import Labels, poses_at
from graf.checkpoints.checkpoint import NEWEST
from graf.config import CONFIG_DIR, PoseConfig, load_config
from graf.data import build_dataset, raycast
from graf.data.car_shapes import make_car
from graf.data.toy_cars import render_cars
from graf.errors import CheckpointError
from graf.pose import loop, step
from graf.pose.loop import train_pose, validate
from graf.pose.splits import split_by_object
from graf.pose.state import PoseState
from graf.pose.step import blurred, mirrored, pose_losses, pose_step, recoloured, reframed
from graf.pose.validation import Validation, predict
from graf.runtime.interruption import Interruption
from graf.training.health import Derailed
from graf.training.state import TrainState, load_checkpoint
from torture import digest

import pytest
import torch

SMALL = (
    *("data.imsize=16", "data.n_images=40", "model.d_model=16", "model.num_heads=2", "model.num_layers=1"),
    *("training.batch_size=4", "training.max_steps=6", "training.nworkers=0", "training.monitoring=none"),
    *("training.print_every=1", "training.save_every=2", "training.validate_every=3", "training.warm_up_steps=2"),
    "memory.interval_s=0",
)


@pytest.fixture(scope="module")
def cars(tmp_path_factory):
    """The kept toy cars, 40 of them."""
    return tmp_path_factory.mktemp("cars")


@pytest.fixture
def build(tmp_path, cars):
    def build(*overrides, name="pose"):
        settings = (*SMALL, f"data.datadir={cars}", f"training.outdir={tmp_path}", f"expname={name}", *overrides)
        config = load_config(CONFIG_DIR / "pose.yaml", settings, PoseConfig)
        config.run_dir.mkdir(exist_ok=True)
        return PoseState(config, torch.device("cpu"), distance=3.6)

    return build


def splits_of(state):
    training = state.config.training
    return split_by_object(build_dataset(state.config), training.validation_share, training.test_share)


def run(state, interruption=None, stop_after=None):
    """Train it as train_pose.py does, and interrupt it after a step where asked for. Returns what was measured."""
    interruption, splits = interruption or Interruption(), splits_of(state)
    taken = loop.pose_step

    def step(*given):
        if state.step + 1 == stop_after:
            interruption.signal = 15
        return taken(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "pose_step", step)
        return train_pose(state, splits, interruption)


def test_losses_are_distances_of_rotations_and_positions():
    predicted = poses_at(torch.tensor([90.0]), torch.tensor([0.5]), 2.0)
    true = poses_at(torch.tensor([0.0]), torch.tensor([0.5]), 2.0)
    rotation, translation = pose_losses(predicted, true, torch.tensor(2.0))
    assert float(rotation) == pytest.approx(2 * math.sqrt(2) * math.sin(math.radians(45)), abs=1e-3)
    assert float(translation) == pytest.approx(math.sqrt(2), abs=1e-3)


def test_a_mirrored_photograph_is_what_the_mirrored_camera_sees(monkeypatch):
    """A car is the same on both sides of y = 0, and so is this light: the mirrored camera's view is rendered, not flipped."""
    monkeypatch.setattr(raycast, "LIGHT", (0.6, 0.0, 0.8))
    data = load_config(None, ["data.imsize=32"]).data
    azimuth, v, cars = torch.tensor([30.0, 100.0]), torch.tensor([0.4, 0.3]), [make_car(0, 1), make_car(0, 2)]
    images = render_cars(cars, poses_at(azimuth, v, 3.6), data).images
    shown, seen_from = mirrored(images, poses_at(azimuth, v, 3.6), torch.tensor([True, False]))
    torch.testing.assert_close(seen_from, poses_at(torch.tensor([-30.0, 100.0]), v, 3.6))
    torch.testing.assert_close(shown, render_cars(cars, seen_from, data).images, atol=1e-5, rtol=0)
    assert torch.equal(shown[1], images[1]) and images[0].std() > 0.3


def test_epochs_are_of_the_images_seen(build):
    """4 steps saw 8 images each; the run goes on with 4."""
    state = build()
    state.step, state.images_seen, splits = 4, 32, splits_of(state)
    validate(state, splits)
    assert state.validation["epoch"] == 32 / len(splits.training)


def test_recoloured_images_have_their_channels_in_another_order_and_white_stays():
    images = torch.tensor([1.0, -1.0, 0.0]).view(1, 3, 1, 1)
    shown = recoloured(images, torch.tensor([[1, 0, 2]]), torch.tensor([[0.5, 0.0, 1.0]]))
    expected = [-1.0, 1.0, 1 - math.exp(0.3)]
    torch.testing.assert_close(shown.flatten(), torch.tensor(expected))


def test_the_rate_rises_and_falls_along_a_cosine(build):
    state, rates = build("training.lr=1", "training.warm_up_steps=2", "training.max_steps=4"), []
    for _ in range(5):
        rates.append(state.learning_rates()["lr"])
        state.optimizer.step()
        state.advance()
    assert rates == pytest.approx([0.5, (1 + math.cos(math.pi / 4)) / 2, 0.5, (1 - math.cos(math.pi / 4)) / 2, 0])


def test_weights_decay_as_the_config_says(build):
    state = build("training.weight_decay=0.3", "training.lr=0.1", "training.warm_up_steps=1")
    weight = state.estimator.head[1].weight
    before, weight.grad = weight.detach().clone(), torch.zeros_like(weight)
    state.optimizer.step()
    torch.testing.assert_close(weight.detach(), before * (1 - 0.1 * 0.3))


def test_processes_reframe_their_own_images_of_a_batch(build, monkeypatch):
    images = torch.rand(4, 3, 16, 16) * 2 - 1
    labels = Labels.of_poses(poses_at(torch.tensor([0.0, 90.0, 180.0, 270.0]), torch.full((4,), 0.4), 3.6))
    state = build("training.reframe=0.1", "training.recolour=false", "model.azimuth_bins=8")
    monkeypatch.setattr(step, "retried", lambda state, sample: sample())  # which would ask the other process
    before = state.random_states()
    whole = step.sample_batch(state, images, labels)
    assert not torch.allclose(whole.images, images, atol=0.1) and 0 < whole.height_weight.sum() < 8
    for rank in (0, 1):
        mine = slice(rank, None, 2)
        state.set_random_states(before)
        monkeypatch.setattr(state, "processes", dataclasses.replace(state.processes, rank=rank, world_size=2))
        own = step.sample_batch(state, images[mine], labels[mine])
        torch.testing.assert_close((own.images, own.height_weight), (whole.images[mine], whole.height_weight[mine]))


def test_heights_are_learned_from_the_images_that_keep_their_frames(build):
    images = torch.rand(32, 3, 16, 16) * 2 - 1
    labels = Labels.of_poses(poses_at(torch.linspace(0, 350, 32), torch.full((32,), 0.4), 3.6))
    state = build("training.reframe=0.1", "training.recolour=false", "model.azimuth_bins=8")
    batch = step.sample_batch(state, images, labels)
    same = torch.tensor([torch.allclose(*pair, atol=1e-4) for pair in zip(batch.images, images, strict=True)])
    assert 0 < same.sum() < 32
    assert torch.equal(batch.height_weight, 2.0 * same)
    higher = poses_at(torch.linspace(0, 350, 32), torch.where(same, 0.4, 0.3), 3.6)
    (_, stats), (_, moved) = (step.pose_objective(state, b) for b in (batch, dataclasses.replace(batch, pose_c2w=higher)))
    assert moved["loss_height"] == stats["loss_height"]
    as_they_are = step.sample_batch(build("training.reframe=0", "model.azimuth_bins=8"), images, labels)
    assert torch.equal(as_they_are.height_weight, torch.ones(32))


def test_without_a_mixture_all_frames_vary(build):
    images = torch.rand(32, 3, 16, 16) * 2 - 1
    labels = Labels.of_poses(poses_at(torch.linspace(0, 350, 32), torch.full((32,), 0.4), 3.6))
    shown = step.sample_batch(build("training.reframe=0.1", "training.recolour=false"), images, labels).images
    assert not any(torch.allclose(*pair, atol=1e-4) for pair in zip(shown, images, strict=True))


@pytest.mark.parametrize("overrides", [(), ("model.azimuth_bins=8", "training.reframe=0.1")], ids=["one camera", "mixture"])
def test_a_step_in_parts_has_the_gradient_of_the_whole(build, overrides):
    whole, parts = build(*overrides), build("training.accumulation_steps=4", *overrides)
    images = torch.rand(4, 4, 16, 16) * 2 - 1
    labels = Labels.of_poses(poses_at(torch.tensor([0.0, 90.0, 180.0, 270.0]), torch.full((4,), 0.4), 3.6))
    stats = [pose_step(state, images, labels) for state in (whole, parts)]
    torch.testing.assert_close(stats[0], stats[1], atol=1e-5, rtol=1e-4)
    for p, q in zip(whole.estimator.parameters(), parts.estimator.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-3)


def test_a_step_that_runs_out_of_memory_is_taken_in_smaller_parts(build, monkeypatch):
    state, expected = build(), build("training.accumulation_steps=2")
    loss, asked = step.pose_objective, []

    def short_of_memory(state, batch):
        asked.append(len(batch))
        if len(batch) > 2:
            raise MemoryError("no room")
        return loss(state, batch)

    images = torch.rand(4, 3, 16, 16) * 2 - 1
    labels = Labels.of_poses(poses_at(torch.tensor([0.0, 90.0, 180.0, 270.0]), torch.full((4,), 0.4), 3.6))
    pose_step(expected, images, labels)
    monkeypatch.setattr(step, "pose_objective", short_of_memory)
    pose_step(state, images, labels)
    assert asked == [4, 2, 2]
    assert digest(state.estimator.state_dict()) == digest(expected.estimator.state_dict())


def test_it_learns(build):
    """Thirty photographs by heart, in two hundred steps."""
    state = build("training.max_steps=200", "training.recolour=false", "training.batch_size=8", "training.lr=0.003")
    dataset = splits_of(state).training
    losses = []
    images = torch.stack([dataset[index]["image"] for index in range(8)])
    for _ in range(100):
        losses.append(float(pose_step(state, images, dataset.labels[:8])["loss"]))
    assert losses[-1] < 0.35 * losses[0]


def test_an_interrupted_run_continues_bit_for_bit(build):
    straight, first = build(name="straight"), build(name="stopped")
    run(straight)
    run(first, stop_after=4)
    assert first.step == 4
    assert first.validation["step"] == 3
    second = build(name="stopped")
    load_checkpoint(second.config.run_dir / NEWEST, second)
    assert digest(second.validation) == digest(first.validation)
    run(second)
    assert second.step == straight.step == 6
    left, right = straight.state_dict(), second.state_dict()
    assert [name for name in left if digest(left[name]) != digest(right[name])] == []
    rows = [(state.config.run_dir / "metrics.jsonl").read_text() for state in (straight, second)]
    assert rows[0] == rows[1]


def test_predictions_are_bounded_detached_and_cleared(build):
    state = build("memory.max_validation_outputs=4", "data.n_images=100")
    splits = splits_of(state)
    kept = predict(state, splits.training, 7)
    assert kept.predicted.shape == kept.target.shape == (7, 6)
    for values in (kept.predicted, kept.target, kept.predicted_pose, kept.target_pose):
        assert len(values) == 7
        assert not values.requires_grad and values.device.type == "cpu"
        assert values.untyped_storage().nbytes() == values.numel() * values.element_size()  # no view of a larger one
    assert len(splits.validation) > 4
    validate(state, splits)
    assert len(state.validation["predicted"]) == 4


def test_a_validation_tells_one_line_and_draws_nothing(build, caplog):
    caplog.set_level("INFO", "graf")
    state = build()
    measured = run(state)
    told = [record.message for record in caplog.records if "samples collected" in record.message]
    assert [line.split(", median")[0] for line in told] == [
        "epoch 0.4, step 3: validation, 4 samples collected",
        "epoch 0.8, step 6: validation, 4 samples collected",
        "epoch 0.8, step 6: test, 4 samples collected",
    ]
    names = ("azimuth_deg", "elevation_deg", "rotation_deg", "within_15_deg")
    assert measured.keys() == {f"{of}_{name}" for of in ("val", "test") for name in names}
    assert not list(state.config.run_dir.rglob("*.png"))


def test_memory_that_runs_out_in_a_validation_leaves_it_out(build, monkeypatch, caplog):
    state = build()
    monkeypatch.setattr(loop, "predict", lambda *_, **__: (_ for _ in ()).throw(MemoryError("no room")))
    assert run(state) == {}
    assert state.step == 6
    assert "no validation this time" in caplog.text


def test_perfect_predictions_have_no_errors():
    poses = poses_at(torch.tensor([0.0, 90.0, 180.0]), torch.full((3,), 0.4), 3.6)
    motion = torch.zeros(3, 6)
    numbers = Validation(1, 0.1, motion, motion, poses, poses).numbers()
    assert numbers == pytest.approx({"azimuth_deg": 0, "elevation_deg": 0, "rotation_deg": 0, "within_15_deg": 1}, abs=1e-3)


def test_steps_that_are_not_finite_end_the_run_with_a_diagnosis(build, monkeypatch):
    state, loss = build("training.max_bad_steps=2"), step.pose_objective
    before = copy.deepcopy(state.estimator.state_dict())

    def overflowing(*given):
        total, stats = loss(*given)
        return total * math.inf, stats | {"loss": total * math.inf}

    monkeypatch.setattr(step, "pose_objective", overflowing)
    with pytest.raises(Derailed, match="lower training.lr, set"):
        run(state)
    assert digest(before) == digest(state.estimator.state_dict())


def test_checkpoints_of_one_program_are_refused_by_the_other(build, smoke, tmp_path):
    state = build()
    run(state)
    with pytest.raises(CheckpointError, match="a pose estimator of train_pose.py"):
        load_checkpoint(state.config.run_dir / NEWEST, TrainState(smoke(), torch.device("cpu")))
    with pytest.raises(CheckpointError, match="model.d_model 16 .here 32."):
        load_checkpoint(state.config.run_dir / NEWEST, build("model.d_model=32"))
    generator = tmp_path / "generator.pt"
    torch.save({"step": 3, "generator": {}}, generator)
    with pytest.raises(CheckpointError, match="not a checkpoint of train_pose.py"):
        load_checkpoint(generator, state)


def test_an_image_is_reframed_about_pixel_half_its_width():
    ramp = torch.arange(16.0).expand(1, 3, 16, 16)  # the value of a pixel is its column
    larger = reframed(ramp, torch.tensor([[2.0]]).log(), torch.zeros(1, 2))
    assert larger[0, 0, 5, [8, 10, 6, 15]].tolist() == pytest.approx([8, 9, 7, 11.5], abs=1e-4)
    moved = reframed(ramp, torch.zeros(1, 1), torch.tensor([[2 / 16, 0.0]]))
    assert moved[0, 0, 5, [0, 2, 10]].tolist() == pytest.approx([0, 0, 8], abs=1e-4)
    down = reframed(ramp.mT, torch.zeros(1, 1), torch.tensor([[0.0, 2 / 16]]))
    torch.testing.assert_close(down, moved.mT)


def test_each_image_is_blurred_by_its_own_gaussian():
    dots = torch.zeros(2, 3, 17, 17)
    dots[:, :, 8, 8] = 1
    still, wide = blurred(dots, torch.tensor([0.0, 1.5]), largest=2.0)
    torch.testing.assert_close(still, dots[0])
    assert float(wide[0].sum()) == pytest.approx(1, abs=1e-5)
    assert float(wide[0, 8, 9] / wide[0, 8, 8]) == pytest.approx(math.exp(-1 / (2 * 1.5**2)))
    assert float(wide[1, 6, 8] / wide[1, 8, 8]) == pytest.approx(math.exp(-4 / (2 * 1.5**2)))
    white = torch.ones(1, 3, 9, 9)
    torch.testing.assert_close(blurred(white, torch.tensor([2.0]), 2.0), white)
