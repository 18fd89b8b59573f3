"""The other side of ``bounds.py``: runs in jax_privacy's own environment and times its own calls.

One request a line, ``{"call": …, "n": …}``; one answer a line, ``{"seconds": …, "epsilon": …}``: CPU time from scores
to ε.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from jax_privacy import auditing

DELTA, SIGNIFICANCE, MU = 1e-5, 0.05, 1.0
Call = Callable[[Any, float], float]


@lru_cache(maxsize=4)
def scores(n: int) -> tuple[np.ndarray, np.ndarray, float]:
    """(in, out, the threshold above which a tenth of all scores lie): the same scores as ``bounds.py`` draws."""
    rng = np.random.default_rng(0)
    out, inside = rng.normal(0, 1, n), rng.normal(MU, 1, n)
    return inside, out, float(np.sort(np.concatenate([inside, out]))[-n // 5])


def _with(method: str, strategy: Callable[[float], Any]) -> Call:
    def call(auditor: Any, tenth: float) -> float:
        return getattr(auditor, method)(SIGNIFICANCE, DELTA, threshold_strategy=strategy(tenth))

    return call


CALLS: dict[str, Call] = {
    "cp, fixed": _with("epsilon_clopper_pearson", lambda _: auditing.Explicit(MU / 2)),
    "cp, split": _with("epsilon_clopper_pearson", lambda _: auditing.Split(seed=0)),
    "cp, searched": _with("epsilon_clopper_pearson", lambda _: auditing.Bonferroni()),
    "one run, m/10": _with("epsilon_one_run", auditing.Explicit),
    "one run, split": _with("epsilon_one_run", lambda _: auditing.Split(seed=0)),
    "one run, searched": _with("epsilon_one_run", lambda _: auditing.Bonferroni()),
    "fdp, m/10": _with("epsilon_one_run_fdp", auditing.Explicit),
    "fdp, split": _with("epsilon_one_run_fdp", lambda _: auditing.Split(seed=0)),
    "fdp, searched": _with("epsilon_one_run_fdp", lambda _: auditing.Bonferroni()),
    "gaussian, searched": lambda auditor, _: auditor.epsilon_from_gdp(SIGNIFICANCE, DELTA),
}


def answer(call: str, n: int) -> dict[str, float]:
    inside, out, tenth = scores(n)
    start = time.process_time()
    epsilon = CALLS[call](auditing.CanaryScoreAuditor(inside, out), tenth)
    return {"seconds": time.process_time() - start, "epsilon": float(epsilon)}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
