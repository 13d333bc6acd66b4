"""The reference windows, and new windows made like them from the same real data.

The data lie outside the repository: `RPOPT_DATA` names their folder. Lengths come from
the DeepSeek-R1 production histograms (alibaba/ServeGen) and routing from gpt-oss-20b
(AmanPriyanshu/GPT-OSS-MoE-ExpertFingerprinting), both under Apache-2.0.

Axis letters: N samples, L MoE layers, E experts, n samples of one prompt group.
"""

import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rpopt.cost import AttentionClass, CostModel
from rpopt.counter import generator
from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import AnyPath, reading
from rpopt.io.jsonfile import parse_json
from rpopt.io.npz import Member, open_npz
from rpopt.io.synthetic import cap_at_tokens, correlated_scores
from rpopt.records import Int64Array, positive_int
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window

WINDOWS = "windows-reference"
_LENGTHS = "lengths-servegen-r1"
_ROUTING = "moe-routing-gptoss20b"
_TOP_K = 4
_MIN_ROUTED_TOKENS = 64  # shorter samples say little about where tokens go
_SCORES, _PROMPTS, _ROUTES = range(3)


class Reference(NamedTuple):
    """A reference window and the settings it is planned under."""

    window: Window
    topology: Topology
    rules: PackingRules
    cost: CostModel


def data_dir() -> Path:
    """Return the folder of the public data: RPOPT_DATA, else ../shared/data.

    Raises
    ------
    InstanceError
        When there is no such folder.
    """
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("RPOPT_DATA") or beside)
    if not path.is_dir():
        raise InstanceError(
            f"no benchmark data at {path}; set RPOPT_DATA to the folder that holds them"
        )
    return path


def read_reference(folder: AnyPath, name: str) -> Reference:
    """Return one of the reference windows with its topology, rules and cost model.

    Parameters
    ----------
    folder
        The folder with `windows.json` and the windows' `.npz` files.
    name
        Such as "w1".

    Raises
    ------
    FileFormatError
        When a file is missing or damaged, or there is no window of that name.
    """
    index = Path(folder) / "windows.json"
    with reading(index):
        entries = {entry["name"]: entry for entry in parse_json(index.read_bytes())}
        if name not in entries:
            raise FileFormatError(f"no window {name!r}; there are {sorted(entries)}")
        entry = entries[name]
        settings = _settings(entry)
        file = Path(folder) / str(entry["file"])
    with open_npz(file) as archive:
        window = Window(
            length_N=Member(archive, "length_N").read(),
            demand_NLE=Member(archive, "demand_NLE").read(),
            top_k=entry["top_k"],
            prompt_group_N=Member(archive, "prompt_group_N").read(),
            origin=f"reference window {name}",
        )
    return Reference(window, *settings)


def build_reference_like(
    *,
    seed: int,
    num_samples: int,
    token_cap: int,
    folder: AnyPath | None = None,
    group_size: int = 8,
    length_correlation: float = 0.55,
    max_prompt_tokens: int = 2048,
) -> Window:
    """Return a window drawn like the reference windows.

    Lengths are min(prompt + output, cap): one prompt length per group, output lengths
    by inverse CDF of scores that are correlated within the group. Each group routes
    like one real sample: its histogram per layer, scaled to each length by a
    multinomial draw in which no token visits an expert twice.

    Parameters
    ----------
    seed
        Same seed, arguments and data, same window.
    num_samples
        N.
    token_cap
        Longer samples are truncated to this many tokens.
    folder
        The data folder; `data_dir()` when None.
    group_size
        Samples per prompt; the last group may be smaller.
    length_correlation
        Correlation of the normal scores of output lengths within a group.
    max_prompt_tokens
        Longer prompts are cut.

    Raises
    ------
    InstanceError
        When a number is out of range, or there are no data.
    FileFormatError
        When a data file is missing or damaged.
    """
    for name, value in (("num_samples", num_samples), ("group_size", group_size)):
        positive_int(value, name=name)
    positive_int(token_cap, name="token_cap")
    data = data_dir() if folder is None else Path(folder)
    group_N = np.arange(num_samples) // group_size
    scores_N = correlated_scores(
        generator(seed, _SCORES), num_samples, group_size, length_correlation
    )
    shares_N = np.array([NormalDist().cdf(score) for score in scores_N.tolist()])
    output_N = _Distribution(data / _LENGTHS / "output_tokens_hist.csv.gz")(shares_N)
    prompt_shares = generator(seed, _PROMPTS).random(int(group_N[-1]) + 1)
    prompts = _Distribution(data / _LENGTHS / "input_tokens_hist.csv.gz")(prompt_shares)
    prompt_N = np.minimum(prompts, max_prompt_tokens)[group_N]
    length_N = np.minimum(prompt_N + output_N, token_cap)
    return Window(
        length_N=length_N,
        demand_NLE=_demand(seed, length_N, group_N, data),
        top_k=_TOP_K,
        prompt_group_N=group_N,
        origin=f"reference-like: seed {seed}, lengths of DeepSeek-R1, routing of"
        " gpt-oss-20b",
    )


def _demand(
    seed: int, length_N: Int64Array, group_N: Int64Array, data: Path
) -> npt.NDArray[np.int32]:
    with open_npz(data / _ROUTING / "sample_expert_counts.npz") as archive:
        counts_NLE = Member(archive, "counts").read()
    tokens_N = counts_NLE[:, 0].sum(axis=1, dtype=np.int64) // _TOP_K
    counts_NLE = counts_NLE[tokens_N >= _MIN_ROUTED_TOKENS]
    demand = np.empty((length_N.size, *counts_NLE.shape[1:]), dtype=np.int32)
    for group in range(int(group_N[-1]) + 1):
        rng = generator(seed, _ROUTES, group)
        count_LE = counts_NLE[rng.integers(len(counts_NLE))].astype(np.float64)
        share_LE = count_LE / count_LE.sum(axis=1, keepdims=True)
        members_n = np.flatnonzero(group_N == group)
        length_n = length_N[members_n]
        drawn_nLE = rng.multinomial(_TOP_K * length_n[:, None], share_LE)
        demand[members_n] = cap_at_tokens(drawn_nLE, length_n)
    demand.setflags(write=False)
    return demand


class _Distribution:
    """An empirical distribution of token counts, from a file (value, weight)."""

    def __init__(self, path: Path) -> None:
        with reading(path):
            table = np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
            if table.shape[1] != 2 or not (table[:, 1] > 0).all():
                raise FileFormatError("needs columns value and positive weight")
        order = np.argsort(table[:, 0])
        self._values = table[order, 0].astype(np.int64)
        self._cumulative = np.cumsum(table[order, 1])

    def __call__(self, shares: npt.NDArray[np.float64]) -> Int64Array:
        """Return the values at cumulative shares in [0, 1)."""
        at = np.searchsorted(self._cumulative, shares * self._cumulative[-1])
        values: Int64Array = self._values[np.minimum(at, self._values.size - 1)]
        return values


def _settings(entry: Mapping[str, Any]) -> tuple[Topology, PackingRules, CostModel]:
    if entry["layer_weights"] != "equal":
        raise FileFormatError(f"layer weights {entry['layer_weights']!r} are unknown")
    sizes = {name: entry[name] for name in ("dp", "ep", "tp", "cp")}
    attention = AttentionClass(c1=Fraction(entry["c1"]), c2=Fraction(entry["c2"]))
    cost = CostModel(
        attention=(attention,), omega=Fraction(entry["omega"]), name="reference"
    )
    return Topology(**sizes), PackingRules(token_cap=entry["token_cap"]), cost
