"""The gradient of each example with respect to one parameter, in the form that is smallest.

All forms answer the same two questions: how long is each example's gradient, and what is the weighted sum of all. The
gradient of a weight at a layer's input ``a`` and the derivative ``g`` of the loss at its output is a sum of outer
products over positions, Σ_t g_t ⊗ a_t, and neither question needs it written out:

- one position: ‖g ⊗ a‖² = ‖g‖² ‖a‖² (Goodfellow 2015, "Efficient per-example gradient computations");
- several: Σ_{t,s} (g_t · g_s)(a_t · a_s) (Rochette, Manoel & Tramel 2019; Li et al. 2022, "Large language models can be
  strong differentially private learners", §4);
- the sum: Σ_i w_i g_i ⊗ a_i is one matrix product (Lee & Kifer 2021; Bu et al. 2023, "Differentially private
  optimization on large model at small cost", calls it book-keeping).

Where the outer products summed up are not larger than what they are made of, writing them out is cheaper.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..products import add_product
from .lengths import lost, squared_lengths
from .workspace import Workspace

_NUMBERS = 2**22  # held at once for inner products: 16 MiB of float32
_CACHED = 2**18  # products made before their norm is taken: a MiB, which a core's cache holds


class Piece(abc.ABC):
    """Every example's gradient with respect to one parameter."""

    @abc.abstractmethod
    def squares(self) -> Tensor:
        """Squared L2 norm of each example's gradient, shape ``(B,)``."""

    @abc.abstractmethod
    def add_to(self, total: Tensor, weights: Tensor) -> None:
        """Add Σ_i weights_i · gradient_i to ``total``, contiguous and in the parameter's shape."""

    @abc.abstractmethod
    def without(self, lost: Tensor) -> Piece:
        """The same with zeros for the examples where ``lost``, bool of shape ``(B,)``, is True."""


@dataclass(frozen=True, eq=False)
class Written(Piece):
    """Gradients written out.

    Attributes:
        values: shape ``(B, ...)``, as many numbers per example as the parameter has.
        known: their squared norms, where they were taken while the values were at hand.
    """

    values: Tensor
    known: Tensor | None = None

    def squares(self) -> Tensor:
        if self.known is not None:
            return self.known
        return squared_lengths(self.values.flatten(1))

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        total.view(-1).addmv_(self.values.flatten(1).t(), weights)

    def without(self, lost: Tensor) -> Written:
        return Written(_zeroed(self.values, lost))


@dataclass(frozen=True, eq=False)
class Outer(Piece):
    """Outer products ``left ⊗ right`` summed over positions: a parameter seen as G matrices of ``(d, p)``.

    Attributes:
        left: derivatives at the layer's output, shape ``(B, G, T, d)``.
        right: the layer's input, shape ``(B, G, T, p)``.
    """

    left: Tensor
    right: Tensor

    def settled(self, workspace: Workspace) -> Piece:
        """The same, written out if that takes less memory and fewer operations than inner products would."""
        positions, d, p = *self.left.shape[2:], self.right.shape[3]
        if positions == 1 or 2 * d * p > 3 * positions * (d + p):
            return self
        examples, groups = self.left.shape[:2]
        products = workspace.take((examples, groups, d, p), self.left)
        squares = products.new_empty(examples)
        for part in _parts(examples, groups * d * p, _CACHED):
            left, right, out = (each[part].flatten(0, 1) for each in (self.left, self.right, products))
            torch.bmm(left.transpose(1, 2), right, out=out)
            squares[part] = Written(products[part]).squares()
        return Written(products, squares)

    def squares(self) -> Tensor:
        if self.left.shape[2] == 1:
            sides = (side.flatten(0, 2) for side in (self.left, self.right))
            lefts, rights = (squared_lengths(side) + lost(side.shape[1], side) for side in sides)
            return (lefts * rights).view(len(self.left), -1).sum(1)
        groups, positions = self.left.shape[1:3]
        parts = [
            _inner_products(self.left[part], self.right[part])
            for part in _parts(len(self.left), 2 * groups * positions**2)
        ]
        return torch.cat(parts)

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        groups, d, p = self.left.shape[1], self.left.shape[3], self.right.shape[3]
        left, right = self.left, self.right
        if d < p:
            left = left * weights.view(-1, 1, 1, 1)
        else:
            right = right * weights.view(-1, 1, 1, 1)
        if groups == 1:
            add_product(total.view(d, p), left.reshape(-1, d).t(), right.reshape(-1, p))
        else:
            lines = (left.transpose(0, 1).reshape(groups, -1, d), right.transpose(0, 1).reshape(groups, -1, p))
            total.view(groups, d, p).baddbmm_(lines[0].transpose(1, 2), lines[1])

    def without(self, lost: Tensor) -> Outer:
        return Outer(_zeroed(self.left, lost), _zeroed(self.right, lost))


@dataclass(frozen=True, eq=False)
class Rows(Piece):
    """Vectors added to rows of a table: the gradient of an embedding.

    Attributes:
        index: row numbers, shape ``(B, T)``.
        values: what is added to each, shape ``(B, T, p)``.
        rows: how many rows the table has.
    """

    index: Tensor
    values: Tensor
    rows: int

    def squares(self) -> Tensor:
        """Vectors of one example that go to the same row are added up before their norm is taken."""
        examples, positions = self.index.shape
        owner = torch.arange(examples, device=self.index.device).repeat_interleave(positions)
        keys, place = torch.unique(owner * self.rows + self.index.reshape(-1), return_inverse=True)
        sums = self.values.new_zeros((len(keys), self.values.shape[2]))
        sums.index_add_(0, place, self.values.reshape(-1, self.values.shape[2]))
        out = self.values.new_zeros(examples)
        return out.index_add_(0, keys // self.rows, torch.linalg.vector_norm(sums, dim=1).square_())

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        values = self.values * weights.view(-1, 1, 1)
        total.index_add_(0, self.index.reshape(-1), values.reshape(-1, values.shape[2]))

    def without(self, lost: Tensor) -> Rows:
        return Rows(self.index, _zeroed(self.values, lost), self.rows)


@dataclass(frozen=True, eq=False)
class Tied(Piece):
    """A table that is looked up in one place and multiplied with in another: embedding and output weights in one.

    Attributes:
        product: what the multiplications give, one group, ``(rows, p)``.
        rows: what the look-ups give.
    """

    product: Outer
    rows: Rows

    def squares(self) -> Tensor:
        """Both parts may cancel, but rounding must not make what is left look short."""
        apart = self.product.squares() + self.rows.squares()
        return torch.maximum(apart + 2 * self._cross(), apart * torch.finfo(apart.dtype).eps)

    def _cross(self) -> Tensor:
        """Inner product of both parts: Σ_{t,s} left_t[index_s] · (right_t · values_s), shape ``(B,)``."""
        left, right = self.product.left[:, 0], self.product.right[:, 0]
        parts = []
        for part in _parts(len(left), 2 * left.shape[1] * self.rows.index.shape[1]):
            index = self.rows.index[part]
            picked = left[part].gather(2, index[:, None, :].expand(-1, left.shape[1], -1))
            parts.append((picked * (right[part] @ self.rows.values[part].transpose(1, 2))).sum((1, 2)))
        return torch.cat(parts)

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        self.product.add_to(total, weights)
        self.rows.add_to(total, weights)

    def without(self, lost: Tensor) -> Tied:
        return Tied(self.product.without(lost), self.rows.without(lost))


@dataclass(frozen=True, eq=False)
class ChannelsLast(Piece):
    """Gradients of a convolution's weight that have the input channels as their last dimension instead of the second.

    Attributes:
        piece: the gradients in that order.
    """

    piece: Piece

    def squares(self) -> Tensor:
        return self.piece.squares()

    def add_to(self, total: Tensor, weights: Tensor) -> None:
        other = torch.zeros_like(total.movedim(1, -1), memory_format=torch.contiguous_format)
        self.piece.add_to(other, weights)
        total += other.movedim(-1, 1)

    def without(self, lost: Tensor) -> ChannelsLast:
        return ChannelsLast(self.piece.without(lost))


def together(pieces: Sequence[Piece], workspace: Workspace) -> Piece:
    """One piece for all uses of a parameter: gradients add up *before* their norm is taken.

    It lives as long as what ``workspace`` hands out.

    Raises:
        TypeError: a parameter is used in ways that no module of :mod:`.rules` can combine.
    """
    if isinstance(pieces[0], ChannelsLast):
        return ChannelsLast(together([p.piece for p in pieces if isinstance(p, ChannelsLast)], workspace))
    if len(pieces) == 1:
        only = pieces[0]
        return only.settled(workspace) if isinstance(only, Outer) else only
    written = [piece for piece in pieces if isinstance(piece, Written)]
    outers = [piece for piece in pieces if isinstance(piece, Outer)]
    rows = [piece for piece in pieces if isinstance(piece, Rows)]
    if len(written) == len(pieces):
        return Written(torch.stack([piece.values for piece in written]).sum(0))
    if len(outers) + len(rows) < len(pieces):
        raise TypeError("a parameter is used both written out and as a factor")
    if not rows:
        return _joined_outers(outers).settled(workspace)
    joined = Rows(torch.cat([r.index for r in rows], 1), torch.cat([r.values for r in rows], 1), rows[0].rows)
    return Tied(_joined_outers(outers), joined) if outers else joined


def _joined_outers(outers: Sequence[Outer]) -> Outer:
    return Outer(torch.cat([o.left for o in outers], 2), torch.cat([o.right for o in outers], 2))


def _inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Squared norms by inner products of positions, shape ``(B,)``.

    They may cancel until rounding is all that is left, which then must not make a gradient look short: the result is
    at least the square of Σ_t ‖left_t‖‖right_t‖ times the precision, which is about what rounding can be. What may have
    underflown in one factor is charged with the other.
    """
    lefts, rights = left @ left.transpose(2, 3), right @ right.transpose(2, 3)
    own, other = lefts.diagonal(dim1=2, dim2=3), rights.diagonal(dim1=2, dim2=3)
    most = (own * other).clamp_min(0).sqrt().sum(2).square_()
    missing = own.sum(2) * lost(right.shape[3], right) + other.sum(2) * lost(left.shape[3], left)
    squares = torch.maximum(lefts.mul_(rights).sum((2, 3)), most * torch.finfo(left.dtype).eps)
    return (squares.sqrt_() + missing.mul_(left.shape[2]).sqrt_()).square_().sum(1)


def _parts(examples: int, numbers_each: int, numbers: int = _NUMBERS) -> Iterator[slice]:
    size = max(1, numbers // max(1, numbers_each))
    for at in range(0, examples, size):
        yield slice(at, at + size)


def _zeroed(values: Tensor, lost: Tensor) -> Tensor:
    return values.masked_fill(lost.view(-1, *[1] * (values.dim() - 1)), 0.0)
