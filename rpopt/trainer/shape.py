"""The sizes of a model and how its router chooses."""

from dataclasses import dataclass
from typing import Literal, get_args

from rpopt.errors import InstanceError
from rpopt.records import freeze, positive_int

Scoring = Literal["softmax", "sigmoid"]
_ROW_BYTES = 16
_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder-only Mixture-of-Experts transformer.

    Parameters
    ----------
    vocab_size, hidden, num_layers
        Tokens, width of the residual stream, and layers in all.
    num_heads, num_kv_heads, head_dim
        Query heads, the key and value heads they share, and their common even width.
    num_experts, top_k, moe_intermediate
        Routed experts of an MoE layer, those a token visits, and their inner width.
    num_dense_layers, dense_intermediate
        Leading layers with a dense MLP instead of experts, and its inner width.
    shared_intermediate
        Inner width of the expert that every token visits; 0 for none.
    scoring
        Router scores: softmax over the experts, or one sigmoid per expert.
    num_groups, top_groups
        A token chooses its experts within the best `top_groups` of `num_groups` groups
        of consecutive experts (DeepSeek-V3); 1 and 1 for no limit.
    rope_theta
        Base of the rotary embedding.

    Raises
    ------
    InstanceError
        When the sizes do not fit each other.
    """

    vocab_size: int
    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_experts: int
    top_k: int
    moe_intermediate: int
    num_dense_layers: int = 0
    dense_intermediate: int = 0
    shared_intermediate: int = 0
    scoring: Scoring = "softmax"
    num_groups: int = 1
    top_groups: int = 1
    rope_theta: float = 10000.0

    def __post_init__(self) -> None:
        """Check every size."""
        optional = {"num_dense_layers", "dense_intermediate", "shared_intermediate"}
        for name in self.__dataclass_fields__:
            if name not in ("scoring", "rope_theta"):
                minimum = 0 if name in optional else 1
                value = positive_int(getattr(self, name), name=name, minimum=minimum)
                freeze(self, name, value)
        if self.scoring not in get_args(Scoring):
            raise InstanceError(
                f"scoring = {self.scoring!r}; use one of {get_args(Scoring)}"
            )
        self._check_attention()
        self._check_experts()
        if self.num_dense_layers >= self.num_layers:
            raise InstanceError(
                f"{self.num_dense_layers} of {self.num_layers} layers are dense; at"
                " least one needs experts"
            )
        if self.num_dense_layers and not self.dense_intermediate:
            raise InstanceError(
                f"{self.num_dense_layers} dense layers need dense_intermediate >= 1"
            )

    def _check_attention(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise InstanceError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key"
                " and value heads equally"
            )
        if self.head_dim % 2:
            raise InstanceError(
                f"head_dim = {self.head_dim} is odd; rotary embeddings turn pairs"
            )

    def _check_experts(self) -> None:
        for name in ("hidden", "moe_intermediate"):
            if getattr(self, name) * _FLOAT_BYTES % _ROW_BYTES:
                raise InstanceError(
                    f"{name} = {getattr(self, name)}: grouped products need rows of a"
                    f" multiple of {_ROW_BYTES} bytes; use a multiple of"
                    f" {_ROW_BYTES // _FLOAT_BYTES}"
                )
        per_group, left = divmod(self.num_experts, self.num_groups)
        if left or self.top_groups > self.num_groups:
            raise InstanceError(
                f"{self.top_groups} of {self.num_groups} groups of"
                f" {self.num_experts} experts cannot be chosen"
            )
        if self.top_k > self.top_groups * per_group:
            raise InstanceError(
                f"top_k = {self.top_k} exceeds the {self.top_groups * per_group}"
                " experts that a token may choose from"
            )

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts."""
        return self.num_layers - self.num_dense_layers
