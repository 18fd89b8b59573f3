"""The settings of the built-in trainers.

What is in here changes the guarantee, or what is trained. What only changes the speed (chunk, workers, device) is an
argument of :func:`dpaudit.trainers.train_many`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import check
from ..errors import InputError
from ..records import Adjacency, BoolArray, Data
from . import options
from .images import ConvolutionalNet
from .private.clipping import Clipping, GlobalClipping
from .private.optimizers import Optimizer, Sgd
from .sampling import SAMPLERS, balls_and_bins

if TYPE_CHECKING:
    from ..accounting import Claim
    from .models import Network
    from .modules import TrainedModel

_CLIP_NORMS = 1.2e-38, 3.4e38  # those that float32 can divide by
_ALWAYS_SHOWN = (
    "learning_rate", "steps", "sampling_rate", "hidden", "expected_batch_size", "noise_multiplier", "clip_norm",
)  # fmt: skip
_REMOVING = ("poisson", "full-batch")  # samplers whose other batches stay as they are when a record is removed
_EXAMPLE_HIDDEN = (32,)  # of the CNN of Opacus's example, behind its convolutions


@dataclass(frozen=True, kw_only=True, repr=False)
class GradientDescent(abc.ABC):
    """What SGD and DPSGD have in common: a model, how batches are drawn, and what a gradient does to it.

    Softmax regression, perceptrons and convolutions are trained many at once where they take plain steps on Poisson or
    other batches; every other combination trains one ``torch.nn.Module`` at a time, by the same call.

    Attributes:
        learning_rate: step length on the mean of the (clipped, noised) per-example gradients.
        steps: number of batches.
        sampling_rate: the batch's share of the records. With ``poisson`` the probability that a member joins a batch,
            each member and step independently; an epoch of ``shuffled`` or ``balls-and-bins`` has 1 / it batches.
        hidden: widths of ReLU layers; ``()`` is softmax regression, ``(128,)`` one hidden layer. Behind convolutions
            they follow these; other models have none.
        expected_batch_size: the constant that the sum over a batch is divided by; by default ``sampling_rate`` times
            the data's public ``nominal_size``. Never the size of a batch or of the training set: those are private.
        sampler: how batches are drawn: ``poisson``, ``full-batch``, ``fixed-size``, ``shuffled`` or
            ``balls-and-bins``. With all but Poisson, batches are drawn from all records and those that are no members
            are left out of them: a record that is out is zeroed out.
        model: what is trained.

            - None, ``"softmax"``, ``"mlp"``: by ``hidden``.
            - ``"cnn"``: that of Opacus's MNIST example, for images (Papernot et al. 2021).
            - a :class:`~dpaudit.trainers.ConvolutionalNet`, or ``{shape = …, layers = [{channels = …, …}]}``.
            - ``"transformer"``: features are whole numbers, the tokens of a sequence.
            - ``"package.module:factory"`` or a function ``factory(features, classes, generator, **model_settings)``
              that makes a new ``torch.nn.Module``; ``generator`` is a ``torch.Generator``. The module is given float32
              ``(batch, features)``, or the type that its attribute ``input_dtype`` names, and gives logits ``(batch,
              classes)``. Parameters that it does not require gradients of stay as they are.
        model_settings: of ``mlp`` and convolutions ``activation`` (``relu`` or ``tanh``), of ``cnn`` also ``image``
            (height, width, channels), of ``transformer`` ``vocabulary`` (needed), ``width``, ``heads``, ``layers``; of
            a factory what it takes.
        optimizer: plain gradient descent; or :class:`~dpaudit.trainers.private.Momentum` or
            :class:`~dpaudit.trainers.private.Adam`, or ``{kind = "adam", …}``. It has the ``learning_rate`` above
            unless it names one, which then stands above, too.
        trainable: patterns of names of parameters, such as ``["head.*"]``: only these are trained, the rest stays.
        physical_batch_size: at most so many examples are held at once; by default as many as is fast.
    """

    learning_rate: float = 0.5
    steps: int = 300
    sampling_rate: float = 0.05
    hidden: Sequence[int] = ()
    expected_batch_size: float | None = None
    sampler: str = "poisson"
    model: str | Callable[..., Any] | ConvolutionalNet | Mapping[str, Any] | None = None
    model_settings: Mapping[str, Any] = field(default_factory=options.Table)
    optimizer: Optimizer | str | Mapping[str, Any] | None = None
    trainable: Sequence[str] = ()
    physical_batch_size: int | None = None

    def __post_init__(self) -> None:
        self._check_optimizer()
        check.positive("learning_rate", self.learning_rate)
        check.integer("steps", self.steps, 1)
        check.probability("sampling_rate", self.sampling_rate)
        self._check_sampler()
        if isinstance(self.hidden, (str, int)):
            raise InputError(f"hidden must be a list of layer widths such as [128], got {self.hidden!r}")
        widths = tuple(check.integer("width of a hidden layer", width, 1) for width in self.hidden)
        self._set("hidden", widths)
        if self.expected_batch_size is not None:
            check.positive("expected_batch_size", self.expected_batch_size)
        if self.physical_batch_size is not None:
            check.integer("physical_batch_size", self.physical_batch_size, 1)
        if isinstance(self.trainable, str) or not all(isinstance(pattern, str) for pattern in self.trainable):
            raise InputError(f"trainable must be a list of patterns such as ['head.*'], got {self.trainable!r}")
        self._set("trainable", tuple(self.trainable))
        self._check_model()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_sampler(self) -> None:
        check.choice("sampler", self.sampler, tuple(SAMPLERS))
        if self.sampler == "full-batch" and self.sampling_rate != 1:
            raise InputError(f"sampling_rate must be 1 for full batches, got {self.sampling_rate!r}")
        if self.sampler == "balls-and-bins":  # whose rates are 1 over a whole number
            balls_and_bins(np.random.default_rng(0), 1, self.sampling_rate)

    def _check_model(self) -> None:
        self._set("model", options.model(self.model))
        self._set("model_settings", options.table("model_settings", self.model_settings))
        named = self.model if isinstance(self.model, str) else None
        make = options.factory(named) if named is not None and ":" in named else self.model
        self._set("_factory", make if callable(make) else None)
        if named == "cnn" and not self.hidden:
            self._set("hidden", _EXAMPLE_HIDDEN)
        if named == "mlp" and not self.hidden:
            raise InputError("hidden must list the widths of an mlp's layers such as [128], got ()")
        if self.hidden and (named in ("softmax", "transformer") or self.factory is not None):
            kind = named or getattr(make, "__name__", "a factory")
            raise InputError(f"hidden must be () for the model {kind}, got {self.hidden!r}")
        kind = "mlp" if self.model is None and self.hidden else self.model
        options.check_model_settings(kind, self.factory, self.model_settings)  # type: ignore[arg-type]

    def _check_optimizer(self) -> None:
        if self.optimizer is None:
            return
        kept = options.choice("optimizer", self.optimizer, options.OPTIMIZERS, Optimizer, ("learning_rate",))
        self._set("optimizer", kept)
        if isinstance(kept, Optimizer):
            self._take_over("learning_rate", kept.learning_rate, "optimizer")

    def _take_over(self, name: str, value: float, whose: str) -> None:
        """Let a setting follow what an object says, unless it was said otherwise."""
        default = next(f.default for f in fields(self) if f.name == name)
        given = getattr(self, name)
        if given not in (default, value):
            raise InputError(f"{name} must be that of {whose} ({value:g}) or be left out, got {given!r}")
        self._set(name, value)

    def __repr__(self) -> str:
        shown = [f for f in fields(self) if f.name in _ALWAYS_SHOWN or getattr(self, f.name) != _default(f)]
        order = sorted(shown, key=lambda f: f.name not in _ALWAYS_SHOWN)
        return f"{type(self).__name__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in order)})"

    @property
    def factory(self) -> Callable[..., Any] | None:
        """What makes the module, where that is somebody else's function."""
        made: Callable[..., Any] | None = self.__dict__.get("_factory")
        return made

    @property
    def descent(self) -> Optimizer:
        """The optimizer with its learning rate."""
        if isinstance(self.optimizer, Optimizer):
            return self.optimizer
        given = options.Table(kind="sgd") if self.optimizer is None else self.optimizer
        assert isinstance(given, options.Table)
        rate = {"learning_rate": float(self.learning_rate)}
        return options.complete("optimizer", given, options.OPTIMIZERS, rate)

    @property
    def stacks(self) -> bool:
        """Whether the stacked engines know how to train this, many models at once."""
        return (
            type(self.descent) is Sgd
            and self.factory is None
            and self.model != "transformer"
            and self.model_settings.get("activation", "relu") == "relu"
            and not self.trainable
            and self.physical_batch_size is None
        )

    @property
    def convolutional(self) -> bool:
        """Whether the model begins with convolutions."""
        return self.model == "cnn" or isinstance(self.model, ConvolutionalNet)

    def convolutions(self, data: Data) -> ConvolutionalNet | None:
        """The convolutions for the records of ``data``; None if the model has none.

        Raises:
            InputError: the records are no images of a size that is known.
        """
        if isinstance(self.model, ConvolutionalNet):
            return self.model
        if self.model != "cnn":
            return None
        return options.example_net(options.image_shape(data, self.model_settings.get("image")))

    def divisor(self, data: Data) -> float:
        """What the sum over a batch is divided by: a public constant, whoever is a member."""
        if self.expected_batch_size is not None:
            return float(self.expected_batch_size)
        assert data.nominal_size is not None
        return float(self.sampling_rate) * data.nominal_size

    def train(self, data: Data, member: BoolArray, seed: int) -> Network | TrainedModel:
        """One model on the records where ``member`` (shape ``(records,)``) is True; all randomness from ``seed``.

        Raises:
            InputError: ``member`` has another shape or holds anything but true and false, or the model does not fit
                the data.
            MissingExtra: torch is not installed.
        """
        from .training import train_one

        return train_one(self, data, member, seed)

    @abc.abstractmethod
    def claim(self) -> Claim | None:
        """What is promised about :meth:`train`, or None."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SGD(GradientDescent):
    """Stochastic gradient descent without any privacy: no clipping, no noise, nothing promised.

    Raises:
        InputError: a setting out of range; see :class:`GradientDescent` for their meaning.

    >>> SGD(steps=100, hidden=[32]).claim() is None
    True
    """

    def claim(self) -> None:
        """Nothing is promised."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DPSGD(GradientDescent):
    """Differentially private SGD (Abadi et al. 2016, Algorithm 1), under the sampler's neighbouring relation: with
    Poisson batches, adding or removing one record.

    Each step sums the batch's per-example gradients, each scaled down to an L2 norm of at most ``clip_norm`` over
    all parameters together, adds Gaussian noise of standard deviation ``noise_multiplier · clip_norm`` to every
    coordinate of the sum, and divides by a constant. An example whose gradient is not finite adds nothing. A step
    with an empty batch is a step with noise alone.

    What is promised depends on noise, sampler, rate and steps alone: not on the model, on which of its parameters are
    trained, on the optimizer, or on the clipping rule, as noise is scaled by the rule's sensitivity.

    Attributes:
        noise_multiplier: noise standard deviation per unit of ``clip_norm``; 0 is clipping alone, without a promise.
        clip_norm: largest L2 norm of one example's part of a sum.
        clipping: how gradients are scaled down to it: by their norm over all parameters; or a rule of
            :mod:`dpaudit.trainers.private`, or ``{kind = "per-layer"}``, ``{kind = "automatic", stability = 0.01}``.
            A rule has the norm ``clip_norm`` unless it names one, which then is ``clip_norm``.
        secure_noise: noise that keeps the promise in floating point: a discrete Gaussian on a grid, from the operating
            system's entropy and so not from the seed, a hundred times slower. Its deviation is raised a little to
            cover rounding, so the claim stands as it is. Batches still come from the seed, which must stay secret.

    Raises:
        InputError: a setting out of range; see :class:`GradientDescent` for the others.

    >>> DPSGD(clipping={"kind": "automatic"}, clip_norm=0.5).rule
    AutomaticClipping(norm=0.5, stability=0.01)
    """

    noise_multiplier: float = 1.0
    clip_norm: float = 1.0
    clipping: Clipping | str | Mapping[str, Any] | None = None
    secure_noise: bool = False

    def __post_init__(self) -> None:
        if self.clipping is not None:
            kept = options.choice("clipping", self.clipping, options.RULES, Clipping, ("norm", "norms"))
            self._set("clipping", kept)
            if isinstance(kept, Clipping):
                self._take_over("clip_norm", kept.sensitivity, "clipping")
        super().__post_init__()
        check.not_negative("noise_multiplier", self.noise_multiplier)
        check.number("clip_norm", self.clip_norm, *_CLIP_NORMS)
        if not isinstance(self.secure_noise, bool):
            raise InputError(f"secure_noise must be true or false, got {self.secure_noise!r}")
        if self.secure_noise and self.noise_multiplier == 0:
            raise InputError("secure_noise must be false where noise_multiplier is 0: there is no noise")

    @property
    def rule(self) -> Clipping:
        """The clipping rule with its norm."""
        if self.clipping is None:
            return GlobalClipping(norm=float(self.clip_norm))
        if isinstance(self.clipping, Clipping):
            return self.clipping
        assert isinstance(self.clipping, options.Table)
        return options.complete("clipping", self.clipping, options.RULES, {"norm": float(self.clip_norm)})

    @property
    def stacks(self) -> bool:
        """Whether the stacked engines know how to train this, many models at once."""
        return super().stacks and type(self.rule) is GlobalClipping and not self.secure_noise

    def claim(self) -> Claim | None:
        """The privacy curve of these settings, under the neighbouring relation that leaving out a member realises; None
        without noise, when there is nothing to promise.

        >>> print(DPSGD(sampler="balls-and-bins", sampling_rate=0.1).claim().adjacency)
        zero-out
        """
        if self.noise_multiplier == 0:
            return None
        from ..accounting import Claim

        return Claim.dp_sgd(
            noise_multiplier=self.noise_multiplier,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            sampler=self.sampler,
            adjacency=None if self.sampler in _REMOVING else Adjacency.ZERO_OUT,
        )


def _default(setting: Any) -> Any:
    return options.Table() if setting.name == "model_settings" else setting.default
