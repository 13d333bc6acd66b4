"""What every writer of expert maps checks."""

from pathlib import Path

from rpopt.errors import InstanceError, MismatchError
from rpopt.io.access import AnyPath
from rpopt.io.model_config import RoutedModel
from rpopt.plans import Placement


def checked(
    placement: Placement | None,
    *,
    model: RoutedModel | None = None,
    ep_size: int | None = None,
) -> Placement:
    """Return a placement that fits the engine which will read it.

    Parameters
    ----------
    placement
        That of a plan.
    model
        The model that the map is for, if known.
    ep_size
        EP ranks of the engine that reads the map, if known. It gives every rank E /
        `ep_size` slots in a row, so another number of ranks would balance nothing.

    Raises
    ------
    InstanceError
        When there is no placement.
    MismatchError
        When layers, experts or EP ranks are not those of the placement.
    """
    if placement is None:
        raise InstanceError(
            "the plan has no placement, since its window has lengths only; plan a"
            " window with routes"
        )
    num_layers, num_experts = placement.slot_LE.shape
    if model is not None:
        _check_model(model, num_layers, num_experts)
    if ep_size is not None and ep_size != placement.num_ep_ranks:
        raise MismatchError(
            f"the placement is for {placement.num_ep_ranks} EP ranks, the engine has"
            f" {ep_size}; plan for a topology with ep = {ep_size}"
        )
    return placement


def require_suffix(path: AnyPath, *suffixes: str) -> str:
    """Return the suffix of a file's name, one of those that its reader knows.

    Raises
    ------
    InstanceError
        When it has another one.
    """
    suffix = Path(path).suffix
    if suffix not in suffixes:
        raise InstanceError(
            f"{path}: the name must end in {' or '.join(suffixes)}, not"
            f" {suffix or 'without a suffix'!r}"
        )
    return suffix


def _check_model(model: RoutedModel, num_layers: int, num_experts: int) -> None:
    if num_layers != len(model.moe_layers):
        dense = model.num_layers - len(model.moe_layers)
        raise MismatchError(
            f"the placement has {num_layers} MoE layers; the model has"
            f" {len(model.moe_layers)} ({model.num_layers} layers, {dense} of them"
            " dense); give the config.json that the window was read with"
        )
    if num_experts != model.num_experts:
        raise MismatchError(
            f"the placement has {num_experts} experts a layer; the model has"
            f" {model.num_experts}; give the config.json that the window was read with"
        )
