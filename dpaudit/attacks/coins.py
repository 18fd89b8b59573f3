"""Which canaries there were and how their coins fell: kept beside what they are, and joined to scores by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..data.scores import read_tensors, tensor_bytes
from ..errors import InputError
from ..records import BoolArray, Design, Observations
from ..trainers.private.canaries import GradientCanaries
from .canaries import Canary, CanarySet, Family

SCHEMA = "dpaudit.canaries/1"


@dataclass(frozen=True, eq=False)
class CanaryCoins:
    """Canaries and their coins.

    Attributes:
        canaries: one per column of ``member``. A gradient canary has no row in any data.
        member: was the canary in, bool, shape ``(runs, canaries)``.
        runs: one name per row.
        x, y: the canaries as records, ``(canaries, features)`` and ``(canaries,)``; None where they are gradients.
        settings: of a family, by its name, as JSON takes them.

    Raises:
        InputError: shapes that do not fit, or a name given twice.
    """

    canaries: tuple[Canary, ...]
    member: BoolArray
    runs: tuple[str, ...] = ()
    x: NDArray[np.float32] | None = None
    y: NDArray[np.int64] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        member = np.array(self.member)
        member = member[None] if member.ndim == 1 else member
        if member.dtype != bool or member.ndim != 2 or member.shape[1] != len(self.canaries) or not member.size:
            raise InputError(
                f"member must be booleans of shape (runs, {len(self.canaries)} canaries), got {member.dtype} "
                f"{member.shape}"
            )
        runs = tuple(str(run) for run in self.runs) or tuple(str(i) for i in range(len(member)))
        if len(runs) != len(member):
            raise InputError(f"runs must be one name per row of member ({len(member)}), got {len(runs)}")
        _refuse_repeats("runs", runs)
        _refuse_repeats("canaries", self.ids)
        for name, part in (("x", self.x), ("y", self.y)):
            if part is not None and len(part) != len(self.canaries):
                raise InputError(f"{name} must have one record per canary ({len(self.canaries)}), got {len(part)}")
        member.setflags(write=False)
        object.__setattr__(self, "member", member)
        object.__setattr__(self, "runs", runs)

    @classmethod
    def of(
        cls, planted: CanarySet, coins: ArrayLike, runs: Sequence[str] = (), families: Sequence[Family] = ()
    ) -> CanaryCoins:
        """The record of canaries that are records of a data set.

        Args:
            planted: what :func:`plant` made.
            coins: of :func:`flip_coins`, bool, shape ``(runs, canaries)``, in the order of ``planted.canaries``.
            runs: one name per row; numbers by default.
            families: what was given to :func:`plant`, to keep the settings.
        """
        rows, settings = planted.rows, {family.name: asdict(family) for family in families}
        return cls(
            planted.canaries, np.asarray(coins), tuple(runs), planted.data.x[rows], planted.data.y[rows], settings
        )

    @classmethod
    def of_gradients(cls, canaries: GradientCanaries, coins: ArrayLike, runs: Sequence[str] = ()) -> CanaryCoins:
        """The record of gradient canaries: their settings say what they are, see :meth:`gradients`.

        Args:
            canaries: what was planted.
            coins: bool, shape ``(runs, count)`` or ``(count,)``, in the order of ``canaries.names``.
            runs: one name per row; numbers by default.
        """
        family = f"gradient-{canaries.kind}"
        named = tuple(Canary(name, family, -1) for name in canaries.names)
        return cls(named, np.asarray(coins), tuple(runs), settings={family: asdict(canaries)})

    @property
    def ids(self) -> tuple[str, ...]:
        """One name per canary."""
        return tuple(canary.id for canary in self.canaries)

    def gradients(self) -> GradientCanaries:
        """The gradient canaries, from which ``.vectors(engine.released)`` makes the vectors that were planted.

        Raises:
            InputError: these are none.
        """
        for family, settings in self.settings.items():
            if family.startswith("gradient-"):
                return GradientCanaries(**settings)
        families = ", ".join(dict.fromkeys(canary.family for canary in self.canaries))
        raise InputError(f"canaries must be gradients, got {families}")

    def family(self, name: str) -> CanaryCoins:
        """The same with only one family's canaries.

        Raises:
            InputError: there are none.
        """
        at = [i for i, canary in enumerate(self.canaries) if canary.family == name]
        if not at:
            families = ", ".join(dict.fromkeys(canary.family for canary in self.canaries))
            raise InputError(f"family must be one of {families}, got {name!r}")
        return replace(
            self,
            canaries=tuple(self.canaries[i] for i in at),
            member=self.member[:, at],
            x=None if self.x is None else self.x[at],
            y=None if self.y is None else self.y[at],
        )

    def join(
        self,
        scores: ArrayLike,
        canaries: Sequence[str],
        runs: Sequence[str] | None = None,
        design: Design | None = None,
    ) -> Observations:
        """Scores and coins that belong together: by name, whatever the order of either.

        Args:
            scores: shape ``(runs, canaries)`` or ``(canaries,)``; higher says "member"; not changed. NaN was never
                taken.
            canaries: name of each column of ``scores``.
            runs: name of each row; may be left out where one run is recorded.
            design: how membership was decided; fair coins if None.

        Returns:
            Observations of the canaries and runs that are recorded, in their order. What nobody scored is declared as
            such, with its coin: it is counted, and never filled in.

        Raises:
            InputError: a name that is not recorded or is given twice, or shapes that do not fit.
        """
        found = np.asarray(scores)
        found = found[None] if found.ndim == 1 else found
        if found.ndim != 2 or found.dtype.kind not in "biuf":
            raise InputError(f"scores must be numbers of shape (runs, canaries), got {found.dtype} {found.shape}")
        if runs is None and len(self.runs) > 1:
            raise InputError(f"runs must name the rows of scores, as {len(self.runs)} runs are recorded")
        rows = _places("runs", runs if runs is not None else self.runs, self.runs, found.shape[0])
        columns = _places("canaries", canaries, self.ids, found.shape[1])
        whole = np.full(self.member.shape, np.nan)
        whole[np.ix_(rows, columns)] = found
        taken = ~np.isnan(whole)
        return Observations(
            np.where(taken, whole, 0.0), self.member, taken, self.runs, self.ids, design=design or Design()
        )


def _places(what: str, names: Sequence[str], recorded: Sequence[str], length: int) -> list[int]:
    """Where these names are among those recorded."""
    given = [str(name) for name in names]
    if len(given) != length:
        raise InputError(f"{what} must name every part of scores ({length}), got {len(given)} names")
    _refuse_repeats(what, given)
    place = {name: i for i, name in enumerate(recorded)}
    unknown = [name for name in given if name not in place]
    if unknown:
        raise InputError(f"{what} must be among the {len(recorded)} recorded, got {unknown[0]!r} "
                         f"({len(unknown)} unknown)")  # fmt: skip
    return [place[name] for name in given]


def _refuse_repeats(what: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{what} must have different names, got {name!r} twice")
        seen.add(name)


def write_canaries(path: str | Path, record: CanaryCoins) -> None:
    """Store canaries with their coins as a safetensors file, whole or not at all. For the auditor's eyes only."""
    arrays: dict[str, NDArray[Any]] = {"member": record.member}
    arrays |= {name: part for name, part in (("x", record.x), ("y", record.y)) if part is not None}
    meta = {
        "schema": SCHEMA,
        "canaries": [asdict(canary) for canary in record.canaries],
        "runs": list(record.runs),
        "settings": dict(record.settings),
    }
    path = Path(path)
    aside = path.with_name(path.name + ".part")
    aside.write_bytes(tensor_bytes(arrays, meta))
    os.replace(aside, path)


def read_canaries(path: str | Path) -> CanaryCoins:
    """What :func:`write_canaries` stored.

    Raises:
        InputError: no such file, or another one.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"canaries must be a file, got {str(path)!r}, which does not exist")
    arrays, meta = read_tensors(path)
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA or "member" not in arrays:
        raise InputError(f"{path} must be a file of canaries with their coins ({SCHEMA})")
    try:
        canaries = tuple(Canary(**canary) for canary in meta["canaries"])
        return CanaryCoins(
            canaries, arrays["member"], tuple(meta["runs"]), arrays.get("x"), arrays.get("y"), meta["settings"]
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} must be a file of canaries with their coins, got {error}") from None
