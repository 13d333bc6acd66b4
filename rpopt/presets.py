"""Cost models of well-known Mixture-of-Experts models, in FLOPs of a forward pass.

Training multiplies all of them by the same factor (three, more with recomputation), so
the shares of attention and experts, which are all that matters here, stay the same.
Embedding and output head are left out, and so are norms, rotary embeddings, softmax,
short convolutions, biases and gates of one number per head. `docs/presets.md` gives the
formulas and the resulting numbers.

The shapes are those of each model's public configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from rpopt.cost import AttentionClass, CostModel
from rpopt.errors import InstanceError


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Causal softmax attention whose query heads share key and value heads.

    Parameters
    ----------
    num_layers, num_dense
        Layers of this kind, and those of them with a dense MLP.
    num_heads, num_kv_heads, head_dim
        Query heads, key and value heads, and their common width.
    window_tokens
        A token attends to this many tokens, itself included; None for all before it.
    """

    num_layers: int
    num_dense: int = 0
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window_tokens: int | None = None

    @property
    def name(self) -> str:
        """What the attention class is called."""
        return "full" if self.window_tokens is None else "window"

    def projection_flop(self, hidden: int) -> int:
        """FLOPs per token of the query, key, value and output projections."""
        return 2 * hidden * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)

    def core_flop(self) -> tuple[int, int]:
        """FLOPs of scores and weighted values: per token, per squared token."""
        pair_flop = 2 * self.num_heads * 2 * self.head_dim
        return _softmax_flop(pair_flop, self.window_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention, computed per head as in training.

    Parameters
    ----------
    num_layers, num_dense
        Layers of this kind, and those of them with a dense MLP.
    num_heads
        Heads.
    q_rank, kv_rank
        Widths of the latent query (None: one full projection) and key-value.
    nope_dim, rope_dim, v_dim
        Widths of a head's key without and with rotary embedding, and of its value.
    """

    num_layers: int
    num_dense: int = 0
    num_heads: int
    q_rank: int | None
    kv_rank: int = 512
    nope_dim: int = 128
    rope_dim: int = 64
    v_dim: int = 128

    @property
    def name(self) -> str:
        """What the attention class is called."""
        return "latent"

    def projection_flop(self, hidden: int) -> int:
        """FLOPs per token of both low-rank projections and the output projection."""
        queries = self.num_heads * (self.nope_dim + self.rope_dim)
        if self.q_rank is None:
            query = hidden * queries
        else:
            query = self.q_rank * (hidden + queries)
        latent = hidden * (self.kv_rank + self.rope_dim)
        expand = self.kv_rank * self.num_heads * (self.nope_dim + self.v_dim)
        return 2 * (query + latent + expand + self.num_heads * self.v_dim * hidden)

    def core_flop(self) -> tuple[int, int]:
        """FLOPs of scores and weighted values: per token, per squared token."""
        width = self.nope_dim + self.rope_dim + self.v_dim
        return _softmax_flop(2 * self.num_heads * width, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaAttention:
    """Linear attention by the gated delta rule (Kimi Delta Attention).

    Parameters
    ----------
    num_layers, num_dense
        Layers of this kind, and those of them with a dense MLP.
    num_heads, head_dim
        Heads, and the width of their keys and values.
    """

    num_layers: int
    num_dense: int = 0
    num_heads: int
    head_dim: int

    @property
    def name(self) -> str:
        """What the attention class is called."""
        return "linear"

    def projection_flop(self, hidden: int) -> int:
        """FLOPs per token of query, key, value, decay, gate and output projections."""
        return 2 * 6 * hidden * self.num_heads * self.head_dim

    def core_flop(self) -> tuple[int, int]:
        """FLOPs per token of decay, read, update and query of a head's state."""
        return 7 * self.num_heads * self.head_dim**2, 0


AttentionKind = GroupedAttention | LatentAttention | DeltaAttention


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model that decide what its layers cost.

    Parameters
    ----------
    name
        The model.
    hidden
        Width of the residual stream.
    attention
        Kinds of attention layers. Layers with a dense MLP come first in the model.
    num_experts, top_k, moe_intermediate
        Routed experts of an MoE layer, those a token visits, and their inner width.
    shared_intermediate
        Inner width of all shared experts together; 0 for none.
    dense_intermediate
        Inner width of the dense MLPs; 0 when there are none.
    """

    name: str
    hidden: int
    attention: tuple[AttentionKind, ...]
    num_experts: int
    top_k: int
    moe_intermediate: int
    shared_intermediate: int = 0
    dense_intermediate: int = 0

    @property
    def num_layers(self) -> int:
        """All layers."""
        return sum(kind.num_layers for kind in self.attention)

    @property
    def moe_layers(self) -> range:
        """Absolute numbers of the MoE layers."""
        return range(sum(kind.num_dense for kind in self.attention), self.num_layers)


def cost_model(shape: ModelShape) -> CostModel:
    """Return the cost model of a shape: one attention class per kind of layer.

    Everything that a rank does for its own tokens counts as attention: projections,
    attention itself, router, shared experts and dense MLPs. The attention share follows
    from the window, which must hold the demand of all MoE layers.
    """
    return CostModel(
        attention=tuple(_attention_class(kind, shape) for kind in shape.attention),
        expert_per_copy=Fraction(_mlp_flop(shape.hidden, shape.moe_intermediate)),
        unit="flop",
        name=shape.name,
    )


def attention_share(shape: ModelShape, length_tokens: int) -> float:
    """Return omega of a window whose samples all have `length_tokens` tokens."""
    model = cost_model(shape)
    attention = sum(
        c.c1 * length_tokens + c.c2 * length_tokens**2 for c in model.attention
    )
    copies = len(shape.moe_layers) * shape.top_k * length_tokens
    return float(attention / (attention + model.expert_per_copy * copies))


def preset_names() -> tuple[str, ...]:
    """Return the names of all models with a preset."""
    return tuple(SHAPES)


def model_shape(name: str) -> ModelShape:
    """Return the shape of a model.

    Raises
    ------
    InstanceError
        When there is no preset of that name.
    """
    if name not in SHAPES:
        raise InstanceError(
            f"no preset {name!r}; there are {', '.join(SHAPES)}; other models need c1,"
            " c2 and expert_per_copy (docs/presets.md has the formulas)"
        )
    return SHAPES[name]


def preset(name: str) -> CostModel:
    """Return the cost model of a model.

    Raises
    ------
    InstanceError
        When there is no preset of that name.
    """
    return cost_model(model_shape(name))


def markdown_table(length_tokens: int = 4096) -> str:
    """Return the table of `docs/presets.md`: the costs of every model."""
    lines = [
        "| model | MoE layers | E | K | class | layers | c1, MFLOP | c2, kFLOP | expert"
        f" copy, MFLOP | ω at {length_tokens} tokens |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for shape in SHAPES.values():
        model = cost_model(shape)
        head = [shape.name, str(len(shape.moe_layers)), str(shape.num_experts)]
        head.append(str(shape.top_k))
        tail = [f"{float(model.expert_per_copy) / 1e6:.2f}"]
        tail.append(f"{attention_share(shape, length_tokens):.3f}")
        for kind, cost in zip(shape.attention, model.attention, strict=True):
            middle = [kind.name, str(kind.num_layers)]
            middle += [f"{float(cost.c1) / 1e6:.1f}", f"{float(cost.c2) / 1e3:.1f}"]
            lines.append("| " + " | ".join([*head, *middle, *tail]) + " |")
            head, tail = [""] * len(head), [""] * len(tail)
    return "\n".join(lines)


def _attention_class(kind: AttentionKind, shape: ModelShape) -> AttentionClass:
    linear, quadratic = kind.core_flop()
    router = 2 * shape.hidden * shape.num_experts
    shared = _mlp_flop(shape.hidden, shape.shared_intermediate)
    per_token = kind.num_layers * (kind.projection_flop(shape.hidden) + linear)
    per_token += (kind.num_layers - kind.num_dense) * (router + shared)
    per_token += kind.num_dense * _mlp_flop(shape.hidden, shape.dense_intermediate)
    return AttentionClass(
        name=kind.name,
        c1=Fraction(per_token),
        c2=Fraction(kind.num_layers * quadratic),
    )


def _softmax_flop(pair_flop: int, window_tokens: int | None) -> tuple[int, int]:
    """Count query-key pairs: l (l + 1) / 2 of a sample, or one window per token."""
    if window_tokens is None:
        return pair_flop // 2, pair_flop // 2
    return pair_flop * window_tokens, 0


def _mlp_flop(hidden: int, intermediate: int) -> int:
    """FLOPs per token of a gated MLP: gate, up and down, two per weight."""
    return 2 * 3 * hidden * intermediate


def _full(
    num_layers: int, num_heads: int, num_kv_heads: int, num_dense: int = 0
) -> tuple[GroupedAttention]:
    kind = GroupedAttention(
        num_layers=num_layers,
        num_dense=num_dense,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=128,
    )
    return (kind,)


def _gpt_oss(name: str, num_layers: int, num_experts: int) -> ModelShape:
    def half(window_tokens: int | None) -> GroupedAttention:
        return GroupedAttention(
            num_layers=num_layers // 2,
            num_heads=64,
            num_kv_heads=8,
            head_dim=64,
            window_tokens=window_tokens,
        )

    return ModelShape(
        name=name,
        hidden=2880,
        attention=(half(None), half(128)),
        num_experts=num_experts,
        top_k=4,
        moe_intermediate=2880,
    )


_ALL = (
    ModelShape(
        name="Qwen3-30B-A3B",
        hidden=2048,
        attention=_full(48, 32, 4),
        num_experts=128,
        top_k=8,
        moe_intermediate=768,
    ),
    ModelShape(
        name="Qwen3-235B-A22B",
        hidden=4096,
        attention=_full(94, 64, 4),
        num_experts=128,
        top_k=8,
        moe_intermediate=1536,
    ),
    ModelShape(
        name="DeepSeek-V3",
        hidden=7168,
        attention=(
            LatentAttention(num_layers=61, num_dense=3, num_heads=128, q_rank=1536),
        ),
        num_experts=256,
        top_k=8,
        moe_intermediate=2048,
        shared_intermediate=2048,
        dense_intermediate=18432,
    ),
    ModelShape(
        name="Kimi-K2",
        hidden=7168,
        attention=(
            LatentAttention(num_layers=61, num_dense=1, num_heads=64, q_rank=1536),
        ),
        num_experts=384,
        top_k=8,
        moe_intermediate=2048,
        shared_intermediate=2048,
        dense_intermediate=18432,
    ),
    ModelShape(
        name="GLM-4.5",
        hidden=5120,
        attention=_full(92, 96, 8, num_dense=3),
        num_experts=160,
        top_k=8,
        moe_intermediate=1536,
        shared_intermediate=1536,
        dense_intermediate=12288,
    ),
    _gpt_oss("gpt-oss-20b", 24, 32),
    _gpt_oss("gpt-oss-120b", 36, 128),
    ModelShape(
        name="OLMoE-1B-7B",
        hidden=2048,
        attention=_full(16, 16, 16),
        num_experts=64,
        top_k=8,
        moe_intermediate=1024,
    ),
    ModelShape(
        name="Ling-mini-2.0",
        hidden=2048,
        attention=_full(20, 16, 4, num_dense=1),
        num_experts=256,
        top_k=8,
        moe_intermediate=512,
        shared_intermediate=512,
        dense_intermediate=5120,
    ),
    ModelShape(
        name="Ling-3.0-tiny",
        hidden=1536,
        attention=(
            LatentAttention(num_layers=6, num_heads=16, q_rank=256),
            DeltaAttention(num_layers=18, num_dense=1, num_heads=16, head_dim=128),
        ),
        num_experts=128,
        top_k=8,
        moe_intermediate=512,
        shared_intermediate=512,
        dense_intermediate=4608,
    ),
    ModelShape(
        name="Ling-3.0-flash",
        hidden=2560,
        attention=(
            LatentAttention(num_layers=7, num_heads=32, q_rank=None),
            DeltaAttention(num_layers=35, num_dense=2, num_heads=32, head_dim=128),
        ),
        num_experts=512,
        top_k=8,
        moe_intermediate=768,
        shared_intermediate=768,
        dense_intermediate=6144,
    ),
)
SHAPES: Mapping[str, ModelShape] = {shape.name: shape for shape in _ALL}
