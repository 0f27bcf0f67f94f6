"""`mtx translate`: one line for one line, whatever the lines hold, and quiet ends."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mtx.decoding.load import cached_export
from tests.integration.commands import ENVIRONMENT, MTX, check_error, flip_bit, mtx, spawn, tree
from tests.rig import PATIENCE_S

HOSTILE = [
    b"one two",
    b"",
    b"one " * 5000,
    b"nul\x00inside",
    b"invalid \xff\xfe\x80 bytes",
    b"lone \xed\xa0\x80 surrogates \xed\xbf\xbf",
    "line\u2028and paragraph\u2029separators".encode(),
    "next\u0085line, \x0b vertical, \x0c form feed, \x1c\x1d\x1e separators".encode(),
    b"a lone \r inside",
    b"   ",
    "\u3000\u200b".encode(),
    "\ufeffa BOM that is not the first".encode(),
    "\u2581 \U0001f469\u200d\U0001f680 \u202eright".encode(),
    b"three four",
]


def test_as_many_lines_out_as_in_in_order(trained: Path, tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + b"\r\n".join(HOSTILE)  # CRLF, a BOM, no LF at the end
    assert b"\r\n" in text and not text.endswith(b"\n") and len(b"one " * 5000) == 20_000
    from_stdin = mtx("translate", trained, stdin=text)
    assert from_stdin.returncode == 0, from_stdin.stderr.decode()
    out = from_stdin.stdout.decode("utf-8")
    assert out.endswith("\n") and len(out.splitlines()) == out.count("\n") == len(HOSTILE)
    lines = out.splitlines()
    assert [number for number, line in enumerate(lines) if not line] == [1, 9]
    assert b"2 lines had invalid UTF-8" in from_stdin.stderr
    german = mtx("translate", trained, stdin="Das M\u00e4dchen l\u00e4uft\n".encode("cp1252") * 3 + b"a \xef\xbf\xbd\n")
    assert b"3 lines had invalid UTF-8, replaced by U+FFFD, perhaps WINDOWS-1252\n" in german.stderr, "U+FFFD is valid"
    (tmp_path / "prefix").write_bytes(b"eins\xff\n")
    prefixed = mtx("translate", trained, "--prefix", tmp_path / "prefix", stdin=b"one\n")
    assert prefixed.returncode == 0 and b"1 line of --prefix had invalid UTF-8" in prefixed.stderr

    alone = mtx("translate", trained, stdin=b"one two\nthree four\n")
    assert alone.stdout.decode().splitlines() == [lines[0], lines[-1]]

    (tmp_path / "in.txt").write_bytes(text)
    to_file = mtx("translate", trained / "model", tmp_path / "in.txt", "-o", tmp_path / "out.txt")
    assert to_file.returncode == 0 and to_file.stdout == b""
    assert (tmp_path / "out.txt").read_bytes() == from_stdin.stdout
    from_file = mtx("translate", trained, tmp_path / "in.txt", "--beam", "4")
    assert from_file.stdout == from_stdin.stdout


def test_reads_a_pipe_by_name(trained: Path) -> None:
    """`mtx translate RUN <(zcat text.gz)`"""
    result = mtx("translate", trained, "/dev/stdin", stdin=b"one two\n")
    assert (result.returncode, result.stdout.count(b"\n")) == (0, 1), result.stderr.decode()


def test_flags_change_the_call_and_json_holds_scores(trained: Path) -> None:
    result = mtx(
        "translate", trained, "--beam", 1, "--length-penalty", 0.0, "--device", "cpu", "--batch-tokens", 8, "--json",
        stdin=b"one\n\ntwo three\n",
    )  # fmt: skip
    rows = [json.loads(line) for line in result.stdout.decode().split("\n")[:-1]]
    assert result.returncode == 0 and len(rows) == 3
    assert all(set(row) - {"suspicion"} == {"text", "score"} for row in rows)
    assert rows[1] == {"text": "", "score": 0.0}


def test_json_notes_what_is_suspicious(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "prefix").write_text("eins zwei eins zwei eins zwei\n\n")
    command = ["translate", trained, "--json", "--prefix", tmp_path / "prefix", "--max-length", 20]
    row, empty = (json.loads(line) for line in mtx(*command, stdin=b"one\n\n").stdout.decode().split("\n")[:-1])
    assert row["suspicion"] == "repetition" and row["text"].startswith("eins zwei eins") and "suspicion" not in empty
    several = mtx(*command, "--n-best", 2, "--beam", 2, stdin=b"one\n\n").stdout.decode().split("\n")[0]
    assert [hypothesis["suspicion"] for hypothesis in json.loads(several)["hypotheses"]] == ["repetition"] * 2


def test_a_reader_that_leaves_early_gets_no_traceback(trained: Path) -> None:
    """`mtx translate … | head -1`"""
    process = spawn("translate", trained, stdin=subprocess.PIPE)
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    process.stdin.write(b"one two three\n" * 50)
    process.stdin.close()
    err = process.stderr.read()
    assert (process.wait(PATIENCE_S), err) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(trained: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*MTX, "translate", str(trained)]
        result = subprocess.run(
            command, env=ENVIRONMENT, input=b"one\n", stdout=full, stderr=subprocess.PIPE, check=False
        )
    check_error(result.returncode, result.stderr.decode(), 1, "No space left")


@pytest.mark.parametrize("closed, code", [("<&-", 2), (">&-", 2), ("2>&-", 0)])
def test_closed_streams(trained: Path, closed: str, code: int) -> None:
    command = f'echo one | {{ "$0" -m mtx translate "$1" {closed}; }}'
    result = subprocess.run(
        ["sh", "-c", command, MTX[0], str(trained)], env=ENVIRONMENT, capture_output=True, check=False
    )
    if code:
        check_error(result.returncode, result.stderr.decode(), code, "is closed")
    else:
        assert result.returncode == 0 and result.stdout.count(b"\n") == 1


def test_empty_input_gives_empty_output(trained: Path) -> None:
    result = mtx("translate", trained, stdin=b"")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


def test_what_is_not_lines_is_refused_from_a_file_and_from_stdin_unless_asked_for(
    trained: Path, tmp_path: Path
) -> None:
    (tmp_path / "few.csv").write_text("1,one two\n")
    result = mtx("translate", trained, tmp_path / "few.csv")
    check_error(result.returncode, result.stderr.decode(), 2, "few.csv: expected lines of text, got a table", "csvcut")
    assert mtx("translate", trained, tmp_path / "few.csv", "--lines").stdout.count(b"\n") == 1
    for text, kind in ((b"one\ttwo\nsix\tten\n", "a table"), (b"a = one\nb = two\n", "keys"), (b"%PDF-1", "binary")):
        refused = mtx("translate", trained, stdin=text)
        check_error(refused.returncode, refused.stderr.decode(), 2, "stdin: expected lines of text, got", kind)
        assert refused.stdout == b""
    forced = mtx("translate", trained, "--lines", stdin=b"a = one\nb = two\n")
    assert forced.stdout.count(b"\n") == 2 and b"warning: expected lines of text, got keys" in forced.stderr


def test_an_output_that_is_no_plain_file_is_written_to_not_replaced(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", str(tmp_path / "pipe")], stdout=subprocess.PIPE)
    for name in ("link", "pipe"):
        assert mtx("translate", trained, "-o", tmp_path / name, stdin=b"one\n").returncode == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "pipe").is_fifo()
    assert reader.communicate()[0] == (tmp_path / "target").read_bytes() != b"old"


def test_a_run_without_model_means_its_best_checkpoint(run_copy: Path) -> None:
    shutil.rmtree(run_copy / "model")
    result = mtx("translate", run_copy, stdin=b"one two\n\n")
    assert result.returncode == 0 and result.stdout.count(b"\n") == 2
    best = json.loads((run_copy / "checkpoints" / "step-00000040" / "state.json").read_text())["best_step"]
    assert f"using its checkpoint of step {best}\n" in result.stderr.decode()
    flip_bit(run_copy / "data" / "tokenizer.model")
    damaged = mtx("translate", run_copy, stdin=b"one two\n")
    check_error(damaged.returncode, damaged.stderr.decode(), 1, "data/tokenizer.model", "damaged")


@pytest.mark.parametrize("engine", ["auto", "torch", "ctranslate2"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.model", "config.json"])
def test_one_flipped_bit_in_the_model_is_refused_by_name(run_copy: Path, name: str, engine: str) -> None:
    """Also where the cache holds a sound conversion of the model, which the end of its training made."""
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    flip_bit(run_copy / "model" / name)
    before = tree(run_copy)
    result = mtx("translate", run_copy, "--engine", engine, stdin=b"one\n")
    check_error(result.returncode, result.stderr.decode(), 1, f"model/{name}", "damaged")
    assert result.stdout == b"" and tree(run_copy) == before


@pytest.mark.parametrize("name", ["model.bin", "tokenizer.model", "config.json"])
def test_a_damaged_conversion_is_made_again(trained: Path, name: str) -> None:
    pytest.importorskip("ctranslate2")
    sound = mtx("translate", trained, stdin=b"one two\n")
    flip_bit(cached_export(trained) / name)
    result = mtx("translate", trained, stdin=b"one two\n")
    assert (result.returncode, result.stdout) == (0, sound.stdout) and b"converting the model again" in result.stderr


def test_where_the_cache_cannot_be_written_torch_translates_and_that_is_said_once(
    trained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ctranslate2")
    (tmp_path / "file").touch()
    environment = {**ENVIRONMENT, "XDG_CACHE_HOME": str(tmp_path / "file")}
    expected = mtx("translate", trained, stdin=b"one two\n" * 3)
    result = mtx("translate", trained, stdin=b"one two\n" * 3, env=environment)
    assert (result.returncode, result.stdout) == (0, expected.stdout)
    (line,) = result.stderr.decode().splitlines()
    assert "torch translates: " in line and f"{tmp_path / 'file'}/mtx/ctranslate2: cannot write it" in line
    refused = mtx("translate", trained, "--engine", "ctranslate2", stdin=b"one\n", env=environment)
    check_error(refused.returncode, refused.stderr.decode(), 1, "cannot write it", "mtx export")


def test_asked_wrongly(refused, trained: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "text").write_text("one\n")
    (tmp_path / "empty").mkdir()
    refused(2, ["nowhere", "no such"], "translate", tmp_path / "nowhere", tmp_path / "text")
    refused(2, ["empty", "not a model directory"], "translate", tmp_path / "empty", tmp_path / "text")
    refused(2, ["nothing.txt", "no such file"], "translate", trained, tmp_path / "nothing.txt")
    refused(2, ["there is no directory"], "translate", trained, tmp_path / "text", "-o", tmp_path / "no" / "out")
    refused(2, ["is a directory"], "translate", trained, tmp_path / "text", "-o", tmp_path)
    refused(2, ["no CUDA"], "translate", trained, tmp_path / "text", "--device", "cuda")
    refused(2, ["--beam"], "translate", trained, tmp_path / "text", "--beam", "0")
    refused(2, ["--beem", "--beam"], "translate", trained, tmp_path / "text", "--beem", "2")
    assert {path.name for path in tmp_path.iterdir()} == {"text", "empty"}
