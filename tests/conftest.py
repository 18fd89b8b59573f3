"""One thread per xdist worker: two workers on two cores must not each start two threads."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports numpy or torch; children inherit it
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
