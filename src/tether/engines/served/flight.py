"""A completion under way at a server: what came of it so far, checked piece by piece."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tether.engines.served.joined import joined
from tether.engines.served.piece import Piece, Span
from tether.errors import DataError, NonFiniteError
from tether.ports import GenerationRequest
from tether.records import Completion, Finish, Floats, Ints, KeptSets

NO_NUMBER: Final = -9999.0
"""What vLLM and others send in the place of a NaN or an infinity. As a number it would pass for a log-prob."""
_ROUNDING: Final = 1e-3
"""Nats by which a log-prob may lie above 0."""


class Flight:
    """A question, and the tokens that came.

    Args:
        request: what was asked for; with ``so_far``, the rest of it is.
        version: of the weights that the server holds when it is asked.
        vocabulary: ids are below it.
        eos_ids: a completion stops with one of these.
    """

    def __init__(self, request: GenerationRequest, version: int, *, vocabulary: int, eos_ids: tuple[int, ...]) -> None:
        self.request = request
        self.lost = ""
        """Why nothing more comes; empty while something may."""
        self.task: asyncio.Task[None] | None = None
        self._vocabulary, self._eos_ids = vocabulary, eos_ids
        self._first = self._newest = version
        self._cached = {version: version}
        """Of every version that may have made a token: which computed the oldest entry of its cache."""
        self._sure: int | None = None
        """Tokens that had come when weights changed for the first time; those after may be of either version."""
        self._begin()

    def _begin(self) -> None:
        self._ids: list[int] = []
        self._logp: list[float] = []
        self._alternatives: list[list[tuple[int, float]]] = []
        self._kept: list[list[int]] = []
        self._finish: str | None = None
        self._spans: list[Span] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def num_left(self) -> int:
        """Most tokens that may come after those of ``so_far``."""
        return self.request.max_tokens - (0 if self.request.so_far is None else len(self.request.so_far))

    @property
    def finish(self) -> str | None:
        """How the server ended it; ``None`` while it has not."""
        return self._finish

    @property
    def is_whole(self) -> bool:
        """Whether all of it came, and its caller is about to get it."""
        return self._finish is not None and self.task is not None and self.task.done() and not self.lost

    def again(self, version: int) -> None:
        """Forget what came: it is asked anew, from the server's present weights."""
        self._first = self._newest = version
        self._cached, self._sure = {version: version}, None
        self._begin()

    def changed(self, version: int, *, is_cache_kept: bool) -> None:
        """The server is about to go on with it under other weights."""
        if self._sure is None:
            self._sure = len(self._ids)
        self._cached[version] = self._cached[self._newest] if is_cache_kept else version
        self._newest = version

    def take(self, piece: Piece) -> None:
        """The next tokens; an error that names the request if they cannot be what was asked for."""
        name, count = f"request {self.request.id!r}", len(self._ids)
        if piece.prompt_ids is not None and list(piece.prompt_ids) != self._asked_ids():
            raise DataError(
                f"a server must take the ids that it is sent; of {name} it took {len(piece.prompt_ids)} ids, "
                f"{list(piece.prompt_ids)[:8]} ..., for {len(self._asked_ids())}, {self._asked_ids()[:8]} ...: it "
                "tokenized anew, or cut the prompt; let it serve the model of this run, with the context of this run"
            )
        if len(piece.logp) != len(piece.ids):
            raise DataError(
                f"every id comes with its log-prob; {name} got {len(piece.ids)} ids and {len(piece.logp)} log-probs "
                f"after {count} tokens: have the server report log-probs"
            )
        if count + len(piece.ids) > self.num_left:
            raise DataError(f"a completion has at most the tokens asked for; {name} got more than {self.num_left}")
        for place, (id, logp) in enumerate(zip(piece.ids, piece.logp, strict=True), count):
            if not (isinstance(id, int) and 0 <= id < self._vocabulary):
                raise DataError(
                    f"ids must lie in 0 .. {self._vocabulary - 1}; {name} got {id!r} as token {place}: let the server "
                    "serve the model of this run"
                )
            self._logp.append(self._checked(logp, place))
            self._ids.append(id)
        self._take_asked(piece, count)
        if piece.spans is not None:
            self._spans = list(piece.spans)
        if piece.finish is not None:
            self._finish = piece.finish

    def progress(self) -> Completion:
        """The tokens so far whose versions are sure, as an interrupted completion."""
        count = len(self._ids) if self._sure is None else self._sure
        version = np.full(count, self._first, np.int32)
        return joined(self.request.so_far, self._made(count, version, "interrupted"))

    def completion(self, versions: Mapping[str, int]) -> Completion:
        """The whole, once the server has ended it; ``interrupted`` if it was told to.

        Args:
            versions: of the labels that the server was given.
        """
        name = f"request {self.request.id!r}"
        finish = self._ended()
        version = self._versions(versions)
        made = self._made(len(self._ids), version, finish)
        unknown = sorted({int(v) for v in version} - self._cached.keys())
        if unknown:
            raise DataError(
                f"tokens come from weights that the engine held meanwhile, versions {sorted(self._cached)}; {name} got "
                f"some of version {unknown[0]}: the server's labels are not to be trusted"
            )
        cached = np.array([self._cached[int(v)] for v in version], np.int32)
        if (cached != version).any():
            made = replace(made, cached_version=cached)
        return joined(self.request.so_far, made)

    def _asked_ids(self) -> list[int]:
        made = self.request.so_far
        return [*self.request.prompt_ids, *([] if made is None else made.token_ids.tolist())]

    def _checked(self, logp: float | None, place: int) -> float:
        if logp is None or not math.isfinite(logp) or logp <= NO_NUMBER:
            raise NonFiniteError(
                f"a log-prob must be a finite number; request {self.request.id!r} got {logp} for token {place}, "
                f"sampled under version {self._newest} or one before: look at the weights published last, or lower the "
                "learning rate",
                rollout_id=self.request.id,
            )
        if logp > _ROUNDING:
            raise DataError(f"a log-prob is at most 0; request {self.request.id!r} got {logp} for token {place}")
        return logp

    def _take_asked(self, piece: Piece, count: int) -> None:
        """Alternatives and kept sets, where asked for."""
        name, new = f"request {self.request.id!r}", len(piece.ids)
        if (k := self.request.alternatives) and new:
            found = [] if piece.alternatives is None else [_most(ids, k) for ids in piece.alternatives]
            if len(found) != new or any(len(ids) < k for ids in found):
                raise DataError(
                    f"{name} asks for {k} alternatives a token and got fewer after {count} tokens: have the server "
                    "allow so many (vLLM: --max-logprobs)"
                )
            self._alternatives += found
        if self.request.kept and not self.request.truncation.is_none and new:
            if piece.kept is None or len(piece.kept) != new:
                raise DataError(
                    f"{name} asks what each token was sampled among and was not told after {count} tokens: start vLLM "
                    "with --return-sampling-mask, which needs a GPU and engine.top_k above 0, or leave 'support' out "
                    "of algorithm.replay"
                )
            for place, (id, ids) in enumerate(zip(piece.ids, piece.kept, strict=True), count):
                if ids and id not in ids:
                    raise DataError(
                        f"a token is one of those that it was sampled among; token {place} of {name}, {id}, is not"
                    )
            self._kept += [list(ids) for ids in piece.kept]

    def _ended(self) -> Finish:
        name, last = f"request {self.request.id!r}", self._ids[-1] if self._ids else None
        match self._finish:
            case "stop" if last in self._eos_ids:
                return "stop"
            case "stop":
                raise DataError(
                    f"a completion stops with an end-of-sequence id, one of {list(self._eos_ids)}; {name} stopped with "
                    f"{last}: the server has another tokenizer or generation config than this run"
                )
            case "length" if len(self._ids) == self.num_left:
                return "stop" if last in self._eos_ids else "length"
            case "length":
                raise DataError(
                    f"a completion is cut at max_tokens; {name} was cut after {len(self._ids)} of {self.num_left} "
                    "tokens: give the server a context as long as this run's"
                )
            case "abort":
                return "interrupted"
        raise DataError(f"a completion ends with stop, length or abort; {name} ended with {self._finish!r}")

    def _versions(self, versions: Mapping[str, int]) -> Ints:
        """Of every token that came: what the spans say, or the only one that there was."""
        count, name = len(self._ids), f"request {self.request.id!r}"
        if self._spans is None:
            if self._sure is not None and self._sure < count:
                raise DataError(
                    f"weights changed within {name}, and the server does not say which made each token; take a server "
                    "that labels tokens (vLLM 0.32, SGLang with weight_versions), or pipeline.in_flight = 'finish'"
                )
            return np.full(count, self._first, np.int32)
        version, end = np.full(count, self._first, np.int32), 0
        for span in self._spans:
            if span.start != end or span.end < span.start or span.label not in versions:
                raise DataError(
                    f"spans of versions follow one another and have labels that this engine gave; {name} got "
                    f"{list(map(tuple, self._spans))}, labels are {sorted(versions)}: does somebody else give this "
                    "server weights?"
                )
            version[span.start : span.end] = versions[span.label]
            end = span.end
        if end != count or (np.diff(version) < 0).any():
            raise DataError(f"versions rise over all {count} tokens of {name}; got {list(map(tuple, self._spans))}")
        if self._sure is not None and (version[: self._sure] != self._first).any():
            raise DataError(f"{name} got tokens labelled with weights that the server did not have when they came")
        return version

    def _made(self, count: int, version: Ints, finish: Finish) -> Completion:
        k, kept = self.request.alternatives, None
        table = self._alternatives[:count]
        if self.request.kept and not self.request.truncation.is_none:
            sets = self._kept[:count]
            starts = np.concatenate([[0], np.cumsum([len(ids) for ids in sets])]).astype(np.int64)
            kept = KeptSets(ids=np.array([id for ids in sets for id in ids], np.int32), starts=starts)
        return Completion(
            token_ids=np.array(self._ids[:count], np.int32),
            logp=np.array(self._logp[:count], np.float32),
            version=version,
            finish=finish,
            top_k_ids=np.array([[id for id, _ in row] for row in table], np.int32).reshape(count, k) if k else None,
            top_k_logp=_floats([[logp for _, logp in row] for row in table], count, k) if k else None,
            kept=kept,
        )


def _floats(rows: list[Any], count: int, k: int) -> Floats:
    return np.array(rows, np.float32).reshape(count, k)


def _most(found: Any, k: int) -> list[tuple[int, float]]:
    """The ``k`` most probable, each once; what was cut away has no probability.

    >>> _most([(7, -3.0), (2, -0.1), (5, -9999.0), (7, -3.0)], 3)
    [(2, -0.1), (7, -3.0), (5, -inf)]
    """
    each = {int(id): -math.inf if logp <= NO_NUMBER else float(logp) for id, logp in found}
    return sorted(each.items(), key=lambda pair: (-pair[1], pair[0]))[:k]
