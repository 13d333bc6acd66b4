import numpy as np
import pytest

from rpopt.errors import InstanceError
from rpopt.trainer.task import DigitTask

SIZES = {"base": 4, "min_digits": 2, "max_digits": 5}


@pytest.mark.parametrize(
    ("kind", "digits"),
    [("copy", [2, 0, 3, 0]), ("reverse", [0, 3, 0, 2]), ("sort", [0, 0, 2, 3])],
)
def test_answers(kind: str, digits: list[int]) -> None:
    task = DigitTask(kind=kind, **SIZES)
    prompt = np.array([2, 0, 3, 0, task.equals])
    assert task.answer(prompt).tolist() == [*digits, task.end]
    assert task.reward(prompt, task.answer(prompt)) == 1.0


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ([1, 2, 5], 1.0),
        ([1, 2], 2 / 3),  # never ends
        ([1, 5], 1 / 3),  # ends too early
        ([1, 2, 5, 5], 3 / 4),
        ([2, 1, 1, 1, 1, 1], 0.0),
    ],
)
def test_the_reward_counts_right_places(response: list[int], reward: float) -> None:
    task = DigitTask(kind="copy", **SIZES)
    assert task.reward(np.array([1, 2, 4]), np.array(response)) == reward


def test_prompts_depend_on_their_numbers_alone_and_have_all_lengths() -> None:
    task = DigitTask(kind="sort", **SIZES)
    prompts = [task.prompt(0, step) for step in range(100)]
    assert np.array_equal(task.prompt(0, 7), prompts[7])
    assert {prompt.size for prompt in prompts} == {3, 4, 5, 6}
    assert all(prompt[-1] == task.equals for prompt in prompts)
    assert {digit for prompt in prompts for digit in prompt[:-1]} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "add"}, "kind"),
        ({"base": 1}, "base"),
        ({"min_digits": 0}, "min_digits"),
        ({"max_digits": 1}, "max_digits"),
    ],
)
def test_tasks_that_make_no_sense_are_refused(change, message: str) -> None:
    with pytest.raises(InstanceError, match=message):
        DigitTask(**{"kind": "copy", **SIZES, **change})
