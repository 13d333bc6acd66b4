"""The throughput study: what it trains, how it counts seconds, and that it runs."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import trainer_throughput
from experiments import trainer_throughput_table as results
from experiments.config import read_config
from experiments.trainer_throughput_cases import (
    BASELINE,
    BOTH,
    METHODS,
    Study,
    methods_of,
    recorded_samples,
    topology,
    window_of,
)
from experiments.trainer_throughput_path import (
    balanced_s,
    critical_path_s,
    expert_s,
    is_expert_C,
)
from experiments.trainer_throughput_worker import Timing, rotated
from rpopt.cost import AttentionClass, CostModel
from rpopt.errors import InstanceError
from rpopt.io.reference import data_dir

CONFIG = (
    Path(trainer_throughput.__file__).parent
    / "configs"
    / "trainer_throughput_smoke.toml"
)
COST = CostModel(
    attention=(AttentionClass(c1="3/1000000"),), expert_per_copy="1/1000000", unit="s"
)


def timings(cpu_DC: list[list[float]], peers_C: list[list[list[int]]]) -> list[Timing]:
    return [
        Timing(
            wall_s=1.0,
            cpu_C=np.array(cpu_C),
            peers_C=tuple(
                next(tuple(group) for group in groups if rank in group)
                for groups in peers_C
            ),
        )
        for rank, cpu_C in enumerate(cpu_DC)
    ]


def test_ranks_wait_for_those_they_meet() -> None:
    pairs, everybody = [[0, 1], [2, 3]], [[0, 1, 2, 3]]
    cpu_DC = [[1.0, 5.0, 1.0], [4.0, 1.0, 1.0], [2.0, 2.0, 1.0], [3.0, 3.0, 7.0]]
    assert critical_path_s(timings(cpu_DC, [pairs, pairs, everybody])) == 13.0
    assert critical_path_s(timings(cpu_DC, [everybody] * 3)) == 16.0
    assert critical_path_s(timings(cpu_DC, [[[0], [1], [2], [3]]] * 3)) == 13.0
    assert balanced_s(timings(cpu_DC, [pairs] * 3)) == 31.0 / 4


def test_the_experts_parts_are_found() -> None:
    # After two parts, one layer and two rows: counts, there, back, back, there.
    is_expert = is_expert_C(1, 2).tolist()
    row = [False, False, True, False, True]
    assert is_expert == [False, False, *row, *row]
    (step,) = timings([[9, 9, 0, 0, 1, 0, 2, 9]], [[[0]]] * 8)
    assert expert_s(step, 1, 1) == 3


def test_every_repeat_begins_with_another_method() -> None:
    orders = [list(rotated(range(4), repeat)) for repeat in range(5)]
    assert [order[0] for order in orders] == [0, 1, 2, 3, 0]
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)


def record(seconds: dict[str, list[float]]) -> dict[str, Any]:
    methods = {
        method: {"path_s": path_s, "predicted_s": path_s[0], "bound_s": 1.0}
        for method, path_s in seconds.items()
    }
    return {"metrics": {"methods": methods, "is_unshared": False}}


def test_gains_are_paired_within_a_repeat_and_add_up_windows() -> None:
    windows = [
        record({BASELINE: [2.0, 20.0], BOTH: [1.0, 10.0]}),
        record({BASELINE: [4.0, 40.0], BOTH: [2.0, 30.0]}),
    ]
    assert results.gains(windows, BASELINE, BOTH, "path_s") == [1.0, 0.5]
    assert results.modelled_gain(windows, BOTH) == 1.0
    assert results.modelled_gain(windows, BOTH, "bound_s") == 2.0


class TestWithData:
    @pytest.fixture(autouse=True)
    def _needs_data(self) -> None:
        try:
            data_dir()
        except InstanceError as error:
            pytest.skip(str(error))

    def test_samples_are_recorded_and_differ_within_a_group(self) -> None:
        study = read_config(CONFIG, Study)
        samples = recorded_samples(study, seed=0)
        assert len(samples) == study.samples
        long = [s for s in samples[:8] if s.length >= 4]
        firsts = {s.routes_TLK[:4].tobytes() for s in long}
        assert len(firsts) == len(long) > 1
        again = recorded_samples(study, seed=0)
        assert (samples[-1].routes_TLK == again[-1].routes_TLK).all()

    def test_methods_differ_in_what_they_say(self) -> None:
        study = read_config(CONFIG, Study)
        window = window_of(recorded_samples(study, seed=0))
        assert (window.demand_NLE.sum(axis=2) == 4 * window.length_N[:, None]).all()
        methods = methods_of(window, topology("4 x 4"), study, COST, 0)
        base, rerouting, packing, both = methods
        assert tuple(m.name for m in methods) == METHODS
        assert (base.layout.row_I == rerouting.layout.row_I).all()
        assert (base.layout.rank_I == rerouting.layout.rank_I).all()
        assert base.placement.digest == packing.placement.digest
        assert len({m.layout.num_rows for m in methods}) == 1
        assert both.predicted_s <= min(base.predicted_s, rerouting.predicted_s)
        assert both.bound_s <= both.predicted_s
        for method in methods:
            cells = [cell for rank in method.cells for cell in rank]
            assert sorted(sum(cells, [])) == list(range(study.samples))

    @pytest.mark.dist
    def test_the_study_runs_and_goes_on_from_its_records(self, tmp_path: Path) -> None:
        arguments = ["--config", str(CONFIG), "--out", str(tmp_path)]
        trainer_throughput.main(arguments)
        first = (tmp_path / "table.csv").read_bytes()
        trainer_throughput.main(arguments)  # measured again, it would differ
        assert (tmp_path / "table.csv").read_bytes() == first
        with (tmp_path / "table_prediction.csv").open() as file:
            methods = [row["method"] for row in csv.DictReader(file)]
        assert set(methods) == set(METHODS) - {BASELINE}
        with (tmp_path / "table_limits.csv").open() as file:
            (limits,) = csv.DictReader(file)
        assert 0 < float(limits["expert share"]) < 1
        assert float(limits["measured"]) >= 1 <= float(limits["plan measured"])
        assert len((tmp_path / "fit" / "experts.csv").read_text().splitlines()) == 25
