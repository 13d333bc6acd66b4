from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from rpopt.errors import FileFormatError
from rpopt.io.config import read_config


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    seeds: tuple[int, ...]
    limit_s: float
    methods: tuple[Method, ...]
    cap: int | None = None
    strict: bool = False
    order: Literal["up", "down"] = "up"


GOOD = """
seeds = [0, 1]
limit_s = 5
strict = true
[[methods]]
name = "lpt"
[[methods]]
name = "anneal"
params = { replicas = 64 }
"""


def read(tmp_path: Path, text: str) -> Study:
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    return read_config(path, Study)


def test_tables_become_dataclasses(tmp_path: Path) -> None:
    assert read(tmp_path, GOOD) == Study(
        seeds=(0, 1),
        limit_s=5.0,
        strict=True,
        methods=(Method(name="lpt"), Method(name="anneal", params={"replicas": 64})),
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("limit_s = 5", "limit_s = 5\nlimit = 5", "limit is not a key; the keys here"),
        ("limit_s = 5", "", "limit_s is missing; add it, as a number"),
        ("limit_s = 5", "limit_s = '5'", "limit_s = '5' must be a number"),
        ("strict = true", "strict = 1", "strict = 1 must be true or false"),
        ("strict = true", "cap = true", "cap = True must be a whole number"),
        ("seeds = [0, 1]", "seeds = [0, 1.5]", r"seeds\[1\] = 1.5 must be a whole"),
        ("seeds = [0, 1]", "seeds = 3", "an array, each entry a whole number"),
        ('name = "lpt"', "", r"methods\[0\].name is missing; add it, as a string"),
        ('name = "lpt"', "nom = 'lpt'", r"methods\[0\].nom is not a key"),
        ("limit_s = 5", "limit_s = 5\norder = 'left'", "order = 'left' must be one of"),
        ("seeds = [0, 1]", "seeds = [0,", "cannot be read as TOML"),
    ],
)
def test_a_mistake_is_named_with_file_and_key(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(FileFormatError, match=f"study.toml.*{message}"):
        read(tmp_path, GOOD.replace(old, new))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="absent.toml cannot be read"):
        read_config(tmp_path / "absent.toml", Study)
