"""The relay in front of a replaceable server: no request is lost or changed."""

from __future__ import annotations

import asyncio
import http.client
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import h11
import httpx
import pytest

from specllama.engine.errors import EngineError
from specllama.errors import UsageError
from specllama.planning.plan import free_port
from specllama.serving.forwarding import forwarded
from specllama.serving.gate import Gate
from specllama.serving.relay import Relay


class Backend(http.server.ThreadingHTTPServer):
    """A server that echoes requests, streams (/stream, a chunk for each release of `pieces`) and
    returns its name."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, name: str, port: int = 0) -> None:
        self.name, self.pieces = name, threading.Semaphore(0)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.client_left = threading.Event()  # set when a client of /stream disconnects
        super().__init__(("127.0.0.1", port), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Backend

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        body = self._body()
        if len(body) < int(self.headers.get("Content-Length") or 0):
            self.close_connection = True  # half a request
            return
        self.server.requests.append((self.path, dict(self.headers.items()), body))
        if self.path == "/stream":
            self._stream()
        elif self.path == "/broken":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"some")
            self.close_connection = True
        elif self.path == "/mute":
            self.close_connection = True
        else:
            self.send_response(200)
            reply = body or self.server.name.encode()
            self.send_header("Content-Length", str(len(reply)))
            self.send_header("X-Server", self.server.name)
            self.send_header("Keep-Alive", "timeout=5, max=100")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply)

    do_GET = do_POST = do_HEAD = do_PUT = _answer

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            whole = b""
            while size := int(self.rfile.readline(), 16):
                whole += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return whole
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            while not self.server.pieces.acquire(timeout=0.02):
                if self._client_ended():
                    self.server.client_left.set()
                    return
            piece = f"data: {number}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _client_ended(self) -> bool:
        """llama-server's check for a connected client (cpp-httplib, is_socket_alive)."""
        self.connection.setblocking(False)
        try:
            return bool(self.connection.recv(1, socket.MSG_PEEK) == b"")
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.connection.setblocking(True)


@contextmanager
def relayed(*names: str) -> Iterator[tuple[Relay, str, list[Backend]]]:
    """A relay open to the first of the servers, its URL, and the servers."""
    servers = [Backend(n) for n in names or ("a",)]
    port = free_port("127.0.0.1", 0)
    relay = Relay("127.0.0.1", port)
    relay.open(*_address(servers[0]))
    try:
        yield relay, f"http://127.0.0.1:{port}", servers
    finally:
        relay.close()
        for s in servers:
            s.close()


def _address(server: Backend) -> tuple[str, int]:
    return "127.0.0.1", server.server_port


@contextmanager
def raw_connection(url: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as raw:
        yield raw


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_requests_and_responses_pass_unchanged() -> None:
    with relayed() as (_, url, (server,)), httpx.Client(base_url=url) as client:
        body = bytes(range(256)) * 4096  # a megabyte
        response = client.post("/v1/x?y=%20z", content=body, headers={"Authorization": "Bearer k"})
        assert response.content == body
        assert response.headers["X-Server"] == "a"
        assert "keep-alive" not in response.headers  # it belongs to the connection to the server
        assert client.post("/c", content=iter([b"ab", b"", b"cd"])).content == b"abcd"  # chunked
        assert client.head("/h").headers["Content-Length"] == "1"
        assert client.get("/g").text == "a"
        (path, headers, _), *_ = server.requests
        assert path == "/v1/x?y=%20z"
        assert headers["Authorization"] == "Bearer k"
        assert headers["Host"] == url.removeprefix("http://")


def test_a_client_connection_survives_a_change_of_servers() -> None:
    """Clients keep connections open: a closed one could be a failed request."""
    with (
        relayed("a", "b") as (relay, url, (a, b)),
        closing(http.client.HTTPConnection(url.removeprefix("http://"))) as one,
    ):
        one.request("POST", "/")
        assert one.getresponse().read() == b"a"
        own = one.sock
        wait_until(lambda: relay.gate.shut_if_quiet(0))
        a.close()
        relay.open(*_address(b))
        one.request("POST", "/")
        assert one.getresponse().read() == b"b"
        assert one.sock is own


def test_requests_wait_while_there_is_no_server() -> None:
    with relayed("a", "b") as (relay, url, (a, b)):
        assert relay.gate.shut_if_quiet(0)
        responses: list[str] = []
        clients = [
            threading.Thread(target=lambda: responses.append(httpx.post(url).text))
            for _ in range(4)
        ]
        for c in clients:
            c.start()
        time.sleep(0.1)
        assert responses == []
        assert a.requests == b.requests == []
        relay.open(*_address(b))
        for c in clients:
            c.join(10)
        assert responses == ["b"] * 4


def test_health_responds_at_once_while_there_is_no_server() -> None:
    """A supervisor would kill the service if its health check had to wait for a model to load."""
    with relayed() as (relay, url, (server,)), httpx.Client(base_url=url) as client:
        relay.gate.shut()
        assert client.get("/health").json() == {"status": "ok"}
        assert client.get("/v1/health?x=1").json() == {"status": "ok"}
        assert server.requests == []
        relay.open(*_address(server))
        assert client.get("/health").text == "a"


def test_a_request_waits_for_a_crashed_server_to_restart() -> None:
    """serve notices a crash a moment later than clients do."""
    with relayed() as (relay, url, (server,)):
        port = server.server_port
        server.close()
        responses: list[str] = []
        client = threading.Thread(target=lambda: responses.append(httpx.post(url).text))
        client.start()
        time.sleep(0.15)
        assert responses == []
        restarted = Backend("again", port)
        client.join(10)
        restarted.close()
        assert responses == ["again"]
        assert relay.gate.in_flight == 0


def test_a_running_response_keeps_the_server() -> None:
    with relayed() as (relay, url, (server,)):
        with httpx.stream("POST", f"{url}/stream", content=b"{}") as response:
            lines = response.iter_lines()
            server.pieces.release()
            assert next(lines) == "data: 0"  # chunk by chunk, without buffering
            assert relay.gate.in_flight == 1
            assert not relay.gate.shut_if_quiet(0)
            assert relay.gate.quiet_s == 0
            server.pieces.release(2)
            assert [x for x in lines if x] == ["data: 1", "data: 2"]
        wait_until(lambda: relay.gate.in_flight == 0)
        assert relay.gate.shut_if_quiet(0)


def test_monitoring_requests_do_not_count_as_activity() -> None:
    gate = Gate(clock := Clock())
    gate.open(("h", 1))
    gate.enter(True)
    gate.leave(True)
    clock.now = 5
    gate.enter(False)
    assert gate.quiet_s == 5
    assert not gate.shut_if_quiet(5)  # a running request is completed first
    gate.leave(False)
    assert not gate.shut_if_quiet(6)
    assert gate.shut_if_quiet(5)
    assert gate.enter(True) is None


def forwarded_headers(*headers: tuple[str, str]) -> list[tuple[str, str]]:
    request = h11.Request(method="POST", target="/", headers=[("Host", "h"), *headers])
    return [(n.decode(), v.decode()) for n, v in forwarded(request).headers.raw_items()]


@pytest.mark.parametrize(
    "header",
    [
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("TE", "trailers"),
        ("Trailer", "X-Sum"),
        ("Upgrade", "h2c"),
        ("Expect", "100-continue"),
    ],
)
def test_headers_of_a_connection_are_not_passed_on(header: tuple[str, str]) -> None:
    assert forwarded_headers(header, ("X-Own", "1")) == [
        *(("Host", "h"), ("X-Own", "1"), ("Connection", "close")),
    ]


def test_headers_named_by_connection_are_not_passed_on() -> None:
    """RFC 9110, 7.6.1."""
    named = forwarded_headers(("Connection", "keep-alive, X-Hop"), ("X-Hop", "1"), ("X-Own", "2"))
    assert named == [("Host", "h"), ("X-Own", "2"), ("Connection", "close")]


def test_a_chunked_request_has_no_length() -> None:
    """RFC 9112, 6.3: with both, a server may see another end of the request than the relay."""
    both = forwarded_headers(("Content-Length", "5"), ("Transfer-Encoding", "chunked"))
    assert both == [("Host", "h"), ("Transfer-Encoding", "chunked"), ("Connection", "close")]
    assert ("Content-Length", "5") in forwarded_headers(("Content-Length", "5"))


def test_opening_the_gate_again_does_not_end_the_quiet_time() -> None:
    gate = Gate(clock := Clock())
    clock.now = 10
    gate.open(("h", 1))
    clock.now = 30
    gate.shut()
    gate.open(("h", 2))
    assert gate.quiet_s == 20


@pytest.mark.parametrize("close", [lambda g: g.shut(), lambda g: g.shut_if_quiet(0)])
def test_waiting_requests_are_counted_from_zero_each_time(close: Callable[[Gate], object]) -> None:
    gate = Gate(Clock())
    for _ in range(2):
        gate.open(("h", 1))
        close(gate)
        assert gate.waited == 0
        gate.count_waiting()
        assert gate.waited == 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_disconnected_client_ends_its_response() -> None:
    with relayed() as (relay, url, (server,)):
        with httpx.stream("POST", f"{url}/stream") as response:
            server.pieces.release()
            next(response.iter_lines())
        assert server.client_left.wait(10)
        wait_until(lambda: relay.gate.in_flight == 0)


def test_a_half_closed_client_connection_is_passed_on() -> None:
    with relayed() as (relay, url, (server,)):
        with raw_connection(url) as raw:
            raw.sendall(b"POST /stream HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            wait_until(lambda: len(server.requests) == 1)
            raw.shutdown(socket.SHUT_WR)
            assert server.client_left.wait(10)  # the server decides, as without a relay
        wait_until(lambda: relay.gate.in_flight == 0)


def test_a_waiting_client_that_disconnects_sends_no_request() -> None:
    with relayed() as (relay, url, (server,)):
        relay.gate.shut()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, timeout=0.1)
        time.sleep(0.05)
        relay.open(*_address(server))
        assert httpx.get(url).text == "a"
        assert [path for path, _, _ in server.requests] == ["/"]


def test_an_incomplete_request_is_dropped() -> None:
    with relayed() as (relay, url, (server,)):
        with raw_connection(url) as raw:
            raw.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab")
            wait_until(lambda: relay.gate.in_flight == 1)
        wait_until(lambda: relay.gate.in_flight == 0)
        assert server.requests == []


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 "),  # no Host
        (b"GET / HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 "),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000, b"HTTP/1.1 431 "),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: a\r\n\r\n", b"HTTP/1.1 400 "),
    ],
)
def test_an_invalid_request_is_refused(sent: bytes, status: bytes) -> None:
    with relayed() as (_, url, _servers), raw_connection(url) as raw:
        raw.sendall(sent)
        assert raw.recv(1000).startswith(status)


def test_expect_100_continue_gets_a_100_response() -> None:
    """curl does so with long prompts (Expect: 100-continue)."""
    with relayed() as (_, url, (server,)):
        with raw_connection(url) as raw:
            head = (
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            )
            raw.sendall(head)
            assert raw.recv(1000).startswith(b"HTTP/1.1 100 ")
            raw.sendall(b"ok")
            assert b"200 OK" in raw.recv(1000)
        assert [body for _, _, body in server.requests] == [b"ok"]


def test_content_length_is_ignored_for_a_chunked_request() -> None:
    with relayed() as (_, url, (server,)), raw_connection(url) as raw:
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n"
        raw.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
        assert b"200 OK" in raw.recv(1000)
        assert [body for _, _, body in server.requests] == [b"ok"]


def test_two_pipelined_requests_get_two_responses() -> None:
    with relayed() as (_, url, _servers), raw_connection(url) as raw:
        raw.sendall(b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        received = b""
        while received.count(b"200 OK") < 2:
            received += raw.recv(1000)


def test_a_broken_server_connection_is_a_502_or_a_cut_response() -> None:
    with relayed() as (relay, url, _servers):
        response = httpx.post(f"{url}/mute")
        assert response.status_code == 502
        assert "llama-server closed the connection" in json.loads(response.text)["error"]["message"]
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(f"{url}/broken")
        wait_until(lambda: relay.gate.in_flight == 0)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_listening_on_all_ipv6_addresses_includes_ipv4() -> None:
    """Like llama-server with --host ::"""
    relay = Relay("::", port := free_port("::", 0))
    server = Backend("a")
    try:
        relay.open(*_address(server))
        assert httpx.get(f"http://127.0.0.1:{port}").text == "a"
        assert httpx.get(f"http://[::1]:{port}").text == "a"
    finally:
        relay.close()
        server.close()


def test_a_port_in_use_is_an_error() -> None:
    with relayed() as (_, url, _servers), pytest.raises(EngineError, match="cannot be used"):
        Relay("127.0.0.1", int(url.rpartition(":")[2]))


@pytest.mark.parametrize("host", ["192.0.2.1", "nobody.invalid", "x" * 300])
def test_a_host_that_is_not_this_machine_is_named_in_the_error(host: str) -> None:
    for listen in (free_port, Relay):
        with pytest.raises(UsageError, match=f"--host {host} is not an address of this machine"):
            listen(host, 0)


def test_closing_the_relay_ends_waiting_requests() -> None:
    with relayed() as (relay, url, _servers):
        relay.gate.shut()
        errors: list[BaseException] = []

        def send_request() -> None:
            try:
                httpx.post(url, timeout=30)
            except httpx.HTTPError as e:
                errors.append(e)

        client = threading.Thread(target=send_request)
        client.start()
        time.sleep(0.1)
        relay.close()
        client.join(10)
        assert len(errors) == 1


def test_the_event_loop_is_created_in_the_relays_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Windows proactor created in one thread and run in another loses connections."""
    made_in: list[str] = []
    new_loop = asyncio.new_event_loop

    def recorded() -> asyncio.AbstractEventLoop:
        made_in.append(threading.current_thread().name)
        return new_loop()

    monkeypatch.setattr(asyncio, "new_event_loop", recorded)
    monkeypatch.setattr(asyncio.events, "new_event_loop", recorded)
    Relay("127.0.0.1", free_port("127.0.0.1", 0)).close()
    assert made_in == ["relay"]
