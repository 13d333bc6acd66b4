"""Routes become the same demand in every shape that engines hand over."""

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from rpopt.counter import generator
from rpopt.errors import InstanceError
from rpopt.io.routes import (
    RoutesReport,
    SampleRoutes,
    WindowBuilder,
    window_from_routes,
)

NUM_LAYERS, NUM_EXPERTS, TOP_K = 5, 12, 3
MOE_LAYERS = {"first dense": [1, 2, 3, 4], "alternating": [0, 2, 4], "all": range(5)}


def draw_routes(seed: int, tokens: int, num_experts: int = NUM_EXPERTS) -> np.ndarray:
    """Distinct expert ids for every token and layer, int64 [tokens, layers, K]."""
    scores = generator(seed, tokens).random((tokens, NUM_LAYERS, num_experts))
    return scores.argsort(axis=2)[:, :, :TOP_K]


def naive_demand(routes: np.ndarray, layers: list[int]) -> np.ndarray:
    """Count one id at a time."""
    demand = np.zeros((len(layers), NUM_EXPERTS), dtype=np.int64)
    for row in routes:
        for index, layer in enumerate(layers):
            for expert in row[layer]:
                demand[index, expert] += 1
    return demand


def build(*samples: SampleRoutes, **changes: Any) -> WindowBuilder:
    builder = WindowBuilder(
        **{"top_k": TOP_K, "num_experts": NUM_EXPERTS, "moe_layers": None} | changes
    )
    for sample in samples:
        builder.add(sample)
    return builder


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64"]
)
@pytest.mark.parametrize("last_row", ["absent", "zero", "repeated", "arange", "-1"])
@pytest.mark.parametrize("layers", MOE_LAYERS)
@pytest.mark.parametrize("carried", ["all layers", "MoE layers"])
def test_every_shape_gives_the_naive_count(
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    last_row: str,
    layers: str,
    carried: str,
) -> None:
    if last_row == "-1" and dtype.startswith("u"):
        last_row = "zero"
    monkeypatch.setattr("rpopt.io.route_counts._PIECE_IDS", 64)
    moe_layers = list(MOE_LAYERS[layers])
    lengths = [1, 2, 9, 30]
    samples, expected = [], []
    for i, length in enumerate(lengths):
        routes = draw_routes(i, length - 1)
        expected.append(naive_demand(routes, moe_layers))
        dense = np.setdiff1d(np.arange(NUM_LAYERS), moe_layers)
        routes[:, dense] = 0
        fillers = {
            "absent": np.zeros((0, NUM_LAYERS, TOP_K)),
            "zero": np.zeros((1, NUM_LAYERS, TOP_K)),
            "repeated": routes[-1:],
            "arange": np.tile(np.arange(TOP_K), (1, NUM_LAYERS, 1)),
            "-1": np.full((1, NUM_LAYERS, TOP_K), -1),
        }
        routes = np.concatenate([routes, fillers[last_row]]).astype(dtype)
        if carried == "MoE layers":
            routes = routes[:, moe_layers]
        samples.append(SampleRoutes(length_tokens=length, routes=routes))
    window = window_from_routes(
        samples, top_k=TOP_K, num_experts=NUM_EXPERTS, moe_layers=moe_layers
    )
    assert window.demand_NLE is not None
    assert window.layer_ids_L is not None
    assert window.routed_tokens_N is not None
    assert np.array_equal(window.demand_NLE, expected)
    assert window.layer_ids_L.tolist() == moe_layers
    assert window.length_N.tolist() == lengths
    assert window.routed_tokens_N.tolist() == [length - 1 for length in lengths]


def test_missing_rows_and_late_starts_leave_tokens_without_a_route() -> None:
    routes = draw_routes(0, 9).astype(np.int16)
    expected = naive_demand(np.delete(routes, [2, 5], axis=0), list(range(NUM_LAYERS)))
    routes[[2, 5]] = -1
    builder = build(SampleRoutes(length_tokens=14, routes=routes, first_token=4))
    assert builder.report.num_missing_rows == 2
    window = builder.window()
    assert window.demand_NLE is not None
    assert np.array_equal(window.demand_NLE[0], expected)


def test_weights_after_the_ids_are_dropped() -> None:
    ids = draw_routes(0, 8).astype(np.int32)
    weights = generator(1).random(ids.shape, dtype=np.float32)
    weights[0] = 0
    packed = np.concatenate([ids, weights.view(np.int32)], axis=2)
    packed[3] = -1
    builder = build(SampleRoutes(length_tokens=9, routes=packed))
    assert builder.report.has_weights
    window = builder.window()
    assert window.demand_NLE is not None
    without = np.delete(ids, 3, axis=0)
    assert np.array_equal(
        window.demand_NLE[0], naive_demand(without, list(range(NUM_LAYERS)))
    )


def test_report_and_ids() -> None:
    routes = draw_routes(0, 9)
    builder = build(
        SampleRoutes(length_tokens=4, prompt_group=2),
        SampleRoutes(length_tokens=10, routes=routes.astype(np.uint8), bundle=1),
        SampleRoutes(length_tokens=9, routes=routes.astype(np.int32), prompt_group=0),
        SampleRoutes(length_tokens=7),
    )
    assert builder.report == RoutesReport(
        num_samples=4,
        num_without_routes=2,
        num_tokens=30,
        num_routed_tokens=17,
        num_missing_rows=0,
        array_layers=NUM_LAYERS,
        dtypes=("int32", "uint8"),
    )
    window = builder.window(origin="a test")
    assert window.prompt_group_N is not None
    assert window.bundle_N is not None
    assert window.routed_tokens_N is not None
    assert window.prompt_group_N.tolist() == [2, -1, 0, -1]
    assert window.bundle_N.tolist() == [-1, 1, -1, -1]
    assert window.routed_tokens_N.tolist() == [0, 9, 8, 0]
    assert window.origin == "a test"


def test_without_any_routes_lengths_remain() -> None:
    samples = [SampleRoutes(length_tokens=n) for n in (3, 5)]
    window = window_from_routes(samples, top_k=2, num_experts=4)
    assert window.demand_NLE is None
    assert window.length_N.tolist() == [3, 5]
    with pytest.raises(InstanceError, match="at least one sample"):
        window_from_routes([], top_k=2, num_experts=4)


def changed(at: tuple[int, ...], value: int) -> np.ndarray:
    routes = draw_routes(0, 9)
    routes[at] = value
    return routes


@pytest.mark.parametrize(
    ("routes", "words"),
    [
        (draw_routes(0, 11), "11 rows for 10 tokens; 9 or 10 .* duplicated"),
        (draw_routes(0, 8), "8 rows for 10 tokens; 9 or 10 .* cut off"),
        (changed((4, 2, 1), NUM_EXPERTS), r"row 4, MoE layer 2.*outside \[0, 12\)"),
        (changed((4, 2, 1), -2), r"row 4, MoE layer 2.*outside \[0, 12\)"),
        (changed((4, 2, 1), -1), "row 4 is -1 in some places only"),
        (changed((4, 2), -1), "row 4 is -1 in some places only"),
        (changed((4, 2), 7), r"row 4, MoE layer 2.*repeats an expert: \[7, 7, 7\]"),
        (changed((slice(None), 2), 0), "MoE layer 2.*dense layer.*moe_layers"),
        (draw_routes(0, 9)[:, :, :2], "2 ids per token and layer; top_k = 3"),
        (draw_routes(0, 9)[:, 0], "reshape"),
        (draw_routes(0, 9).astype(float), "float64; they must be a NumPy integer"),
        ([[[0, 1, 2]]], "routes are list"),
        (draw_routes(0, 9).repeat(2, axis=2), "columns of int64: neither"),
        (draw_routes(0, 9).repeat(2, axis=2).astype(np.int32), "check top_k"),
    ],
)
def test_broken_routes_are_refused(routes: np.ndarray, words: str) -> None:
    good = SampleRoutes(length_tokens=10, routes=draw_routes(1, 9))
    with pytest.raises(InstanceError, match=f"^sample 1: .*{words}"):
        build(good, SampleRoutes(length_tokens=10, routes=routes))


@pytest.mark.parametrize(
    ("moe_layers", "words"),
    [
        ([2, 1], "increasing layer numbers"),
        ([], "increasing layer numbers"),
        ([-1, 1], "increasing layer numbers"),
        ([3, 4, 5], "array has 5 layers, but moe_layers names 3 up to number 5"),
        ([0, 1, 2], "layer 3 is not among moe_layers but its routes differ"),
    ],
)
def test_wrong_layer_maps_are_refused(moe_layers: list[int], words: str) -> None:
    with pytest.raises(InstanceError, match=words):
        build(
            SampleRoutes(length_tokens=10, routes=draw_routes(0, 9)),
            moe_layers=moe_layers,
        )


def test_engines_with_other_layers_do_not_mix() -> None:
    routes = draw_routes(0, 9)
    with pytest.raises(InstanceError, match="do not mix engines"):
        build(
            SampleRoutes(length_tokens=10, routes=routes),
            SampleRoutes(length_tokens=10, routes=routes[:, 1:]),
        )


def test_with_one_expert_per_token_a_dense_layer_must_be_named() -> None:
    routes = draw_routes(0, 9)[:, :, :1]
    routes[:, 1] = 0
    sample = SampleRoutes(length_tokens=10, routes=routes)
    with pytest.raises(InstanceError, match="layer 1 goes to expert 0.*moe_layers"):
        build(sample, top_k=1).window()
    window = build(sample, top_k=1, moe_layers=[0, 2, 3, 4]).window()
    assert window.num_layers == 4
    assert build(sample, top_k=1, moe_layers=range(5)).window().num_layers == 5


def test_only_one_sample_is_held() -> None:
    """1,000 samples of 300 kB come from a generator; a few pieces stay in memory."""
    routes = np.tile(draw_routes(0, 100), (200, 1, 1)).astype(np.uint8)

    def stream() -> Iterator[SampleRoutes]:
        for _ in range(100):
            yield SampleRoutes(length_tokens=len(routes) + 1, routes=routes.copy())

    tracemalloc.start()
    try:
        window = window_from_routes(stream(), top_k=TOP_K, num_experts=NUM_EXPERTS)
        assert tracemalloc.get_traced_memory()[1] < 30 * routes.nbytes
    finally:
        tracemalloc.stop()
    assert window.num_samples == 100


def test_memory_of_one_sample_is_bounded() -> None:
    """Widening goes piece by piece: 30 MB of uint8 routes need a few MB more."""
    routes = np.tile(draw_routes(0, 1000), (2000, 1, 1)).astype(np.uint8)
    tracemalloc.start()
    try:
        build(SampleRoutes(length_tokens=len(routes), routes=routes))
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()
