"""From a window to the instances of the three problems: the same for every user.

The planner solves what is built here and the verifier rebuilds it, so a plan is
checked against its window and never against its own words.

Axis letters: I items, L MoE layers, E experts, P EP ranks.
"""

import numpy as np

from rpopt.cost import CostModel, scale_costs
from rpopt.demand import aggregate, by_group, project
from rpopt.errors import InstanceError
from rpopt.items import Items, add_dummies, build_items
from rpopt.layout.instance import LayoutInstance
from rpopt.packing.instance import PackingInstance
from rpopt.placement.instance import PlacementInstance
from rpopt.placement.instance_window import WindowPlacementInstance
from rpopt.plans import Layout, Placement
from rpopt.rules import PackingRules
from rpopt.topology import Topology
from rpopt.window import Window


class WindowProblems:
    """The problems of one window under a topology, packing rules and a cost model.

    Parameters
    ----------
    window, topology, rules, cost
        What the plan is for.

    Attributes
    ----------
    items
        The items to pack, without dummies.
    packing
        The packing instance.
    placement
        The placement instance on aggregate demand; None with lengths only.
    """

    def __init__(
        self,
        window: Window,
        topology: Topology,
        rules: PackingRules,
        cost: CostModel,
    ) -> None:
        self.window, self.topology = window, topology
        self.rules, self.cost = rules, cost
        if window.num_layers:
            topology.experts_per_rank(window.num_experts)
        self.items = build_items(window, rules)
        self.packing = PackingInstance.from_items(self.items, rules, topology)
        self.placement: PlacementInstance | None = None
        self._copies_L = np.zeros(0, dtype=np.int64)
        if window.num_layers:
            load_LE = aggregate(window, self.items, rules)
            self.placement = PlacementInstance(
                load_LE=load_LE, num_ep_ranks=topology.ep
            )
            self._copies_L = load_LE.sum(axis=1)

    def items_for(self, num_rows: int) -> Items:
        """Return the items that fill `num_rows` rows, with dummies where allowed."""
        return add_dummies(self.items, num_rows * self.topology.dp, self.rules)

    def groups(self, layout: Layout) -> WindowPlacementInstance:
        """Return the window-aware placement instance of the groups of a layout.

        All groups weigh the same: annealed shards cost about the same, so that J is
        close to their mean.

        Raises
        ------
        InstanceError
            For a window with lengths only.
        """
        if self.placement is None:
            raise InstanceError("a window with lengths only has no experts to place")
        shard_D = self.topology.rank_shards_D
        num_shards = int(shard_D.max()) + 1
        demand_GLE = by_group(
            self.window,
            self.items_for(layout.num_rows),
            self.rules,
            layout.row_I * num_shards + shard_D[layout.rank_I],
            layout.num_rows * num_shards,
        )
        return WindowPlacementInstance(
            demand_GLE=demand_GLE, num_ep_ranks=self.topology.ep
        )

    def layout(self, placement: Placement | None, num_rows: int) -> LayoutInstance:
        """Return the layout instance under a placement and a number of rows.

        Raises
        ------
        InstanceError
            When the placement does not fit the window or the topology.
        InfeasibleError
            When there are too few items, and the rules do not allow dummies.
        """
        if (placement is None) != (self.placement is None):
            raise InstanceError(
                "a placement is needed exactly when the window has routes; this one"
                f" has {self.window.num_layers} MoE layers"
            )
        if placement is not None and placement.num_ep_ranks != self.topology.ep:
            raise InstanceError(
                f"the placement is for {placement.num_ep_ranks} EP ranks; the topology"
                f" has ep = {self.topology.ep}"
            )
        items = self.items_for(num_rows)
        if placement is None:
            load_ILP = np.zeros((items.num_items, 0, self.topology.ep), dtype=np.int32)
        else:
            load_ILP = project(self.window, items, self.rules, placement)
        scaled = scale_costs(
            self.cost, self.window, items, self.topology, self._copies_L
        )
        return LayoutInstance.from_parts(
            items=items,
            rules=self.rules,
            topology=self.topology,
            scaled=scaled,
            load_ILP=load_ILP,
            num_rows=num_rows,
        )
