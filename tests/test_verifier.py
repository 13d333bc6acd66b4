"""A plan that holds passes; any tampering with it does not, digests redone or not."""

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rpopt.certificate import Bound
from rpopt.cost import AttentionClass, CostModel
from rpopt.errors import CertificateError, MismatchError, RpoptError
from rpopt.layout.evaluate import evaluate
from rpopt.placement.heuristics import identity
from rpopt.plans import Layout, Placement, Plan
from rpopt.records import plain, record_from_plain
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.verifier import verify_plan
from rpopt.window import Window
from tests.cases import Case, cases, make_plan, medium_case, random_demand

Path = tuple[str | int, ...]

# Numbers of a plan that nothing else depends on: no one can tell another from them.
FREE: set[Path] = {("seed",), ("topology", "pp")}


def tight_case(cost: CostModel) -> Case:
    """A bundle of two samples and seven others, each more than half a cell."""
    rng = np.random.default_rng(1)
    length_N = np.array([3, 9, 12, 11, 4, 10, 9, 12, 11])
    return Case(
        window=Window(
            length_N=length_N,
            routed_tokens_N=length_N - 1,
            demand_NLE=random_demand(rng, length_N - 1, 2, 8, 2),
            top_k=2,
            bundle_N=[3, -1, -1, -1, 3, -1, -1, -1, -1],
        ),
        topology=Topology(dp=4, ep=2),
        rules=PackingRules(token_cap=12, pad_multiple=2, max_samples_per_cell=2),
        cost=cost,
    )


GIVEN = CostModel(
    attention=(
        AttentionClass(c1=Fraction(1, 3), c2=Fraction(1, 32)),
        AttentionClass(name="linear", c1=2),
    ),
    omega=Fraction(2, 5),
    layer_weight_L=(Fraction(1), Fraction(2)),
)
DERIVED = CostModel(
    attention=(AttentionClass(c1=Fraction(1, 3), c2=Fraction(1, 32)),),
    expert_per_copy=Fraction(3, 7),
    unit="s",
)


def numbers(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every number in JSON values with one neighbour of it, fractions included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers(inner, (*path, index))
    elif type(value) is int:
        yield path, value + 1
        yield path, value - 1
    elif isinstance(value, str) and value.replace("/", "").isdigit():
        yield path, str(Fraction(value) + Fraction(1, 7))


def changed(content: Any, path: Path, value: Any) -> Any:
    copy = json.loads(json.dumps(content))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


@pytest.mark.parametrize("cost", [GIVEN, DERIVED], ids=["given", "derived"])
def test_every_changed_number_is_caught(cost: CostModel) -> None:
    """Each number of the plan by one, the digest redone by building the record anew."""
    case = tight_case(cost)
    plan = make_plan(case)
    assert plan.rows.upper == 2
    verify_plan(case.window, plan)
    content, missed, count = plain(plan), [], 0
    for path, value in numbers(content):
        if path[-1:] == ("expert_per_copy",) and cost.omega is not None:
            continue  # not used beside a given omega
        count += 1
        try:
            verify_plan(
                case.window, record_from_plain(Plan, changed(content, path, value))
            )
        except RpoptError:
            continue
        missed.append(path)
    assert count > 100
    assert set(missed) == FREE


def test_tampering_that_still_makes_a_record_is_a_certificate_error() -> None:
    case = tight_case(GIVEN)
    content = plain(make_plan(case))
    for path, value in numbers(content):
        try:
            plan = record_from_plain(Plan, changed(content, path, value))
        except RpoptError:
            continue
        if path in FREE or path[-1] == "expert_per_copy":
            continue
        with pytest.raises((CertificateError, MismatchError)):
            verify_plan(case.window, plan)


@given(cases())
@settings(deadline=None, max_examples=40)
def test_plans_of_every_kind_hold(case: Case) -> None:
    verify_plan(case.window, make_plan(case))


@pytest.fixture(scope="module")
def case() -> Case:
    return medium_case()


@pytest.fixture(scope="module")
def plan(case: Case) -> Plan:
    return make_plan(case)


def refuse(case: Case, plan: Plan, *words: str) -> None:
    with pytest.raises(CertificateError) as caught:
        verify_plan(case.window, plan)
    message = str(caught.value)
    assert all(word in message for word in words), message


def test_another_window(case: Case, plan: Plan) -> None:
    with pytest.raises(MismatchError, match="give the window that was planned"):
        verify_plan(medium_case(1).window, plan)
    relabelled = replace(case.window, origin="elsewhere")
    with pytest.raises(MismatchError):
        verify_plan(relabelled, plan)


def test_a_stolen_digest_does_not_help(plan: Plan) -> None:
    other = medium_case(1)
    stolen = replace(plan, window_digest=other.window.digest)
    refuse(other, stolen, "the certificate is about instance")


def test_other_settings(case: Case, plan: Plan) -> None:
    for changes in (
        {"topology": Topology(dp=4, ep=4)},
        {"topology": Topology(dp=4, ep=2, coupling="row")},
        {"topology": Topology(dp=4, ep=2, shard_of_rank_D=[0, 1, 0, 1])},
        {"topology": Topology(dp=2, ep=2)},
        {"topology": Topology(dp=3, ep=3)},
        {"rules": replace(case.rules, token_cap=64)},
        {"rules": replace(case.rules, token_cap=8)},
        {"rules": replace(case.rules, missing_routes="ignore")},
        {"rules": replace(case.rules, row_multiple=7)},
        {"cost": CostModel(omega=1)},
        {"cost": replace(case.cost, layer_weight_L=(1, 1))},
    ):
        refuse(case, replace(plan, **changes))


def test_another_placement(case: Case, plan: Plan) -> None:
    assert case.problems.placement is not None
    other = identity(case.problems.placement)
    refuse(case, replace(plan, placement=other))
    refuse(case, replace(plan, placement=Placement.identity(3, 8, 4)), "EP ranks")
    refuse(case, replace(plan, placement=Placement.identity(2, 8, 2)), "(2, 8)")
    refuse(case, replace(plan, placement=None), "routing")


def test_a_placement_for_lengths_only(plan: Plan) -> None:
    lengths = medium_case(routes=False)
    other = replace(make_plan(lengths), placement=plan.placement)
    refuse(lengths, other, "only one of window and plan has routing")
    bounds = replace(make_plan(lengths), placement_bounds=plan.placement_bounds)
    refuse(lengths, bounds, "routing")


def test_another_layout(case: Case, plan: Plan) -> None:
    layout = plan.layout
    short = Layout(row_I=layout.row_I[1:], rank_I=layout.rank_I[1:], num_rows=5)
    refuse(case, replace(plan, layout=short), "rows")
    short = replace(short, num_rows=layout.num_rows)
    refuse(case, replace(plan, layout=short), "39 items laid out, 40 exist")
    crowded = replace(layout, rank_I=np.zeros_like(layout.rank_I))
    refuse(case, replace(plan, layout=crowded), "token cap")
    more = replace(layout, num_rows=layout.num_rows + 1)
    refuse(case, replace(plan, layout=more), "rows, the certificate")


def test_a_worse_layout_with_the_better_j(case: Case, plan: Plan) -> None:
    instance = case.problems.layout(plan.placement, plan.layout.num_rows)
    swapped = replace(plan.layout, rank_I=(plan.layout.rank_I + 1) % 4)
    assert evaluate(instance, swapped).j_ticks != plan.j_ticks
    refuse(case, replace(plan, layout=swapped), "the plan says J =")


@pytest.mark.parametrize("field", ["rows", "placement_bounds", "layout_bounds"])
@pytest.mark.parametrize("shift", [-1, 1])
def test_bounds_off_by_one(case: Case, plan: Plan, field: str, shift: int) -> None:
    holder = plan.rows.bounds if field == "rows" else getattr(plan, field)
    bound = replace(holder[0], value=holder[0].value + shift)
    bounds = (bound, *holder[1:])
    if field == "rows":
        upper = max(plan.rows.upper, bound.value)
        tampered = replace(plan, rows=replace(plan.rows, bounds=bounds, upper=upper))
    else:
        tampered = replace(plan, **{field: bounds})
    refuse(case, tampered)


def test_missing_bounds(case: Case, plan: Plan) -> None:
    refuse(case, replace(plan, layout_bounds=()), "at least one of each")
    refuse(case, replace(plan, rows=replace(plan.rows, bounds=())), "0 bounds")
    refuse(case, replace(plan, placement_bounds=()))
    refuse(case, replace(plan, placement_bounds=plan.placement_bounds[::-1]))


def test_claims_above_the_witness(case: Case, plan: Plan) -> None:
    """A solver's claim cannot be recomputed, but it must not exceed what is there."""
    claim = Bound(name="lp", kind="solver", value=plan.j_ticks + 1)
    refuse(case, replace(plan, layout_bounds=(*plan.layout_bounds, claim)), "exceeds J")
    first, *others = plan.placement_bounds
    claim = replace(first, kind="solver", value=10**9)
    refuse(case, replace(plan, placement_bounds=(claim, *others)), "peak")


@pytest.mark.parametrize(
    "bound",
    [
        Bound(name="magic", kind="arithmetic", value=1),
        Bound(name="volume", kind="arithmetic", value=1),
        Bound(name="level", kind="arithmetic", value=1, evidence={"levels": None}),
    ],
    ids=lambda bound: bound.name,
)
def test_unknown_and_unproven_bounds(case: Case, plan: Plan, bound: Bound) -> None:
    refuse(case, replace(plan, layout_bounds=(*plan.layout_bounds, bound)))
    rows = replace(plan.rows, bounds=(*plan.rows.bounds, bound))
    refuse(case, replace(plan, rows=rows))


@pytest.mark.parametrize(
    "witness",
    [
        {},
        {"cell_I": None},
        {"cell_I": "abc"},
        {"cell_I": [0.5] * 40},
        {"cell_I": [2**70] * 40},
        {"cell_I": [0] * 40},
        {"cell_I": [0] * 39},
        {"cell_I": [[0]] * 40},
        {"cell_I": list(range(0, 80, 2))},
    ],
)
def test_witnesses_that_do_not_hold(case: Case, plan: Plan, witness: Any) -> None:
    refuse(case, replace(plan, rows=replace(plan.rows, witness=witness)), "witness")


def test_a_certificate_about_something_else(case: Case, plan: Plan) -> None:
    refuse(case, replace(plan, rows=replace(plan.rows, problem="layout")), "rows")
