"""The best checkpoint of a run: the one with the lowest FID or KID among those measured under one protocol."""

import math

from graf.evaluation.results import comparable


def new_best(result: dict, best: dict | None, metric: str, step: int) -> dict | None:
    """The new best measurement, as a run records it, if a result of `measure` after `step` is better than `best`; else None.

    metric: "fid" or "kid"; lower is better. A result under another protocol than the best so far cannot be compared with it
    and replaces it.
    """
    value, terms = result["values"][f"{metric}_{result['extractor']}"], {"metric": metric} | comparable(result)
    if not math.isfinite(value) or (best is not None and best["terms"] == terms and best["value"] <= value):
        return None
    return {"value": value, "step": step, "terms": terms}
