"""Cost coefficients from measured times.

The time of one rank's work between two waits is modelled as

    seconds = fixed + c1 Σ l + c2 Σ l**2 + expert_per_copy x copies
              + expert_read x activated experts

with coefficients >= 0, fitted by least squares on relative errors, so that short and
long measurements count alike. The non-negative optimum is the best of the least-squares
solutions on all subsets of the columns that are non-negative (there are at most 32).

Axis letters: M measurements.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from rpopt.cost import AttentionClass, CostModel
from rpopt.errors import InstanceError

FloatArray = npt.NDArray[np.float64]
FEATURES = ("tokens", "tokens_squared", "copies", "activated")
_COLUMNS = ("fixed", *FEATURES)
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measurements:
    """Measured times of one kind of work.

    Parameters
    ----------
    seconds_M
        Measured times, > 0.
    features
        Any of `tokens` (Σ l), `tokens_squared` (Σ l**2), `copies` (token copies, summed
        over MoE layers) and `activated` (experts whose weights are read), [M] each.
    name
        Where they come from.

    Raises
    ------
    InstanceError
        For no measurements, unknown features, or numbers that are negative or not
        finite.
    """

    seconds_M: FloatArray
    features: Mapping[str, FloatArray]
    name: str = "measurements"

    def __post_init__(self) -> None:
        """Check every column."""
        unknown = sorted(set(self.features) - set(FEATURES))
        if unknown or not self.features:
            raise InstanceError(
                f"{self.name}: features {sorted(self.features)}; give some of"
                f" {FEATURES}"
            )
        columns = {"seconds": self.seconds_M, **self.features}
        for name, values in columns.items():
            if values.shape != (self.seconds_M.size,) or not self.seconds_M.size:
                raise InstanceError(
                    f"{self.name}: {name} has shape {values.shape}; one number per"
                    f" measurement is needed ({self.seconds_M.size} of them)"
                )
            least = values.min() if np.isfinite(values).all() else -1
            if least < 0 or (name == "seconds" and least == 0):
                raise InstanceError(
                    f"{self.name}: {name} must be finite and"
                    f" {'> 0' if name == 'seconds' else '>= 0'}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Fitted coefficients, in seconds, and how well they explain the measurements.

    Parameters
    ----------
    coefficients
        `fixed` and one per feature; 0 where a feature was absent or unhelpful.
    num_measurements
        M.
    r_squared
        Share of the variance of the seconds that is explained.
    median_error, p90_error
        Relative errors of the fitted times.
    """

    name: str
    coefficients: Mapping[str, float]
    num_measurements: int
    r_squared: float
    median_error: float
    p90_error: float

    def predict(self, features: Mapping[str, FloatArray]) -> FloatArray:
        """Return the modelled seconds."""
        parts = [self.coefficients[name] * features[name] for name in features]
        return self.coefficients["fixed"] + np.sum(parts, axis=0)


def fit(measurements: Measurements) -> Fit:
    """Fit non-negative coefficients.

    Raises
    ------
    InstanceError
        When there are fewer measurements than coefficients, or they do not vary enough
        to tell the coefficients apart.
    """
    given = [name for name in _COLUMNS if name in ("fixed", *measurements.features)]
    seconds_M = measurements.seconds_M
    ones_M = np.ones(seconds_M.size)
    matrix = np.stack(
        [measurements.features.get(name, ones_M) for name in given], axis=1
    )
    _require_rank(matrix, given, measurements.name)
    solution = _non_negative_least_squares(matrix / seconds_M[:, None], ones_M)
    coefficients = dict.fromkeys(_COLUMNS, 0.0)
    coefficients.update(zip(given, solution.tolist(), strict=True))
    error_M = np.abs(matrix @ solution / seconds_M - 1)
    residual = float(((matrix @ solution - seconds_M) ** 2).sum())
    variance = float(((seconds_M - seconds_M.mean()) ** 2).sum())
    return Fit(
        name=measurements.name,
        coefficients=coefficients,
        num_measurements=int(seconds_M.size),
        r_squared=1 - residual / variance if variance else float(residual == 0),
        median_error=float(np.median(error_M)),
        p90_error=float(np.quantile(error_M, 0.9)),
    )


def cost_from_fits(
    fits: Sequence[Fit], *, num_attention_layers: int = 1, name: str = "calibrated"
) -> CostModel:
    """Return the cost model of several fits, each of other work; coefficients add up.

    Parameters
    ----------
    num_attention_layers
        Layers to multiply attention by, when one layer was measured.

    Raises
    ------
    InstanceError
        When no fit has a cost per token copy: omega would be unknown.
    """

    def total(feature: str) -> Fraction:
        value = sum(f.coefficients[feature] for f in fits)
        return Fraction(f"{value:.{_DIGITS}g}")

    if total("copies") == 0:
        raise InstanceError(
            "no measurement tells what a token copy costs; add one of expert work"
            " (column copies) that varies"
        )
    attention = AttentionClass(
        c1=total("tokens") * num_attention_layers,
        c2=total("tokens_squared") * num_attention_layers,
    )
    return CostModel(
        attention=(attention,), expert_per_copy=total("copies"), unit="s", name=name
    )


def attention_share(
    cost: CostModel, *, length_tokens: int, num_moe_layers: int, top_k: int
) -> float:
    """Return omega of a window whose samples all have `length_tokens` tokens."""
    attention = sum(
        c.c1 * length_tokens + c.c2 * length_tokens**2 for c in cost.attention
    )
    copies = cost.expert_per_copy * num_moe_layers * top_k * length_tokens
    return float(attention / (attention + copies))


def _non_negative_least_squares(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """Try every set of columns; columns are scaled so that sizes do not matter."""
    scale = np.linalg.norm(matrix, axis=0)
    scaled, best, least = matrix / scale, np.zeros(scale.size), np.inf
    for count in range(1, scale.size + 1):
        for chosen in itertools.combinations(range(scale.size), count):
            columns = list(chosen)
            solution = np.linalg.lstsq(scaled[:, columns], target, rcond=None)[0]
            error = float(((scaled[:, columns] @ solution - target) ** 2).sum())
            if (solution >= 0).all() and error < least:
                best, least = np.zeros(scale.size), error
                best[columns] = solution
    return best / scale


def _require_rank(matrix: FloatArray, names: Sequence[str], what: str) -> None:
    norms = np.linalg.norm(matrix, axis=0)
    if not norms.all():
        zero = [n for n, norm in zip(names, norms, strict=True) if not norm]
        raise InstanceError(f"{what}: {zero} are 0 everywhere; leave them out")
    rank = np.linalg.matrix_rank(matrix / norms, tol=1e-6)
    if rank < len(names):
        raise InstanceError(
            f"{what}: {len(matrix)} measurements cannot tell {list(names)} apart (rank"
            f" {rank}); measure other lengths and loads, or drop a column"
        )
