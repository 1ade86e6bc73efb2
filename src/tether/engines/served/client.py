"""Questions to a server over HTTP, hundreds at once, and what can go wrong with each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tether.errors import ConfigError, TetherError

if TYPE_CHECKING:
    import aiohttp

CONNECT_S: Final = 10.0
"""Longest time until a server that is there takes a connection."""
_TRIES: Final = 3
"""How often a connection is tried; a question that may have arrived is never asked again here."""
_PAUSE_S: Final = 0.2
_SHOWN: Final = 400
"""Characters of a server's answer that an error shows."""


class ServerAnswerError(TetherError, RuntimeError):
    """A server that is there and answered something else than it was asked for: an error status, or no JSON."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ServerGoneError(TetherError, ConnectionError):
    """A server that cannot be reached, hung up, or said nothing for too long."""

    def __init__(self, message: str, *, is_silent: bool = False) -> None:
        super().__init__(message)
        self.is_silent = is_silent
        """Whether it holds the connection and says nothing."""


class Client:
    """Asks one server. It may be used under several event loops, one after the other.

    Args:
        where: tells the address of the server, without a path; a server that is started anew has another.
        silence_s: longest time that an answer under way may say nothing.
        control_s: longest time of a question that is answered at once.
        key: goes with every question, where the server wants one.
    """

    def __init__(self, where: Callable[[], str], *, silence_s: float, control_s: float, key: str = "") -> None:
        self._where = where
        self._silence_s, self._control_s = silence_s, control_s
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._holder: AsyncGenerator[aiohttp.ClientSession] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        """Where the server is now."""
        return self._where().rstrip("/")

    async def get(self, path: str) -> Any:
        """What the server says under a path."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Have the server do something; what it says to that."""
        return await self._ask("POST", path, body)

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """The pieces of an answer (server-sent events), each a JSON object, as they come.

        Leaving it early hangs up, and a server then ends its work.
        """
        import aiohttp

        url = self.url + path
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=self._silence_s)
        try:
            async with await self._connected("POST", url, body, timeout) as response:
                await _check_status(response)
                is_whole = False
                async for line in _lines(response):
                    if not line.startswith(b"data:"):
                        continue  # a comment that keeps the connection alive, or the name of an event
                    if (text := line[5:].strip()) == b"[DONE]":
                        is_whole = True
                        break
                    yield _object(text, url)
                if not is_whole:
                    raise ServerGoneError(f"{url} hung up in the middle of an answer")
        except ServerGoneError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise _gone(url, error, self._silence_s) from error

    async def close(self) -> None:
        """Let the connections go. They also go when the event loop ends."""
        holder, self._holder, self._session = self._holder, None, None
        if holder is not None:
            await holder.aclose()

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        import aiohttp

        url = self.url + path
        timeout = aiohttp.ClientTimeout(total=self._control_s, sock_connect=CONNECT_S)
        try:
            async with await self._connected(method, url, body, timeout) as response:
                await _check_status(response)
                text = await response.read()
        except ServerGoneError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise _gone(url, error, self._control_s) from error
        return _value(text, url) if text.strip() else None

    async def _connected(
        self, method: str, url: str, body: Mapping[str, Any] | None, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """The beginning of an answer. A server that takes no connection is tried again: it cannot have heard."""
        import aiohttp

        session = await self._opened()
        for left in reversed(range(_TRIES)):
            try:
                return await session.request(method, url, json=body, headers=self._headers, timeout=timeout)
            except aiohttp.ClientConnectorError as error:
                if not left:
                    raise ServerGoneError(
                        f"{url} takes no connection: {error}; is the server running, and is this its address?"
                    ) from error
                await asyncio.sleep(_PAUSE_S)
        raise AssertionError

    async def _opened(self) -> aiohttp.ClientSession:
        """The connections of this event loop, which closes them when it ends."""
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._holder = _session()
            self._session, self._loop = await anext(self._holder), loop
        return self._session


async def _session() -> AsyncGenerator[aiohttp.ClientSession]:
    """Connections that go with their event loop: it ends every generator that is still open."""
    try:
        import aiohttp
    except ImportError as error:
        raise ConfigError(
            "engines behind HTTP need the package aiohttp, which is not installed; pip install 'tether-rl[serve]'"
        ) from error
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length."""
    rest = bytearray()
    async for block in response.content.iter_any():
        before = len(rest)
        rest += block
        if b"\n" in block:
            end = rest.rindex(b"\n", before)
            for line in bytes(rest[:end]).split(b"\n"):
                yield line.strip()
            del rest[: end + 1]


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        text = (await response.text(errors="replace"))[:_SHOWN].strip()
        raise ServerAnswerError(f"{response.url} answered {response.status}: {text or 'nothing'}", response.status)


def _object(text: bytes, url: str) -> dict[str, Any]:
    found = _value(text, url)
    if not isinstance(found, dict):
        raise ServerAnswerError(f"{url} must answer with JSON objects; got {_shown(text)}")
    if (error := found.get("error")) is not None:
        raise ServerAnswerError(f"{url} broke off an answer: {str(error)[:_SHOWN]}")
    return found


def _value(text: bytes, url: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ServerAnswerError(f"{url} must answer with JSON; got {_shown(text)}") from error


def _shown(text: bytes) -> str:
    return repr(text[:_SHOWN].decode(errors="replace"))


def _gone(url: str, error: Exception, within_s: float) -> ServerGoneError:
    if isinstance(error, TimeoutError):
        return ServerGoneError(f"{url} said nothing for {within_s:g} seconds", is_silent=True)
    return ServerGoneError(f"{url} hung up: {type(error).__name__}: {error}")
