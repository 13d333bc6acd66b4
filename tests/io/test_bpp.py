"""Bin packing files: both forms, and what is refused with which words."""

from pathlib import Path

import pytest

from rpopt.errors import RpoptError
from rpopt.io.bpp import read_bin_packing

HEADER = "name\tn\tcapacity\tlb\tub\titems\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "tiny.bpp"
    path.write_text(text)
    return path


def test_the_plain_form_is_named_after_its_file(tmp_path: Path) -> None:
    (found,) = read_bin_packing(write(tmp_path, "3 10\n6 6\n4\n"))
    assert found.name == "tiny"
    assert found.instance.weight_I.tolist() == [6, 6, 4]
    assert found.instance.capacity == 10
    assert found.known_lower is None


def test_a_table_has_an_instance_per_line_and_known_bounds(tmp_path: Path) -> None:
    text = HEADER + "a\t2\t9\t1\t2\t5 5\nb\t1\t4\t1\t1\t4\n"
    first, second = read_bin_packing(write(tmp_path, text))
    assert (first.name, first.known_lower, first.known_upper) == ("a", 1, 2)
    assert second.instance.weight_I.tolist() == [4]


def test_sizes_above_32_bits_stay_exact(tmp_path: Path) -> None:
    size = 2**31 + 1
    (found,) = read_bin_packing(write(tmp_path, f"2 {2**33}\n{size}\n{size}\n"))
    assert found.instance.weight_I.tolist() == [size, size]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "n, capacity and n sizes are needed"),
        ("0 10", "n, capacity and n sizes are needed"),
        ("3 10 6 6", r"\(n = 3\)"),
        ("1 10 6 6", r"\(n = 1\)"),
        ("2 10 6 -6", "'-6' is not a whole number"),
        ("2 10 6 6.5", "'6.5' is not a whole number"),
        (f"1 10 {10**18}", "is not a whole number"),
        ("2 10 6 0", "weight_I"),
        ("2 0 6 6", "capacity"),
        ("2 10 6 11", "item 1 weighs 11; the capacity is 10"),
        (f"2 {2**49} 6 6", "is supported"),
        (HEADER + "a\t2\t9\t1\t2\n", "5 columns, not 6"),
        (HEADER + "a\t3\t9\t1\t2\t5 5\n", "a has 2 items, n = 3"),
        (HEADER + "a\t2\t9\t1\t2\t5 0\n", "weight_I"),
    ],
)
def test_what_is_no_instance_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(RpoptError, match=words):
        read_bin_packing(write(tmp_path, text))
