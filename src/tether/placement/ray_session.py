"""A Ray of one's own for the length of a run: local, bounded, quiet, and gone afterwards without a trace."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tether.errors import ConfigError
from tether.placement.keeper import Keeper

SHARED_MEMORY = Path("/dev/shm")
ANSWERS_WITHIN_S = 10.0
"""How long a cluster's head may take to accept a connection."""
LONGEST_PLACE = 40
"""Characters of the session's folder; Ray puts sockets into it, whose paths may have 107."""
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # it would report to its makers
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # a process without a GPU of Ray's sees what the controller sees
}
SYSTEM = {
    "enable_worker_prestart": False,  # idle workers, which none of ours can use: ours have an environment of their own
    "prestart_worker_first_driver": False,
    "worker_niceness": 0,  # everything else on the machine would go first
    "memory_monitor_refresh_ms": 0,  # it would kill ours when others fill the machine's memory
}
"""Settings of Ray that are wrong for two processes that are the whole work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A Ray that is there."""

    num_gpus: float
    logs: Path | None
    """Where it keeps what processes wrote; ``None`` if it is not ours."""
    keeper: Keeper | None

    def keep(self, pid: int) -> None:
        """A process that must not outlive this one."""
        if self.keeper is not None:
            self.keeper.watch(pid)


@contextmanager
def session(address: str, *, num_cpus: int, object_store_bytes: int) -> Iterator[Session]:
    """Connect to a cluster, or start a Ray on this machine for as long as the block lasts.

    One that this process has started before, by whatever means, is used and left as it is.
    """
    ray = _import()
    if ray.is_initialized():
        yield Session(num_gpus=_num_gpus(ray), logs=None, keeper=None)
        return
    if address:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        check_reachable(address)
        _connect(ray, address)
        try:
            yield Session(num_gpus=_num_gpus(ray), logs=None, keeper=None)
        finally:
            ray.shutdown()
        return
    check_shared_memory(object_store_bytes)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # known to this process and its children alone; without it Ray would write one into the home directory
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    logging.getLogger("ray._private.authentication").setLevel(logging.ERROR)  # it would say that there is a token
    folder = _folder()
    keeper = Keeper(str(folder))
    try:
        others = _descendants()
        with _deaf_to_hangup():
            _connect(
                ray,
                "local",  # whatever RAY_ADDRESS says
                num_cpus=num_cpus,
                object_store_memory=object_store_bytes,
                include_dashboard=False,
                _node_ip_address="127.0.0.1",  # nothing listens to other machines
                _temp_dir=str(folder),
                _system_config=SYSTEM,
            )
        for pid in _descendants() - others:
            keeper.watch(pid)
        yield Session(num_gpus=_num_gpus(ray), logs=folder / "session_latest" / "logs", keeper=keeper)
    finally:
        ray.shutdown()
        keeper.close()


def _connect(ray: Any, address: str, **options: Any) -> None:
    try:
        ray.init(address, log_to_driver=False, logging_level="error", **options)
    except Exception as error:  # Ray raises what it likes
        what = "Ray cannot be started here" if address == "local" else f"there is no Ray at {address!r}"
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(f"{what}: {reason}; mend that, or use placement.kind=inline") from error


def check_reachable(address: str) -> None:
    """Refuse a place at which nobody answers; Ray would try for minutes.

    >>> check_reachable("ray://head:10001")
    Traceback (most recent call last):
    tether.errors.ConfigError: placement.address must be host:port of a cluster's head, or auto; got \
'ray://head:10001': start tether on a node of the cluster
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in address:
        raise ConfigError(
            f"placement.address must be host:port of a cluster's head, or auto; got {address!r}: start tether on a "
            "node of the cluster"
        )
    try:
        socket.create_connection((host, int(port)), ANSWERS_WITHIN_S).close()
    except OSError as error:
        raise ConfigError(
            f"there is no Ray at {address!r}: {error}; start one there (ray start --head), or use placement.kind=inline"
        ) from error


def check_shared_memory(needed: int, place: Path = SHARED_MEMORY) -> None:
    """Refuse a bound that the machine's shared memory cannot hold; Ray would use the disk, and publish slowly."""
    if not place.is_dir():
        return
    free = shutil.disk_usage(place).free
    if free < needed:
        raise ConfigError(
            f"placement.object_store_bytes must fit into {place}, which has {free} bytes free; got {needed}: lower it "
            "to a little more than three versions of the weights, or start the container with --shm-size=2g"
        )


def check_installed() -> None:
    """Refuse where Ray is not installed."""
    _import()


def _import() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"placement.kind 'ray' needs Ray, which cannot be imported ({error}); pip install 'tether-rl[ray]', or "
            "use placement.kind=inline"
        ) from error
    return ray


@contextmanager
def _deaf_to_hangup() -> Iterator[None]:
    """What is started inside ignores a terminal that closes: the controller hears of it, and saves first.

    Ray itself sees to it that Ctrl-C reaches the controller alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _folder() -> Path:
    """A new folder whose path is short enough for sockets."""
    home = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="tether-ray-", dir=home if len(home) <= LONGEST_PLACE - 20 else "/tmp"))


def _descendants() -> set[int]:
    """Pids of this process's children, and theirs."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    return {process.pid for process in psutil.Process().children(recursive=True)}


def _num_gpus(ray: Any) -> float:
    return float(ray.cluster_resources().get("GPU", 0.0))
