"""A run's folder on disk: the plan, finished work units, and what may be released.

Files are written aside, flushed and renamed, so that a file that is there is whole. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError

RETAINED, RELEASE, UNITS = "retained", "release", "units"
_WORK = ("digest", "chunk", "units")  # of a plan: what follows from the rest of it, or only cuts the work


def write_aside(path: Path, content: bytes) -> None:
    """Write a whole file or none: aside, flushed to disk, renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _first_difference(stored: Any, new: Any, place: str = "") -> str:
    """Where two plans first differ, in words."""
    if isinstance(stored, dict) and isinstance(new, dict):
        for key in [*stored, *(k for k in new if k not in stored)]:
            if stored.get(key) != new.get(key):
                return _first_difference(stored.get(key), new.get(key), f"{place}.{key}".lstrip("."))
    if isinstance(stored, list) and isinstance(new, list) and len(stored) == len(new):
        for i, (a, b) in enumerate(zip(stored, new, strict=True)):
            if a != b:
                return _first_difference(a, b, f"{place}[{i + 1}]")
    return f"{place} was {stored!r} and is {new!r}"


class RunFolder:
    """The folder of one run. Nothing is created before :meth:`begin`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.retained = self.path / RETAINED
        self.release = self.path / RELEASE
        self.observations = self.retained / "observations.safetensors"
        self._plan = self.retained / "plan.json"

    def plan(self) -> dict[str, Any] | None:
        """The plan that the folder holds; None if it holds no run.

        Raises:
            InputError: the folder's plan can't be read.
        """
        if not self._plan.is_file():
            return None
        try:
            content = json.loads(self._plan.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{self._plan} must be a plan written by dpaudit, got {error}") from None
        if not isinstance(content, dict) or "digest" not in content:
            raise InputError(f"{self._plan} must be a plan written by dpaudit, got something else")
        return content

    def require_free(self) -> None:
        """Refuse a path that is no folder, and a folder with somebody else's files in it."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"the output must be a folder, got the file {self.path}")
        foreign = self.path.is_dir() and any(p.name != RETAINED for p in self.path.iterdir())
        if foreign and self.plan() is None:
            raise InputError(
                f"the output folder must be new, empty or hold a dpaudit run, got {self.path} with others' files"
            )

    def admit(self, plan: Mapping[str, Any], fresh: bool) -> None:
        """Refuse a folder that is not ours, or that holds another plan than this one, unless it is to be cleared."""
        self.require_free()
        stored = self.plan()
        if fresh or stored is None or stored["digest"] == plan["digest"]:
            return
        old, new = ({k: v for k, v in p.items() if k not in _WORK} for p in (stored, json.loads(json.dumps(plan))))
        raise InputError(
            f"{self.path} holds plan {stored['digest']} and this is plan {plan['digest']}: "
            f"{_first_difference(old, new)}; choose another --out, or start over with --fresh"
        )

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Create the folder and store the plan."""
        write_aside(self._plan, json.dumps(plan, indent=1).encode())

    def clear(self) -> None:
        """Remove what an earlier run left; other files in the folder stay."""
        for part in (self.release, self.retained):
            shutil.rmtree(part, ignore_errors=True)

    def unit(self, name: str, digest: str) -> dict[str, NDArray[Any]] | None:
        """The arrays of a finished unit; None if it is not there, damaged, or of another plan."""
        from safetensors import SafetensorError, safe_open

        path = self.retained / UNITS / f"{name}.safetensors"
        try:
            with safe_open(path, framework="numpy") as file:
                if (file.metadata() or {}).get("plan") != digest:
                    return None
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        except (OSError, SafetensorError):
            return None

    def save_unit(self, name: str, digest: str, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store a finished unit."""
        from safetensors.numpy import save

        whole = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        write_aside(self.retained / UNITS / f"{name}.safetensors", save(whole, metadata={"plan": digest}))

    @property
    def finished(self) -> bool:
        """Whether the verdict has been written; the release is the last thing that a run makes."""
        return self.observations.is_file() and (self.release / "report.json").is_file()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one process.

        Raises:
            InputError: another process is at work in it.
        """
        self.retained.mkdir(parents=True, exist_ok=True)
        with (self.retained / ".lock").open("w") as file:
            try:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except ImportError:  # not on this platform: two runs in one folder would only do the same work twice
                pass
            except OSError:
                raise InputError(
                    f"another dpaudit is at work in {self.path}; wait for it or choose another --out"
                ) from None
            yield
