"""metrics.json grows by each measurement, of one checkpoint and one way of drawing."""

import hashlib
import json

from graf.config import config_to_dict, load_config
from graf.config import digest as module
from graf.config.digest import older_rendering_sha256, rendering_sha256
from graf.config.older import OLDER_NAMES
from graf.metrics.results import METRICS_FILE, OF_IMAGES, ResultFile, merged

import pytest


@pytest.fixture
def results(tmp_path, smoke):
    return lambda *settings, sha256="0a": ResultFile(tmp_path, tmp_path / "model.pt", sha256, 5, True, smoke(*settings))


def digest_of(settings):
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()


def content_of(results):
    return json.loads((results.folder / METRICS_FILE).read_text())


def test_a_result_says_whose_it_is_and_stays_beside_the_next(results):
    of_run = results()
    assert of_run.keep({"values": {"kid": 0.5}}) == of_run.folder / METRICS_FILE
    of_run.keep({"sweep": {"error": 1.0} | of_run.rendered_by})
    content = content_of(of_run)
    assert (content["step"], content["ema"], content["checkpoint"]) == (5, True, "model.pt")
    assert content["checkpoint_sha256"] == "0a"  # as it was read: by now there is no such file
    assert content["values"] == {"kid": 0.5} and content["sweep"]["error"] == 1.0


def files_of(results):
    return {file.name: json.loads(file.read_text()) for file in results.folder.iterdir()}


def test_another_checkpoints_results_are_set_aside(results, caplog):
    for sha256, value in (("0a", 0.5), ("0b", 0.25), ("0c", 0.125)):
        assert results(sha256=sha256).kept() == {}
        results(sha256=sha256).keep({"values": {"kid": value}})
    kid = {name: content["values"]["kid"] for name, content in files_of(results()).items()}
    assert kid == {"metrics_1.json": 0.5, "metrics_2.json": 0.25, "metrics.json": 0.125}
    assert ["metrics_1.json" in line and "another checkpoint" in line for line in caplog.messages] == [True, False]


def test_values_of_another_protocol_are_set_aside_and_those_of_the_same_are_not(results):
    for values, terms in (
        ({"fid": 9.0}, {"n_fake": 50_000}),
        ({"kid": 1.0}, {"n_fake": 50_000}),
        ({"kid": 2.0}, {"n_fake": 8}),
    ):
        results().keep({"values": values} | terms)
    content = files_of(results())
    assert content["metrics_1.json"]["values"] == {"kid": 1.0} and content["metrics.json"]["values"] == {"kid": 2.0}
    assert len(content) == 2
    results().keep({"sweep": {"error": 1.0} | results().rendered_by})
    assert len(files_of(results())) == 2 and content_of(results())["values"] == {"kid": 2.0}


@pytest.mark.parametrize("theirs", ['{"loss": 1}', "[1]"])
def test_a_file_of_the_users_is_set_aside(results, theirs):
    (results().folder / METRICS_FILE).write_text(theirs)
    results().keep({"values": {"kid": 0.5}})
    assert (results().folder / "metrics_1.json").read_text() == theirs
    assert content_of(results())["values"] == {"kid": 0.5}


@pytest.mark.parametrize("damaged", ["", "{", "[1]", "null"])
def test_a_damaged_file_says_nothing(results, damaged):
    (results().folder / METRICS_FILE).write_text(damaged)
    assert results().kept() == {}


def test_numbers_of_images_drawn_otherwise_do_not_stay_beside_new_ones(results):
    of_run, other = results(), results("nerf.render_samples_per_ray=9")
    of_run.keep({"values": {}} | {name: {"error": 1.0} | of_run.rendered_by for name in OF_IMAGES})
    assert all(of_run.kept()[name]["error"] == 1.0 for name in OF_IMAGES)
    other.keep({"sweep": {"error": 2.0} | other.rendered_by})
    content = content_of(other)
    assert content["sweep"]["error"] == 2.0
    assert "consistency" not in content and "values" in content
    aside = files_of(other)["metrics_1.json"]
    assert aside["consistency"]["error"] == aside["sweep"]["error"] == 1.0


def test_distances_of_images_rendered_or_sampled_otherwise_are_not_told_as_these_images_own(results):
    of_run, other = results(), results("nerf.render_samples_per_ray=9")
    kept = {"values": {"kid": 0.5}, "warnings": ["few"], "truncation": 0.3} | of_run.rendered_by
    of_run.keep(kept | {"sweep": {"error": 1.0} | of_run.rendered_by})
    assert of_run.kept_at(0.3) == content_of(of_run)
    for found in (of_run.kept_at(1.0), other.kept_at(0.3)):
        assert "values" not in found and "warnings" not in found and found["step"] == 5
    assert "sweep" in of_run.kept_at(1.0)


@pytest.mark.parametrize("term, value", [("truncation", 0.5), ("seed", 1), ("latents", ["other.json"])])
def test_results_of_other_objects_are_set_aside(results, caplog, term, value):
    of_run = results()
    entry = {"error": 1.0, "seed": 0, "truncation": 1.0} | of_run.rendered_by
    for measured in (entry, entry | {"error": 2.0}, entry | {"error": 3.0, term: value}):
        of_run.keep({"haze": measured})
    found = files_of(of_run)
    assert {name: content["haze"]["error"] for name, content in found.items()} == {"metrics_1.json": 2.0, "metrics.json": 3.0}
    assert "results of other objects or of another truncation; it is now metrics_1.json" in caplog.text
    assert ("haze" in of_run.kept_at(1.0)) == (term != "truncation")


@pytest.mark.parametrize("key", ["data.cache_gb=0", "data.prefetch_factor=3", "nerf.checkpoint_rays=9", "nerf.chunk=64"])
def test_results_stay_where_memory_is_used_otherwise(results, key):
    of_run, moved = results(), results(key)
    of_run.keep({"values": {"kid": 0.5}, "truncation": 1.0, "haze": {"error": 1.0} | of_run.rendered_by} | of_run.rendered_by)
    assert moved.kept_at(1.0) == of_run.kept_at(1.0) and "values" in moved.kept_at(1.0)


def test_results_that_an_earlier_version_kept_apart_by_memory_stay(results):
    of_run = results("data.cache_gb=3")
    assert older_rendering_sha256(load_config("film_64", ["data.cache_gb=3"])) == digest_of({"data.cache_gb": 3.0})
    older = {"rendering_sha256": older_rendering_sha256(of_run.config)}
    assert older != of_run.rendered_by
    of_run.keep({"values": {"kid": 0.5}, "warnings": [], "truncation": 1.0, "haze": {"error": 1.0} | older} | older)
    assert {"values", "haze"} <= of_run.kept_at(1.0).keys()
    of_run.keep({"sweep": {"error": 1.0} | of_run.rendered_by})
    new = merged(of_run.kept(), {"values": {"fid": 9.0}, "truncation": 1.0, "warnings": []} | of_run.rendered_by)
    of_run.keep(new)
    assert len(files_of(of_run)) == 1 and content_of(of_run)["haze"]["error"] == 1.0
    assert content_of(of_run)["values"] == {"kid": 0.5, "fid": 9.0}


def test_numbers_that_are_not_finite_are_null(results):
    of_run = results()
    of_run.keep({"values": {"kid": float("nan"), "fid": 2.5}, "counts": [1, float("inf")], "whole": 3, "known": True})
    text = (of_run.folder / METRICS_FILE).read_text()
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert content["values"] == {"kid": None, "fid": 2.5} and content["counts"] == [1, None]
    assert (content["whole"], content["known"]) == (3, True)


def test_a_key_that_is_renamed_again_or_added_leaves_the_digest_as_it_was(smoke, monkeypatch):
    plain, finer, wider = (smoke(*overrides) for overrides in ((), ("nerf.render_samples_per_ray=9",), ("ccsr.light.width=9",)))
    before = [rendering_sha256(config) for config in (plain, finer, wider)]
    assert len(set(before)) == 3
    assert rendering_sha256(smoke("training.lr_g=0.5", "metrics.n_fake=9")) == before[0]

    def as_a_later_version(config):
        content = config_to_dict(config)
        content["nerf"]["picture_samples"] = content["nerf"].pop("render_samples_per_ray")
        content["nerf"]["added"] = {"later": 1}
        content["ccsr"]["base_width"] = content["ccsr"]["light"].pop("width")
        return content

    renamed = {"nerf.render_samples_per_ray": "nerf.picture_samples", "ccsr.light.width": "ccsr.base_width"}
    names = {old: renamed.get(new, new) for old, new in OLDER_NAMES.items()} | renamed
    monkeypatch.setattr(module, "config_to_dict", as_a_later_version)
    monkeypatch.setattr(module, "OLDER_NAMES", names)
    assert [rendering_sha256(config) for config in (plain, finer, wider)] == before


def test_a_default_that_changes_leaves_the_digest_as_it_was():
    """film_64.yaml draws as the default did when digests were first written: no key differed, and none does."""
    assert rendering_sha256(load_config("film_64")) == digest_of({})
    assert rendering_sha256(load_config("film_64", ["nerf.samples_per_ray=16"])) == digest_of({"nerf.N_samples": 16})
    assert rendering_sha256(load_config("film_64", ["data.alpha=auto"])) == digest_of({"data.alpha": "auto"})


def test_results_of_other_images_are_set_aside(results, caplog):
    of_run = results()
    entry = {"error": 1.0, "real_fingerprint": "aa"} | of_run.rendered_by
    of_run.keep({"values": {"kid": 0.5}, "warnings": [], "real_fingerprint": "aa"} | of_run.rendered_by)
    of_run.keep({"haze": entry})
    of_run.keep({"memorised": entry | {"held_out_fingerprint": "h1"}})
    of_run.keep({"sweep": {"error": 1.0} | of_run.rendered_by})
    assert len(files_of(of_run)) == 1
    of_run.keep({"variety": entry | {"real_fingerprint": "bb"}})
    found = files_of(of_run)
    assert "results of other images, or of the same with other times of change; it is now metrics_1.json" in caplog.text
    assert found["metrics_1.json"].keys() >= {"values", "haze", "memorised", "sweep"}
    assert found["metrics.json"].keys() == {"variety", "sweep", "step", "ema", "checkpoint", "checkpoint_sha256"}
    of_run.keep({"memorised": entry | {"real_fingerprint": "bb", "held_out_fingerprint": "h1"}})
    of_run.keep({"memorised": entry | {"real_fingerprint": "bb", "held_out_fingerprint": "h2"}})
    assert files_of(of_run)["metrics_2.json"]["memorised"]["held_out_fingerprint"] == "h1"


def test_latents_of_another_distribution_are_other_images():
    assert rendering_sha256(load_config("film_64", ["z_dist.type=uniform"])) == digest_of({"z_dist.type": "uniform"})


def test_results_of_other_latents_are_set_aside(results):
    gaussian, uniform = results(), results("z_dist.type=uniform")
    gaussian.keep(
        {"values": {"kid": 0.5}, "truncation": 1.0, "haze": {"error": 1.0} | gaussian.rendered_by} | gaussian.rendered_by
    )
    assert not uniform.kept_at(1.0).keys() & {"values", "haze"}
    uniform.keep({"sweep": {"error": 1.0} | uniform.rendered_by})
    assert "haze" in files_of(uniform)["metrics_1.json"] and "haze" not in content_of(uniform)
