"""Matrix products by either library: right for any shape and any order in memory, and rows that keep to themselves."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from dpaudit.trainers import products  # noqa: E402
from dpaudit.trainers.products import add_product, is_large, product  # noqa: E402

LARGE = [
    (128, 128, 128),
    (64, 784, 256),
    (1, 2048, 1024),
    (2048, 1, 1024),
    (1024, 2048, 1),
    (10, 4099, 65),
    (515, 37, 311),
    (3, 100_003, 8),
]
SMALL = [(127, 128, 128), (1, 1, 1), (2, 3, 5), (1, 784, 10), (64, 64, 10)]
EMPTY = [(0, 500, 500), (500, 0, 500), (500, 500, 0), (0, 0, 0)]

ORDERS = {
    "as it is": lambda a: a,
    "transposed": lambda a: a.t().contiguous().t(),
    "rows of a wider matrix": lambda a: torch.cat([a, torch.full_like(a, torch.nan)], 1)[:, : a.shape[1]],
    "every other row": lambda a: torch.stack([a, torch.full_like(a, torch.nan)], 1)[:, 0],
    "every other column": lambda a: torch.stack([a, torch.full_like(a, torch.nan)], 2)[:, :, 0],
    "in the middle": lambda a: torch.cat([torch.full((7,), torch.nan, dtype=a.dtype), a.flatten()])[7:].view(a.shape),
}


def matrix(rows, columns, seed=0, dtype=np.float32):
    return torch.from_numpy(np.random.default_rng([seed, rows, columns]).normal(size=(rows, columns)).astype(dtype))


def factors(sizes, dtype=np.float32):
    rows, inner, columns = sizes
    return matrix(rows, inner, 1, dtype), matrix(inner, columns, 2, dtype), matrix(1, columns, 3, dtype)[0]


def misfit(made, left, right, *added):
    """The largest difference from float64, over the sum of the absolute values of what was added up."""
    left, right, *added = (part.detach().double() for part in (left, right, *added))
    wanted, size = sum(added, left @ right), sum((part.abs() for part in added), left.abs() @ right.abs())
    assert made.shape == wanted.shape
    return float(((made.double() - wanted).abs() / size.clamp(min=1e-300)).max()) if wanted.numel() else 0.0


CLOSE = 2e-6  # single precision: sums of 10⁵ terms in blocks stay far below; bfloat16 has 4e-3


@pytest.fixture(params=["whichever is faster", "torch's own"])
def library(request, monkeypatch):
    if request.param == "torch's own":
        monkeypatch.setattr(products, "_ONEDNN", None)


# ---- which ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(products._ONEDNN is None, reason="this torch has no oneDNN")
def test_large_products_of_float32_go_to_onednn():
    assert all(is_large(torch.empty(rows, inner), columns) for rows, inner, columns in LARGE)
    assert not any(is_large(torch.empty(rows, inner), columns) for rows, inner, columns in [*SMALL, *EMPTY])
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        assert not is_large(torch.empty((500, 500), dtype=dtype), 500)
    assert not is_large(torch.empty((500, 500), device="meta"), 500)


def test_none_does_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(products, "_ONEDNN", None)
    assert not any(is_large(torch.empty(rows, inner), columns) for rows, inner, columns in LARGE)


# ---- right ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("sizes", [*LARGE, *SMALL, *EMPTY], ids=str)
def test_products_are_right(sizes):
    left, right, bias = factors(sizes)
    assert misfit(product(left, right), left, right) < CLOSE
    assert misfit(product(left, right, bias), left, right, bias.expand(sizes[0], sizes[2])) < CLOSE
    start = matrix(sizes[0], sizes[2], 4)
    for scale in (1.0, -0.25):
        total = start.clone()
        assert add_product(total, left, right, scale) is None
        assert misfit(total, scale * left, right, start) < CLOSE


@pytest.mark.parametrize("sizes", [(128, 128, 128), (10, 4099, 65), (127, 128, 128)], ids=str)
@pytest.mark.parametrize("second", ORDERS)
@pytest.mark.parametrize("first", ORDERS)
def test_the_order_in_memory_does_not_matter(first, second, sizes):
    """Numbers that lie between those of a matrix are NaN: who read them would show it."""
    left, right, bias = factors(sizes)
    a, b = ORDERS[first](left), ORDERS[second](right)
    assert torch.equal(a, left) and torch.equal(b, right)
    assert misfit(product(a, b), left, right) < CLOSE
    assert misfit(product(a, b, bias), left, right, bias.expand(sizes[0], -1)) < CLOSE
    start = matrix(sizes[0], sizes[2], 4)
    total = ORDERS[first](start).clone(memory_format=torch.preserve_format)
    add_product(total, a, b, -0.5)
    assert misfit(total, -0.5 * left, right, start) < CLOSE
    assert torch.equal(a, left) and torch.equal(b, right)


@pytest.mark.parametrize("first", ORDERS)
def test_a_total_that_is_part_of_something_is_all_that_changes(first):
    left, right, _ = factors((128, 128, 128))
    start = matrix(128, 128, 4)
    total = ORDERS[first](start.clone())
    around = torch.as_strided(total, (total.untyped_storage().nbytes() // 4,), (1,), 0)
    inside, before = torch.zeros_like(around, dtype=torch.bool), around.clone()
    torch.as_strided(inside, total.shape, total.stride(), total.storage_offset()).fill_(True)
    add_product(total, left, right)
    assert misfit(total, left, right, start) < CLOSE
    assert torch.equal(around[~inside].view(torch.int32), before[~inside].view(torch.int32))


@pytest.mark.parametrize("which", ["left", "right"])
def test_a_row_or_a_column_given_again_and_again_is_right(which):
    """Expanded: a dimension along which memory stands still."""
    left, right, _ = factors((200, 100, 300))
    left, right = (left[:1].expand(200, 100), right) if which == "left" else (left, right[:, :1].expand(100, 300))
    assert misfit(product(left, right), left, right) < CLOSE


def test_the_same_check_catches_half_precision():
    left, right, _ = factors((128, 128, 128))
    assert misfit((left.bfloat16() @ right.bfloat16()).float(), left, right) > 10 * CLOSE
    assert misfit(product(left, right) * (1 + 1e-5), left, right) > CLOSE / 4


def test_double_precision_stays_double():
    left, right, bias = factors((128, 128, 200), np.float64)
    assert torch.equal(product(left, right), left @ right)
    assert product(left, right, bias).dtype == torch.float64
    total = torch.zeros(128, 200, dtype=torch.float64)
    add_product(total, left, right)
    assert misfit(total, left, right) < 1e-14


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("sizes", [(128, 128, 128), (4, 5, 6)], ids=str)
def test_parameters_are_taken_without_gradients(mode, sizes):
    left, right, bias = factors(sizes)
    with mode():
        weight, offset = (torch.nn.Parameter(part) for part in (right, bias))
        made = product(left, weight, offset)
        add_product(made, left, weight)
    assert not made.requires_grad
    assert misfit(made, 2 * left, right, bias.expand(sizes[0], -1)) < CLOSE


@pytest.mark.parametrize("sizes", LARGE, ids=str)
def test_without_onednn_results_are_the_same_but_for_rounding(sizes, monkeypatch):
    left, right, bias = factors(sizes)
    made, total = product(left, right, bias), torch.ones(sizes[0], sizes[2])
    add_product(total, left, right, 0.5)
    monkeypatch.setattr(products, "_ONEDNN", None)
    room = 1e-5 * (left.abs() @ right.abs() + 1)
    assert ((product(left, right, bias) - made).abs() < room).all()
    other = torch.ones(sizes[0], sizes[2])
    add_product(other, left, right, 0.5)
    assert ((other - total).abs() < room).all()


# ---- rows keep to themselves ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("sizes", [(128, 128, 128), (67, 784, 129), (9, 33, 17)], ids=str)
def test_what_is_not_finite_stays_in_its_row(sizes, bad):
    """A clipped sum leaves an example out if it is not finite: it must show there, and in no other example."""
    left, right, bias = factors(sizes)
    clean = product(left, right, bias)
    for row in (0, sizes[0] // 2, sizes[0] - 1):
        for order in ("as it is", "transposed"):
            spoilt = ORDERS[order](left.clone())
            spoilt[row, row % sizes[1]] = bad
            made = product(spoilt, right, bias)
            others = torch.arange(sizes[0]) != row
            assert not made[row].isfinite().any() and (bad == bad or made[row].isnan().all())
            torch.testing.assert_close(made[others], clean[others], rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("sizes", [(128, 128, 128), (9, 33, 17)], ids=str)
def test_what_is_not_finite_stays_in_its_column(sizes):
    left, right, _ = factors(sizes)
    right[3, 5] = torch.nan
    made = product(left, right)
    others = torch.arange(sizes[2]) != 5
    assert made[:, 5].isnan().all() and made[:, others].isfinite().all()


@pytest.mark.usefixtures("library")
def test_nothing_times_nan_is_nan():
    """No library may skip zeros."""
    left, right, _ = factors((128, 128, 128))
    left[7, 9], right[9] = torch.nan, 0.0
    made = product(left, right)
    assert made[7].isnan().all() and made[:7].isfinite().all() and made[8:].isfinite().all()
