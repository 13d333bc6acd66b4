"""prime-rl's batches, with a stand-in for the functions that rpopt calls there."""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as fast
from hypothesis import strategies as st

from rpopt.errors import InfeasibleError, MismatchError
from rpopt.stacks.prime_rl import prepare_batch
from tests.stacks.cases import settings, window

SEQ_LEN = 64


@dataclass
class Micro:
    """The fields of prime-rl 559b4477's `MicroBatch` that matter here."""

    input_ids: list[int]
    loss_mask: list[bool]
    seq_lens: list[int]
    ids: list[int]
    mm_kwargs: dict[str, Any] | None = None
    routed_experts: Any = None


@dataclass
class Rollout:
    index: int
    length: int
    images: bool = False
    routes: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


def prepare_sample(rollout: Rollout, seq_len: int) -> Micro:
    length = min(rollout.length, seq_len)
    return Micro(
        input_ids=[7] * length,
        loss_mask=[True] * length,
        seq_lens=[length],
        ids=[rollout.index],
        mm_kwargs={} if rollout.images else None,
        routed_experts=b"" if rollout.routes else None,
    )


def packed_samples_into_micro_bs(
    samples: list[Micro],
    max_seq_len: int,
    num_train_workers: int,
    bin_cost: Callable[[Sequence[int]], int],
) -> list[Micro]:
    """First fit by decreasing length; images alone, routes apart."""
    bins: list[Micro] = []
    for sample in sorted(samples, key=lambda s: -len(s.input_ids)):
        for other in bins:
            if (
                other.mm_kwargs is None
                and sample.mm_kwargs is None
                and (other.routed_experts is None) == (sample.routed_experts is None)
                and len(other.input_ids) + len(sample.input_ids) <= max_seq_len
            ):
                for name in ("input_ids", "loss_mask", "seq_lens", "ids"):
                    getattr(other, name).extend(getattr(sample, name))
                break
        else:
            bins.append(copy.deepcopy(sample))
    return bins


def pad_micro_batch(micro: Micro, multiple: int) -> Micro:
    missing = -len(micro.input_ids) % multiple
    micro.input_ids += [1] * missing
    micro.loss_mask += [False] * missing
    return micro


def _make_dummy_batch(source: Micro) -> Micro:
    dummy = copy.deepcopy(source)
    dummy.loss_mask = [False] * len(dummy.input_ids)
    dummy.ids = []
    return dummy


def install(patch: pytest.MonkeyPatch) -> None:
    """Let `prime_rl.trainer.batch` be the functions above."""
    batch = ModuleType("prime_rl.trainer.batch")
    for function in (
        prepare_sample,
        packed_samples_into_micro_bs,
        pad_micro_batch,
        _make_dummy_batch,
    ):
        setattr(batch, function.__name__, function)
    trainer = ModuleType("prime_rl.trainer")
    trainer.batch = batch  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "prime_rl", ModuleType("prime_rl"))
    patch.setitem(sys.modules, "prime_rl.trainer", trainer)
    patch.setitem(sys.modules, "prime_rl.trainer.batch", batch)


@pytest.fixture(autouse=True, scope="module")
def _prime_rl() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        yield


def batches(rollouts: list[Rollout], pad: int = 1, **more: Any) -> list[list[Micro]]:
    chosen = settings(2, 2, coupling="row")
    return prepare_batch(rollouts, SEQ_LEN, 2, sum, pad, settings=chosen, **more)


@given(
    st.lists(
        st.builds(
            Rollout,
            index=st.just(0),
            length=st.integers(1, 90),
            images=st.booleans(),
            routes=st.booleans(),
        ),
        min_size=1,
        max_size=16,
    ),
    st.sampled_from((1, 8, 24)),
)
@fast(deadline=None, max_examples=25)
def test_invariants(rollouts: list[Rollout], pad: int) -> None:
    for index, rollout in enumerate(rollouts):
        rollout.index = index
    found = batches(rollouts, pad)
    assert len(found[0]) == len(found[1]) > 0
    trained = [i for rows in found for micro in rows for i in micro.ids]
    assert sorted(trained) == list(range(len(rollouts)))
    for left, right in zip(*found, strict=True):
        assert (left.mm_kwargs is None) == (right.mm_kwargs is None)
        assert (left.routed_experts is None) == (right.routed_experts is None)
    for micro in (micro for rows in found for micro in rows):
        assert len(micro.input_ids) % pad == 0
        assert len(micro.input_ids) <= SEQ_LEN or len(micro.seq_lens) == 1
        assert len(micro.ids) <= 1 or micro.mm_kwargs is None
        assert len({rollouts[i].routes for i in micro.ids}) <= 1


def test_a_rank_without_samples_gets_a_copy_without_loss() -> None:
    found = batches([Rollout(0, 10)])
    (alone,), (copied,) = sorted(found, key=lambda rows: not rows[0].ids)
    assert alone.ids == [0]
    assert any(alone.loss_mask)
    assert not any(copied.loss_mask)


def test_routes_come_with_a_window() -> None:
    routed = window(2, 10)
    rollouts = [
        Rollout(i, n, routes=True) for i, n in enumerate(routed.length_N.tolist())
    ]
    found = batches(rollouts, window=routed)
    assert sorted(i for rows in found for m in rows for i in m.ids) == list(range(10))


def test_clear_errors() -> None:
    with pytest.raises(InfeasibleError, match="no rollouts"):
        batches([])
    with pytest.raises(MismatchError, match="dp = 3"):
        prepare_batch([Rollout(0, 5)], SEQ_LEN, 3, sum, settings=settings(2))
