"""From the routed-expert arrays of a rollout to the demand of a window.

Engines hand over one array per sample with the top-k expert ids of every token and
layer. They differ in type, in whether the last token has a row, in whether dense layers
have a column, and in how missing rows are marked. Here each array becomes a histogram
per (MoE layer, expert) as soon as it arrives, so only one is held at a time.

What is counted: a sample of T tokens brings rows for tokens `first_token` to T - 1 or
T - 2. The row of the last token is never counted: no engine has a real one (it is
absent, zero, repeated or made up). A row of -1 in all MoE layers is a token without a
route.

Axis letters: K top-k, L MoE layers, E experts.
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rpopt.errors import InstanceError
from rpopt.io.route_counts import (
    ALL_ZERO_HINT,
    RouteCounter,
    check_array,
    layer_numbers,
)
from rpopt.records import Int64Array, IntArray, positive_int
from rpopt.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRoutes:
    """One sample as the rollout hands it over.

    Parameters
    ----------
    length_tokens
        T, the tokens that are trained.
    routes
        Logical expert ids, any integer type [rows, layers, K], or [rows, layers, 2 K]
        int32 with the ids first and the bits of float32 weights after them; None for a
        sample without routes.
    first_token
        The token that the first row belongs to; those before it have no route.
    may_end_early
        Whether the routes may stop before the last token, as where only the first turn
        was recorded; the tokens after them then have no route.
    prompt_group, bundle
        Ids as in `Window`; None when unknown.
    """

    length_tokens: int
    routes: IntArray | None = None
    first_token: int = 0
    may_end_early: bool = False
    prompt_group: int | None = None
    bundle: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutesReport:
    """What was found while reading routes.

    Parameters
    ----------
    num_samples, num_without_routes
        Samples read, and those of them that brought no routes.
    num_tokens, num_routed_tokens
        Trained tokens, and those of them with a route.
    num_missing_rows
        Rows marked as missing by -1, or lost where routes end early.
    array_layers
        Layers in the arrays, dense ones included; 0 when there was no array.
    dtypes
        Integer types of the arrays.
    has_weights
        Whether some arrays held routing weights beside the ids.
    """

    num_samples: int = 0
    num_without_routes: int = 0
    num_tokens: int = 0
    num_routed_tokens: int = 0
    num_missing_rows: int = 0
    array_layers: int = 0
    dtypes: tuple[str, ...] = ()
    has_weights: bool = False


def window_from_routes(
    samples: Iterable[SampleRoutes],
    *,
    top_k: int,
    num_experts: int,
    moe_layers: Sequence[int] | None = None,
    origin: str = "rollout routes",
) -> Window:
    """Return the window of all samples, holding one sample's routes at a time.

    Parameters
    ----------
    samples
        The samples in the order of the window.
    top_k, num_experts
        K and E of the model.
    moe_layers
        Absolute numbers of the MoE layers. Arrays then carry either these layers or
        all layers of the model. None: arrays carry MoE layers only, numbered from 0.
    origin
        Where the routes came from, in words.

    Raises
    ------
    InstanceError
        When there is no sample, or a sample's routes break a rule above.
    """
    builder = WindowBuilder(
        top_k=top_k,
        num_experts=num_experts,
        moe_layers=moe_layers,
        num_samples_hint=operator.length_hint(samples),
    )
    for sample in samples:
        builder.add(sample)
    return builder.window(origin=origin)


class WindowBuilder:
    """Collects samples one by one into a window; see `window_from_routes`.

    Parameters
    ----------
    top_k, num_experts, moe_layers
        As in `window_from_routes`.
    num_samples_hint
        Samples to expect; saves memory when right, costs nothing when wrong.
    """

    def __init__(
        self,
        *,
        top_k: int,
        num_experts: int,
        moe_layers: Sequence[int] | None = None,
        num_samples_hint: int = 0,
    ) -> None:
        self._top_k = positive_int(top_k, name="top_k")
        self._num_experts = positive_int(num_experts, name="num_experts")
        self._moe_layers = None if moe_layers is None else layer_numbers(moe_layers)
        self._hint = num_samples_hint
        self._lengths: list[int] = []
        self._routed: list[int] = []
        self._groups: list[int | None] = []
        self._bundles: list[int | None] = []
        self._counter: RouteCounter | None = None
        self._demand: npt.NDArray[np.int32] | None = None
        self.report = RoutesReport()

    def add(self, sample: SampleRoutes) -> None:
        """Count one sample.

        Raises
        ------
        InstanceError
            When its routes break a rule.
        """
        index = len(self._lengths)
        length = positive_int(sample.length_tokens, name=f"length of sample {index}")
        routed = missing = 0
        if sample.routes is not None:
            try:
                demand_LE, missing = self._count(sample.routes, sample)
                end = sample.first_token + len(sample.routes)
                missing += max(0, length - 1 - end)
            except InstanceError as error:
                raise InstanceError(f"sample {index}: {error}") from error
            self._reserve(index + 1)[index] = demand_LE
            routed = int(demand_LE[0].sum()) // self._top_k
        self._lengths.append(length)
        self._routed.append(routed)
        self._groups.append(sample.prompt_group)
        self._bundles.append(sample.bundle)
        self._note(sample, length, routed, missing)

    def window(self, *, origin: str = "rollout routes") -> Window:
        """Return the window; the builder is empty afterwards.

        Raises
        ------
        InstanceError
            When no sample was added, or a layer looks dense.
        """
        count = len(self._lengths)
        demand = None
        if self._counter is not None:
            demand = self._reserve(count)
            demand.resize((count, *demand.shape[1:]), refcheck=False)
            demand.setflags(write=False)
            self._refuse_dense_layers(demand)
        window = Window(
            length_N=np.array(self._lengths, dtype=np.int64),
            routed_tokens_N=np.array(self._routed, dtype=np.int64),
            demand_NLE=demand,
            top_k=0 if demand is None else self._top_k,
            prompt_group_N=_ids(self._groups),
            bundle_N=_ids(self._bundles),
            layer_ids_L=None if demand is None else self._moe_layers,
            origin=origin,
        )
        self._lengths, self._routed, self._groups, self._bundles = [], [], [], []
        self._demand = self._counter = None
        return window

    def _count(self, routes: IntArray, sample: SampleRoutes) -> tuple[Int64Array, int]:
        check_array(routes, self._top_k)
        if self._counter is None:
            self._counter = RouteCounter(
                top_k=self._top_k,
                num_experts=self._num_experts,
                moe_layers=self._moe_layers,
                array_layers=routes.shape[1],
            )
        elif routes.shape[1] != self._counter.array_layers:
            raise InstanceError(
                f"its array has {routes.shape[1]} layers, earlier ones"
                f" {self._counter.array_layers}; do not mix engines in one window"
            )
        return self._counter.count(routes[: _rows_that_count(routes, sample)])

    def _reserve(self, count: int) -> npt.NDArray[np.int32]:
        """Return the demand array, grown in place to at least `count` samples."""
        assert self._counter is not None
        if self._demand is None:
            shape = (max(count, self._hint), *self._counter.shape_LE)
            self._demand = np.zeros(shape, dtype=np.int32)
        elif count > len(self._demand):
            rows = max(count, 3 * len(self._demand) // 2)
            shape = (rows, *self._counter.shape_LE)
            self._demand.resize(shape, refcheck=False)
        return self._demand

    def _note(
        self, sample: SampleRoutes, length: int, routed: int, missing: int
    ) -> None:
        old, routes = self.report, sample.routes
        seen = replace(
            old,
            num_samples=old.num_samples + 1,
            num_without_routes=old.num_without_routes + (routes is None),
            num_tokens=old.num_tokens + length,
            num_routed_tokens=old.num_routed_tokens + routed,
            num_missing_rows=old.num_missing_rows + missing,
        )
        if routes is not None:
            seen = replace(
                seen,
                array_layers=routes.shape[1],
                dtypes=tuple(sorted({*old.dtypes, str(routes.dtype)})),
                has_weights=old.has_weights or routes.shape[2] != self._top_k,
            )
        self.report = seen

    def _refuse_dense_layers(self, demand_NLE: npt.NDArray[np.int32]) -> None:
        """With K = 1 an all-zero layer has no repeated ids that would give it away."""
        if self._top_k > 1 or self._moe_layers is not None or not any(self._routed):
            return
        others_L = demand_NLE[:, :, 1:].any(axis=(0, 2))
        if self._num_experts > 1 and not others_L.all():
            layer = int(np.argmin(others_L))
            raise InstanceError(
                f"every token of layer {layer} goes to expert 0: {ALL_ZERO_HINT}"
            )


def _rows_that_count(routes: IntArray, sample: SampleRoutes) -> int:
    """Return the number of rows before the last token's."""
    rows, length, first = len(routes), sample.length_tokens, sample.first_token
    if first < 0:
        raise InstanceError(f"first_token = {first} is negative")
    too_few = first + rows < length - 1
    if first + rows > length or (too_few and not sample.may_end_early):
        start = f" from token {first}" if first else ""
        hint = "duplicated by a resumed rollout" if first + rows > length else "cut off"
        raise InstanceError(
            f"{rows} rows{start} for {length} tokens; {length - 1 - first} or"
            f" {length - first} are needed (rows {hint}?)"
        )
    return max(0, min(rows, length - 1 - first))


def _ids(values: Sequence[int | None]) -> Int64Array | None:
    if all(value is None for value in values):
        return None
    return np.array([-1 if v is None else v for v in values], dtype=np.int64)
