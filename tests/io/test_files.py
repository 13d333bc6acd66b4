"""Files of records: round trips, every kind of damage, atomic writes, memory."""

import io
import json
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpopt.errors import FileFormatError, InstanceError
from rpopt.io import read, read_json, read_npz, write_json, write_npz
from rpopt.io.files import JSON_SCHEMAS, NPZ_SCHEMAS
from rpopt.io.jsonfile import parse_json, pretty
from rpopt.plans import Plan
from rpopt.records import Record, plain, record_from_plain
from rpopt.window import Window
from tests.io.examples import CERTIFICATE, JSON_RECORDS, NPZ_RECORDS, PLAN, WINDOW


def name_of(record: Record) -> str:
    return type(record).__name__


def refuse(path: Path, *words: str) -> None:
    """Reading fails with one error that names the file and says these words."""
    with pytest.raises(FileFormatError) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    for word in words:
        assert word in message


@pytest.fixture
def window_file(tmp_path: Path) -> Path:
    path = tmp_path / "window.npz"
    write_npz(path, WINDOW)
    return path


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    write_json(path, PLAN)
    return path


@pytest.mark.parametrize("record", NPZ_RECORDS, ids=name_of)
def test_npz_round_trip(tmp_path: Path, record: Record) -> None:
    write_npz(tmp_path / "a", record, origin="here")
    assert read_npz(tmp_path / "a") == read(tmp_path / "a") == record


@pytest.mark.parametrize("record", JSON_RECORDS, ids=name_of)
def test_json_round_trip(tmp_path: Path, record: Record) -> None:
    write_json(tmp_path / "a", record)
    assert read_json(tmp_path / "a") == read(tmp_path / "a") == record


@pytest.mark.parametrize("record", [*NPZ_RECORDS, *JSON_RECORDS], ids=name_of)
def test_a_record_is_rebuilt_from_its_plain_view(record: Record) -> None:
    rebuilt = record_from_plain(type(record), json.loads(json.dumps(plain(record))))
    assert rebuilt == record
    for field in fields(record):
        kind = type(getattr(record, field.name))
        if field.name not in ("witness", "evidence"):
            assert type(getattr(rebuilt, field.name)) is kind


def test_every_registered_schema_has_an_example() -> None:
    for schemas, examples in (
        (NPZ_SCHEMAS, NPZ_RECORDS),
        (JSON_SCHEMAS, JSON_RECORDS),
    ):
        assert {schema: kind.SCHEMA for schema, kind in schemas.items()} == {
            record.SCHEMA: record.SCHEMA for record in examples
        }


def test_numpy_reads_the_arrays_and_the_header(window_file: Path) -> None:
    with np.load(window_file, allow_pickle=False) as arrays:
        assert np.array_equal(arrays["demand_NLE"], WINDOW.demand_NLE)
        header = json.loads(arrays["header"].item())
    assert header["schema"] == "rpopt.window/1"
    assert header["digest"] == WINDOW.digest
    assert header["origin"] == WINDOW.origin


def test_equal_records_give_equal_bytes(tmp_path: Path, window_file: Path) -> None:
    write_npz(tmp_path / "again.npz", read_npz(window_file))
    assert (tmp_path / "again.npz").read_bytes() == window_file.read_bytes()


def test_a_type_without_that_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstanceError, match=r"Plan does not go into an \.npz"):
        write_npz(tmp_path / "a", PLAN)
    with pytest.raises(InstanceError, match="Window does not go into a JSON"):
        write_json(tmp_path / "a", WINDOW)


def test_another_type_than_needed_is_refused(plan_file: Path) -> None:
    assert read(plan_file, Plan).j_ticks == PLAN.j_ticks
    with pytest.raises(FileFormatError, match="holds a Plan; a Window is needed"):
        read(plan_file, Window)


every_byte = pytest.mark.parametrize(
    "step", [17, pytest.param(1, marks=pytest.mark.slow)]
)


def damaged(data: bytes, step: int) -> Iterator[bytes]:
    """The data with one byte changed, for every `step`-th byte and several changes."""
    for at in range(0, len(data), step):
        for change in (0x01, 0x80, 0x20):
            yield data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]


def accepts_only_the_original(path: Path, original: Record, data: bytes) -> None:
    path.write_bytes(data)
    found = outcome(path)
    assert found == original or str(found).startswith(f"{path}: ")


def outcome(path: Path) -> Record | FileFormatError:
    try:
        return read(path)
    except FileFormatError as error:
        return error


@every_byte
@pytest.mark.parametrize("record", [WINDOW, NPZ_RECORDS[2]], ids=name_of)
def test_no_changed_byte_of_an_npz_file_goes_unnoticed(
    tmp_path: Path, record: Record, step: int
) -> None:
    path = tmp_path / "a.npz"
    write_npz(path, record)
    for data in damaged(path.read_bytes(), step):
        accepts_only_the_original(path, record, data)


@every_byte
def test_no_changed_byte_of_stored_arrays_goes_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setattr("rpopt.io.npz.COMPRESS_BELOW_BYTES", 0)
    path = tmp_path / "a.npz"
    write_npz(path, WINDOW)
    for data in damaged(path.read_bytes(), step):
        accepts_only_the_original(path, WINDOW, data)


@every_byte
@pytest.mark.parametrize("record", [PLAN, CERTIFICATE], ids=name_of)
def test_no_changed_byte_of_a_json_file_goes_unnoticed(
    tmp_path: Path, record: Record, step: int
) -> None:
    path = tmp_path / "a.json"
    write_json(path, record)
    for data in damaged(path.read_bytes(), step):
        accepts_only_the_original(path, record, data)


def test_truncated_files_are_refused(window_file: Path, plan_file: Path) -> None:
    for path in (window_file, plan_file):
        whole = path.read_bytes()
        for size in range(0, len(whole) - 1, 41):
            path.write_bytes(whole[:size])
            refuse(path)


def test_missing_and_foreign_files_are_refused(tmp_path: Path) -> None:
    refuse(tmp_path / "nothing.npz", "no such file", "check the name")
    refuse(tmp_path, "cannot be read")
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    refuse(text, "of another format", "restore it or write it again")
    np.savez(tmp_path / "plain.npz", length_N=np.arange(3))
    refuse(tmp_path / "plain.npz", "no header", "build a window from it")
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{}]), allow_pickle=True)
    refuse(pickled)


def edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    whole = json.loads(path.read_text())
    edit(whole)
    path.write_text(json.dumps(whole))
    return path


def test_schemas_of_other_versions_are_refused(plan_file: Path) -> None:
    edit_json(plan_file, lambda whole: whole.update(schema="rpopt.plan/2"))
    refuse(plan_file, "'rpopt.plan/2'", "reads 'rpopt.plan/1'", "install the version")
    edit_json(plan_file, lambda whole: whole.update(schema="other/1"))
    refuse(plan_file, "'other/1' is unknown", "rpopt.plan/1")
    edit_json(plan_file, lambda whole: whole.update(schema=["rpopt.plan/1"]))
    refuse(plan_file, "unknown")


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda w: w.pop("digest"), ("needs exactly the keys", "digest")),
        (lambda w: w.update(extra=1), ("needs exactly the keys", "extra")),
        (lambda w: w["content"].pop("seed"), ("needs exactly the fields", "seed")),
        (lambda w: w["content"].update(speed=1), ("needs exactly", "speed")),
        (lambda w: w["content"].update(seed=1.5), ("seed", "1.5")),
        (lambda w: w["content"].update(seed=True), ("seed", "True")),
        (lambda w: w["content"].update(layout=None), ("None", "Layout")),
        (lambda w: w["content"]["layout"].update(row_I=[0, 0]), ("row_I has 2",)),
        (lambda w: w["content"]["layout"].update(row_I=[0, [0], 1]), ("ragged",)),
        (lambda w: w["content"]["layout"].update(row_I=[0, 0.5, 1]), ("float64",)),
        (lambda w: w["content"]["layout"].update(row_I="001"), ("row_I", "object")),
        (lambda w: w["content"]["cost"].update(omega="1/0"), ("omega", "1/0")),
        (lambda w: w["content"]["cost"].update(omega="1e9999999"), ("omega",)),
        (lambda w: w["content"]["topology"].update(coupling="x"), ("coupling",)),
        (lambda w: w["content"]["rules"].update(oversize=[]), ("oversize",)),
        (lambda w: w["content"].update(versions=[["a"]]), ("versions[0]",)),
        (lambda w: w["content"]["rows"].update(upper=1), ("exceeds the witness",)),
        (lambda w: w["content"].update(seed=4), ("does not match its digest",)),
        (lambda w: w.update(digest=7), ("does not match its digest '7'",)),
    ],
)
def test_edited_plans_are_refused(
    plan_file: Path, edit: Callable[[dict[str, Any]], None], words: tuple[str, ...]
) -> None:
    refuse(edit_json(plan_file, edit), *words)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ('{"a": NaN}', "NaN is not a JSON number"),
        ("[" * 100_000, "damaged"),
        ('{"a": ' + "9" * 5000 + "}", "damaged"),
        ("[]", "found list"),
        ('"\\ud800"', "found str"),
        ("", "damaged"),
    ],
)
def test_odd_json_is_refused(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "a").write_text(text)
    refuse(tmp_path / "a", word)


def rewrite(path: Path, **changes: Any) -> Path:
    """Save the arrays of a file again with NumPy, some of them changed or removed."""
    with np.load(path) as arrays:
        kept = {**arrays, **changes}
    np.savez(path, **{k: v for k, v in kept.items() if v is not None})
    return path


def header_with(path: Path, **changes: Any) -> np.ndarray:
    with np.load(path) as arrays:
        return np.array(json.dumps(json.loads(arrays["header"].item()) | changes))


def test_a_rewritten_file_with_the_same_content_is_accepted(window_file: Path) -> None:
    assert read(rewrite(window_file)) == WINDOW


def test_changed_arrays_are_refused(window_file: Path) -> None:
    whole = window_file.read_bytes()
    longer = WINDOW.length_N + 1
    for changes, words in (
        ({"length_N": longer}, ("does not match its digest",)),
        ({"length_N": WINDOW.length_N.astype(np.int32)}, ("int32", "int64")),
        ({"length_N": longer.astype(float)}, ("<f8", "save it as integers")),
        ({"length_N": longer.astype(object)}, ("pickled objects", "never loaded")),
        ({"length_N": longer[None]}, ("2 axes",)),
        ({"demand_NLE": np.asfortranarray(WINDOW.demand_NLE)}, ("Fortran order",)),
        ({"length_N": None}, ("needs exactly the fields",)),
        ({"top_k": np.array(2)}, ("top_k is both",)),
        ({"other": longer}, ("needs exactly the fields", "other")),
        ({"header": np.array("{")}, ("damaged",)),
        ({"header": np.arange(3)}, ("not one text",)),
    ):
        window_file.write_bytes(whole)
        refuse(rewrite(window_file, **changes), *words)


def test_changed_headers_are_refused(window_file: Path) -> None:
    whole = window_file.read_bytes()
    for changes, words in (
        ({"origin": "elsewhere"}, ("does not match its digest",)),
        ({"origin": 1}, ("origin",)),
        ({"values": []}, ("not a JSON object",)),
        ({"values": {"origin": "x", "top_k": 2}}, ("origin occurs twice",)),
        ({"schema": "rpopt.window/9"}, ("'rpopt.window/9'", "install")),
        ({"more": 1}, ("needs exactly the keys", "more")),
    ):
        window_file.write_bytes(whole)
        header = header_with(window_file, **changes)
        refuse(rewrite(window_file, header=header), *words)


def test_strange_zip_files_are_refused(tmp_path: Path, window_file: Path) -> None:
    with zipfile.ZipFile(window_file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    start, size = members["length_N.npy"][:8], len(members["length_N.npy"])
    path = tmp_path / "b.npz"
    for name, data, words in (
        ("length_N.npy", b"not an array", ("not a NumPy array",)),
        ("length_N.npy", start, ("damaged",)),
        ("length_N.npy", start + b"\xff\xff{", ("not understood",)),
        ("length_N.npy", members["length_N.npy"][:-8], ("needs 24 bytes but has 16",)),
        ("length_N.npy", members["length_N.npy"] + b"\0", ("bytes but has 25",)),
        ("notes.txt", b"", ("notes.txt", "not arrays")),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for member, content in (members | {name: data}).items():
                archive.writestr(member, content)
        refuse(path, *words)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    refuse(path, "zip method 14", "numpy.savez")
    assert size > len(start)


def test_a_failed_write_leaves_the_old_file(
    window_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(failure: BaseException, file: io.BytesIO, *_: object) -> None:
        file.write(b"half")
        raise failure

    for failure, raised in (
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ValueError("x"), ValueError),
        (OSError(28, "No space left on device"), FileFormatError),
    ):
        writer = partial(half, failure)
        monkeypatch.setattr("rpopt.io.files.write_npz_members", writer)
        with pytest.raises(raised):
            write_npz(window_file, NPZ_RECORDS[1])
        assert [path.name for path in window_file.parent.iterdir()] == ["window.npz"]
        assert read(window_file) == WINDOW


def test_a_write_into_nowhere_says_so(tmp_path: Path, window_file: Path) -> None:
    for path in (tmp_path / "no" / "a.npz", window_file / "a.npz", tmp_path):
        with pytest.raises(FileFormatError, match="cannot be written"):
            write_npz(path, WINDOW)
    assert [path.name for path in tmp_path.iterdir()] == ["window.npz"]


def test_large_windows_are_read_and_written_in_place(tmp_path: Path) -> None:
    """64 MiB of demand: neither way holds a second copy."""
    demand_NLE = np.zeros((2**10, 2**6, 2**8), dtype=np.int32)
    demand_NLE[:, :, 0] = 5
    demand_NLE.setflags(write=False)
    window = Window(length_N=np.full(2**10, 5), demand_NLE=demand_NLE, top_k=1)
    path = tmp_path / "large.npz"
    tracemalloc.start()
    try:
        write_npz(path, window)
        assert tracemalloc.get_traced_memory()[1] < 0.5 * demand_NLE.nbytes
        tracemalloc.reset_peak()
        found = read(path, Window)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * demand_NLE.nbytes
    finally:
        tracemalloc.stop()
    assert found == window
    assert found.demand_NLE is not None
    assert not found.demand_NLE.flags.writeable


def test_pretty_json_keeps_the_value() -> None:
    value = {"a": [], "b": {}, "c": [1, [2, 3], {"d": None}], "e": [1, 2, "ü"]}
    text = pretty(value)
    assert parse_json(text) == value
    assert "[1, 2, " in text
