"""The hostile requests of `serve.py`, each on its own connection, and the well-behaved client at the same time."""

import asyncio
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

AT_ONCE = 300  # hostile connections; the server takes 500
LARGE = 100_000_000
BLOCK = b"x" * (1 << 20)
PATIENCE_S = 100.0  # longer than the server takes for anything
NOTHING = "nothing"
CUT = "cut off"


def request(method: str, path: str, body: bytes = b"", *headers: str, kind: str = "application/json") -> bytes:
    """Returns a request with a JSON body, or one of another kind."""
    lines = [
        f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Type: {kind}", f"Content-Length: {len(body)}",
        *headers, "", "",
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + body


class Connection:
    """A connection of a hostile client, which sends and reads as it likes."""

    def __init__(self, stream: socket.socket):
        self._stream = stream
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> bool:
        """Sends bytes; returns whether the server still takes any."""
        try:
            await self._loop.sock_sendall(self._stream, data)
        except (ConnectionError, TimeoutError):
            return False
        return True

    async def read(self) -> str:
        """Reads until the server closes the connection; returns the statuses of its answers."""
        data = b""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while received := await self._loop.sock_recv(self._stream, 1 << 16):
                    data += received
        except ConnectionError:
            return statuses(data) if data else CUT
        except TimeoutError:
            return f"{statuses(data)}, and not closed"
        return statuses(data)


def statuses(data: bytes) -> str:
    """Returns the statuses of the answers that a server has sent, and says where one is not clear."""
    answers = list[str]()
    if data.startswith(b"HTTP/1.1 400") and b"Invalid HTTP request received." in data:  # the answer of uvicorn
        return "400"
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        status = head[9:12].decode("latin-1")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if status == "100":
            continue
        body = data[: int(length or b"0")]
        data = data[int(length or b"0") :]
        answers.append(status if separator and is_clear(status, body) else f"{status} without a reason")
    return " and ".join(answers) or NOTHING


def is_clear(status: str, body: bytes) -> bool:
    """Whether an answer is whole: JSON, and with a reason if it refuses."""
    try:
        answer = json.loads(body)
    except ValueError:
        return False
    return status == "200" or (set(answer) == {"error"} and isinstance(answer["error"], str))


Behaviour = Callable[[Connection, dict[str, str]], Awaitable[str]]


@dataclass(frozen=True)
class Kind:
    """How a client behaves, and the answers that it should get."""

    behave: Behaviour
    expected: Sequence[str]


def sends(expected: str, *requests: bytes) -> Kind:
    """A client that sends one of these, and reads."""

    async def behave(connection: Connection, languages: dict[str, str]) -> str:
        await connection.send(random.choice(requests))
        return await connection.read()

    return Kind(behave, [expected])


def closing(method: str, path: str, body: bytes = b"", *headers: str, kind: str = "application/json") -> bytes:
    """A request after which the server closes the connection."""
    return request(method, path, body, "Connection: close", *headers, kind=kind)


async def translates(connection: Connection, languages: dict[str, str], **fields: Any) -> str:
    """Asks for a translation, and reads."""
    await connection.send(closing("POST", "/translate", json.dumps({**languages, **fields}).encode()))
    return await connection.read()


async def emoji(connection: Connection, languages: dict[str, str]) -> str:
    """As much text as a request may have, of characters that the model does not know."""
    text = "".join(chr(random.randrange(0x1F300, 0x1F600)) for _ in range(9_900))
    return await translates(connection, languages, q=text)


async def large(connection: Connection, languages: dict[str, str]) -> str:
    """A body of 100 MB, sent to its end before the answer is read."""
    head = request("POST", "/translate").replace(b"Content-Length: 0", b"Content-Length: %d" % LARGE)
    is_taken = await connection.send(head)
    for _ in range(LARGE // len(BLOCK)):
        is_taken = is_taken and await connection.send(BLOCK)
    await connection.send(b"x" * (LARGE % len(BLOCK)))
    return await connection.read()


async def chunks(connection: Connection, languages: dict[str, str], num_blocks: int, end: bytes) -> str:
    """A body in chunks, as fast as the server takes them, and an end."""
    is_taken = await connection.send(CHUNKED_HEAD)
    for _ in range(num_blocks):
        is_taken = is_taken and await connection.send(b"%x\r\n%s\r\n" % (len(BLOCK), BLOCK))
    await connection.send(end)
    return await connection.read()


async def dribbles(connection: Connection, languages: dict[str, str], head: bytes, part: bytes, pause_s: float) -> str:
    """A client that sends a part now and then, without end; it reads as it sends."""

    async def send() -> None:
        await connection.send(head)
        while await connection.send(part):
            await asyncio.sleep(pause_s)

    sending = asyncio.ensure_future(send())
    answer = await connection.read()
    sending.cancel()
    await asyncio.wait([sending])  # another connection may get the number of this socket
    return answer


async def leaves(connection: Connection, languages: dict[str, str], size: float) -> str:
    """A client that closes the connection before it has its answer, after a part of its request."""
    data = request("POST", "/translate", json.dumps({"q": "A man is reading a book. " * 100, **languages}).encode())
    await connection.send(data[: round(size * len(data))])
    await asyncio.sleep(random.random() / 10)
    return NOTHING


JSON_HEAD = request("POST", "/translate").replace(b"Content-Length: 0", b"Content-Length: 1000")
CHUNKED_HEAD = request("POST", "/translate").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
FORM = "application/x-www-form-urlencoded"
WRONG_JSON = (b"{", b"", b"\xff\xfe{", b"[" * 100_000, b"1" * 100_000, b"[1]", b'{"q": "a"}', b'{"q": {}}')
WRONG_KINDS = "text/plain", "application/xml", "multipart/form-data", "multipart/form-data; boundary=a", FORM
WRONG_METHODS = "GET", "PUT", "DELETE", "PATCH", "TRACE", "BREW"
WRONG_PATHS = "/no", "/../../etc/passwd", "/%ff%00", "/translate/", "//health", "/" + "a" * 9000
HARMLESS = (
    ["X-Forwarded-For: 1.2.3.4", "X-Forwarded-Host: evil.example"], ["Connection: Upgrade", "Upgrade: websocket"],
    ["Range: bytes=0-1"], [f"Cookie: {'a' * 30_000}"], ["X-HTTP-Method-Override: DELETE"],
)  # fmt: skip
TOO_MANY = (
    closing("POST", "/translate", b"&".join(b"%d=1" % n for n in range(10_000)), kind=FORM),
    closing("POST", "/translate", b'{"q": "%s"}' % (b"a" * 200_000)),
    closing("POST", "/detect", b'{"q": [%s""]}' % (b'"",' * 50_000)),
)
TWO_LENGTHS = (
    request("POST", "/translate", b"{}", "Content-Length: 3"),
    request("POST", "/translate", b"{}", "Transfer-Encoding: chunked"),
)
WRONG_HEADERS = (
    request("POST", "/translate", b"{}", "Transfer-Encoding: gzip, chunked, gzip"),
    request("GET", "/health", b"", "X: a\x00b"), request("GET", "/health", b"", "X Y: a"),
    b"GET /health HTTP/1.1\r\n\r\n", JSON_HEAD.replace(b"1000", b"-1"), JSON_HEAD.replace(b"1000", b"9" * 30),
)  # fmt: skip
NO_HTTP = bytes.fromhex("16030100a5010000a10303") + b"\r\n\r\n", b"\x00" * 1000 + b"\r\n\r\n", b"HELO a\r\n\r\n"
LONG_HEADERS = b"GET /" + BLOCK, b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 200_000
WRONG_CHUNKS = b"zz\r\n", b"-1\r\n", b"5\r\nabcdefgh\r\n", b"f" * 30 + b"\r\n"
CHUNK = b"10000\r\n%s\r\n" % BLOCK[: 1 << 16]
KINDS = {
    "wrong JSON": sends("400", *(closing("POST", "/translate", body) for body in WRONG_JSON)),
    "wrong kind of body": sends(
        "400", *(closing("POST", "/translate", b'{"q": 1}', kind=kind) for kind in WRONG_KINDS)
    ),
    "too many fields or characters": sends("400", *TOO_MANY),
    "wrong method": sends("405", *(closing(method, "/translate") for method in WRONG_METHODS)),
    "wrong path": sends("404", *(closing("GET", path) for path in WRONG_PATHS)),
    "header tricks, harmless": sends("200", *(closing("GET", "/health", b"", *headers) for headers in HARMLESS)),
    "two lengths": sends("400", *TWO_LENGTHS),
    "headers that are none": sends("400", *WRONG_HEADERS),
    "no HTTP": sends("400", *NO_HTTP),
    "1 MB of headers": sends("400", *LONG_HEADERS),
    "wrong chunks": sends("400", *(CHUNKED_HEAD + chunk for chunk in WRONG_CHUNKS)),
    "100 MB": Kind(large, ["413"]),
    "100 MB in chunks": Kind(partial(chunks, num_blocks=100, end=b"0\r\n\r\n"), ["413"]),
    "too large, then wrong chunks": Kind(partial(chunks, num_blocks=1, end=b"zz\r\n"), ["413", "400"]),
    "a body that never ends, fast": Kind(partial(dribbles, head=CHUNKED_HEAD, part=CHUNK, pause_s=0.01), ["413"]),
    "cancelled within the body": Kind(partial(leaves, size=0.5), [NOTHING]),
    "cancelled while it is translated": Kind(partial(leaves, size=1.0), [NOTHING]),
    "9,900 emoji": Kind(emoji, ["200", "503", "504"]),
}


async def attack(port: int, number: int, languages: dict[str, str]) -> dict[str, Counter[str]]:
    """Sends this many hostile requests, of all kinds in turn, and returns the answers of each kind."""
    random.seed(1)
    answers = {name: Counter[str]() for name in KINDS}
    names = iter([list(KINDS)[place % len(KINDS)] for place in range(number)])
    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(attack_in_turn(port, names, answers, languages))
    return answers


async def attack_in_turn(
    port: int, names: Iterable[str], answers: dict[str, Counter[str]], languages: dict[str, str]
) -> None:  # fmt: skip
    """Sends what is left, one after the other."""
    for name in names:
        with socket.socket() as stream:
            stream.setblocking(False)
            await asyncio.get_running_loop().sock_connect(stream, ("127.0.0.1", port))
            answers[name][await KINDS[name].behave(Connection(stream), languages)] += 1


class Beside:
    """A well-behaved client, a thread that asks for a short translation again and again, each on a new connection."""

    def __init__(self, port: int, languages: dict[str, str]):
        self.times = list[float]()
        self.errors = list[str]()
        self._port = port
        self._body = json.dumps({"q": "A man is reading a book.", **languages})
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Beside":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.1):
            started = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=100)
            try:
                connection.request("POST", "/translate", self._body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status != 200 or "translatedText" not in json.loads(response.read()):
                    self.errors.append(str(response.status))
            except OSError as error:
                self.errors.append(type(error).__name__)
            connection.close()
            self.times.append(time.perf_counter() - started)
