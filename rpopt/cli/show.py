"""`rpopt show`: what a window holds, or what decides memory and speed in a plan."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from rpopt.cli import output
from rpopt.cli.history import read_history
from rpopt.cli.plan import summary
from rpopt.cli.show_plot import draw
from rpopt.errors import InstanceError
from rpopt.io import read
from rpopt.plans import Plan
from rpopt.records import Record
from rpopt.reporting import PlanReport, report
from rpopt.window import Window

_QUANTILES = (0.1, 0.5, 0.9, 0.99, 1.0)


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("show", help="show a window or a plan")
    parser.add_argument("file", type=Path, metavar="FILE", help="a window or a plan")
    parser.add_argument("--window", type=Path, help="the plan's window")
    parser.add_argument(
        "--current", type=Path, metavar="PLAN", help="placement in force"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the plan: .pdf, .png or .svg"
    )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="CSV",
        help="of plan --save-history, to be drawn too",
    )
    parser.add_argument("--json", action="store_true", help="answer in JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Show one file."""
    found = read(args.file, Record)
    if args.history is not None and args.plot is None:
        raise InstanceError("--history is drawn; give the figure's file with --plot")
    if isinstance(found, Window):
        if args.plot is not None:
            raise InstanceError(
                f"{args.file} is a window; --plot draws a plan and its --window"
            )
        sections = window_sections(found)
    elif isinstance(found, Plan):
        if args.window is None:
            raise InstanceError(
                f"{args.file} is a plan; give its window with --window to measure it"
            )
        window = read(args.window, Window)
        current = read(args.current, Plan).placement if args.current else None
        sections = plan_sections(window, found, report(window, found, current))
        if args.plot is not None:
            history = read_history(args.history) if args.history else None
            draw(args.plot, window, found, current=current, history=history)
    else:
        raise InstanceError(
            f"{args.file} holds a {type(found).__name__}; show takes a window or a plan"
        )
    output.print_sections(sections, as_json=args.json)
    return 0


def window_sections(window: Window) -> dict[str, list[dict[str, Any]]]:
    """Return the facts of a window, by section."""
    length_N = window.length_N
    facts: dict[str, Any] = {
        "samples": window.num_samples,
        "tokens": window.total_tokens,
        "MoE_layers": window.num_layers,
        "experts": window.num_experts,
        "top_k": window.top_k,
        "origin": window.origin or None,
        "digest": window.digest[:12],
    }
    quantiles = np.quantile(length_N, _QUANTILES).astype(int).tolist()
    names = [f"p{int(100 * q)}" for q in _QUANTILES]
    sections = {"window": [facts], "length": [dict(zip(names, quantiles, strict=True))]}
    if window.demand_NLE is not None:
        assert window.layer_ids_L is not None
        total_LE = window.demand_NLE.sum(axis=0, dtype=np.int64)
        sections["layers"] = [
            {
                "layer": layer,
                "hottest_over_mean": float(row.max() / max(1.0, row.mean())),
                "silent_experts": int((row == 0).sum()),
            }
            for layer, row in zip(window.layer_ids_L.tolist(), total_LE, strict=True)
        ]
    return sections


def plan_sections(
    window: Window, plan: Plan, measured: PlanReport
) -> dict[str, list[dict[str, Any]]]:
    """Return the facts of a plan, by section."""
    largest = measured.largest_load
    facts = {
        **summary(window, plan),
        "fill": measured.fill,
        "padding": measured.padding,
        "dropped": measured.num_dropped,
        "dummies": measured.num_dummies,
        "largest_load": largest.copies if largest else None,
    }
    sections = {"plan": [facts], "cost": _cost_rows(plan, measured)}
    if largest:
        place = f"layer {largest.layer_id}, row {largest.row}, shard {largest.shard}"
        sections["most token copies on one EP rank"] = [
            {"copies": largest.copies, "where": f"{place}, EP rank {largest.ep_rank}"}
        ]
    unit = plan.unit_ticks
    sections["shards"] = [
        {"shard": s, "J": ticks / unit}
        for s, ticks in enumerate(measured.cost.shard_ticks_S.tolist())
    ]
    sections["rows"] = [
        {"row": r, "J": ticks / unit}
        for r, ticks in enumerate(measured.cost.row_ticks_R.tolist())
    ]
    sections["layers"] = _layer_rows(window, plan, measured)
    sections["notes"] = [{"note": note} for note in measured.notes]
    return {name: rows for name, rows in sections.items() if rows}


def _cost_rows(plan: Plan, measured: PlanReport) -> list[dict[str, Any]]:
    """Split J of the slowest shard into attention classes, experts and the offset."""
    cost = measured.cost
    attention_C = cost.critical(cost.attention_ticks_RSC).sum(axis=0)
    names = [f"attention, {c.name}" for c in plan.cost.attention]
    parts = [
        *zip(names, attention_C.tolist(), strict=True),
        ("experts", int(cost.critical(cost.expert_ticks_RSL).sum())),
        ("constant", cost.offset_ticks),
    ]
    return [
        {"part": name, "J": ticks / cost.unit_ticks, "share": ticks / cost.j_ticks}
        for name, ticks in parts
    ]


def _layer_rows(
    window: Window, plan: Plan, measured: PlanReport
) -> list[dict[str, Any]]:
    if measured.placement_cost is None or window.layer_ids_L is None:
        return []
    expert_L = measured.cost.critical(measured.cost.expert_ticks_RSL).sum(axis=0)
    moved = measured.moved_experts_L
    hot = {found.layer: found.expert for found in measured.decisive_experts}
    bounds = {b.evidence.get("layer"): b.value for b in plan.placement_bounds}
    rows = []
    for i, layer in enumerate(window.layer_ids_L.tolist()):
        peak = int(measured.placement_cost.peak_L[i])
        p50, p95, largest = measured.load_percentiles_L3[i].tolist()
        rows.append(
            {
                "layer": layer,
                "J": int(expert_L[i]) / plan.unit_ticks,
                "p50": p50,
                "p95": p95,
                "max": largest,
                "aggregate_peak": peak,
                "peak_bound": bounds.get(i),
                "silent_experts": int(measured.silent_experts_L[i]),
                "hot_expert": hot.get(i),
                "moved": None if moved is None else int(moved[i]),
            }
        )
    return rows
