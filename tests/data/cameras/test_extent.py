"""What data.radius and data.fov show, and the radius at which objects are about 2 units across."""

from graf.data.cameras.extent import describe_extent, extent

import torch
from test_hull import Photographs


def test_what_radius_and_fov_show_and_a_better_radius(smoke):
    """2 x 3.6 x tan 16 degrees = 2.06 units; a quarter of it is 0.516, which becomes 2 at 3.6 x 2 / 0.516 = 13.95."""
    mask = torch.zeros(64, 64)
    mask[10:26, 30:40] = 1
    dataset = Photographs(None, 12, lambda index: mask)
    data = smoke().data
    assert describe_extent(extent(dataset, data), data) == (
        "data.radius 3.6 with data.fov 32 shows 2.06 units across, of which the objects fill 0.25; for objects about 2 units "
        "across set data.radius: 13.9, data.near: 12.9 and data.far: 14.9"
    )
    mask[2:60] = mask[12]
    assert describe_extent(extent(dataset, data), data).endswith("of which the objects fill 0.91")
