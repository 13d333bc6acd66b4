"""Records: digests, read-only arrays, pickling, and arrays of whole numbers."""

import copy
import hashlib
import pickle
import struct
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rpopt.errors import InstanceError
from rpopt.records import Record, canonical_json, int_array, plain, positive_int
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window
from tests.io.examples import COST, JSON_RECORDS, LAYOUT, NPZ_RECORDS, PLAN, WINDOW

RECORDS = (*NPZ_RECORDS, *JSON_RECORDS)
every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.SCHEMA)


@pytest.mark.parametrize(
    ("record", "digest"),
    [
        (
            Window(length_N=[5, 1]),
            "1609d44cdf3b31337a3da5a79617b720e300bab27d915ae00c868965c8cef5e9",
        ),
        (
            WINDOW,
            "e29651feab15a7943a571afe4b4f812d87bd4bd3fe534e59fc4599d5b049c93e",
        ),
        (
            Topology(dp=4, ep=2),
            "584c6c64e174de2c402f5c24cbe88f2751b6e4c8a18c442b5b12c2938803ca0c",
        ),
        (
            PackingRules(token_cap=8),
            "41470a04b443c546f0cb91ab965964e7f4a0cd32c5725a0a40c18fb157e951c4",
        ),
        (
            COST,
            "2416c635c959d0b1dbc6a93cfd937682b3b1514c92b78225a25082fd2f9b675c",
        ),
        (
            LAYOUT,
            "af4300c175c701f0f5c30e4504c15cfcae6af8aab233f2e75714b27ef87cb057",
        ),
    ],
    ids=lambda value: getattr(value, "SCHEMA", ""),
)
def test_digests_never_change(record: Record, digest: str) -> None:
    """Files hold digests; a change here needs a new schema version."""
    assert record.digest == digest


def test_the_digest_is_the_hash_of_schema_values_and_arrays() -> None:
    sha = hashlib.sha256(b'rpopt.layout-solution/1\n{"num_rows":2}\n')
    for name, values in (("rank_I", (0, 1, 0)), ("row_I", (0, 0, 1))):
        sha.update(f"{name} <i8 (3,)\n".encode() + struct.pack("<3q", *values))
    assert LAYOUT.digest == sha.hexdigest()


@every_record
def test_equal_content_is_equal(record: Record) -> None:
    again = replace(record)  # type: ignore[type-var]
    assert again == record
    assert hash(again) == hash(record)
    assert again is not record


def test_the_digest_ignores_how_arrays_are_given() -> None:
    lists = Window(length_N=[3, 2], demand_NLE=[[[3, 0]], [[1, 1]]], top_k=1)
    demand = np.array([[[3, 0]], [[1, 1]]], dtype=">i8", order="F")
    arrays = Window(length_N=np.array([3.0, 2.0]), demand_NLE=demand, top_k=np.int8(1))
    assert lists == arrays
    assert lists.demand_NLE is not None
    assert lists.demand_NLE.dtype == np.int32


def test_every_field_changes_the_digest() -> None:
    changes: dict[str, Any] = {
        "length_N": [4, 2, 4],
        "prompt_group_N": None,
        "bundle_N": [-1, -1, 7],
        "layer_ids_L": [3, 6],
        "origin": "elsewhere",
    }
    others = [replace(WINDOW, **{name: value}) for name, value in changes.items()]
    assert len({WINDOW.digest, *(other.digest for other in others)}) == 6


def test_records_of_other_types_differ() -> None:
    assert Window(length_N=[1]) != PackingRules(token_cap=1)
    assert Window(length_N=[1]) != 1


@every_record
def test_pickle_and_copy_keep_everything(record: Record) -> None:
    for again in (
        pickle.loads(pickle.dumps(record)),
        copy.copy(record),
        copy.deepcopy(record),
    ):
        assert again == record
        assert not any(a.flags.writeable for a in again.arrays().values())


@every_record
def test_fields_and_arrays_are_read_only(record: Record) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(record, fields(record)[0].name, None)  # type: ignore[arg-type]
    with pytest.raises((AttributeError, TypeError)):
        record.extra = 1  # type: ignore[attr-defined]
    for array in record.arrays().values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_arrays_of_nested_records_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        PLAN.layout.row_I[0] = 5


def test_the_callers_array_stays_the_callers() -> None:
    length_N = np.array([3, 2])
    window = Window(length_N=length_N)
    length_N[0] = 9
    assert window.length_N.tolist() == [3, 2]


def test_a_read_only_view_of_a_writable_array_is_copied() -> None:
    length_N = np.array([3, 2])
    view = length_N.view()
    view.setflags(write=False)
    window = Window(length_N=view)
    length_N[0] = 9
    assert window.length_N.tolist() == [3, 2]


def test_a_read_only_array_is_not_copied() -> None:
    demand = np.array([[[2, 1]]], dtype=np.int32)
    demand.setflags(write=False)
    window = Window(length_N=[3], demand_NLE=demand, top_k=1)
    assert window.demand_NLE is demand


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1.5], ("a holds 1.5", "whole numbers")),
        ([float("nan")], ("a holds nan",)),
        ([float("inf")], ("a holds inf",)),
        ([2.0**60], ("a holds 1.15", "whole numbers")),
        ([True], ("bool", "whole numbers")),
        (["1"], ("whole numbers",)),
        ([None], ("object", "whole numbers")),
        ([2**63], ("a[0] = 9223372036854775808", "correct that entry")),
        ([1, 2**80], ("a[1] = 1208925819614629174706176",)),
        ([3, -1], ("a[1] = -1", "outside [0,")),
        ([[1], [1, 2]], ("a is ragged",)),
        ([[1]], ("2 axes (shape (1, 1)); it needs 1",)),
        (7, ("0 axes",)),
    ],
)
def test_what_is_no_array_of_whole_numbers(value: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(InstanceError) as caught:
        int_array(value, name="a", ndim=1, minimum=0)
    assert all(word in str(caught.value) for word in words)


def test_values_beyond_a_small_type_are_never_wrapped() -> None:
    with pytest.raises(InstanceError, match=r"a\[0, 1\] = 2147483648"):
        int_array([[1, 2**31]], name="a", ndim=2, dtype=np.int32)


@pytest.mark.parametrize("value", [0, -3, 1.0, True, None, "2", float("nan")])
def test_what_is_no_positive_whole_number(value: Any) -> None:
    with pytest.raises(InstanceError, match="size = "):
        positive_int(value, name="size")


def test_numpy_integers_become_plain_ones() -> None:
    assert type(positive_int(np.int32(3), name="size")) is int


def test_json_text_is_canonical_and_never_nan() -> None:
    assert canonical_json({"b": (1, Fraction(1, 3)), "a": np.int8(2)}) == (
        '{"a":2,"b":[1,"1/3"]}'
    )
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})


def test_the_plain_view_holds_json_values_only() -> None:
    def kinds(value: Any) -> set[type]:
        if isinstance(value, dict):
            return set().union(*map(kinds, value.values()))
        if isinstance(value, list):
            return set().union(*map(kinds, value))
        return {type(value)}

    assert kinds(plain(PLAN)) <= {int, float, str, bool, type(None)}
