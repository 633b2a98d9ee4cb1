"""The shapes of the toy cars: slanted boxes and discs, with proportions and colours sampled from a seed.

A car is designed in metres, standing on z = 0, then scaled to a bounding box of diagonal 2 around the origin. Its front is
towards +x, with yellow lamps; the rear lamps are red. Widths are along y, up is z.
"""

import colorsys

from graf.data.raycast import Solids, slanted_box
from graf.rng import seeded_rng

import torch

YELLOW, RED = (1.0, 0.90, 0.25), (1.0, 0.08, 0.05)
GLASS, TYRE, TRIM, HUB = (0.16, 0.21, 0.27), (0.10, 0.10, 0.11), (0.22, 0.22, 0.24), (0.78, 0.79, 0.82)


def make_car(seed: int, index: int) -> Solids:
    """Car number `index` of a seed: the same on every machine. Data sets have those from 0 on."""
    uniform = iter(torch.rand(16, generator=seeded_rng(seed, index)).tolist())

    def between(low: float, high: float) -> float:
        return low + (high - low) * next(uniform)

    length, width, height = between(3.7, 4.9), between(1.65, 1.9), between(1.25, 1.7)
    tyre_radius, clearance = between(0.30, 0.37), between(0.16, 0.24)
    bonnet, boot = between(0.85, 1.30), between(0.05, 0.95)
    belt = height * between(0.56, 0.64)  # height of the bonnet and of the windows' lower edge
    windscreen, rear_screen = between(0.35, 0.80), between(0.10, 0.55)  # how far each leans, along x
    paint = colorsys.hsv_to_rgb(next(uniform), between(0.65, 0.95), between(0.60, 0.95))

    front, rear, half = length / 2, -length / 2, width / 2
    waist = clearance + 0.55 * (belt - clearance)  # the widest height; the lamps stand above it
    shoulder = half - 0.08
    base_front, base_rear = front - bonnet, rear + boot
    roof_front, roof_rear, roof_half = base_front - windscreen, base_rear + rear_screen, half - 0.26
    roof_edge = height - 0.07

    def screen_at(z: float) -> tuple[float, float, float]:
        """x behind, x in front and half width of the cabin at a height."""
        share = (z - belt) / (height - belt)
        return (
            base_rear + share * (roof_rear - base_rear),
            base_front + share * (roof_front - base_front),
            shoulder - 0.04 + share * (roof_half - shoulder + 0.04),
        )

    cabin_low, cabin_high = screen_at(belt), screen_at(roof_edge)
    pillar = (cabin_low[0] + cabin_low[1]) / 2 + 0.05
    solids = [
        (slanted_box((rear + 0.06, front - 0.06, half - 0.05, clearance), (rear + 0.02, front - 0.02, half, waist)), paint),
        (slanted_box((rear + 0.02, front - 0.02, half, waist), (rear + 0.10, front - 0.22, shoulder, belt)), paint),
        (slanted_box((*cabin_low, belt), (*cabin_high, roof_edge)), GLASS),
        (slanted_box((*cabin_high, roof_edge), (*screen_at(height), height)), paint),
        (
            slanted_box(
                (pillar - 0.07, pillar + 0.07, cabin_low[2] + 0.01, belt),
                (pillar - 0.10, pillar + 0.04, cabin_high[2] + 0.01, roof_edge),
            ),
            paint,
        ),
        (slanted_box((rear, front, half - 0.06, clearance + 0.03), (rear, front, half - 0.06, clearance + 0.15)), TRIM),
    ]
    lamp_low, lamp_high = waist - 0.02, waist + 0.75 * (belt - waist)
    grille = (front - 0.3, front - 0.01, half - 0.06, lamp_low), (front - 0.3, front - 0.13, half - 0.09, lamp_high)
    rear_band = (rear + 0.01, rear + 0.3, half - 0.06, lamp_low), (rear + 0.06, rear + 0.3, half - 0.09, lamp_high)
    bands = [(slanted_box(*grille), TRIM), (slanted_box(*rear_band), TRIM)]
    solids += bands
    for side in (-1, 1):  # a yellow lamp in front and a red one behind
        y, half_lamp = side * (half - 0.27), 0.17
        front_lamp = (front - 0.3, front, half_lamp, lamp_low), (front - 0.3, front - 0.12, half_lamp, lamp_high)
        rear_lamp = (rear, rear + 0.3, half_lamp, lamp_low), (rear + 0.05, rear + 0.3, half_lamp, lamp_high)
        solids += [(slanted_box(*front_lamp, y=y), YELLOW), (slanted_box(*rear_lamp, y=y), RED)]
    axles, wheels = (front - 0.19 * length, rear + 0.19 * length), (half - 0.09, 0.09 - half)
    tyre, hub = (1.0, 0.11), (0.58, 0.125)  # share of the radius, and half width: the hub looks out at both sides
    discs = [[x, y, tyre_radius, share * tyre_radius, deep] for x in axles for y in wheels for share, deep in (tyre, hub)]
    half_size = torch.tensor([length / 2, half + 0.035, height / 2])
    scale = 1 / half_size.norm()
    faces, disc_rows = torch.tensor([faces for faces, _ in solids]), torch.tensor(discs)
    faces[..., 3] = (faces[..., 3] - faces[..., 2] * height / 2) * scale
    disc_rows[:, 2] -= height / 2
    colours = torch.tensor([colour for _, colour in solids] + [TYRE, HUB] * 4)
    return Solids(faces, disc_rows * scale, colours, half_size * scale)
