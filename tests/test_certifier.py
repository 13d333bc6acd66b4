"""The certifier against brute force: no false claim, and closed means the optimum.

HiGHS runs in a child process per model, so the default fuzz is short; the slow one
takes its time.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from rpopt import certifier
from rpopt.certificate import Certificate
from rpopt.certifier import certify
from rpopt.errors import CertificateError, InfeasibleError, InstanceError, SolverError
from rpopt.highs import Termination, process
from rpopt.io import read
from rpopt.io.files import write_json
from rpopt.packing import bounds
from rpopt.packing.instance import PackingInstance, PackingSolution
from rpopt.packing.knapsack import dual_weights
from rpopt.plans import Layout, Placement
from rpopt.records import canonical_json, plain, record_from_plain
from tests.certifier_cases import (
    DRAWS,
    OPEN_ROWS,
    RECHECK,
    enclose,
    open_layout,
    tiny_placement,
)
from tests.layout.cases import instance as layout_instance
from tests.layout.cases import worked_example
from tests.oracle.layout import feasible_layouts
from tests.oracle.packing import min_cells
from tests.oracle.placement import optimal_peaks
from tests.packing.examples import make
from tests.placement.cases import instance as placement_instance

LIMIT_S = 20.0


def fuzz(problem: str, seeds: range, *, solver_every: int) -> int:
    """Certify many draws, some of them without a solver; return how many closed."""
    closed = 0
    for seed in seeds:
        instance, optima = DRAWS[problem](seed)
        limit_s = LIMIT_S if seed % solver_every == 0 else 0.0
        try:
            found = certify(instance, time_limit_s=limit_s)
        except InfeasibleError:  # no heuristic found a layout under a tight cap
            assert problem == "layout"
            continue
        enclose(found, instance, optima)
        closed += all(c.closed for c in found)
    return closed


@pytest.mark.parametrize(
    ("problem", "count", "solver_every"),
    [("rows", 120, 5), ("placement", 60, 10), ("layout", 60, 15)],
)
def test_no_claim_is_false(problem: str, count: int, solver_every: int) -> None:
    assert fuzz(problem, range(count), solver_every=solver_every)


def nothing_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny instances do not get to the leader bound and the MILPs otherwise."""
    monkeypatch.setattr(certifier.enumeration, "MOST_STEPS", 0)
    monkeypatch.setattr(certifier.partition, "MOST_EXPERTS", 0)


@pytest.mark.parametrize("problem", ["placement", "layout"])
def test_no_claim_is_false_where_nothing_is_enumerated(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_enumerated(monkeypatch)
    assert fuzz(problem, range(60), solver_every=4)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("problem", ["placement", "layout"])
def test_no_claim_is_false_in_ten_thousand_not_enumerated(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_enumerated(monkeypatch)
    assert fuzz(problem, range(10_000), solver_every=9)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("problem", "solver_every"), [("rows", 3), ("placement", 9), ("layout", 3)]
)
def test_no_claim_is_false_in_ten_thousand(problem: str, solver_every: int) -> None:
    assert fuzz(problem, range(10_000), solver_every=solver_every)


# ----------------------------------------------------------------------- special cases

LARGE_CAP = 10_000_000
ROWS: dict[str, tuple[PackingInstance, int]] = {
    "one item": (make([7], 10), 1),
    "all equal": (make([3] * 7, 10), 3),
    "all equal, none fit together": (make([6] * 5, 10), 5),
    "a cap of one": (make([1] * 6, 1, num_ranks=4), 2),
    "the same sizes twice": (make([5, 5, 4, 4, 3, 3, 3, 3], 10), 3),
    "a cap of ten million": (
        make([LARGE_CAP - 1, 1, 2, LARGE_CAP // 2, LARGE_CAP // 2 + 1, 9], LARGE_CAP),
        3,
    ),
    "sizes above 32 bits, twice": (make([2**31 + 1, 2**31 + 1, 5, 5], 2**32 + 1), 2),
    "thirds of ten million": (make([LARGE_CAP // 3 + 1] * 6, LARGE_CAP), 3),
}


@pytest.mark.parametrize("name", ROWS)
def test_special_packings_are_closed(name: str) -> None:
    instance, rows = ROWS[name]
    (found,) = enclose(certify(instance, time_limit_s=LIMIT_S), instance, [rows])
    assert found.closed


@pytest.mark.parametrize(("dp", "row_multiple"), [(8, 1), (32, 1), (4, 2)])
def test_rows_in_multiples_follow_from_the_cells(dp: int, row_multiple: int) -> None:
    weights = np.random.default_rng(dp).integers(1, 1001, 120).tolist()
    cells = certify(make(weights, 1000), time_limit_s=LIMIT_S)[0]
    instance = make(weights, 1000, num_ranks=dp, row_multiple=row_multiple)
    (found,) = certify(instance, time_limit_s=LIMIT_S)
    assert found.upper % row_multiple == 0
    assert instance.rows_for(cells.lower) <= found.upper
    assert found.lower <= instance.rows_for(cells.upper)
    assert found.closed


@pytest.mark.parametrize(
    ("load_LE", "ranks", "peak"),
    [([[5]], 1, 5), ([[4] * 8], 4, 8), ([[0] * 4], 2, 0), ([[10**7, 1, 1, 1]], 2, 0)],
)
def test_special_placements_are_closed(load_LE: Any, ranks: int, peak: int) -> None:
    instance = placement_instance(load_LE, ranks)
    optimum = peak or int(optimal_peaks(instance)[0])
    (found,) = enclose(certify(instance, time_limit_s=0), instance, [optimum])
    assert found.closed


def test_a_layout_of_one_item_is_closed() -> None:
    one = layout_instance(
        weight_I=[4],
        num_samples_I=[1],
        attention_ticks_IC=[[16]],
        load_ILP=[[[4, 0]]],
        num_rows=1,
        shard_of_rank_D=[0],
    )
    (found,) = enclose(certify(one, time_limit_s=0), one, [36])
    assert found.closed


@pytest.mark.parametrize("problem", DRAWS)
def test_without_time_cheap_bounds_and_a_witness_are_left(problem: str) -> None:
    instance, optima = DRAWS[problem](3)
    found = enclose(certify(instance, time_limit_s=0), instance, optima)
    assert all(b.kind == "arithmetic" for c in found for b in c.bounds)


@pytest.mark.parametrize("limit_s", [-1.0, float("nan")])
def test_a_time_limit_that_is_none_is_refused(limit_s: float) -> None:
    with pytest.raises(InstanceError, match="time limit"):
        certify(make([1], 1), time_limit_s=limit_s)


@pytest.mark.parametrize("problem", DRAWS)
@pytest.mark.parametrize("enumerated", [True, False])
def test_progress_narrows(
    problem: str, enumerated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not enumerated:
        nothing_enumerated(monkeypatch)
    for seed in range(4):
        instance, _ = DRAWS[problem](seed)
        progress = mock.Mock()
        found = certify(instance, progress=progress)
        seen = [call.args for call in progress.call_args_list]
        totals = sum(c.lower for c in found), sum(c.upper for c in found)
        assert seen[-1] == totals
        for (low, high), (next_low, next_high) in zip(seen, seen[1:], strict=False):
            assert low <= next_low <= next_high <= high
            assert (low, high) != (next_low, next_high)


def test_claims_are_told_while_highs_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the search ends before the claims are believed."""
    monkeypatch.setattr(certifier.enumeration, "MOST_STEPS", 0)
    monkeypatch.setattr(certifier, "leader_bound", lambda *_, **__: None)
    instance, _ = open_layout()
    told: list[int] = []
    monkeypatch.setattr(certifier, "_with_claim", lambda known, *_: known)
    (found,) = certify(instance, progress=lambda low, high: told.append(low))
    assert max(told) > found.lower


def test_a_claim_says_what_became_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certifier.enumeration, "MOST_STEPS", 0)
    (found,) = certify(open_layout()[0])
    (claim,) = (b for b in found.bounds if b.kind == "solver")
    assert claim.evidence["start"] == "accepted"


# ------------------------------------------------------------------------------ starts

PACKING = make([5, 5, 4, 4, 3, 3, 3, 3], 10)
PLACEMENT = placement_instance([[9, 7, 6, 5, 4, 2], [1, 2, 3, 4, 5, 6]], 2)
LAYOUT = layout_instance()


def best_layout() -> Layout:
    cost = certifier.evaluate_layout
    layouts = feasible_layouts(LAYOUT)
    return min(layouts, key=lambda layout: cost(LAYOUT, layout).j_ticks)


def test_a_good_start_is_kept() -> None:
    packing = PackingSolution(cell_I=[0, 0, 1, 2, 1, 1, 2, 2])
    assert certify(PACKING, start=packing, time_limit_s=0)[0].upper == 3
    best = best_layout()
    (found,) = certify(LAYOUT, start=best, time_limit_s=0)
    assert found.upper == certifier.evaluate_layout(LAYOUT, best).j_ticks
    placement = Placement(slot_LE=[[0, 3, 4, 5, 1, 2]] * 2, num_ep_ranks=2)
    peak_L = certifier.evaluate_placement(PLACEMENT, placement).peak_L
    found = certify(PLACEMENT, start=placement, time_limit_s=0)
    assert all(c.upper <= peak for c, peak in zip(found, peak_L, strict=True))


BAD_STARTS: dict[str, tuple[Any, Any, str]] = {
    "an overfull cell": (PACKING, PackingSolution(cell_I=[0] * 8), "token cap"),
    "an empty cell": (
        PACKING,
        PackingSolution(cell_I=[0, 1, 2, 3, 4, 5, 7, 7]),
        "empty cell",
    ),
    "too few items": (PACKING, PackingSolution(cell_I=[0, 0, 1]), "every item once"),
    "no items": (PACKING, PackingSolution(cell_I=[]), "every item once"),
    "other experts": (PLACEMENT, Placement.identity(2, 4, 2), "every expert once"),
    "fewer layers": (PLACEMENT, Placement.identity(1, 6, 2), "every expert once"),
    "other EP ranks": (PLACEMENT, Placement.identity(2, 6, 3), "EP ranks"),
    "an empty cell of a layout": (
        LAYOUT,
        Layout(row_I=[0] * 6, rank_I=[0] * 6, num_rows=2),
        "token cap",
    ),
    "other rows": (
        LAYOUT,
        Layout(row_I=[0] * 6, rank_I=[0] * 6, num_rows=1),
        "row count",
    ),
    "other items": (
        LAYOUT,
        Layout(row_I=[0, 1], rank_I=[0, 1], num_rows=2),
        "every item once",
    ),
}


@pytest.mark.parametrize("name", BAD_STARTS)
def test_an_infeasible_start_is_refused_by_name(name: str) -> None:
    instance, start, constraint = BAD_STARTS[name]
    with pytest.raises(InfeasibleError, match=constraint):
        certify(instance, start=start)


def test_a_start_of_another_kind_is_refused() -> None:
    starts = {
        PACKING: PackingSolution(cell_I=[0, 0, 1, 2, 1, 1, 2, 2]),
        PLACEMENT: Placement.identity(2, 6, 2),
        LAYOUT: best_layout(),
    }
    for instance in starts:
        for home, start in starts.items():
            if home is not instance:
                with pytest.raises(InstanceError, match="starts from a"):
                    certify(instance, start=start)


def test_only_the_three_problems_are_certified() -> None:
    with pytest.raises(InstanceError, match="no problem to certify"):
        certify(PackingSolution(cell_I=[0]))  # type: ignore[arg-type]


# ---------------------------------------------------------------- a solver that fails


def test_when_highs_dies_the_best_known_is_returned(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "child.py"
    script.write_text("raise SystemExit(3)\n")
    monkeypatch.setattr(process, "CHILD_SCRIPT", script)
    monkeypatch.setattr(certifier, "SEARCH_EFFORT", 1)
    monkeypatch.setattr(certifier, "_SEARCHES", 1)
    nothing_enumerated(monkeypatch)
    layout, ticks = open_layout()
    placement, peaks = tiny_placement(4)
    for instance, optima in (
        (OPEN_ROWS, [min_cells(OPEN_ROWS)]),
        (placement, peaks),
        (layout, [ticks]),
    ):
        found = enclose(certify(instance, time_limit_s=30), instance, optima)
        assert all(b.kind == "arithmetic" for c in found for b in c.bounds)
        failures = [c.termination for c in found if not c.closed]
        assert failures
        assert all("fail" in termination for termination in failures)


def test_a_solver_error_is_told_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise SolverError("HiGHS contradicts itself\nlong log")

    monkeypatch.setattr(certifier, "solve", fail)
    monkeypatch.setattr(certifier.enumeration, "MOST_STEPS", 0)
    monkeypatch.setattr(certifier, "leader_bound", fail)
    instance, optimum = open_layout()
    (found,) = enclose(certify(instance), instance, [optimum])
    assert found.termination.endswith("HiGHS failed: HiGHS contradicts itself")


@pytest.mark.parametrize("excess", [0, 1])
def test_a_claim_that_a_solution_refutes_closes_nothing(
    monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    true_solve = certifier.solve

    def boast(*args: Any, **kwargs: Any) -> Any:
        result = true_solve(*args, **kwargs)
        assert result.objective is not None
        return replace(result, bound=int(result.objective) + excess)

    monkeypatch.setattr(certifier, "solve", boast)
    monkeypatch.setattr(certifier.enumeration, "MOST_STEPS", 0)
    instance, optimum = open_layout()
    (found,) = certify(instance)
    assert found.upper == optimum
    assert found.closed == (excess == 0)


def test_a_failed_run_is_not_called_a_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    true_solve = certifier.solve

    def fail(*args: Any, **kwargs: Any) -> Any:
        result = true_solve(*args, **kwargs)
        return replace(result, termination=Termination.FAILED, x=None, bound=None)

    monkeypatch.setattr(certifier, "solve", fail)
    monkeypatch.setattr(certifier.enumeration, "MOST_STEPS", 0)
    instance, optimum = open_layout()
    (found,) = enclose(certify(instance), instance, [optimum])
    assert found.termination == "makespan MILP: failed"


# ---------------------------------------------------------------------------- tampering


@pytest.fixture(scope="module")
def written() -> list[tuple[Any, Certificate]]:
    """Closed and open certificates of every problem, each with arithmetic bounds."""
    instances: list[Any] = [OPEN_ROWS, PLACEMENT, LAYOUT, open_layout()[0]]
    return [(i, certify(i, time_limit_s=LIMIT_S)[0]) for i in instances]


def digits_changed(text: str) -> list[str]:
    return [
        text[:k] + str((int(digit) + 1) % 10) + text[k + 1 :]
        for k, digit in enumerate(text)
        if digit.isdigit()
    ]


def test_no_digit_of_a_file_can_be_changed(
    written: list[tuple[Any, Certificate]], tmp_path: Path
) -> None:
    path = tmp_path / "certificate.json"
    for _, certificate in written:
        write_json(path, certificate)
        assert read(path, Certificate) == certificate
        for text in digits_changed(path.read_text()):
            path.write_text(text)
            with pytest.raises(ValueError, match=r"."):
                read(path, Certificate)


def test_a_changed_digit_proves_nothing_new_even_with_a_new_digest(
    written: list[tuple[Any, Certificate]],
) -> None:
    """A forged digest does not help: what is still accepted is still true."""
    for instance, certificate in written:
        proven = RECHECK[certificate.problem](certificate, instance)
        for text in digits_changed(canonical_json(plain(certificate))):
            try:
                forged = record_from_plain(Certificate, json.loads(text))
                again = RECHECK[certificate.problem](forged, instance)
            except (InstanceError, CertificateError, ValueError):
                continue
            assert forged.upper == certificate.upper
            assert again <= max(proven, certificate.lower)


# ------------------------------------------------------------- docs/certificates.md


def test_the_worked_examples_of_the_page() -> None:
    l2 = bounds.l2(make([6, 6, 6, 6, 2], 10))
    assert (l2.value, l2.evidence["chain"]) == (4, [["mt", 5]])
    fours = make([4] * 5, 10)
    assert (bounds.l1(fours).value, bounds.l2(fours).value) == (2, 2)
    dual = dual_weights(fours, np.ones(5, dtype=np.int64))
    assert (dual.value, dual.evidence["max_cell_value"]) == (3, 2)
    case = worked_example((0, 2, 1, 3))
    instance = case.instance
    (found,) = certify(instance, start=case.layout, time_limit_s=0)
    j = {b.name: b.value / instance.unit_ticks for b in found.bounds}
    assert j["volume"] == pytest.approx(13 / 12)
    assert j["largest item"] == pytest.approx(4 / 3)
    assert found.closed
