"""The reading study runs; its loops check what the counter checks."""

from pathlib import Path

import numpy as np
import pytest

from experiments import route_reading
from experiments.config import read_config
from experiments.runner import run_all

CONFIG = Path(route_reading.__file__).parent / "configs/route_reading_smoke.toml"


def test_every_case_and_file_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("msgpack", reason="msgpack is not installed")
    study = read_config(CONFIG, route_reading.Study)
    runs = route_reading.runs(study)
    records = run_all(runs, route_reading.solve, out=tmp_path, config=study)
    counted = route_reading.counting_table(records)
    assert [row["type"] for row in counted] == ["int32", "uint8"]
    assert all(row["rpopt MB/s"] > 0 for row in counted)
    files = route_reading.reading_table(records)
    assert [row["file"] for row in files] == list(route_reading.FILES)


@pytest.mark.parametrize("loop", ["sorting", "pairwise"])
@pytest.mark.parametrize("ids", [[1, 1, 2], [0, 1, 8], [0, 1, -2]])
def test_the_loops_refuse_what_the_counter_refuses(loop: str, ids: list[int]) -> None:
    routes = np.array([[[0, 1, 2]], [ids], [[-1, -1, -1]]], dtype=np.int32)
    with pytest.raises(ValueError, match="bad ids in layer 0"):
        route_reading.LOOPS[loop](routes, 8)
    routes[1] = [3, 1, 2]
    assert route_reading.LOOPS[loop](routes, 8).tolist() == [[1, 2, 2, 1, 0, 0, 0, 0]]
