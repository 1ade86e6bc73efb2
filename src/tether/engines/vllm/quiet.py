"""vLLM's start without its chatter: it is for those who develop it, and stands between the lines of a run."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what others deprecate, and what vLLM logs before it reads ``VLLM_LOGGING_LEVEL``, off the console.

    >>> with quiet():
    ...     logging.getLogger("vllm.triton_utils").isEnabledFor(logging.WARNING)
    False
    """
    log = logging.getLogger("vllm")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        if log.level == logging.ERROR:  # else vLLM has set it meanwhile
            log.setLevel(level)
