"""Tables of records."""

import pytest

from rpopt.cli.output import print_rows, print_sections, table, text


def test_numbers_are_right_aligned_and_text_left() -> None:
    lines = [["name", "J"], ["a", "10.5"], ["long", "-"]]
    assert table(lines) == "name     J\na     10.5\nlong     -"


@pytest.mark.parametrize(
    ("value", "cell"),
    [(None, "-"), (True, "yes"), (False, "no"), (1.5, "1.5000"), (3, "3"), ("x", "x")],
)
def test_cells(value: object, cell: str) -> None:
    assert text(value) == cell


def test_nothing_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], as_json=False)
    assert capsys.readouterr().out == ""
    print_rows([], as_json=True)
    assert capsys.readouterr().out == "[]\n"


def test_sections_have_titles(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections({"a": [{"x": 1}], "b": [{"y": None}]}, as_json=False)
    assert capsys.readouterr().out == "# a\nx\n1\n\n# b\ny\n-\n\n"
