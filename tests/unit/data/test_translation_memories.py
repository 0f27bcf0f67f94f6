"""XML of strangers is read right or refused in one line, within bounds, and nothing is fetched."""

import gzip
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mtx.data import translation_memories
from mtx.data.translation_memories import read_tmx, read_units
from mtx.errors import DataError

HEADER = '<?xml version="1.0" encoding="UTF-8"?>\n'
UNIT = '<tu><tuv xml:lang="en"><seg>a café</seg></tuv><tuv xml:lang="de"><seg>ein Café</seg></tuv></tu>'


def memory(body: str = UNIT, header: str = HEADER) -> str:
    return f'{header}<tmx version="1.4"><header/><body>{body}</body></tmx>\n'


def texts(directory: Path, data: bytes) -> list[list[str]]:
    path = directory / "memory.tmx"
    path.write_bytes(data)
    return [[variant.text for variant in unit.variants] for unit in read_tmx(path)]


DECLARED = {
    name: f'<?xml version="1.0" encoding="{name}"?>' for name in ("UTF-16", "ISO-8859-1", "windows-1252", "UTF-8")
}
READABLE = {
    "UTF-8": memory().encode(),
    "UTF-8 with a BOM": b"\xef\xbb\xbf" + memory().encode(),
    "UTF-16 with a BOM": memory(header=DECLARED["UTF-16"]).encode("utf-16"),
    "UTF-16LE": memory(header="").encode("utf-16-le"),
    "UTF-16BE": memory(header="").encode("utf-16-be"),
    "UTF-8 that says UTF-16": memory(header=DECLARED["UTF-16"]).encode(),
    "UTF-16 that says UTF-8": memory().encode("utf-16"),
    "ISO-8859-1": memory(header=DECLARED["ISO-8859-1"]).encode("latin-1"),
    "windows-1252": memory(header=DECLARED["windows-1252"]).encode("cp1252"),
    "gzip": gzip.compress(memory().encode()),
}


@pytest.mark.parametrize("name", READABLE)
def test_encodings_that_are_read(name: str, tmp_path: Path) -> None:
    assert texts(tmp_path, READABLE[name]) == [["a café", "ein Café"]]


def entity(declaration: str) -> bytes:
    return memory(UNIT.replace("café", "&x;"), f"{HEADER}<!DOCTYPE tmx [{declaration}]>").encode()


DOCTYPE = f'{HEADER}<!DOCTYPE tmx SYSTEM "tmx14.dtd">'
REFUSED = {
    "bomb": (entity('<!ENTITY y "aaaaaaaaaa"><!ENTITY x "&y;&y;&y;&y;">'), ":2: it declares the entity y"),
    "file": (entity('<!ENTITY x SYSTEM "file:///etc/passwd">'), ":2: it declares the entity x"),
    "undefined": (memory(UNIT.replace("café", "&nbsp;"), DOCTYPE).encode(), ":2: the entity &nbsp; is not defined"),
    "deep": (memory("<x>" * 100_000).encode(), ":2: elements are nested more than 200 deep"),
    "deep text": (memory(UNIT.replace("café", "<hi>" * 20_000)).encode(), ":2: elements are nested more than 200 deep"),
    "cut": (memory()[:-20].encode(), "damaged XML: "),
    "tags": (memory("<tu></tuv>").encode(), ":2: damaged XML: mismatched tag"),
    "control": (memory(UNIT.replace("café", "&#1;")).encode(), ":2: damaged XML: reference to invalid character"),
    "NUL": (memory(UNIT.replace("café", "\0")).encode(), ":2: damaged XML: "),
    "Latin 1": (memory(UNIT * 3000).encode("latin-1"), ":2: damaged XML: not well-formed (invalid token)"),
    "Shift JIS": (memory(header='<?xml version="1.0" encoding="Shift_JIS"?>').encode(), "unsupported encoding"),
    "UTF-32": (memory().encode("utf-32"), "unsupported encoding"),
    "unknown": (memory(header='<?xml version="1.0" encoding="x-y"?>').encode(), "unsupported encoding"),
    "gzip": (gzip.compress(memory(UNIT * 1000).encode())[:100], "truncated or damaged gzip file"),
    "another": (b"<a></a>", "not TMX"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    data, problem = REFUSED[name]
    with pytest.raises(DataError) as error:
        texts(tmp_path, data)
    assert problem in str(error.value) and "\n" not in str(error.value)


def test_nothing_is_fetched(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        host, port = server.getsockname()
        header = f'{HEADER}<!DOCTYPE tmx SYSTEM "http://{host}:{port}/tmx14.dtd">'
        assert texts(tmp_path, memory(header=header).encode()) == [["a café", "ein Café"]]
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_sentence_and_a_tag_have_their_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "a" * (2 * translation_memories.MAX_UNIT_BYTES)
    with pytest.raises(DataError, match=":2: a unit has more than 2,097,152 bytes"):
        texts(tmp_path, memory(UNIT.replace("café", long)).encode())
    monkeypatch.setattr(translation_memories, "_MAX_TOKEN_BYTES", 1 << 18)
    with pytest.raises(DataError, match=":2: a tag or comment has more than"):
        texts(tmp_path, memory(f'<tu x="{long}"/>').encode())
    document = memory(f'<tu x="{long}"/>')
    with pytest.raises(DataError, match=":2: a tag or comment has more than"):
        list(read_units(tmp_path / "a.tmx", "TMX", document))


@pytest.mark.seconds
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux does")
def test_a_large_file_is_a_stream(tmp_path: Path) -> None:
    """50 MB in less than 30 MB more than an empty one takes."""

    def peak(units: int) -> int:
        path = tmp_path / f"{units}.tmx"
        path.write_text(memory(UNIT.replace("café", "dog " * 100) * units), encoding="utf-8")
        code = (
            "import resource, sys; from pathlib import Path; from mtx.data.translation_memories import read_tmx; "
            "print(sum(1 for _ in read_tmx(Path(sys.argv[1]))), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
        count, memory_kb = map(int, result.stdout.split())
        assert count == units
        return memory_kb * 1024

    assert peak(100_000) - peak(1) < 30 << 20
