"""Every drop-in takes what its stack gives it, in the stack's order."""

import inspect
from importlib import import_module
from typing import Any

import pytest

from tests.stacks.packages import SIGNATURES, parameters, source


def of_ours(path: str) -> list[tuple[str, Any]]:
    module, *names = path.split(".")
    found: Any = import_module(f"rpopt.stacks.{module}")
    for name in names:
        found = getattr(found, name)
    return [
        (p.name, "required" if p.default is p.empty else repr(p.default))
        for p in inspect.signature(found).parameters.values()
    ]


@pytest.mark.parametrize("path", SIGNATURES)
def test_a_drop_in_has_the_signature_of_its_stack(path: str) -> None:
    theirs, ours = parameters(SIGNATURES[path]), of_ours(path)
    assert ours[: len(theirs)] == theirs
    assert [name for name, default in ours[len(theirs) :] if default == "required"] in (
        [],
        ["settings"],
        ["max_token_len", "settings"],
    )


@pytest.mark.parametrize(
    ("path", "package", "file"),
    [
        ("areal.ffd_allocate", "areal", "utils/seqpack.py"),
        ("areal.allocate_balanced_mbs", "areal", "utils/data.py"),
        ("areal.allocate_balanced_mbs_synced", "areal", "utils/data.py"),
        ("verl.rearrange_micro_batches", "verl", "utils/seqlen_balancing.py"),
    ],
)
def test_the_installed_package_has_this_signature(
    path: str, package: str, file: str
) -> None:
    text = source(package, file)
    assert parameters(text, path.split(".")[-1]) == parameters(SIGNATURES[path])


def test_a_signature_is_read_with_its_defaults() -> None:
    text = "def g(a, b=1, *, c, d=None): ..."
    assert parameters(text, "g") == [
        ("a", "required"),
        ("b", "1"),
        ("c", "required"),
        ("d", "None"),
    ]


def test_verls_own_balancing_step_takes_the_same_arguments() -> None:
    text = source("verl", "trainer/ppo/ray_trainer.py")
    theirs = parameters(text, "_balance_batch")
    assert theirs[1:] == parameters(SIGNATURES["verl.balance_batch"])
