"""Collected where vLLM is installed (`make test-engines`), and nowhere else. It is opened once: engines share it."""

from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent

collect_ignore_glob = ["test_*.py"] if find_spec("vllm") is None else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            for kind in ("FutureWarning", "DeprecationWarning", "UserWarning", "ResourceWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))  # vLLM's and its libraries' own


@pytest.fixture(scope="session")
def moe():
    """A vLLM with tiny-moe in float32; tests load what they need, and leave nothing under way."""
    from .world import opened

    return opened("tiny-moe", "float32")


@pytest.fixture
def endless(moe, monkeypatch):
    """The same without any id that ends a completion."""
    monkeypatch.setattr(moe.core, "_eos_ids", [])
    return moe
