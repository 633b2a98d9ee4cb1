"""Pictures of a rendering: each kind shows what it says."""

from graf.commands.jobs import STAGES
from graf.evaluation.outputs import as_uint8, picture
from graf.models.generator import Generator

import pytest
import torch


@pytest.fixture
def rendering(refine, labels):
    generator = Generator(refine()).eval()
    latents = generator.sample_latents(4, torch.Generator().manual_seed(0))
    return generator.render(latents, labels.pose_c2w)


def test_what_was_refined_and_what_the_field_rendered_are_told_apart(rendering):
    refined, field = (picture(rendering, kind, 2.6, 4.6) for kind in ("rgb", "nerf"))
    assert torch.equal(refined, as_uint8(rendering.images))
    assert torch.equal(field, as_uint8(rendering.low_images).repeat_interleave(2, -1).repeat_interleave(2, -2))
    assert not torch.equal(refined, field)


def test_stages_name_the_pictures_of_their_names():
    assert "rgb" in STAGES["refined"] and "nerf" not in STAGES["refined"]
    assert "nerf" in STAGES["nerf"] and "rgb" not in STAGES["nerf"]
    assert set(STAGES["both"]) == {*STAGES["refined"], *STAGES["nerf"]}
