"""The tensors in tuples and dataclasses: found in their order, changed alike, and indexed by rows."""

from graf.camera import Labels
from graf.rendering import RayNoise
from graf.tensors import each_tensor, tensors_of
from graf.training.inputs import Batch

import pytest
import torch


def test_each_tensor_of_a_batch_is_found_in_its_order(photographs, labels):
    batch = Batch(None, photographs, labels, None)
    assert [x.shape for x in tensors_of(batch)] == [(4, 3, 16, 16), (4, 3, 4), (4,), (4,)]
    doubled = each_tensor((batch, 7, "x"), lambda x: 2 * x)
    assert isinstance(doubled[0], Batch) and doubled[1:] == (7, "x") and doubled[0].fake_inputs is None
    assert torch.equal(doubled[0].real_labels.pose_c2w, 2 * labels.pose_c2w)


@pytest.mark.parametrize("rows", [slice(1, 3), torch.tensor([2, 0])], ids=("slice", "index"))
def test_rows_are_those_of_each_tensor_also_in_labels(photographs, labels, rows):
    found = Batch(None, photographs, labels, None)[rows]
    assert isinstance(found, Batch) and found.fake_inputs is None and found.real_inputs is None
    assert torch.equal(found.real_images, photographs[rows])
    assert torch.equal(found.real_labels.pose_c2w, labels.pose_c2w[rows])
    assert torch.equal(found.real_labels.class_index, labels.class_index[rows])


def test_what_is_none_stays_none_and_two_slices_take_rays_of_images():
    zeros = torch.zeros(3, dtype=torch.long)
    assert Labels(None, zeros, zeros)[1:].pose_c2w is None
    noise = RayNoise(jitter=torch.arange(24.0).view(2, 4, 3))
    found = noise[slice(1, 2), slice(2, 4)]
    assert torch.equal(found.jitter, torch.arange(18.0, 24).view(1, 2, 3)) and found.density_noise is None
