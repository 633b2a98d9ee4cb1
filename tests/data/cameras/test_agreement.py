"""The overlap of silhouettes with the hull that they carve, by arithmetic; which objects' silhouettes are taken."""

from graf.camera import Labels
from graf.data.cameras.agreement import (
    ObjectViews,
    at_surface,
    before_plain_background,
    carve,
    objects_with_silhouettes,
    overlap,
)

import torch
from test_hull import Photographs, around


def test_a_point_may_be_missed_by_one_silhouette_in_twenty(smoke):
    mask = torch.ones(20, 8, 8, dtype=torch.bool)
    mask[3] = False
    poses = around(20)
    origin = torch.zeros(1, 3)
    assert carve(origin, ObjectViews(mask, poses), smoke().data).tolist() == [0]
    mask[4] = False
    assert carve(origin, ObjectViews(mask, poses), smoke().data).tolist() == []


def test_silhouettes_without_a_common_point_agree_not_at_all(smoke):
    masks = torch.zeros(8, 32, 32, dtype=torch.bool)
    masks[::2, 2:6, 2:6] = masks[1::2, 24:30, 24:30] = True
    assert overlap(ObjectViews(masks, around(8)), smoke().data) == 0


def test_cells_at_the_surface_of_a_cube():
    """5^3 cells, of which the 3^3 inner ones are enclosed."""
    hull = torch.zeros(9, 9, 9, dtype=torch.bool)
    hull[2:7, 2:7, 2:7] = True
    assert at_surface(hull).sum() == 5**3 - 3**3


def test_an_object_before_a_plain_background():
    image = torch.full((3, 16, 16), 200, dtype=torch.uint8)
    image[:, 4:8, 5:9] = 90
    mask = before_plain_background(image)
    assert mask.sum() == 16 and mask[4:8, 5:9].all()
    image[:, ::2] = 100
    assert before_plain_background(image) is None


class Cars(Photographs):
    """Photographs of named objects."""

    objects = ()

    def __init__(self, objects, masks, poses):
        super().__init__(Labels.of_poses(poses), len(objects), lambda index: masks[index].float())
        self.objects = objects


def test_objects_with_eight_views_are_taken_and_else_the_class(smoke):
    data, masks, poses = smoke().data, torch.zeros(24, 64, 64), around(24)
    masks[:, 20:40, 20:40] = 1

    def views_of(objects):
        n = len(objects)
        return sorted(len(views.masks) for views in objects_with_silhouettes(Cars(objects, masks[:n], poses[:n]), data))

    assert views_of(["a"] * 10 + ["b"] * 9 + ["c"] * 5) == [9, 10]
    assert views_of([str(i) for i in range(24)]) == [24]
    assert views_of([str(i) for i in range(7)]) == []


def test_images_without_a_silhouette_are_left_out(smoke):
    masks = torch.zeros(12, 64, 64)
    masks[3:, 20:40, 20:40] = 1
    (views,) = objects_with_silhouettes(Cars(["a"] * 12, masks, around(12)), smoke().data)
    assert len(views.masks) == 9
