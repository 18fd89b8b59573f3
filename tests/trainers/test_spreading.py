"""The same models wherever they are trained: threads, processes, a Dask cluster, a Ray cluster."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from dpaudit.errors import InputError, MissingExtra
from dpaudit.records import Data
from dpaudit.trainers import DPSGD, SGD, FunctionTrainer, resolve, spreading, train_many
from dpaudit.trainers.spreading import Placement, place

joblib = pytest.importorskip("joblib")
torch = pytest.importorskip("torch")

# joblib takes a worker that has grown by 300 MB, as by importing torch, for one that leaks, and makes a new one.
pytestmark = pytest.mark.filterwarnings("ignore:A worker stopped while some jobs were given to the executor")

SCRIPT = Path(__file__).parent / "on_cluster.py"
RECORDS = 30
SETTINGS = {
    "SGD": SGD(steps=8, sampling_rate=0.3),
    "DPSGD": DPSGD(steps=8, sampling_rate=0.3, hidden=(3,)),
    "DPSGD, many": [DPSGD(steps=8, sampling_rate=0.3, noise_multiplier=s) for s in (1.0, 1.0, 2.0, 0.5, 0.0)],
}
MEMBER = np.random.default_rng(1).random((5, RECORDS)) < 0.5


@pytest.fixture(autouse=True, scope="module")
def _no_processes_left():
    yield
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


def some_data(records=RECORDS, features=4):
    rng = np.random.default_rng(0)
    return Data(rng.normal(size=(records, features)), rng.integers(0, 3, records), 3)


DATA = some_data()


class Told:
    """A model whose logits are what it was told."""

    def __init__(self, *values):
        self.values = np.array(values, float)

    def logits(self, x):
        return np.tile(self.values, (len(x), 1))


def where(data, member, seed):
    return Told(os.getpid(), isinstance(data.x, np.memmap) or isinstance(data.x.base, np.memmap), seed)


def threads(data, member, seed):
    import torch

    return Told(torch.get_num_threads(), 0, 0)


def bits(settings, **options):
    return [m.parameters().tobytes() for m in train_many(settings, DATA, MEMBER, 7, chunk=2, **options)]


def answers(function, data=DATA, **options):
    """What the models were told, shape (models, 3)."""
    return train_many(FunctionTrainer(function), data, MEMBER, 7, **options).logits(data.x[:1])[:, 0]


# ---- where ----------------------------------------------------------------------------------------------------------


def test_places_are_as_asked_for():
    assert place(None, None) == Placement("threads", None)
    assert place(None, 3) == Placement("threads", 3)
    assert place(None, None, threads=2) == place("threads", 2) == Placement("threads", 2)
    assert place("processes", None) == Placement("processes", None)
    assert place("ray", 4) == Placement("ray", 4)


def test_a_configuration_of_joblib_is_followed_unless_more_is_said():
    with joblib.parallel_config("loky", n_jobs=2):
        assert place(None, None) == Placement("joblib", None)
        assert place(None, 3) == Placement("joblib", 3)
        assert place("threads", 1) == Placement("threads", 1)
        assert place(None, None, threads=2) == Placement("threads", 2)
        assert place("dask", None) == Placement("dask", None)
    with joblib.parallel_config(n_jobs=2):
        assert place(None, None) == Placement("joblib", None)
    with joblib.parallel_config("threading", n_jobs=2):
        assert place(None, None) == Placement("threads", 2)
    assert place(None, None) == Placement("threads", None)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"backend": "loky"}, "backend must be one of threads, processes, dask, ray, got 'loky'"),
        ({"workers": 0}, "workers"),
        ({"workers": 1.5, "backend": "processes"}, "workers"),
        ({"threads": 0}, "threads"),
        ({"threads": 1, "workers": 1}, "threads"),
        ({"threads": 1, "backend": "dask"}, "threads"),
        ({"chunk": 0}, "chunk"),
    ],
)
def test_places_out_of_range_are_refused_by_name(arguments, name):
    with pytest.raises(InputError, match=name):
        train_many(SETTINGS["SGD"], DATA, MEMBER, 0, **arguments)


# ---- processes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_processes_give_the_same_bits_as_threads(name):
    home = bits(SETTINGS[name], threads=1)
    assert bits(SETTINGS[name], backend="threads", workers=2) == home
    for workers in (1, 2):
        assert bits(SETTINGS[name], backend="processes", workers=workers) == home
    with joblib.parallel_config("loky", n_jobs=2):
        assert bits(SETTINGS[name]) == home


def test_iterates_come_along():
    one, two = (
        train_many(SETTINGS["SGD"], DATA, MEMBER, 7, chunk=2, keep_iterates=True, **options)[4].iterates()
        for options in ({}, {"backend": "processes", "workers": 2})
    )
    np.testing.assert_array_equal(one, two)


def test_work_is_really_done_elsewhere_and_models_come_back_in_order():
    from dpaudit.trainers import model_seeds

    found = answers(where, backend="processes", workers=2)
    assert os.getpid() not in found[:, 0]
    np.testing.assert_array_equal(found[:, 2], np.array(model_seeds(7, 5), float))
    with joblib.parallel_config("loky", n_jobs=2):
        assert os.getpid() not in answers(where)[:, 0]
    assert np.all(answers(where)[:, 0] == os.getpid())


def test_large_data_are_mapped_not_sent():
    large = some_data(RECORDS, 20_000)
    assert np.all(answers(where, large, backend="processes", workers=2)[:, 1] == 1)


def test_dask_is_told_how_large_the_data_are():
    sizeof = pytest.importorskip("dask.sizeof").sizeof
    assert sizeof(spreading._Shared(DATA)) >= DATA.x.nbytes


def test_a_worker_has_one_thread_and_here_they_stay_as_they_were():
    before = torch.get_num_threads()
    for workers in (1, 2):
        assert np.all(answers(threads, backend="processes", workers=workers)[:, 0] == 1)
        bits(SETTINGS["DPSGD"], backend="processes", workers=workers)
        assert torch.get_num_threads() == before


@pytest.mark.parametrize("trainer", [SETTINGS["SGD"], FunctionTrainer(where)], ids=["stacked", "one by one"])
def test_progress_is_told_after_each_chunk_in_order(trainer):
    told = []
    options = {"chunk": 2, "backend": "processes", "workers": 2, "progress": lambda *both: told.append(both)}
    train_many(trainer, DATA, MEMBER, 7, **options)
    assert told == [(2, 5), (4, 5), (5, 5)]


def test_backends_that_give_all_at_once_are_fed_in_waves():
    from joblib._parallel_backends import LokyBackend

    class AllAtOnce(LokyBackend):
        supports_return_generator = False

    told = []
    with joblib.parallel_config(AllAtOnce(), n_jobs=2):  # joblib's own such backend forks, which threads do not bear
        found = answers(where, progress=lambda *both: told.append(both), chunk=2)
    assert os.getpid() not in found[:, 0] and told == [(2, 5), (4, 5), (5, 5)]


def test_a_trainer_of_a_module_that_is_not_installed_travels(tmp_path):
    text = """
    from helping import Constant
    def train(data, member, seed):
        return Constant(3.5)
    """
    helping = """
    import numpy as np
    class Constant:
        def __init__(self, value): self.value = value
        def logits(self, x): return np.full((len(x), 3), self.value)
    """
    (tmp_path / "travelling.py").write_text(textwrap.dedent(text))
    (tmp_path / "helping.py").write_text(textwrap.dedent(helping))
    trainer = resolve("travelling:train", folders=[str(tmp_path)])
    try:
        models = train_many(trainer, DATA, MEMBER, 0, backend="processes", workers=2)
        assert np.all(models.logits(DATA.x) == 3.5)
    finally:
        for name in ("travelling", "helping"):
            sys.modules.pop(name, None)


# ---- what goes wrong ------------------------------------------------------------------------------------------------


def refuse(data, member, seed):
    raise InputError("refused at the worker")


def nothing(data, member, seed):
    return None


def locked(data, member, seed):
    model = Told(0, 0, 0)
    model.lock = threading.Lock()
    return model


def absent(data, member, seed):
    import surely_not_installed  # noqa: F401


def broken(data, member, seed):
    raise ZeroDivisionError("a bug of the user's")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (refuse, "^refused at the worker$"),
        (nothing, "nothing must return a model with a method logits.*got NoneType$"),
        (locked, "what locked made cannot be sent to another process.*lock"),
        (absent, "absent needs the module 'surely_not_installed', which is not installed$"),
    ],
)
def test_errors_at_a_worker_are_those_of_home(function, message):
    for options in ({}, {"backend": "processes", "workers": 2}):
        if function is locked and not options:
            continue
        with pytest.raises(InputError, match=message) as caught:
            answers(function, **options)
        assert type(caught.value) is InputError and "\n" not in str(caught.value)


def test_other_peoples_errors_keep_their_kind():
    with pytest.raises(ZeroDivisionError, match="a bug of the user's") as caught:
        answers(broken, backend="processes", workers=2)
    assert "in broken" in caught.value.__notes__[0]


def test_a_trainer_that_cannot_travel_is_named():
    lock = threading.Lock()

    def holding(data, member, seed):
        with lock:
            return Told(0, 0, 0)

    with pytest.raises(InputError, match=r"holding cannot be sent to another process: TypeError"):
        answers(holding, backend="processes", workers=2)


def test_a_device_that_is_not_there_is_refused_by_the_worker():
    with pytest.raises(InputError, match="device must be one of cpu, cuda, got 'meta'"):
        bits(SETTINGS["SGD"], backend="processes", workers=2, device="meta")


def test_an_interrupt_leaves_nothing_running_and_the_next_call_works():
    def interrupt(done, total):
        raise KeyboardInterrupt

    before = torch.get_num_threads()
    endless = DPSGD(steps=10**9, sampling_rate=0.3)
    with pytest.raises(KeyboardInterrupt):
        train_many([*[SETTINGS["DPSGD"]] * 2], DATA, MEMBER[:2], 7, chunk=1, backend="processes", workers=2,
                   progress=interrupt)  # fmt: skip
    stop = threading.Timer(3.0, lambda: os.kill(os.getpid(), 2))
    stop.start()
    with pytest.raises(KeyboardInterrupt):
        train_many(endless, DATA, MEMBER, 7, chunk=1, backend="processes", workers=2)
    assert torch.get_num_threads() == before
    assert bits(SETTINGS["SGD"], backend="processes", workers=2) == bits(SETTINGS["SGD"])


@pytest.mark.parametrize(
    ("backend", "module", "line"),
    [
        ("dask", "distributed", 'this needs dask; install it with: pip install "dpaudit[dask]"'),
        ("ray", "ray", 'this needs ray; install it with: pip install "dpaudit[ray]"'),
        ("processes", "joblib", 'this needs joblib; install it with: pip install "dpaudit[train]"'),
    ],
)
def test_the_pip_line_of_what_is_not_installed_is_said(backend, module, line, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra) as caught:
        bits(SETTINGS["SGD"], backend=backend)
    assert str(caught.value) == line


# ---- clusters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_without_a_cluster_it_is_said_how_to_make_one(backend, monkeypatch):
    package = {"dask": "distributed", "ray": "ray"}[backend]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    code = (
        "import numpy as np\n"
        "from dpaudit.records import Data\n"
        "from dpaudit.trainers import SGD, train_many\n"
        f"train_many(SGD(), Data(np.eye(2), [0, 1], 2), np.ones((1, 2)), 0, backend={backend!r})"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    wanted = {"dask": "make a dask.distributed.Client first", "ray": "call ray.init first"}[backend]
    assert done.stderr.strip().splitlines()[-1].endswith(f"backend {backend} needs a cluster: {wanted}")


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_cluster_of_two_workers_does_the_same(backend, tmp_path):
    package = {"dask": "distributed", "ray": "ray"}[backend]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), backend], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "same": True,
        "told": [[2, 5], [4, 5], [5, 5]],
        "elsewhere": True,
        "workers": 2,
        "data": True,
        "error": "DpauditError: refused at the worker",
        "left": [],
    }
