"""Small models and samples that trainer tests share."""

from typing import Any

import numpy as np
import torch

from rpopt.plans import Placement
from rpopt.trainer.model import Model
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.slots import PlacedSlots

SIZES = {
    "vocab_size": 13,
    "hidden": 16,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "num_experts": 8,
    "top_k": 2,
    "moe_intermediate": 8,
    "num_dense_layers": 1,
    "dense_intermediate": 24,
    "shared_intermediate": 8,
}


def small_shape(**changes: Any) -> ModelShape:
    return ModelShape(**{**SIZES, **changes})


def random_placement(shape: ModelShape, ep_size: int, seed: int) -> Placement:
    rng = np.random.default_rng(seed)
    slot_LE = [rng.permutation(shape.num_experts) for _ in range(shape.num_moe_layers)]
    return Placement(slot_LE=np.array(slot_LE), num_ep_ranks=ep_size)


def identity(shape: ModelShape, ep_size: int = 1) -> Placement:
    return Placement.identity(shape.num_moe_layers, shape.num_experts, ep_size)


def local_model(shape: ModelShape, placement: Placement | None = None) -> Model:
    """A model on one process; weights wide enough that everything matters."""
    model = Model(shape, PlacedSlots(placement or identity(shape), 0), seed=7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
    return model


RUN = """
seed = 0
steps = 3
ep = 2
checkpoint_every = 0

[model]
vocab_size = 6
hidden = 16
num_layers = 3
num_heads = 2
num_kv_heads = 1
head_dim = 8
num_experts = 4
top_k = 2
moe_intermediate = 16
num_dense_layers = 1
dense_intermediate = 16

[training]
learning_rate = 1e-2
aux_weight = 0.01

[planning]
token_cap = 32
sweeps = 2
timeout_s = 60

[grpo]
prompts = 3
answers = 4
max_response = 5
passes = 2

[grpo.task]
kind = "copy"
base = 4
min_digits = 1
max_digits = 3
"""
