"""What every test shares: no network, few threads, and the same random examples on every machine."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import hypothesis
import pytest

hypothesis.settings.register_profile("tether", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tether")


@pytest.fixture(scope="session")
def ray_here():
    """A Ray that every placement opened meanwhile uses: it takes seconds to start."""
    from tether.placement.ray_session import session

    with session("", num_cpus=8, object_store_bytes=100 * 2**20) as here:
        yield here


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests are small: a second thread costs more than it brings, and changes the order of sums."""
    import torch

    torch.set_num_threads(1)
