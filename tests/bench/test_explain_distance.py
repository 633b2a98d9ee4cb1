"""bench/explain_distance.py: photographs with one fault, and generated images without one."""

import sys

import explain_distance
from check_metrics import halves
from explain_distance import HAZE, draw, restored, spread, stages, without_haze
from graf.checkpoints.export import write_export
from graf.data import build_dataset
from graf.data.views import sample_labels
from graf.models.generator import Generator
from graf.pictures.sampling import fresh_samples

import torch
from torch_fidelity import KEY_METRIC_FID


def test_the_sets_of_a_refined_model(smoke, tmp_path):
    config = smoke("data.n_images=16", f"data.datadir={tmp_path}", "ccsr.mode=refine", "metrics.batch_size=3")
    dataset = build_dataset(config)
    _, others = halves(dataset, 8)
    generator, photographs = Generator(config).eval(), others.images
    found = stages(generator, dataset, others, draw(generator, dataset, 8, seed=0)[0], seed=0)
    assert [images.shape for images in found.values()] == [photographs.shape] * 6
    coarse = found["photographs at the field's resolution"]
    assert 0 < (coarse - photographs).abs().mean() < 0.2
    down = generator.projection.downsample
    torch.testing.assert_close(down(found["the same, restored by CCSR"]), down(photographs), atol=1e-5, rtol=0)
    assert (found["generated"] - found["generated, before refinement"]).abs().max() > 0

    def label_sampler(n, rng):
        return sample_labels(dataset, n, config.data, rng)

    measured = torch.cat(list(fresh_samples(generator, label_sampler, 8, batch_size=8, seed=0)))
    torch.testing.assert_close(found["generated"], measured)


def test_photographs_are_restored_with_their_own_classes_and_cameras(smoke, tmp_path, monkeypatch):
    config = smoke("data.n_images=16", f"data.datadir={tmp_path}", "ccsr.mode=refine", "metrics.batch_size=3")
    dataset, seen = build_dataset(config), []
    dataset.class_index = torch.arange(16)
    _, others = halves(dataset, 8)
    index, generator = torch.tensor(others.indices), Generator(config).eval()
    restore = generator.restore
    monkeypatch.setattr(generator, "restore", lambda *args: (seen.append(args[2]), restore(*args))[1])
    restored(generator, dataset, others, seed=0)
    assert torch.equal(torch.cat([labels.pose_c2w for labels in seen]), dataset.labels.pose_c2w[index])
    seen.clear()
    dataset.labels = None
    restored(generator, dataset, others, seed=0)
    assert torch.equal(torch.cat([labels.class_index for labels in seen]), index)


def test_without_ccsr_there_is_no_refinement_to_look_before(smoke, tmp_path):
    config = smoke("data.n_images=16", f"data.datadir={tmp_path}", "ccsr.mode=none", "ray_sampler.rays_per_patch=256")
    dataset = build_dataset(config)
    generator = Generator(config).eval()
    found = stages(generator, dataset, halves(dataset, 4)[1], draw(generator, dataset, 4, seed=0)[0], seed=0)
    assert not [name for name in found if "field" in name or "refinement" in name]


def test_haze_is_what_is_near_the_background_in_all_colours():
    pixels = torch.tensor([[0.0, 0.0, 0.0], [HAZE / 2] * 3, [HAZE / 2, HAZE / 2, 2 * HAZE], [1.0, 1.0, 1.0]])
    cleaned = without_haze(pixels.T[None, :, None], torch.full((3,), 0.5))  # grey, which is 0 in [-1, 1]
    assert torch.equal(cleaned[0, :, 0].T, pixels * torch.tensor([0.0, 0.0, 1.0, 1.0])[:, None])


def test_images_that_are_all_alike_have_no_spread(smoke, photographs):
    config = smoke("metrics.extractor=efficientnet-lite0").metrics
    found = spread({"various": photographs, "one": photographs[:1].expand_as(photographs)}, config)
    assert found["one"] < 1e-3 * found["various"]


def test_the_table_has_a_row_a_set_and_other_photographs_have_the_spread_of_their_kind(smoke, tmp_path, monkeypatch, caplog):
    config = smoke("data.n_images=16", f"data.datadir={tmp_path}", "metrics.extractor=efficientnet-lite0")
    write_export(tmp_path / "export.safetensors", Generator(config), 0)
    monkeypatch.setattr(sys, "argv", ["explain", str(tmp_path / "export.safetensors"), "--n", "8", "--device", "cpu"])
    caplog.set_level("INFO", logger="graf")
    no_distance = {KEY_METRIC_FID: 0.0}  # each takes seconds, and only whether there is one counts here
    monkeypatch.setattr("torch_fidelity.metrics.fid_statistics_to_metric", lambda *_: no_distance)
    explain_distance.main()
    rows = [line for record in caplog.records for line in record.message.splitlines() if line.startswith("| ")]
    assert rows[2].startswith("| other photographs |") and rows[2].endswith("| 1.00 |")
    assert len(rows) == 2 + 4 + 2 + 4 and rows[8].startswith("| all of them")
