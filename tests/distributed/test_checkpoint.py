"""Checkpoints in logical order load anywhere, or not at all."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rpopt.errors import (
    CheckpointError,
    CommunicationError,
    InstanceError,
    MismatchError,
    RpoptError,
)
from rpopt.online import checkpoint
from rpopt.online.checkpoint import Checkpoints
from rpopt.online.logical_state import load_state_dict, state_dict
from rpopt.plans import Placement
from tests.distributed.experts import Contents, E, Experts, L
from tests.distributed.ranks import die, results_of, run_ranks

pytestmark = pytest.mark.dist
CASES = ((1, 1), (2, 2), (4, 4), (4, 2), (2, 1))  # processes, EP size


def experts(ep_size: int, seed: int, *, steps: int = 0) -> Experts:
    """The experts of this rank under a random placement."""
    table = np.argsort(np.random.default_rng(seed).random((L, E)), axis=1)
    placement = Placement(slot_LE=table, num_ep_ranks=ep_size)
    found = Experts(ep_size, dist.get_rank() % ep_size, placement)
    for number in range(1, steps + 1):
        found.step(number)
    return found


def checkpoints(folder: Path, model: Experts, group: Any = None) -> Checkpoints:
    return Checkpoints(folder, model.registry, model, group=group)


def save_and_load_everywhere(root: Path) -> list[tuple[Any, Contents, Contents]]:
    """In groups of the first processes, as many as each case wants."""
    rank = dist.get_rank()
    groups = {size: dist.new_group(list(range(size))) for size in (1, 2, 4)}
    for seed, (size, ep) in enumerate(CASES):
        if rank < size:
            saved = experts(ep, seed, steps=2)
            where = root / f"{size}-{ep}"
            checkpoints(where, saved, groups[size]).save(2, {"rate": 0.5})
        dist.barrier()
    found = []
    for size, ep in CASES:
        for folder in sorted(root.iterdir()):
            if rank < size:
                loaded = experts(ep, 9, steps=ep)  # its own state has to go
                resumed = checkpoints(folder, loaded, groups[size]).load()
                assert (resumed.step, resumed.extra) == (2, {"rate": 0.5})
                loaded.optimizer.zero_grad()
                at_once = loaded.contents()
                loaded.step(3)
                found.append(((size, ep, folder.name), at_once, loaded.contents()))
            dist.barrier()
    return found


def test_what_was_saved_anywhere_loads_anywhere(tmp_path: Path) -> None:
    by_rank = results_of(save_and_load_everywhere, 4, tmp_path)
    alone = Experts(1, 0)
    alone.step(1)
    alone.step(2)
    alone.optimizer.zero_grad()
    at_once = alone.contents()
    alone.step(3)
    for size, ep in CASES:
        for folder in (f"{size}-{ep}" for size, ep in CASES):
            of_case = [
                answer
                for answers in by_rank
                for answer in answers
                if answer[0] == (size, ep, folder)
            ]
            assert len(of_case) == size
            assert {k: v for _, each, _ in of_case for k, v in each.items()} == at_once
            for _, _, later in of_case:
                assert later.items() <= alone.contents().items()


def test_state_travels_in_a_dictionary_too() -> None:
    old, new = Experts(1, 0), Experts(1, 0)
    old.step(1)
    new.registry.permute_local(0, list(range(E))[::-1])
    state = {name: value.clone() for name, value in state_dict(old.registry).items()}
    load_state_dict(new.registry, state)
    stored = state_dict(new.registry)
    assert stored.keys() == state.keys()
    assert all(torch.equal(stored[name], state[name]) for name in state)
    weight = next(name for name in state if name.endswith("weight/parameter"))
    with pytest.raises(MismatchError, match="is torch.float64"):
        load_state_dict(new.registry, state | {weight: state[weight].double()})
    del state[weight]
    with pytest.raises(MismatchError, match="lacks .*weight/parameter"):
        load_state_dict(new.registry, state)
    assert all(torch.equal(stored[name], state[name]) for name in state)


def data_file(folder: Path) -> Path:
    return max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)


def truncate(folder: Path) -> None:
    file = data_file(folder)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip(folder: Path) -> None:
    """Change the weights of one expert: 7.0 is a weight of expert 7 before training."""
    old, new = (np.full(4, value, "<f4").tobytes() for value in (7.0, 6.0))
    files = [file for file in folder.glob("*.distcp") if old in file.read_bytes()]
    assert len(files) == 1
    files[0].write_bytes(files[0].read_bytes().replace(old, new))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a data file is cut": truncate,
    "a number is another": flip,
    "a data file is gone": lambda folder: data_file(folder).unlink(),
    "the index is gone": lambda folder: (folder / ".metadata").unlink(),
    "the index is cut": lambda folder: (folder / ".metadata").write_bytes(b"\x80\x04"),
    "the header is gone": lambda folder: (folder / "rpopt.json").unlink(),
    "the header is cut": lambda folder: (folder / "rpopt.json").write_text("{"),
    "another schema": lambda folder: (folder / "rpopt.json").write_text("{}"),
    "everything is gone": shutil.rmtree,
}


def refused(kind: type[RpoptError], work: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        work()
    return str(caught.value)


def load_damaged(root: Path) -> dict[str, str]:
    model = experts(2, 0)
    store = checkpoints(root, model)
    good = store.save(0)
    messages = {}
    before = model.contents()
    for step, (what, damage) in enumerate(DAMAGES.items(), start=1):
        if dist.get_rank() == 0:
            shutil.copytree(good, store.folder(step))
            damage(store.folder(step))
        dist.barrier()
        messages[what] = refused(CheckpointError, partial(store.load, step))
        assert model.contents() == before
    assert store.load(0).step == 0
    return messages


def test_damage_is_one_clear_error_on_all_ranks(tmp_path: Path) -> None:
    first, second = results_of(load_damaged, 2, tmp_path)
    assert first == second
    assert first.keys() == DAMAGES.keys()
    assert "weight/parameter' has changed" in first["a number is another"]
    assert all(str(tmp_path) in message for message in first.values()), first


def refuse(root: Path) -> dict[str, str]:
    model = experts(2, 0, steps=1)
    store = checkpoints(root, model)
    found = {"none": refused(CheckpointError, store.load)}
    store.save(1)
    found["twice"] = refused(InstanceError, partial(store.save, 1))
    found["extra"] = refused(InstanceError, partial(store.save, 2, {"x": object()}))
    other = experts(2, 0, steps=1)
    other.more = torch.nn.Linear(1, 1)
    other_store = checkpoints(root, other)
    found["model"] = refused(MismatchError, partial(other_store.load, 1))
    del other.dense
    found["optimizer"] = refused(InstanceError, partial(other_store.save, 2))
    with torch.no_grad():
        model.dense.weight += dist.get_rank()
    found["replicas"] = refused(MismatchError, partial(store.save, 2))
    assert store.steps == [1]
    return found


def test_mistakes_are_the_same_error_on_all_ranks(tmp_path: Path) -> None:
    first, second = results_of(refuse, 2, tmp_path)
    assert first == second
    assert "no complete checkpoint" in first["none"]
    assert "already" in first["twice"]
    assert "must be JSON" in first["extra"]
    assert "dense/more" in first["model"]
    assert "neither registered" in first["optimizer"]
    assert "dense.weight" in first["replicas"]


def lose_a_rank(root: Path, rank: int, where: str) -> None:
    model = experts(2, 0, steps=1)
    store = checkpoints(root, model)
    store.save(1)
    model.step(2)
    if dist.get_rank() == rank:
        owner, name = {
            "writing": (checkpoint.FileSystemWriter, "write_data"),
            "renaming": (Path, "rename"),
        }[where]
        setattr(owner, name, lambda *_, **__: die())
    store.save(2)


def load_after_loss(root: Path) -> tuple[Contents, list[int]]:
    model = experts(1, 5)
    store = checkpoints(root, model)
    store.load()
    model.optimizer.zero_grad()
    found = model.contents()
    store.save(2)
    return found, store.steps


@pytest.mark.parametrize(("rank", "where"), [(1, "writing"), (0, "renaming")])
def test_a_rank_lost_in_saving_leaves_the_previous_checkpoint(
    rank: int, where: str, tmp_path: Path
) -> None:
    results = run_ranks(lose_a_rank, 2, tmp_path, rank, where, lost=(rank,))
    assert isinstance(results[1 - rank], CommunicationError), results
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == ["", ".partial"]
    ((contents, steps),) = results_of(load_after_loss, 1, tmp_path)
    expected = Experts(1, 0)
    expected.step(1)
    expected.optimizer.zero_grad()
    assert contents == expected.contents()
    assert steps == [1, 2]
