"""Trains on a cluster of two workers and prints what happened, as JSON; run by ``test_spreading.py``.

In a process of its own: nothing of a cluster is left in the process of the tests, and what a cluster leaves behind is
found.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time

import joblib
import numpy as np
import psutil

from dpaudit.errors import DpauditError
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, FunctionTrainer, train_many


class Witness:
    """A model whose logits say in which process it was trained, and on what."""

    def __init__(self, data):
        self.seen = float(os.getpid()), float(data.x.sum()), 0.0

    def logits(self, x):
        return np.tile(self.seen, (len(x), 1))


def witness(data, member, seed):
    time.sleep(0.3)
    return Witness(data)


def refuse(data, member, seed):
    raise DpauditError("refused at the worker")


@contextlib.contextmanager
def dask_cluster():
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        yield


@contextlib.contextmanager
def ray_cluster():
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    try:
        yield
    finally:
        ray.shutdown()


def facts(backend):
    rng = np.random.default_rng(0)
    data = Data(rng.normal(size=(400, 5)), rng.integers(0, 3, 400), 3)
    member = rng.random((5, 400)) < 0.5
    settings, told = DPSGD(steps=10, sampling_rate=0.05, hidden=(4,)), []

    def bits(**options):
        models = train_many(settings, data, member, 1, chunk=2, **options)
        return [model.parameters().tobytes() for model in models]

    same = bits(backend=backend, progress=lambda *both: told.append(both)) == bits()
    with joblib.parallel_config(backend, n_jobs=2):
        seen = train_many(FunctionTrainer(witness), data, member, 1).logits(data.x[:1])[:, 0]
    try:
        train_many(FunctionTrainer(refuse), data, member, 1, backend=backend)
        error = ""
    except DpauditError as caught:
        error = f"{type(caught).__name__}: {caught}"
    return {
        "same": same,
        "told": told,
        "elsewhere": os.getpid() not in seen[:, 0],
        "workers": len(set(seen[:, 0])),
        "data": bool(np.all(seen[:, 1] == float(data.x.sum()))),
        "error": error,
    }


def left_behind(seconds):
    """What this process started and is still there after that long; Python's own trackers end with it."""
    processes = [
        p for p in psutil.Process().children(recursive=True) if "resource_tracker" not in " ".join(p.cmdline())
    ]
    return [" ".join(p.cmdline()) for p in psutil.wait_procs(processes, timeout=seconds)[1]]


def main():
    backend = sys.argv[1]
    cluster = {"dask": dask_cluster, "ray": ray_cluster}[backend]
    with cluster():
        found = facts(backend)
    print(json.dumps({**found, "left": left_behind(30)}))


if __name__ == "__main__":
    main()
