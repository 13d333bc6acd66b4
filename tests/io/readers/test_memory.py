"""Readers hold one sample at a time: more samples of one size take no more memory."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import route_reading

LAYERS, TOP_K, EXPERTS, TOKENS = 24, 4, 32, 8192
FEW, MANY = 4, 16
CASE = {"case": [TOKENS, LAYERS, TOP_K, EXPERTS], "dtype": "int32"}

READ = """
import json, sys, threading, time
from rpopt.io.model_config import RoutedModel
from rpopt.io.readers import read_window
from rpopt.io.readers.expert_load import read_expert_load

def anonymous_bytes():  # pages of a mapped file are the kernel's to drop
    with open("/proc/self/status") as status:
        lines = [line.split() for line in status if line.startswith("RssAnon")]
    return int(lines[0][1]) * 1024

def peak_of(read):
    found, done = [anonymous_bytes()], threading.Event()
    def watch():
        while not done.wait(0.001):
            found.append(anonymous_bytes())
    thread = threading.Thread(target=watch)
    thread.start()
    read()
    done.set()
    thread.join()
    return max(found)

layers, top_k, experts, files = json.loads(sys.argv[1])
model = RoutedModel(num_layers=layers, moe_layers=tuple(range(layers)),
                    num_experts=experts, top_k=top_k)
sys.setswitchinterval(0.0005)
peaks = {}
for source, paths in files.items():
    def read(path):
        if source == "recorder":
            return lambda: read_expert_load([path], model)
        return lambda: read_window(source.partition(" ")[0], [path], model)
    read(paths[0])()  # compiles and fills caches
    peaks[source] = [peak_of(read(path)) for path in paths]
print(json.dumps(peaks))
"""


def save(source: str, path: Path, samples: list[np.ndarray]) -> None:
    if source == "slime of miles":
        rows = [
            {"tokens": [0] * len(r), "rollout_routed_experts": r[:-1]} for r in samples
        ]
        torch.save({"rollout_id": 0, "samples": rows}, path)
    elif source == "recorder":
        ids = np.full((LAYERS, TOKENS, 8), -1, dtype=np.int32)
        records = []
        for r in samples:
            ids[:, :, :TOP_K] = r.swapaxes(0, 1)
            records.append({"topk_ids_of_layer": torch.tensor(ids)})
        last = torch.arange(EXPERTS).repeat(LAYERS, 1)
        torch.save({"records": records, "last_physical_to_logical_map": last}, path)
    else:
        route_reading.FILES[source](path, samples)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Large files that go at once, where pytest would keep them for a while."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is read from Linux's /proc"
)
def test_memory_is_that_of_one_sample(folder: Path) -> None:
    pytest.importorskip("msgpack", reason="msgpack is not installed")
    samples = route_reading.draw({**CASE, "tokens": MANY * TOKENS})
    files = {}
    for source in (*route_reading.FILES, "recorder", "slime of miles"):
        paths = [folder / f"{source}_{i}.pt" for i in range(2)]
        for path, chosen in zip(paths, (samples[:FEW], samples), strict=True):
            save(source, path, chosen)
        files[source] = list(map(str, paths))
    answer = subprocess.run(
        [sys.executable, "-c", READ, json.dumps([LAYERS, TOP_K, EXPERTS, files])],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    more_bytes = sum(r.nbytes for r in samples[FEW:])
    growth = {
        source: (many - few) / more_bytes
        for source, (few, many) in json.loads(answer.stdout).items()
    }
    # Arrays pickled whole, which is how miles writes them, show that growth is seen.
    assert growth.pop("slime of miles") > 0.8
    assert max(growth.values()) < 0.25, growth
