from pathlib import Path

import pytest

from experiments import tables
from rpopt.errors import FileFormatError, InstanceError

ROOT = Path(__file__).resolve().parents[2]
RECORDS = [
    {"method": "lpt", "params": {"k": 1}, "gap": gap, "runtime_s": 1.0}
    for gap in (0.1, 0.2, 0.4, None)
] + [{"method": "anneal", "params": {"k": 2}, "gap": None, "runtime_s": 2.0}]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows: list[tables.Row] = [
        {"method": "a|b", "gap": 1 / 3, "runs": 10},
        {"method": "c", "gap": None, "runs": 9},
    ]
    tables.write_csv(tmp_path / "gaps.csv", rows)
    return tmp_path


def test_shifted_geometric_mean() -> None:
    assert tables.shifted_geometric_mean([0.0, 30.0]) == pytest.approx(10.0)
    with pytest.raises(InstanceError, match="above -10; the smallest is -11"):
        tables.shifted_geometric_mean([-11.0])


def test_groups_are_summarised_and_missing_values_counted() -> None:
    lpt, anneal = tables.aggregate(
        RECORDS, by=["method", "params.k"], values=["gap", "runtime_s"]
    )
    assert (lpt["method"], lpt["params.k"]) == ("lpt", 1)
    assert (lpt["runs"], lpt["gap_count"], lpt["runtime_s_count"]) == (4, 3, 4)
    assert (lpt["gap_q1"], lpt["gap_median"], lpt["gap_q3"]) == pytest.approx(
        (0.15, 0.2, 0.3)
    )
    assert lpt["runtime_s_sgm10"] == pytest.approx(1.0)
    assert (anneal["gap_count"], anneal["gap_median"]) == (0, None)
    assert anneal["runtime_s_q1"] == anneal["runtime_s_median"] == 2.0


def test_csv_and_markdown(results: Path) -> None:
    assert (results / "gaps.csv").read_text() == (
        "method,gap,runs\na|b,0.333333,10\nc,,9\n"
    )
    assert tables.markdown(results / "gaps.csv").splitlines() == [
        "| method | gap | runs |",
        "| --- | ---: | ---: |",
        r"| a\|b | 0.333333 | 10 |",
        "| c |  | 9 |",
    ]


def test_no_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match="no rows"):
        tables.write_csv(tmp_path / "empty.csv", [])


def test_a_block_is_filled_once_and_then_up_to_date(results: Path) -> None:
    document = results / "page.md"
    text = (
        "no `<!-- table:x -->`\n<!-- table:gaps -->\nold\n<!-- /table:gaps -->\nafter\n"
    )
    document.write_text(text)
    assert not tables.update(document, results, check=True)
    assert document.read_text() == text
    assert not tables.update(document, results, check=False)
    assert tables.update(document, results, check=True)
    filled = document.read_text()
    assert filled.startswith("no `<!-- table:x -->`\n<!-- table:gaps -->\n\n| method |")
    assert filled.endswith("|\n\n<!-- /table:gaps -->\nafter\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table:gaps -->\n", "page.md: <!-- table:gaps --> has no partner"),
        ("<!-- /table:gaps -->\n", "page.md: <!-- /table:gaps --> has no partner"),
        ("<!-- table:no -->\n<!-- /table:no -->\n", "page.md: there is no .*no.csv"),
    ],
)
def test_a_broken_block_is_named(results: Path, text: str, message: str) -> None:
    document = results / "page.md"
    document.write_text(text)
    with pytest.raises(FileFormatError, match=message):
        tables.update(document, results, check=False)


def test_the_command_checks_and_fills(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "RESULTS", results)
    document = results / "page.md"
    document.write_text("<!-- table:gaps -->\n<!-- /table:gaps -->\n")
    assert tables.main(["--check", str(document)]) == 1
    assert "differs from its CSV" in capsys.readouterr().out
    assert tables.main([str(document)]) == 0
    assert tables.main(["--check", str(document)]) == 0
    assert tables.main([str(results / "absent.md")]) == 2


def test_committed_documents_agree_with_their_csv_files() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    stale = [
        str(document.relative_to(ROOT))
        for document in documents
        if not tables.update(document, tables.RESULTS, check=True)
    ]
    assert stale == []
