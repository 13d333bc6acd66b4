import numpy as np

from experiments.trainer_throughput import critical_path_s


def test_the_critical_path_waits_within_a_shard_only() -> None:
    cpu_DC = np.array([[1.0, 5.0], [4.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    assert critical_path_s(cpu_DC, ep=2) == 9.0
    assert critical_path_s(cpu_DC, ep=1) == 6.0
