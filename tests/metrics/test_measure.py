"""FID and KID: equal to torch-fidelity on PNGs, sensible on sets whose order is known, and without side effects."""

import dataclasses
import hashlib
import json
import logging
import os
import random
import socket
from pathlib import Path

from graf.camera import azimuth_and_v
from graf.config import CONFIG_DIR, MetricsConfig, load_config
from graf.data import build_dataset
from graf.errors import DataError, GrafError
from graf.metrics import extractors
from graf.metrics import measure as metrics
from graf.metrics.measure import MeasureSettings, NotFinite, measure, measure_generator
from graf.metrics.results import COMPARABLE, SAMPLES, comparable, merged, new_best, series_name, summary, title
from graf.models.generator import Generator
from graf.runtime.files import file_sha256
from graf.runtime.processes import Processes
from graf.training.fid import evaluate
from graf.training.state import TrainState

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_fidelity
from PIL import Image
from torch.utils.data import Dataset

LITE, LITE_2 = "efficientnet-lite0", "efficientnet-lite2"
INCEPTION = "inception-v3-compat"
KID = MeasureSettings(["kid"], seed=0)
FEW = (f"metrics.extractor={LITE}", "metrics.n_real=8", "metrics.n_fake=6")


class Photographs(Dataset):
    """Images (N, 3, H, W) in [-1, 1] that note which of them are read."""

    def __init__(self, images, fingerprint="v1"):
        self.images, self.fingerprint, self.reads = images, fingerprint, []

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        self.reads.append(i)
        return {"image": self.images[i]}


def checkers(n, seed, side=32):
    """Coloured squares on noise, sharp enough that blur shows: (n, 3, side, side) in [-1, 1]."""
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, side // 4, side // 4, generator=rng)
    fine = 0.3 * torch.rand(n, 3, side, side, generator=rng)
    return (F.interpolate(coarse, side) * 0.7 + fine) * 2 - 1


def options(n_fake, extractor=LITE, n_real=0, weights_path="", protocol="counts"):
    return MetricsConfig(extractor, str(weights_path), protocol, n_real, n_fake, batch_size=8)


def write_pngs(folder, images):
    folder.mkdir()
    for i, image in enumerate(images):
        levels = np.rint((image.permute(1, 2, 0).numpy() + 1) * 127.5).astype(np.uint8)  # (H, W, 3)
        Image.fromarray(levels).save(folder / f"{i:04d}.png")
    return str(folder)


@pytest.fixture(autouse=True)
def empty_hub(tmp_path, monkeypatch):
    """No test sees this machine's Inception weights, or fetches any, and none is spared what another one was told."""
    extractors.tell_once.cache_clear()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))

    def refuse(url, dst, hash_prefix=None, progress=True):
        raise OSError("no network in tests")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    return tmp_path / "torch" / "hub" / "checkpoints"


def test_numbers_are_those_of_torch_fidelity_on_folders_of_pngs(tmp_path):
    fakes, reals = checkers(40, seed=1), checkers(30, seed=2)
    names = ("fid", "kid", "prc")
    uneven_batches = fakes.split([3, 17, 20])
    result = measure(uneven_batches, Photographs(reals), options(n_fake=40), tmp_path / "cache", names=names)
    direct = torch_fidelity.calculate_metrics(
        input1=write_pngs(tmp_path / "fake", fakes),
        input2=write_pngs(tmp_path / "real", reals),
        fid=True,
        kid=True,
        prc=True,
        kid_subset_size=30,
        feature_extractor=LITE,
        feature_extractor_weights_path=str(extractors.EFFICIENTNET_WEIGHTS),
        batch_size=8,
        cuda=False,
        save_cpu_ram=True,
        cache=False,
        verbose=False,
    )
    expected = {
        f"fid_{LITE}": direct["frechet_inception_distance"],
        f"kid_{LITE}": direct["kernel_inception_distance_mean"],
        f"kid_std_{LITE}": direct["kernel_inception_distance_std"],
        f"precision_{LITE}": direct["precision"],
        f"recall_{LITE}": direct["recall"],
        f"f_score_{LITE}": direct["f_score"],
    }
    assert result["values"] == pytest.approx(expected, rel=1e-6)
    assert json.loads(json.dumps(result)) == result
    assert (result["n_fake"], result["n_real"], result["resolution"], result["kid_subset_size"]) == (40, 30, 32, 30)
    assert result["extractor"] == LITE
    assert result["weights_sha256"].startswith("57934424")


def test_a_set_is_at_no_distance_from_itself(whole_extractors, tmp_path):
    images = checkers(24, seed=1)
    same = measure(images.split(8), Photographs(images), options(24), tmp_path)["values"]
    other = measure(images.split(8), Photographs(0.2 * images, "pale"), options(24), tmp_path)["values"]
    assert abs(same[f"fid_{LITE}"]) < 1e-3 * other[f"fid_{LITE}"]
    assert abs(same[f"kid_{LITE}"]) < 0.05 * other[f"kid_{LITE}"]


def test_kid_rises_with_blur(whole_extractors, tmp_path):
    reals = Photographs(checkers(24, seed=1))
    fakes = checkers(24, seed=2)
    kid = [
        measure([F.avg_pool2d(fakes, k, 1, k // 2, count_include_pad=False)], reals, options(24), tmp_path, names=("kid",))
        for k in (1, 3, 5, 9)
    ]
    values = [result["values"][f"kid_{LITE}"] for result in kid]
    assert values == sorted(values)
    assert abs(values[0]) < 0.1 * values[1]


def test_real_features_are_kept_until_the_images_change(tmp_path):
    reals, fakes = Photographs(checkers(12, seed=1)), [checkers(12, seed=2)]
    first = measure(fakes, reals, options(12), tmp_path, names=("kid",))
    files = sorted(tmp_path.glob("*.pt"))
    reals.reads.clear()
    assert measure(fakes, reals, options(12), tmp_path, names=("kid",)) == first
    assert reals.reads == [0]  # for the resolution
    assert sorted(tmp_path.glob("*.pt")) == files

    changed = Photographs(0.2 * reals.images, fingerprint="v2")
    assert measure(fakes, changed, options(12), tmp_path, names=("kid",))["values"] != first["values"]
    assert changed.reads[-12:] == list(range(12))


@pytest.mark.parametrize(
    "other", [{"sha256": "0" * 64}, {"resize": "none"}, {"fingerprint": "v2"}, {"n": 3}, {"side": 16}, {"seed": 1}]
)
def test_features_are_kept_by_all_that_they_depend_on(other):
    def name(sha256="f" * 64, resize="bicubic", fingerprint="v1", n=4, side=32, seed=0):
        reals = Photographs(checkers(5, seed=1, side=side), fingerprint)
        return metrics.RealSubset(reals, n, seed).cache_name(extractors.Extractor(LITE, Path("weights"), sha256, 1280, resize))

    assert name(**other) != name() == name()


def test_damaged_features_and_statistics_are_made_anew_and_sound_ones_kept(tmp_path, caplog):
    reals, fakes = Photographs(checkers(12, seed=1)), [checkers(12, seed=2)]
    first = measure(fakes, reals, options(12), tmp_path)
    sound = {file: file.stat().st_mtime_ns for file in tmp_path.glob("*.pt")}
    assert len(sound) == 2
    assert measure(fakes, reals, options(12), tmp_path) == first
    assert {file: file.stat().st_mtime_ns for file in sound} == sound
    one, other = sorted(sound)
    for damage in ({one: 0.0}, {one: 0.5, other: 0.0}, {other: 0.5}):
        contents = {file: file.read_bytes() for file in damage}
        for file, share in damage.items():
            file.write_bytes(contents[file][: int(share * len(contents[file]))])
        caplog.clear()
        assert measure(fakes, reals, options(12), tmp_path) == first
        for file in sound:
            assert (f"{file}: damaged" in caplog.text) == (file in damage)
        for file, content in contents.items():
            assert len(file.read_bytes()) == len(content)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_images_that_are_not_finite_have_no_distance(tmp_path, value):
    fakes = checkers(8, seed=1)
    fakes[5, 0, 3, 4] = value
    with pytest.raises(NotFinite, match="1 of 8 generated images have pixels that are not finite"):
        measure([fakes], Photographs(checkers(8, seed=2)), options(8), tmp_path)


def test_a_part_of_the_real_images_is_the_same_part_each_time(tmp_path):
    reals, fakes = Photographs(checkers(20, seed=1)), [checkers(6, seed=2)]
    part = measure(fakes, reals, options(6, n_real=6), tmp_path / "a", names=("kid",))
    drawn = torch.randperm(20, generator=torch.Generator().manual_seed(2020))[:6].tolist()
    assert reals.reads[-6:] == drawn
    assert part["n_real"] == 6
    again = measure(fakes, reals, options(6, n_real=6), tmp_path / "b", names=("kid",))
    assert reals.reads[-6:] == drawn
    assert again == part
    whole = measure(fakes, reals, options(6, n_real=50), tmp_path / "a", names=("kid",))
    assert whole["n_real"] == 20
    assert reals.reads[-20:] == list(range(20))


def test_few_images_are_warned_of_in_the_result_and_in_the_log(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="graf"):
        result = measure([checkers(8, seed=1)], Photographs(checkers(8, seed=2)), options(8), tmp_path)
    few, small, whole = result["warnings"]
    assert "fewer than the 1280 features" in few
    assert "subsets of 8 images instead of 1000" in small
    assert "standard deviation is meaningless and left out" in whole
    assert [record.getMessage() for record in caplog.records] == [f"metrics: {warning}" for warning in result["warnings"]]
    assert list(result["values"]) == [f"fid_{LITE}", f"kid_{LITE}"]  # no kid_std


def test_the_same_is_told_once_though_each_result_has_it(tmp_path, caplog):
    fakes, reals = checkers(8, seed=1), Photographs(checkers(8, seed=2))
    with caplog.at_level(logging.INFO, logger="graf"):
        results = [measure([fakes], reals, options(8, extractor="auto"), tmp_path) for _ in range(2)]
        fewer = measure([fakes], reals, options(7, extractor="auto"), tmp_path)
    assert results[0] == results[1] and len(results[0]["warnings"]) == 4
    told = [message for message in caplog.messages if message.startswith("metrics: ")]
    assert len(told) == len(set(told)) == 1 + 3 + len(fewer["warnings"][:2])  # the extractor, and what each count brings


def test_a_single_real_image_is_refused(tmp_path):
    with pytest.raises(GrafError, match="at least 2 images of each kind, found 1 real and 8 generated"):
        measure([checkers(8, seed=1)], Photographs(checkers(1, seed=2)), options(8), tmp_path)


def test_a_stream_that_ends_early_is_our_mistake(tmp_path):
    with pytest.raises(AssertionError, match="ended early"):
        measure([checkers(7, seed=1)], Photographs(checkers(8, seed=2)), options(8), tmp_path, names=("kid",))


def test_random_states_are_left_alone(tmp_path):
    def fakes():
        for _ in range(2):
            torch.rand(1)  # a generator that is careless with the global state
            yield checkers(4, seed=1)

    before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    measure(fakes(), Photographs(checkers(8, seed=2)), options(8), tmp_path, names=("kid",))
    after = torch.get_rng_state(), np.random.get_state(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert str(before[1]) == str(after[1])
    assert before[2] == after[2]


@pytest.mark.parametrize(("name", "side"), [(LITE, 224), (LITE_2, 260)])
def test_efficientnet_sees_127_as_zero_and_255_as_one(whole_extractors, name, side):
    extractor = extractors.extractor_network(extractors.choose_extractor(options(8, name))).eval()
    images = torch.tensor([127, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 3, 32, 32)
    with torch.no_grad():
        (features,) = extractor(images)
        maps = extractor.network.extract_features(torch.stack([torch.zeros(3, side, side), torch.ones(3, side, side)]))
    assert features.shape == (2, 1280)
    torch.testing.assert_close(features, maps.mean(dim=(2, 3)), atol=1e-4, rtol=1e-4)


def test_features_of_an_image_are_its_own_whatever_is_beside_it(two_threads):
    extractor = extractors.extractor_network(extractors.choose_extractor(options(8, LITE))).eval()
    images = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    (together,) = extractor(images)
    assert together.shape == (3, 1280) and not together.requires_grad
    for image, found in zip(images, together, strict=True):
        torch.testing.assert_close(extractor(image[None])[0][0], found, atol=1e-4, rtol=1e-4)


def test_the_second_extractor_is_another_network(whole_extractors, tmp_path):
    reals, fakes = Photographs(checkers(8, seed=1)), [checkers(8, seed=2)]
    first, second = (measure(fakes, reals, options(8, name), tmp_path, names=("kid",)) for name in (LITE, LITE_2))
    assert first["weights_sha256"] != second["weights_sha256"] and second["resize"].startswith("260 x 260")
    assert list(second["values"]) == [f"kid_{LITE_2}"]
    assert second["values"][f"kid_{LITE_2}"] != first["values"][f"kid_{LITE}"]


PERCEPTUAL = ("ccsr.mode=consistency", "ccsr.perceptual_weight=0.1")
PROJECTED = ("discriminator.architecture=projected",)
MIXED = ("discriminator.architecture=mixed",)


@pytest.mark.parametrize(
    ("extractor", "settings", "trained_with", "warned"),
    [
        (LITE, PERCEPTUAL, [LITE], True),
        (LITE_2, PERCEPTUAL, [LITE], False),
        (LITE, PROJECTED, [LITE], True),
        (LITE, MIXED, ["efficientnet-lite1"], False),
        (LITE, (*MIXED, "discriminator.feature_network=efficientnet-lite0"), [LITE], True),
        (LITE, (), [], False),
    ],
)
def test_a_network_of_the_training_that_measures_is_told(smoke, tmp_path, caplog, extractor, settings, trained_with, warned):
    config = smoke(*FEW, f"metrics.extractor={extractor}", *settings)
    reals = build_dataset(smoke(f"data.datadir={tmp_path}", "data.n_images=8"))
    result = measure_generator(Generator(config), reals, KID, tmp_path)
    assert result["networks_of_training"] == trained_with
    told = [warning for warning in result["warnings"] if "took part in this training" in warning]
    assert bool(told) is warned and ("took part in this training" in caplog.text) is warned


def test_independent_cameras_are_those_of_the_configs_range(whole_extractors, smoke, tmp_path, monkeypatch):
    """The data's cameras are all at 90 degrees; its classes stay as frequent as they are."""
    config = smoke(*FEW, f"data.datadir={tmp_path}", "data.n_images=8", "data.umin=0.25", "data.umax=0.25")
    reals = build_dataset(config)
    reals.labels.class_index[:] = 3
    wide = dataclasses.replace(config, data=dataclasses.replace(config.data, umin=0.5, umax=0.75))
    drawn = []
    real = metrics.fresh_samples

    def noted(generator, label_sampler, n, *rest):
        drawn.append(label_sampler(n, torch.Generator().manual_seed(0)))
        return real(generator, label_sampler, n, *rest)

    monkeypatch.setattr(metrics, "fresh_samples", noted)
    generator = Generator(wide)
    own = measure_generator(generator, reals, KID, tmp_path)["values"]
    dumped = dataclasses.replace(KID, dump=tmp_path)  # those that were measured first
    independent = metrics.kid_independent(generator, reals, dumped, tmp_path)
    azimuths = [azimuth_and_v(labels.pose_c2w)[0] for labels in drawn]
    assert azimuths[0].round().unique().tolist() == [90]
    assert azimuths[1].min() >= 180 and azimuths[1].max() <= 270 and azimuths[1].std() > 5
    assert all(labels.class_index.unique().tolist() == [3] for labels in drawn)
    assert list(independent) == [f"kid_independent_{LITE}"] and independent[f"kid_independent_{LITE}"] != own[f"kid_{LITE}"]


def test_titles_name_the_extractor():
    assert title(f"fid_{INCEPTION}") == "FID (inception-v3-compat)"
    assert title(f"kid_independent_{LITE_2}") == "KID independent (efficientnet-lite2)"
    assert title(f"kid_std_{LITE}") == "KID std (efficientnet-lite0)"
    result = {"values": {f"fid_{LITE}": 12.345}, "n_fake": 8, "n_real": 9, "resolution": 64}
    assert summary(result) == "FID (efficientnet-lite0) 12.35; 8 generated and 9 real images at 64 px"


def test_auto_falls_back_where_inception_is_missing(caplog):
    with caplog.at_level(logging.INFO, logger="graf"):
        chosen = extractors.choose_extractor(options(8, extractor="auto"))
    assert chosen.name == LITE
    assert f"use {LITE}; no Inception weights at" in caplog.text


def test_a_result_says_that_inception_was_missing(tmp_path):
    reals, fakes = Photographs(checkers(4, seed=1)), [checkers(4, seed=2)]
    found, asked = (measure(fakes, reals, options(4, name), tmp_path, names=("kid",))["warnings"] for name in ("auto", LITE))
    assert found == [*asked, f"there are no Inception weights on this machine; {LITE} takes their place"]


def test_missing_weights_say_which_file_where_and_what_else(tmp_path, empty_hub):
    file = Path(extractors.URL_INCEPTION_V3).name
    with pytest.raises(GrafError) as failed_download:
        extractors.choose_extractor(options(8, extractor=INCEPTION))
    for part in (file, "no network in tests", str(empty_hub / file), "metrics.weights_path", f"metrics.extractor: {LITE}"):
        assert part in str(failed_download.value)
    assert socket.getdefaulttimeout() is None

    for extractor in ("auto", INCEPTION):
        with pytest.raises(GrafError, match=r"metrics\.weights_path: no such file: .*nowhere\.pth"):
            extractors.choose_extractor(options(8, extractor, weights_path=tmp_path / "nowhere.pth"))


def test_other_weights_are_refused(tmp_path):
    (tmp_path / "other.pth").write_bytes(b"not Inception")
    with pytest.raises(GrafError, match=r"other\.pth: not the Inception weights of FID"):
        extractors.choose_extractor(options(8, INCEPTION, weights_path=tmp_path / "other.pth"))


class Trap:
    """A pickle that makes a folder where it is loaded as Python likes to."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_weights_that_carry_code_are_refused_before_it_runs(tmp_path, monkeypatch):
    """By their hash; and where that were the published one by what is in them."""
    path, sprung = tmp_path / "trap.pth", tmp_path / "sprung"
    torch.save({"fc.weight": Trap(str(sprung))}, path)
    for name in ("auto", INCEPTION):
        with pytest.raises(GrafError, match=f"{path}: not the Inception weights of FID: sha256 {file_sha256(path)}"):
            extractors.choose_extractor(options(8, name, weights_path=path))
    monkeypatch.setattr(extractors, "INCEPTION_SHA256", file_sha256(path))
    with pytest.raises(GrafError, match=f"{path}: refused, contains pickled Python objects"):
        extractors.choose_extractor(options(8, INCEPTION, weights_path=path))
    assert not sprung.exists()
    torch.load(path, weights_only=False)
    assert sprung.exists()  # it is one


def test_all_of_the_hash_is_compared(tmp_path, monkeypatch):
    """Files whose first 32 bits are any given ones can be made in minutes."""
    assert len(extractors.INCEPTION_SHA256) == 64
    assert Path(extractors.URL_INCEPTION_V3).stem.endswith(extractors.INCEPTION_SHA256[:8])
    path = tmp_path / "alike.pth"
    torch.save({}, path)
    sha256 = file_sha256(path)
    monkeypatch.setattr(extractors, "INCEPTION_SHA256", sha256[:-1] + ("0" if sha256[-1] != "0" else "1"))
    with pytest.raises(GrafError, match="not the Inception weights"):
        extractors.choose_extractor(options(8, INCEPTION, weights_path=path))


@pytest.fixture
def inception_weights(tmp_path, monkeypatch):
    """Inception with random weights, in a file whose hash is taken for the published one."""
    path = tmp_path / "random.pth"
    torch.save({}, path)
    with torch.random.fork_rng(devices=[]), monkeypatch.context() as patch:
        patch.setattr(torch_fidelity.FeatureExtractorInceptionV3, "load_state_dict", lambda self, state_dict: None)
        network = torch_fidelity.FeatureExtractorInceptionV3(INCEPTION, ["2048"], str(path))
    torch.save(network.state_dict(), path)
    monkeypatch.setattr(extractors, "INCEPTION_SHA256", file_sha256(path))
    return path


def test_inception_has_keys_of_its_own(tmp_path, inception_weights):
    reals, fakes = Photographs(checkers(4, seed=1)), [checkers(4, seed=2)]
    inception = measure(fakes, reals, options(4, "auto", weights_path=inception_weights), tmp_path, names=("kid",))
    lite = measure(fakes, reals, options(4), tmp_path, names=("kid",))
    assert list(inception["values"]) == [f"kid_{INCEPTION}"]
    assert not inception["values"].keys() & lite["values"].keys()
    assert inception["resize"] != lite["resize"]
    assert inception["weights_sha256"] == file_sha256(inception_weights)


def test_an_explicit_inception_is_downloaded_to_the_hub(empty_hub, monkeypatch):
    torch.save({}, empty_hub.parents[2] / "published.pth")
    published = (empty_hub.parents[2] / "published.pth").read_bytes()

    def download(url, dst, hash_prefix, progress):
        assert socket.getdefaulttimeout() == extractors.DOWNLOAD_TIMEOUT_S
        Path(dst).write_bytes(published)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    monkeypatch.setattr(extractors, "INCEPTION_SHA256", hashlib.sha256(published).hexdigest())
    chosen = extractors.choose_extractor(options(8, INCEPTION))
    assert chosen.weights.parent == empty_hub
    assert extractors.choose_extractor(options(8, "auto")) == chosen


def test_protocols_are_presets_of_the_counts():
    assert options(8, n_real=9).counts == (9, 8)
    assert options(8, protocol="graf").counts == (20_000, 1_000)
    assert options(8, protocol="full").counts == (50_000, 50_000)


@pytest.mark.parametrize(
    ("most", "overrides", "counts"),
    [
        (250, (), ("counts", 250, 250)),
        (250, ("metrics.n_real=0",), ("counts", 250, 250)),  # 0 is all of them
        (250, ("metrics.n_real=100", "metrics.n_fake=400"), ("counts", 100, 250)),
        (250, ("metrics.protocol=graf",), ("counts", 250, 250)),
        (0, ("metrics.protocol=graf",), ("graf", 20_000, 1_000)),
        (0, ("metrics.n_real=0",), ("counts", 0, 1000)),
        (50_000, ("metrics.protocol=full",), ("full", 50_000, 50_000)),
    ],
)
def test_a_run_measures_itself_on_fewer_images_and_says_so(most, overrides, counts):
    config = load_config(None, (*overrides, f"training.fid_images={most}"))
    options = config.metrics_in_training
    assert (options.protocol, *options.counts) == counts
    assert dataclasses.replace(options, protocol="counts", n_real=0, n_fake=2) == dataclasses.replace(
        config.metrics, protocol="counts", n_real=0, n_fake=2
    )


def test_the_result_of_a_running_run_has_its_own_protocol(smoke, tmp_path, caplog):
    state = TrainState(smoke(*FEW, "training.fid_images=5", f"training.outdir={tmp_path}"), torch.device("cpu"))
    dataset = build_dataset(smoke(f"data.datadir={tmp_path / 'cars'}", "data.n_images=8"))
    with caplog.at_level(logging.INFO, logger="graf"):
        result = evaluate(state, dataset)
    assert (result["n_real"], result["n_fake"], result["kid_subset_size"]) == (5, 5, 5)
    assert "step 0: measuring FID and KID of 5 generated images" in caplog.messages
    assert caplog.messages[-1].endswith("5 generated and 5 real images at 16 px")


@pytest.mark.parametrize(("name", "at_least"), [("default", 1), ("safe_training", 3)])
def test_runs_by_default_measure_themselves_on_the_way_and_at_their_end(name, at_least):
    config = load_config(CONFIG_DIR / f"{name}.yaml")
    training, judged = config.training, range(config.encoder.first_steps + 1, config.training.max_steps)
    assert training.fid_every > 0  # another measurement follows the last step
    assert sum(step % training.fid_every == 0 for step in judged) >= at_least
    assert 0 < training.fid_images <= 250


def test_grafs_recipe_measures_as_it_did():
    config = load_config(CONFIG_DIR / "carla_64.yaml")
    assert config.metrics_in_training == config.metrics and config.training.fid_every == 5000


def test_a_protocol_that_the_data_cannot_meet_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("graf.config.schema.PROTOCOLS", {"graf": (20, 8)})
    result = measure([checkers(8, seed=1)], Photographs(checkers(9, seed=2)), options(2, protocol="graf"), tmp_path)
    assert (result["protocol"], result["n_real"], result["n_fake"]) == ("graf", 9, 8)
    assert "asks for 20 real images, the data has 9" in result["warnings"][-1]


def test_what_was_measured_before_stands_beside_it_under_one_protocol_only():
    terms = dict.fromkeys((*COMPARABLE, *SAMPLES), 1)
    kid = terms | {"values": {"kid": 1.0, "fid": 9.0}, "warnings": ["few", "old"]}
    fid = terms | {"values": {"fid": 2.0}, "warnings": ["few", "new"]}
    assert merged(kid, fid) == terms | {"values": {"kid": 1.0, "fid": 2.0}, "warnings": ["few", "old", "new"]}
    assert merged({}, fid) == merged({"consistency": {}}, fid) == fid
    for name in terms:
        assert merged(kid | {name: 2}, fid) == fid


def test_the_protocol_says_how_the_samples_were_made(smoke, tmp_path):
    generator, dataset = Generator(smoke(*FEW)).eval(), build_dataset(smoke(*FEW, f"data.datadir={tmp_path}"))
    results = [measure_generator(generator, dataset, MeasureSettings(["kid"], 0, share), tmp_path) for share in (1.0, 1.0, 0.1)]
    assert [result["truncation"] for result in results] == [1.0, 1.0, 0.1]
    plain, again, truncated = (result["values"][f"kid_{LITE}"] for result in results)
    assert plain == again != truncated
    finer = Generator(smoke(*FEW, "nerf.render_samples_per_ray=16")).eval()
    finer.load_state_dict(generator.state_dict())
    finer = measure_generator(finer, dataset, KID, tmp_path)
    assert finer["generator_sha256"] == results[0]["generator_sha256"]
    assert finer["rendering_sha256"] != results[0]["rendering_sha256"]


def test_numbers_of_different_protocols_never_share_a_name(tmp_path):
    reals, fakes = Photographs(checkers(12, seed=1)), [checkers(12, seed=2)]
    first = measure(fakes, reals, options(12), tmp_path, names=("kid",))
    again = measure([checkers(12, seed=3)], reals, options(12), tmp_path, names=("kid",))
    fewer = measure(fakes, reals, options(8), tmp_path, names=("kid",))
    other_data = measure(fakes, Photographs(reals.images, "v2"), options(12), tmp_path, names=("kid",))
    key = f"kid_{LITE}"
    assert comparable(first) == comparable(again)
    assert series_name(key, first) == series_name(key, again)
    assert len({series_name(key, result) for result in (first, fewer, other_data)}) == 3


def test_the_best_is_kept_under_one_protocol_and_begins_anew_under_another(smoke, tmp_path):
    state = TrainState(smoke("training.save_best=kid", "training.fid_every=2"), torch.device("cpu"))
    reals = Photographs(checkers(12, seed=1))
    far = measure([0.2 * checkers(12, seed=2)], reals, options(12), tmp_path, names=("kid",))
    near = measure([checkers(12, seed=2)], reals, options(12), tmp_path, names=("kid",))

    def is_best(result):
        before = state.best
        state.best = new_best(result, before, "kid", state.step) or before
        return state.best is not before

    assert is_best(far)
    assert not is_best(far)
    assert is_best(near)
    assert not is_best(far)
    assert state.best["value"] == near["values"][f"kid_{LITE}"]
    fewer = measure([0.2 * checkers(8, seed=2)], reals, options(8), tmp_path, names=("kid",))
    assert is_best(fewer)
    nan = near | {"values": {f"kid_{LITE}": float("nan")}}
    assert not is_best(nan)
    assert TrainState(state.config, state.device).best is None
    fresh = TrainState(state.config, state.device)
    fresh.load_state_dict(state.state_dict())
    assert fresh.best == state.best


FULL, LOADING, NAN, GONE = PermissionError("cache"), MemoryError(), NotFinite("nan"), DataError("photo.png: is missing")


@pytest.mark.parametrize(
    ("failures", "flags", "words"),
    [
        ((FULL,), (False,), ["any False"]),  # one flag a word: whether the processes agree that memory ran out
        ((NAN,), (False,), ["any False"]),
        ((GONE,), (False,), ["any False"]),
        ((LOADING, FULL), (True, False), ["any True", "any False"]),  # before a sample is drawn
        ((FULL, FULL), (True, False), ["any False", "any False"]),  # in another process
    ],
)
def test_a_first_process_that_fails_before_the_samples_keeps_in_step(smoke, tmp_path, monkeypatch, failures, flags, words):
    """Or the others would wait for the first one's next word."""
    done, last, failures, flags = [], failures[-1], iter(failures), iter(flags)

    class Told(Processes):
        def any(self, flag):
            done.append(f"any {flag}")
            return next(flags)

        def map(self, work, items):
            done.append("map")
            try:
                yield from map(work, items)
            finally:
                done.append("map is over")

    def fails(*_):
        raise next(failures)

    monkeypatch.setattr(metrics, "measure", fails)
    config = smoke(*FEW, f"data.datadir={tmp_path}", "data.n_images=4")
    with pytest.raises(type(last), match=str(last)):
        measure_generator(Generator(config), build_dataset(config), KID, tmp_path, processes=Told(0, 2))
    assert done == [said for word in words for said in ("map", "map is over", word)]


def test_an_error_of_an_attempt_that_was_repeated_is_forgotten(smoke, tmp_path, monkeypatch):
    failures, flags = iter((FULL,)), iter((True, False))

    class Told(Processes):
        def any(self, flag):
            return next(flags)

        def map(self, work, items):
            return map(work, items)

    def measures(*_):
        for error in failures:
            raise error
        return {"values": {}}

    monkeypatch.setattr(metrics, "measure", measures)
    config = smoke(*FEW, f"data.datadir={tmp_path}", "data.n_images=4")
    result = measure_generator(Generator(config), build_dataset(config), KID, tmp_path, processes=Told(0, 2))
    assert result["values"] == {}
