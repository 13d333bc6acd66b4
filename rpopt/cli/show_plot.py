"""`rpopt show --plot`: a plan as a figure."""

from pathlib import Path

from rpopt.cli.history import History
from rpopt.errors import FileFormatError, InstanceError
from rpopt.io.access import atomic_writer
from rpopt.placement.instance import evaluate
from rpopt.plans import Placement, Plan
from rpopt.problems import WindowProblems
from rpopt.window import Window

_FORMATS = ("pdf", "png", "svg")


def draw(
    path: Path,
    window: Window,
    plan: Plan,
    *,
    current: Placement | None = None,
    history: History | None = None,
) -> None:
    """Draw rank loads before and after, cells, and the history, where known.

    Parameters
    ----------
    path
        The figure's file; its suffix says the format.
    current
        The placement before; identity when None.
    history
        The course of the search.

    Raises
    ------
    InstanceError
        When Matplotlib is not installed.
    FileFormatError
        For an unknown suffix or a file that cannot be written; nothing is left then.
    """
    file_format = path.suffix.removeprefix(".").lower()
    if file_format not in _FORMATS:
        raise FileFormatError(
            f"{path}: no figure can be written as {path.suffix!r}; end the name in"
            f" {', '.join(f'.{known}' for known in _FORMATS)}"
        )
    try:
        from rpopt import plotting
    except ImportError as error:
        raise InstanceError(
            f"--plot needs Matplotlib ({error}); install rpopt[plot]"
        ) from error

    panels: list[plotting.figures.Panel] = []
    problems = WindowProblems(window, plan.topology, plan.rules, plan.cost)
    aggregate, after = problems.placement, plan.placement
    if aggregate is not None and after is not None:
        num_layers, num_experts = after.slot_LE.shape
        before = current or Placement.identity(
            num_layers, num_experts, after.num_ep_ranks
        )
        before_LP = evaluate(aggregate, before).load_LP
        after_LP = evaluate(aggregate, after).load_LP
        panels.append(lambda ax: plotting.plot_rank_loads(before_LP, after_LP, ax))
    weight_I = problems.items_for(plan.layout.num_rows).weight_tokens_I
    panels.append(
        lambda ax: plotting.plot_cells(
            plan.layout,
            weight_I,
            num_ranks=plan.topology.dp,
            token_cap=plan.rules.token_cap,
            ax=ax,
        )
    )
    if history:
        seconds_s, best_j = zip(*history, strict=True)
        bound_j = plan.lower_ticks / plan.unit_ticks or None
        panels.append(
            lambda ax: plotting.plot_annealing(
                seconds_s, best_j, bound_j=bound_j, ax=ax
            )
        )
    with atomic_writer(path) as file:
        plotting.save_panels(panels, file, file_format)
