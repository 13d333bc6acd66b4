"""One small record of every type that has a file."""

from fractions import Fraction

import numpy as np

from rpopt.certificate import Bound, Certificate
from rpopt.cost import AttentionClass, CostModel
from rpopt.layout.instance import LayoutInstance
from rpopt.packing.instance import PackingInstance, PackingSolution
from rpopt.placement.instance import PlacementInstance
from rpopt.plans import Layout, Placement, Plan
from rpopt.records import Record
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window

WINDOW = Window(
    length_N=[4, 2, 3],
    demand_NLE=[
        [[4, 4, 0, 0], [2, 2, 2, 2]],
        [[0, 0, 2, 2], [0, 2, 0, 2]],
        [[2, 2, 2, 0], [3, 0, 0, 3]],
    ],
    top_k=2,
    prompt_group_N=[0, 0, 1],
    bundle_N=[-1, 7, 7],
    layer_ids_L=[3, 5],
    origin="made by hand — for tests",
)
CERTIFICATE = Certificate(
    problem="rows",
    instance_digest="ab" * 32,
    upper=2,
    witness={"cell_I": np.array([0, 1, 1]), "note": "ünïcode", "share": Fraction(1, 3)},
    bounds=(
        Bound(name="volume", kind="arithmetic", value=2, evidence={"sum": [1, [2, 3]]}),
        Bound(name="lp", kind="solver", value=2, evidence={"raw": 1.9999999999999998}),
    ),
    termination="closed",
    versions=(("rpopt", "0.1.0"), ("numpy", "2")),
)
PLACEMENT = Placement(slot_LE=[[0, 1, 2, 3], [3, 1, 0, 2]], num_ep_ranks=2)
LAYOUT = Layout(row_I=[0, 0, 1], rank_I=[0, 1, 0], num_rows=2)
COST = CostModel(
    attention=(AttentionClass(c1=Fraction(1), c2=Fraction(1, 32768)),),
    omega=Fraction(1, 2),
    layer_weight_L=(Fraction(1), Fraction(2)),
)
PLAN = Plan(
    window_digest=WINDOW.digest,
    topology=Topology(dp=2, ep=2),
    rules=PackingRules(token_cap=8, max_samples_per_cell=3),
    cost=COST,
    placement=PLACEMENT,
    layout=LAYOUT,
    rows=CERTIFICATE,
    placement_bounds=(Bound(name="mean", kind="arithmetic", value=6),),
    layout_bounds=(),
    j_ticks=2**60 + 1,
    unit_ticks=2**44,
    method="by hand",
    seed=-3,
    termination="sweeps",
)
NPZ_RECORDS: tuple[Record, ...] = (
    WINDOW,
    Window(length_N=[5, 1]),
    PackingInstance(weight_I=[3, 4], capacity=8, max_samples_per_cell=2),
    PlacementInstance(load_LE=[[1, 2, 3, 4]], num_ep_ranks=2),
    LayoutInstance(
        weight_I=[3, 4],
        num_samples_I=[1, 1],
        attention_ticks_IC=[[5], [6]],
        load_ILP=np.ones((2, 1, 2), dtype=np.int32),
        layer_weight_ticks_L=[9],
        offset_ticks=0,
        unit_ticks=2**44,
        num_rows=1,
        token_cap=8,
        shard_of_rank_D=[0, 0],
    ),
)
JSON_RECORDS: tuple[Record, ...] = (
    PLAN,
    CERTIFICATE,
    PLACEMENT,
    LAYOUT,
    PackingSolution(cell_I=[0, 1, 0]),
    Topology(dp=4, ep=2, shard_of_rank_D=[0, 1, 0, 1], coupling="row"),
    PackingRules(token_cap=8, oversize="drop"),
    COST,
)
