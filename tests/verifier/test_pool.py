"""Every pair costs at most its limit and its own verdict; nobody is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tether.errors import ConfigError, VerifierError
from tether.verifier import pool
from tether.verifier.pool import Verifier
from tether.verifier.verify import check_mode, check_texts
from tether.verifier.worker import LOOKS_S

from . import standins

ROOT = Path(__file__).parents[2]
RIGHT = ("204", "204")
LIMIT_S = 0.3


@pytest.fixture(autouse=True)
def _of_standins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "JUDGE", standins.JUDGE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


@pytest.fixture
def verifier() -> Iterator[Verifier]:
    with Verifier(limit_s=LIMIT_S, workers=2) as made:
        yield made


def running() -> set[int]:
    """Processes that judge, of whoever."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"tether.verifier.worker" in command:
            found.add(int(folder.name))
    return found


def is_gone(pids: set[int], within_s: float = 10.0) -> bool:
    until = time.monotonic() + within_s
    while pids & running():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def test_there_is_one_verdict_a_pair_in_order(verifier: Verifier) -> None:
    pairs = [(str(n), str(n - n % 2)) for n in range(300)]
    assert [verdict.status for verdict in verifier.verdicts(pairs)] == ["correct", "wrong"] * 150
    assert [verdict.extracted for verdict in verifier.verdicts(pairs)] == [str(n) for n in range(300)]
    assert verifier.verdicts([]) == []


def test_unreadable_answers_shift_nothing(verifier: Verifier) -> None:
    pairs = [RIGHT, ("raise", "1"), RIGHT, ("leave", "1"), RIGHT]
    told = verifier.verdicts(pairs)
    assert [verdict.status for verdict in told] == ["correct", "parse_error", "correct", "parse_error", "correct"]
    assert [told[1].stage, told[3].stage] == ["raised ZeroDivisionError", "raised SystemExit"]


def test_hanging_pairs_cost_their_own_verdicts_only(verifier: Verifier) -> None:
    verifier.verdicts([RIGHT] * 8)
    began = time.monotonic()
    told = verifier.verdicts([("spin", "1"), ("deaf", "1"), ("power", "1"), RIGHT])
    took = time.monotonic() - began
    assert Counter(verdict.status for verdict in told) == {"timeout": 3, "correct": 1}
    assert told[3].is_correct
    assert {verdict.stage for verdict in told[:3]} == {"limit_s"}
    assert took < 10  # two rounds of 0.3 s, on a busy machine


def test_one_that_hangs_delays_no_other(verifier: Verifier) -> None:
    done: list[float] = []
    began = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        hanging = beside.submit(verifier.verdict, "spin", "1")
        while not hanging.done():
            assert verifier.verdict(*RIGHT).is_correct
            done.append(time.monotonic() - began)
    assert hanging.result().status == "timeout"
    assert len(done) > 20


def test_a_worker_is_replaced_within_a_moment(verifier: Verifier) -> None:
    for _ in range(4):
        assert verifier.verdict("kill", "1").stage == "worker died"
        began = time.monotonic()
        assert verifier.verdict(*RIGHT).is_correct
        assert time.monotonic() - began < 1.0  # a start with all imports would take longer


@pytest.mark.parametrize(
    ("act", "status", "stage"),
    [
        ("eat", "timeout", "memory"),
        ("kill", "timeout", "worker died"),
        ("crash", "parse_error", "worker died"),
        ("die", "parse_error", "worker died"),
        ("raise", "parse_error", "raised ZeroDivisionError"),
    ],
)
def test_what_ends_a_worker_is_told_as_a_status(verifier: Verifier, act: str, status: str, stage: str) -> None:
    verdict = verifier.verdict(act, "1")
    assert (verdict.status, verdict.stage) == (status, stage)
    assert verifier.verdicts([RIGHT] * 4) == [verifier.verdict(*RIGHT)] * 4 or verifier.verdict(*RIGHT).is_correct


def test_what_a_judge_prints_or_reads_is_not_the_protocol(
    verifier: Verifier, capfd: pytest.CaptureFixture[str]
) -> None:
    assert [verifier.verdict(act, act).status for act in ("print", "read", "print")] == ["correct"] * 3
    assert capfd.readouterr() == ("", "")


def test_a_pair_that_sleeps_is_given_up_by_the_clock() -> None:
    with Verifier(limit_s=0.01, workers=1) as verifier:
        began = time.monotonic()
        assert verifier.verdict("sleep", "1").status == "timeout"
        assert time.monotonic() - began < 10
        assert verifier.verdict(*RIGHT).is_correct


@pytest.mark.parametrize(
    "text", ["\ud800 204", "\x00", "a\nb\r\u2028c", '{"pair": 7}\n{"ready": 1}', "é" * 500_000, "x" * 1_000_000, ""]
)
def test_any_text_travels(verifier: Verifier, text: str) -> None:
    verdict = verifier.verdict(text, text)
    assert verdict.is_correct
    assert verdict.extracted == text[-100:]


def test_large_answers_fill_no_pipe_for_good(verifier: Verifier) -> None:
    pairs = [("y" * 1_000_000, str(n)) for n in range(20)] + [RIGHT]
    assert [verdict.is_correct for verdict in verifier.verdicts(pairs)] == [False] * 20 + [True]


def test_numbers_are_no_text() -> None:
    with pytest.raises(TypeError, match=r"answer must be text; got float 0\.333333"):
        check_texts(0.333333, "1/3")
    with parent("", "--numbers") as asking:  # where no other check of types comes first
        told = asking.communicate(timeout=20)[0]
    assert "reference must be text; got int 3;" in told


def test_it_may_be_asked_from_any_thread(verifier: Verifier) -> None:
    told: list[bool] = []
    for _ in range(3):  # each of these threads ends before the next begins
        thread = threading.Thread(target=lambda: told.append(verifier.verdict(*RIGHT).is_correct))
        thread.start()
        thread.join()
    with ThreadPoolExecutor(8) as threads:
        told += [verdict.is_correct for verdict in threads.map(lambda _: verifier.verdict(*RIGHT), range(200))]
    assert told == [True] * 203


def test_an_event_loop_goes_on_meanwhile(verifier: Verifier) -> None:
    async def judged() -> tuple[int, list[str]]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        told = await asyncio.gather(
            *(verifier.averdict(*pair) for pair in [("spin", "1"), RIGHT, ("spin", "1"), RIGHT])
        )
        ticking.cancel()
        return ticks, [verdict.status for verdict in told]

    ticks, statuses = asyncio.run(judged())
    assert statuses == ["timeout", "correct", "timeout", "correct"]
    assert ticks > 10

    async def blocking() -> str:
        return verifier.verdict(*RIGHT).status

    assert asyncio.run(blocking()) == "correct"


def test_a_fork_has_workers_of_its_own(verifier: Verifier) -> None:
    here = verifier.verdict(*RIGHT).policy
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, pickle.dumps((verifier.verdict(*RIGHT), verifier.verdict("spin", "1").status)))
            verifier.close()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as told:
        verdict, status = pickle.load(told)
    os.waitpid(child, 0)
    assert verdict.is_correct
    assert status == "timeout"
    assert verdict.policy != here
    assert verifier.verdict(*RIGHT).is_correct


def test_it_is_pickled_by_its_options() -> None:
    with Verifier("upstream", workers=1, limit_s=LIMIT_S) as verifier:
        assert verifier.verdict(*RIGHT).stage == "upstream"
        with pickle.loads(pickle.dumps(verifier)) as other:
            assert other.verdict(*RIGHT).stage == "upstream"
            assert other.verdict(*RIGHT).policy != verifier.verdict(*RIGHT).policy


def test_killed_workers_cost_at_most_one_pair_each(verifier: Verifier) -> None:
    mine = running()
    verifier.verdicts([RIGHT] * 4)
    over, kills = threading.Event(), 0

    def kill() -> None:
        nonlocal kills
        chance = random.Random(7)
        while not over.is_set():
            ours = sorted(pid for pid in running() if pid in family(os.getpid()))
            if ours:
                try:
                    os.kill(chance.choice(ours), signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass
            time.sleep(0.3)

    killer = threading.Thread(target=kill)
    killer.start()
    told = []
    try:
        for _ in range(10):
            told += verifier.verdicts([RIGHT] * 50)
            time.sleep(0.15)
    finally:
        over.set()
        killer.join()
    assert mine
    assert kills >= 3
    statuses = Counter(verdict.status for verdict in told)
    assert len(told) == 500
    assert statuses["correct"] >= 500 - kills
    assert set(statuses) <= {"correct", "timeout"}


def family(pid: int) -> set[int]:
    """Its children, and theirs."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        if parent == pid:
            found |= {int(folder.name), *family(int(folder.name))}
    return found


def test_a_close_ends_all_and_whoever_waits_hears_of_it() -> None:
    verifier = Verifier(limit_s=60.0, workers=2)
    verifier.start()
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(verifier.verdict, "spin", "1") for _ in range(4)]
        until = time.monotonic() + 20
        while len(mine := family(os.getpid()) & running()) < 4 and time.monotonic() < until:  # two, and their children
            time.sleep(0.1)
        time.sleep(0.3)
        verifier.close()
        assert [type(future.exception(10)) for future in asked] == [VerifierError] * 4
    assert is_gone(mine)
    with pytest.raises(VerifierError, match="was closed"):
        verifier.verdict(*RIGHT)
    verifier.close()


def test_one_that_nobody_holds_any_more_ends_its_workers() -> None:
    verifier = Verifier(limit_s=LIMIT_S, workers=1)
    verifier.verdict(*RIGHT)
    mine = family(os.getpid()) & running()
    assert mine
    del verifier
    gc.collect()
    assert is_gone(mine)


PARENT = """
import sys, threading, time
from tether.verifier import pool
from tether.verifier.pool import Verifier
pool.JUDGE = "tests.verifier.standins:judge"
verifier = Verifier(limit_s=60.0, workers=2)
verifier.start()
if sys.argv[1:] == ["--numbers"]:
    try:
        verifier.verdicts([("3", 3)])
    except TypeError as error:
        sys.exit(print(error))
print(verifier.verdict("1", "1").status, flush=True)
for act in sys.argv[1:]:
    threading.Thread(target=verifier.verdict, args=(act, "1"), daemon=True).start()
time.sleep(0.5)
print("asked", flush=True)
{then}
"""


def parent(then: str, *acts: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    return subprocess.Popen(
        [sys.executable, "-c", PARENT.format(then=then), *acts],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize(
    "acts", [(), ("spin", "power"), ("sleep", "deaf"), ("nap", "nap")], ids=["idle", "busy", "deaf", "about to tell"]
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nobody_outlives_who_asked(number: signal.Signals, acts: tuple[str, ...]) -> None:
    with parent("time.sleep(60)", *acts) as asking:
        assert asking.stdout is not None
        assert [asking.stdout.readline(), asking.stdout.readline()] == ["correct\n", "asked\n"]
        mine = family(asking.pid) & running()
        assert len(mine) == 4
        asking.send_signal(number)
        asking.communicate(timeout=20)
    assert is_gone(mine, 5 * LOOKS_S)


@pytest.mark.parametrize("then", ["", "sys.exit(0)", "raise SystemError", "import os; os._exit(1)"])
def test_nobody_outlives_a_program_that_ends(then: str) -> None:
    with parent(then) as asking:
        assert asking.stdout is not None
        assert [asking.stdout.readline(), asking.stdout.readline()] == ["correct\n", "asked\n"]
        errors = asking.communicate(timeout=20)[1]
    assert "Warning" not in errors
    assert is_gone({pid for pid in running() if of_session_without_parent(pid)})


def of_session_without_parent(pid: int) -> bool:
    """Whether it watches over a child for nobody."""
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[1]) == 1
    except OSError:
        return False


def test_a_worker_that_cannot_start_is_an_error_with_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "JUDGE", standins.BROKEN)
    with pytest.raises(VerifierError, match=r"(?s)exit code 1; .*no module named sympy"):
        Verifier(limit_s=LIMIT_S).verdict(*RIGHT)
    with pytest.raises(VerifierError, match="exit code 1"), Verifier(limit_s=LIMIT_S):
        pass
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(VerifierError, match=r"/nowhere/python gave .*No such file"):
        Verifier(limit_s=LIMIT_S).verdict(*RIGHT)


def test_options_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="no verifier mode 'strict'; there are upstream, robust, strict-int"):
        check_mode("strict", None)
    with pytest.raises(ConfigError, match="policies belong to mode 'robust', and the mode is 'upstream'"):
        check_mode("upstream", object())
    with pytest.raises(ConfigError, match="at least 1 worker; got 0"):
        Verifier(workers=0)
    with pytest.raises(ConfigError, match=r"limit_s must be at least 0\.01 seconds; got nan"):
        Verifier(limit_s=float("nan"))
    with pytest.raises(ConfigError, match="memory must be at least"):
        Verifier(memory=1)
