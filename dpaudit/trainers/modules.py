"""Training one ``torch.nn.Module`` at a time: every model, optimizer and clipping rule that no stack is made for.

A model starts where the stacked engines would start it, takes the same batches and the same noise law; only the order
of float32 sums differs. Whatever a module draws itself (a factory that leaves its layers to torch, dropout) comes from
torch's global generator, seeded for the while and put back afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ..errors import InputError
from ..records import BoolArray, Data
from . import architectures, engine
from .images import ConvolutionalNet, ImageNetwork
from .models import Network
from .private.diagnostics import Diagnostics, StepCounts
from .private.engine import PrivateEngine
from .private.layout import Layout
from .private.losses import CrossEntropy, per_example
from .sampling import batch_blocks
from .seeds import Purpose, stream
from .settings import DPSGD, GradientDescent

_ROWS = 256  # records whose activations are held at once when a trained model is asked
_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A trained module; one kind of :class:`dpaudit.interfaces.Model`.

    Attributes:
        module: in evaluation mode, on the CPU.
        features: numbers in a record.
        names: of the trained parameters, in the order of flat vectors.
        start: the trained parameters before the first step, flat, float32.
        released: the same after each step, shape ``(steps, parameters)``, if they were kept.
        diagnostics: what the steps did to examples. **Outside the claim**: never to be released.
    """

    module: nn.Module
    features: int
    names: tuple[str, ...]
    start: NDArray[np.float32]
    released: NDArray[np.float32] | None = None
    diagnostics: Diagnostics = field(default=Diagnostics(), repr=False)

    def logits(self, x: ArrayLike) -> NDArray[np.float64]:
        """Unnormalised log-probabilities, float64, shape ``(records, classes)``.

        Raises:
            InputError: ``x`` is not of shape ``(records, features)``.
        """
        array = np.asarray(x)
        if array.ndim != 2 or array.shape[1] != self.features:
            raise InputError(f"features must have the shape (records, {self.features}), got {array.shape}")
        inputs = _inputs(self.module, array)
        with torch.no_grad():
            parts = [self.module(inputs[at : at + _ROWS]).double() for at in range(0, max(1, len(inputs)), _ROWS)]
        return torch.cat(parts).numpy()

    def parameters(self) -> NDArray[np.float32]:
        """The final trained parameters as one flat vector; see :attr:`names` for the order."""
        return _flat(Layout.of(self.module))

    def iterates(self) -> NDArray[np.float32] | None:
        """The parameters after each step, shape ``(steps, parameters)``; None unless training kept them."""
        return self.released


def fit(
    settings: GradientDescent | Sequence[DPSGD],
    data: Data,
    member: BoolArray,
    seeds: Sequence[int],
    *,
    device: str = "cpu",
    keep_iterates: bool = False,
    stop: threading.Event | None = None,
) -> list[TrainedModel]:
    """One model per row of ``member``, one after the other; arguments as of :func:`.engine.fit_body`."""
    each = [settings] * len(seeds) if isinstance(settings, GradientDescent) else settings
    return [
        fit_module(s, data, row, seed, device=device, keep_iterates=keep_iterates, stop=stop)
        for s, row, seed in zip(each, member, seeds, strict=True)
    ]


def fit_module(
    settings: GradientDescent,
    data: Data,
    member: BoolArray,
    seed: int,
    *,
    device: str = "cpu",
    keep_iterates: bool = False,
    stop: threading.Event | None = None,
) -> TrainedModel:
    """Train one module on the records where ``member``, shape ``(records,)``, is True.

    Args:
        settings: any.
        seed: of weights, batches, noise and dropout; of all but the noise with ``secure_noise``.
        stop: once set by another thread, training ends before its next step and the model is unfinished.

    Raises:
        InputError: the model does not fit the data or its settings, mixes examples, or torch has no such device.
    """
    place = engine.find_device(device)
    module = build(settings, data, seed).to(place).train()
    layout = Layout.of(module)
    x, y = _inputs(module, data.x).to(place), torch.tensor(data.y, device=place)
    start = _flat(layout)
    released = np.empty((settings.steps, layout.total), np.float32) if keep_iterates else None
    with _torch_seeded(seed, place):
        steps = _steps(settings, module, data, seed)
        for number, batch in enumerate(_batches(settings, member, seed)):
            if stop is not None and stop.is_set():
                break
            rows = torch.from_numpy(batch).to(place)
            steps.step(x[rows], y[rows])
            if released is not None:
                released[number] = _flat(layout)
    return TrainedModel(module.cpu().eval(), data.features, layout.names, start, released, steps.diagnostics)


def _batches(settings: GradientDescent, member: BoolArray, seed: int) -> Iterator[NDArray[np.int64]]:
    """Record numbers of each step's batch; some are empty."""
    generators = [stream(seed, "sampling")]
    rate, steps = settings.sampling_rate, settings.steps
    for block in batch_blocks(generators, member[None], rate, steps, settings.sampler):
        for row, (size,) in zip(block.index[:, 0], block.sizes, strict=True):
            yield row[:size]


def _steps(settings: GradientDescent, module: nn.Module, data: Data, seed: int) -> _Private | _Plain:
    if isinstance(settings, DPSGD):
        return _Private(settings, module, data, seed)
    return _Plain(settings, module, data)


class _Private:
    """Steps with clipping and noise."""

    def __init__(self, settings: DPSGD, module: nn.Module, data: Data, seed: int) -> None:
        self._engine = PrivateEngine(
            module,
            clipping=settings.rule,
            noise_multiplier=settings.noise_multiplier,
            divisor=settings.divisor(data),
            optimizer=settings.descent,
            generator=None if settings.secure_noise else stream(seed, "noise"),
            physical_batch_size=settings.physical_batch_size,
            secure=settings.secure_noise,
        )

    def step(self, x: Tensor, y: Tensor) -> None:
        self._engine.step(x, y)

    @property
    def diagnostics(self) -> Diagnostics:
        return self._engine.diagnostics


class _Plain:
    """Steps without privacy: what autograd says of the sum of the batch's losses."""

    def __init__(self, settings: GradientDescent, module: nn.Module, data: Data) -> None:
        self._module, self._loss = module, CrossEntropy()
        self._layout = Layout.of(module)
        self._total = self._layout.new_vector()
        self._parts = self._layout.split(self._total)
        self._scale, self._rate = 1 / settings.divisor(data), settings.learning_rate
        self._stepper = settings.descent.start(self._layout.parameters, self._layout.split)
        self._physical = settings.physical_batch_size
        self._counts: list[StepCounts] = []

    def step(self, x: Tensor, y: Tensor) -> None:
        self._total.zero_()
        size = self._physical or max(1, len(x))
        for at in range(0, len(x), size):
            self._add(x[at : at + size], y[at : at + size])
        with torch.no_grad():
            self._stepper.step(self._total, self._scale, self._rate)
        self._counts.append(StepCounts(len(x)))

    def _add(self, x: Tensor, y: Tensor) -> None:
        loss = per_example(self._loss, self._outputs(x), y, len(x)).sum()
        if loss.requires_grad:
            found = torch.autograd.grad(loss, self._layout.parameters, allow_unused=True)
            for part, gradient in zip(self._parts, found, strict=True):
                if gradient is not None:
                    part += gradient

    def _outputs(self, x: Tensor) -> Tensor:
        try:
            out: Tensor = self._module(x)
        except ValueError as error:
            if len(x) > 1:
                raise
            raise InputError(
                f"model {type(self._module).__name__} must train on batches of any size, since the sampler draws them; "
                f"of one record it says: {error}"
            ) from error
        return out

    @property
    def diagnostics(self) -> Diagnostics:
        return Diagnostics(tuple(self._counts))


# ---- models ---------------------------------------------------------------------------------------------------------


def build(settings: GradientDescent, data: Data, seed: int) -> nn.Module:
    """The untrained module of one model, on the CPU; only what is to be trained requires gradients.

    Raises:
        InputError: the model does not fit the data, a factory makes no module or not always the same one, or a
            pattern of ``trainable`` names no parameter.
    """
    module = _made(settings, data, seed) if settings.factory is not None else _built_in(settings, data, seed)
    named = dict(module.named_parameters())
    if settings.trainable:
        for pattern in settings.trainable:
            if not any(fnmatchcase(name, pattern) for name in named):
                raise InputError(f"trainable must match parameters ({', '.join(named)}), got {pattern!r}")
        for name, parameter in named.items():
            parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in settings.trainable))
    return module


def _made(settings: GradientDescent, data: Data, seed: int) -> nn.Module:
    """Somebody else's module, made twice: what training starts from must be new, and come from the seed."""
    first, second = (_called(settings, data, seed) for _ in range(2))
    if {id(p) for p in first.parameters()} & {id(p) for p in second.parameters()}:
        raise InputError("model must make a new module at every call, got the same parameters twice")
    one, other = dict(first.named_parameters()), dict(second.named_parameters())
    if one.keys() != other.keys() or not all(torch.equal(one[name], other[name]) for name in one):
        raise InputError("model must make the same module from the same generator, got another at a second call")
    return first


def _called(settings: GradientDescent, data: Data, seed: int) -> nn.Module:
    generator = torch.Generator().manual_seed(_torch_seed(seed, "init"))
    assert settings.factory is not None
    with _torch_seeded(seed, torch.device("cpu")):
        module = settings.factory(data.features, data.classes, generator, **settings.model_settings)
    if not isinstance(module, nn.Module):
        raise InputError(f"model must make a torch.nn.Module, got {type(module).__name__}")
    return module


def _built_in(settings: GradientDescent, data: Data, seed: int) -> nn.Module:
    net = settings.convolutions(data)
    if settings.model == "transformer":
        return _transformer(settings, data, seed)
    activation = _ACTIVATIONS[settings.model_settings.get("activation", "relu")]
    if net is None:
        matrices = engine.start_layers(data.features, settings.hidden, data.classes, seed)
        return nn.Sequential(*_dense(matrices, activation))
    if net.features != data.features:
        raise InputError(f"records must be images of {net.shape}, {net.features} features, got {data.features}")
    matrices = net.start(settings.hidden, data.classes, seed)
    depth = len(net.layers)
    return nn.Sequential(*_convolving(net, matrices[:depth], activation), *_dense(matrices[depth:], activation))


def module_of(model: Network) -> nn.Module:
    """A network that a stacked engine trained, as a new module with the same parameters and outputs."""
    if not isinstance(model, ImageNetwork) or model.net is None:
        return nn.Sequential(*_dense(model.layers, nn.ReLU))
    depth = len(model.net.layers)
    convolving = _convolving(model.net, model.layers[:depth], nn.ReLU)
    return nn.Sequential(*convolving, *_dense(model.layers[depth:], nn.ReLU))


def _transformer(settings: GradientDescent, data: Data, seed: int) -> nn.Module:
    sizes = dict(settings.model_settings)
    vocabulary = sizes.pop("vocabulary")
    if not np.isin(data.x, np.arange(vocabulary)).all():
        raise InputError(f"features must be tokens for a transformer, whole numbers from 0 to {vocabulary - 1}")
    generator = torch.Generator().manual_seed(_torch_seed(seed, "init"))
    module = architectures.transformer(vocabulary, data.features, data.classes, generator, **sizes)
    module.input_dtype = torch.long  # type: ignore[assignment]
    return module


def _convolving(
    net: ConvolutionalNet, matrices: Sequence[NDArray[np.float32]], activation: type[nn.Module]
) -> Iterator[nn.Module]:
    """The modules of convolutions that start at these matrices, ``(kernel² · channels + 1, outputs)``."""
    yield architectures.Images(net.shape)
    for layer, (_, _, before), matrix in zip(net.layers, net.maps(), matrices, strict=False):
        sizes = before, layer.channels, layer.kernel
        made = nn.utils.skip_init(nn.Conv2d, *sizes, stride=layer.stride, padding=layer.padding)
        weight = matrix[:-1].reshape(layer.kernel, layer.kernel, before, layer.channels).transpose(3, 2, 0, 1)
        _fill(made, weight, matrix[-1])
        yield made
        yield activation()
        if layer.pool > 1 or layer.pool_stride > 1:
            yield nn.MaxPool2d(layer.pool, layer.pool_stride)
    yield architectures.Records()


def _dense(matrices: Sequence[NDArray[np.float32]], activation: type[nn.Module]) -> Iterator[nn.Module]:
    """The modules of fully connected layers that start at these matrices, ``(inputs + 1, outputs)``."""
    for number, matrix in enumerate(matrices):
        if number:
            yield activation()
        made = nn.utils.skip_init(nn.Linear, matrix.shape[0] - 1, matrix.shape[1])
        _fill(made, matrix[:-1].T, matrix[-1])
        yield made


def _fill(module: nn.Module, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> None:
    with torch.no_grad():
        for name, value in (("weight", weight), ("bias", bias)):
            module.get_parameter(name).copy_(torch.from_numpy(np.ascontiguousarray(value)))


def _inputs(module: nn.Module, x: NDArray[np.floating]) -> Tensor:
    """Records as the module wants them."""
    wanted = getattr(module, "input_dtype", torch.float32)
    return torch.from_numpy(np.array(x, np.float32)).to(wanted)


def _flat(layout: Layout) -> NDArray[np.float32]:
    """The trained parameters, flat."""
    return np.concatenate([p.detach().reshape(-1).float().numpy(force=True) for p in layout.parameters])


def _torch_seed(seed: int, purpose: Purpose) -> int:
    return int(stream(seed, purpose).integers(2**63))


@contextmanager
def _torch_seeded(seed: int, place: torch.device) -> Iterator[None]:
    """Inside it, torch's global generators are seeded; afterwards they are as before."""
    devices = [place.index or 0] if place.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(_torch_seed(seed, "layers"))
        if devices:
            torch.cuda.default_generators[devices[0]].manual_seed(_torch_seed(seed, "layers"))
        yield
