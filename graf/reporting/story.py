"""Sentences about the numbers of a run: how good its images are, whether the views of an object agree, what is lacking."""

import contextlib
from collections.abc import Iterator

from graf.camera import elevation_of_v
from graf.config import DataConfig
from graf.inversion.results import FAILED_DB
from graf.metrics.memorised import MEMORISED_CAVEAT
from graf.metrics.shapes import VARIETY_CAVEAT
from graf.reporting.curves import History
from graf.reporting.run_status import collapse_sentences, finite_number

FEW_STEPS, MANY_STEPS = 10, 25  # of 255; the largest differences in colour of views that agree, or agree roughly
CONTRADICTED = 0.02  # the largest share of the surface at which views that agree contradict each other
JUMP = 3.0  # a larger change between frames, as a multiple of the median change, is a jump
CHECKERBOARD = 2.0  # a larger Nyquist energy, as a multiple of the data's, suggests a checkerboard
MEASURES = {  # of metrics.json, and what they say
    "variety": "Silhouettes vary {share_of_data:.0%} as much as those of the data. " + VARIETY_CAVEAT,
    "coverage": "{coverage:.0%} of the shapes compared with are the nearest one of some object; at best {coverage_best:.0%}.",
    "memorised": "The p-value of the test for copies is {p_value:.2g}. " + MEMORISED_CAVEAT,
    "haze": "Free space is tinted by {haze:.2f} of 255 steps; in the data it is clear.",
}


def protocol_sentence(result: dict, step: int) -> str:
    """The protocol of a result of `metrics.measure`, without its digests."""
    return (
        f"Measured at step {step:,} over {result.get('n_fake', '?')} generated and {result.get('n_real', '?')} real images at "
        f"{result.get('resolution', '?')} pixels, in the features of {result.get('extractor', '?')}{truncated(result)}. Lower "
        "is better; a number under another protocol cannot be compared with it."
    )


def truncated(result: dict) -> str:
    """That a result is of scaled latents; "" where it is not."""
    truncation = finite_number(result.get("truncation"))
    return "" if truncation in (None, 1) else f", of latents scaled by {truncation:g}"


def progress_sentence(history: History) -> str:
    """The change of KID in training, under the newest protocol; "" if it was measured at most once."""
    newest = history.newest
    curve = newest.curves.get(f"kid_{newest.protocol['extractor']}") if newest else None
    found = zip(*curve.points()[:2], strict=True) if curve else ()
    points = [(step, mean) for step, mean in found if mean == mean]
    if len(points) < 2:
        return ""
    (first_step, first), (last_step, last) = points[0], points[-1]
    best_step, best = min(points, key=lambda point: point[1])
    went = f"KID went from {first:.4g} at step {first_step:,.0f} to {last:.4g} at step {last_step:,.0f}"
    return went + (f"; it was lowest at step {best_step:,.0f}, {best:.4g}." if best < last else ", the lowest so far.")


def agreement(found: dict) -> Iterator[str]:
    """Sentences about `consistency` of metrics.json: whether the views of an object agree, and the numbers that show it."""
    stage = "refined" if "depth_warp_error_refined" in found else "nerf"
    error, share, against = (
        finite_number(found.get(f"{name}_{stage}")) for name in ("depth_warp_error", "comparable_share", "contradicted_share")
    )
    if error is None:
        yield "Whether views agree is not known: no surface was opaque enough to be compared."
    else:
        verdict = "agree" if error <= FEW_STEPS else "agree roughly" if error <= MANY_STEPS else "do not agree"
        angle, pairs = finite_number(found.get("angle_deg")), found.get("pairs", "?")
        camera = "another camera" if angle is None else f"a camera {angle:g} degrees further on"
        yield (
            f"Views {verdict}: a point of the surface, carried by its depth to {camera}, meets a "
            f"colour that differs by {error:.1f} of 255 steps on average"
            + (f", over the {share:.0%} of the surface that can be compared" if share is not None else "")
            + f" ({pairs} objects{truncated(found)})."
        )
        before = finite_number(found.get("depth_warp_error_nerf"))
        if stage == "refined" and before is not None:
            yield f"Before CCSR refines them, the field's own images differ by {before:.1f}."
    if against is not None:
        where = "There is a contradiction" if against > CONTRADICTED else "There is hardly any contradiction"
        yield f"{where}: at {against:.2%} of the surface the other camera looks through it."
    jump, step_deg = finite_number(found.get("popping")), finite_number(found.get("turn_step_deg"))
    if jump is not None and step_deg is not None:
        turning = f"while an object turns by {step_deg:g} degree per frame: the largest change is {jump:.1f} times the median"
        yield f"{'Something jumps' if jump > JUMP else 'Nothing jumps'} {turning}."


def field_sentence(sweep: dict) -> str:
    """How far CCSR's images are from the field's own, from `sweep` of metrics.json; "" without the number."""
    error = finite_number(sweep.get("low_resolution_error"))
    if error is None:
        return ""
    steps = max(127.5 * error, 0.0001)
    return f"Scaled down, the refined images are those of the radiance field to within {steps:.4f} of 255 steps."


def memorised(found: dict) -> str:
    """Whether samples repeat training images, from neighbours.json; "" without its numbers."""
    share, samples, scaled = finite_number(found.get("share_nearer")), found.get("n_samples", "?"), truncated(found)
    if share is None:
        return ""
    which = f"{share:.0%} of {samples} samples{f'{scaled},' if scaled else ''}"
    alike = found.get("objects_differ") is False
    said = f"{which} are nearer to a training image than training images are to one another."
    if alike:
        return f"{said} These may be views of one object, so that this tells nothing of samples that repeat them."
    if scaled:
        return f"{said} Typical objects are near to some; unscaled latents tell whether training images are repeated."
    return (
        f"{said} About 50% means new objects of the same kind, nearly all means memorised images, and nearly none that samples "
        "do not look like the data yet."
    )


def fit_sentence(found: dict) -> str:
    """PSNR of the photographs that an object was fitted to, from latents.json; "" without its numbers."""
    fits = found.get("photographs")
    values = [fit.get("psnr_db", "") for fit in fits if isinstance(fit, dict)] if isinstance(fits, list) else []
    if not values or not all(value is None or finite_number(value) is not None for value in values):
        return ""
    if values == [None]:  # infinite, of equal images
        return "Equal to the photograph."
    shown = ["infinite" if value is None else f"{value:.1f}" for value in values]
    psnr = f"PSNR {' and '.join(filter(None, (', '.join(shown[:-1]), shown[-1])))} dB"
    failed = sum(value is not None and value < FAILED_DB for value in values)
    if not failed:
        return f"{psnr}."
    which = "the photograph was" if len(values) == 1 else f"{failed} of {len(values)} photographs were"
    return f"{psnr}: {which} not found."


def shortcomings(measured: dict, history: History, config: dict, at: str = "") -> Iterator[str]:
    """Sentences about what is lacking, by metrics.json (these begin with `at`), values logged in training and the config."""
    found = measured.get("consistency")
    if isinstance(found, dict):
        yield from (f"{at}{message[0].upper()}{message[1:]}." for message in collapse_sentences(found))
        generated, real = (finite_number(found.get(f"nyquist_ppm_{kind}")) for kind in ("generated", "real"))
        if generated is not None and real is not None and generated > CHECKERBOARD * real:
            times = f"{generated / real:.1f} times as much as in the data"
            yield f"{at}Neighbouring pixels alternate {times}: look for a checkerboard."
    for name, text in MEASURES.items():
        if isinstance(entry := measured.get(name), dict):
            with contextlib.suppress(KeyError, ValueError):  # what could not be measured
                said = text.format(**{key: value for key, value in entry.items() if finite_number(value) is not None})
                yield at + said + (f" This is{truncated(entry).removeprefix(',')}." if truncated(entry) else "")
    for name, curve in history.training.items():
        if curve.not_finite:
            yield f"{name} was not finite in {curve.not_finite} of the rows of training."
    bounds = sampled_range(config.get("data"))
    if None in bounds or not 0 <= bounds[2] <= bounds[3] <= 1:
        return
    left, right, high, low = bounds
    around = "" if right - left >= 1 else f"azimuths from {360 * left:.0f} to {360 * right:.0f} and "
    heights = f"elevations from {elevation_of_v(low):.0f} to {elevation_of_v(high):.0f} degrees"
    yield f"Training saw {around}{heights}; how objects look from elsewhere was never judged."


def sampled_range(data: object) -> tuple[float | None, ...]:
    """umin, umax, vmin and vmax of sampled cameras by a config's section `data`, None for what it does not tell."""
    if not isinstance(data, dict):
        return (None,)
    if data.get("camera_prior") != "front":
        return tuple(finite_number(data.get(name)) for name in ("umin", "umax", "vmin", "vmax"))
    widths = {name: finite_number(data.get(name)) for name in ("azimuth_std_deg", "elevation_std_deg")}
    if None in widths.values():
        return (None,)
    prior = DataConfig(camera_prior="front", **widths)
    return *prior.u_range, *prior.v_range
