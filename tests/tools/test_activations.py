"""Hooks on layers, activations on disk, and tools/cache_activations.py at the size of configs/smoke.yaml."""

import dataclasses
import hashlib
import json
import pickle
import shutil
import signal
import sys
import weakref
from pathlib import Path

from activations import files as activation_files
from activations.files import ActivationWriter, CachedActivations, Source
from cache_activations import cache_activations, first_tensor, recording
from graf.camera import Labels, poses_at
from graf.checkpoints.checkpoint import save_checkpoint
from graf.config import CONFIG_DIR, config_to_dict, override
from graf.data import build_dataset
from graf.data.resolve import with_condition
from graf.data.views import KnownLabels
from graf.errors import GrafError
from graf.rays import full_grid
from graf.training.state import TrainState

import pytest
import torch
import yaml
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.transforms.v2.functional import gaussian_blur

ROOT = Path(__file__).parents[2]
SOURCE = Source("discriminator", "model.pt", "0" * 64, 3, "data", 0)
CPU = torch.device("cpu")


@dataclasses.dataclass
class Pair:
    name: str
    maps: torch.Tensor


class Net(nn.Module):
    """Two layers, the second of which changes the first one's answer in place, and answers of every kind."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(2, 3)
        self.second = nn.ReLU(inplace=True)
        self.twice = nn.Identity()
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        h = self.second(self.first(x))
        self.twice(x)
        self.twice(h)
        return Pair("h", h)


@pytest.fixture
def net():
    return Net().requires_grad_(False)


@pytest.fixture
def samples():
    """Ten points with class and camera."""
    points = torch.randn(10, 2, generator=torch.Generator().manual_seed(1))
    poses = poses_at(torch.arange(10) * 30.0, torch.full((10,), 0.25), 3.0)
    return [{"x": points[i], "class_index": torch.tensor(i % 3), "pose_c2w": poses[i]} for i in range(10)]


def cache(net, samples, folder, layers=("first", "output"), forward=None, settings="", **options) -> Path:
    with ActivationWriter(folder, len(samples), SOURCE, layers, settings) as writer:
        cache_activations(net, layers, samples, forward or (lambda batch: net(batch["x"])), writer, 4, **options)
    return folder


def test_the_first_tensor_of_an_answer_is_named_by_where_it_stands():
    x, y = torch.zeros(1), torch.ones(1)
    assert first_tensor(x, "a") == ("a", x)
    assert first_tensor((None, x, y), "a") == ("a.1", x)
    assert first_tensor({"k": x, "l": y}, "a") == ("a.k", x)
    assert first_tensor(Pair("n", x), "a") == ("a.maps", x)
    assert first_tensor([3, {"k": (x,)}], "a") == ("a.1.k.0", x)
    assert first_tensor("text", "a") is None


def test_a_layer_is_recorded_before_the_next_one_changes_its_answer(net):
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(2))
    with recording(net, ["first", "second", "twice", "output", "unused"]) as record:
        recorded = record(net, x)
    first = net.first(x)
    assert (first < 0).any()
    assert set(recorded) == {"first", "second", "twice", "output"}
    assert recorded["first"][1].dtype == torch.float16
    torch.testing.assert_close(recorded["first"][1], first.half())
    torch.testing.assert_close(recorded["output"][1], first.relu().half())
    assert recorded["output"][0] == "output.maps"
    torch.testing.assert_close(recorded["twice"][1], x.half())  # the first of two calls


def test_an_error_leaves_neither_answers_nor_hooks(net):
    def fail(x):
        net.first(x)
        raise RuntimeError("broken")

    kept = weakref.WeakSet()

    def keep(x):
        copy = x.clone()
        kept.add(copy)
        return copy

    with pytest.raises(RuntimeError, match="broken"), recording(net, ["first"], keep) as record:
        with pytest.raises(RuntimeError):
            record(fail, torch.zeros(1, 2))
        assert len(kept) == 0
        assert record(net.unused, torch.zeros(1, 2)) == {}
        assert list(record(net.first, torch.zeros(1, 2))) == ["first"]
        record(fail, torch.zeros(1, 2))
    assert not any(module._forward_hooks for module in net.modules())


def test_an_unknown_layer_is_told_with_its_neighbours(net):
    with pytest.raises(GrafError, match=r"unknown layer 'frist', did you mean first"), recording(net, ["first", "frist"]):
        pass
    assert not net.first._forward_hooks


def test_activations_and_labels_come_back_sample_by_sample(net, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(activation_files, "SHARD_BYTES", 100)
    folder = cache(net, samples, tmp_path / "a")
    assert len(list(folder.glob("shard_*.safetensors"))) == 3  # 8 samples, 2 samples: one batch is above 100 bytes
    cached = CachedActivations(folder, "first")
    assert len(cached) == 10
    expected = net.first(torch.stack([sample["x"] for sample in samples])).half()
    for i, (activation, label) in enumerate(cached):
        torch.testing.assert_close(activation, expected[i])
        assert int(label["class_index"]) == i % 3
        assert float(label["azimuth_deg"]) == pytest.approx(30 * i, abs=1e-3)
        assert float(label["v"]) == pytest.approx(0.25)
    torch.testing.assert_close(cached[-1][0], expected[9])
    with pytest.raises(IndexError):
        cached[10]


def test_the_manifest_tells_what_lies_there(net, samples, tmp_path):
    folder = cache(net, samples, tmp_path / "a")
    manifest = json.loads((folder / "manifest.json").read_text())
    about = {"shape": [3], "dtype": "float16", "bytes": 10 * 3 * 2, "samples_not_finite": 0}
    assert manifest["layers"] == {name: {"layer": name} | about for name in ("first", "output.maps")}
    assert manifest["samples"] == 10
    assert manifest["bytes"] == sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert manifest["source"] == dataclasses.asdict(SOURCE)
    assert set(manifest["labels"]) == {"class_index", "azimuth_deg", "v"}


def test_a_loader_with_a_pickled_set_reads_the_same(net, samples, tmp_path):
    cached = CachedActivations(cache(net, samples, tmp_path / "a"), "output.maps")
    first = cached[0][0]
    again = pickle.loads(pickle.dumps(cached))
    activations, labels = next(iter(DataLoader(again, batch_size=10)))
    assert activations.shape == (10, 3)
    torch.testing.assert_close(activations[0], first)
    assert labels["class_index"].tolist() == [i % 3 for i in range(10)]


def test_numbers_beyond_float16_are_counted(net, samples, tmp_path, caplog):
    samples[4]["x"] = torch.full((2,), 1e6)
    folder = cache(net, samples, tmp_path / "a", layers=("twice",))
    assert json.loads((folder / "manifest.json").read_text())["layers"]["twice"]["samples_not_finite"] == 1
    assert "1 of 10 samples" in caplog.text


def test_batches_without_activations_are_left_out(net, samples, tmp_path, caplog):
    def forward(batch):
        net.twice(batch["x"])
        if not (batch["x"] == samples[5]["x"]).all(1).any():  # it is in the second batch, 4 to 7
            net.first(batch["x"])

    folder = cache(net, samples, tmp_path / "a", ("first", "twice"), forward)
    cached = CachedActivations(folder, "first")
    assert cached.labels["azimuth_deg"].round().tolist() == [0, 30, 60, 90, 240, 270]
    torch.testing.assert_close(cached[4][0], net.first(samples[8]["x"]).half())
    assert "4 samples left out, for which there was nothing from first" in caplog.text


class Damaged(list):
    """Samples of which some cannot be read."""

    def __init__(self, samples, *damaged):
        super().__init__(samples)
        self.damaged = damaged

    def __getitem__(self, i):
        if i in self.damaged:
            raise GrafError(f"photo_{i}.png: damaged")
        return super().__getitem__(i)


def cached_with(net, samples, folder, max_failures, forward=None) -> tuple[list[str], dict]:
    """What failed, and the manifest; four samples a batch."""
    with ActivationWriter(folder, len(samples), SOURCE, ["first"]) as writer:
        forward = forward or (lambda batch: net(batch["x"]))
        failures = cache_activations(net, ["first"], samples, forward, writer, 4, max_failures=max_failures)
    return failures, json.loads((folder / "manifest.json").read_text())


def test_a_batch_that_fails_is_reported_and_left_out(net, samples, tmp_path, caplog):
    failures, manifest = cached_with(net, Damaged(samples, 5), tmp_path / "a", 1)
    assert failures == ["samples 4 to 7: photo_5.png: damaged"]
    assert "left out: samples 4 to 7: photo_5.png: damaged" in caplog.text
    assert (manifest["complete"], manifest["taken"], manifest["samples"]) == (True, 10, 6)
    cached = CachedActivations(tmp_path / "a")
    torch.testing.assert_close(cached[4][0], net.first(samples[8]["x"]).half())

    def fails_on_the_last(batch):
        if len(batch["x"]) == 2:
            raise ZeroDivisionError("division by zero")
        net(batch["x"])

    assert cached_with(net, samples, tmp_path / "b", 1, fails_on_the_last)[0] == ["samples 8 to 9: division by zero"]


def test_after_too_many_failures_what_there_is_is_kept_and_gone_on_with(net, samples, tmp_path):
    damaged = Damaged(samples, 1, 5)
    failures, manifest = cached_with(net, Damaged(samples, 5), tmp_path / "a", 0)
    assert len(failures) == 1
    assert (manifest["complete"], manifest["taken"], manifest["samples"]) == (False, 8, 4)
    assert cached_with(net, samples, tmp_path / "a", 0)[1]["samples"] == 6
    with pytest.raises(GrafError, match="photo_1.png: damaged"):  # and nothing is there to keep
        cached_with(net, damaged, tmp_path / "b", 0)


def test_out_of_memory_is_no_batchs_own_failure(net, samples, tmp_path):
    def full(_batch):
        raise torch.OutOfMemoryError("planted")

    with pytest.raises(torch.OutOfMemoryError):
        cached_with(net, samples, tmp_path / "a", 10, full)


def test_what_cannot_be_cached_is_refused_and_leaves_no_files(net, samples, tmp_path):
    with pytest.raises(GrafError, match="nothing from unused: not called"):
        cache(net, samples, tmp_path / "a", ("first", "unused"))
    with pytest.raises(GrafError, match=r"layer first: answered in shape \(8, 3\) for 4 samples"):
        cache(net, samples, tmp_path / "b", ("first",), lambda batch: net(batch["x"].repeat(2, 1)))
    with pytest.raises(GrafError, match=r"answered in shape \[4, 3\] and now in \[2, 3\]"):
        cache(net, samples, tmp_path / "c", ("first",), lambda batch: net(batch["x"].expand(len(batch["x"]), -1, -1).mT.mT))
    assert not list(tmp_path.rglob("*.*"))


def test_an_error_on_the_way_removes_what_was_written(net, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(activation_files, "SHARD_BYTES", 1)
    seen = []

    def forward(batch):
        seen.append(list(tmp_path.rglob("shard_*")))
        if len(seen) == 3:
            raise KeyboardInterrupt
        net(batch["x"])

    with pytest.raises(KeyboardInterrupt):
        cache(net, samples, tmp_path / "a", forward=forward)
    assert [len(shards) for shards in seen] == [0, 1, 2]
    assert not list((tmp_path / "a").iterdir())


def test_a_full_disk_is_told_before_anything_is_written(net, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 250))
    cache(net, samples, tmp_path / "a", ("first",))  # (3 x 2 + 8 + 4 + 4) x 10 = 220 bytes
    with pytest.raises(GrafError, match="about 280B, and 250B are free"):
        cache(net, samples, tmp_path / "b")
    assert not list((tmp_path / "b").iterdir())


def test_a_folder_with_something_in_it_is_left_alone(net, samples, tmp_path):
    folder = cache(net, samples, tmp_path / "a")
    before = {file: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(GrafError, match="holds activations already"):
        cache(net, samples, folder)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "letter.txt").write_text("dear")
    with pytest.raises(GrafError, match="not an empty folder"):
        cache(net, samples, tmp_path / "b")


def test_what_is_stopped_keeps_what_there_is(net, samples, tmp_path):
    answers = iter([False, False, True])
    cached = CachedActivations(cache(net, samples, tmp_path / "a", ("first",), stopped=lambda: next(answers)))
    assert len(cached) == 8
    with pytest.raises(GrafError, match="nothing is kept"):
        cache(net, samples, tmp_path / "b", stopped=lambda: True)


def test_what_was_stopped_goes_on_to_the_same_activations(net, samples, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(activation_files, "SHARD_BYTES", 1)
    whole, folder, answers = cache(net, samples, tmp_path / "whole"), tmp_path / "a", iter([False, True])
    cache(net, samples, folder, stopped=lambda: next(answers))
    CachedActivations(folder, "first")
    assert "stopped after 4 of 10 samples" in caplog.text
    before = {file: file.read_bytes() for file in folder.iterdir()}
    for other in ({"layers": ("first",)}, {"samples": samples[:9]}, {"settings": "others"}):
        with pytest.raises(GrafError, match="holds part of other activations"):
            cache(**{"net": net, "samples": samples, "folder": folder} | other)

    def fails_later(batch):
        net(batch["x"])
        if (batch["x"] == samples[9]["x"]).all(1).any():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache(net, samples, folder, forward=fails_later)
    assert {file: file.read_bytes() for file in folder.iterdir()} == before
    cache(net, samples, folder)
    assert json.loads((folder / "manifest.json").read_text()) == json.loads((whole / "manifest.json").read_text())
    assert all((folder / file.name).read_bytes() == file.read_bytes() for file in whole.iterdir())
    with pytest.raises(GrafError, match="holds activations already"):
        cache(net, samples, folder)


def test_a_damaged_shard_is_named(net, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(activation_files, "SHARD_BYTES", 1)
    folder = cache(net, samples, tmp_path / "a", ("first",))
    shards = sorted(folder.glob("shard_*"))
    shards[0].write_bytes(shards[0].read_bytes()[:-1])
    shards[1].write_bytes(b"\xff" * shards[1].stat().st_size)
    shards[2].unlink()
    for first, shard in zip((0, 4, 8), shards, strict=True):
        with pytest.raises(GrafError, match=f"{shard.name}: .*damaged.*; cache the activations again"):
            CachedActivations(folder)[first]


def test_a_folder_that_is_not_whole_is_told(net, samples, tmp_path):
    with pytest.raises(GrafError, match="no cached activations here"):
        CachedActivations(tmp_path)
    folder = cache(net, samples, tmp_path / "a")
    with pytest.raises(GrafError, match="several layers, name one of first, output.maps"):
        CachedActivations(folder)
    with pytest.raises(GrafError, match=r"unknown layer 'output', did you mean output\.maps"):
        CachedActivations(folder, "output")
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])
    with pytest.raises(GrafError, match="manifest.json: damaged"):
        CachedActivations(folder, "first")
    manifest.write_text('{"format": "other"}')
    with pytest.raises(GrafError, match="not a manifest of cached activations"):
        CachedActivations(folder, "first")


@pytest.fixture
def tool(monkeypatch):
    """tools/cache_activations.py as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return __import__("cache_activations")


@pytest.fixture
def run(tool, monkeypatch, caplog, capsys):
    """The program with flags: its exit status and what it said."""

    def run(*flags: str) -> tuple[int, str]:
        caplog.clear()
        monkeypatch.setattr(sys, "argv", ["cache_activations.py", *map(str, flags), "--device", "cpu"])
        with caplog.at_level("INFO", logger="graf"), pytest.raises(SystemExit) as ended:
            tool.run_script(tool.main)
        return ended.value.code, "\n".join([*caplog.messages, capsys.readouterr().err])

    return run


@pytest.fixture
def checkpoint(refine, tmp_path):
    """A function that saves an untrained run of the smoke config, with overrides: its file and its state."""

    def checkpoint(*overrides: str) -> tuple[Path, TrainState]:
        state = TrainState(refine(f"data.datadir={tmp_path / 'data'}", "data.n_images=12", *overrides), CPU)
        save_checkpoint(tmp_path / "model.pt", state.checkpoint())
        return tmp_path / "model.pt", state

    return checkpoint


def test_the_discriminators_activations_to_photographs(run, checkpoint, tmp_path):
    path, state = checkpoint()
    status, said = run("--checkpoint", tmp_path, "--layers", "main.2", "output", "--batch_size", "5", "--out", tmp_path / "a")
    assert status == 0
    assert "the data set has 12 images, all are used" in said
    cached = CachedActivations(tmp_path / "a", "main.2")
    assert cached.manifest["source"]["checkpoint_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    dataset = build_dataset(state.config)
    x, y = dataset.labels.pose_c2w[:, :2, 3].unbind(-1)
    azimuth_deg = torch.rad2deg(torch.atan2(y, x)) % 360
    seen = []
    for activation, label in cached:
        seen.append(int((azimuth_deg - label["azimuth_deg"]).abs().argmin()))
        assert azimuth_deg[seen[-1]] == pytest.approx(float(label["azimuth_deg"]), abs=1e-3)
        expected = state.discriminator.main[:3](dataset[seen[-1]]["image"][None])[0].detach()
        torch.testing.assert_close(activation, expected.half(), atol=2e-3, rtol=2e-3)
    assert sorted(seen) == list(range(12))
    assert CachedActivations(tmp_path / "a", "output.logits")[0][0].shape == ()


def test_the_discriminator_is_shown_opacity_as_training_shows_it(run, checkpoint, tmp_path):
    _, state = checkpoint("data.alpha=rgba", "discriminator.blur_steps=0")
    flags = ("--checkpoint", tmp_path, "--layers", "main.0", "--batch_size", "12", "--out", tmp_path / "a")
    assert run(*flags)[0] == 0
    dataset = build_dataset(state.config)
    alpha = state.generator.projection.downsample(torch.stack([dataset[i]["alpha"] for i in range(12)]))
    enlarged = torch.nn.functional.interpolate(alpha, 16, mode="bilinear")
    images = torch.cat([torch.stack([dataset[i]["image"] for i in range(12)]), enlarged], dim=1)
    expected = state.discriminator.main[0](images).detach().half()
    for activation, _ in CachedActivations(tmp_path / "a", "main.0"):
        assert (expected - activation).abs().amax(dim=(1, 2, 3)).min() < 5e-3


def test_photographs_that_are_elsewhere_now_are_asked_for(run, checkpoint, tmp_path):
    path, _ = checkpoint("data.type=images", "data.datadir=photos", "discriminator.condition=none")
    status, said = run("--checkpoint", tmp_path, "--list")
    assert status == 2 and f"the run's config ({path}) names it as data.datadir" in said
    assert (
        "photos: no such folder; set data.datadir" in run("--checkpoint", tmp_path, "--list", "--set", "data.datadir=photos")[1]
    )


def unposed_photographs(folder: Path) -> list[str]:
    """Flags that name photographs of two classes without cameras: black, and white."""
    for index in range(6):
        file = folder / str(index % 2) / f"IMG_{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (255 * (index % 2),) * 3).save(file)
    return ["data.type=images", f"data.datadir={folder}"]


@pytest.mark.parametrize("by", ["checkpoint", "config"])
def test_of_unposed_photographs_the_discriminator_is_told_the_class(run, refine, tmp_path, by):
    settings = refine(*unposed_photographs(tmp_path / "photos"))
    fitted = with_condition(settings, KnownLabels(False, n_classes=2))
    state = TrainState(fitted, CPU, n_classes=2)
    save_checkpoint(tmp_path / "model.pt", state.checkpoint())
    flags = ["--checkpoint", tmp_path / "model.pt", "--layers", "output", "--out", tmp_path / "a"]
    if by == "config":  # which says class_and_pose
        flags += ["--config", CONFIG_DIR / "smoke.yaml", "--set", *unposed_photographs(tmp_path / "photos")]
    assert run(*flags)[0] == 0
    cached = CachedActivations(tmp_path / "a", "output.logits")
    shades = torch.tensor([-1.0, 1.0])[:, None, None, None].expand(2, 3, 16, 16)
    expected = state.discriminator(shades, Labels(None, torch.tensor([0, 1]), torch.zeros(2, dtype=torch.long))).logits.detach()
    for logit, label in cached:
        assert float(logit) == pytest.approx(float(expected[int(label["class_index"])]), abs=2e-3)


def test_a_class_that_is_left_out_moves_no_other(run, refine, tmp_path):
    fitted = with_condition(refine(*unposed_photographs(tmp_path / "photos")), KnownLabels(False, n_classes=2))
    state = TrainState(fitted, CPU, n_classes=2)
    state.class_names = ["0", "1"]
    save_checkpoint(tmp_path / "model.pt", state.checkpoint())
    shutil.rmtree(tmp_path / "photos" / "0")
    few = ("--set", "training.batch_size=1")
    status, said = run("--checkpoint", tmp_path / "model.pt", "--layers", "output", "--out", tmp_path / "a", *few)
    assert status == 0, said
    assert {int(label["class_index"]) for _, label in CachedActivations(tmp_path / "a", "output.logits")} == {1}


def test_a_discriminator_without_classes_is_shown_other_folders_too(run, refine, tmp_path):
    fitted = with_condition(refine(*unposed_photographs(tmp_path / "photos")), KnownLabels(False))
    state = TrainState(fitted, CPU)
    state.class_names = ["0"]
    save_checkpoint(tmp_path / "model.pt", state.checkpoint())
    assert run("--checkpoint", tmp_path / "model.pt", "--layers", "output", "--out", tmp_path / "a")[0] == 0


def test_a_discriminator_that_judges_by_cameras_is_not_shown_photographs_without(run, checkpoint, tmp_path):
    checkpoint()
    status, said = run("--checkpoint", tmp_path, "--list", "--set", "data.labels=none")
    assert status == 2 and "judges by cameras too, and the data has none" in said


def test_the_generators_activations_to_latents(run, checkpoint, tmp_path):
    _, state = checkpoint()
    flags = ("--checkpoint", tmp_path, "--network", "generator", "--num_samples", "6")
    status, _ = run(*flags, "--layers", "field.shape_mapping", "output", "--resolution", "8", "--out", tmp_path / "a")
    assert status == 0
    styles, images = (CachedActivations(tmp_path / "a", name) for name in ("field.shape_mapping", "output.images"))
    assert len(styles) == 6
    assert images.shape == (3, 8, 8)
    latents = state.generator_ema.sample_latents(6, torch.Generator().manual_seed(0))
    shapes = latents[:, : -state.config.z_dist.dim_appearance]
    expected = state.generator_ema.field.shape_mapping(shapes)
    torch.testing.assert_close(torch.stack([x for x, _ in styles]), expected.half(), atol=2e-3, rtol=2e-3)
    status, said = run(*flags, "--layers", "output", "--resolution", "9", "--out", tmp_path / "b")
    assert status == 2
    assert "multiple of ccsr.scale_factor" in said


def test_what_the_program_refuses(run, checkpoint, tmp_path):
    checkpoint()
    status, said = run("--checkpoint", tmp_path, "--layers", "main.9", "--out", tmp_path / "a")
    assert status == 2
    assert "unknown layer 'main.9', did you mean main." in said
    assert not (tmp_path / "a").exists()
    assert run("--checkpoint", tmp_path, "--layers", "main.0")[0] == 2
    assert "no such checkpoint" in run("--checkpoint", tmp_path / "none", "--list")[1]
    status, said = run("--checkpoint", tmp_path, "--list", "--set", "discriminator.ndf=16")
    assert status == 2
    assert "does not fit this config" in said


def test_failures_beyond_the_flag_end_it_with_what_there_is(run, tool, checkpoint, tmp_path, monkeypatch):
    checkpoint()
    judged, calls = tool.judged, []

    def fails(*arguments):
        calls.append(1)
        if len(calls) in (2, 3):
            raise ValueError("planted")
        return judged(*arguments)

    monkeypatch.setattr(tool, "judged", fails)
    flags = ("--checkpoint", tmp_path, "--layers", "main.0", "--batch_size", "3", "--out", tmp_path / "a")
    status, said = run(*flags, "--max_failures", "1")
    assert status == 2
    assert "left out: samples 3 to 5: planted" in said and "left out: samples 6 to 8: planted" in said
    assert "2 batches failed, more than --max_failures 1; 3 samples are kept" in said
    status, said = run(*flags, "--max_failures", "1")
    assert status == 0
    assert len(CachedActivations(tmp_path / "a")) == 6
    assert run(*flags, "--max_failures", "-1")[0] == 2


def test_heads_that_began_with_64_pixels_are_read_so_whatever_names_the_config(run, checkpoint, tmp_path):
    """In the checkpoint their size is auto, which has become 128."""
    _, state = checkpoint("discriminator.architecture=mixed", "discriminator.feature_size=64")
    state.config = override(state.config, ["discriminator.feature_size=auto"])
    save_checkpoint(tmp_path / "model.pt", state.checkpoint())
    (tmp_path / "named.yaml").write_text(yaml.safe_dump(config_to_dict(state.config)))
    for named in ((), ("--config", tmp_path / "named.yaml")):
        status, said = run("--checkpoint", tmp_path, *named, "--list")
        assert status == 0 and "projected.heads.0" in said, said


@pytest.mark.parametrize("network", ["discriminator", "generator"])
def test_the_list_tells_names_and_shapes(run, checkpoint, tmp_path, network):
    checkpoint()
    status, said = run("--checkpoint", tmp_path, "--list", "--network", network)
    assert status == 0
    lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    if network == "discriminator":
        assert lines["main.0"].endswith("PenalisedConv2d      (32, 8, 8)")
        assert lines["output"].endswith("() as output.logits")
    else:
        assert lines["field.colour_layer"].endswith("not called as a module")
        assert lines["field.to_planes"].endswith("(12, 8, 8)")
        assert lines["output"].endswith("(3, 16, 16) as output.images")


@pytest.mark.parametrize("first_steps", [0, 20])
def test_a_discriminator_in_training_is_shown_blurred_photographs_beside_their_downsampling(
    tool, refine, photographs, labels, first_steps
):
    blur = "discriminator.blur_steps=10", "discriminator.blur_sigma=1.5", "discriminator.low_res_steps=0"
    state = TrainState(refine("discriminator.dual=true", *blur, f"encoder.first_steps={first_steps}"), CPU)
    seen = tool.judged(photographs, labels, state.config, state.generator, first_steps + 3, torch.Generator())
    blurred = gaussian_blur(photographs, [9, 9], [1.05, 1.05])  # 1.5 (1 - 3 / 10)
    low = state.generator.refinement.projection.downsample(photographs)
    torch.testing.assert_close(seen[:, :3], blurred, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(seen[:, 3:], F.interpolate(low, 16, mode="bilinear"), atol=1e-5, rtol=1e-5)


def test_before_a_discriminator_learns_it_is_shown_what_it_will_see_first(tool, smoke, photographs, labels):
    blur = "discriminator.blur_steps=10", "discriminator.blur_sigma=1.5", "discriminator.low_res_steps=0"
    for overrides in (("discriminator.low_res_steps=0",), blur):
        state = TrainState(smoke("encoder.first_steps=20", *overrides), CPU)
        shown = [tool.judged(photographs, labels, state.config, state.generator, k, torch.Generator()) for k in (0, 20)]
        assert torch.equal(*shown)


def test_a_discriminator_in_its_first_steps_is_shown_half_the_pixels(tool, smoke, photographs, labels):
    state = TrainState(smoke("discriminator.low_res_steps=5", "encoder.first_steps=2"), CPU)
    shown = [tool.judged(photographs, labels, state.config, state.generator, step, torch.Generator()) for step in (6, 7)]
    torch.testing.assert_close(shown[1], photographs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(shown[0], F.avg_pool2d(photographs, 2), atol=1e-5, rtol=1e-5)


def test_a_discriminator_that_judges_restored_images_is_shown_them(tool, refine, photographs, labels):
    state = TrainState(refine("ccsr.mode=consistency", "ccsr.judge=restored", "ray_sampler.rays_per_patch=256"), CPU)
    latents = state.generator.sample_latents(4, torch.Generator().manual_seed(5))
    expected = state.generator.restore(photographs, latents, labels, full_grid(16))
    seen = tool.judged(photographs, labels, state.config, state.generator, 3, torch.Generator().manual_seed(5))
    torch.testing.assert_close(seen, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(seen, photographs, atol=1e-2)


def test_an_interruption_keeps_the_batches_that_are_done(run, tool, checkpoint, tmp_path, monkeypatch):
    checkpoint()
    judged, calls = tool.judged, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return judged(*arguments)

    monkeypatch.setattr(tool, "judged", interrupted)
    flags = ("--checkpoint", tmp_path, "--layers", "main.0", "--batch_size", "3", "--out", tmp_path / "a")
    status, said = run(*flags)
    assert status == 130
    assert "6 samples of main.0" in said
    assert len(CachedActivations(tmp_path / "a")) == 6
    monkeypatch.setattr(tool, "judged", judged)
    for other in (("--batch_size", "4"), ("--resolution", "8"), ("--set", "discriminator.blur_sigma=0.7")):
        status, said = run(*flags, *other)
        assert status == 2
        assert "holds part of other activations" in said
    status, said = run(*flags)
    assert status == 0
    assert "continues after the first 6 of 12 samples" in said
    assert len(CachedActivations(tmp_path / "a")) == 12
    status, said = run(*flags)
    assert status == 2
    assert "holds activations already" in said


def test_a_discriminator_alone_is_taken(run, checkpoint, tmp_path):
    """Without a run around it, and with the names that DataParallel gives."""
    path, state = checkpoint()
    weights = {f"module.{name}": tensor for name, tensor in state.discriminator.state_dict().items()}
    path.unlink()
    torch.save({"state_dict": weights}, tmp_path / "alone.pt")
    (tmp_path / "config.yaml").write_text(json.dumps(config_to_dict(state.config)))
    flags = ("--checkpoint", tmp_path / "alone.pt", "--layers", "main.0", "--num_samples", "3", "--out")
    status, said = run(*flags, tmp_path / "a")
    assert status == 0, said
    status, said = run(*flags, tmp_path / "b", "--network", "generator")
    assert status == 2
    assert "holds no generator, only discriminator" in said


@pytest.mark.parametrize("asked", [("--list",), ("--layers", "main.0", "--out", "a")])
def test_a_network_that_a_checkpoint_has_not_is_told_before_the_data_is_read(run, tool, monkeypatch, asked):
    monkeypatch.setattr(tool, "build_dataset", lambda *_: pytest.fail("read the data"))
    status, said = run("--checkpoint", ROOT / "weights" / "toy_cars.safetensors", *asked)
    assert status == 2
    assert "holds no discriminator, only generator, generator_ema; use --network generator" in said
