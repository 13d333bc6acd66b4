"""Public instances with proven optima, and the reference windows."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rpopt.packing import PackingInstance, certify_rows, recheck
from tests.packing.examples import make

# File of each class, and how many instances stand for one that is tried by default.
CLASSES = {
    "bpp-esicup-cc0/falkenauer_u": 12,
    "bpp-esicup-cc0/falkenauer_t": 20,
    "bpp-esicup-cc0/hard28": 7,
    "bpp-esicup-cc0/schwerin1": 10,
    "bpp-esicup-cc0/waescher": 3,
    "bpp-esicup-cc0/scholl1": 60,
    "bpp-esicup-cc0/scholl2": 40,
    "bpp-perfect-own/perfect_packing": 50,
}


def known(path: Path) -> Iterator[tuple[str, PackingInstance, int]]:
    """Name, instance and optimum of each line of a class."""
    with path.open() as file:
        for line in csv.DictReader(file, delimiter="\t"):
            assert line["lb"] == line["ub"]
            weights = [int(w) for w in line["items"].split()]
            yield line["name"], make(weights, int(line["capacity"])), int(line["ub"])


def assert_true(path: Path, step: int) -> None:
    for name, instance, optimum in list(known(path))[::step]:
        certificate = certify_rows(instance)
        assert certificate.lower <= optimum <= certificate.upper, name
        assert recheck(certificate, instance) == certificate.lower, name


@pytest.mark.parametrize(("name", "step"), CLASSES.items())
def test_some_of_each_class(data_dir: Path, name: str, step: int) -> None:
    assert_true(data_dir / f"{name}.tsv", step)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLASSES)
def test_all_of_each_class(data_dir: Path, name: str) -> None:
    assert_true(data_dir / f"{name}.tsv", 1)


def test_the_reference_windows_are_closed(data_dir: Path) -> None:
    folder = data_dir / "windows-reference"
    rows = {"w1": 4, "w2": 2, "w3": 2, "w4": 2, "w5": 4, "w6": 4}
    for window in json.loads((folder / "windows.json").read_text()):
        with np.load(folder / window["file"]) as arrays:
            instance = make(
                arrays["length_N"].tolist(),
                window["token_cap"],
                num_ranks=window["dp"],
            )
        certificate = certify_rows(instance)
        assert certificate.closed
        assert certificate.upper == rows[window["name"]]
        assert recheck(certificate, instance) == certificate.upper
