"""Lessons come from the training split and err; exams come from the held-out split and are right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.cli.warmup import course_of
from tether.models.catalog import EMBEDDED
from tether.models.warmup import Lessons
from tether.tasks.lessons import Course
from tether.tasks.splits import is_heldout

CHAINS, LISTS = course_of("arithmetic"), course_of("sorting")
COURSES = st.sampled_from([CHAINS, LISTS])
SEEDS = st.integers(0, 2**31)
INDICES = st.integers(0, 10**6)


@given(COURSES, SEEDS, INDICES)
def test_lesson_is_a_question_of_the_training_split_and_the_same_again(course, seed, index):
    question, _ = course.lesson(seed, index)
    assert question == course.pupil.task.problem("train", seed, index).text
    assert course.lesson(seed, index) == Course(course.pupil).lesson(seed, index)


@given(INDICES)
def test_exam_is_held_out(index):
    assert is_heldout(CHAINS.exam(index)[0])
    assert is_heldout(LISTS.exam(index)[1])


@given(COURSES, INDICES)
def test_the_right_answer_to_an_exam_is_right_and_a_cut_one_is_not(course, index):
    _, answer = course.exam(index)
    assert course.is_right(answer, answer)
    assert not course.is_right(answer, answer[:-1])


def test_exams_are_not_what_a_run_of_seed_0_is_evaluated_on():
    for course in (CHAINS, LISTS):
        heldout = [course.pupil.task.problem("heldout", 0, index).text for index in range(20)]
        assert [course.exam(index)[0] for index in range(20)] != heldout


@pytest.mark.parametrize("course", [CHAINS, LISTS], ids=["arithmetic", "sorting"])
def test_pupils_err_in_part_of_their_answers(course):
    problems = [course.pupil.task.problem("train", 0, index) for index in range(1000)]
    right = sum(
        course.is_right(problem.demonstration, course.lesson(0, index)[1]) for index, problem in enumerate(problems)
    )
    assert 0.25 < right / 1000 < 0.40


def test_every_embedded_model_has_a_course():
    courses = [course_of(entry.task) for entry in EMBEDDED.values()]
    assert all(isinstance(course, Lessons) for course in courses)
