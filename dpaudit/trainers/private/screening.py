"""What is refused, and what is checked before a model's gradients are believed.

Per-example clipping bounds what one example adds only if one example's loss depends on no other example. Modules known
to break that are refused by their class; the rest is tried on the first examples: one is changed, and what the model
says about the others must stay as it was. Book-keeping is then compared with autograd on the same examples, so that a
parameter used outside its module, or a module that sees examples along another dimension, is found out and not
under-counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils import _pytree as pytree

from ...errors import InputError
from . import batches
from .bookkeeping import FASTER, BookKeeping, LayoutError
from .clipping import Clipping, GlobalClipping
from .layout import Layout
from .losses import Loss, per_example
from .pieces import Piece, Written
from .rules import Rule, rule_for
from .summing import Gradients, add_pieces

_PROBED = 3  # examples that a model is tried on
_NEVER = 1e30  # no gradient that long would have a finite square
_NOTHING = 1e-12  # a norm may be given as this where it is 0: what underflow may have hidden


def refuse_mixing(model: nn.Module) -> None:
    """Refuse modules that are known to mix examples.

    Raises:
        InputError: there is one; the message says which, why, and what to use instead.
    """
    for name, module in model.named_modules():
        where = f"{type(module).__name__} ({name})" if name else type(module).__name__
        if isinstance(module, _InstanceNorm):
            if module.track_running_stats and module.training:
                raise InputError(f"{where} keeps running statistics of all examples, without noise: use "
                                 "track_running_stats=False, or GroupNorm")  # fmt: skip
        elif isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise InputError(f"{where} divides each example by statistics of its batch, so one example changes the "
                             "gradients of all: use GroupNorm, or put it into eval mode to keep its statistics as "
                             "they are")  # fmt: skip


def find_rules(model: nn.Module, layout: Layout) -> tuple[dict[nn.Module, Rule], str]:
    """The rules of all modules with trained parameters, and the name of the first module that has none ("" if all)."""
    trained = {id(parameter) for parameter in layout.parameters}
    rules: dict[nn.Module, Rule] = {}
    for name, module in model.named_modules():
        if not any(id(parameter) in trained for parameter in module._parameters.values()):
            continue
        rule = rule_for(module)
        if rule is None:
            return {}, f"{type(module).__name__} ({name})" if name else type(module).__name__
        rules[module] = rule
    return rules, ""


def check_independence(model: nn.Module, x: batches.Batch) -> None:
    """Check by trying that what ``model`` says about an example depends on no other example.

    Example 0 is replaced by another (and, where inputs are real numbers, by a distorted one); the outputs for the
    others must not move. Random modules such as dropout are given the same random numbers each time; the model's
    buffers and torch's global generators are left as they were.

    Args:
        model: in the mode (``train()`` or ``eval()``) that it will be trained in; examples are along dimension 0 of
            what it returns.
        x: at least two examples; the first few are used.

    Raises:
        InputError: examples are mixed, or there are fewer than two.

    >>> check_independence(nn.LayerNorm(3), torch.eye(3))
    """
    size = len(batches.leaves(x, "x")[0])
    if size < 2:
        raise InputError(f"x must have at least two examples to tell whether they are mixed, got {size}")
    few = batches.pick(x, slice(0, _PROBED))
    _try_changes(model, few, lambda changed: pytree.tree_leaves(batches.outputs(model, changed)))


def check_losses(model: nn.Module, loss: Loss, x: batches.Batch, y: batches.Batch) -> None:
    """The same for the losses of examples, of which there must be at least two."""
    few, targets = batches.pick(x, slice(0, _PROBED)), batches.pick(y, slice(0, _PROBED))
    size = len(batches.leaves(few, "x")[0])
    _try_changes(model, few, lambda changed: [per_example(loss, batches.outputs(model, changed), targets, size)])


def _try_changes(model: nn.Module, x: batches.Batch, answers: Callable[[batches.Batch], list[Any]]) -> None:
    def others(changed: batches.Batch) -> list[Tensor]:
        torch.manual_seed(0)  # the global generators are put back by untouched()
        return [part[1:] for part in answers(changed) if isinstance(part, Tensor) and part.dim()]

    with torch.no_grad(), untouched(model):
        wanted = others(x)
        for changed in _changed(x):
            for before, after in zip(wanted, others(changed), strict=True):
                if before.shape != after.shape or not torch.allclose(before, after, 1e-4, 1e-6, equal_nan=True):
                    raise InputError("examples are mixed: changing one changes what the model says about others, so "
                                     "clipping bounds nothing; each example must be processed by itself")  # fmt: skip


def _changed(x: batches.Batch) -> Iterator[batches.Batch]:
    size = len(batches.leaves(x, "x")[0])
    swapped = batches.pick(x, [size - 1, *range(1, size)])
    yield swapped
    yield pytree.tree_map(_distorted, swapped)


def _distorted(part: Tensor) -> Tensor:
    if not part.is_floating_point():
        return part
    out = part.clone()
    out[0] = 1 - 3 * out[0]
    return out


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Leave the model's buffers and torch's global generators as they were."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def settle(method: BookKeeping, model: nn.Module, layout: Layout, x: Any, y: Any, size: int) -> str:
    """Find the way in which book-keeping is right for this model, tried on its first examples.

    ``method`` is told what was found. It stays unsettled where none of these examples has a gradient that is finite and
    not zero: then nothing is known yet.

    Returns:
        Why there is no such way; empty if there is one, or nothing is known.
    """
    rows = [0, min(1, size - 1), size - 1]
    few = batches.pick(x, rows), batches.pick(y, rows)
    reason = ""
    with untouched(model):
        method.shared |= _shared_embeddings(model, few[0])
        for copies in (False, True):
            method.copies = copies
            state = torch.get_rng_state()
            try:
                known, reason, exact = _compare(method, layout, *few)
            except LayoutError as error:
                return f"{error}: the examples must be along dimension 0"
            if not reason:
                if known:
                    method.ways = _faster_ways(method, layout, *few, exact, state)
                method.settled = known
                break
    return reason


def agrees(
    method: Gradients, model: nn.Module, layout: Layout, loss: Loss, clipping: Clipping, x: Any, y: Any, size: int
) -> bool | None:
    """Whether gradients of the first examples, clipped and not, are those that autograd gives.

    None if nothing is known yet: none of them has a gradient that is finite and not zero.
    """
    known: bool | None = None
    for row in (0, min(1, size - 1), size - 1):
        one = batches.pick(x, [row]), batches.pick(y, [row])
        with untouched(model), torch.enable_grad():
            losses = per_example(loss, batches.outputs(model, batches.detached(one[0])), one[1], 1)
            exact: list[Piece | None] = [Written(gradient) for gradient in _one_by_one(layout, losses)]
        for rule in (clipping, GlobalClipping(norm=_NEVER)):
            wanted = layout.split(layout.new_vector().zero_())
            if add_pieces(wanted, exact, losses.detach(), layout, rule).dropped:
                break
            if not _gives(method, layout, *one, rule, wanted):
                return False
            known = known or any(bool(part.any()) for part in wanted) or None  # of zeros, wrong ways know as much
    return known


def _gives(method: Gradients, layout: Layout, x: Any, y: Any, rule: Clipping, wanted: list[Tensor]) -> bool:
    got = layout.split(layout.new_vector().zero_())
    try:
        method.add_clipped(got, x, y, 1, rule)
    except Exception:  # whatever it makes of this model
        return False
    rounding = 1e-5 * float(torch.cat([part.flatten() for part in wanted]).norm())
    pairs = zip(wanted, got, strict=True)
    return all(float((ours - theirs).norm()) <= 1e-2 * float(theirs.norm()) + rounding for theirs, ours in pairs)


def _faster_ways(
    method: BookKeeping, layout: Layout, x: Any, y: Any, exact: list[Tensor], state: Tensor
) -> frozenset[str]:
    """In which ways, faster than torch's, the model's layers may compute: the gradients are still these.

    ``state`` is that of torch's random numbers when these were made: the same dropout is wanted.
    """
    for ways in FASTER:
        method.ways = ways
        torch.set_rng_state(state)
        try:
            reason = _compare(method, layout, x, y, exact)[1]
        except Exception:  # whatever a model makes of it
            continue
        if not reason:
            return ways
    return frozenset()


def _shared_embeddings(model: nn.Module, x: Any) -> set[nn.Module]:
    """Embeddings whose input has no examples: one row of indices for the whole batch."""
    found: set[nn.Module] = set()
    embeddings = [m for m in model.modules() if type(m) is nn.Embedding and m.weight.requires_grad]
    if not embeddings:
        return found

    def look(module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], _: Any) -> None:
        index = args[0] if args else keywords["input"]
        if (index.dim() == 1 and len(index) != _PROBED) or (index.dim() == 2 and len(index) == 1):
            found.add(module)

    handles = [module.register_forward_hook(look, with_kwargs=True) for module in embeddings]
    try:
        with torch.no_grad():
            batches.outputs(model, x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _compare(
    method: BookKeeping, layout: Layout, x: Any, y: Any, exact: list[Tensor] | None = None
) -> tuple[bool, str, list[Tensor]]:
    """Compare book-keeping with autograd in one graph, or with what is ``exact``, example by example.

    Returns:
        whether any of them had a gradient that is finite and not zero, what differs (empty if nothing does), and what
        is exact.
    """
    tape, losses = method.losses(x, y, _PROBED)
    pieces = method.pieces(tape, losses, keep_graph=exact is None)
    method.fit_memory(_PROBED)
    exact = _one_by_one(layout, losses) if exact is None else exact
    whole = torch.stack([gradient.flatten(1).norm(dim=1) for gradient in exact]).norm(dim=0)
    usable = torch.isfinite(whole)
    for piece in pieces:
        if piece is not None:
            usable &= torch.isfinite(piece.squares())
    rows = usable.nonzero().flatten().tolist()
    rounding = max(1e-5 * float(whole[usable].max()), _NOTHING) if rows else 0.0
    for name, gradient, piece in zip(layout.names, exact, pieces, strict=True):
        if any(_differs(gradient[row], piece, row, rounding) for row in rows):
            return True, f"gradients of {name} are not what its module's input and output say", exact
    return any(float(whole[row]) > 100 * _NOTHING for row in rows), "", exact  # from zeros alone nothing is known


def _one_by_one(layout: Layout, losses: Tensor) -> list[Tensor]:
    """For each parameter, the gradient of each loss, shape ``(examples, ...)``."""
    rows = []
    for unit in torch.eye(len(losses), dtype=losses.dtype, device=losses.device):
        found: Any = [None] * len(layout.parameters)
        if losses.requires_grad:
            found = torch.autograd.grad(losses, layout.parameters, unit, retain_graph=True, allow_unused=True)
        rows.append([torch.zeros_like(p) if g is None else g for p, g in zip(layout.parameters, found, strict=True)])
    return [torch.stack(of_one).detach() for of_one in zip(*rows, strict=True)]


def _differs(gradient: Tensor, piece: Piece | None, row: int, rounding: float) -> bool:
    """Whether the norm or the sum that a piece gives for one example is another than its gradient's.

    ``rounding`` is an absolute tolerance: some gradients are nothing but that, as of a bias that softmax takes away.
    """
    norm = float(gradient.norm())
    allowed = 1e-2 * norm + rounding
    if piece is None:
        return norm > allowed
    weights = torch.zeros(_PROBED, dtype=gradient.dtype, device=gradient.device)
    weights[row] = 1.0
    total = torch.zeros_like(gradient, memory_format=torch.contiguous_format)
    lost = torch.ones(_PROBED, dtype=torch.bool, device=gradient.device)
    lost[row] = False
    piece.without(lost).add_to(total, weights)
    return abs(float(piece.squares()[row].sqrt()) - norm) > allowed or float((total - gradient).norm()) > allowed
