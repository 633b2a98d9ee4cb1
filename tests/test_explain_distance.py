"""tools/explain_distance.py: what stands between photographs and generated images has one fault each."""

import torch

from graf.data import build_dataset
from graf.models.generator import Generator
from tools.check_metrics import halves
from tools.explain_distance import HAZE, spread, stages, without_haze


def test_the_stages_of_a_refined_model(smoke, tmp_path):
    config = smoke("data.n_images=16", f"data.datadir={tmp_path}", "metrics.extractor=efficientnet-lite0", "ccsr.mode=refine")
    dataset = build_dataset(config)
    _, photographs = halves(dataset, 8)
    generator = Generator(config).eval()
    found = stages(generator, dataset, photographs, seed=0)
    assert [images.shape for images in found.values()] == [photographs.shape] * 4
    coarse = found["photographs at the field's resolution"]
    assert 0 < (coarse - photographs).abs().mean() < 0.2
    assert (found["generated"] - found["generated, before refinement"]).abs().max() > 0
    again = stages(generator, dataset, photographs, seed=0)
    assert all(torch.equal(images, again[name]) for name, images in found.items())


def test_without_ccsr_there_is_no_refinement_to_look_before(smoke, tmp_path):
    config = smoke("data.n_images=16", f"data.datadir={tmp_path}", "ccsr.mode=none", "ray_sampler.N_samples=256")
    dataset = build_dataset(config)
    found = stages(Generator(config).eval(), dataset, halves(dataset, 4)[1], seed=0)
    assert list(found) == ["generated", "generated, haze removed"]


def test_haze_is_what_is_nearly_background():
    images = torch.tensor([1.0, 1 - HAZE / 2, 0.0]).expand(1, 3, 1, 3)
    cleaned = without_haze(images, torch.ones(3))
    assert cleaned[0, 0, 0].tolist() == [1.0, 1.0, 0.0]


def test_images_that_are_all_alike_have_no_spread(smoke, photographs):
    config = smoke("metrics.extractor=efficientnet-lite0").metrics
    found = spread({"various": photographs, "one": photographs[:1].expand_as(photographs)}, config)
    assert found["one"] < 1e-3 * found["various"]
