"""What one attempted move is: kinds, their order, and the random bits they use.

Attempt n of a replica uses two draws, r = draw(key, 2 n) and s = draw(key, 2 n + 1)
(`rpopt.counter`), whose key comes from the seed and the replica's slot in the whole
population. Below, r.hi and r.lo are the upper and lower 32 bits of r; `below(x, m)` is
x m >> 32; "other" skips the first choice.

========== =============================================== ======================
kind       proposal                                        null when
========== =============================================== ======================
RELOCATE   item below(r.hi, I) to other cell               one cell; item is alone
           below(r.lo, K - 1)
SWAP       item i = below(r.hi, I) with item near(i, r.lo) same cell
CELLS      cell below(r.hi, K) with cell below(s.lo, h)    one group
           of other group below(r.lo, G - 1)
========== =============================================== ======================

Items are numbered by increasing attention cost, and `near` draws a distance whose
logarithm is uniform: most swaps exchange similar items, so that a cold population still
finds moves, and some exchange very different ones. With the upper 12 bits u of s, a
feasible move is accepted when its energy difference is at most -log(u) T.

Axis letters: I items, K cells, G groups, h cells of a group.
"""

from enum import IntEnum


class Kind(IntEnum):
    """Kinds of moves."""

    RELOCATE = 0
    SWAP = 1
    CELLS = 2


_R, _S, _C = Kind.RELOCATE, Kind.SWAP, Kind.CELLS
PATTERN = (_R, _S, _S, _S, _C, _S, _S, _S, _S, _S, _R, _S, _C, _S, _S, _S)
"""Attempt n has kind PATTERN[n % 16], in every replica."""

STREAM = 0x6D6F7665  # of the replicas' keys: counter.key(seed, STREAM, slot)
