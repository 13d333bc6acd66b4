"""Seeded synthetic windows, fitted to published statistics and labelled as synthetic.

Lengths follow the published output lengths of DeepSeek-R1 in production (alibaba/
ServeGen, Apache-2.0): a quantile function through 287, 792, 3432 and 12607 tokens at
10, 50, 90 and 99 %, lognormal between and beyond these points, correlated within a
prompt group.

Experts have lognormal popularity that differs by layer, topic and prompt group. The
spreads are chosen so that the hottest expert of a layer gets 2 to 5 times the mean over
a window, as published for OLMoE (2.5 to 7.8) and gpt-oss-20b (1.95 to 3.78), and more
within one sample.

Axis letters: N samples, L MoE layers, E experts, n samples of one piece.
"""

import math
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from rpopt.counter import generator
from rpopt.demand import spread
from rpopt.errors import InstanceError
from rpopt.records import Int64Array, positive_int
from rpopt.window import MAX_LENGTH_TOKENS, Window

R1_LENGTH_QUANTILES: Mapping[float, int] = {0.1: 287, 0.5: 792, 0.9: 3432, 0.99: 12607}
_LENGTHS, _POPULARITY, _DEMAND = range(3)
_PIECE_ENTRIES = 2**18
_SUBDIVISIONS = 256


def synthetic_window(
    *,
    seed: int,
    num_samples: int,
    num_layers: int,
    num_experts: int,
    top_k: int,
    group_size: int = 8,
    max_length_tokens: int = 32768,
    length_quantiles: Mapping[float, float] = R1_LENGTH_QUANTILES,
    length_correlation: float = 0.5,
    num_topics: int = 16,
    skew: float = 0.4,
    topic_skew: float = 0.4,
    routes: bool = True,
) -> Window:
    """Return a synthetic window.

    Parameters
    ----------
    seed
        Same seed and arguments, same window.
    num_samples, num_layers, num_experts, top_k
        N, L, E and K.
    group_size
        Samples per prompt; the last group may be smaller.
    max_length_tokens
        Longer samples are truncated to this length.
    length_quantiles
        Tokens by cumulative share, both rising.
    length_correlation
        Correlation of the normal scores of lengths within a prompt group, in [0, 1].
    num_topics
        Every prompt group has one of these topics.
    skew, topic_skew
        Standard deviations of an expert's log popularity: common to all samples of a
        layer, and that of its topic. Prompt groups add a third of `topic_skew`.
    routes
        Whether samples have routes; without, a window with lengths only.

    Raises
    ------
    InstanceError
        When a size is below 1, top_k exceeds the experts, or a share is out of range.
    """
    _check_sizes(
        num_samples=num_samples,
        num_layers=num_layers,
        num_experts=num_experts,
        top_k=top_k,
        group_size=group_size,
        max_length_tokens=max_length_tokens,
        num_topics=num_topics,
    )
    scores_N = correlated_scores(
        generator(seed, _LENGTHS), num_samples, group_size, length_correlation
    )
    length_N = _lengths(scores_N, length_quantiles, max_length_tokens)
    group_N = np.arange(num_samples) // group_size
    demand = None
    if routes:
        popularity = _Popularity(
            generator(seed, _POPULARITY),
            (num_layers, num_experts),
            num_topics,
            int(group_N[-1]) + 1,
            (skew, topic_skew),
        )
        demand = _demand(seed, length_N, group_N, popularity, top_k)
        demand.setflags(write=False)
    return Window(
        length_N=length_N,
        demand_NLE=demand,
        top_k=top_k if routes else 0,
        prompt_group_N=group_N,
        origin=f"synthetic: seed {seed}, length quantiles {dict(length_quantiles)},"
        f" lognormal expert popularity with skews {skew} and {topic_skew}",
    )


def correlated_scores(
    rng: np.random.Generator, num_samples: int, group_size: int, correlation: float
) -> npt.NDArray[np.float64]:
    """Return standard normal scores with one correlation within each group."""
    if not 0 <= correlation <= 1:
        raise InstanceError(f"a correlation of {correlation} lies outside [0, 1]")
    shared = rng.standard_normal(-(-num_samples // group_size))
    own_N = rng.standard_normal(num_samples)
    shared_N = np.repeat(shared, group_size)[:num_samples]
    scores_N: npt.NDArray[np.float64] = (
        math.sqrt(correlation) * shared_N + math.sqrt(1 - correlation) * own_N
    )
    return scores_N


def cap_at_tokens(demand_nLE: Int64Array, length_n: Int64Array) -> Int64Array:
    """Move copies so that no expert gets more than one copy of a token.

    Parameters
    ----------
    demand_nLE
        Token copies; changed in place where an entry exceeds the sample's tokens. The
        sum of a layer must not exceed the number of experts times the tokens.
    length_n
        Tokens of each sample.

    Returns
    -------
    Int64Array
        The same array with the same sums; the excess goes to the other experts of the
        layer in proportion to the tokens they do not get.
    """
    while (over_nL := (demand_nLE > length_n[:, None, None]).any(axis=2)).any():
        sample_m, layer_m = np.nonzero(over_nL)
        rows_mE = demand_nLE[sample_m, layer_m]
        limit_m1 = length_n[sample_m, None]
        excess_m = np.maximum(rows_mE - limit_m1, 0).sum(axis=1)
        np.minimum(rows_mE, limit_m1, out=rows_mE)
        rows_mE += spread(excess_m, (limit_m1 - rows_mE)[:, None])[:, 0]
        demand_nLE[sample_m, layer_m] = rows_mE
    return demand_nLE


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        positive_int(value, name=name)
    if sizes["top_k"] > sizes["num_experts"]:
        raise InstanceError(
            f"top_k = {sizes['top_k']} exceeds the {sizes['num_experts']} experts"
        )


def _lengths(
    scores_N: npt.NDArray[np.float64],
    quantiles: Mapping[float, float],
    max_length_tokens: int,
) -> Int64Array:
    """Map normal scores to lengths: log lengths are linear between the quantiles."""
    shares = list(quantiles)
    tokens = list(quantiles.values())
    rising = all(a < b for a, b in zip(shares, shares[1:], strict=False))
    rising &= all(a < b for a, b in zip(tokens, tokens[1:], strict=False))
    if len(shares) < 2 or not rising or min(shares) <= 0 or max(shares) >= 1:
        raise InstanceError(
            f"length_quantiles = {dict(quantiles)}; at least two shares inside (0, 1)"
            " with tokens are needed, both rising"
        )
    if tokens[0] <= 0 or max_length_tokens > MAX_LENGTH_TOKENS:
        raise InstanceError(f"lengths must lie in [1, {MAX_LENGTH_TOKENS}] tokens")
    knots = np.array([NormalDist().inv_cdf(share) for share in shares])
    logs = np.log(np.array(tokens, dtype=np.float64))
    slopes = np.diff(logs) / np.diff(knots)
    piece_N = np.clip(np.searchsorted(knots, scores_N) - 1, 0, slopes.size - 1)
    log_N = logs[piece_N] + slopes[piece_N] * (scores_N - knots[piece_N])
    longest = math.log(max_length_tokens)
    rounded_N = np.rint(np.exp(np.minimum(log_N, longest))).astype(np.int64)
    length_N: Int64Array = np.clip(rounded_N, 1, max_length_tokens)
    return length_N


class _Popularity:
    """Log popularity of the experts: layer, topic and group effects, float32 [L, E]."""

    def __init__(
        self,
        rng: np.random.Generator,
        shape_LE: tuple[int, int],
        num_topics: int,
        num_groups: int,
        skews: tuple[float, float],
    ) -> None:
        self.shape_LE = shape_LE
        self._group_skew = skews[1] / 3
        self._topic_of_group = rng.integers(num_topics, size=num_groups)
        layer_LE = rng.standard_normal(shape_LE, dtype=np.float32)
        effects = rng.standard_normal((num_topics, *shape_LE), dtype=np.float32)
        effects *= skews[1]
        effects += skews[0] * layer_LE
        self._effect_of_topic = effects

    def shares(self, group: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
        """Return each expert's share of a layer's copies in one prompt group."""
        share_LE = rng.standard_normal(self.shape_LE, dtype=np.float32)
        share_LE *= self._group_skew
        share_LE += self._effect_of_topic[self._topic_of_group[group]]
        np.exp(share_LE, out=share_LE)
        share_LE /= share_LE.sum(axis=1, keepdims=True)
        return share_LE


def _demand(
    seed: int,
    length_N: Int64Array,
    group_N: Int64Array,
    popularity: _Popularity,
    top_k: int,
) -> npt.NDArray[np.int32]:
    """Draw the demand piece by piece: sums are exact, single entries are noisy."""
    num_layers, num_experts = popularity.shape_LE
    demand = np.empty((length_N.size, num_layers, num_experts), dtype=np.int32)
    most = max(1, _PIECE_ENTRIES // (num_layers * num_experts))
    for group in range(int(group_N[-1]) + 1):
        rng = generator(seed, _DEMAND, group)
        share_LE = popularity.shares(group, rng)
        first, last = np.searchsorted(group_N, [group, group + 1])
        for start in range(int(first), int(last), most):
            piece = slice(start, min(start + most, int(last)))
            demand[piece] = _draw(rng, share_LE, length_N[piece], top_k)
    return demand


def _draw(
    rng: np.random.Generator,
    share_LE: npt.NDArray[np.float32],
    length_n: Int64Array,
    top_k: int,
) -> Int64Array:
    """Draw counts with Poisson-like spread and scale them to their exact sums."""
    copies_n = top_k * length_n
    mean_nLE = share_LE * copies_n[:, None, None].astype(np.float32)
    noise_nLE = rng.standard_normal(mean_nLE.shape, dtype=np.float32)
    noise_nLE *= np.sqrt(mean_nLE)
    mean_nLE += noise_nLE
    np.maximum(mean_nLE, 0, out=mean_nLE)
    weight_nLE = (mean_nLE * _SUBDIVISIONS).astype(np.int64)
    weight_nLE += 1  # a layer's weights never sum to 0
    return cap_at_tokens(spread(copies_n, weight_nLE), length_n)
