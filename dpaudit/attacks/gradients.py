"""Scores from gradients: how long a record's gradient is, and what the steps released in a canary's direction."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import check
from ..accounting.mechanisms import batches_per_epoch
from ..errors import InputError
from ..trainers.models import CheckedModel, Network
from ..trainers.private.clipping import Clipping
from ..trainers.private.likelihoods import joined_by_coins, joined_once_an_epoch, step_ratios
from ..trainers.sampling import SAMPLERS
from .arrays import as_array, require_some

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..trainers.private.losses import Loss

Array = NDArray[np.float64]

_ROWS = 1024  # records whose gradients are looked at together


def gradient_norm(norms: ArrayLike) -> Array:
    """The gradient-norm attack: a model at rest on a record has a short gradient there, which says "member".

    Source: Nasr, Shokri and Houmansadr 2019, "Comprehensive privacy analysis of deep learning", section III, in its
    simplest form.

    Args:
        norms: of each record's gradient of the loss, any shape; not changed. :func:`gradient_norms` takes them.

    Returns:
        Scores, float64, in that shape.

    Raises:
        InputError: norms that are no numbers, NaN or below 0, or none at all.

    >>> gradient_norm([0.5, 2.0])
    array([-0.5, -2. ])
    """
    found = as_array("norms", norms)
    if found.dtype.kind not in "biuf":
        raise InputError(f"norms must be numbers, got {found.dtype}")
    require_some("norms", found)
    bad = np.isnan(found) | (found < 0)
    if bad.any():
        raise InputError(f"norms must be numbers of at least 0, got others in {int(bad.sum())} of {bad.size} places")
    return -found.astype(np.float64)


def gradient_norms(model: Any, x: Any, y: Any, loss: Loss | None = None) -> Array:
    """The L2 norm of each record's gradient of the loss, over all trained parameters together.

    Everything is done in float64 on the CPU, on a copy: in float32 the gradients of all records that are learnt well
    would be 0. A model whose modules the private engine knows is done by its short cuts, without writing gradients
    out.

    Args:
        model: any ``torch.nn.Module`` that looks at each record alone, or a model of dpaudit's trainers; not changed.
            A module is put into evaluation mode.
        x: the records, as the module takes them: an array or tensor, records along dimension 0. Where a module has an
            attribute ``input_dtype`` of whole numbers, they are turned into these.
        y: what the loss compares its outputs with, records along dimension 0.
        loss: gives one number per record; cross-entropy by default.

    Returns:
        Float64, shape ``(records,)``.

    Raises:
        InputError: a model of another kind, nothing trained, records that are mixed, sizes that differ, or a gradient
            that is not finite.
        MissingExtra: torch is not installed.
    """
    from ..trainers.private import ClippedSums

    module = _module(model).double()
    inputs, targets = _tensor(x), _tensor(y)
    if inputs.ndim < 1 or targets.ndim < 1 or len(inputs) != len(targets):
        raise InputError(f"x and y must have as many records, got {tuple(inputs.shape)} and {tuple(targets.shape)}")
    lengths = _Lengths()
    sums = ClippedSums(module, lengths, loss)
    for at in range(0, len(inputs), _ROWS):
        sums.sum(_as_wanted(module, inputs[at : at + _ROWS]), targets[at : at + _ROWS])
    norms = np.concatenate(lengths.found) if lengths.found else np.zeros(0)
    if not np.isfinite(norms).all():
        raise InputError(f"gradients must be finite, got NaN or infinity in {int((~np.isfinite(norms)).sum())} of "
                         f"{len(norms)} records")  # fmt: skip
    return norms


@dataclass(frozen=True, kw_only=True)
class _Lengths(Clipping):
    """A rule that leaves gradients as they are and remembers how long they were, in order."""

    found: list[Array] = field(default_factory=list)

    @property
    def sensitivity(self) -> float:
        return float("inf")

    def weights(self, squares: Any) -> Any:
        self.found.append(np.sqrt(squares.numpy(force=True).astype(np.float64)))
        return squares * 0 + 1


def _module(model: Any) -> nn.Module:
    """A copy of what is inside a model, in evaluation mode on the CPU."""
    from torch import nn

    from ..trainers.modules import module_of

    if isinstance(model, CheckedModel):
        return _module(model.model)
    if isinstance(model, Network):
        return module_of(model).eval()
    module = model if isinstance(model, nn.Module) else getattr(model, "module", None)
    if not isinstance(module, nn.Module):
        raise InputError(
            f"model must be a torch.nn.Module or a model of dpaudit's trainers, got {type(model).__name__}"
        )
    return copy.deepcopy(module).cpu().eval()


def _tensor(values: Any) -> Tensor:
    import torch

    if isinstance(values, torch.Tensor):
        return values.detach().cpu()
    return torch.from_numpy(np.array(values))


def _as_wanted(module: nn.Module, x: Tensor) -> Tensor:
    """Numbers in float64; whole numbers, and what a module wants as such, as they are."""
    import torch

    wanted = getattr(module, "input_dtype", None)
    if isinstance(wanted, torch.dtype) and not wanted.is_floating_point:
        return x.to(wanted)
    return x.double() if x.is_floating_point() else x


def gradient_canary_score(
    projections: ArrayLike,
    noise_deviation: ArrayLike,
    *,
    size: ArrayLike = 1.0,
    sampling_rate: float = 1.0,
    sampler: str = "poisson",
    records: int | None = None,
) -> Array:
    """The exact log-likelihood ratio of what the steps of DP-SGD released in a canary's direction.

    By the lemma of Neyman and Pearson no score of the same projections tells members from others better. A step says
    N(a, σ²) of a canary that joined it and N(0, σ²) of one that did not. Which steps a member joined is not known:

    - ``poisson``, ``fixed-size``: each with chance q, whatever the others: Σ_t ln(1 − q + q e^{r_t}) with r_t =
      (a s_t − a²/2) / σ². (Of one record, batches of fixed size say nothing else; what the sizes of the *others'*
      parts say is not in a projection.)
    - ``full-batch``: all: Σ_t r_t.
    - ``shuffled``, ``balls-and-bins``: one of the 1/q batches of every epoch: Σ_epochs ln mean_t e^{r_t}. An epoch
      that is broken off may have missed it.

    Args:
        projections: s, the product of each step's released sum of clipped gradients with the canary's direction (of
            norm 1), less what the other records gave: shape ``(..., steps)``; not changed.
        noise_deviation: σ of the noise in one direction, that is noise multiplier times clip norm, above 0: one number,
            or one per step.
        size: a, what the canary adds to a projection in a step that it joins, above 0: the norm of its clipped
            gradient. One number, or one per step.
        sampling_rate: q in (0, 1]; the share of the records that a batch has.
        sampler: how batches are drawn, by the names of :class:`~dpaudit.trainers.DPSGD`.
        records: how many there are, for samplers whose batches are whole numbers of them. Of ``shuffled`` batches
            some have one record more than others, and with them a higher chance; a batch of ``fixed-size`` has the
            floor of q times the records. None takes equal chances, and q as it is.

    Returns:
        Natural logarithms, float64, shape ``(...,)``; higher says "member".

    Raises:
        InputError: a shape or setting out of range, or projections that are not finite.

    >>> gradient_canary_score([[0.5, 1.5], [0.5, 0.5]], 1.0)
    array([1., 0.])
    """
    found = as_array("projections", projections)
    if found.ndim < 1 or found.dtype.kind not in "biuf" or found.shape[-1] < 1:
        raise InputError(f"projections must be numbers of shape (..., steps), got {found.dtype} {found.shape}")
    require_some("projections", found)
    steps = found.shape[-1]
    deviation = _per_step("noise_deviation", noise_deviation, steps)
    length = _per_step("size", size, steps)
    rate = check.probability("sampling_rate", sampling_rate)
    check.choice("sampler", sampler, tuple(SAMPLERS))
    if sampler == "full-batch" and rate < 1:
        raise InputError(f"sampling_rate must be 1 for full batches, got {rate:g}")
    table = np.array(np.moveaxis(found, -1, 0).reshape(steps, -1), np.float64, order="C")
    if not np.isfinite(table).all():
        raise InputError(f"projections must be finite, got NaN or infinity in {int((~np.isfinite(table)).sum())} of "
                         f"{table.size} places")  # fmt: skip
    ratios = step_ratios(table, length, deviation)
    if sampler in ("shuffled", "balls-and-bins"):
        scores = joined_once_an_epoch(ratios, _chances(sampler, rate, records))
    else:
        scores = joined_by_coins(ratios, _share(sampler, rate, records))
    return scores.reshape(found.shape[:-1])


def _per_step(name: str, value: ArrayLike, steps: int) -> Array:
    """One number per step above 0, shape ``(steps, 1)``."""
    found = as_array(name, value)
    if found.dtype.kind not in "iuf" or found.shape not in ((), (steps,)):
        raise InputError(f"{name} must be one number or one per step ({steps}), got {found.dtype} {found.shape}")
    if not (np.isfinite(found) & (found > 0)).all():
        raise InputError(f"{name} must be in (0, inf), got {found[()] if found.ndim == 0 else found.min():g}")
    return np.broadcast_to(found.astype(np.float64), (steps,))[:, None]


def _share(sampler: str, rate: float, records: int | None) -> float:
    """With which chance a record is in a batch."""
    if sampler != "fixed-size" or records is None:
        return rate
    count = check.integer("records", records, 1)
    return check.probability("sampling_rate of whole records", int(rate * count + 1e-9) / count)


def _chances(sampler: str, rate: float, records: int | None) -> Array:
    """With which chance a record is in each batch of an epoch."""
    if sampler == "balls-and-bins":
        batches = max(1, round(1 / rate))
        if abs(rate * batches - 1) > 1e-3:
            raise InputError(
                f"sampling_rate must be 1 over a whole number of batches, such as 1/{batches}, got {rate:g}"
            )
    else:
        batches = batches_per_epoch(rate)
    if sampler == "balls-and-bins" or records is None:
        return np.full(batches, 1 / batches)
    count = check.integer("records", records, 1)
    return np.bincount(np.arange(count) * batches // count, minlength=batches) / count
