"""Cost coefficients from measured times."""

import numpy as np
import pytest

from rpopt.calibration import (
    Measurements,
    attention_share,
    cost_from_fits,
    fit,
)
from rpopt.errors import InstanceError


def measurements(noise: float = 0.0, **weights: float) -> Measurements:
    rng = np.random.default_rng(0)
    tokens = rng.integers(100, 4000, size=200).astype(float)
    features = {
        "tokens": tokens,
        "tokens_squared": tokens**2 / rng.integers(1, 5, size=200),
        "copies": tokens * rng.uniform(1, 8, size=200),
    }
    seconds = weights.get("fixed", 0.0) + sum(
        weights.get(name, 0.0) * values for name, values in features.items()
    )
    seconds = seconds * np.exp(noise * rng.standard_normal(200))
    return Measurements(seconds_M=seconds, features=features)


def test_exact_times_give_back_their_coefficients() -> None:
    true = {"fixed": 1e-4, "tokens": 3e-7, "tokens_squared": 2e-10, "copies": 5e-8}
    found = fit(measurements(**true))
    assert {k: found.coefficients[k] for k in true} == pytest.approx(true, rel=1e-6)
    assert found.coefficients["activated"] == 0
    assert found.r_squared == pytest.approx(1)
    assert found.p90_error < 1e-6


def test_noise_moves_them_little() -> None:
    true = {"fixed": 1e-4, "tokens": 3e-7, "tokens_squared": 2e-10, "copies": 5e-8}
    found = fit(measurements(noise=0.05, **true))
    assert found.coefficients["tokens_squared"] == pytest.approx(2e-10, rel=0.1)
    assert 0.02 < found.median_error < 0.06


def test_a_coefficient_that_would_be_negative_is_zero() -> None:
    exact = measurements(tokens=3e-7, copies=5e-8)
    falling = exact.seconds_M * (1 - 1e-4 * exact.features["tokens"])
    found = fit(Measurements(seconds_M=falling, features=exact.features))
    assert min(found.coefficients.values()) == 0
    reference = fit(exact)
    assert found.predict(exact.features) != pytest.approx(
        reference.predict(exact.features)
    )


def test_the_cost_model_of_two_fits() -> None:
    both = measurements(tokens=3e-7, tokens_squared=2e-10)
    attention = fit(
        Measurements(
            seconds_M=both.seconds_M,
            features={k: both.features[k] for k in ("tokens", "tokens_squared")},
        )
    )
    copies = measurements(copies=5e-8)
    experts = fit(
        Measurements(
            seconds_M=copies.seconds_M, features={"copies": copies.features["copies"]}
        )
    )
    cost = cost_from_fits([attention, experts], num_attention_layers=10)
    assert cost.unit == "s"
    assert float(cost.attention[0].c1) == pytest.approx(3e-6, rel=1e-6)
    assert float(cost.attention[0].c2) == pytest.approx(2e-9, rel=1e-6)
    share = attention_share(cost, length_tokens=1000, num_moe_layers=10, top_k=8)
    assert share == pytest.approx(5e-3 / (5e-3 + 4e-3), rel=1e-6)


@pytest.mark.parametrize(
    ("seconds", "features", "words"),
    [
        ([], {"tokens": []}, "shape"),
        ([1.0, -1.0], {"tokens": [1.0, 2.0]}, "seconds must"),
        ([1.0, 1.0], {"tokens": [1.0, np.nan]}, "tokens must"),
        ([1.0, 1.0], {"words": [1.0, 2.0]}, "features"),
        ([1.0, 1.0], {}, "features"),
        ([1.0, 1.0], {"tokens": [1.0]}, "shape"),
    ],
)
def test_what_no_measurement_is(
    seconds: list[float], features: dict[str, list[float]], words: str
) -> None:
    with pytest.raises(InstanceError, match=words):
        Measurements(
            seconds_M=np.array(seconds),
            features={k: np.array(v) for k, v in features.items()},
        )


@pytest.mark.parametrize("features", [("tokens", "tokens_squared"), ("tokens",)])
def test_measurements_that_do_not_vary(features: tuple[str, ...]) -> None:
    same = {name: np.full(9, 100.0) for name in features}
    with pytest.raises(InstanceError, match="cannot tell"):
        fit(Measurements(seconds_M=np.ones(9), features=same))


def test_no_cost_of_experts() -> None:
    only = fit(measurements(tokens=1e-6))
    with pytest.raises(InstanceError, match="token copy"):
        cost_from_fits([only])
