"""What the loops over images are told: everything has its own place in memory, and what does not fit is refused."""

from __future__ import annotations

import copy
import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")

from dpaudit.trainers import image_parts
from dpaudit.trainers.image_loops import LAYER, PART, POOL, RELU, TANH, forward
from dpaudit.trainers.image_parts import Builder, Slot
from dpaudit.trainers.small_products import LANES


def opacus():
    """As that of Opacus's example."""
    network = Builder(28, 28, 1)
    assert network.convolve(16, (8, 8), (2, 2), (3, 3), True) and network.rectify() and network.pool(*PAIR)
    assert network.convolve(32, (4, 4), (2, 2), (0, 0), True) and network.rectify() and network.pool(*PAIR)
    assert network.connect(32, True) and network.rectify() and network.connect(10, True)
    return network


PAIR = (2, 2), (1, 1), (0, 0)


def state(network):
    return copy.deepcopy(vars(network))


def up(numbers):
    return -(-numbers // LANES) * LANES


# ---- what fits ------------------------------------------------------------------------------------------------------


def test_examples_in_the_documentation():
    found = doctest.testmod(image_parts)
    assert found.attempted > 3 and not found.failed


def test_a_network_as_it_is_built():
    network = opacus()
    assert network.shape == (10, 1, 1)
    program = network.built()
    assert program.parts.dtype == PART and program.classes == 10
    assert [int(kind) for kind in program.parts["kind"]] == [LAYER, RELU, POOL, LAYER, RELU, POOL, LAYER, RELU, LAYER]
    assert [(slot.kernel, slot.channels, slot.outputs) for slot in program.slots] == [
        ((8, 8), 1, 16), ((4, 4), 16, 32), ((4, 4), 32, 32), ((1, 1), 32, 10),
    ]  # fmt: skip
    layers = program.parts[program.parts["kind"] == LAYER]
    assert layers["layer"].tolist() == [0, 1, 2, 3] and layers["whole"].tolist() == [0, 0, 1, 1]
    assert layers["across"].tolist()[0] == -1 and (layers["across"][1:] >= 0).all()
    assert (layers["edged"] >= 0).tolist() == [True, False, False, False]
    assert not program.parts["whole"][program.parts["kind"] != LAYER].any()


def test_shapes_on_the_way():
    network, shapes = Builder(9, 7, 3), []
    for step in (
        lambda: network.convolve(5, (2, 3), (1, 2), (1, 0), False),
        lambda: network.rectify(),
        lambda: network.squash(),
        lambda: network.pool((3, 2), (2, 1), (1, 1)),
        lambda: network.connect(4, True),
    ):
        assert step() is True
        shapes.append(network.shape)
    assert shapes == [(5, 10, 3), (5, 10, 3), (5, 10, 3), (5, 5, 4), (4, 1, 1)]
    assert network.built().parts["bias"].tolist() == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(("kernel", "padding", "whole"), [
    ((5, 4), (0, 0), 1), ((5, 3), (0, 0), 0), ((4, 5), (0, 0), None), ((5, 4), (1, 0), 0), ((5, 4), (0, 1), 0),
    ((7, 6), (1, 1), 0),
])  # fmt: skip
def test_a_layer_is_whole_if_its_kernel_covers_the_image_and_nothing_else(kernel, padding, whole):
    network = Builder(5, 4, 2)
    assert network.convolve(3, kernel, (1, 1), padding, True) == (whole is not None)
    if whole is not None:
        assert network.built().parts["whole"].tolist() == [whole]


# ---- what does not fit ----------------------------------------------------------------------------------------------

ONE = (1, 1)
NONE = (0, 0)
REFUSED = {
    "a kernel too tall": lambda network: network.convolve(3, (7, 1), ONE, NONE, True),
    "a kernel too wide": lambda network: network.convolve(3, (1, 6), ONE, NONE, True),
    "a kernel too large for its padding": lambda network: network.convolve(3, (9, 1), ONE, ONE, True),
    "the same with a stride": lambda network: network.convolve(3, (7, 1), (5, 5), NONE, True),
    "far too large": lambda network: network.convolve(3, (70, 70), (3, 3), ONE, True),
    "a pool too tall": lambda network: network.pool((7, 1), ONE, NONE),
    "a pool too wide": lambda network: network.pool((1, 6), (2, 2), NONE),
    "a pool beside the image": lambda network: network.pool((2, 2), ONE, (2, 0)),
    "a pool beside the other side": lambda network: network.pool((2, 3), ONE, (1, 2)),
    "a pool of one pixel with padding": lambda network: network.pool(ONE, ONE, (1, 0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_and_changes_nothing(name):
    """At the start, and behind other parts; what comes then is as if nothing had been asked."""
    plain, asked = (Builder(6, 5, 2) for _ in range(2))
    for _ in range(2):
        before = state(asked)
        assert REFUSED[name](asked) is False
        assert state(asked) == before and asked.shape[1:] == (6, 5)
        for network in (plain, asked):
            assert network.convolve(3, (3, 3), ONE, ONE, True)
    plain, asked = plain.built(), asked.built()
    assert (plain.parts == asked.parts).all() and plain.sizes == asked.sizes and plain.slots == asked.slots


@pytest.mark.parametrize("how", [Builder.rectify, Builder.squash])
def test_images_are_not_changed_in_place(how):
    network = Builder(6, 5, 2)
    before = state(network)
    assert how(network) is False and state(network) == before
    assert network.pool((2, 2), ONE, NONE) and how(network) is True


def in_order(network, names):
    return [getattr(network, name)() for name in names]


def test_what_tanh_was_given_is_not_lost():
    """Its derivative is made from what it gave, which another one in the same place would overwrite."""
    for names in (["squash", "squash"], ["squash", "rectify", "squash"]):
        network = Builder(6, 5, 2)
        assert network.convolve(3, ONE, ONE, NONE, True)
        *first, last = in_order(network, names)
        assert all(first) and not last
    network = Builder(6, 5, 2)
    for _ in range(2):
        assert network.convolve(3, ONE, ONE, NONE, True) and network.squash()
    assert network.pool((2, 2), ONE, NONE) and network.squash()


@pytest.mark.parametrize("edge", [(1, 0), (1, 1), (2, 1)])
def test_a_pool_may_have_padding_of_half_its_kernel(edge):
    assert Builder(6, 5, 2).pool((2 * edge[0], 2 * edge[1] or 1), ONE, edge)


# ---- places in memory -----------------------------------------------------------------------------------------------


def tiled(ranges, end):
    """Whether these ranges, none empty, are all numbers below ``end``, each in one of them."""
    at = 0
    for first, last in sorted(ranges):
        if first != at or last <= first:
            return False
        at = last
    return at == end


def test_the_check_of_ranges_notices_overlaps_and_gaps():
    assert tiled([(2, 5), (0, 2)], 5) and tiled([], 0)
    for ranges, end in (([(0, 2), (1, 5)], 5), ([(0, 2), (3, 5)], 5), ([(0, 5)], 6), ([(0, 6)], 5), ([(0, 0)], 0)):
        assert not tiled(ranges, end)


SIDES = ("height", "padding_down"), ("width", "padding_across")


def check(program, image):
    """Each part has places of its own, and reads what the last one gave."""
    values, edged, windows, taps = program.sizes
    given, flat, across, edges, pools, most = 0, [], [], [], [], 0
    gives = [(0, up(image))]  # what follows begins at a cache line
    size = image
    for part in program.parts:
        count = int(part["high"] * part["broad"] * part["outputs"])
        assert part["given"] == given and part["height"] * part["width"] * part["channels"] == size
        if part["kind"] in (RELU, TANH):
            assert part["gives"] == given and count == size
            continue
        gives.append((int(part["gives"]), int(part["gives"]) + count))
        tall, wide = (part[side] + 2 * part[edge] for side, edge in SIDES)
        assert (part["high"] - 1) * part["stride_down"] + part["kernel_height"] <= tall
        assert (part["broad"] - 1) * part["stride_across"] + part["kernel_width"] <= wide
        if part["kind"] == POOL:
            pools.append((int(part["taps"]), int(part["taps"]) + count))
            assert part["outputs"] == part["channels"]
        else:
            inner = int(part["kernel_height"] * part["kernel_width"] * part["channels"])
            assert part["inner"] == inner and part["outputs"] % LANES == 0
            flat.append((int(part["weight"]), int(part["weight"]) + (inner + 1) * int(part["outputs"])))
            if part["across"] >= 0:
                across.append((int(part["across"]), int(part["across"]) + inner * int(part["outputs"])))
                most = max(most, int(part["high"] * part["broad"]) * inner)
            edge = bool(part["padding_down"] or part["padding_across"])
            assert (part["edged"] >= 0) == edge
            assert (part["tall"], part["wide"]) == (tall, wide)
            if edge:
                whole = int(tall * wide * part["channels"])
                edges.append((int(part["edged"]), int(part["edged"]) + whole))
        given, size = int(part["gives"]), count
    assert tiled(gives, values) and tiled(edges, edged) and tiled(pools, taps)
    assert tiled(flat, program.flat) and tiled(across, program.across) and windows >= most
    layers = program.parts[program.parts["kind"] == LAYER]
    assert len(layers) == len(program.slots) and layers["layer"].tolist() == list(range(len(layers)))
    for part, slot in zip(layers, program.slots, strict=True):
        assert slot.kernel == (part["kernel_height"], part["kernel_width"])
        assert slot.outputs <= part["outputs"] == up(slot.outputs) and slot.channels <= part["channels"]


sides, small = st.integers(1, 12), st.integers(1, 4)
pairs, edges = st.tuples(small, small), st.tuples(st.integers(0, 3), st.integers(0, 3))
channels = st.sampled_from([1, 2, 3, 15, 16, 17, 33])
steps = st.one_of(
    st.tuples(st.just("rectify")),
    st.tuples(st.just("squash")),
    st.tuples(st.just("pool"), pairs, pairs, edges),
    st.tuples(st.just("convolve"), channels, pairs, pairs, edges, st.booleans()),
    st.tuples(st.just("connect"), channels, st.booleans()),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(shape=st.tuples(sides, sides, channels), wanted=st.lists(steps, max_size=9))
def test_no_two_parts_share_memory(shape, wanted):
    """Whatever is asked: what does not fit is left out."""
    network = Builder(*shape)
    for name, *sizes in wanted:
        before = state(network)
        if not getattr(network, name)(*sizes):
            assert state(network) == before
    assert network.connect(3, True)
    check(network.built(), shape[0] * shape[1] * shape[2])


def test_the_network_of_opacus_has_its_places():
    program = opacus().built()
    check(program, 784)
    broken = copy.deepcopy(program)
    broken.parts["weight"][3] -= 1
    with pytest.raises(AssertionError):
        check(broken, 784)


def test_networks_that_are_built_do_not_depend_on_what_is_added_later():
    network = Builder(6, 5, 2)
    assert network.convolve(3, (3, 3), ONE, ONE, True)
    early = network.built()
    before = early.parts.copy(), early.sizes, early.slots
    assert network.connect(4, True)
    assert (early.parts == before[0]).all() and (early.sizes, early.slots) == before[1:]
    assert len(network.built().parts) == 2


# ---- parameters -----------------------------------------------------------------------------------------------------


def reals(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def filled(program, bias=True):
    flat, across = np.zeros(program.flat, np.float32), np.zeros(program.across, np.float32)
    given = []
    for seed, slot in enumerate(program.slots):
        weight = reals(*slot.kernel, slot.channels, slot.outputs, seed=seed)
        given.append((weight, reals(slot.outputs, seed=seed) if bias else None))
        slot.fill(flat, across, *given[-1])
    return flat, across, given


@pytest.mark.parametrize("bias", [True, False])
def test_what_is_filled_in_is_found_again(bias):
    program = opacus().built()
    flat, across, given = filled(program, bias)
    for slot, (weight, offsets) in zip(program.slots, given, strict=True):
        np.testing.assert_array_equal(slot.weight(flat), weight)
        np.testing.assert_array_equal(slot.bias(flat), 0 if offsets is None else offsets)
    count = sum(weight.size + (0 if offsets is None else offsets.size) for weight, offsets in given)
    assert np.count_nonzero(flat) == count
    assert np.count_nonzero(across) == sum(weight.size for weight, _ in given[1:])


def test_the_matrix_that_leads_back_is_the_same_turned():
    program = opacus().built()
    flat, across, _ = filled(program)
    for part in program.parts[program.parts["kind"] == LAYER][1:]:
        inner, outputs = int(part["inner"]), int(part["outputs"])
        there = flat[part["weight"] : part["weight"] + inner * outputs].reshape(inner, outputs)
        back = across[part["across"] : part["across"] + inner * outputs].reshape(outputs, inner)
        np.testing.assert_array_equal(back, there.T)


def test_the_first_layer_leads_nowhere():
    """It writes nothing where the second one's matrix is."""
    program = opacus().built()
    flat, across = np.zeros(program.flat, np.float32), np.zeros(program.across, np.float32)
    first = program.slots[0]
    first.fill(flat, across, np.ones((8, 8, 1, 16), np.float32), None)
    assert not across.any() and flat.sum() == 1024


def test_views_are_of_the_memory_that_they_are_taken_of():
    program = opacus().built()
    flat, _, _ = filled(program)
    slot = program.slots[1]
    before = flat.copy()
    slot.weight(flat)[...] += 1
    slot.bias(flat)[...] += 1
    assert np.shares_memory(slot.weight(flat), flat) and np.count_nonzero(flat != before) == 16 * 16 * 32 + 32
    assert slot.weight(flat).shape == (4, 4, 16, 32) and slot.bias(flat).shape == (32,)


def test_slots_are_values():
    assert opacus().built().slots == opacus().built().slots
    assert all(isinstance(slot, Slot) for slot in opacus().built().slots)


# ---- values ---------------------------------------------------------------------------------------------------------


def convolved(image, weight, bias, stride, padding):
    """In float64, place by place."""
    image = np.pad(image.astype(np.float64), ((padding[0],) * 2, (padding[1],) * 2, (0, 0)))
    high, broad = ((image.shape[i] - weight.shape[i]) // stride[i] + 1 for i in range(2))
    out = np.empty((high, broad, weight.shape[3]))
    for y in range(high):
        for x in range(broad):
            seen = image[y * stride[0] :, x * stride[1] :][: weight.shape[0], : weight.shape[1]]
            out[y, x] = np.tensordot(seen, weight.astype(np.float64), 3) + bias
    return out


@pytest.mark.parametrize("outputs", [1, 5, 16, 17])
@pytest.mark.parametrize(("stride", "padding"), [((1, 1), (0, 0)), ((2, 1), (1, 3)), ((1, 3), (0, 2))])
def test_what_a_layer_gives_lies_where_it_is_said_to(outputs, stride, padding):
    network = Builder(6, 7, 3)
    assert network.convolve(outputs, (3, 2), stride, padding, True)
    program = network.built()
    flat, _, ((weight, bias),) = filled(program)
    values, edged = (np.zeros(size, np.float32) for size in program.sizes[:2])
    image = reals(6, 7, 3, seed=9)
    values[:126] = image.ravel()
    forward(program.parts, flat, values, edged, np.zeros(program.sizes[3], np.int32))
    part = program.parts[0]
    gives = values[part["gives"] :].reshape(part["high"], part["broad"], part["outputs"])
    np.testing.assert_allclose(gives[:, :, :outputs], convolved(image, weight, bias, stride, padding), atol=1e-5)
    assert not gives[:, :, outputs:].any()
    np.testing.assert_array_equal(values[:126], image.ravel())
