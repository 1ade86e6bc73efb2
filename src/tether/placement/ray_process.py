"""A process of the run as the controller sees it: called with a deadline, and listened to while it works."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tether.errors import StalledError
from tether.placement.keeper import birth_of
from tether.placement.parts import Facts
from tether.placement.ray_host import GROUPS, Host

ENDS_WITHIN_S = 10.0
"""How long the thread that listens may take to notice that it is over."""
ENDS_ITSELF_S, LOOKS = 2.0, 40
"""How long a process may take to end as Ray tells it, and how often one looks; Ray complains of those killed before."""
LAST_WORDS = 3
"""Lines of a dead process that are told."""
OF_RAY = (":job_id:", ":actor_name:", ":task_name:")
BLOCKING = "Using blocking ray.get inside async actor"
"""What Ray itself writes there; it is no cause of anything."""
WARNING_OF_TORCH = re.compile(r"(\[rank\d+\]:)?\[W\d{4} ")
"""How a warning of torch's C++ begins, such as that of vLLM's threads on one NUMA node: nobody dies of it."""


class ProcessDiedError(Exception):
    """A process that is gone; says who, and what is known of why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On which a process is started."""

    resources: dict[str, Any]
    """What Ray sets aside for it, and its environment."""
    heartbeat_s: float
    logs: Path | None
    """Where Ray keeps what processes wrote, if that is on this machine."""


class Process:
    """An actor with a ``Host``.

    Args:
        role: what the journal calls it.
        make: makes the part, over there.
        terms: on which it is started.
        on_start: told of its pid.
    """

    def __init__(
        self, role: str, make: Callable[[], Any], terms: Terms, on_start: Callable[[int], object] = lambda pid: None
    ) -> None:
        import ray

        self.role = role
        self.facts: Facts = {}
        """Empty until it has started."""
        self._terms, self._on_start = terms, on_start
        self._birth = ""
        self._verdict = ""
        remote: Any = ray.remote
        actor = remote(concurrency_groups=GROUPS, max_restarts=0, **terms.resources)(Host)
        self._host = actor.remote(role, make)
        self._opening = self._host.open.remote()
        self._telling = self._host.facts.options(concurrency_group="control").remote()
        self._ping = self._host.ping.options(concurrency_group="control")
        self._call = self._host.call.options(concurrency_group="calls")
        self._over = threading.Event()
        self._listener = threading.Thread(target=self._listen, name=f"tether-hears-{role}", daemon=True)

    @property
    def who(self) -> str:
        """Role and pid, as far as known."""
        return f"{self.role} (pid {self.facts.get('pid', 'unknown')}, host {self.facts.get('host', 'unknown')})"

    def started(self, within_s: float) -> Any:
        """Wait for the part to be made; what it is. For before the loop runs."""
        return asyncio.run(self.starting(within_s))

    async def starting(self, within_s: float) -> Any:
        """Wait for the part to be made; what it is."""
        key = "start_s"
        self.facts = await self._await(self._telling, "its process to start", key, within_s)
        pid = int(self.facts["pid"])
        if self.facts["host"] == socket.gethostname():
            self._birth = birth_of(pid)
        self._on_start(pid)
        self._listener.start()
        return await self._await(self._opening, "its model to load", key, within_s)

    async def call(self, name: str, *args: Any, deadline: str, within_s: float, **options: Any) -> tuple[Any, float]:
        """Await a method of the part: result, and the seconds it worked over there. Errors come as they were raised."""
        asked = self._call.remote(name, *args, **options)
        result: tuple[Any, float] = await self._await(asked, name, deadline, within_s)
        return result

    def post(self, name: str, *args: Any) -> None:
        """Call a method of the part and wait for nothing. Whether it arrives is told by a call that is awaited."""
        self._call.remote(name, *args)

    async def _await(self, ref: Any, what: str, deadline: str, within_s: float) -> Any:
        import ray

        try:
            return await asyncio.wait_for(ref, within_s)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except TimeoutError:
            raise StalledError(
                f"{self.who} was to come back from {what} within placement.deadlines.{deadline} = {within_s:g} "
                "seconds; raise it if the work is just slow, look at the process if it hangs, then go on with tether "
                "train --resume"
            ) from None
        except ray.exceptions.RayError as error:
            raise ProcessDiedError(f"{self.who} {self._cause(error)}") from error

    def _cause(self, error: Exception) -> str:
        """Why it died, as far as that can be known: our own verdict, its last words, or what Ray says."""
        if self._verdict:
            return self._verdict
        words = self._last_words()
        return f"died; its last words: {words}" if words else f"died: {_told(error)}"

    def _last_words(self) -> str:
        if self._terms.logs is None or "pid" not in self.facts:
            return ""
        for path in self._terms.logs.glob(f"worker-*-{self.facts['pid']}.err"):
            with suppress(OSError):
                lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
                lines = [line for line in lines if line and not line.startswith(OF_RAY) and BLOCKING not in line]
                return " | ".join([line for line in lines if not WARNING_OF_TORCH.match(line)][-LAST_WORDS:])
        return ""

    def _listen(self) -> None:
        """Ask for a sign of life now and then; silence is turned into death, which whoever calls hears of."""
        import ray

        while not self._over.wait(self._terms.heartbeat_s / 4):
            try:
                ray.get(self._ping.remote(), timeout=self._terms.heartbeat_s)
            except ray.exceptions.GetTimeoutError:
                if not self._over.is_set():
                    self._verdict = (
                        f"gave no sign of life for placement.heartbeat_s = {self._terms.heartbeat_s:g} seconds and "
                        "was ended"
                    )
                    self._kill()
                return
            except Exception:  # dead, or the session is over: whoever calls it is told
                return

    def end(self) -> None:
        """End it now, whatever it does."""
        self._over.set()
        self._kill()
        if self._listener.is_alive():
            self._listener.join(ENDS_WITHIN_S)

    def _kill(self) -> None:
        import ray

        with suppress(Exception):  # it may be gone already
            ray.kill(self._host)
        for _ in range(LOOKS if self._birth else 0):
            if birth_of(int(self.facts["pid"])) != self._birth:
                return
            time.sleep(ENDS_ITSELF_S / LOOKS)
        if self._birth:
            with suppress(ProcessLookupError):  # one that is stopped or stuck does not hear Ray
                os.kill(int(self.facts["pid"]), signal.SIGKILL)


def _told(error: Exception) -> str:
    """What Ray says: its first line, and the last where that is the error of a part that could not be made.

    >>> _told(Exception("it died because of an error in its creation task\\n  line 3\\nImportError: no module"))
    'it died because of an error in its creation task: ImportError: no module'
    """
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{lines[0]}: {lines[-1].strip()}" if "creation task" in lines[0] and len(lines) > 1 else lines[0]
