"""One connection of a relay, and HTTP on it."""

from __future__ import annotations

import asyncio
from typing import Any

import h11

_CHUNK = 2**16
_MAX_HEADERS = 2**16


class RequestReader(asyncio.StreamReader):
    """Signals at once that the other side has closed, even while there is more to read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=_CHUNK, loop=loop)
        self.ended = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.ended.set()

    def set_exception(self, exc: Exception) -> None:
        super().set_exception(exc)
        self.ended.set()


class HttpConnection:
    """One connection, and HTTP on it."""

    def __init__(
        self, role: type, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=_MAX_HEADERS)
        self.reader, self.writer = reader, writer

    async def next(self) -> Any:
        """The next event. Raises h11.RemoteProtocolError for invalid HTTP, OSError if the
        connection breaks."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            self.http.receive_data(await self.reader.read(_CHUNK))
        return event

    async def send(self, event: Any) -> None:
        """Sends an event immediately; waits while the other side's buffer is full."""
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()
