"""The worked numbers of evaluation."""

import numpy as np
import pytest

from tether.evals.at_k import average_at, average_of_each, majority_at, pass_at
from tether.evals.estimators import proportion

from .tables import assert_close, inputs, rows


def test_several_samples_a_problem_give_the_worked_averages():
    name = "avg@8 / pass@8 / maj"
    given = inputs(name)
    (row,) = rows(name)
    correct = np.array(given["answers"]) == np.array(given["reference"])[:, None]
    answers = [[str(x) for x in line] for line in given["answers"]]
    assert_close(average_of_each(correct).tolist(), row["per-problem mean"])
    assert_close(average_at(correct).value, row["avg@8"])
    assert_close(pass_at(correct, 2).value, row["pass@2"])
    assert_close(pass_at(correct, 8).value, row["pass@8"])
    assert_close(majority_at(answers, correct.tolist()).value, row["maj@8"])


@pytest.mark.parametrize("row", rows("AIME24 granularity"), ids=lambda row: str(row["samples"]))
def test_a_score_of_thirty_problems_is_a_multiple_of_one_sample(row):
    correct = (np.arange(row["samples"]) < row["correct"]).reshape(30, -1)
    assert_close(100 * average_at(correct).value, row["score"])
    assert_close(100 * proportion(row["correct"], row["samples"]).value, row["score"])
