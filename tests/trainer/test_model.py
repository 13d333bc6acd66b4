import numpy as np
import pytest
import torch

from rpopt.errors import InstanceError
from rpopt.trainer.attention import DecodeCache, PackedSamples
from rpopt.trainer.router import Router, check_routes
from tests.trainer.cases import local_model, random_placement, small_shape


def tokens(*lengths: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return [torch.randint(13, (length,), generator=source) for length in lengths]


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_a_sample_sees_nothing_of_its_neighbours(scoring: str) -> None:
    model = local_model(small_shape(scoring=scoring, num_groups=4, top_groups=2))
    first, second, third = tokens(5, 1, 9)
    packed = model(torch.cat([first, second, third]), PackedSamples([5, 1, 9]))
    for part, alone in zip(
        packed.logits_TV.split([5, 1, 9]), (first, second, third), strict=True
    ):
        expected = model(alone, PackedSamples([alone.numel()])).logits_TV
        torch.testing.assert_close(part, expected)


def test_a_token_sees_those_before_it_and_none_after() -> None:
    model = local_model(small_shape())
    (sample,) = tokens(8)
    changed = sample.clone()
    changed[4] = (changed[4] + 1) % 13
    logits = [model(s, PackedSamples([8])).logits_TV for s in (sample, changed)]
    torch.testing.assert_close(logits[0][:4], logits[1][:4])
    assert not torch.allclose(logits[0][5:], logits[1][5:])


def test_decoding_with_a_cache_equals_the_packed_pass() -> None:
    shape = small_shape()
    model = local_model(shape)
    batch = torch.stack(tokens(6, 6))
    packed = model(batch.flatten(), PackedSamples([6, 6]))
    cache = DecodeCache(shape, 2, 6)
    steps = []
    for t in range(6):
        steps.append(model(batch[:, t], cache))
        cache.advance()
    logits = torch.stack([step.logits_TV for step in steps], dim=1).flatten(0, 1)
    routes = torch.stack([step.routes_TLK for step in steps], dim=1).flatten(0, 1)
    torch.testing.assert_close(logits, packed.logits_TV)
    assert torch.equal(routes, packed.routes_TLK)


def test_a_placement_changes_not_one_bit() -> None:
    shape = small_shape()
    (sample,) = tokens(20)
    placement = random_placement(shape, 1, 3)
    models = [local_model(shape), local_model(shape, placement)]
    losses = [
        m(sample, PackedSamples([20])).logits_TV.logsumexp(1).sum() for m in models
    ]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    plain, placed = (list(m.dense_parameters()) for m in models)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain, placed, strict=True))
    for layer, (one, other) in enumerate(
        zip(models[0].moe_layers, models[1].moe_layers, strict=True)
    ):
        slots = torch.tensor(placement.slot_LE[layer])
        for a, b in zip(
            one.experts.parameters(), other.experts.parameters(), strict=True
        ):
            assert torch.equal(a.grad, b.grad[slots])


def test_replayed_routes_are_those_used_and_carry_gradients() -> None:
    shape = small_shape()
    model = local_model(shape)
    (sample,) = tokens(6)
    live = model(sample, PackedSamples([6]))
    again = model(sample, PackedSamples([6]), live.routes_TLK)
    assert torch.equal(again.logits_TV, live.logits_TV)
    other = (live.routes_TLK + 1) % 8
    replayed = model(sample, PackedSamples([6]), other)
    assert torch.equal(replayed.routes_TLK, other)
    assert not torch.allclose(replayed.logits_TV, live.logits_TV)
    replayed.logits_TV.square().sum().backward()
    assert model.moe_layers[0].router.weight.grad.abs().sum() > 0


def test_the_bias_shifts_the_choice_and_not_the_weights() -> None:
    shape = small_shape(scoring="sigmoid")
    router = Router(shape)
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    x = torch.randn(10, 16, generator=torch.Generator().manual_seed(1))
    router.selection_bias_E[5] = 10.0
    routing = router(x)
    assert (routing.expert_TK == 5).any(dim=1).all()
    chosen = (x @ router.weight.T).sigmoid().gather(1, routing.expert_TK)
    torch.testing.assert_close(routing.weight_TK, chosen / chosen.sum(1, keepdim=True))


def test_group_limited_choice_against_brute_force() -> None:
    shape = small_shape(num_groups=4, top_groups=2, top_k=3)
    score = torch.rand(50, 8, generator=torch.Generator().manual_seed(2))
    chosen = Router(shape).choose(score)
    for scores, experts in zip(score.tolist(), chosen.tolist(), strict=True):
        sums = [scores[2 * g] + scores[2 * g + 1] for g in range(4)]
        groups = sorted(range(4), key=lambda g: -sums[g])[:2]
        allowed = [e for e in range(8) if e // 2 in groups]
        best = sorted(allowed, key=lambda e: -scores[e])[:3]
        assert sorted(experts) == sorted(best)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: r[:, :1], "shape"),
        (lambda r: r[:, :, :1], "shape"),
        (lambda r: r[:-1], "shape"),
        (lambda r: np.where(r == 3, 8, r), "expert 8"),
        (lambda r: np.where(r == 3, -1, r), "expert -1"),
        (lambda r: r.astype(np.float32), "float32"),
        (lambda r: np.zeros_like(r), "twice"),
    ],
)
def test_bad_routes_are_refused(change, message: str) -> None:
    shape = small_shape()
    rng = np.random.default_rng(0)
    routes = rng.permuted(np.tile(np.arange(8), (6, 2, 1)), axis=2)[:, :, :2]
    assert np.array_equal(check_routes(routes, shape, num_tokens=6), routes)
    with pytest.raises(InstanceError, match=message):
        check_routes(change(routes), shape, num_tokens=6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_heads": 3}, "query heads"),
        ({"head_dim": 7}, "odd"),
        ({"hidden": 18}, "multiple of 4"),
        ({"num_groups": 3}, "groups"),
        ({"num_groups": 8, "top_groups": 1}, "top_k"),
        ({"num_dense_layers": 3}, "dense"),
        ({"dense_intermediate": 0}, "dense_intermediate"),
        ({"scoring": "tanh"}, "scoring"),
        ({"vocab_size": 0}, "vocab_size"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, message: str) -> None:
    with pytest.raises(InstanceError, match=message):
        small_shape(**changes)
