"""For laws over many whole runs: with every call's types checked they take twenty times as long."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(scope="module", autouse=True)
def unchecked_types() -> Iterator[None]:
    """Whoever imports it runs without checks of types."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
