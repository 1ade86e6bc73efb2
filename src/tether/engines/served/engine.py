"""The engine: completions under way at a server, and weights that change between their tokens.

A load goes: nobody new is let in; completions under way end first, where the way is ``finish``; the server holds
still; it reads the weights and labels what it makes with them; it goes on. What goes wrong before it reads leaves
everything as it was. What goes wrong after leaves a server of which nobody can say what it holds: the engine is lost
then, every completion under way with it, and it samples nothing until it has taken a version anew.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tether.engines.requests import Servable
from tether.engines.sequence import check_follows, is_same
from tether.engines.served.client import Client, ServerAnswerError, ServerGoneError
from tether.engines.served.flight import Flight
from tether.engines.served.folders import Folders
from tether.engines.served.gate import Gate
from tether.engines.served.occupied import Occupied
from tether.engines.served.piece import Speech
from tether.engines.served.process import Server
from tether.errors import ConfigError, EngineLostError, ModelError, ProcessLostError, ResumeError, RolloutError
from tether.ports import EngineCapabilities, GenerationRequest, InFlight, Publication
from tether.records import Completion

_ASKS: Final = 2
"""How often a completion is asked for where the server is well and the answer breaks off."""
_SERVER_ERROR: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What an engine works with."""

    client: Client
    speech: Speech
    server: Server
    folders: Folders
    servable: Servable


class ServedEngine:
    """A ``RolloutEngine`` whose tokens are made by a server.

    Args:
        means: how it reaches the server.
        control_s: longest time until completions that were told to come back are back.
        most_losses: how often the server may be lost before that is an error of the run.
        max_rows: most answers that ``answer`` asks for at once.
    """

    def __init__(self, means: Means, *, control_s: float, most_losses: int, max_rows: int) -> None:
        self._client, self._speech, self._server = means.client, means.speech, means.server
        self._folders, self._servable = means.folders, means.servable
        self._control_s, self._most_losses, self._max_rows = control_s, most_losses, max_rows
        self._nonce = uuid.uuid4().hex[:8]
        """In every label and name: what others give the same server is told apart."""
        self._held: Publication | None = None
        self._versions: dict[str, int] = {}
        self._gate = Gate()
        self._loading = asyncio.Lock()
        self._flights: dict[Flight, bool] = {}
        """Under way, and whether ``progress`` tells of them."""
        self._num_asked = self._num_losses = 0
        self._busy = Occupied()
        self._dropping: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> EngineCapabilities:
        """Those of the server."""
        return self._speech.capabilities

    @property
    def version(self) -> int:
        """Version of the weights that the server holds; -1 before the first load, and when it was lost."""
        return -1 if self._held is None else self._held.version

    @property
    def busy_s(self) -> float:
        """Real seconds in which the server was asked for anything."""
        return self._busy.seconds

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one completion at the server, together with whatever else it samples."""
        return await self._sample(request, is_shown=True)

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Sample one completion a request, in the order asked; the server samples them beside what is under way."""
        room = asyncio.Semaphore(self._max_rows)

        async def one(request: GenerationRequest) -> Completion:
            async with room:
                while (made := await self._sample(request, is_shown=False)).finish == "interrupted":
                    pass  # by a load: it is asked under the new weights
                return made

        tasks = [asyncio.create_task(one(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()  # of one that failed, the others

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        """Have the server take a version, whole or not at all; return the fingerprint of what was received."""
        check_follows(self._held, publication)
        if in_flight not in self.capabilities.in_flight:
            ways = ", ".join(self.capabilities.in_flight)
            raise ConfigError(f"this engine cannot load with in_flight = {in_flight!r}; it can {ways}")
        async with self._loading:
            check_follows(self._held, publication)
            if self._num_losses > self._most_losses:
                raise ProcessLostError(
                    f"{self._server.who} was lost {self._num_losses} times, and engine.restarts = {self._most_losses}: "
                    "find out why, then go on with tether train --resume"
                )
            with self._busy:
                folder, arrived = await asyncio.to_thread(self._folders.take, publication)
            await self._load(publication, folder, self._way(publication, in_flight))
            self._folders.sweep(folder)
        return arrived

    async def progress(self) -> Mapping[str, Completion]:
        """What came so far of all that is under way, up to where it is sure which weights made it."""
        return {
            flight.request.id: flight.completion(self._versions) if flight.is_whole else flight.progress()
            for flight, is_shown in self._flights.items()
            if is_shown
        }

    def in_flight(self) -> None:
        """Nothing: the caches are the server's."""
        return None

    def restore(self, flight: Mapping[str, Any]) -> None:
        """Refused: no server has told a flight."""
        raise ResumeError("generations under way that were saved elsewhere cannot be gone on with at a server")

    async def close(self) -> None:
        """End a server that we started, and let the connections go; nothing that is under way comes back."""
        self._forget("the engine was closed")
        for task in list(self._dropping):
            with suppress(asyncio.CancelledError):
                await task
        await self._client.close()
        self._server.end()
        await asyncio.to_thread(self._server.gone)

    async def _sample(self, request: GenerationRequest, *, is_shown: bool) -> Completion:
        self._servable.check(request)
        self._check_asked(request)
        await self._gate.passed()
        if self._held is None:
            raise EngineLostError(f"{self._server.who} holds no weights yet; what was asked must be asked again")
        flight = Flight(request, self.version, vocabulary=self._servable.vocabulary, eos_ids=self._servable.eos_ids)
        self._flights[flight] = is_shown
        try:
            with self._busy:
                flight.task = asyncio.create_task(self._read(flight), name=f"read {request.id}")
                await flight.task
            return flight.completion(self._versions)
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if flight.lost and here is not None and not here.cancelling():
                raise self._lost_error(flight.lost) from None
            raise
        finally:
            del self._flights[flight]
            self._gate.left(len(self._flights))

    async def _read(self, flight: Flight) -> None:
        """Ask for a completion and take it piece by piece; once more if the answer breaks off at a server that is
        well. Only what came last counts, and the server is told to drop the rest."""
        for left in reversed(range(_ASKS)):
            self._num_asked += 1
            name = f"{self._nonce}-{self._num_asked}"
            try:
                await self._take_all(flight, name)
                return
            except asyncio.CancelledError:
                if not flight.lost:
                    self._drop(name)
                raise
            except ServerGoneError as gone:
                if gone.is_silent or not left or self._gate.is_closed or not await self._speech.is_alive():
                    raise self._lose(str(gone)) from gone
            except ServerAnswerError as error:
                if not await self._speech.is_alive():  # vLLM tells in the middle of an answer that its core has died
                    raise self._lose(str(error)) from error
                if error.status < _SERVER_ERROR or not left or self._gate.is_closed:
                    told = f"rollout {flight.request.id} could not be sampled: {error}"
                    raise RolloutError(told, rollout_id=flight.request.id) from error
            self._drop(name)
            flight.again(self.version)

    async def _take_all(self, flight: Flight, name: str) -> None:
        path, body = self._speech.question(flight.request, name, f"{self._nonce}.{self.version}")
        async with aclosing(self._client.stream(path, body)) as messages:
            async for message in messages:
                try:
                    piece = self._speech.piece(message, len(flight))
                except (KeyError, TypeError, ValueError, IndexError) as error:
                    raise ServerAnswerError(
                        f"{self._client.url}{path} must answer as its protocol says ({type(error).__name__}: {error}); "
                        f"got {str(message)[:400]}"
                    ) from error
                flight.take(piece)
        if flight.finish is None:
            raise ServerGoneError(f"{self._client.url}{path} ended an answer without saying how it ended")

    async def _load(self, publication: Publication, folder: Path, way: InFlight) -> None:
        with self._gate.held():
            if self._held is None:
                await self._server.ready(self._speech.is_alive)
            elif way == "finish":
                await self._gate.emptied(len(self._flights))
                if self._held is None:
                    raise EngineLostError(f"{self._server.who} was lost while completions ended before a load")
            with self._busy:  # from here on: a server that starts does no work
                await self._hand_over(publication, folder, way)

    async def _hand_over(self, publication: Publication, folder: Path, way: InFlight) -> None:
        try:
            await self._speech.hold(way)
        except ServerAnswerError as refused:
            await self._go_on_as_before(refused)
            raise
        except ServerGoneError as gone:
            raise self._lose(f"it did not hold still for version {publication.version}: {gone}") from gone
        try:
            await self._exchange(publication, folder, way)
        except (ServerAnswerError, ServerGoneError, TimeoutError) as error:
            why = str(error) or "completions that were told to come back did not"
            raise self._lose(f"it failed in the middle of taking version {publication.version}: {why}") from error
        except BaseException as error:
            self._lose(f"it was left in the middle of taking version {publication.version}: {error!r}")
            raise

    async def _exchange(self, publication: Publication, folder: Path, way: InFlight) -> None:
        """The server holds still: have it take the weights, and go on."""
        if way == "restart":
            async with asyncio.timeout(self._control_s):
                await self._gate.emptied(len(self._flights))
        label = f"{self._nonce}.{publication.version}"
        await self._speech.take(folder, label, way)
        self._versions[label] = publication.version
        for flight in self._flights:
            flight.changed(publication.version, is_cache_kept=way == "keep")
        self._held = publication
        await self._speech.go_on()

    async def _go_on_as_before(self, refused: ServerAnswerError) -> None:
        try:
            await self._speech.go_on()
        except (ServerAnswerError, ServerGoneError) as error:
            raise self._lose(f"it refused to hold still ({refused}), and then to go on: {error}") from error

    def _way(self, publication: Publication, asked: InFlight) -> InFlight:
        """What happens to completions under way: nothing, where the version that is held comes again."""
        if self._held is None:
            return "restart" if "restart" in self.capabilities.in_flight else "finish"
        if is_same(self._held, publication):
            return "keep" if "keep" in self.capabilities.in_flight else "finish"
        return asked

    def _check_asked(self, request: GenerationRequest) -> None:
        """Refuse what the server cannot give."""
        can, is_cut = self.capabilities, not request.truncation.is_none
        if request.kept and is_cut and not can.kept:
            raise ModelError(
                f"request {request.id!r} asks what tokens were sampled among; {self._server.who} cannot tell"
            )
        if can.logp == "raw" and (is_cut or request.temperature not in (0.0, 1.0)):
            raise ModelError(
                f"{self._server.who} reports log-probs of the model, before temperature and truncation; request "
                f"{request.id!r} samples from another distribution: temperature must be 1 and truncation off"
            )

    def _drop(self, name: str) -> None:
        async def drop() -> None:
            with suppress(ServerAnswerError, ServerGoneError):
                await self._speech.drop(name)

        task = asyncio.get_running_loop().create_task(drop(), name=f"drop {name}")
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    def _lose(self, why: str) -> EngineLostError:
        """Nobody can say what the server holds: everything under way is void. What to tell who asked."""
        if self._held is not None or self._loading.locked():
            self._num_losses += 1
        self._held = None
        self._forget(why)
        self._server.end()
        return self._lost_error(why)

    def _forget(self, why: str) -> None:
        """Have all that is under way end with an error."""
        here = asyncio.current_task()
        for flight in self._flights:
            if not flight.lost:
                flight.lost = why
                if flight.task is not None and flight.task is not here:
                    flight.task.cancel()

    def _lost_error(self, why: str) -> EngineLostError:
        return EngineLostError(f"{self._server.who} was lost: {why}; what was asked must be asked again")
