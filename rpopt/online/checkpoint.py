"""Checkpoints in logical order, through `torch.distributed.checkpoint`.

Every tensor of an expert is stored under its layer and logical id, so a checkpoint that
was saved under one placement and EP size loads under any other. Gradients are not
stored: save at the optimizer-step boundary.

A checkpoint is written beside its final place and renamed when all of it is there, so
whatever is lost on the way, the previous one loads. It has a checksum of every tensor.
"""

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from rpopt.errors import CheckpointError, InstanceError, MismatchError, RpoptError
from rpopt.online.logical_state import (
    Place,
    Tensors,
    buffers,
    places_of,
    require_complete,
    values_of,
    write,
)
from rpopt.online.messages import (
    Deadline,
    Group,
    clear_error,
    gather_json,
    group_rank,
)
from rpopt.online.registration import ExpertRegistry

_SCHEMA = "rpopt.checkpoint/1"
_HEADER = "rpopt.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What was loaded: the step, and what `save` was given beside the tensors."""

    step: int
    extra: dict[str, Any]


class Checkpoints:
    """The checkpoints of a training run, one folder per step.

    Parameters
    ----------
    root
        The folder they are in, on a file system that all ranks share.
    registry
        The experts of this rank and the optimizers.
    model
        All that is not registered is stored too, once: parameters and buffers that all
        ranks hold alike.
    group
        All ranks of the model; None is the default group. Every method is called by all
        of them, and no wait is longer than the group's own time limit.
    """

    def __init__(
        self,
        root: str | Path,
        registry: ExpertRegistry,
        model: torch.nn.Module,
        *,
        group: Group,
    ) -> None:
        self._root, self._registry, self._model = Path(root), registry, model
        self._group, self._is_first = group, group_rank(group) == 0

    @property
    def steps(self) -> list[int]:
        """The steps of all complete checkpoints, in order."""
        names = (path.name for path in self._root.glob("step-*"))
        matches = (re.fullmatch(r"step-(\d+)", name) for name in names)
        return sorted(int(match[1]) for match in matches if match)

    def folder(self, step: int) -> Path:
        """Return where the checkpoint of a step is."""
        return self._root / f"step-{step:08d}"

    def save(self, step: int, extra: Mapping[str, Any] | None = None) -> Path:
        """Save everything at an optimizer-step boundary; return the folder.

        Parameters
        ----------
        step
            Its number.
        extra
            Whatever else a run needs to resume, as JSON; the first rank's counts.

        Raises
        ------
        InstanceError
            When there is a checkpoint of this step, or `extra` is no JSON.
        MismatchError
            When tensors that all ranks hold differ between them.
        CheckpointError
            When a rank could not write.
        CommunicationError
            When a rank is lost or late. In all cases earlier checkpoints stay.
        """
        folder = self.folder(step)
        partial = folder.with_suffix(".partial")
        failed = f"the checkpoint in {folder} could not be written"
        values: Tensors = {}

        def collect() -> dict[str, int]:
            self._make_room(folder, partial, extra)
            values.update(values_of(places_of(self._registry, self._model)))
            return {name: _checksum(value) for name, value in values.items()}

        header = {
            "schema": _SCHEMA,
            "layers": self._registry.n_layers,
            "experts": self._registry.n_experts,
            "extra": dict(extra or {}),
            "crc32": _joined(self._together(failed, collect)),
        }
        with _one_error(failed):
            writer = FileSystemWriter(partial)
            dcp_save(values, storage_writer=writer, process_group=self._group)
        self._together(failed, lambda: self._publish(folder, partial, header))
        return folder

    def load(self, step: int | None = None) -> Resumed:
        """Load a step, by default the last; nothing changes unless all of it is right.

        Raises
        ------
        CheckpointError
            On all ranks, when there is none, or it is incomplete or damaged.
        MismatchError
            On all ranks, when it is of another model.
        CommunicationError
            When a rank is lost or late.
        """
        step = self._together(str(self._root), lambda: self._chosen(step))[0]
        folder, header = self.folder(step), {}
        damaged = f"the checkpoint in {folder} is damaged"
        places: dict[str, Place] = {}
        values: Tensors = {}

        def prepare() -> None:
            header.update(self._read_header(folder))
            stored = FileSystemReader(folder).read_metadata().state_dict_metadata
            places.update(places_of(self._registry, self._model, stored))
            values.update(buffers(places, stored))
            require_complete(places, stored)

        def check() -> None:
            for name, value in values.items():
                if header["crc32"].get(name) != _checksum(value):
                    raise CheckpointError(f"{damaged}: '{name}' has changed")

        self._together(damaged, prepare)
        with _one_error(damaged):
            reader = FileSystemReader(folder)
            dcp_load(values, storage_reader=reader, process_group=self._group)
        self._together(damaged, check)
        write(places, values)
        return Resumed(step=step, extra=header["extra"])

    def _make_room(self, folder: Path, partial: Path, extra: Any) -> None:
        if not self._is_first:
            return
        if folder.exists():
            raise InstanceError(f"there is a checkpoint in {folder} already")
        try:
            json.dumps(extra)
        except (TypeError, ValueError) as error:
            raise InstanceError(f"extra must be JSON: {error}") from error
        shutil.rmtree(partial, ignore_errors=True)  # of a save that was interrupted
        partial.mkdir(parents=True)

    def _publish(self, folder: Path, partial: Path, header: Any) -> None:
        if self._is_first:
            with (partial / _HEADER).open("w", encoding="utf-8") as file:
                json.dump(header, file)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(folder)

    def _chosen(self, step: int | None) -> int | None:
        """Return the step to load; the first rank chooses for all."""
        if not self._is_first:
            return None
        steps = self.steps
        if not steps or step not in (None, *steps):
            wanted = "" if step is None else f" of step {step}"
            raise CheckpointError(
                f"there is no complete checkpoint{wanted} in {self._root}; it has"
                f" steps {steps}"
            )
        return steps[-1] if step is None else step

    def _read_header(self, folder: Path) -> dict[str, Any]:
        header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
        if not isinstance(header, dict) or header.get("schema") != _SCHEMA:
            raise CheckpointError(f"{folder / _HEADER} is not of schema {_SCHEMA}")
        found = (header["layers"], header["experts"])
        if found != (self._registry.n_layers, self._registry.n_experts):
            raise MismatchError(
                f"the checkpoint in {folder} has {found} (MoE layers, experts), the"
                f" model {(self._registry.n_layers, self._registry.n_experts)}"
            )
        return header

    def _together(self, what: str, work: Callable[[], Any]) -> list[Any]:
        """Return what came out on every rank; an error of one is an error of all.

        `what` says what it means when something else than a mistake of the user fails.
        """
        answer: dict[str, Any] = {}
        try:
            answer["value"] = work()
        except RpoptError as error:
            answer |= {"kind": type(error).__name__, "error": str(error)}
        except Exception as error:  # whatever it is, the other ranks wait
            text = f"{what}: {type(error).__name__}: {error}"
            answer |= {"kind": "CheckpointError", "error": text}
        answers = gather_json(answer, group=self._group, deadline=Deadline(None))
        for rank, each in enumerate(answers):
            if "error" in each:
                kind = _KINDS.get(each["kind"], CheckpointError)
                raise kind(f"rank {rank}: {each['error']}")
        return [each["value"] for each in answers]


_KINDS: dict[str, type[RpoptError]] = {
    kind.__name__: kind for kind in (InstanceError, MismatchError)
}


def _checksum(value: torch.Tensor) -> int:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().tobytes())


def _joined(checksums: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the checksum of every name; names of several ranks must agree."""
    found: dict[str, int] = {}
    for rank, each in enumerate(checksums):
        for name, value in each.items():
            if found.setdefault(name, value) != value:
                raise MismatchError(
                    f"'{name}' is not the same on rank {rank} as on those before it;"
                    " what several ranks hold is stored once and must be equal"
                )
    return found


@contextmanager
def _one_error(what: str) -> Iterator[None]:
    """Turn the errors of `torch.distributed.checkpoint`, the same on all ranks."""
    try:
        with clear_error():
            yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise CheckpointError(
            f"{what}: rank {rank}: {type(cause).__name__}: {str(cause)[:300]}"
        ) from error
