"""Copies of past weights, and the old log-probs of a batch under each of them: the strategy ``snapshots``."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tether.errors import OldVersionError
from tether.pipeline.old_policy import Rescoring, refuse, unknown, versions_of, with_old
from tether.pipeline.packing import Step
from tether.ports import Publication
from tether.records import Metrics, Rollout


class WeightCopies:
    """The parameters being trained as they were at a few versions, in their own dtype; frozen ones are not copied.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> copies = WeightCopies(model, most=2)
    >>> copies.keep(0, oldest=0), copies.keep(8, oldest=0), copies.keep(16, oldest=8)
    (None, None, None)
    >>> copies.versions, copies.num_bytes
    ((8, 16), 16)

    Args:
        model: whose parameters are copied.
        most: versions that may be held at once.
        where: in memory, or in a temporary folder that goes with the object.
    """

    def __init__(self, model: nn.Module, most: int, where: Literal["cpu", "disk"] = "cpu") -> None:
        self._model, self._most = model, most
        self._held: dict[int, Mapping[str, Tensor] | Path] = {}
        self._folder: Path | None = None
        if where == "disk":
            self._folder = Path(tempfile.mkdtemp(prefix="tether-old-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that are held, the oldest first."""
        return tuple(sorted(self._held))

    @property
    def num_bytes(self) -> int:
        """Of all copies."""
        each = sum(p.numel() * p.element_size() for _, p in self._trained())
        return each * len(self._held)

    def keep(self, version: int, oldest: int) -> None:
        """Copy the parameters as they are, as ``version``; forget versions below ``oldest``."""
        self._forget(oldest)
        self._hold(version, {name: p.detach().to("cpu", copy=True) for name, p in self._trained()})

    def placed(self, version: int) -> dict[str, Tensor]:
        """The parameters of a version, on the model's device and by the names of ``Scoring``."""
        devices = {name: p.device for name, p in self._trained()}
        return {f"model.{name}": tensor.to(devices[name]) for name, tensor in self._loaded(version).items()}

    def state(self) -> dict[int, dict[str, Tensor]]:
        """Every copy."""
        return {version: dict(self._loaded(version)) for version in self.versions}

    def restore(self, state: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Hold these instead."""
        self._forget(oldest=max(self._held, default=0) + 1)
        for version, tensors in sorted(state.items()):
            self._hold(version, tensors)

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]

    def _hold(self, version: int, tensors: Mapping[str, Tensor]) -> None:
        if version not in self._held and len(self._held) >= self._most:
            raise OldVersionError(
                f"at most {self._most} versions of the weights can be needed at once, by the bound on staleness; held "
                f"are {', '.join(map(str, self.versions))}, and {version} comes: this is a fault of the pipeline: "
                "please report it with this run"
            )
        if self._folder is None:
            self._held[version] = tensors
            return
        file = self._folder / f"{version}.pt"
        torch.save(dict(tensors), part := file.with_suffix(".part"))
        os.replace(part, file)
        self._held[version] = file

    def _loaded(self, version: int) -> Mapping[str, Tensor]:
        held = self._held[version]
        if isinstance(held, Path):
            tensors: Mapping[str, Tensor] = torch.load(held, map_location="cpu", weights_only=True)
            return tensors
        return held

    def _forget(self, oldest: int) -> None:
        for version in [v for v in self._held if v < oldest]:
            held = self._held.pop(version)
            if isinstance(held, Path):
                held.unlink()


class Snapshots:
    """The trainer keeps its weights of every publication for as long as a token of them may come.

    At use a batch goes through the model once more under each version in it, only the rows that have tokens of it; of
    a response that spans versions each token is taken from its own. Exact (arXiv:2605.12070).

    Args:
        rescoring: how a part of a batch is evaluated.
        copies: the weights.
        reach: a version this many updates old cannot come any more, where nobody says which one is ``live``.
    """

    def __init__(self, rescoring: Rescoring, copies: WeightCopies, reach: int) -> None:
        self._rescoring, self._copies, self._reach = rescoring, copies, reach

    publications: tuple[Publication, ...] = ()

    def published(self, version: int, live: int | None) -> None:
        """Keep a copy; forget those that no token can need."""
        with self._rescoring.cost.running():
            self._copies.keep(version, oldest=version - self._reach + 1 if live is None else live)

    def acquire(self, rollouts: Sequence[Rollout], alive: Iterable[str], updates: int) -> None:
        """Nothing: the weights stay."""

    def laid(self, step: Step, updates: int) -> Step:
        """Evaluate the step under every version in it."""
        with self._rescoring.cost.running():
            old = [unknown(m) for m in step.micro_batches]
            needed = [version for version in versions_of(step.rows) if version != updates]
            for version in needed:
                self._check(version, step)
            for version in needed:
                weights = self._copies.placed(version)
                pairs = zip(old, step.micro_batches, strict=True)
                old = [self._rescoring.filled(values, m, version, weights) for values, m in pairs]
            return with_old(step, old)

    def told(self) -> Metrics:
        """``time/old_s`` and ``old/``."""
        return self._rescoring.cost.told(len(self._copies.versions), self._copies.num_bytes)

    def state(self) -> dict[str, Any]:
        """The copies."""
        return {"copies": self._copies.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state``."""
        self._copies.restore(state["copies"])

    def _check(self, version: int, step: Step) -> None:
        held = self._copies.versions
        if version not in held:
            rollout = next(row.rollout for row in step.rows if version in row.rollout.completion.version)
            raise refuse(
                version,
                rollout.id,
                held,
                "a version is forgotten when the bound on staleness or the publisher says that no token of it is left; "
                "please report it with this run, or set old.strategy = 'none'",
            )
