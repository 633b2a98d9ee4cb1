"""Which checkpoint of a run is its best: the one of the lowest FID or KID, among those measured under one protocol."""

import math

from graf.evaluation.metrics import comparable


def new_best(result: dict, best: dict | None, metric: str, step: int) -> dict | None:
    """What a run remembers of a result of `measure` after `step` that is better than the best so far; None where it is not.

    metric: "fid" or "kid", of which less is better. A result under another protocol than the best so far cannot be compared
    with it, and takes its place.
    """
    value, terms = result["values"][f"{metric}_{result['extractor']}"], {"metric": metric} | comparable(result)
    if not math.isfinite(value) or (best is not None and best["terms"] == terms and best["value"] <= value):
        return None
    return {"value": value, "step": step, "terms": terms}
