"""Specs: what a user writes in TOML, checked, and the parts that it names."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag, ValidationError, model_validator

from .accounting.claims import Claim
from .accounting.reading import claim_of
from .attacks.canaries import (
    Blank,
    ClipBKD,
    Family,
    FarOut,
    InsertedText,
    Mislabelled,
    OutOfDistribution,
    RandomNoise,
)
from .attacks.planned import PLANNED
from .attacks.signals import SIGNALS
from .attacks.texts import Secrets
from .errors import InputError
from .interfaces import Trainer
from .records import Adjacency, PlannedTest, Verdict

BUNDLED = ("digits", "fashion-mnist", "fashion-mnist-cnn")
BUILT_IN = ("sgd", "dp-sgd")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataSpec(_Part):
    """Where the records come from."""

    source: str
    records: int | None = Field(default=None, ge=1)
    test: int | None = Field(default=None, ge=0)
    folder: str | None = None


class CanarySpec(_Part):
    """One canary family."""

    family: Literal["far-out", "mislabelled", "blank", "random", "out-of-distribution", "clipbkd", "inserted-text"]
    count: int = Field(ge=1)
    value: float | None = Field(default=None, gt=0)
    source: str | None = None
    folder: str | None = None
    scale: float | None = Field(default=None, gt=0)
    format: str | None = None
    symbols: str | None = None
    alphabet: str | None = None

    @model_validator(mode="after")
    def _settings_are_the_familys(self) -> CanarySpec:
        for name in self._given():
            if name not in _CANARY_SETTINGS.get(self.family, ()):
                owner = next(family for family, names in _CANARY_SETTINGS.items() if name in names)
                raise ValueError(f"{name} is for {owner} canaries, got it for {self.family}")
        if self.family == "inserted-text" and (self.format is None or self.alphabet is None):
            raise ValueError("inserted-text canaries need a format, such as 'code #### end', and an alphabet")
        return self

    def _given(self) -> dict[str, Any]:
        settings = {name: getattr(self, name) for names in _CANARY_SETTINGS.values() for name in names}
        return {name: value for name, value in settings.items() if value is not None}

    def build(self) -> Family:
        """The family's settings."""
        given = self._given()
        if self.family == "inserted-text":
            alphabet = given.pop("alphabet")
            return InsertedText(self.count, Secrets(**given), alphabet)
        family: Family = _FAMILIES[self.family](self.count, **given)
        return family


_FAMILIES: dict[str, Any] = {
    "far-out": FarOut,
    "mislabelled": Mislabelled,
    "blank": Blank,
    "random": RandomNoise,
    "out-of-distribution": OutOfDistribution,
    "clipbkd": ClipBKD,
}
_CANARY_SETTINGS = {
    "far-out": ("value",),
    "out-of-distribution": ("source", "folder"),
    "clipbkd": ("scale",),
    "inserted-text": ("format", "symbols", "alphabet"),
}


class TestSpec(_Part):
    """One test of the list that is frozen before any score exists."""

    __test__ = False  # not a pytest class

    canaries: str
    signal: str | None = None
    attack: str = "lira"
    guesses: int = Field(ge=2)
    share: float = Field(gt=0, le=1)

    @model_validator(mode="after")
    def _attack_and_signal_fit(self) -> TestSpec:
        if self.attack not in PLANNED:
            raise ValueError(f"attack must be one of {', '.join(PLANNED)}, got {self.attack!r}")
        if self.signal is not None and self.signal not in SIGNALS:
            raise ValueError(f"signal must be one of {', '.join(SIGNALS)}, got {self.signal!r}")
        wanted = PLANNED[self.attack]
        if wanted.only and self.signal not in (None, wanted.signal):
            raise ValueError(f"signal must be {wanted.signal} for the attack {self.attack}, got {self.signal!r}")
        return self

    def build(self) -> PlannedTest:
        """The planned test."""
        signal = self.signal or PLANNED[self.attack].signal
        return PlannedTest("guesses", self.share, self.guesses, None, self.canaries, signal, self.attack)


class ClaimSpec(_Part):
    """What is promised: a recipe (noise_multiplier, sampling_rate, steps) or a bare pair (epsilon, delta)."""

    noise_multiplier: float | None = None
    sampling_rate: float | None = None
    steps: int | None = None
    sampler: str = "poisson"
    epsilon: float | None = None
    delta: float | None = None
    adjacency: str | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> ClaimSpec:
        recipe = [self.noise_multiplier, self.sampling_rate, self.steps]
        pair = [self.epsilon, self.delta]
        whole = (None not in recipe and pair == [None] * 2) or (None not in pair and recipe == [None] * 3)
        if not whole:
            raise ValueError("a claim is noise_multiplier, sampling_rate and steps, or epsilon and delta")
        return self

    def build(self) -> Claim:
        """The claim."""
        if self.epsilon is not None and self.delta is not None:
            return Claim.pair(epsilon=self.epsilon, delta=self.delta, adjacency=self.adjacency or Adjacency.ADD_REMOVE)
        assert self.noise_multiplier is not None and self.sampling_rate is not None and self.steps is not None
        return Claim.dp_sgd(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            sampler=self.sampler,
            adjacency=self.adjacency,
        )


class ClaimDocument(RootModel[dict[str, Any]]):
    """A claim in any of the forms that a JSON file may have; see :mod:`dpaudit.accounting.reading`."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="after")
    def _readable(self) -> ClaimDocument:
        self.build()
        return self

    def build(self) -> Claim:
        """The claim."""
        return claim_of(self.root)


_FORMS = ("flat", "document")


def _claim_form(value: Any) -> str:
    """Which of the two ways of writing a claim this is."""
    return "document" if isinstance(value, (dict, ClaimDocument)) and _is_document(value) else "flat"


def _is_document(value: dict[str, Any] | ClaimDocument) -> bool:
    return isinstance(value, ClaimDocument) or any(key in value for key in ("kind", "history", "class_name"))


AnyClaim = Annotated[
    Annotated[ClaimSpec, Tag("flat")] | Annotated[ClaimDocument, Tag("document")], Discriminator(_claim_form)
]


class TrainerSpec(_Part):
    """One trainer, what it promises, and what the audit is expected to say of it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    trainer: str
    settings: dict[str, Any] = Field(default_factory=dict)
    claim: AnyClaim | None = None
    expect: Literal["consistent", "violated", "underpowered", "no_claim"] | None = None

    @property
    def expected(self) -> Verdict | None:
        """The expected verdict."""
        return None if self.expect is None else Verdict(self.expect)

    def build(self, folder: str | None = None) -> Trainer:
        """The trainer, looked for in ``folder`` first if it or its model is the user's own; its errors name it."""
        from .trainers import DPSGD, SGD
        from .trainers.external import folders_on_path, resolve

        folders = [folder] if folder else []
        try:
            match self.trainer:
                case "sgd" | "dp-sgd":
                    with folders_on_path(folders):
                        return _with_settings(SGD if self.trainer == "sgd" else DPSGD, self.settings)
                case _ if ":" in self.trainer:
                    promise = None if self.claim is None else self.claim.build()
                    return resolve(self.trainer, self.settings, promise, folders)
        except InputError as error:
            raise InputError(f"trainer {self.name!r}: {error}") from None
        raise InputError(
            f"trainer {self.name!r}: trainer must be {', '.join(BUILT_IN)} or package.module:name, got {self.trainer!r}"
        )

    def promised(self, trainer: Trainer) -> Claim | None:
        """The claim to be judged: the spec's, else the trainer's own."""
        claim = trainer.claim() if self.claim is None else self.claim.build()
        if claim is not None and not isinstance(claim, Claim):
            raise InputError(f"trainer {self.name!r}: claim() must return a dpaudit.Claim or None, got {type(claim)}")
        return claim


class Spec(_Part):
    """A whole audit, as a user writes it; ``folder`` is where the file was, and no key of it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    seed: int = Field(ge=0)
    delta: float = Field(ge=0, lt=1)
    significance: float = Field(default=0.05, gt=0, lt=0.5)
    runs: int = Field(ge=1)
    shadows: int = Field(default=0, ge=0)
    data: DataSpec
    canaries: tuple[CanarySpec, ...] = Field(min_length=1)
    tests: tuple[TestSpec, ...] = ()
    trainers: tuple[TrainerSpec, ...] = Field(min_length=1)
    folder: str | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _parts_fit(self) -> Spec:
        families: dict[str, int] = {c.family: c.count for c in self.canaries}
        if len(families) < len(self.canaries):
            raise ValueError("canaries must name each family once")
        if len({t.name for t in self.trainers}) < len(self.trainers):
            raise ValueError("trainers must have different names")
        if sum(t.share for t in self.tests) > 1 + 1e-9:
            raise ValueError(f"the shares of all tests must sum to at most 1, got {sum(t.share for t in self.tests):g}")
        for test in self.tests:
            self._check_test(test, families)
        return self

    def _check_test(self, test: TestSpec, families: dict[str, int]) -> None:
        if test.canaries not in families:
            raise ValueError(f"tests must name a canary family ({', '.join(families)}), got {test.canaries!r}")
        coins = self.runs * families[test.canaries]
        if test.guesses > coins:
            raise ValueError(f"guesses must be at most runs x canaries = {coins}, got {test.guesses}")
        least = PLANNED[test.attack].shadows
        if self.shadows < least:
            raise ValueError(f"shadows must be at least {least} for the attack {test.attack}, got {self.shadows}")


def _with_settings(kind: Any, settings: dict[str, Any]) -> Any:
    known = list(kind.__dataclass_fields__)
    unknown = [key for key in settings if key not in known]
    if unknown:
        raise InputError(f"settings must be among {', '.join(known)}, got {unknown[0]!r}")
    return kind(**settings)


def load_spec(source: str | Path | dict[str, Any] | Spec) -> Spec:
    """A spec from a bundled name (one of :data:`BUNDLED`), a TOML file, or a dict of the same shape.

    Raises:
        InputError: no such file, no TOML, an unknown key or a value out of range: one line that names it.
    """
    if isinstance(source, Spec):
        return source
    if isinstance(source, dict):
        return _validated(source, "spec")
    if str(source) in BUNDLED:
        return _validated(tomllib.loads(bundled_text(str(source))), str(source))
    path = Path(source)
    if not path.is_file():
        raise InputError(f"spec must be a TOML file or one of {', '.join(BUNDLED)}, got {str(source)!r}, which is none")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a TOML file: {error}") from None
    return _validated(content, str(path)).model_copy(update={"folder": str(path.resolve().parent)})


def bundled_text(name: str) -> str:
    """The text of a spec that ships with the package, or of the template of ``dpaudit init``."""
    return (resources.files("dpaudit") / "specs" / f"{name}.toml").read_text(encoding="utf-8")


def _validated(content: dict[str, Any], where: str) -> Spec:
    if "folder" in content:
        raise InputError(f"{where}: unknown key folder (the folder of a data set goes under [data])")
    try:
        return Spec.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{where}: {_first_fault(error)}") from None


def _first_fault(error: ValidationError) -> str:
    """One line for the first of pydantic's findings, and how many more there are."""
    fault, more = error.errors()[0], error.error_count() - 1
    steps = [p for p in fault["loc"] if p not in _FORMS]
    place = "".join(f"[{p + 1}]" if isinstance(p, int) else f".{p}" for p in steps).lstrip(".")
    match fault["type"]:
        case "extra_forbidden":
            text = f"unknown key {place}"
        case "missing":
            text = f"missing key {place}"
        case "value_error":
            text = (f"{place}: " if place else "") + str(fault["ctx"]["error"])
        case _:
            text = f"{place}: {fault['msg'][0].lower()}{fault['msg'][1:]}, got {fault['input']!r}"
    return text + (f" (and {more} more)" if more else "")
