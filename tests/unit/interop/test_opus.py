"""`mtx corpora` with an OPUS on loopback; no test reaches the network."""

import hashlib
import io
import json
import logging
import random
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from mtx import cli
from mtx.config.settings import resolve
from mtx.data.prepare import prepare
from mtx.errors import DataError, MtxError, TerminatedError, UsageError
from mtx.interop import corpora, download, opus
from mtx.storage import disk, durable
from tests.integration.commands import tree
from tests.reliability import journal
from tests.unit.interop.fake_opus import Opus, members, zipped

SIDES = members("Fake", "en", "sw")
EN, SW = SIDES["Fake.en-sw.en"], SIDES["Fake.en-sw.sw"]
FOLDER = Path("text/Fake-v2")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opus]:
    monkeypatch.chdir(tmp_path)
    server = Opus()
    server.add("Fake", "v1", "en", "sw", zipped([("Fake.en-sw.en", "old\n"), ("Fake.en-sw.sw", "zamani\n")]))
    server.add("Fake", "v2", "en", "sw")
    server.add("Large", "v1", "en", "sw", alignment_pairs=12_345_678, size=1_500_000)
    server.add("Zero", "v1", "en", "sw", alignment_pairs="", size="")
    server.add("Other", "v1", "en", "zh_CN")
    server.add("Other", "v1", "cmn", "en")
    monkeypatch.setattr(opus, "API", f"{server.url}/opusapi/")
    monkeypatch.setattr(download, "new_session", requests.Session)
    monkeypatch.setattr("time.sleep", lambda _: None)  # between tries
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    server.server_close()


def run(*words: str) -> int:
    return cli.run(["corpora", *words])


def fetch(server: Opus, data: bytes | None = None) -> None:
    """Download Fake v2, whose zip may be another one."""
    if data is not None:
        server.zips["/Fake/v2/moses/en-sw.txt.zip"] = data
    corpora.fetch_opus(opus.find_corpus(("en", "sw"), "Fake", ""), ("en", "sw"), Path.cwd())


def left() -> list[str]:
    """The names in the folder of the corpora."""
    return sorted(path.name for path in Path().iterdir())


def ranges(server: Opus) -> list[str | None]:
    """The Range of each request for a zip."""
    return [span for _, path, span in server.asked if path.endswith(".zip")]


@pytest.mark.usefixtures("server")
def test_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("en-sw") == 0
    assert [line.split()[:4] for line in capsys.readouterr().out.splitlines()] == [
        ["name", "version", "pairs", "download"],
        ["Large", "v1", "12,345,678", "1,536.0"],
        ["Fake", "v2", "100", "0.0"],
        ["Zero", "v1", "?", "?"],
    ]


@pytest.mark.parametrize("pair", ["en-sw", "sw-en"])
def test_a_corpus(pair: str, server: Opus, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mtx")
    assert run(pair, "Fake", "-o", "text") == 0
    page = "https://opus.nlpl.eu/Fake/en&sw/v2/Fake"
    assert caplog.messages[0] == f"Fake v2: 100 pairs, 0.0 MB; terms: {page}"
    src, tgt = pair.split("-")
    assert caplog.messages[-1].endswith(f"train text/ data.src={src} data.tgt={tgt}")
    assert {path.name for path in Path("text").iterdir()} == {"Fake-v2"}
    names = {"Fake.en", "Fake.sw", "LICENSE", "README", "origin.json", "manifest.json"}
    assert {path.name for path in FOLDER.iterdir()} == names
    assert (FOLDER / "Fake.en").read_text() == EN and (FOLDER / "Fake.sw").read_text() == SW
    origin = durable.read_json(FOLDER / "origin.json")
    data = server.zips["/Fake/v2/moses/en-sw.txt.zip"]
    assert origin["url"] == f"{server.url}/Fake/v2/moses/en-sw.txt.zip" and origin["version"] == "v2"
    assert (origin["sha256"], origin["size"]) == (hashlib.sha256(data).hexdigest(), len(data))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", origin["date"])
    assert origin["terms"] == f"CC BY 2.0 FR; {page}"
    before = tree(Path("text"))
    server.zips.clear()
    assert run(pair, "Fake", "Fake@v2", "-o", "text") == 0
    assert tree(Path("text")) == before


@pytest.mark.usefixtures("server")
def test_a_folder_trains_like_the_same_files_put_there_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("en-sw", "Fake", "-o", "text") == 0
    by_hand = tmp_path / "by hand/text/Fake-v2"
    by_hand.mkdir(parents=True)
    (by_hand / "Fake.en").write_text(EN)
    (by_hand / "Fake.sw").write_text(SW)
    settings = ["data.train=text/", "data.src=en", "data.tgt=sw", "tokenizer.vocab_size=300"]
    for folder in (tmp_path, tmp_path / "by hand"):
        monkeypatch.chdir(folder)
        prepare(resolve("own-text", settings).config, Path("data"))
    assert tree(tmp_path / "data") == tree(tmp_path / "by hand/data")


def test_versions(server: Opus) -> None:
    assert run("en-sw", "Fake@v1", "-o", "text") == 0
    assert Path("text/Fake-v1/Fake.sw").read_text() == "zamani\n"
    with pytest.raises(UsageError, match="^OPUS has no Fake@v3 in en and sw$") as error:
        opus.find_corpus(("en", "sw"), "Fake", "v3")
    assert error.value.help == "the versions of Fake are v1, v2"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("pair", "corpus", "problem", "hint"),
    [
        ("en-sw", "fake", "no fake in en and sw", "nearest: Fake; en and sw are in Fake, Large, Zero"),
        ("en-zh", "Other", "no Other in en and zh", "nearest: zh_CN, cmn; in Other, en is paired with cmn, zh_CN"),
        ("zh-en", "", "no text in zh and en", "nearest: zh_CN, cmn; en is paired with cmn, sw, zh_CN"),
        ("xx-yy", "", "no text in xx and yy", "its languages include cmn, en"),
        ("EN-SW", "", "no text in EN and SW", "nearest: en; its languages include cmn, en"),
    ],
)
def test_the_nearest_is_offered(pair: str, corpus: str, problem: str, hint: str, capsys: Any) -> None:
    words = [corpus, "-o", "text"] if corpus else []
    assert run(pair, *words) == 2
    assert capsys.readouterr().err.endswith(f"error: OPUS has {problem}\nhelp: {hint}\n")
    assert not Path("text").exists()


@pytest.mark.parametrize(
    ("corpus", "version"), [("../x", "v1"), ("x", "../v1"), ("x/y", "v1"), (".x", "v1"), ("x", ""), ("", "v1")]
)
def test_no_name_of_opus_becomes_a_path(corpus: str, version: str, server: Opus) -> None:
    server.add(corpus, version, "en", "sw")
    with pytest.raises(UsageError, match="^(OPUS has no x in en and sw|'.*': expected the name of a corpus)$"):
        opus.find_corpus(("en", "sw"), corpus, "")


def test_an_answer_about_other_languages(server: Opus) -> None:
    server.answers = {"/opusapi/": json.dumps(server.answer({"source": "en", "target": "zh_CN"})).encode()}
    assert opus.list_corpora(("en", "sw")) == []


def test_an_answer_about_another_version(server: Opus) -> None:
    server.answers = {"/opusapi/": json.dumps(server.answer({"corpus": "Fake", "latest": "True"})).encode()}
    with pytest.raises(UsageError, match="OPUS has no Fake@v1 in en and sw"):
        opus.find_corpus(("en", "sw"), "Fake", "v1")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(("name", "amount"), [("Large", "1,536 MB"), ("Zero", "an unknown amount")])
def test_a_large_download_needs_confirmation(name: str, amount: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("en-sw", "Fake", name, "-o", "text") == 2
    assert (
        f"error: {amount} would be downloaded\nhelp: add --yes" in capsys.readouterr().err and not Path("text").exists()
    )
    assert run("en-sw", "Fake", name, "-o", "text", "--yes") == 0
    assert {path.name for path in Path("text").iterdir()} == {"Fake-v2", f"{name}-v1"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["en"], "en: expected two different languages"),
        (["en-en"], "en-en: expected two different languages"),
        (["en-sw", "Fake"], "-o FOLDER is missing"),
        (["en-sw", "-o", "text"], "-o and --yes need the names of corpora"),
        (["en-sw", "--yes"], "-o and --yes need the names of corpora"),
        (["en-sw", "Fake", "-o", "file"], "-o file: expected a folder, got a file"),
        (["en-sw", "Fake", "--testset", "wmt14"], "--testset does not go with"),
        (["en-sw", "a", "b", "--hub", "x/y"], "expected one subset, got a and b"),
    ],
)
def test_requests_that_are_refused(
    words: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert run(*words) == 2
    assert problem in capsys.readouterr().err


def test_another_pair_of_the_same_corpus(server: Opus) -> None:
    server.add("Fake", "v2", "de", "en")
    assert run("en-sw", "Fake", "-o", "text") == 0
    assert run("en-de", "Fake", "-o", "text") == 2
    assert run("en-de", "Fake", "-o", "a/b") == 0
    assert run("en-de", "Nothing", "-o", "c/d") == 2 and left() == ["a", "text"]


def test_an_interrupted_download_of_another_pair_stays(large: bytes, server: Opus) -> None:
    interrupt(server)
    names = left()
    server.add("Fake", "v2", "de", "en")
    corpora.fetch_opus(opus.find_corpus(("en", "de"), "Fake", ""), ("en", "de"), Path.cwd())
    assert left() == [*names, "Fake-v2"]


@pytest.mark.parametrize("change", ["edit", "remove"])
def test_text_that_has_changed_is_not_called_downloaded(change: str, server: Opus, capsys: Any) -> None:
    assert run("en-sw", "Fake", "-o", "text") == 0
    if change == "edit":
        (FOLDER / "Fake.sw").write_text("x")
    else:
        (FOLDER / "Fake.sw").unlink()
    assert run("en-sw", "Fake", "-o", "text") == 1
    assert capsys.readouterr().err.endswith("help: remove text/Fake-v2 to download it again\n")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"<html>", "/opusapi/: expected JSON, got another answer .Expecting value"),
        (b"[" * 100_000, "/opusapi/: expected JSON, got another answer .it is nested too deeply"),
        (b'{"error": 1}', r"unexpected answer \(corpora: Field required\)"),
        (b'{"corpora": [{"corpus": "Fake"}]}', r"unexpected answer \(corpora.0.version: Field required\)"),
        (404, r"404 Client Error: Not Found"),
        (503, r"503 Server Error"),
    ],
)
def test_answers_of_another_form(answer: bytes | int, problem: str, server: Opus) -> None:
    server.answers = {"/opusapi/": answer}
    with pytest.raises(MtxError, match=problem) as error:
        opus.list_corpora(("en", "sw"))
    assert "\n" not in str(error.value) and error.value.exit_code == 1


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opus, "API", "http://127.0.0.1:9/opusapi/")
    monkeypatch.setattr(download, "new_session", requests.Session)
    with pytest.raises(MtxError, match=r"cannot be downloaded: ") as error:
        opus.list_corpora(("en", "sw"))
    assert "HTTPS_PROXY=URL" in (error.value.help or "")


def test_a_proxy(server: Opus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opus, "API", "http://opus.invalid/opusapi/")
    monkeypatch.setenv("HTTP_PROXY", server.url)
    assert len(opus.list_corpora(("en", "sw"))) == 3
    assert server.asked[-1][1].startswith("http://opus.invalid/opusapi/?")


class Redirect(requests.adapters.HTTPAdapter):
    """An https server that answers with a redirect."""

    location = ""

    def send(self, request: Any, *_: Any, **__: Any) -> requests.Response:
        response = requests.Response()
        response.status_code, response.url, response.request = 302, request.url, request
        response.headers["Location"] = self.location
        response.raw = io.BytesIO()
        return response


def test_only_https(server: Opus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    session = download.new_session()
    session.mount("https://", adapter := Redirect())
    for adapter.location in (f"{server.url}/x", "ftp://127.0.0.1/x", "file:///etc/passwd"):
        with pytest.raises(MtxError, match="^https://a/b cannot be downloaded: ") as error:
            download.download("https://a/b", Path("x"), session=session)
        assert "only https is allowed" in (error.value.help or "")
    with pytest.raises(MtxError, match="cannot be downloaded: "):
        download.download(f"{server.url}/x", Path("x"))
    assert server.asked == []


def changed(**texts: str | None) -> bytes:
    """The zip of the corpus with some other members; None: without it."""
    names = {"en": "Fake.en-sw.en", "sw": "Fake.en-sw.sw"}
    files = {**SIDES, **{names.get(name, name): text for name, text in texts.items()}}
    return zipped([(name, text) for name, text in files.items() if text is not None])


def test_a_zip_without_terms(server: Opus) -> None:
    fetch(server, changed(LICENSE=None, README=None))
    assert durable.read_json(Path("Fake-v2/origin.json"))["terms"] == "https://opus.nlpl.eu/Fake/en&sw/v2/Fake"
    assert (Path("Fake-v2") / "Fake.en").read_text() == EN


def test_no_name_of_a_zip_becomes_a_path(server: Opus, tmp_path: Path) -> None:
    fetch(server, zipped([("../../Fake.en-sw.en", EN), ("/etc/x/Fake.en-sw.sw", SW), ("../LICENSE", "x")]))
    assert left() == ["Fake-v2"] and [*tmp_path.parent.glob("Fake*")] == []
    assert {path.name for path in Path("Fake-v2").iterdir()} == {"Fake.en", "Fake.sw", "origin.json", "manifest.json"}


@pytest.mark.parametrize(
    ("data", "kind", "problem"),
    [
        (
            changed(sw=None),
            DataError,
            "Fake: expected one text in sw, got 0; its zip has README, LICENSE, Fake",
        ),
        (changed(x="", **{"sub/y.en": EN}), DataError, "Fake: expected one text in en, got 2"),
        (changed(sw=SW + "moja\n"), DataError, "Fake-v2: expected two texts with equally many lines"),
        (changed(sw="", en=""), DataError, "Fake-v2: expected two texts with equally many lines"),
        (b"<html>" * 1000, DataError, r"is damaged \(File is not a zip file\)"),
        (b"", DataError, r"is damaged \(File is not a zip file\)"),
    ],
    ids=["one side", "two of a side", "unequal", "empty", "HTML", "nothing"],
)
def test_a_zip_that_is_no_corpus(data: bytes, kind: type[MtxError], problem: str, server: Opus) -> None:
    with pytest.raises(kind, match=problem):
        fetch(server, data)
    assert left() == []


def test_no_damage_goes_unseen(server: Opus) -> None:
    """A changed byte or an early end: an error, or the right text if it was nowhere that matters."""
    rng = random.Random(0)
    whole = server.zips["/Fake/v2/moses/en-sw.txt.zip"]
    damaged = [whole[: rng.randrange(len(whole))] for _ in range(60)]
    for place in range(0, len(whole), 7):
        damaged.append(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
    for data in damaged:
        try:
            fetch(server, data)
        except DataError:
            assert left() == []
        else:
            assert (Path("Fake-v2") / "Fake.en").read_text() == EN and (Path("Fake-v2") / "Fake.sw").read_text() == SW
            shutil.rmtree("Fake-v2")


def test_a_member_of_10_tb(server: Opus) -> None:
    data = bytearray(zipped([("a.sw", SW)]))
    with zipfile.ZipFile(Path("big.zip"), "w") as archive:
        info = zipfile.ZipInfo("Fake.en-sw.en")
        archive.writestr(info, EN)
        archive.writestr("Fake.en-sw.sw", SW)
        info.file_size = 10**13
    data = bytearray(Path("big.zip").read_bytes())
    Path("big.zip").unlink()
    with pytest.raises(MtxError, match=r"its disk has .* free, but Fake needs 10,000,000 MB"):
        fetch(server, bytes(data))
    assert left() == [".Fake-v2.en-sw.zip"]


def test_a_zip_that_is_not_there(server: Opus) -> None:
    server.zips.clear()
    with pytest.raises(MtxError, match=r"en-sw.txt.zip cannot be downloaded: 404 Client Error: Not Found"):
        fetch(server)
    assert left() == []


@pytest.fixture
def large(server: Opus, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A zip of many chunks, which does not compress."""
    monkeypatch.setattr(download, "_CHUNK_BYTES", 1000)
    data = zipped([("Fake.en-sw.en", EN * 10), ("Fake.en-sw.sw", SW * 10)], zipfile.ZIP_STORED)
    server.zips["/Fake/v2/moses/en-sw.txt.zip"] = data
    return data


def is_right() -> bool:
    texts = (Path("Fake-v2/Fake.en").read_text(), Path("Fake-v2/Fake.sw").read_text())
    return texts == (EN * 10, SW * 10) and left() == ["Fake-v2"]


def test_a_connection_that_breaks_again_and_again(large: bytes, server: Opus) -> None:
    server.cut = 1500
    fetch(server)
    assert is_right() and len(ranges(server)) == len(large) // 1000


def interrupt(server: Opus) -> int:
    """Leave a part of the zip; returns its size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "_MAX_FAILURES", 1)
        patch.setattr(download, "is_temporary", lambda _: False)
        server.cut = 10_500
        with pytest.raises(MtxError, match="cannot be downloaded") as error:
            fetch(server)
    assert "the same command resumes" in (error.value.help or "")
    server.cut = None
    server.asked.clear()
    [part] = Path().glob(".Fake-v2.en-sw.zip.*.part")
    assert part.stat().st_size == 10_000 and left() == [part.name]
    return part.stat().st_size


def test_a_part_is_resumed(large: bytes, server: Opus) -> None:
    interrupt(server)
    fetch(server)
    assert is_right() and ranges(server) == ["bytes=10000-"]


def test_what_is_stopped_says_how_to_resume(server: Opus, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> Any:
        raise TerminatedError(2)

    monkeypatch.setattr(download, "_receive", stop)
    with pytest.raises(TerminatedError) as error:
        fetch(server)
    assert error.value.help == "the same command resumes the download"


def test_a_complete_part(large: bytes, server: Opus) -> None:
    interrupt(server)
    [part] = Path().glob(".Fake-v2.en-sw.zip.*.part")
    part.write_bytes(large)
    fetch(server)
    assert is_right() and ranges(server) == [f"bytes={len(large)}-"]


def test_a_part_that_is_too_long(large: bytes, server: Opus) -> None:
    interrupt(server)
    [part] = Path().glob(".Fake-v2.en-sw.zip.*.part")
    part.write_bytes(large + b"x")
    fetch(server)
    assert is_right() and ranges(server)[-1] is None


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("etag", ['"second"', None])
def test_a_part_of_another_file(etag: str | None, server: Opus) -> None:
    interrupt(server)
    server.etag = etag
    fetch(server)
    assert is_right() and ranges(server) == ["bytes=10000-", None]


@pytest.mark.usefixtures("large")
def test_a_server_without_ranges(server: Opus) -> None:
    interrupt(server)
    server.has_range = False
    fetch(server)
    assert is_right() and len(ranges(server)) == 1


def test_a_change_that_only_the_checksum_shows(large: bytes, server: Opus) -> None:
    interrupt(server)
    texts = [("Fake.en-sw.en", EN.replace("dogs", "cats") * 10), ("Fake.en-sw.sw", SW * 10)]
    server.zips["/Fake/v2/moses/en-sw.txt.zip"] = zipped(texts, zipfile.ZIP_STORED)
    with pytest.raises(DataError, match="Bad CRC-32"):
        fetch(server)
    assert left() == []
    fetch(server)
    assert Path("Fake-v2/Fake.en").read_text() == EN.replace("dogs", "cats") * 10


def test_a_full_disk(large: bytes, server: Opus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: len(large) - 1)
    with pytest.raises(MtxError, match="its disk has"):
        fetch(server)
    assert left() == []


def test_a_disk_that_is_full_while_unpacking(server: Opus, monkeypatch: pytest.MonkeyPatch) -> None:
    create = disk.create

    def fill(path: Path, *mode: int) -> Any:
        if path.name == "Fake.sw":
            raise OSError(28, "No space left on device", str(path))
        return create(path, *mode)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "create", fill)
        with pytest.raises(OSError, match="No space left on device: '.*Fake-v2"):
            fetch(server)
    assert left() == [".Fake-v2.en-sw.zip"]
    server.zips.clear()
    fetch(server)
    assert left() == ["Fake-v2"]


@pytest.mark.usefixtures("server")
def test_files_of_others_stay() -> None:
    with durable.new_file(Path("text.tsv")) as file, corpora.hold_folder(Path()):
        assert run("en-sw", "Fake", "-o", "text") == 0
        file.write(b"a\tb\n")
    assert left() == ["text", "text.tsv"]


@pytest.mark.usefixtures("server")
def test_two_commands_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with corpora.hold_folder(Path("text")):
        assert run("en-sw", "Fake", "-o", "text") == 1
    assert "text: another process downloads to it" in capsys.readouterr().err
    assert run("en-sw", "Fake", "-o", "text") == 0


def test_a_kill_or_a_power_cut_at_each_operation(
    large: bytes, server: Opus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command again gives the same folder, and leaves nothing else."""
    (tmp_path / "disk").mkdir()
    monkeypatch.chdir(tmp_path / "disk")
    with pytest.MonkeyPatch.context() as patch:
        recorder = journal.Recorder(tmp_path / "disk", patch)
        fetch(server)
    expected = tree(Path())
    kinds = [op.kind for op in recorder.ops if op.path.suffix == ".part"]
    assert kinds[-2:] == ["sync", "rename"], "a power cut leaves no zeros under the name of the file"
    rng = random.Random(0)
    num_disks = 0
    for end in range(len(recorder.ops) + 1):
        ops = recorder.ops[:end]
        writers = [partial(journal.write_out, root) for root in journal.killed(ops)]
        for write_out in (*writers, *journal.cut(ops, 6, rng)):
            place = tmp_path / f"disk-{num_disks}"
            write_out(place)
            monkeypatch.chdir(place)
            with corpora.hold_folder(Path()):
                with suppress(DataError):  # a power cut may have left zeros in a part
                    fetch(server)
                fetch(server)
            assert tree(Path()) == expected, ops[-1]
            num_disks += 1
    assert num_disks > 100


def test_a_certificate_that_nobody_vouches_for_is_not_asked_again() -> None:
    assert not download.is_temporary(requests.exceptions.SSLError("certificate verify failed"))
    assert download.is_temporary(requests.exceptions.ConnectionError("reset"))
