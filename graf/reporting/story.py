"""What the numbers of a run say, in sentences: how good its images are, whether an object is one, what is lacking."""

from collections.abc import Iterator
from typing import Any

from graf.camera import elevation_of_v
from graf.inversion.results import FAILED_DB
from graf.metrics.shapes import VARIETY_CAVEAT
from graf.reporting.curves import History
from graf.reporting.run_status import DISTANCES, collapse_sentences

FEW_STEPS, MANY_STEPS = 10, 25  # of 255, up to which the colours of two views agree, or agree roughly
CONTRADICTED = 0.02  # share of the surface from which views contradict each other
JUMP = 3.0  # times the median change between frames, from which something jumps
CHECKERBOARD = 2.0  # times the data's energy between neighbouring pixels


def distances(result: dict) -> Iterator[tuple[str, str]]:
    """KID and FID of a result of `metrics.measure`, as people read them."""
    for name, shown in DISTANCES.items():
        value = _number(result.get("values", {}).get(f"{name}_{result.get('extractor')}"))
        if value is not None:
            yield shown, f"{value:.3g}"


def protocol_sentence(result: dict, step: int) -> str:
    """What a result of `metrics.measure` is of, without its digests."""
    return (
        f"Measured at step {step:,} over {result.get('n_fake', '?')} generated and {result.get('n_real', '?')} real images at "
        f"{result.get('resolution', '?')} pixels, in the features of {result.get('extractor', '?')}. Lower is better; a number "
        "under another protocol cannot be compared with it."
    )


def progress_sentence(history: History) -> str:
    """How KID changed in training, under the protocol that was used last; empty where it was measured once at most."""
    if not history.evaluations:
        return ""
    newest = max(history.evaluations.values(), key=lambda evaluations: evaluations.newest_step)
    curve = newest.curves.get(f"kid_{newest.protocol['extractor']}")
    found = zip(*curve.points()[:2], strict=True) if curve else ()
    points = [(step, mean) for step, mean in found if mean == mean]
    if len(points) < 2:
        return ""
    (first_step, first), (last_step, last) = points[0], points[-1]
    best_step, best = min(points, key=lambda point: point[1])
    went = f"KID went from {first:.4g} at step {first_step:,.0f} to {last:.4g} at step {last_step:,.0f}"
    return went + (f"; it was lowest at step {best_step:,.0f}, {best:.4g}." if best < last else ", the lowest so far.")


def agreement(found: dict) -> Iterator[str]:
    """Whether the views of an object agree, from `consistency` in metrics.json, with the numbers that say so."""
    stage = "refined" if "depth_warp_error_refined" in found else "nerf"
    error, share, against = (
        _number(found.get(f"{name}_{stage}")) for name in ("depth_warp_error", "comparable_share", "contradicted_share")
    )
    if error is None:
        yield "Whether views agree is not known: no surface was opaque enough to be compared."
    else:
        verdict = "agree" if error <= FEW_STEPS else "agree roughly" if error <= MANY_STEPS else "do not agree"
        angle, pairs = _number(found.get("angle_deg")), found.get("pairs", "?")
        camera = "another camera" if angle is None else f"a camera {angle:g} degrees further on"
        yield (
            f"Views {verdict}: a point of the surface, carried by its depth to {camera}, meets a "
            f"colour that differs by {error:.1f} of 255 steps on average"
            + (f", over the {share:.0%} of the surface that can be compared" if share is not None else "")
            + f" ({pairs} objects)."
        )
        before = _number(found.get("depth_warp_error_nerf"))
        if stage == "refined" and before is not None:
            yield f"Before CCSR refines them, the field's own images differ by {before:.1f}."
    if against is not None:
        where = "There is a contradiction" if against > CONTRADICTED else "There is hardly any contradiction"
        yield f"{where}: at {against:.2%} of the surface the other camera looks through it."
    jump, step_deg = _number(found.get("popping")), _number(found.get("turn_step_deg"))
    if jump is not None and step_deg is not None:
        turning = f"while an object turns by {step_deg:g} degree per frame: the largest change is {jump:.1f} times the median"
        yield f"{'Something jumps' if jump > JUMP else 'Nothing jumps'} {turning}."


def field_sentence(sweep: dict) -> str:
    """How far CCSR's images are from the field's own, from `sweep` in metrics.json; empty without it."""
    error = _number(sweep.get("low_resolution_error"))
    if error is None:
        return ""
    steps = max(127.5 * error, 0.0001)
    return f"Scaled down, the refined images are those of the radiance field to within {steps:.4f} of 255 steps."


def memorised(found: dict) -> str:
    """Whether samples repeat training images, from neighbours.json; empty without its numbers."""
    share, samples = _number(found.get("share_nearer")), found.get("n_samples", "?")
    if share is None:
        return ""
    return (
        f"{share:.0%} of {samples} samples are nearer to a training image than training images are to one another. About 50% "
        "means new objects of the same kind, nearly all means images known by heart, and nearly none that samples do not look "
        "like the data yet."
    )


def fit_sentence(found: dict) -> str:
    """How like photographs the object is that was found in them, from inversion.json; empty without its numbers."""
    rows = found.get("photographs")
    values = [row.get("psnr_db", "") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    if not values or not all(value is None or _number(value) is not None for value in values):
        return ""
    if values == [None]:  # infinite, of equal images
        return "Equal to the photograph."
    shown = [*("infinite" if value is None else f"{value:.1f}" for value in values)]
    told = f"PSNR {', '.join(shown[:-1])} and {shown[-1]} dB" if len(shown) > 1 else f"PSNR {shown[0]} dB"
    failed = sum(value is not None and value < FAILED_DB for value in values)
    if not failed:
        return f"{told}."
    which = "the photograph was" if len(values) == 1 else f"{failed} of {len(values)} photographs were"
    return f"{told}: {which} not found."


def shortcomings(measured: dict, history: History, config: dict) -> Iterator[str]:
    """What metrics.json, the rows of training and the config say is lacking, a sentence each."""
    found = measured.get("consistency")
    if isinstance(found, dict):
        yield from (f"{message[0].upper()}{message[1:]}." for message in collapse_sentences(found))
        generated, real = (_number(found.get(f"nyquist_ppm_{kind}")) for kind in ("generated", "real"))
        if generated is not None and real is not None and generated > CHECKERBOARD * real:
            yield f"Neighbouring pixels alternate {generated / real:.1f} times as much as in the data: look for a checkerboard."
    for name, text in (
        ("variety", "Silhouettes vary {share_of_data:.0%} as much as those of the data. " + VARIETY_CAVEAT),
        (
            "coverage",
            "{coverage:.0%} of the shapes compared with are the nearest one of some object; at best {coverage_best:.0%}.",
        ),
        ("haze", "Free space is tinted by {haze:.2f} of 255 steps; in the data it is clear."),
    ):
        entry = measured.get(name)
        if isinstance(entry, dict):
            try:
                yield text.format(**{key: value for key, value in entry.items() if _number(value) is not None})
            except (KeyError, ValueError):  # what could not be measured
                continue
    for name, curve in history.training.items():
        if curve.not_finite:
            yield f"{name} was not finite in {curve.not_finite} of the rows of training."
    yield from _unseen(config)


def _unseen(config: dict) -> Iterator[str]:
    data = config.get("data")
    bounds = [_number(data.get(name)) for name in ("umin", "umax", "vmin", "vmax")] if isinstance(data, dict) else [None]
    if None in bounds or not 0 <= bounds[2] <= bounds[3] <= 1:
        return
    left, right, high, low = bounds
    around = "" if right - left >= 1 else f"azimuths from {360 * left:.0f} to {360 * right:.0f} and "
    heights = f"elevations from {elevation_of_v(low):.0f} to {elevation_of_v(high):.0f} degrees"
    yield f"Training saw {around}{heights}; how objects look from elsewhere was never judged."


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
