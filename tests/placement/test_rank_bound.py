"""The one-rank bound: any multipliers hold, and tampered evidence does not."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpopt.certificate import Bound
from rpopt.errors import CertificateError, InstanceError
from rpopt.placement.bounds_window import aggregate_bound, groups_bound
from rpopt.placement.rank_bound import NAME, Multipliers, recheck, value
from tests.placement.cases_window import optimal_total, random_instance


def multipliers(seed: int, groups: int, layer: int, expert: int) -> Multipliers:
    rng = np.random.default_rng(seed)
    share_XG = rng.dirichlet(np.full(3, 0.5), groups).T * 900
    alpha_G, beta_G, _ = share_XG.astype(int).tolist()
    return Multipliers(
        layer=layer,
        expert=expert,
        denominator=1000,
        alpha_G=tuple(alpha_G),
        beta_G=tuple(beta_G),
        delta=int(rng.integers(0, 101)),
    )


@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.sampled_from([(1, 3), (2, 2), (3, 2), (2, 3), (1, 2)]),
)
@settings(deadline=None, max_examples=60)
def test_any_multipliers_hold(seed: int, groups: int, shape: tuple[int, int]) -> None:
    per_rank, ranks = shape
    instance = random_instance(seed, groups=groups, per_rank=per_rank, ranks=ranks)
    for layer in range(2):
        best = optimal_total(instance, layer)
        for expert in range(per_rank * ranks):
            chosen = multipliers(seed + expert, groups, layer, expert)
            assert value(instance, chosen) <= best


def test_without_alpha_and_beta_it_is_the_known_bounds() -> None:
    instance = random_instance(0)
    zero = (0,) * instance.num_groups
    for delta, known_L in (
        (0, groups_bound(instance)),
        (7, aggregate_bound(instance)),
    ):
        chosen = Multipliers(
            layer=1, expert=0, denominator=7, alpha_G=zero, beta_G=zero, delta=delta
        )
        assert value(instance, chosen) == known_L[1]


def test_tampered_evidence_is_refused() -> None:
    instance = random_instance(1)
    chosen = multipliers(0, instance.num_groups, 0, 2)
    proven = value(instance, chosen)
    good = Bound(name=NAME, kind="arithmetic", value=proven, evidence=chosen.evidence())
    assert recheck(instance, good) == proven
    for name, wrong in (
        ("layer", 2),
        ("expert", -1),
        ("denominator", 500),
        ("delta", 0.5),
        ("delta", -1),
        ("alpha_G", [1]),
        ("beta_G", [2000] * instance.num_groups),
        ("beta_G", None),
    ):
        tampered = replace(good, evidence={**chosen.evidence(), name: wrong})
        with pytest.raises(CertificateError, match="does not hold"):
            recheck(instance, tampered)
    with pytest.raises(CertificateError, match="denominator"):
        recheck(instance, replace(good, evidence={"layer": 0, "expert": 0}))


def test_one_rank_has_no_others() -> None:
    instance = random_instance(0, per_rank=4, ranks=1)
    with pytest.raises(InstanceError, match="no others"):
        value(instance, multipliers(0, instance.num_groups, 0, 0))
