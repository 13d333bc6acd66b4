"""One optimizer step over the cells of a window: the same step under any plan.

A sample's loss weights are fixed for the whole window before it is cut into cells, so
the loss is one sum over samples. Gradients are summed over ranks and never averaged.
The auxiliary loss uses the loads of the whole window, which replayed routes tell in
advance, so it is a sum over tokens too.

Axis letters: T tokens, L MoE layers, K top-k, E experts, S local slots.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rpopt.errors import InstanceError
from rpopt.records import IntArray
from rpopt.trainer.attention import PackedSamples
from rpopt.trainer.model import Model, Output
from rpopt.trainer.parallel import Parallel, sum_over
from rpopt.trainer.router import check_routes, count_visits
from rpopt.trainer.shape import ModelShape
from rpopt.trainer.slots import Slots

FloatArray = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One rollout to train on.

    Parameters
    ----------
    tokens
        T + 1 token ids; token t is trained to predict token t + 1.
    routes_TLK
        The recorded experts of the first T tokens, logical ids.
    weight_T
        What each prediction counts in the loss of the window.
    old_logprob_T
        Log-probability of each prediction before the first step on the window.
    is_filler
        Whether it only fills a cell: it counts in no loss and in no load.
    """

    tokens: IntArray
    routes_TLK: IntArray
    weight_T: FloatArray
    old_logprob_T: FloatArray | None = None
    is_filler: bool = False

    @property
    def length(self) -> int:
        """Trained tokens, T."""
        return self.weight_T.size


Cell = Sequence[Sample]
Objective = Callable[[Output, Cell], Tensor]
"""The part of the loss that a cell adds."""


def filler(shape: ModelShape) -> Sample:
    """Return a token that counts nothing, for a cell that no sample is left for."""
    experts_K = np.arange(shape.top_k)
    return Sample(
        tokens=np.zeros(2, dtype=np.int64),
        routes_TLK=np.tile(experts_K, (1, shape.num_moe_layers, 1)),
        weight_T=np.zeros(1),
        is_filler=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did, the same on every rank.

    Parameters
    ----------
    loss
        Loss of the window before the step, auxiliary loss included.
    gradient_norm
        Norm of all gradients before clipping.
    num_tokens
        Trained tokens of the window.
    load_LE
        Token copies that each logical expert received.
    """

    loss: float
    gradient_norm: float
    num_tokens: int
    load_LE: npt.NDArray[np.int64]


def weighted_loss(output: Output, cell: Cell) -> Tensor:
    """Return the weighted negative log-likelihood of a cell's next tokens."""
    return -token_logprobs(output, cell) @ weights(output, cell)


def train_step(
    model: Model,
    slots: Slots,
    optimizer: torch.optim.Optimizer,
    cells: Sequence[Cell],
    groups: Parallel,
    *,
    objective: Objective = weighted_loss,
    aux_weight: float = 0.0,
    max_norm: float = 1.0,
) -> StepReport:
    """Train one window and step the optimizer; every rank calls it with its own cells.

    Parameters
    ----------
    model, slots, optimizer
        The model, where its experts sit, and what updates it.
    cells
        The micro-batches of this rank.
    groups
        The other ranks.
    objective
        The loss without the auxiliary loss, a sum over cells.
    aux_weight
        Weight of the load-balancing loss.
    max_norm
        Gradients are scaled down to this norm.

    Raises
    ------
    InstanceError
        On every rank, when ranks have different numbers of cells, one is empty, or
        routes cannot be replayed.
    """
    check_cells(cells, model, groups)
    load_LE = _window_load(cells, model, groups)
    num_tokens = int(load_LE[0].sum()) // model.shape.top_k
    share_LE = (load_LE / load_LE.sum(dim=1, keepdim=True)).float()
    optimizer.zero_grad(set_to_none=True)
    loss = torch.zeros((), device=model.head.weight.device)
    for cell in cells:
        output = replay(model, cell)
        part = objective(output, cell)
        if aux_weight and not cell[0].is_filler:
            part = part + aux_weight * auxiliary_loss(output, share_LE, num_tokens)
        part.backward()  # type: ignore[no-untyped-call]
        loss += part.detach()
    sum_over([loss], groups.world)
    norm = reduce_gradients(model, slots, groups)
    _scale_gradients(model, min(1.0, max_norm / max(norm, 1e-12)))
    optimizer.step()
    return StepReport(
        loss=float(loss),
        gradient_norm=norm,
        num_tokens=num_tokens,
        load_LE=load_LE.cpu().numpy(),
    )


def token_logprobs(output: Output, cell: Cell) -> Tensor:
    """Return the log-probability of each next token of a cell, [T]."""
    target = np.concatenate([sample.tokens[1:] for sample in cell])
    target_T = torch.as_tensor(target, device=output.logits_TV.device)
    return -nn.functional.cross_entropy(output.logits_TV, target_T, reduction="none")


def weights(output: Output, cell: Cell) -> Tensor:
    """Return the loss weights of a cell, [T]."""
    weight_T = np.concatenate([sample.weight_T for sample in cell])
    logits_TV = output.logits_TV
    return torch.as_tensor(weight_T, device=logits_TV.device, dtype=logits_TV.dtype)


def auxiliary_loss(output: Output, share_LE: Tensor, num_tokens: int) -> Tensor:
    """Return a cell's part of the load-balancing loss of the window, mean over layers.

    Parameters
    ----------
    share_LE
        Share of the window's token copies that each expert receives.
    num_tokens
        Tokens of the window.
    """
    per_layer = [
        (routing.share_TE.sum(dim=0) * share_E.to(routing.share_TE.device)).sum()
        for routing, share_E in zip(output.routings, share_LE, strict=True)
    ]
    return torch.stack(per_layer).mean() * share_LE.shape[1] / num_tokens


@torch.no_grad()
def reduce_gradients(model: Model, slots: Slots, groups: Parallel) -> float:
    """Sum gradients over the ranks that hold a parameter, and return their norm.

    The norm adds one number per logical expert, in logical order: it does not depend
    on the placement.
    """
    dense = _gradients(model.dense_parameters())
    sum_over(dense, groups.world)
    sum_over(_gradients(model.expert_parameters()), groups.edp_group)
    squares_LE = torch.zeros(
        model.shape.num_moe_layers,
        model.shape.num_experts,
        dtype=torch.float64,
        device=model.head.weight.device,
    )
    for layer, moe in enumerate(model.moe_layers):
        own = torch.as_tensor(slots.local_experts(layer))
        for gradient in _gradients(list(moe.experts.parameters())):
            squares_LE[layer, own] += gradient.flatten(1).double().square().sum(1)
    sum_over([squares_LE], groups.ep_group)
    total = squares_LE.sum() + sum(g.double().square().sum() for g in dense)
    return float(total.sqrt())


def check_cells(cells: Sequence[Cell], model: Model, groups: Parallel) -> None:
    """Raise on every rank unless all of them found their cells in order."""
    problem = None
    try:
        for cell in cells:
            _check_cell(cell, model)
    except InstanceError as error:
        problem = str(error)
    found: list[tuple[int, str | None]] = [(len(cells), problem)]
    if groups.world is not None:
        found = [(0, None)] * groups.topology.dp
        dist.all_gather_object(found, (len(cells), problem), group=groups.world)
    for rank, (_, message) in enumerate(found):
        if message is not None:
            raise InstanceError(f"rank {rank}: {message}")
    counts = [count for count, _ in found]
    if len(set(counts)) > 1 or not counts[0]:
        raise InstanceError(
            f"ranks have {counts} cells; all need the same number, at least 1, as they"
            " meet in every all-to-all"
        )


def _check_cell(cell: Cell, model: Model) -> None:
    if not cell:
        raise InstanceError("a cell is empty; every micro-batch needs a sample")
    for sample in cell:
        if sample.tokens.size != sample.length + 1:
            raise InstanceError(
                f"a sample has {sample.tokens.size} tokens and {sample.length} loss"
                " weights; give one weight per predicted token"
            )
        check_routes(sample.routes_TLK, model.shape, num_tokens=sample.length)


def replay(model: Model, cell: Cell) -> Output:
    """Run a cell with its recorded routes."""
    device = model.head.weight.device
    tokens = np.concatenate([sample.tokens[:-1] for sample in cell]).astype(np.int64)
    routes = np.concatenate([sample.routes_TLK for sample in cell]).astype(np.int64)
    context = PackedSamples([sample.length for sample in cell], device)
    output: Output = model(
        torch.as_tensor(tokens, device=device),
        context,
        torch.as_tensor(routes, device=device),
    )
    return output


def _window_load(cells: Sequence[Cell], model: Model, groups: Parallel) -> Tensor:
    """Return the copies that each expert of each layer receives in the window."""
    shape = model.shape
    load_LE = np.zeros((shape.num_moe_layers, shape.num_experts), dtype=np.int64)
    for sample in (sample for cell in cells for sample in cell if not sample.is_filler):
        load_LE += count_visits(sample.routes_TLK, shape)
    load = torch.as_tensor(load_LE, device=model.head.weight.device)
    sum_over([load], groups.world)
    return load


def _gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return all gradients; a rank without a token for a parameter has a zero one."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _scale_gradients(model: Model, factor: float) -> None:
    if factor < 1.0:
        for gradient in _gradients(list(model.parameters())):
            gradient.mul_(factor)
