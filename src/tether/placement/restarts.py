"""How often processes that died are started anew, in the whole run."""

from __future__ import annotations

from tether.errors import ProcessLostError
from tether.placement.parts import Notices


class Restarts:
    """A budget that all processes which can be started anew share.

    >>> notices = Notices()
    >>> notices.listen(print, print)
    >>> restarts = Restarts(1, notices)
    >>> restarts.take("engine-0 (pid 7) died")
    engine-0 (pid 7) died; it is started anew (1 of 1)
    >>> restarts.take("engine-1 (pid 8) died")
    Traceback (most recent call last):
    tether.errors.ProcessLostError: engine-1 (pid 8) died; processes were started anew 1 times already, the most that \
placement.max_restarts allows: find out why, then go on with tether train --resume
    """

    def __init__(self, most: int, notices: Notices) -> None:
        self._most, self._notices = most, notices
        self._count = 0

    def take(self, died: str) -> None:
        """One more, which a person hears of; an error if there is none left."""
        if self._count >= self._most:
            raise ProcessLostError(
                f"{died}; processes were started anew {self._count} times already, the most that "
                "placement.max_restarts allows: find out why, then go on with tether train --resume"
            )
        self._count += 1
        self._notices.warn(f"{died}; it is started anew ({self._count} of {self._most})")
