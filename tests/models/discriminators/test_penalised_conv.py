"""The convolutions that a gradient penalty differentiates twice, against PyTorch's."""

from graf.models.discriminators.penalised_conv import TwiceDifferentiatedConv, gradients_by_images_alone

import pytest
import torch
from torch.nn import functional as F

SHAPES = [((2, 3, 8, 8), 4, (2, 2), (1, 1)), ((2, 3, 4, 4), 4, (1, 1), (0, 0)), ((1, 2, 7, 5), 3, (2, 2), (1, 1))]


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), SHAPES)
def test_both_gradients_and_the_penaltys_are_those_of_pytorch(shape, kernel, stride, padding):
    torch.manual_seed(0)
    images = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, shape[1], kernel, kernel, dtype=torch.float64, requires_grad=True)

    def penalised(convolution):
        maps = convolution(images, weight, bias)
        with gradients_by_images_alone():
            (gradient,) = torch.autograd.grad(maps.square().sum(), images, create_graph=True)
        return maps, gradient, *torch.autograd.grad(gradient.pow(3).sum() + maps.pow(3).sum(), (images, weight, bias))

    found = penalised(lambda *inputs: TwiceDifferentiatedConv.apply(*inputs, stride, padding))
    expected = penalised(lambda *inputs: F.conv2d(*inputs, stride, padding))
    for value, right in zip(found, expected, strict=True):
        torch.testing.assert_close(value, right)


def test_a_graph_of_the_weights_gradients_is_made_where_they_are_asked_for():
    torch.manual_seed(0)
    images, weight = (
        torch.randn(2, 3, 8, 8, dtype=torch.float64),
        torch.randn(5, 3, 4, 4, dtype=torch.float64, requires_grad=True),
    )

    def twice(convolution):
        (gradient,) = torch.autograd.grad(convolution(images, weight).pow(3).sum(), weight, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), weight)[0]

    found = twice(lambda images, weight: TwiceDifferentiatedConv.apply(images, weight, None, (2, 2), (1, 1)))
    torch.testing.assert_close(found, twice(lambda images, weight: F.conv2d(images, weight, None, 2, 1)))
