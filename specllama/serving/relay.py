"""A relay in front of a server that may be replaced: requests wait meanwhile, and are served.

It speaks HTTP (with h11, which httpx also uses) instead of forwarding bytes: a client's connection
stays open across requests while the servers behind it change, and the relay knows exactly whether
a request is running. Each request gets its own connection to the server, which is on this machine.
Bodies and streams are passed on as they arrive and never inspected.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import h11

from specllama.engine.errors import cannot_listen
from specllama.serving.connection import HttpConnection, RequestReader
from specllama.serving.forwarding import forwarded, kept_headers
from specllama.serving.gate import Gate

_IDLE_S = 120.0  # before an idle connection is closed; longer than clients keep theirs
_AGAIN_S = 0.1  # between attempts to reach a server that should be up
_BACKLOG = 512


class _ClientGone(Exception):
    """The client has disconnected."""


class _ServerBroke(Exception):
    """The server closed the connection mid-response."""


class Relay:
    """Listens at `host`:`port` in its own thread. Raises as free_port does."""

    def __init__(self, host: str, port: int) -> None:
        self.gate = Gate()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(host, port)), name="relay", daemon=True
        )
        self._thread.start()
        try:
            self._listening.result()
        except (OSError, OverflowError, UnicodeError) as e:
            raise cannot_listen(host, port, e) from None

    def open(self, host: str, port: int) -> None:
        """Forwards requests to this address, the waiting ones first."""
        self.gate.open((host, port))
        self._loop.call_soon_threadsafe(self._changed.set)

    def close(self) -> None:
        """Closes all connections; responses in progress are cut off."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closed.set)
            self._thread.join()

    async def _run(self, host: str, port: int) -> None:
        """The thread's main coroutine. The event loop is created in the thread that runs it, as
        Windows' proactor requires."""
        self._loop = asyncio.get_running_loop()
        self._changed, self._closed = asyncio.Event(), asyncio.Event()
        # a connection that breaks at the wrong moment is nothing to report
        self._loop.set_exception_handler(lambda _loop, _about: None)
        try:
            server = await self._listen(host, port)
        except BaseException as e:
            self._listening.set_exception(e)
            return
        self._listening.set_result(None)
        await self._closed.wait()
        server.close()  # what is left is cancelled when the loop ends

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        if host == "::" and socket.has_dualstack_ipv6():  # as llama-server: IPv4 too
            both = socket.create_server(
                (host, port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
            return await self._loop.create_server(self._protocol, sock=both, backlog=_BACKLOG)
        return await self._loop.create_server(self._protocol, host or None, port, backlog=_BACKLOG)

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(
            RequestReader(self._loop), self._connected, loop=self._loop
        )

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, RequestReader)
        # detects clients that vanished without closing
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        task = self._loop.create_task(_ClientHandler(self, reader, writer).serve())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def changed(self) -> None:
        """Waits until there may be a server again."""
        self._changed.clear()
        if self.gate.target is None:
            await self._changed.wait()
        else:
            await asyncio.sleep(_AGAIN_S)


class _ClientHandler:
    """One client's connection, for all its requests."""

    def __init__(self, relay: Relay, reader: RequestReader, writer: asyncio.StreamWriter) -> None:
        self._relay, self._reader = relay, reader
        self._side = HttpConnection(h11.SERVER, reader, writer)

    async def serve(self) -> None:
        http = self._side.http
        try:
            while True:
                event = await asyncio.wait_for(self._side.next(), _IDLE_S)
                if not isinstance(event, h11.Request):
                    return
                await self._handle(event)
                if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                    return
                http.start_next_cycle()
        except h11.RemoteProtocolError as e:
            await self._send_error(e.error_status_hint, str(e))
        except (_ClientGone, OSError, h11.LocalProtocolError, asyncio.TimeoutError, TimeoutError):
            pass
        except _ServerBroke as e:
            await self._send_error(502, str(e))
        finally:
            await self._end()

    async def _handle(self, request: h11.Request) -> None:
        if _asks_health(request) and self._relay.gate.target is None:
            while not isinstance(await self._side.next(), (h11.EndOfMessage, h11.ConnectionClosed)):
                pass
            await self._respond(200, {"status": "ok"})
            return
        computes = request.method not in (b"GET", b"HEAD", b"OPTIONS")
        server = await self._enter(computes)
        try:
            await self._exchange(request, server)
        finally:
            server.writer.close()
            self._relay.gate.leave(computes)

    async def _enter(self, computes: bool) -> HttpConnection:
        """A connection to the server, once there is one. Raises _ClientGone if the client leaves
        first."""
        gate, counted = self._relay.gate, False
        while True:
            target = gate.enter(computes)
            if target is not None:
                try:
                    reader, writer = await asyncio.open_connection(*target)
                    return HttpConnection(h11.CLIENT, reader, writer)
                except OSError:  # it exited; serve restarts it
                    gate.leave(computes)
                except BaseException:
                    gate.leave(computes)
                    raise
            if not counted:
                counted = True
                gate.count_waiting()
            await self._unless_gone(self._relay.changed())

    async def _unless_gone(self, waiting: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.ensure_future(waiting), asyncio.ensure_future(self._reader.ended.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for t in tasks:
                t.cancel()
        if self._reader.ended.is_set():
            raise _ClientGone

    async def _exchange(self, request: h11.Request, server: HttpConnection) -> None:
        """One request and its response. A client that closes its side is passed on: llama-server
        then stops generating."""
        await _from_server(server.send(forwarded(request)))
        body = asyncio.ensure_future(self._pass_body(server))
        response = asyncio.ensure_future(self._pass_response(server))
        ended = asyncio.ensure_future(self._reader.ended.wait())
        open_ones: set[asyncio.Future[Any]] = {body, response, ended}
        try:
            while not response.done():
                done, open_ones = await asyncio.wait(open_ones, return_when=asyncio.FIRST_COMPLETED)
                if body in done:
                    body.result()
                if ended in done and server.writer.can_write_eof():
                    with suppress(OSError):
                        server.writer.write_eof()
            response.result()
        finally:
            for task in (body, response, ended):
                task.cancel()
            await asyncio.gather(body, response, ended, return_exceptions=True)

    async def _pass_body(self, server: HttpConnection) -> None:
        """Raises h11.RemoteProtocolError if the client disconnects."""
        while True:
            event = await self._side.next()
            if isinstance(event, h11.ConnectionClosed):
                raise _ClientGone
            try:
                if isinstance(event, h11.EndOfMessage):
                    await server.send(h11.EndOfMessage())
                    return
                await server.send(h11.Data(data=bytes(event.data)))
            except (OSError, h11.LocalProtocolError):
                return  # it refuses the rest; its response says why

    async def _pass_response(self, server: HttpConnection) -> None:
        while True:
            event = await _from_server(server.next())
            if isinstance(event, h11.Response):
                await self._side.send(
                    h11.Response(
                        status_code=event.status_code,
                        headers=kept_headers(event.headers),
                        reason=event.reason,
                    )
                )
            elif isinstance(event, h11.Data):
                await self._side.send(h11.Data(data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self._side.send(h11.EndOfMessage())
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise _ServerBroke(
                    "llama-server closed the connection before the response was complete"
                )

    async def _send_error(self, status: int, reason: str) -> None:
        """Sends an error in llama-server's format, or aborts if the response has already begun."""
        if self._side.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._side.writer.transport.abort()
            return
        with suppress(OSError, h11.LocalProtocolError):
            error = {"code": status, "message": reason, "type": "server_error"}
            await self._respond(status, {"error": error}, ("Connection", "close"))

    async def _respond(self, status: int, data: Any, *more: tuple[str, str]) -> None:
        """Sends a response of our own."""
        body = json.dumps(data).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *more]
        await self._side.send(h11.Response(status_code=status, headers=headers))
        await self._side.send(h11.Data(data=body))
        await self._side.send(h11.EndOfMessage())

    async def _end(self) -> None:
        self._side.writer.close()
        with suppress(OSError, asyncio.TimeoutError, TimeoutError):
            await asyncio.wait_for(self._side.writer.wait_closed(), 1.0)


def _asks_health(request: h11.Request) -> bool:
    """Whether it is a health check, which need not wait: requests are accepted."""
    return request.method == b"GET" and bytes(request.target).partition(b"?")[0].endswith(
        b"/health"
    )


async def _from_server(waiting: Coroutine[Any, Any, Any]) -> Any:
    """Raises _ServerBroke for every failure of the server."""
    try:
        return await waiting
    except (OSError, h11.RemoteProtocolError) as e:
        raise _ServerBroke(
            "llama-server closed the connection before the response was complete"
        ) from e
