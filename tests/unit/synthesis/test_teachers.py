"""External teachers: servers on loopback that fail in many ways, and programs that do."""

import contextlib
import http.server
import json
import logging
import random
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from mtx.errors import MtxError, UsageError
from mtx.storage import durable
from mtx.storage.resumable import MisalignedError, ResumableRows, Shard
from mtx.storage.text_files import LineParts
from mtx.synthesis import teachers
from mtx.synthesis.synthetic_text import KEPT, are_shifted, write_pairs
from mtx.synthesis.teachers import CommandTeacher, ExternalTeacher, ServerTeacher
from tests.rig import PATIENCE_S

Answer = tuple[int, Any]  # status and body
SECRET = "sk-very-secret-123"


class FakeServer:
    """A server whose answer to each request is that of a function; it records the requests.

    Attributes:
        answer: gets the parsed request.
    """

    def __init__(self) -> None:
        self.requests = list[dict[str, Any]]()
        self.retry_after: str | None = None
        self.answer: Callable[[dict[str, Any]], Answer] = translate_all
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                server.requests.append({**body, "path": self.path, "authorization": self.headers["authorization"]})
                status, answer = server.answer(body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                if server.retry_after is not None:
                    self.send_header("retry-after", server.retry_after)
                if 300 <= status < 400:
                    self.send_header("location", f"{server.address}/elsewhere")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle()

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def lines(self) -> list[str]:
        """All lines that were asked for."""
        return [line for request in self.requests for line in texts_of(request)]


def texts_of(request: dict[str, Any]) -> list[str]:
    if "q" in request:
        return list(request["q"])
    return [request["messages"][0]["content"].partition("\n\n")[2]]


def translate_all(request: dict[str, Any]) -> Answer:
    return answer_with(request, [line.upper() for line in texts_of(request)])


def answer_with(request: dict[str, Any], translations: list[Any]) -> Answer:
    if "q" in request:
        return 200, {"translatedText": translations}
    return 200, {"choices": [{"message": {"content": translations[0]}}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    monkeypatch.setattr(teachers, "_LONGEST_WAIT_S", 0.0)
    monkeypatch.delenv(teachers.KEY, raising=False)
    running = FakeServer()
    yield running
    running.close()


@pytest.fixture(params=["libretranslate", "chat"])
def teacher(server: FakeServer, request: pytest.FixtureRequest) -> ServerTeacher:
    return server_teacher(server, request.param)


def server_teacher(server: FakeServer, kind: str = "libretranslate", tgt: str = "de") -> ServerTeacher:
    return ServerTeacher(f"{server.address}/v1#a+b/model" if kind == "chat" else f"{server.address}/", "en", tgt)


def ask(teacher: ExternalTeacher, lines: list[str]) -> list[str]:
    blocks = (
        [(line,) for line in lines[start : start + teacher.block_lines]]
        for start in range(0, len(lines), teacher.block_lines)
    )
    return [translation for block in teacher.translate(blocks) for translation in block]


def distil(teacher: ExternalTeacher, directory: Path, lines: list[str]) -> tuple[dict[str, int], list[list[str]]]:
    """The counts of `write_pairs`, and the pairs."""
    output = directory / "out.tsv"
    text = Shard(lambda: ((line,) for line in lines))
    rows = ResumableRows(output, teacher.identity, teacher.block_lines)
    counts = write_pairs(teacher, text, rows, durable.new_file(output), side="src")
    return dict(counts), [line.split("\t") for line in output.read_text(encoding="utf-8").split("\n")[:-1]]


def test_each_line_gets_its_translation(teacher: ServerTeacher, server: FakeServer) -> None:
    lines = [f"line {number}" for number in range(300)]
    assert ask(teacher, lines) == [line.upper() for line in lines]
    assert sorted(server.lines) == sorted(lines) and teacher.num_lines == 300
    path = server.requests[0]["path"]
    assert path == ("/v1/chat/completions" if "model" in teacher.identity else "/translate")
    assert server.lines[:3] == lines[:3], "a few are shown before the rest is sent"


def test_a_chat_model_gets_several_lines_at_once(server: FakeServer) -> None:
    both = threading.Barrier(2)

    def answer(request: dict[str, Any]) -> Answer:
        if "word" in texts_of(request)[0]:
            both.wait(PATIENCE_S)
        return translate_all(request)

    server.answer = answer
    lines = ["a", "b", "c", "word 1", "word 2"]
    assert ask(server_teacher(server, "chat"), lines) == [line.upper() for line in lines]


def test_what_a_server_is_asked(server: FakeServer) -> None:
    ask(server_teacher(server), ["a"])
    ask(server_teacher(server, "chat"), ["a"])
    first, second = server.requests
    assert first == {
        "q": ["a"], "source": "en", "target": "de", "format": "text", "path": "/translate", "authorization": None,
    }  # fmt: skip
    prompt = "Translate the following text from English to German. Answer with the translation only, in one line.\n\na"
    assert second["messages"] == [{"role": "user", "content": prompt}]
    assert (second["model"], second["temperature"]) == ("a+b/model", 0)


def test_an_empty_line_does_not_shift_the_others(teacher: ServerTeacher, server: FakeServer, tmp_path: Path) -> None:
    counts, pairs = distil(teacher, tmp_path, ["a b", "", "\u2028", "c d"])
    assert (counts, pairs) == ({KEPT: 2, "empty": 2}, [["a b", "A B"], ["c d", "C D"]])
    assert all(text.strip() for text in server.lines)


def test_a_server_that_is_overloaded_for_a_while(teacher: ServerTeacher, server: FakeServer) -> None:
    for status in (429, 500, 502, 503, 504):
        server.requests.clear()
        server.answer = lambda request, status=status: (  # type: ignore[misc]
            translate_all(request) if len(server.requests) > 3 else (status, "busy")
        )
        assert ask(teacher, ["a"]) == ["A"]


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Answer], str]] = {
    "overloaded for ever": (lambda _: (503, "busy"), "status 503: .busy"),
    "no key": (lambda _: (403, {"error": f"wrong key {SECRET}"}), r"status 403: .*wrong key \.\.\."),
    "unknown model": (lambda _: (404, {"error": "no such model"}), "status 404: .*no such model"),
    "refused": (lambda _: (400, {"error": "de is not supported"}), "status 400: .*de is not supported"),
    "not JSON": (lambda _: (200, b"<html>\nWelcome</html>"), "got <html> Welcome"),
    "nothing": (lambda _: (200, b""), "got nothing"),
    "control characters": (lambda _: (200, b"\x1b[31m" + b"x" * 9999), r"got \\x1b\[31mxxx"),
    "another object": (lambda _: (200, {"detail": "x"}), 'got {"detail": "x"}'),
    "deep": (lambda _: (200, b"[" * 100_000), r"got \[\[\["),
    "a list": (lambda _: (200, ["x"]), "expected"),
    "null": (lambda _: (200, None), "expected"),
    "a choice that is text": (lambda _: (200, {"choices": ["x"], "translatedText": {"x": 1}}), "expected"),
    "no choice": (lambda _: (200, {"choices": [], "translatedText": []}), "expected"),
    "no message": (lambda _: (200, {"choices": [{"text": "x"}], "translatedText": "x"}), "expected"),
    "numbers": (lambda request: answer_with(request, [3] * len(texts_of(request))), "expected"),
    "a translation more": (lambda request: (200, {"choices": 3, "translatedText": ["x"] * 5}), "expected"),
    "a redirect": (lambda _: (307, b""), "status 307: http.*elsewhere"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_one_line_and_nothing_is_stored(
    fault: str, teacher: ServerTeacher, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "_key", SECRET)
    server.answer, expected = FAULTS[fault]
    with pytest.raises(MtxError, match=expected) as caught:
        distil(teacher, tmp_path, ["a b", "c d"])
    message = f"{caught.value} {caught.value.help}"
    assert "\n" not in message and "\x1b" not in message and SECRET not in message and len(message) < 500
    assert str(caught.value).startswith(server.address) and [*tmp_path.iterdir()] == []
    assert all("elsewhere" not in request["path"] for request in server.requests)


def test_one_translation_fewer(server: FakeServer, tmp_path: Path) -> None:
    server.answer = lambda request: answer_with(request, [line.upper() for line in texts_of(request)][-31:])
    with pytest.raises(MtxError, match="expected 32 translations, got"):
        distil(server_teacher(server), tmp_path, [f"line {number}" for number in range(100)])
    assert [*tmp_path.iterdir()] == []


def test_no_server_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    running = FakeServer()
    running.close()
    monkeypatch.setattr("time.sleep", None)
    with pytest.raises(MtxError, match="Connection refused"):
        ask(server_teacher(running), ["a"])


def test_a_connection_that_breaks_is_no_end(teacher: ServerTeacher, server: FakeServer) -> None:
    lines = [f"line {number}" for number in range(50)]
    broken = list[str]()

    def answer(request: dict[str, Any]) -> Answer:
        first = texts_of(request)[0]
        if first in lines[3:] and first not in broken:
            broken.append(first)
            raise ConnectionAbortedError
        return translate_all(request)

    server.answer = answer
    assert ask(teacher, lines) == [line.upper() for line in lines] and len(broken) > 1


@pytest.mark.parametrize("retry_after", ["0", "3600", "-5", "abc", "1e3", None])
def test_how_long_a_busy_server_has(
    retry_after: str | None, teacher: ServerTeacher, server: FakeServer, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    waits = list[float]()
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr(teachers, "_LONGEST_WAIT_S", 60.0)
    server.retry_after = retry_after
    server.answer = lambda request: (503, "busy") if len(server.requests) < 8 else translate_all(request)
    assert ask(teacher, ["a"]) == ["A"]
    expected = {"0": [0.0] * 7, "3600": [60.0] * 7}.get(retry_after or "", [1, 2, 4, 8, 16, 32, 60])
    assert waits == expected and "status" not in caplog.text and "trying again" in caplog.text


def test_an_untrusted_certificate_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise requests.exceptions.SSLError("certificate verify failed")

    teacher = ServerTeacher("https://127.0.0.1:1", "en", "de")
    monkeypatch.setattr(teacher._session, "post", fail)
    monkeypatch.setattr("time.sleep", None)
    teacher.num_lines = 1
    with pytest.raises(MtxError, match="certificate verify failed"):
        teacher._translate_lines(["a"])


@pytest.mark.parametrize("key", ["abc\ndef", "abc def", "schlüssel", 'a"b', "a\\b", "\udcff"])
def test_a_key_that_cannot_be_one_is_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(teachers.KEY, key)
    with pytest.raises(UsageError, match="expected a key of ASCII") as caught:
        ServerTeacher("https://example.org", "en", "de")
    assert key not in str(caught.value)


@pytest.mark.parametrize("refused", [("line 0",), ("line 0", "line 2")])
def test_the_first_lines_may_be_refused(
    refused: tuple[str, ...], teacher: ServerTeacher, server: FakeServer, tmp_path: Path
) -> None:
    server.answer = lambda request: (422, "no") if {*refused} & {*texts_of(request)} else translate_all(request)
    counts, _ = distil(teacher, tmp_path, [f"line {number}" for number in range(9)])
    assert counts == {KEPT: 9 - len(refused), "empty": len(refused)}


def test_a_completion_that_was_cut_is_dropped(server: FakeServer, tmp_path: Path) -> None:
    server.answer = lambda request: (
        200, {"choices": [{"message": {"content": "Der Mann"}, "finish_reason": "length"}]}
    )  # fmt: skip
    assert distil(server_teacher(server, "chat"), tmp_path, ["the man"])[0] == {"empty": 1}


def test_lone_surrogates_of_an_answer_are_damage(teacher: ServerTeacher, server: FakeServer, tmp_path: Path) -> None:
    server.answer = lambda request: answer_with(request, ["\ud800 x"] * len(texts_of(request)))
    assert distil(teacher, tmp_path, ["a b c d"])[0] == {"control characters": 1}


def test_a_job_that_failed_resumes_without_asking_again(
    teacher: ServerTeacher, server: FakeServer, tmp_path: Path
) -> None:
    lines = [f"line {number}" for number in range(400)]
    server.answer = lambda request: (403, "over quota") if "line 300" in texts_of(request) else translate_all(request)
    with pytest.raises(MtxError, match="over quota"):
        distil(teacher, tmp_path, lines)
    server.requests.clear()
    server.answer = translate_all
    counts, pairs = distil(teacher, tmp_path, lines)
    assert counts == {KEPT: 400} and pairs == [[line, line.upper()] for line in lines]
    assert {*server.lines} == {*lines[256:]}, "a request of the first process may still be under way"


def test_a_line_that_the_server_refuses_is_dropped(
    teacher: ServerTeacher, server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer = lambda request: (
        (400, {"error": "text too long"}) if any("7" in line for line in texts_of(request)) else translate_all(request)
    )
    counts, pairs = distil(teacher, tmp_path, [f"line {number}" for number in range(20)])
    assert counts == {KEPT: 18, "empty": 2} and ["line 18", "LINE 18"] in pairs
    assert caplog.text.count("a line is not translated: line 17") == 1


def test_requests_that_are_too_large_are_halved(server: FakeServer) -> None:
    server.answer = lambda request: (413, "large") if len(texts_of(request)) > 5 else translate_all(request)
    lines = [f"line {number}" for number in range(100)]
    assert ask(server_teacher(server), lines) == [line.upper() for line in lines]


def test_what_a_chat_model_adds_is_dropped_shown_and_counted(
    server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = "Der Mann ist heute Morgen mit dem Zug nach Berlin gefahren."
    source = "The man went to Berlin by train this morning."
    answers = {
        f"{source} ": good,
        f"{source} 1": f"Here is the translation:\n\n{good}",
        f"{source} 2": f"{good}\n\nNote: 'went' may also be translated otherwise.",
        f"{source} 3": "I am sorry, but I cannot help with this request today.",
        f"{source} 4": None,
        "Yes.": "Sure! Here is the translation that you asked me for: Ja.",
        f"{source} 5": source + " 5",
        f"{source} 6": "Он уехал сегодня утром на поезде в Берлин, и мы его не видели.",
        f"{source} 7": f"  {good} \n",
        f"{source} 8": f"Hier ist die Übersetzung: {good}",
        f"{source} 9": f"\u201e{good}\u201c",
        f"{source} b": f"**{good}**",
        f"{source} c": f"{good} (or: something else)",
    }
    both_have_signs = {f'{source} (He said: "Bye.")': f"{good} (Er sagte: „Tschüss.“)"}
    answers |= both_have_signs
    server.answer = lambda request: answer_with(request, [answers[texts_of(request)[0]]])
    caplog.set_level(logging.INFO)
    teacher = server_teacher(server, "chat")
    lines = [line for line in answers if line != f"{source} "]
    counts, pairs = distil(teacher, tmp_path, lines)
    assert counts == {
        KEPT: 2, "several lines": 2, "another language": 2, "empty": 1, "length ratio": 1, "identical": 1,
        "added punctuation": 4,
    }  # fmt: skip
    assert pairs == [[f"{source} 7", good], *map(list, both_have_signs.items())]
    for reason in counts.keys() - {KEPT}:
        assert f"  {reason}, such as: " in caplog.text


def test_a_key_is_sent_and_never_written(
    server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(teachers.KEY, f" {SECRET}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login somebody password else\n")
    netrc.chmod(0o600)
    caplog.set_level(logging.DEBUG)
    for kind in ("libretranslate", "chat"):
        directory = tmp_path / kind
        directory.mkdir()
        server.answer = lambda request: (403, "no") if len(server.requests) > 9 else translate_all(request)
        teacher = server_teacher(server, kind)
        with pytest.raises(MtxError):
            distil(teacher, directory, [f"line {number}" for number in range(1000)])
        assert SECRET not in repr(teacher.identity)
        assert {request["authorization"] for request in server.requests} == {f"Bearer {SECRET}"}
        assert {request.get("api_key") for request in server.requests} == {SECRET if kind != "chat" else None}
        server.requests.clear()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()] and SECRET not in caplog.text


@pytest.mark.parametrize(
    "address",
    ["http://example.org", "http://10.0.0.1:5000", "http://127.0.0.1.example.org", "http://localhost.example.org/v1#m"],
)
def test_text_never_crosses_a_network_in_plain_text(address: str) -> None:
    with pytest.raises(UsageError, match="unencrypted"):
        ServerTeacher(address, "en", "de")


def test_a_proxy_gets_no_text_for_this_machine(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert ask(server_teacher(server), ["a"]) == ["A"]


def test_an_address_that_is_none() -> None:
    for address in ("http://[::1/x", "https://"):
        with pytest.raises(UsageError):
            ServerTeacher(address, "en", "de")


@pytest.mark.parametrize("address", ["https://user:pass@host/", "https://user@host/v1#m", "https://host/?key=1"])
def test_a_key_in_the_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="must not contain a user, a password") as caught:
        ServerTeacher(address, "en", "de")
    assert "pass" not in str(caught.value).replace("password", "")


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:5000", "http://[::1]:5000/v1#m", "http://localhost", "https://a.b/c#d"]
)
def test_addresses(address: str) -> None:
    assert ServerTeacher(address, "en", "de").name == address


def test_how_much_goes_where_is_said_before(teacher: ServerTeacher, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    teacher.announce(iter(["abc"] * 2000))
    assert "2,000 lines, 6,000 characters, go to 127.0.0.1:" in caplog.text and "may forbid" in caplog.text


def program(code: str) -> CommandTeacher:
    return CommandTeacher(shlex.join([sys.executable, "-c", code]), "")


UPPER = "import sys\nfor line in sys.stdin:\n    print(line.strip().upper(), flush=True)"
PROGRAMS = {
    "line by line": UPPER,
    "at its end": "import sys\nlines = sys.stdin.read().splitlines()\nprint('\\n'.join(lines).upper(), end='')",
    "noisy": f"import sys\nsys.stderr.write('x' * 3_000_000)\n{UPPER}",
}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_program_is_started_once(kind: str, tmp_path: Path) -> None:
    lines = [f"line {number}" if number % 50 else "" for number in range(1000)]
    started = tmp_path / "started"
    teacher = program(f"open({str(started)!r}, 'a').write('x')\n{PROGRAMS[kind]}")
    counts, pairs = distil(teacher, tmp_path, lines)
    assert counts == {KEPT: 980, "empty": 20} and started.read_text() == "x"
    assert pairs == [[line, line.upper()] for line in lines if line]
    assert ask(teacher, []) == [] and started.read_text() == "x"


WRONG_PROGRAMS = {
    "skips a line": ("import sys\nfor line in [*sys.stdin][1:]: print(line, end='')", "expected 300 lines.*got 299"),
    "skips a line in the middle": (
        "import sys\nfor n, line in enumerate(sys.stdin):\n    if n != 5: print(line, end='')",
        "expected 300 lines.*got 299",
    ),
    "a line more": ("import sys\nfor line in sys.stdin: print(line, end='')\nprint('and')", "got more"),
    "endless": ("while True: print('x')", "got more"),
    "silent": ("", "expected 300 lines.*got 0"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG_PROGRAMS)
def test_a_program_with_other_lines_leaves_nothing(kind: str, tmp_path: Path) -> None:
    code, expected = WRONG_PROGRAMS[kind]
    with pytest.raises(MisalignedError, match=expected):
        distil(program(code), tmp_path, [f"line {number}" for number in range(300)])
    assert [*tmp_path.iterdir()] == []


def test_a_shift_is_found_before_it_is_stored(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [" ".join(["word"] * rng.randint(1, 30)) + f" {number}" for number in range(1000)]
    code = (
        "import sys\nfor n, line in enumerate(sys.stdin):\n    if n == 300: sys.exit(9)\n"
        "    if n != 20: print(line, end='', flush=True)"
    )
    teacher = program(code)
    teacher.language = "de"
    with pytest.raises(MisalignedError, match="seem to be shifted"):
        distil(teacher, tmp_path, lines)
    assert [*tmp_path.iterdir()] == []


def test_a_server_that_shifts_keeps_what_came_before(server: FakeServer, tmp_path: Path) -> None:
    rng = random.Random(1)
    lines = [" ".join(["word"] * rng.randint(1, 30)) + f" {number}" for number in range(500)]

    def answer(request: dict[str, Any]) -> Answer:
        texts = texts_of(request)
        is_late = int(texts[0].split()[-1]) >= 256
        return answer_with(request, [texts[-1], *texts[:-1]] if is_late else texts)

    server.answer = answer
    with pytest.raises(MtxError, match="seem to be shifted"):
        distil(server_teacher(server), tmp_path, lines)
    assert (tmp_path / "out.tsv.part").read_bytes().count(b"\n") == 1 + 256


def test_which_translations_are_shifted() -> None:
    rng = random.Random(2)
    src = ["x" * rng.randint(10, 200) for _ in range(128)]
    tgt = ["y" * max(1, round(len(line) * rng.uniform(0.7, 1.4))) for line in src]
    assert not are_shifted(src, tgt) and not are_shifted(src[:9], tgt[1:10])
    assert not are_shifted(["x"] * 128, tgt) and not are_shifted(src, ["y"] * 128)
    for shift in (1, 2, 3, -1, -2, -3):
        assert are_shifted(src, [*tgt[shift:], *tgt[:shift]])
    assert are_shifted(src, [*tgt[:10], *tgt[11:], tgt[0]]), "from the tenth line on"
    unrelated = 0
    for _ in range(200):
        unrelated += are_shifted(src, ["y" * rng.randint(10, 200) for _ in src])
    assert unrelated == 0, "nothing is known of them"


FAILING_PROGRAMS = {
    "fails": ("import sys; sys.exit('no model\\x1b[31m')", r"ended with exit code 1: no model\\x1b\[31m"),
    "is killed": ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
    "has no end of line": ("import sys\nwhile True: sys.stdout.write('x' * 100000)", "a line of more than"),
    "fails at its end": (f"{UPPER}\nsys.exit(3)", "ended with exit code 3"),
}


@pytest.mark.parametrize("kind", FAILING_PROGRAMS)
def test_a_program_that_fails(kind: str, tmp_path: Path) -> None:
    code, expected = FAILING_PROGRAMS[kind]
    with pytest.raises(MtxError, match=expected) as caught:
        distil(program(code), tmp_path, ["a b"])
    assert "\n" not in str(caught.value) and not (tmp_path / "out.tsv").exists()


def test_a_program_that_dies_resumes_with_the_lines_that_are_left(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(400)]
    log = tmp_path / "log"
    dying = (
        "import os, sys\nfor n, line in enumerate(sys.stdin):\n"
        f"    if n == 300 and not os.path.exists({str(log)!r}): open({str(log)!r}, 'w'); os._exit(9)\n"
        "    print(line.strip().upper(), flush=True)\n"
        f"open({str(log)!r}, 'a').write(str(n))"
    )
    with pytest.raises(MtxError, match="exit code 9"):
        distil(program(dying), tmp_path, lines)
    counts, pairs = distil(program(dying), tmp_path, lines)
    assert counts == {KEPT: 400} and pairs == [[line, line.upper()] for line in lines]
    assert log.read_text() == str(400 - 256 - 1)


@pytest.mark.parametrize("command", ["", "   ", "no-such-program --x", "'unclosed", "/tmp"])
def test_a_command_that_is_no_program(command: str) -> None:
    with pytest.raises(UsageError, match="command not found|No closing quotation") as caught:
        CommandTeacher(command, "")
    assert "\n" not in str(caught.value)


def test_no_process_is_left(tmp_path: Path) -> None:
    mark = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(mark)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "print('x', flush=True)\ntime.sleep(600)"
    )
    teacher = program(code)
    teacher.block_lines = 1
    blocks: Iterator[list[LineParts]] = iter([[("a",)], [("b",)]])
    translations = teacher.translate(blocks)
    assert next(translations) == ["x"]
    translations.close()  # type: ignore[attr-defined]
    for pid in map(int, mark.read_text().split()):
        status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        assert not status or status.startswith("Z"), "ended"
