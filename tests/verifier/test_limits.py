"""The modes themselves behind their limits: what the notes say of time, memory, threads and statuses."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import get_args

import pytest

from tether.verifier.pool import Verifier
from tether.verifier.verdict import Mode
from tether.verifier.verify import verify

BOMBS = (
    r"\boxed{10^{10^{10}}}",
    r"\boxed{100000000!}",
    r"\boxed{2^{2^{2^{2^{2^{2}}}}}}",
    r"\boxed{\sum_{k=1}^{10^9}\frac1k}",
)
NESTED = r"x"
for _base in range(1, 9):
    NESTED = rf"\log_{{2^{_base}}}({NESTED})"


@pytest.fixture(scope="module", params=get_args(Mode))
def verifier(request: pytest.FixtureRequest) -> Iterator[Verifier]:
    with Verifier(request.param, workers=2, limit_s=1.0) as made:
        yield made


def test_what_a_worker_says_is_what_the_function_says() -> None:
    pairs = [(r"\boxed{\frac13}", r"\frac13"), (r"\boxed{2}", "200"), ("none", "3"), (r"\boxed{025}", "25")]
    for mode in get_args(Mode):
        with Verifier(mode, workers=1) as made:
            assert made.verdicts(pairs) == [verify(*pair, mode) for pair in pairs]


def test_a_batch_of_bombs_is_cheap(verifier: Verifier) -> None:
    verifier.verdict("1", "1")
    began = time.monotonic()
    told = verifier.verdicts([(bomb, "1") for bomb in BOMBS * 16])
    assert time.monotonic() - began < 10
    assert len(told) == 64
    assert not any(verdict.is_correct for verdict in told)


def test_nested_logarithms_eat_neither_memory_nor_time(verifier: Verifier) -> None:
    for pair in ((rf"\boxed{{{NESTED}}}", "1"), (r"\boxed{1}", NESTED)):
        began = time.monotonic()
        assert not verifier.verdict(*pair).is_correct
        assert time.monotonic() - began < 11


def test_the_slow_ones_end_at_their_limit_and_the_next_pair_is_graded() -> None:
    slow = (r"\boxed{\sum_{k=1}^{999} k!}", r"\boxed{(x+1)^{9999}}", r"\boxed{\sum_{k=1}^{\infty} \frac{\sin k}{k^3}}")
    with Verifier(workers=2, limit_s=0.2) as made:
        told = made.verdicts(
            [*((answer, r"\sum_{k=1}^{5} k") for answer in slow), (r"\boxed{15}", r"\sum_{k=1}^{5} k")]
        )
        assert Counter(verdict.status for verdict in told)["timeout"] == 3
        assert made.verdict(r"\boxed{15}", "15").is_correct


@pytest.mark.parametrize("mode", get_args(Mode))
@pytest.mark.parametrize("text", ["", "\ud800", "\x00", r"\boxed{", "}{" * 50, "1" * 5000])
def test_every_text_gets_a_status(mode: Mode, text: str) -> None:
    assert verify(text, "7", mode).status != "correct"
    assert verify("7", text, mode).status != "correct"


def test_the_stage_says_which_step_decided() -> None:
    assert verify(r"\boxed{\text{Blue}}", "blue").is_correct
    stages = [
        verify(answer, reference).stage for answer, reference in ((r"\boxed{blue}", "blue"), (r"\boxed{0.5}", "1/2"))
    ]
    assert all(stage.startswith("boxed:") for stage in stages)
    assert len(set(stages)) == 2
