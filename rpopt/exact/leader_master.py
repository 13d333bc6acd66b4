"""The linear program over leaders, whose duals are good multipliers for a leader bound.

Items stand in the order of `leader_bound.leader_order`; class k holds the possible
leaders from place start_k up to the next start. With y_k groups led from class k, the
share z_kj of item j >= start_k in them, the sum c_k of their attention peaks and the
sums e_kl of their expert peaks:

    minimise  sum of c_k + sum of e_kl + mean over cells of the other classes
    (1) sum over k of z_kj = 1                             every item          [price]
    (2) sum over j of a_j z_kj <= h c_k                    mean attention      [alpha]
    (3) sum over j of w_j z_kj <= h W y_k                  tokens              [room]
    (4) sum over j of x_jlq z_kj <= e_kl                   EP rank q           [theta]
    (5) c_k >= (attention of the last leader of class k) y_k
    (6) y_k + ... + y_K <= groups - forced_k,  y_0 + ... + y_K = groups
    (7) z_kj <= y_k                                        once per group

Where a class has one item, that is the leader: z = y; only there are rows (7) worth
having. The unit of the objective is the mean attention of a cell.

Axis letters: J items in order, K classes, L MoE layers with a cost, P EP ranks, M rows,
Z nonzeros.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp

from rpopt.highs import LinearModel
from rpopt.highs.linear import FloatArray
from rpopt.layout.instance import LayoutInstance
from rpopt.layout.leader_bound import (
    LeaderClass,
    Multipliers,
    forced_leaders,
    leader_order,
)
from rpopt.records import Int64Array

_PRECISION_BITS = 24


class Master:
    """The program of one instance, attention class and number of classes.

    Parameters
    ----------
    instance
        The layout instance.
    attention_class
        The class that orders the items.
    num_classes
        The longest items are a class each, and all others are the last one.
    """

    def __init__(
        self, instance: LayoutInstance, attention_class: int, num_classes: int
    ) -> None:
        self.instance, self.attention_class = instance, attention_class
        self.num_classes = num_classes
        self.order_J = leader_order(instance, attention_class)
        ticks_JC = instance.attention_ticks_IC[self.order_J]
        lead_J = ticks_JC[:, attention_class]
        self.unit = max(1.0, float(lead_J.sum()) / instance.num_cells)
        self.lead_J = lead_J / self.unit
        self.other_J = (ticks_JC.sum(axis=1) - lead_J) / self.unit
        self.weight_J = instance.weight_I[self.order_J] / instance.token_cap
        costly_L = instance.load_ILP.any(axis=(0, 2))
        self.layers = np.flatnonzero(costly_L & (instance.layer_weight_ticks_L > 0))
        weight_L = instance.layer_weight_ticks_L[self.layers] / self.unit
        load_JLP = instance.load_ILP[self.order_J][:, self.layers]
        self.load_JLP: FloatArray = load_JLP * weight_L[:, None]
        self.forced_K = [
            forced_leaders(instance, self.order_J[:k]) for k in range(num_classes)
        ]

    # --------------------------------------------------------------------- the columns

    def z(self, k: int) -> Int64Array:
        """Return the columns of the shares in class k; a sole leader's is its y.

        The columns are all y, all c, all e, then all z.
        """
        first = (2 + self.layers.size) * self.num_classes + k * self.instance.num_items
        column_J = first + np.arange(k, self.instance.num_items)
        if k + 1 < self.num_classes:
            column_J[0] = k
        return column_J

    # ------------------------------------------------------------------------ the rows

    def model(self) -> LinearModel:
        """Return the program."""
        instance, size, rows = self.instance, self.num_classes, _Rows()
        h, groups = instance.shard_size, instance.num_groups
        num_items = instance.num_items
        ks = np.arange(size)
        z_K = [self.z(k) for k in range(size)]
        item = np.concatenate([np.arange(k, num_items) for k in range(size)])
        rows.add(num_items, 1, 1, [(item, np.concatenate(z_K), 1.0)])
        by_class = np.concatenate([np.full(z.size, k) for k, z in enumerate(z_K)])
        z = np.concatenate(z_K)
        attention = (by_class, z, self.lead_J[item])
        rows.add(size, -np.inf, 0, [attention, (ks, size + ks, -float(h))])
        tokens = (by_class, z, self.weight_J[item])
        rows.add(size, -np.inf, 0, [tokens, (ks, ks, -float(h))])
        for k in range(size):
            rows.add(*self._expert_rows(k, z_K[k]))
        peak_K = np.append(self.lead_J[: size - 1], self.lead_J[-1])
        rows.add(size, -np.inf, 0, [(ks, ks, peak_K), (ks, size + ks, -1.0)])
        later = np.triu_indices(size)
        rows.add(size, -np.inf, groups - np.array(self.forced_K), [(*later, 1.0)])
        rows.add(1, groups, groups, [(ks * 0, ks, 1.0)])
        for k in range(size - 1):
            shares = np.arange(z_K[k].size - 1)
            once = [(shares, z_K[k][1:], 1.0), (shares, shares * 0 + k, -1.0)]
            rows.add(shares.size, -np.inf, 0, once)
        cost = np.zeros((2 + self.layers.size + self.instance.num_items) * size)
        cost[size : (2 + self.layers.size) * size] = 1
        np.add.at(cost, z, self.other_J[item] / h)
        upper = np.full(cost.size, np.inf)
        upper[: size - 1] = 1
        return rows.model(cost, upper)

    def _expert_rows(self, k: int, column_J: Int64Array) -> Any:
        """Return the rows (4) of class k."""
        num_layers, num_ranks = self.load_JLP.shape[1:]
        num = num_layers * num_ranks
        load_JM = self.load_JLP[k:].reshape(column_J.size, num)
        row_JM = np.broadcast_to(np.arange(num), load_JM.shape)
        column_JM = np.broadcast_to(column_J[:, None], load_JM.shape)
        first = 2 * self.num_classes + k * num_layers
        peaks = first + np.repeat(np.arange(num_layers), num_ranks)
        loads = (row_JM.ravel(), column_JM.ravel(), load_JM.ravel())
        return num, -np.inf, 0, [loads, (np.arange(num), peaks, -1.0)]

    # ----------------------------------------------------------------------- the duals

    def multipliers(self, dual_M: FloatArray) -> Multipliers:
        """Round the duals of the program to multipliers."""
        instance, size = self.instance, self.num_classes
        unit = instance.shard_size << _PRECISION_BITS
        shape = (size, self.layers.size, instance.load_ILP.shape[2])
        sizes = [self.instance.num_items, size, size, int(np.prod(shape))]
        price_J, alpha_K, room_K, theta_KLP, _ = np.split(dual_M, np.cumsum(sizes))
        room_K = -room_K * (self.unit * unit / instance.token_cap)
        price_I = [0] * self.instance.num_items
        for i, price in zip(self.order_J.tolist(), price_J.tolist(), strict=True):
            price_I[i] = round(price * self.unit * unit)
        classes = tuple(
            LeaderClass(
                start=k,
                alpha=min(max(0, round(-alpha_K[k] * unit)), 1 << _PRECISION_BITS),
                room=max(0, round(room_K[k])),
                theta=self._theta(-theta_KLP.reshape(shape)[k]),
            )
            for k in range(size)
        )
        return Multipliers(
            attention_class=self.attention_class,
            denominator=unit,
            price_I=tuple(price_I),
            classes=classes,
        )

    def _theta(self, share_LP: FloatArray) -> tuple[tuple[int, int, int], ...]:
        """Round shares of the layers' weights down; the largest gets what is left."""
        weight_L = self.instance.layer_weight_ticks_L[self.layers]
        share_LP = np.maximum(share_LP, 0)
        share_LP = share_LP / np.maximum(share_LP.sum(axis=1, keepdims=True), 1e-9)
        ticks_LP = np.floor(share_LP * weight_L[:, None]).astype(np.int64)
        left_L = weight_L - ticks_LP.sum(axis=1)
        ticks_LP[np.arange(weight_L.size), share_LP.argmax(axis=1)] += left_L
        return tuple(
            (int(self.layers[layer]), int(q), int(ticks_LP[layer, q]))
            for layer, q in np.argwhere(ticks_LP > 0)
        )


class _Rows:
    """Rows of a program under construction."""

    def __init__(self) -> None:
        self.num = 0
        self.parts: list[tuple[Any, Any, Any]] = []
        self.lower: list[FloatArray] = []
        self.upper: list[FloatArray] = []

    def add(self, num: int, lower: Any, upper: Any, terms: list[Any]) -> None:
        """Append rows; terms are (row, column, value), rows numbered from 0."""
        for row_Z, col_Z, value_Z in terms:
            value_Z = np.broadcast_to(value_Z, np.shape(col_Z))
            self.parts.append((row_Z + self.num, col_Z, value_Z))
        self.lower.append(np.broadcast_to(np.float64(lower), num))
        self.upper.append(np.broadcast_to(np.float64(upper), num))
        self.num += num

    def model(self, cost: FloatArray, upper: FloatArray) -> LinearModel:
        """Return the program of these rows."""
        row_Z, col_Z, value_Z = map(np.concatenate, zip(*self.parts, strict=True))
        shape = (self.num, cost.size)
        matrix = sp.coo_array((value_Z, (row_Z, col_Z)), shape=shape).tocsc()
        matrix.eliminate_zeros()
        matrix.sort_indices()
        return LinearModel(
            starts=matrix.indptr.astype(np.int64),
            rows=matrix.indices.astype(np.int64),
            coefs=matrix.data,
            col_cost=cost,
            col_lower=np.zeros(cost.size),
            col_upper=upper,
            integrality=np.zeros(cost.size, dtype=bool),
            row_lower=np.concatenate(self.lower),
            row_upper=np.concatenate(self.upper),
        )
