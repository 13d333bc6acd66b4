"""The torch engine: the same moves for all replicas at once, on any device.

This is the reference: each attempt is a few whole-population operations that follow
the definitions in `rpopt.anneal.moves` directly and price every group's attention and
every shard anew. The host never waits for the device inside a run.

Axis letters: as in `rpopt.anneal.tables`; M kinds of moves.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rpopt import counter
from rpopt.anneal.fixed import NEGLOG_BITS
from rpopt.anneal.moves import PATTERN, Kind
from rpopt.anneal.run import ByteArray
from rpopt.anneal.tables import Geometry, sums
from rpopt.records import Int64Array, IntArray

_LOW = 2**32 - 1
_STATE = (
    "_cell_BJ", "_size_BKH", "_attention_BKC", "_load_BGX", "_expert_BG",
    "_energy_B", "_slowest_B",
)  # fmt: skip


class TorchEngine:
    """Replicas of an instance as tensors; for the parameters see `CompiledEngine`."""

    name = "torch"

    def __init__(
        self,
        geometry: Geometry,
        start_AI: IntArray,
        start_B: Int64Array,
        key_B: np.ndarray,
        *,
        device: str = "cpu",
    ) -> None:
        t, self._device = geometry.tables, torch.device(device)
        self._t, self.num_items = t, t.num_items
        self._size_IH = self._put(t.size_IH)
        self._attention_IC = self._put(t.attention_IC)
        self._load_IX = self._put(t.load_IX.astype(geometry.load_dtype))
        self._exact_IX = self._load_IX[:-1].double()
        self._weight_L = self._put(t.layer_weight_L.astype(np.int64))
        self._group_K = self._put(t.group_K)
        self._neglog_U = self._put(t.neglog_U.astype(np.int64))
        self._limit_H = self._put(np.array([t.token_cap, t.sample_limit]))
        self._key_B = self._put(key_B.view(np.int64))
        self._replica_B = torch.arange(start_B.size, device=self._device)
        known = sums(t, start_AI)
        nobody_A1 = np.zeros((len(start_AI), 1), dtype=np.int64)
        cell_AJ = np.concatenate([start_AI, nobody_A1], axis=1)
        self._cell_BJ = self._put(cell_AJ[start_B])  # J = I + 1: with nobody
        self._size_BKH = self._put(known.size_BKH[start_B])
        self._attention_BKC = self._put(known.attention_BKC[start_B])
        self._load_BGX = self._put(known.load_BGX.astype(geometry.load_dtype)[start_B])
        self._expert_BG = self._put(known.expert_BG[start_B])
        self._energy_B = self._put(known.energy_B[start_B])
        mean_B = self._put(known.total_B[start_B] >> t.mean_shift)
        self._slowest_B = self._energy_B - mean_B
        self._accepted_M = self._put(np.zeros(len(Kind), dtype=np.int64))
        self.replica_bytes = sum(getattr(self, name)[:1].nbytes for name in _STATE)

    def _put(self, array: np.ndarray) -> Tensor:
        return torch.tensor(array, device=self._device)

    def run(self, temperature: int, first: int, count: int) -> None:
        """Attempt moves `first` to `first + count` in every replica."""
        attempts = {
            Kind.RELOCATE: self._try_relocate,
            Kind.SWAP: self._try_swap,
            Kind.CELLS: self._try_cells,
        }
        for n in range(first, first + count):
            word_1 = _draw(self._key_B, 2 * n)
            word_2 = _draw(self._key_B, 2 * n + 1)
            surprise_B = self._neglog_U[_shift(word_2, 52)]
            limit_B = self._energy_B + ((surprise_B * temperature) >> NEGLOG_BITS)
            kind = PATTERN[n % len(PATTERN)]
            high, low, third = _shift(word_1, 32), word_1 & _LOW, word_2 & _LOW
            attempts[kind](high, low, third, limit_B)

    def _try_relocate(
        self, high: Tensor, low: Tensor, third: Tensor, limit_B: Tensor
    ) -> None:
        if self._group_K.numel() == 1:
            return
        item_B = _below(high, self.num_items)
        cell_B = self._cell_BJ[self._replica_B, item_B]
        target_B = _other(low, self._group_K.numel(), cell_B)
        nobody_B = torch.full_like(item_B, self.num_items)
        self._swap_items(Kind.RELOCATE, item_B, nobody_B, cell_B, target_B, limit_B)

    def _try_swap(
        self, high: Tensor, low: Tensor, third: Tensor, limit_B: Tensor
    ) -> None:
        item_B = _below(high, self.num_items)
        other_B = _near(item_B, low, self.num_items)
        cell_B = self._cell_BJ[self._replica_B, item_B]
        target_B = self._cell_BJ[self._replica_B, other_B]
        self._swap_items(Kind.SWAP, item_B, other_B, cell_B, target_B, limit_B)

    def _swap_items(
        self,
        kind: Kind,
        item_B: Tensor,
        other_B: Tensor,
        cell_B: Tensor,
        target_B: Tensor,
        limit_B: Tensor,
    ) -> None:
        """Items exchange their cells where the constraints allow it."""
        every = self._replica_B
        gain_BH = self._size_IH[other_B] - self._size_IH[item_B]
        size_1_BH = self._size_BKH[every, cell_B] + gain_BH
        size_2_BH = self._size_BKH[every, target_B] - gain_BH
        fits_B = (
            (cell_B != target_B)
            & (size_1_BH[:, :2] <= self._limit_H).all(dim=1)
            & (size_2_BH[:, :2] <= self._limit_H).all(dim=1)
            & (size_1_BH[:, 2] >= 1)
        )
        gain_BC = self._attention_IC[other_B] - self._attention_IC[item_B]
        gain_BX = self._load_IX[other_B] - self._load_IX[item_B]
        ok_B = self._settle(
            kind, cell_B, target_B, gain_BH, gain_BC, gain_BX, fits_B, limit_B
        )
        self._cell_BJ[every, item_B] = torch.where(ok_B, target_B, cell_B)
        self._cell_BJ[every, other_B] = torch.where(
            ok_B, cell_B, self._cell_BJ[every, other_B]
        )

    def _try_cells(
        self, high: Tensor, low: Tensor, third: Tensor, limit_B: Tensor
    ) -> None:
        num_groups, size = self._t.entry_G.size, self._t.shard_size
        if num_groups == 1:
            return
        every, cell_B = self._replica_B, _below(high, self._group_K.numel())
        group_B = _other(low, num_groups, self._group_K[cell_B])
        target_B = group_B * size + _below(third, size)
        cell_BI = self._cell_BJ[:, :-1]
        in_1_BI, in_2_BI = cell_BI == cell_B[:, None], cell_BI == target_B[:, None]
        gain_BX = (in_2_BI.double() - in_1_BI.double()) @ self._exact_IX
        size_BKH, attention_BKC = self._size_BKH, self._attention_BKC
        ok_B = self._settle(
            Kind.CELLS,
            cell_B,
            target_B,
            size_BKH[every, target_B] - size_BKH[every, cell_B],
            attention_BKC[every, target_B] - attention_BKC[every, cell_B],
            gain_BX.to(self._load_IX.dtype),
            torch.ones_like(cell_B, dtype=torch.bool),
            limit_B,
        )
        shift_B1 = torch.where(ok_B, target_B - cell_B, 0)[:, None]
        cell_BI += shift_B1 * (in_1_BI.long() - in_2_BI.long())

    def _settle(
        self,
        kind: Kind,
        cell_B: Tensor,
        target_B: Tensor,
        gain_BH: Tensor,
        gain_BC: Tensor,
        gain_BX: Tensor,
        fits_B: Tensor,
        limit_B: Tensor,
    ) -> Tensor:
        """Give a cell what another loses where the energy allows it; return where."""
        every = self._replica_B
        group_1_B, group_2_B = self._group_K[cell_B], self._group_K[target_B]
        apart_B = (group_1_B != group_2_B)[:, None]
        gain_BX = torch.where(apart_B, gain_BX, 0)
        expert_BG = self._expert_BG.clone()
        for sign, group_B in ((1, group_1_B), (-1, group_2_B)):
            load_BX = self._load_BGX[every, group_B] + sign * gain_BX
            expert_BG[every, group_B] = self._price(load_BX)
        attention_BKC = self._attention_BKC.clone()
        attention_BKC[every, cell_B] += gain_BC
        attention_BKC[every, target_B] -= gain_BC
        energy_B, slowest_B = self._energies(attention_BKC, expert_BG)
        ok_B = fits_B & (energy_B <= limit_B)
        self._accept(kind, ok_B, energy_B, slowest_B)
        self._expert_BG = torch.where(ok_B[:, None], expert_BG, self._expert_BG)
        self._attention_BKC = torch.where(
            ok_B[:, None, None], attention_BKC, self._attention_BKC
        )
        gain_BX, gain_BH = gain_BX * ok_B[:, None], gain_BH * ok_B[:, None]
        self._load_BGX[every, group_1_B] += gain_BX
        self._load_BGX[every, group_2_B] -= gain_BX
        self._size_BKH[every, cell_B] += gain_BH
        self._size_BKH[every, target_B] -= gain_BH
        return ok_B

    def _price(self, load_BX: Tensor) -> Tensor:
        """Return the expert ticks of one group per replica."""
        load_BPL = load_BX.view(load_BX.shape[0], self._t.num_ep_ranks, -1)
        return (load_BPL.amax(dim=1).long() * self._weight_L).sum(dim=1)

    def _energies(
        self, attention_BKC: Tensor, expert_BG: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return energies and J of replicas."""
        t, (num_replicas, num_groups) = self._t, expert_BG.shape
        attention_BGhC = attention_BKC.view(num_replicas, num_groups, t.shard_size, -1)
        ticks_BG = attention_BGhC.amax(dim=2).sum(dim=2) + expert_BG
        ticks_BRS = ticks_BG.view(num_replicas, -1, t.num_shards)
        if t.part_G[-1] == 0:
            slowest_B = ticks_BRS.sum(dim=1).amax(dim=1)
        else:
            slowest_B = ticks_BRS.amax(dim=2).sum(dim=1)
        slowest_B = slowest_B + t.offset_ticks
        return slowest_B + (ticks_BG.sum(dim=1) >> t.mean_shift), slowest_B

    def _accept(
        self, kind: Kind, ok_B: Tensor, energy_B: Tensor, slowest_B: Tensor
    ) -> None:
        self._energy_B = torch.where(ok_B, energy_B, self._energy_B)
        self._slowest_B = torch.where(ok_B, slowest_B, self._slowest_B)
        self._accepted_M[kind] += ok_B.sum()

    def energies(self) -> Int64Array:
        """Return the energy of each replica."""
        return self._energy_B.cpu().numpy().copy()

    def copy(self, parent_B: Sequence[int]) -> None:
        """Replace each replica by its parent."""
        parent = torch.tensor(parent_B, dtype=torch.int64, device=self._device)
        for name in _STATE:
            setattr(self, name, getattr(self, name)[parent])

    def pack(self, replica: int) -> ByteArray:
        """Return one replica's state."""
        parts = [getattr(self, name)[replica] for name in _STATE]
        return np.concatenate(
            [part.cpu().numpy().reshape(-1).view(np.uint8) for part in parts]
        )

    def unpack(self, replica: int, data: ByteArray) -> None:
        """Replace one replica's state."""
        first, whole = 0, torch.from_numpy(data.copy())
        for name in _STATE:
            part = getattr(self, name)[replica]
            bytes_ = whole[first : first + part.nbytes].clone()
            part.copy_(bytes_.view(part.dtype).view(part.shape))
            first += part.nbytes

    def slowest(self) -> Int64Array:
        """Return J of each replica, in ticks."""
        return self._slowest_B.cpu().numpy().copy()

    def cells(self, replica: int) -> IntArray:
        """Return the cells of one replica [I]."""
        return self._cell_BJ[replica, :-1].cpu().numpy().copy()

    def accepted(self) -> Int64Array:
        """Return how many moves of each kind were accepted so far, [M]."""
        return self._accepted_M.cpu().numpy().copy()

    def close(self) -> None:
        """Nothing to end."""


def _shift(word: Tensor, bits: int) -> Tensor:
    """Shift 64-bit words right, filling with zeros."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def _draw(key_B: Tensor, index: int) -> Tensor:
    """Return draw `index` of each key: `counter.draw` in wrapping int64."""
    value = key_B + _signed(index * counter.GOLDEN)
    value = (value ^ _shift(value, 30)) * _signed(counter.MIX_1)
    value = (value ^ _shift(value, 27)) * _signed(counter.MIX_2)
    return value ^ _shift(value, 31)


def _signed(value: int) -> int:
    """Return the int64 with the same lower 64 bits."""
    value &= counter.MASK
    return value - 2**64 if value >= 2**63 else value


def _below(word: Tensor, bound: int) -> Tensor:
    return (word * bound) >> 32


def _other(word: Tensor, bound: int, chosen: Tensor) -> Tensor:
    value = _below(word, bound - 1)
    return value + (value >= chosen)


def _near(item: Tensor, word: Tensor, num_items: int) -> Tensor:
    bits = max(1, (num_items - 1).bit_length())
    scale = (((word >> 1) & 31) * bits) >> 5
    reach = (torch.full_like(scale, num_items - 1) >> scale).clamp(min=1)
    distance = 1 + (((word >> 6) * reach) >> 26)
    distance = torch.where((word & 1).bool(), num_items - distance, distance)
    return (item + distance) % num_items


def load(device: str) -> None:
    """Raise unless the device can be used."""
    torch.zeros(1, device=torch.device(device))
