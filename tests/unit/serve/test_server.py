"""LibreTranslate's interface: what it answers, and how it refuses."""

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")

from mtx.decoding.translator import Hypothesis
from mtx.errors import UsageError
from mtx.serve import translation
from mtx.serve.server import Limits, Server, http_server, refuse_public_without_keys, render_page
from mtx.serve.translation import Pairs, TranslationQueue
from tests.rig import PATIENCE_S
from tests.unit.serve.fakes import Sure, Upper, served

KEY = "0123456789abcdef"
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


def ask(client: Any, path: str = "/translate", **fields: Any) -> Any:
    """The answer to a request with these fields; source and target are en and de."""
    body = json.dumps({"source": "en", "target": "de", **fields})  # ASCII, also of lone surrogates
    response = client.post(path, content=body, headers=JSON)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_text_and_a_list() -> None:
    with served() as client:
        assert ask(client, q="a dog") == {"translatedText": "A DOG"}
        assert ask(client, q=["a", "", "b"]) == {"translatedText": ["A", "", "B"]}
        assert ask(client, q="") == {"translatedText": ""}
        assert ask(client, q=[]) == {"translatedText": []}
        assert ask(client, q="lone \ud800") == {"translatedText": "LONE \ufffd"}


def test_forms_and_the_address_mean_the_same_as_json() -> None:
    fields = {"q": "ein ü", "source": "en", "target": "de", "alternatives": "1"}
    with served() as client:
        for response in (
            client.post("/translate", data=fields),
            client.post("/translate", files={name: (None, value) for name, value in fields.items()}),
            client.post("/translate", params=fields),
            client.post("/translate", data={"q": fields.pop("q")}, params=fields),
        ):
            assert response.json() == {"translatedText": "EIN Ü", "alternatives": ["EIN Ü!"]}


def test_lines_stay_lines_and_alternatives_are_of_the_whole_text() -> None:
    translator = Upper()
    with served(translator) as client:
        answer = ask(client, q="a\r\n\nb", alternatives=9)
        assert answer == {"translatedText": "A\n\nB", "alternatives": ["A!\n\nB!", "A!!\n\nB!!"]}
        assert ask(client, q="", alternatives=2)["alternatives"] == [], "none is the translation again"
    assert translator.calls == [["a", "b"]]


def test_the_texts_of_a_request_are_translated_together() -> None:
    translator = Upper()
    with served(translator) as client:
        ask(client, q=["a", "b", "c"])
    assert translator.calls == [["a", "b", "c"]]


def test_a_long_line_is_translated_in_parts_so_that_it_holds_up_nobody() -> None:
    translator = Upper()
    translator.part_chars = 4
    with served(translator, batch_tokens=4) as client:
        answer = ask(client, q="a red dog")
    assert translator.calls == [["a re"], ["d do"], ["g"]]
    assert answer == {"translatedText": translator.translate(["a red dog"])[0]}


def test_auto_tells_the_language_of_each_text() -> None:
    with served(Upper("en", "fr"), Upper("de", "fr"), Upper("fr", "en")) as client:
        single = ask(client, q="Das ist ein Haus", source="auto", target="fr")
        assert single["detectedLanguage"]["language"] == "de" and single["detectedLanguage"]["confidence"] > 50
        texts = ["the house is on a hill", "das ist ein Haus", "it is in the house"]
        several = ask(client, q=texts, source="auto", target="fr")
        assert [guess["language"] for guess in several["detectedLanguage"]] == ["en", "de", "en"]
        assert several["translatedText"] == [text.upper() for text in texts], "in order"
        only = ask(client, q="Das ist ein Haus", source="auto", target="en")
        assert only["detectedLanguage"]["language"] == "fr", "nothing else is translated to en"
        found = client.post("/detect", data={"q": "Das ist ein Haus"}).json()
        assert [guess["language"] for guess in found][0] == "de" and set(found[0]) == {"confidence", "language"}


def test_auto_leaves_text_that_is_in_the_target_language_already() -> None:
    german = "das Haus ist sehr alt"
    with served(Upper("en", "de"), Upper("fr", "de")) as client:
        answer = ask(client, q=["the house is very old", german], source="auto", alternatives=1)
        assert answer["translatedText"] == ["THE HOUSE IS VERY OLD", german]
        assert [guess["language"] for guess in answer["detectedLanguage"]] == ["en", "de"]
        assert answer["alternatives"][1] == [] and "suspicion" not in answer
        tagged = f"<p title='x'>{german}</p>"
        assert ask(client, q=tagged, source="auto", format="html")["translatedText"] == tagged
        assert ask(client, q="das Haus ist alt", source="auto")["translatedText"] == "DAS HAUS IST ALT", "four words"
        assert ask(client, q=german)["translatedText"] == german.upper(), "the client says that it is English"
        assert ask(client, q=german, source="de")["translatedText"] == german
    with served(Upper("en", "de"), Upper("bar", "de")) as client:
        assert ask(client, q=german, source="auto")["translatedText"] == german.upper(), "it may be Bavarian"
    with served(Upper("de", "de")) as client:
        assert ask(client, q=german, source="auto")["translatedText"] == german.upper(), "such as one that corrects"


def test_codes_of_plain_text_come_through_whole() -> None:
    with served() as client:
        text = "[X0X] a %s dog\n{bananas} 🎉\\nsee https://example.org/a_b &amp; <b>me</b>"
        assert ask(client, q=[text, "a"], alternatives=1) == {
            "translatedText": [
                "[X0X] A %s DOG\n{bananas} 🎉\\nSEE https://example.org/a_b &amp; <b>ME</b>", "A"
            ],
            "alternatives": [
                ["[X0X] A %s DOG!\n{bananas} 🎉\\nSEE https://example.org/a_b &amp; <b>ME!</b>"], ["A!"]
            ],
        }  # fmt: skip


@pytest.mark.parametrize("text", [" 42\r\n", "---", "☺ (%d)", " 7 %s", "A4", " ", "https://example.org/a/page"])
def test_text_without_a_word_stays(text: str) -> None:
    with served() as client:
        assert ask(client, q=text) == {"translatedText": text}


def test_html_keeps_its_tags() -> None:
    with served() as client:
        answer = ask(client, q='<p title="a dog">a <b>red</b> dog</p><p>&lt;3</p>', format="html", alternatives=1)
        assert answer == {
            "translatedText": '<p title="A DOG">A <b>RED</b> DOG</p><p>&lt;3</p>', "alternatives": [],
        }  # fmt: skip
        assert ask(client, q=["<i>a</i>", "b"], format="html") == {"translatedText": ["<i>A</i>", "B"]}
        assert ask(client, q=f"<p>a &#{'9' * 5000};</p>", format="html") == {"translatedText": "<p>A \ufffd</p>"}
        assert ask(client, q="1 < 2 & a", format="text") == {"translatedText": "1 < 2 & A"}, "text is no HTML"


def test_what_is_suspicious_is_noted() -> None:
    with served() as client:
        assert ask(client, q="go go go go go go")["translatedText"], "as often as in the source"
        copied = ask(client, q=["a", "NO PLACE HERE"])
    assert copied == {"translatedText": ["A", "NO PLACE HERE"], "suspicion": [None, "copy"]}


def test_what_is_served_is_told() -> None:
    with served(Upper("en", "de"), Upper("de", "en"), Upper("en", "fr")) as client:
        assert client.get("/languages").json() == [
            {"code": "en", "name": "English", "targets": ["de", "fr"]},
            {"code": "de", "name": "German", "targets": ["en"]},
            {"code": "fr", "name": "French", "targets": []},
        ]
        settings = client.get("/frontend/settings").json()
        assert settings["charLimit"] == Limits().chars and settings["keyRequired"] is False
        assert settings["language"]["target"] == {"code": "de", "name": "German"}
        assert client.get("/health").json() == {"status": "ok"}


def test_a_language_is_known_by_other_codes_too() -> None:
    with served(Upper("en_GB", "de")) as client:
        for code in ("en_GB", "en-gb", "EN", "en-US"):
            assert ask(client, q="a", source=code, target="DE") == {"translatedText": "A"}


@pytest.mark.parametrize(
    "fields, error",
    [
        ({"source": "en", "target": "de"}, "Invalid request: missing q parameter"),
        ({"q": None, "source": "en", "target": "de"}, "Invalid request: missing q parameter"),
        ({"q": "a", "target": "de"}, "Invalid request: missing source parameter"),
        ({"q": "a", "source": "en", "target": ""}, "Invalid request: missing target parameter"),
        ({"q": 1, "source": "en", "target": "de"}, "Invalid request: q: Input should be a valid string"),
        ({"q": ["a", None], "source": "en", "target": "de"}, "Invalid request: q: Input should be a valid string"),
        ({"q": "a", "source": ["en"], "target": "de"}, "Invalid request: source: Input should be a valid string"),
        ({"q": "a", "source": "xx", "target": "de"}, "xx is not supported"),
        ({"q": "a", "source": "en", "target": "auto"}, "auto is not supported"),
        ({"q": "a", "source": "auto", "target": "en"}, "English (en) is not available as a target language"),
        (
            {"q": "a", "source": "de", "target": "en"},
            "English (en) is not available as a target language from German (de)",
        ),
        ({"q": "a", "source": "en", "target": "de", "format": "pdf"}, "pdf format is not supported"),
        (
            {"q": "a", "source": "en", "target": "de", "alternatives": -1},
            "Invalid request: alternatives: Input should be greater than or equal to 0",
        ),
        (
            {"q": "a", "source": "en", "target": "de", "alternatives": 1.5},
            "Invalid request: alternatives parameter is not a number",
        ),
        (
            {"q": "a", "source": "en", "target": "de", "alternatives": "²"},
            "Invalid request: alternatives parameter is not a number",
        ),
        ({"q": "a" * 21, "source": "en", "target": "de"}, "Invalid request: request (21) exceeds text limit (20)"),
        (
            {"q": ["a" * 11] * 2, "source": "en", "target": "de"},
            "Invalid request: request (22) exceeds text limit (20)",
        ),
        ({"q": ["a"] * 4, "source": "en", "target": "de"}, "Invalid request: request (4) exceeds text limit (3)"),
    ],
)
def test_wrong_fields(fields: dict[str, Any], error: str) -> None:
    with served(chars=20, texts=3) as client:
        response = client.post("/translate", json=fields)
        assert (response.status_code, response.json()) == (400, {"error": error})


@pytest.mark.parametrize(
    "body, headers, error",
    [
        (b"{", JSON, "the body is not valid JSON"),
        (b"\xff\xfe{", JSON, "the body is not valid JSON"),
        (b"[" * 100_000, JSON, "the body is not valid JSON"),
        (b"1" * 10_000, JSON, "the body is not valid JSON"),
        (b"[1]", JSON, "expected a JSON object"),
        (b"", JSON, "the body is not valid JSON"),
        (b'{"q": "a"}', {}, "expected a body of the type"),
        (b'{"q": "a"}', FORM, "Invalid request: missing q parameter"),
        (b"", {}, "Invalid request: missing q parameter"),
        (b"x", {"content-type": "multipart/form-data"}, "Missing boundary"),
        (b"&".join(b"%d=1" % n for n in range(1000)), FORM, "Too many fields"),
        (b'--a\r\nContent-Disposition: form-data; name="q"; filename="q"\r\n\r\nx\r\n--a--\r\n',
         {"content-type": "multipart/form-data; boundary=a"}, "Too many files"),
    ],
)  # fmt: skip
def test_wrong_bodies(body: bytes, headers: dict[str, str], error: str) -> None:
    with served() as client:
        response = client.post("/translate", content=body, headers=headers)
        assert response.status_code == 400 and response.json()["error"].startswith(error), response.text


def test_damaged_html_is_named() -> None:
    with served() as client:
        response = client.post(
            "/translate", json={"q": "<a" * 1001, "source": "en", "target": "de", "format": "html"}
        )  # fmt: skip
        assert response.status_code == 400 and response.json()["error"] == "q:1: unclosed tags; expected > after <"


def test_a_long_paragraph_of_html_is_translated_in_parts_so_that_it_holds_up_nobody() -> None:
    translator = Upper()
    translator.part_chars = 4
    with served(translator, batch_tokens=4) as client:
        answer = ask(client, q="<p>a red dog</p>", format="html")
    assert translator.calls == [["a re"], ["d do"], ["g"]]
    assert answer["translatedText"] == f"<p>{translator.translate(['a red dog'])[0]}</p>"


def test_html_is_admitted_once_although_its_attributes_are_translated_after_its_text() -> None:
    translator, may_end, answers = Upper(), threading.Event(), list[Any]()

    def hold(values: list[int]) -> list[int]:
        assert may_end.wait(PATIENCE_S)
        return values

    with served(translator, batch_tokens=1, waiting_s=0.001) as client:
        page = '<p title="later">wait</p>'
        thread = threading.Thread(target=lambda: answers.append(ask(client, q=page, format="html")))
        thread.start()
        assert translator.has_begun.wait(PATIENCE_S)
        translator.queue.submit(hold, range(20), [1] * 20, is_admitted=True)
        translator.may_go_on.set()
        while thread.is_alive() and translator.queue.waiting_tokens() <= 20:  # until the attribute waits, too
            time.sleep(0.01)
        may_end.set()
        thread.join()
    assert answers == [{"translatedText": '<p title="LATER">WAIT</p>'}]


def test_no_such_path_and_a_wrong_method() -> None:
    with served() as client:
        for method, path, status, error in (
            ("GET", "/no", 404, "Not Found"),
            ("GET", "/translate", 405, "Method Not Allowed"),
            ("DELETE", "/languages", 405, "Method Not Allowed"),
            ("POST", "/translate/", 404, "Not Found"),
        ):
            response = client.request(method, path, headers={"host": "elsewhere.example"})
            assert (response.status_code, response.json()) == (status, {"error": error})


def test_a_body_that_is_too_large_or_declared_so() -> None:
    with served(body_bytes=100) as client:
        for content in (b"x" * 101, iter([b"x" * 60] * 2)):
            response = client.post("/translate", content=content, headers=JSON)
            assert (response.status_code, response.json()["error"]) == (
                413, "the body is larger than the limit of 100 bytes",
            )  # fmt: skip
            assert response.headers["connection"] == "close"


def test_keys() -> None:
    with served(keys=["another-key-of-16", KEY]) as client:
        fields = {"q": "a", "source": "en", "target": "de"}
        for path in ("/translate", "/detect"):
            for key, error in ((None, "this server requires an API key"), ("wrong", "Invalid API key"), (1, "Invalid")):
                response = client.post(path, json={**fields, "api_key": key})
                assert response.status_code == 403 and response.json()["error"].startswith(error)
        assert ask(client, q="a", api_key=KEY) == {"translatedText": "A"}
        assert client.post("/translate", data={**fields, "api_key": KEY}).json() == {"translatedText": "A"}
        bearer = {"authorization": f"Bearer {KEY}"}
        assert client.post("/translate", json=fields, headers=bearer).json() == {"translatedText": "A"}
        assert client.get("/frontend/settings").json()["keyRequired"] is True
        assert client.get("/languages").status_code == client.get("/").status_code == 200, "they tell no secret"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1"])
def test_this_machine_needs_no_key(address: str) -> None:
    refuse_public_without_keys("localhost", address, [], ["runs/my"])


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.2", "8.8.8.8", "fe80::1%eth0"])
def test_other_machines_need_a_key(address: str) -> None:
    refuse_public_without_keys("HOST", address, [KEY], ["runs/my"])
    with pytest.raises(UsageError, match="--host HOST: other machines could use the server without") as error:
        refuse_public_without_keys("HOST", address, [], ["runs/my", "runs/second"])
    assert str(error.value.help).endswith(" serve runs/my runs/second --host HOST --api-key-file FILE")


def test_the_description_names_all_calls_and_their_fields() -> None:
    with served() as client:
        calls = client.get("/spec").json()
        assert calls["openapi"].startswith("3.") and client.post("/spec").status_code == 405
        for path, call in calls["paths"].items():
            for method in ("GET", "POST"):
                assert (client.request(method, path).status_code == 405) == (method.lower() not in call)
    body = calls["paths"]["/translate"]["post"]["requestBody"]["content"]["application/x-www-form-urlencoded"]
    names = {"q", "source", "target", "format", "alternatives", "quality", "alignment", "api_key"}
    assert {*body["schema"]["properties"]} == names
    assert body["schema"]["required"] == ["q", "source", "target"]


def test_other_origins_may_ask() -> None:
    with served() as client:
        asked = client.options("/translate", headers={
            "origin": "https://a.example", "access-control-request-method": "POST",
            "access-control-request-headers": "content-type",
        })  # fmt: skip
        assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == "*"
        refused = client.post("/translate", json={}, headers={"origin": "https://a.example"})
        assert refused.status_code == 400 and refused.headers["access-control-allow-origin"] == "*"


def test_a_translation_that_takes_too_long() -> None:
    translator = Upper()
    with served(translator, request_s=0.1) as client:
        response = client.post("/translate", json={"q": "wait", "source": "en", "target": "de"})
        assert (response.status_code, response.json()["error"]) == (504, "the translation took longer than 0.1 seconds")
        translator.may_go_on.set()
        assert ask(client, q="a") == {"translatedText": "A"}


def test_a_full_queue() -> None:
    translator = Upper()
    with served(translator, waiting_s=0.01) as client:  # a batch of 750 tokens takes two seconds
        threads = [threading.Thread(target=ask, args=[client], kwargs={"q": q}) for q in ("wait", "waiting")]
        threads[0].start()
        assert translator.has_begun.wait(PATIENCE_S)
        threads[1].start()
        while translator.queue.waiting_tokens() != len("waiting"):
            time.sleep(0.01)
        response = client.post("/translate", json={"q": "and more", "source": "en", "target": "de"})
        assert response.status_code == 503 and response.headers["retry-after"] == "5"
        assert response.json() == {"error": "the server is overloaded; try again later"}
        assert client.post("/translate", json={"q": "a", "source": "en", "target": "xx"}).status_code == 400
        page = {"q": f'<p class="{"x" * 200}">1</p>', "source": "en", "target": "de", "format": "html"}
        assert client.post("/translate", json=page).status_code == 200, "only text takes room"
        mixed = {"q": ["das Haus ist sehr alt und steht auf einem Berg", "the house is very old. " * 20]}
        assert client.post("/translate", json={**mixed, "source": "auto", "target": "de"}).status_code == 503
        translator.may_go_on.set()
        for thread in threads:
            thread.join()


def test_work_on_a_request_leaves_the_event_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    called = set[str]()

    def outside(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            called.add(name)
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            return function(*arguments, **named)

        return call

    translator = Upper()
    for owner, name in (
        (translator, "split"), (translator, "join_parts"), (translation, "suspicion"),
        (translator.tokenizer, "encode"), (Pairs, "detect"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, outside(name, getattr(owner, name)))
    with served(translator) as client:
        assert ask(client, q="a\nb", source="auto")["translatedText"] == "A\nB"
        assert ask(client, q="<p>a", format="html")["translatedText"] == "<p>A"
        assert client.post("/detect", json={"q": "a"}).status_code == 200
    assert len(called) == 5


def test_a_failure_tells_where_but_no_text(caplog: pytest.LogCaptureFixture) -> None:
    with served() as client, caplog.at_level(logging.INFO, logger="mtx"):
        response = client.post("/translate", json={"q": "fail", "source": "en", "target": "de"})
        assert (response.status_code, response.json()) == (
            500,
            {"error": "internal server error; see the server's log"},
        )
        assert ask(client, q="a") == {"translatedText": "A"}
    assert "ValueError at " in caplog.text and "cannot translate" not in caplog.text


def test_the_log_counts_and_holds_no_texts(caplog: pytest.LogCaptureFixture) -> None:
    with served() as client, caplog.at_level(logging.INFO, logger="mtx"):
        ask(client, q=["secret", "SO SO SO"])
        client.get("/secret?secret")
        client.post("/translate?q=secret", json={"q": "secret", "source": "secret", "target": "de"})
        client.request("SECRET", "/translate")
    lines = [record.fields for record in dict.fromkeys(caplog.records) if hasattr(record, "fields")]
    assert [(line["path"], line["status"]) for line in lines[:3]] == [
        ("/translate", 200), ("other", 404), ("/translate", 400),
    ]  # fmt: skip
    assert (
        lines[0] == {**lines[0], "method": "POST", "chars": 14, "texts": 2, "suspicious": 1}
        and lines[0]["seconds"] >= 0
    )
    assert "secret" not in json.dumps(lines).lower()


def test_one_pair_has_one_model() -> None:
    with pytest.raises(UsageError, match="two models translate en to de"):
        Pairs([Upper(), Upper()])


def test_too_many_connections() -> None:
    limits = Limits(connections=2)
    with TranslationQueue(limits.batch_tokens, limits.waiting_s) as queue:
        server = http_server(Server(Pairs([Upper()]), queue, [], limits).app(), limits)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            thread = threading.Thread(target=server.run, args=[[listener]])
            thread.start()
            with socket.create_connection(address) as idle:
                while not server.server_state.connections:
                    time.sleep(0.01)
                assert status_of(address) == 503
                idle.shutdown(socket.SHUT_RDWR)
                while server.server_state.connections:
                    time.sleep(0.01)
            assert status_of(address) == 200
            server.should_exit = True
            thread.join()


def status_of(address: tuple[str, int]) -> int:
    with contextlib.closing(http.client.HTTPConnection(*address, timeout=PATIENCE_S)) as connection:
        connection.request("GET", "/health", headers={"connection": "close"})
        return connection.getresponse().status


Messages = list[dict[str, Any]]


def answered(
    receive: Callable[[], Awaitable[dict[str, Any]]], translator: Upper | None = None, **limits: Any
) -> Messages:
    """What the application sends to a client that behaves as `receive` says."""
    sent, values = Messages(), Limits(**limits)

    async def keep(message: Any) -> None:
        sent.append(message)

    scope: Any = {"type": "http", "method": "POST", "path": "/translate", "query_string": b"",
                  "headers": [(b"content-type", b"application/json")]}  # fmt: skip
    with TranslationQueue(values.batch_tokens, values.waiting_s) as queue:
        app = Server(Pairs([translator or Upper()]), queue, [], values).app()
        asyncio.run(app(scope, receive, keep))
        if translator:
            translator.may_go_on.set()
    return sent


def test_the_rest_of_a_large_body_is_taken_if_there_is_one() -> None:
    """Nobody sends more after the last part: to wait for it would keep the connection."""
    for sizes in ([60, 60], [60, 60, 60, 60]):
        parts = [{"type": "http.request", "body": b"x" * size, "more_body": True} for size in sizes]
        parts[-1]["more_body"] = False

        async def receive(parts: Messages = parts) -> dict[str, Any]:
            return parts.pop(0)

        sent = answered(receive, body_bytes=100)
        assert sent[0]["status"] == 413 and parts == []


def test_a_client_that_goes_gets_nothing_translated(caplog: pytest.LogCaptureFixture) -> None:
    translator = Upper()
    body = json.dumps({"q": ["wait", "never"], "source": "en", "target": "de"}).encode()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        if message := next(messages, None):
            return message
        while not translator.has_begun.is_set():
            await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    with caplog.at_level(logging.INFO, logger="mtx"):
        sent = answered(receive, translator, batch_tokens=1)
    assert sent[0]["status"] == 499 and translator.calls == [["wait"]], "what was waiting is dropped"
    assert [record.fields["status"] for record in dict.fromkeys(caplog.records) if hasattr(record, "fields")] == [499]


def test_a_client_that_goes_before_its_body_has_arrived(caplog: pytest.LogCaptureFixture) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with caplog.at_level(logging.INFO, logger="mtx"):
        assert answered(receive)[0]["status"] == 499
    assert [record.fields["status"] for record in dict.fromkeys(caplog.records) if hasattr(record, "fields")] == [499]


LANGUAGES: list[dict[str, object]] = [{"code": "en", "name": "</script><b>&", "targets": ["de"]}]


def test_the_policy_names_the_script_and_the_styles_of_the_page() -> None:
    text, policy = render_page(LANGUAGES, {})
    for tag in ("script", "style"):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; connect-src 'self'; ")


def test_everything_is_inside() -> None:
    text, _ = render_page(LANGUAGES, {})
    assert "{{" not in text
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    assert set(re.findall(r"https?://[^'\"\s]+", text)) == {"http://www.w3.org/2000/svg"}, "a namespace, no address"


def test_a_name_of_a_model_stays_text() -> None:
    text, _ = render_page(LANGUAGES, {})
    assert r'"\u003c/script\u003e\u003cb\u003e\u0026"' in text and "<b>" not in text


def test_the_alignment_is_of_each_text_and_only_if_it_is_asked_for() -> None:
    with served() as client:
        assert "alignment" not in ask(client, q="a dog")
        assert ask(client, q="a dog\r\n\nruns - a", alignment=True)["alignment"] == "0-0 1-1 2-2 4-4"
        texts = ["a", "a dog\n7 b", "7", ""]
        assert ask(client, q=texts, alignment=True)["alignment"] == ["0-0", "0-0 1-1 2-2 3-3", "", ""]
        assert ask(client, q="a dog", target="en", alignment=True)["alignment"] == "", "it came back unchanged"
        answer = ask(client, q="a dog", alternatives=2, alignment=True)
        assert answer["alignment"] == "0-0 1-1" and len(answer["alternatives"]) == 2
        fields = {"q": "a dog", "source": "en", "target": "de", "alignment": "true"}
        assert client.post("/translate", data=fields).json()["alignment"] == "0-0 1-1"
        for other, problem in (({"format": "html"}, "not available for html"), ({"alignment": "x"}, "alignment")):
            refused = client.post("/translate", json={**fields, **other})
            assert refused.status_code == 400 and problem in refused.json()["error"]


def test_alignments_are_computed_by_the_threads_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    names = list[str]()

    class Noting(Upper):
        def align(self, texts: Sequence[list[Hypothesis]]) -> list[str]:
            names.append(threading.current_thread().name)
            return super().align(texts)

    with served(Noting()) as client:
        ask(client, q=["a dog", "runs"], alignment=True)
    assert names and all(name.startswith("translation") for name in names)


def test_quality_is_of_each_line_and_only_if_it_is_asked_for() -> None:
    with served(Sure()) as client:
        assert "quality" not in ask(client, q="a dog\n\nruns")
        lines = [{"quality": 5, "advice": "use"}, {"quality": None, "advice": None}, {"quality": 4, "advice": "use"}]
        assert ask(client, q="a dog\n\nruns", quality=True)["quality"] == lines
        assert ask(client, q=["a", "a dog\n\nruns", "7"], quality=True)["quality"][1] == lines
        fields = {"q": "a dog", "source": "en", "target": "de", "quality": "true"}
        assert client.post("/translate", data=fields).json()["quality"] == lines[:1]
        page = ask(client, q='<p title="a">a dog</p><p>runs</p>', format="html", quality=True)
        assert [each["quality"] for each in page["quality"]] == [5, 4, 1]
        refused = client.post("/translate", json={**fields, "quality": "perhaps"})
        assert refused.status_code == 400 and "quality" in refused.json()["error"]
