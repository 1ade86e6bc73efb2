"""A process of its own: answers while it works, is told from a dead one, and leaves nothing behind."""

import asyncio
import os
import signal
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

import ray

from tether.errors import RewardError, StalledError
from tether.placement.ray_process import Process, ProcessDiedError

from .parts_on_ray import is_alive, process


@pytest.fixture(scope="module")
def part(ray_here):
    started = process()
    assert started.started(300.0) == "scripted"
    yield started
    started.end()


def call(process, name, *args, within_s=60.0):
    return asyncio.run(process.call(name, *args, deadline="step_s", within_s=within_s))


def test_a_process_tells_who_it_is(part):
    pid, seconds = call(part, "work", 0.25)
    assert (part.facts["role"], part.facts["pid"]) == ("part", pid)
    assert pid != os.getpid()
    assert 0.2 < seconds < 10.0


def test_a_sign_of_life_comes_while_the_part_works(part):
    working = part._call.remote("work", 1.5)
    time.sleep(0.2)
    pings = [ray.get(part._ping.remote(), timeout=1.0) for _ in range(3)]
    assert pings == [part.facts["pid"]] * 3
    assert ray.wait([working], timeout=0)[0] == []
    ray.get(working)


def test_another_call_comes_in_only_where_the_part_gives_way(part):
    async def both():
        pausing = asyncio.create_task(part.call("pausing", 20, deadline="generate_s", within_s=60.0))
        await asyncio.sleep(0.3)
        await part.call("change", "new", deadline="publish_s", within_s=60.0)
        return (await pausing)[0]

    seen = asyncio.run(both())
    assert seen == sorted(seen, reverse=True)  # old, then new
    assert set(seen) == {"old", "new"}


def test_an_error_comes_as_it_was_raised(part):
    with pytest.raises(RewardError, match=r"^the judge is away$") as raised:
        call(part, "fail")
    assert type(raised.value) is RewardError
    assert raised.value.rollout_id == "g3/1"


def test_a_call_that_passes_its_deadline_names_who_what_how_long_and_the_way_out(part):
    with pytest.raises(StalledError) as stalled:
        call(part, "work", 1.5, within_s=0.2)
    said = str(stalled.value)
    assert said.startswith(f"part (pid {part.facts['pid']}, host ")
    assert "was to come back from work within placement.deadlines.step_s = 0.2 seconds; raise it" in said
    assert "tether train --resume" in said


def test_a_process_that_was_killed_is_told_as_dead(ray_here):
    doomed = process("doomed")
    doomed.started(300.0)
    os.kill(doomed.facts["pid"], signal.SIGKILL)
    with pytest.raises(ProcessDiedError, match=rf"doomed \(pid {doomed.facts['pid']}, .* died"):
        call(doomed, "work", 0.0)
    doomed.end()


def test_a_process_that_gives_no_sign_of_life_is_ended(ray_here):
    silent = process("silent", heartbeat_s=1.0)
    silent.started(300.0)
    os.kill(silent.facts["pid"], signal.SIGSTOP)
    with pytest.raises(ProcessDiedError, match=r"no sign of life for placement.heartbeat_s = 1 seconds and was ended"):
        call(silent, "work", 0.0, within_s=30.0)
    silent.end()
    assert not is_alive(silent.facts["pid"])


def test_threads_are_set_before_torch_is_imported(part):
    found, _ = call(part, "environment")
    assert found == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}


def test_a_warning_of_torch_is_no_last_word(tmp_path):
    words = ":actor_name:Host\nout of memory\n[rank0]:[W1130 04:53:32.8 utils.cpp:68] Warning: NUMA binding\n"
    (tmp_path / "worker-a-7.err").write_text(words)
    dead = SimpleNamespace(_terms=SimpleNamespace(logs=tmp_path), facts={"pid": 7})
    assert Process._last_words(dead) == "out of memory"
