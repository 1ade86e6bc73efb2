"""Runs of the real loops with a curriculum: the bound, the ledger and exact resume hold as without one."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from tests.pipeline.running import Run, World
from tether.pipeline.curriculum import CurriculumOptions
from tether.pipeline.schedule import Schedule
from tether.pipeline.selection import FLAT
from tether.records import Metrics, Prompt

from .unchecked import unchecked_types  # noqa: F401 - holds for this module
from .worlds import check, close, overtaken, random_world

NUM_WORLDS = 40
NUM_RESUMED = 24


def few_problems(index: int) -> Prompt:
    number = index % 7
    return Prompt(
        id=f"p/{index}", text="?", token_ids=(3, 4), reference="!", problem=f"p/{number}", pass_rate=number / 6
    )


def curriculum_world(seed: int, *, is_exact: bool = False) -> tuple[Schedule, World]:
    numbers = random.Random(f"curriculum {seed}")
    schedule, world = random_world(seed, is_exact=is_exact)
    options = CurriculumOptions(
        retire_above=numbers.choice([0.5, 1.0]),
        retire_below=numbers.choice([None, 0.0]),
        least_groups=numbers.choice([0.1, 0.5, 1.0]),
        half_life=numbers.choice([1.0, 4.0, 64.0]),
        rest=numbers.randint(1, 9),
        most=numbers.choice([None, 0.9]),
        order=numbers.choice(["uniform", "easy-first", "medium-first"]),
        choices=numbers.randint(1, 4),
        most_skipped=numbers.randint(7, 20),
    )
    return schedule, replace(world, prompts=few_problems, curriculum=options)


def sources(run: Run) -> list[int]:
    """Indices of the source that were asked, in the order of admission, by the ledger."""
    by_group = {int(line.id[1:].partition("/")[0]): int(line.prompt_id.partition("/")[2]) for line in run.lines}
    return [by_group[group] for group in sorted(by_group)]


def listen(run: Run) -> Counter[str]:
    """Everything that a run's steps tell of its curriculum, added up, with what is left at its end."""
    total, take, go = Counter[str](), run.loops.curriculum.take, run.go

    def told() -> Metrics:
        metrics = take()
        total.update({name.removeprefix("curriculum/"): int(metric.value) for name, metric in metrics.items()})
        return metrics

    def to_the_end() -> Run:
        go()
        told()
        return run

    run.loops.curriculum.take, run.go = told, to_the_end
    return total


def test_all_laws_hold_with_a_curriculum_and_a_skipped_problem_is_no_rollout():
    met = Counter[str]()
    for seed in range(NUM_WORLDS):
        schedule, world = curriculum_world(seed)
        run = Run(schedule, world)
        taken = listen(run)
        check(run.go())
        assert overtaken(run) <= schedule.window, seed
        asked, state = sources(run), run.loops.curriculum.state()
        assert len(asked) == len(set(asked)) == run.buffer.num_admitted == state.asked, seed
        met["skipped"] += state.cursor - len(asked) - len(state.window)
        skipped = sum(taken[f"skipped_{why}"] for why in ("easy", "hard", "given"))
        assert state.cursor == len(asked) + len(state.window) + skipped, seed
        met["woken"] += taken["woken"]
        met["put off"] += asked != sorted(asked)
        met["filtered"] += sum(num for fate, num in run.ledger.balance().items() if fate in FLAT.values())
        if max(max(seen) for seen in run.learner.seen) == schedule.bound:
            met["at the bound"] += 1
    assert set(+met) == {"skipped", "woken", "put off", "filtered", "at the bound"}, met


def test_a_run_with_a_curriculum_goes_on_as_if_it_had_never_stopped():
    for seed in range(NUM_RESUMED):
        schedule, world = curriculum_world(seed, is_exact=True)
        whole = Run(schedule, world).go()
        number = random.Random(seed).randint(1, world.steps)
        after = Run(schedule, world).go_on_from(whole, number)
        assert after.learner.batches == whole.learner.batches[number:], seed
        assert after.loops.curriculum.state() == whole.loops.curriculum.state(), seed
        close(whole)
        close(after)
        assert after.lines == whole.lines[whole.saved[number].num_lines :], seed


def test_a_state_that_lacked_the_curriculum_would_go_on_otherwise():
    differs = 0
    for seed in range(12):
        schedule, world = curriculum_world(seed, is_exact=True)
        whole = Run(schedule, world).go()
        number = max(1, world.steps // 2)
        saved = whole.saved[number]
        whole.saved[number] = replace(saved, state=replace(saved.state, curriculum=None))
        after = Run(schedule, world).go_on_from(whole, number)
        close(whole)
        close(after)
        differs += after.lines != whole.lines[saved.num_lines :]
    assert differs


def test_groups_that_are_filtered_are_measured_as_well():
    for seed in range(NUM_WORLDS):
        schedule, world = curriculum_world(seed)
        if world.selection.flat_groups != "filter":
            continue
        run = Run(schedule, world)
        heard = list[int]()
        learn = run.loops.rolling.measured
        run.loops.rolling.measured = lambda group, learn=learn, heard=heard: (heard.append(group.index), learn(group))
        run.go()
        flat = {int(line.id[1:].partition("/")[0]) for line in run.lines if line.fate in FLAT.values()}
        few = {int(line.id[1:].partition("/")[0]) for line in run.lines if line.fate == "filtered:too-few-survivors"}
        assert flat <= set(heard), seed
        assert not few & set(heard), seed
        assert len(heard) == len(set(heard)), seed
        if flat:
            return
    raise AssertionError("no world filtered a flat group")
