"""The verifier with limits: worker processes that can be killed, asked from any thread, task or process."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Final

from tether.errors import ConfigError, VerifierError
from tether.verifier.process import Job, WorkerGoneError, WorkerProcess
from tether.verifier.verdict import Mode, Verdict
from tether.verifier.verify import check_mode, check_texts

if TYPE_CHECKING:
    from tether.verifier.policies import Policies

LEAST_MEMORY: Final = 256 << 20
"""Bytes; below it the libraries themselves do not fit."""
AHEAD: Final = 256
"""Pairs that may be asked before the one whose verdict is waited for."""
JUDGE = "tether.verifier.verify:verify"
"""What a worker calls."""


class Verifier:
    r"""Grades answers in worker processes, each pair within a limit of time and of memory.

    A pair that exceeds its limit costs its own verdict, ``timeout``, and nothing else: its worker is killed and
    replaced at once, the others go on. Workers begin with the first pair, or with ``with``; they end with ``close``,
    and with this process, however that ends. It may be asked from any thread and, by ``averdict``, from any event loop;
    after a fork, and unpickled in another process, it has workers of its own.

    >>> with Verifier("strict-int", workers=1) as verifier:
    ...     [verdict.status for verdict in verifier.verdicts([(r"\boxed{204}", "204"), ("I think so", "204")])]
    ['correct', 'wrong']

    Args:
        mode: how answers are found and compared.
        policies: for mode ``robust``, what counts as the same; ``None``: the defaults.
        workers: processes, hence pairs that are judged at the same time.
        limit_s: seconds of CPU time a pair, so that a busy machine changes no verdict; on the clock a pair may take
            five times as much and five seconds more, after which it is given up, too.
        memory: bytes of address space a worker.
    """

    def __init__(
        self,
        mode: Mode = "robust",
        *,
        policies: Policies | None = None,
        workers: int = 2,
        limit_s: float = 1.0,
        memory: int = 2 << 30,
    ) -> None:
        check_mode(mode, policies)
        if workers < 1:
            raise ConfigError(f"a verifier needs at least 1 worker; got {workers}")
        if not 0.01 <= limit_s < math.inf:
            raise ConfigError(f"limit_s must be at least 0.01 seconds; got {limit_s}; 2 is usual")
        if memory < LEAST_MEMORY:
            raise ConfigError(f"memory must be at least {LEAST_MEMORY} bytes a worker; got {memory}")
        self._options: tuple[Mode, Policies | None, int, float, int] = mode, policies, workers, limit_s, memory
        self._staff = self._new_staff()

    def __reduce__(self) -> tuple[object, ...]:
        return _made_of, self._options

    def __enter__(self) -> Verifier:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Begin all workers and wait for one; ``VerifierError`` if it cannot be started."""
        self._here().start()

    def verdict(self, answer: str, reference: str) -> Verdict:
        """What becomes of one answer. Waits for a free worker.

        Raises:
            TypeError: one of the two is not text.
            VerifierError: no worker can be started, or the verifier was closed.
        """
        check_texts(answer, reference)
        return self._here().verdict(answer, reference)

    async def averdict(self, answer: str, reference: str) -> Verdict:
        """The same, while the event loop goes on."""
        return await asyncio.to_thread(self.verdict, answer, reference)

    def verdicts(self, pairs: Iterable[tuple[str, str]]) -> list[Verdict]:
        """One a pair of answer and reference, in their order, whatever becomes of each."""
        return list(self.stream(pairs))

    def stream(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Verdict]:
        """The same, one by one as soon as all before it are known."""
        waiting: deque[Future[Verdict]] = deque()
        threads = ThreadPoolExecutor(self._options[2], thread_name_prefix="tether-verifier")
        try:
            for answer, reference in pairs:
                waiting.append(threads.submit(self.verdict, answer, reference))
                while len(waiting) > AHEAD or (waiting and waiting[0].done()):
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # an interrupt need not wait for what hangs
            threads.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End all workers; whoever still waits for a verdict gets ``VerifierError``."""
        self._here().close()

    def _here(self) -> _Staff:
        """The workers of this process: those from before a fork belong to another one."""
        if self._staff.pid != os.getpid():
            self._staff.forget()
            self._staff = self._new_staff()
        return self._staff

    def _new_staff(self) -> _Staff:
        mode, policies, workers, limit_s, memory = self._options
        staff = _Staff(Job(JUDGE, {"mode": mode, "policies": policies}, limit_s, memory), workers)
        weakref.finalize(self, staff.close)  # also at the end of this process
        return staff


class _Staff:
    """The workers of one process, and who has which."""

    def __init__(self, job: Job, most: int) -> None:
        self.pid = os.getpid()
        self._job, self._most, self._is_closed = job, most, False
        self._free: deque[WorkerProcess] = deque()
        self._busy: set[WorkerProcess] = set()
        self._changed = threading.Condition()

    def start(self) -> None:
        with self._changed:
            self._check()
            while len(self._free) + len(self._busy) < self._most:
                self._free.append(WorkerProcess(self._job))
        worker = self._take()
        try:
            worker.wait_ready()
        except VerifierError:
            self._give(worker, None)
            raise
        self._give(worker, worker)

    def verdict(self, answer: str, reference: str) -> Verdict:
        worker = self._take()
        after: WorkerProcess | None = None
        try:
            worker.wait_ready()
            verdict = worker.ask(answer, reference)
            after = worker
        except WorkerGoneError as gone:
            verdict = gone.verdict
            self._check()
            worker.end()
            after = WorkerProcess(self._job)  # begins now, in the background
        finally:
            self._give(worker, after)
        return verdict

    def close(self) -> None:
        if self.pid != os.getpid():
            return
        with self._changed:
            self._is_closed = True
            for worker in self._busy:
                worker.kill()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy, timeout=10)
            while self._free:
                self._free.pop().end()

    def forget(self) -> None:
        """After a fork, in the child."""
        for worker in (*self._free, *self._busy):
            worker.forget()

    def _check(self) -> None:
        if self._is_closed:
            raise VerifierError("the verifier was closed, and grades no more answers; make another one")

    def _take(self) -> WorkerProcess:
        """A free worker, or a new one where there is room; the one that was used last is the warmest."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._free or len(self._busy) < self._most)
            self._check()
            worker = self._free.pop() if self._free else WorkerProcess(self._job)
            self._busy.add(worker)
            return worker

    def _give(self, worker: WorkerProcess, after: WorkerProcess | None) -> None:
        """Back it comes, or its successor; one without a successor has ended."""
        with self._changed:
            self._busy.discard(worker)
            if after is None:
                worker.end()
            elif self._is_closed:
                after.end()
            elif after.is_ready:
                self._free.append(after)
            else:
                self._free.appendleft(after)
            self._changed.notify_all()


def _made_of(mode: Mode, policies: Policies | None, workers: int, limit_s: float, memory: int) -> Verifier:
    return Verifier(mode, policies=policies, workers=workers, limit_s=limit_s, memory=memory)
