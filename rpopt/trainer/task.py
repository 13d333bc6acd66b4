"""Digit strings: prompts that never end, with a reward that is exactly computable.

A prompt is a string of digits and `=`; its answer is digits and an end mark.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rpopt.counter import generator
from rpopt.errors import InstanceError
from rpopt.records import Int64Array, IntArray, freeze, positive_int

Kind = Literal["copy", "reverse", "sort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DigitTask:
    """A task on digit strings.

    Token ids: the digits 0 to `base` - 1, then `=`, then the end mark.

    Parameters
    ----------
    kind
        What the answer is: the digits of the prompt as they are, reversed or sorted.
    base
        Different digits.
    min_digits, max_digits
        Digits of a prompt; all numbers between are equally likely.
    """

    kind: Kind
    base: int
    min_digits: int
    max_digits: int

    def __post_init__(self) -> None:
        """Check kind and sizes."""
        if self.kind not in get_args(Kind):
            raise InstanceError(f"kind = {self.kind!r}; use one of {get_args(Kind)}")
        for name, minimum in (("base", 2), ("min_digits", 1)):
            value = positive_int(getattr(self, name), name=name, minimum=minimum)
            freeze(self, name, value)
        most = positive_int(self.max_digits, name="max_digits", minimum=self.min_digits)
        freeze(self, "max_digits", most)

    @property
    def equals(self) -> int:
        """Id of the token that ends a prompt."""
        return self.base

    @property
    def end(self) -> int:
        """Id of the token that ends an answer."""
        return self.base + 1

    @property
    def vocab_size(self) -> int:
        """Different tokens."""
        return self.base + 2

    @property
    def max_prompt(self) -> int:
        """Tokens of the longest prompt."""
        return self.max_digits + 1

    @property
    def max_answer(self) -> int:
        """Tokens of the longest right answer."""
        return self.max_digits + 1

    def prompt(self, *coordinates: int) -> Int64Array:
        """Return the prompt that belongs to some numbers, such as (seed, step, i)."""
        rng = generator(*coordinates)
        num_digits = rng.integers(self.min_digits, self.max_digits + 1)
        return np.append(rng.integers(self.base, size=num_digits), self.equals)

    def answer(self, prompt: IntArray) -> Int64Array:
        """Return the right answer, end mark included."""
        digits = np.asarray(prompt[:-1], dtype=np.int64)
        if self.kind == "reverse":
            digits = digits[::-1]
        elif self.kind == "sort":
            digits = np.sort(digits)
        return np.append(digits, self.end)

    def reward(self, prompt: IntArray, response: IntArray) -> float:
        """Return the share of right tokens, in places of the longer of both strings."""
        answer = self.answer(prompt)
        both = min(answer.size, response.size)
        right = int((answer[:both] == response[:both]).sum())
        return right / max(answer.size, response.size)
