"""Curves: thinned out without bias, a figure per protocol, gaps where nothing was finite, words for what never changes."""

import json
import logging
import math

from graf.errors import GrafError
from graf.metrics.results import protocol_title
from graf.reporting.curves import Curve, draw_curves, figures, read_history, time_axis

import numpy as np
import pytest
import torch
from PIL import Image

LITE = "efficientnet-lite0"


def result(kid=0.1, **changes):
    """A result of `measure`, with what changes."""
    protocol = {
        "extractor": LITE,
        "weights_sha256": "579344248a93",
        "resize": "224 x 224, bicubic, antialiased",
        "resolution": 16,
        "n_real": 20,
        "n_fake": 30,
        "real_fingerprint": "fd8aa420a717",
        "kid_subsets": 100,
        "kid_subset_size": 20,
        "seed": 2020,
    }
    values = {f"fid_{LITE}": 10 * kid, f"kid_{LITE}": kid, f"kid_std_{LITE}": 0.01}
    return {"values": values, "versions": {"torch": "2"}, "warnings": []} | protocol | changes


def with_std(result):
    """The result with a standard deviation of KID that is not that of others."""
    return result | {"values": result["values"] | {f"kid_std_{LITE}": result["values"][f"kid_{LITE}"] / 9}}


def write_rows(run_dir, *rows):
    """metrics.jsonl of rows, or of lines as they are."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (run_dir / "metrics.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return run_dir / "metrics.jsonl"


def line_data(axes, label):
    (line,) = (line for line in axes.get_lines() if line.get_label().startswith(label))
    return line.get_xdata(), line.get_ydata()


def test_losses_share_axes_and_keep_their_numbers(tmp_path):
    rows = [{"step": 10 * i, "loss_d": 1.0 / i, "loss_g": 2.0 * i, "opacity": i / 4} for i in range(1, 4)]
    drawn = figures(read_history(write_rows(tmp_path, *rows)))
    (losses,), (opacity,) = (drawn[name].axes for name in ("losses", "training"))
    steps, values = line_data(losses, "generator (loss_g)")
    assert list(steps) == [10, 20, 30]
    assert list(values) == [2, 4, 6]
    assert list(line_data(losses, "discriminator (loss_d)")[1]) == [1, 0.5, 1 / 3]
    assert [line.get_label() for line in opacity.get_lines()] == ["in training (opacity)"]


def test_every_panel_has_a_title_two_named_axes_and_whole_steps(tmp_path):
    rows = [{"step": i, "loss_d": 1.0 / i, "opacity": i / 9, "mine_a": i, "mine_b": -i} for i in (1, 2, 3)]
    evaluations = ({"step": 1000 * i, "evaluation": result(kid=i)} for i in (1, 2))
    drawn = figures(read_history(write_rows(tmp_path, *rows, *evaluations)))
    panels = [axes for figure in drawn.values() for axes in figure.axes]
    named = [(axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) for axes in panels]
    assert named == [
        ("losses", "training step", "loss"),
        ("KID", "training step", "KID, lower is better"),
        ("opacity", "training step", "share of the frame"),
        ("mine", "training step", "mine"),
        ("FID", "training step", "FID, lower is better"),
        ("KID", "training step", "KID, lower is better"),
    ]
    for axes in panels:
        assert all(tick == int(tick) for tick in axes.get_xticks())
    drawn["kid"].canvas.draw()
    assert "2,000" in [label.get_text() for label in panels[1].get_xticklabels()]


def test_what_never_changes_is_said_in_words_and_has_no_panel(tmp_path):
    rows = [{"step": i, "lr_g": 1e-3, "depth_range": 2.0, "depth_spread": i / 9, "penalty": None} for i in (1, 2, 3)]
    drawn = figures(read_history(write_rows(tmp_path, *rows, {"step": 3, "evaluation": result()})))
    assert list(drawn) == ["training"]  # of a single evaluation there is no curve
    depth, penalty = drawn["training"].axes
    assert [line.get_label() for line in depth.get_lines()] == ["spread (depth_spread)"]
    assert [line.get_label() for line in penalty.get_lines()] == ["R1 (penalty), 3 not finite"]
    assert drawn["training"].get_supxlabel() == "always the same: lr_g 0.001, depth_range 2"


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [(14, (1, "seconds")), (119, (1, "seconds")), (600, (60, "minutes")), (7300, (3600, "hours")), (1e6, (86400, "days"))],
)
def test_time_has_the_unit_that_reads_well(seconds, unit):
    assert time_axis(seconds) == unit


@pytest.mark.parametrize(
    "change",
    [
        {"n_real": 21},
        {"n_fake": 31},
        {"resolution": 32},
        {"resize": "299 x 299, bilinear"},
        {"weights_sha256": "6726825d"},
        {"real_fingerprint": "00000000"},
        {"seed": 1},
        {"kid_subset_size": 19},
        {"extractor": "inception-v3-compat"},
    ],
)
def test_another_protocol_is_another_figure_whose_title_says_so(tmp_path, change):
    changes = {2: change, 4: change}
    rows = ({"step": i, "evaluation": with_std(result(kid=i, **changes.get(i, {})))} for i in (1, 2, 3, 4))
    drawn = figures(read_history(write_rows(tmp_path, *rows)))
    kid, first, other = drawn.values()
    assert [list(line.get_xdata()) for line in kid.axes[0].get_lines()] == [[2, 4]] * 2  # of the newest protocol
    points = [[list(line.get_xdata()) for axes in f.axes for line in axes.get_lines()] for f in (first, other)]
    assert points == [[[1, 3]] * 3, [[2, 4]] * 3]  # fid, kid and kid_std of each
    titles = [" ".join(figure.get_suptitle().split()) for figure in (first, other)]
    assert titles[0] != titles[1]
    (value,) = change.values()
    assert str(value)[:8] in titles[1]
    assert titles[0] == protocol_title(result())


def test_what_does_not_matter_to_a_number_does_not_part_its_curve(tmp_path):
    other = result(versions={"torch": "3"}, warnings=["few"], sample_seed=3, step=2)
    history = read_history(write_rows(tmp_path, {"step": 1, "evaluation": result()}, {"step": 2, "evaluation": other}))
    (evaluations,) = history.evaluations.values()
    assert evaluations.curves[f"kid_{LITE}"].points().steps.tolist() == [1, 2]
    assert (evaluations.newest, evaluations.newest_step) == (other, 2)


def test_none_is_a_gap_and_counted(tmp_path):
    rows = [{"step": i, "loss_d": None if i in (2, 3) else i} for i in range(1, 6)]
    path = write_rows(tmp_path, *rows, '{"step": 6, "loss_d": NaN}', '{"step": 7, "loss_d": 1e39}')
    (axes,) = figures(read_history(path))["losses"].axes
    steps, values = line_data(axes, "discriminator (loss_d), 4 not finite")
    assert list(steps) == [1, 2, 3, 4, 5, 6, 7]
    assert [math.isnan(value) for value in values] == [False, True, True, False, False, True, True]


def test_damaged_lines_are_left_out_and_said(tmp_path, caplog):
    whole = [{"step": 1, "loss_d": 1.0}, {"step": 2, "evaluation": result()}, {"step": 9, "loss_d": 3.0}]
    damaged = [
        '{"step": 3, "loss_',
        "",
        "\0\0\0",
        "[1]",
        "7",
        '{"loss_d": 1.0}',
        '{"step": "4", "loss_d": 1.0}',
        '{"step": 5, "loss_d": "high"}',
        '{"step": 5, "loss_d": [1]}',
        '{"step": 6, "evaluation": null}',
        '{"step": 6, "evaluation": {"values": [1]}}',
        '{"step": 6, "evaluation": {"values": {}}}',
        '{"step": 6, "evaluation": {"values": {"kid_x": {}}}}',
        '{"step": 7, "loss_d": 1' + 400 * "0" + "}",
        100_000 * "[",
    ]
    path = write_rows(tmp_path, whole[0], *damaged, *whole[1:])
    with caplog.at_level(logging.WARNING, logger="graf"):
        history = read_history(path)
    assert history.training["loss_d"].points().steps.tolist() == [1, 9]
    assert len(history.evaluations) == 1
    assert history.damaged == len(damaged)
    assert caplog.messages == [f"{path}: left out what cannot be read, 15 lines (2, 3, 4, 5, 6, ...)"]


def test_a_long_curve_keeps_its_mean_its_range_and_its_ends():
    rng = torch.Generator().manual_seed(0)
    values = torch.rand(1003, generator=rng, dtype=torch.float64).tolist()
    values[500] = 77.0  # a spike
    curve, sizes = Curve(20), []
    for step, value in enumerate(values):
        curve.add(step, value)
        sizes.append(len(curve.points().steps))
    assert max(sizes) == 20
    assert min(sizes[20:]) > 10
    assert curve.rows_per_point == 51  # 1003 = 19 * 51 + 34
    steps, means, lows, highs = curve.points()
    assert 51 * means[:-1].sum() + 34 * means[-1] == pytest.approx(sum(values))
    assert (min(lows), max(highs)) == (min(values), 77.0)
    assert steps[0] == 25 and steps[-1] == 969 + 33 / 2
    assert means[0] == pytest.approx(sum(values[:51]) / 51)
    assert steps.tolist() == sorted(steps)


def test_a_point_of_many_rows_is_a_gap_only_where_none_is_finite():
    curve = Curve(2)
    for step, value in enumerate([1.0, None, 3.0, None, None, None]):
        curve.add(step, value)
    assert curve.rows_per_point == 3
    steps, means, lows, highs = curve.points()
    assert steps.tolist() == [1, 4]
    assert (means[0], lows[0], highs[0]) == (2, 1, 3)
    assert np.isnan([means[1], lows[1], highs[1]]).all()
    assert curve.not_finite == 4


def test_files_are_pictures_and_a_strange_name_stays_in_the_folder(tmp_path):
    (tmp_path / "run").mkdir()
    strange = result(extractor="../../$\\evil$_{", values={"kid_$x_{": 1.0})
    other = strange | {"values": {"kid_$x_{": 2.0}}
    rows = ({"step": i, "_$a_{": i, "$b_{": 7} for i in (1, 2))
    write_rows(tmp_path / "run", *rows, *({"step": 3, "evaluation": each} for each in (strange, other)))
    files = draw_curves(tmp_path / "run", tmp_path / "out")
    assert sorted(files) == sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files[:2]] == ["kid.png", "training.png"]
    for file in files:
        with Image.open(file) as image:
            assert image.format == "PNG"
            assert len(image.convert("L").getcolors()) > 10  # not an empty sheet


def test_a_run_without_rows_has_no_figures_and_one_without_a_file_is_refused(tmp_path):
    write_rows(tmp_path)
    assert draw_curves(tmp_path, tmp_path / "out") == []
    with pytest.raises(GrafError, match=r"nowhere.metrics\.jsonl: no such file; name the folder of a run"):
        draw_curves(tmp_path / "nowhere", tmp_path / "out")
