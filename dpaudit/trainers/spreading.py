"""Work over processes, or over a Dask or Ray cluster, through joblib: the same results in the same order as at home.

A unit of work carries its seeds, and what it computes depends on nothing else, so where it is done and how many are
done side by side changes no bit. The data travel once: joblib maps large arrays into the processes of this machine,
Dask scatters them and Ray keeps them in its store. Code that is not installed, such as a user's own trainer, travels
with the work.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import os
import site
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from types import ModuleType
from typing import Any, TypeVar

from .. import check
from ..errors import DpauditError, InputError, need_extra
from ..records import Data

BACKENDS = ("threads", "processes", "dask", "ray")

Unit = TypeVar("Unit")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Placement:
    """Where units of work are done.

    Attributes:
        backend: one of ``BACKENDS``, or ``"joblib"``: whatever a ``joblib.parallel_config`` around the call says.
        workers: how many side by side; None leaves it to the backend.
    """

    backend: str
    workers: int | None = None


def place(backend: str | None, workers: int | None, threads: int | None = None) -> Placement:
    """Where to work: as asked for, or else as a ``joblib.parallel_config`` says, or else in threads of this process.

    Args:
        backend: one of ``BACKENDS`` or None.
        workers: how many units are done side by side.
        threads: the same for threads of this process; asking for them asks for this process.

    Raises:
        InputError: an unknown backend, a number below 1, or both numbers given.
    """
    if backend is not None:
        check.choice("backend", backend, BACKENDS)
    if workers is not None:
        check.integer("workers", workers, 1)
    if threads is not None:
        check.integer("threads", threads, 1)
        if workers is not None or backend not in (None, "threads"):
            raise InputError(
                "threads must not be given with workers or a backend other than threads; give workers alone"
            )
        return Placement("threads", threads)
    if backend is not None:
        return Placement(backend, workers)
    context = _context()
    if context is None or getattr(context[0], "uses_threads", False):
        return Placement("threads", workers if workers is not None or context is None else context[1])
    return Placement("joblib", workers)


def _context() -> tuple[Any, int | None] | None:
    """The backend and number of jobs that the caller set with ``joblib.parallel_config``, if there was such a call."""
    if "joblib" not in sys.modules:
        return None
    from joblib.parallel import BACKENDS as KNOWN
    from joblib.parallel import get_active_backend

    backend, jobs = get_active_backend()
    return None if jobs is None and type(backend) is KNOWN["loky"] else (backend, jobs)


def spread(
    function: Callable[[Data, Unit], Result], data: Data, units: Sequence[Unit], placement: Placement, name: str
) -> Generator[Result]:
    """``function(data, unit)`` for every unit, in order, each as soon as it and those before it are done.

    Closing the generator drops what has not begun.

    Args:
        placement: any but threads of this process.
        name: what to blame if the function or a result cannot travel.

    Raises:
        InputError: there is no cluster to work on, or something cannot be sent to another process.
        MissingExtra: a package that the backend needs is not installed.
        DpauditError: what the function raised, wherever it ran.
    """
    pool, wave = _pool(placement)
    cargo = _packed(function, f"{name} cannot be sent to another process", _strangers())
    shared = _shared(data, placement)
    left = iter(units)
    tasks: Iterator[Any] = ((_task, (cargo, shared, unit, name), {}) for unit in left)
    results = pool(tasks) if wave is None else _in_waves(pool, tasks, wave)
    try:
        for packed in results:
            done = _unpacked(packed)
            if isinstance(done, _Failure):
                collections.deque(left, maxlen=0)
                collections.deque(results, maxlen=0)  # what has begun; killing it upsets loky's own thread
                raise done.error
            yield done
    finally:
        with warnings.catch_warnings():  # joblib counts what is thrown away
            warnings.simplefilter("ignore")
            results.close()


def _pool(placement: Placement) -> tuple[Any, int | None]:
    """A ``joblib.Parallel``, and, where it cannot give results one by one, how many tasks to give it at once."""
    try:
        import joblib
    except ImportError:
        raise need_extra("joblib") from None
    with _configured(placement):
        backend, _ = joblib.parallel.get_active_backend()
        jobs = {} if placement.workers is None else {"n_jobs": placement.workers}
        common = {"batch_size": 1, "pre_dispatch": "2*n_jobs", **jobs}
        if backend.supports_return_generator:
            return joblib.Parallel(return_as="generator", **common), None
        return joblib.Parallel(**common), 2 * joblib.effective_n_jobs(placement.workers or -1)


@contextlib.contextmanager
def _configured(placement: Placement) -> Iterator[None]:
    """Inside it, joblib's active backend is the placement's."""
    from joblib import parallel_config

    if placement.backend == "joblib":
        yield
        return
    {"processes": lambda: None, "dask": _require_dask, "ray": _require_ray}[placement.backend]()
    name = "loky" if placement.backend == "processes" else placement.backend
    with parallel_config(backend=name, n_jobs=placement.workers or -1):
        yield


def _require_dask() -> None:
    try:
        from distributed import get_client
    except ImportError:
        raise need_extra("dask", "dask") from None
    try:
        get_client()
    except ValueError:
        raise InputError("backend dask needs a cluster: make a dask.distributed.Client first") from None


def _require_ray() -> None:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise need_extra("ray", "ray") from None
    if not ray.is_initialized() and "RAY_ADDRESS" not in os.environ:
        raise InputError("backend ray needs a cluster: call ray.init first")
    register_ray()


def _in_waves(pool: Any, tasks: Iterator[Any], size: int) -> Generator[Any]:
    """The results of a backend that gives them all at once, a few tasks at a time."""
    with pool:
        while wave := list(islice(tasks, size)):
            yield from pool(wave)


# ---- what travels ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Shared:
    """The data as an argument of every task: joblib maps its arrays, and Dask scatters what says that it is large."""

    data: Data

    def open(self) -> Data:
        return self.data

    def __sizeof__(self) -> int:
        return int(self.data.x.nbytes + self.data.y.nbytes)


@dataclass(frozen=True, eq=False)
class _Stored:
    """The data in Ray's store, and here what to fetch them by."""

    reference: Any

    def open(self) -> Data:
        import ray

        fetched: Data = ray.get(self.reference)
        return fetched


def _shared(data: Data, placement: Placement) -> _Shared | _Stored:
    context = _context() if placement.backend == "joblib" else None
    if placement.backend == "ray" or (context is not None and type(context[0]).__module__.startswith("ray.")):
        import ray

        if ray.is_initialized():
            return _Stored(ray.put(data))
    return _Shared(data)


@dataclass(frozen=True, eq=False)
class _Failure:
    """What a unit of work raised."""

    error: Exception


def _task(cargo: bytes, shared: _Shared | _Stored, unit: Any, name: str) -> bytes:
    """One unit of work, at the worker: the packed result, or what it raised, with a note of where if it is a bug."""
    complaint = f"what {name} made cannot be sent to another process"
    try:
        return _packed(_unpacked(cargo)(shared.open(), unit), complaint)
    except Exception as error:
        if not isinstance(error, DpauditError):
            error.add_note("".join(["at the worker:\n", *traceback.format_tb(error.__traceback__)]))
        return _packed(_Failure(error), f"{complaint}: {type(error).__name__}: {error}")


def _packed(thing: Any, complaint: str, strangers: Sequence[ModuleType] = ()) -> bytes:
    """Pickled, and with it the code of these modules."""
    cloudpickle = _cloudpickle()
    for module in strangers:
        cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(thing))
    except Exception as error:
        raise InputError(f"{complaint}: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    finally:
        for module in strangers:
            cloudpickle.unregister_pickle_by_value(module)


def _unpacked(packed: bytes) -> Any:
    return _cloudpickle().loads(packed)


def _strangers() -> list[ModuleType]:
    """Modules in use that are not installed and not dpaudit's: another process, or machine, may not find them."""
    roots = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    installed = tuple(os.path.join(os.path.abspath(root), "") for root in roots)
    strangers = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        known = name.partition(".")[0] in ("__main__", "__mp_main__", "dpaudit")
        if not known and isinstance(module, ModuleType) and os.path.isabs(file) and not file.startswith(installed):
            strangers.append(module)
    return strangers


def _cloudpickle() -> Any:
    """The package, which joblib brings along: before its version 1.6 inside itself."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return importlib.import_module("joblib.externals.cloudpickle")
