"""What people expect of translate: n-best lists, prefixes, samples, sentences, streams, a terminal; and logprob."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from mtx import cli
from mtx.commands import translate
from mtx.decoding import model_directory
from tests.integration.commands import ENVIRONMENT, MTX, check_error, mtx, spawn
from tests.models import tiny_model
from tests.rig import PATIENCE_S

TEXT = b"one two three\nfour five\n\nsix seven eight nine\n"


def rows(stdout: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stdout.decode().split("\n")[:-1]]


def test_n_best_is_json_best_first_and_scores_are_forced_scores(trained: Path, tmp_path: Path) -> None:
    found = mtx("translate", trained, "--beam", 3, "--n-best", 3, stdin=TEXT)
    assert found.returncode == 0, found.stderr.decode()
    lists = [row["hypotheses"] for row in rows(found.stdout)]
    assert [len(hypotheses) for hypotheses in lists][2] == 1 and max(map(len, lists)) == 3
    for hypotheses in lists:
        assert [h["score"] for h in hypotheses] == sorted((h["score"] for h in hypotheses), reverse=True)
    best = mtx("translate", trained, "--beam", 3, stdin=TEXT)
    assert [h[0]["text"] for h in lists] == best.stdout.decode().split("\n")[:-1]

    (tmp_path / "src").write_bytes(TEXT)
    (tmp_path / "tgt").write_bytes(best.stdout)
    forced = mtx("logprob", trained, tmp_path / "src", tmp_path / "tgt", "--json")
    assert forced.returncode == 0, forced.stderr.decode()
    for hypotheses, row in zip(lists, rows(forced.stdout), strict=True):
        if hypotheses[0]["text"]:
            assert row["score"] == pytest.approx(hypotheses[0]["score"], abs=1e-4)
    plain = mtx("logprob", trained, tmp_path / "src", tmp_path / "tgt", "-o", tmp_path / "out")
    assert plain.returncode == 0
    values = [float(line) for line in (tmp_path / "out").read_text().split("\n")[:-1]]
    assert values == pytest.approx([row["log_prob"] for row in rows(forced.stdout)], abs=1e-5)


def test_alignments_are_valid_and_those_of_the_best_only(trained: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(TEXT + b"<b>one</b> two. {0} three\n")
    command = ["translate", trained, source, "--alignment"]
    (alone, several, other) = (
        rows(mtx(*command, *options).stdout)
        for options in (["--json"], ["--n-best", 2], ["--json", "--engine", "torch", "--batch-tokens", 4])
    )
    for line, row in zip(source.read_text().splitlines(), alone, strict=True):
        pairs = [tuple(map(int, pair.split("-"))) for pair in row["alignment"].split()]
        src, tgt = len(line.split()), len(row["text"].split())
        assert all(0 <= i < src and 0 <= j < tgt for i, j in pairs) and bool(pairs) == bool(line)
    alignments = [row["alignment"] for row in alone]
    assert alignments == [row["alignment"] for row in other]
    assert alignments == [row["hypotheses"][0]["alignment"] for row in several]
    assert not any("alignment" in hypothesis for row in several for hypothesis in row["hypotheses"][1:])

    page = tmp_path / "a.html"
    page.write_text("<p>one</p>")
    for arguments, words in (
        (command, "is a field of JSON"),
        (["translate", trained, page, "--alignment", "--json"], "is a document"),
    ):
        refused = mtx(*arguments)
        check_error(refused.returncode, refused.stderr.decode(), 2, words)
    assert mtx(*command, "--json", "-o", tmp_path / "out").returncode == 0
    assert rows((tmp_path / "out").read_bytes()) == alone


def test_another_command_does_not_resume_alignments(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identities = list[dict[str, Any]]()
    monkeypatch.setattr(translate, "translate_file", lambda *arguments: identities.append(arguments[4]))
    (tmp_path / "in.txt").write_bytes(TEXT)
    for option in ([], ["--alignment"]):
        arguments = ["translate", trained, tmp_path / "in.txt", "-o", tmp_path / "out", "--json", *option]
        assert CliRunner().invoke(cli.app, list(map(str, arguments))).exit_code == 0
    assert identities[1] == identities[0] | {"alignment": True} != identities[0]


def test_prefixes_lengths_and_samples(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "prefix").write_text("zwei null\n\nacht\nneun\n", encoding="utf-8")
    found = mtx("translate", trained, "--prefix", tmp_path / "prefix", stdin=TEXT)
    lines = found.stdout.decode().split("\n")[:-1]
    assert lines[0].startswith("zwei null") and lines[3].startswith("neun") and lines[2] == ""
    assert lines[1] == mtx("translate", trained, stdin=TEXT).stdout.decode().split("\n")[1]

    short = mtx("translate", trained, "--max-length", 2, stdin=TEXT)
    assert max(len(line.split()) for line in short.stdout.decode().split("\n")) <= 1

    def samples(*options: Any) -> list[list[str]]:
        result = mtx("translate", trained, "--n-best", 4, *options, stdin=TEXT)
        assert result.returncode == 0, result.stderr.decode()
        return [[h["text"] for h in row["hypotheses"]] for row in rows(result.stdout)]

    first = samples("--temperature", 1.5)
    assert first == samples("--temperature", 1.5) != samples("--temperature", 1.5, "--seed", 2)
    assert len(set(first[0])) > 1
    assert len(set(samples("--top-k", 1)[0])) == 1, "the most probable token alone is greedy search"
    assert samples("--epsilon", 1) == samples("--top-k", 1) != samples("--epsilon", 0.1) != samples("--epsilon", 0)


def test_minimum_bayes_risk_of_lines_json_and_documents(trained: Path, tmp_path: Path) -> None:
    """By any way the same translations; the samples are those of epsilon 0.02."""
    plain = mtx("translate", trained, "--mbr", 8, stdin=TEXT)
    assert plain.returncode == 0, plain.stderr.decode()
    assert plain.stderr == b""
    lines = plain.stdout.decode().split("\n")[:-1]
    assert plain.stdout == mtx("translate", trained, "--mbr", 8, "--epsilon", 0.02, "--seed", 1, stdin=TEXT).stdout
    assert plain.stdout != mtx("translate", trained, "--mbr", 8, "--seed", 2, stdin=TEXT).stdout
    scored = rows(mtx("translate", trained, "--mbr", 8, "--json", stdin=TEXT).stdout)
    drawn = rows(mtx("translate", trained, "--n-best", 8, "--epsilon", 0.02, stdin=TEXT).stdout)
    assert [row["text"] for row in scored] == lines and len(lines) == 4
    for row, samples in zip(scored, drawn, strict=True):
        assert row["text"] in [h["text"] for h in samples["hypotheses"]] and 0 <= row["score"] <= 100
    page = tmp_path / "page.md"
    page.write_bytes(TEXT.replace(b"\n", b"\n\n"))
    document = mtx("translate", trained, page, "--mbr", 8)
    assert document.stdout.decode().split() == " ".join(lines).split()


@pytest.mark.parametrize(
    "engine", [[], ["--engine", "ctranslate2", "--precision", "fp32"]], ids=["torch", "ctranslate2"]
)
def test_a_model_of_single_sentences_translates_those_of_a_line_one_by_one(trained: Path, engine: list[str]) -> None:
    if engine:
        pytest.importorskip("ctranslate2")
    assert model_directory.load(trained / "model").info["multi_sentence_share"] == 0.0
    text = b"six\n" + b"One two. Three four! " * 30 + b"\n\n"
    lines = b"One two.\nThree four!\nsix\n"
    default, asked = (
        mtx("translate", trained, *engine, stdin=text),
        mtx("translate", trained, *engine, "--split-sentences", stdin=text),
    )
    whole = mtx("translate", trained, *engine, "--no-split-sentences", stdin=lines)
    alone = whole.stdout.decode().split("\n")
    assert default.stdout.decode().split("\n") == [alone[2], " ".join(alone[:2] * 30), "", ""]
    assert (
        default.stdout == asked.stdout != mtx("translate", trained, *engine, "--no-split-sentences", stdin=text).stdout
    )
    assert (
        default.stderr.count(b"translating the sentences of a line one by one") == 1
        and b"--no-split-sentences" in default.stderr
    )
    assert b"sentences" not in asked.stderr + mtx("translate", trained, *engine, stdin=lines).stderr
    assert mtx("translate", trained, *engine, stdin=lines).stdout == whole.stdout


def test_a_split_line_has_an_n_best_list_and_so_is_one_of_a_test_set(trained: Path, tmp_path: Path) -> None:
    text, reference, hypothesis = tmp_path / "text", tmp_path / "reference", tmp_path / "hypothesis"
    text.write_bytes(b"One two. Three four.\n")
    reference.write_bytes(b"eins zwei drei vier\n")
    assert len(rows(mtx("translate", trained, text, "--n-best", 3).stdout)[0]["hypotheses"]) == 3
    scored = mtx("evaluate", trained, "--src", text, "--ref", reference)
    hypothesis.write_bytes(mtx("translate", trained, text).stdout)
    by_hand = mtx("evaluate", "--hyp", hypothesis, "--ref", reference)
    assert scored.stdout.partition(b" ")[2] == by_hand.stdout.partition(b" ")[2] != b""
    assert b"one by one" in scored.stderr


def test_an_export_computes_in_the_precision_that_is_asked_for(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    export = tmp_path / "export"
    assert mtx("export", trained, "--to", "ctranslate2", "--precision", "fp32", "-o", export).returncode == 0
    arguments = ["translate", export, "--engine", "ctranslate2", "--n-best", 2]
    precisions: list[list[str]] = [[], ["--precision", "fp32"], ["--precision", "int8"]]
    default, fp32, int8 = (mtx(*arguments, *precision, stdin=TEXT).stdout for precision in precisions)
    assert default == fp32 != int8
    assert len(rows(int8)) == len(rows(fp32)) == 4


@pytest.mark.parametrize("precision, threads", [("fp32", 1), ("bf16", 2)])
def test_precision_and_threads(trained: Path, precision: str, threads: int) -> None:
    result = mtx("translate", trained, "--precision", precision, "--threads", threads, stdin=TEXT)
    assert result.returncode == 0 and result.stdout.count(b"\n") == 4


def test_a_program_gets_each_answer_before_it_writes_the_next_line(trained: Path) -> None:
    process = subprocess.Popen(
        [*MTX, "translate", str(trained)], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin and process.stdout
    whole = mtx("translate", trained, stdin=TEXT).stdout.split(b"\n")
    answers = []
    for line in TEXT.split(b"\n")[:-1]:
        process.stdin.write(line + b"\n")
        answers.append(process.stdout.readline().rstrip(b"\n"))
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0 and answers == whole[:-1]


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_it_waits_for_a_line_is_one_line(trained: Path, number: signal.Signals, code: int) -> None:
    read, write = os.pipe()
    process = spawn("translate", trained, stdin=read)
    os.write(write, b"one two\n")
    assert process.stdout and process.stdout.readline()
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    os.close(write)
    check_error(process.returncode, err.decode(), code)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_somebody_who_types_is_told_how_and_gets_each_line(trained: Path) -> None:
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*MTX, "translate", str(trained)], env={**ENVIRONMENT, "TERM": "dumb"}, stdin=follower,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout and process.stderr
    os.write(leader, b"one two\n")
    assert process.stdout.readline() == mtx("translate", trained, stdin=b"one two\n").stdout
    os.write(leader, b"\x04")
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr.read() == b"type the text, then Ctrl-D\n"
    os.close(leader)
    os.close(follower)


def test_asked_wrongly(refused, trained: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text, short = tmp_path / "text", tmp_path / "short"
    text.write_bytes(TEXT)
    short.write_bytes(b"one\n")
    refused(2, ["--n-best 9", "--beam 9"], "translate", trained, text, "--n-best", 9)
    refused(2, ["--beam", "sample"], "translate", trained, text, "--beam", 2, "--temperature", 1)
    refused(2, ["--beam", "sample"], "translate", trained, text, "--beam", 2, "--mbr", 4)
    refused(2, ["--mbr"], "translate", trained, text, "--mbr", 1)
    no_samples = ["only the engine torch supports random sampling", "--engine torch"]
    refused(2, no_samples, "translate", trained, text, "--mbr", 4, "--engine", "ctranslate2")
    refused(2, ["--seed"], "translate", trained, text, "--seed", 2)
    refused(2, ["int8", "fp32, tf32, bf16"], "translate", trained, text, "--precision", "int8", "--engine", "torch")
    refused(2, ["--engine", "ctranslate2"], "translate", trained, text, "--engine", "onnx")
    refused(1, [str(short), "fewer lines"], "translate", trained, text, "--prefix", short, "-o", tmp_path / "out")
    refused(1, [str(text), "more lines"], "translate", trained, short, "--prefix", text, "-o", tmp_path / "out")
    refused(1, [str(short), "fewer lines"], "logprob", trained, text, short, "-o", tmp_path / "out")
    long = tmp_path / "long"
    long.write_text("one two\n" * 3 + "one " * 500 + "\n")
    refused(1, ["line 'one one one", "subwords"], "logprob", trained, long, long, "-o", tmp_path / "out")
    refused(2, ["no such"], "logprob", tmp_path / "nowhere", text, text)
    for other in (["--prefix", short, "-o", short], ["-o", text]):
        refused(2, [str(other[-1]), "would overwrite it"], "translate", trained, text, *other)
    (tmp_path / "link").symlink_to(short)
    refused(2, ["would overwrite it"], "logprob", trained, text, short, "-o", tmp_path / "link")
    refused(2, ["int8", "fp32, tf32, bf16"], "logprob", trained, text, short, "--precision", "int8")
    assert not (tmp_path / "out").exists() and (text.read_bytes(), short.read_bytes()) == (TEXT, b"one\n")


@pytest.mark.parametrize("value", ["1e308", "inf", "nan", "-1", "1000.1", "9" * 400])
def test_numbers_beyond_what_is_meant(refused, trained: Path, tmp_path: Path, value: str) -> None:  # type: ignore[no-untyped-def]
    text = tmp_path / "text"
    text.write_bytes(TEXT)
    for option in ("--length-penalty", "--temperature", "--top-p", "--epsilon"):
        refused(2, [option, "translate --help"], "translate", trained, text, option, value)
    refused(2, ["--length-penalty"], "logprob", trained, text, text, "--length-penalty", value)
    refused(2, ["--length-penalty"], "evaluate", trained, "--length-penalty", value)


def test_a_file_into_another(refused, trained: Path, run_copy: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text, out, prefix = tmp_path / "text", tmp_path / "out", tmp_path / "prefix"
    text.write_bytes(b"one two\nthree\n")
    page = tmp_path / "page.html"
    page.write_text("<p>one</p>")
    refused(2, ["is a document", "--shard"], "translate", trained, page, "--shard", "1/2", "-o", out)
    refused(2, [f"{tmp_path}: is a directory", "for file in "], "translate", trained, tmp_path, "-o", out)
    refused(2, ["-o FILE"], "translate", trained, text, "--shard", "1/2")
    refused(2, ["--shard :"], "translate", trained, text, "--shard", "", "-o", out)
    whole = mtx("translate", trained, text).stdout
    assert mtx("translate", trained, text, "--shard", "2/2", "-o", out).returncode == 0
    assert out.read_bytes() == whole.split(b"\n")[1] + b"\n"
    os.mkfifo(prefix)
    threading.Thread(target=prefix.write_bytes, args=(b"eins\ndrei\n",)).start()
    assert mtx("translate", trained, text, "--prefix", prefix, "-o", out).returncode == 0
    assert [line.split()[0] for line in out.read_text().splitlines()] == ["eins", "drei"]
    shutil.rmtree(run_copy / "model")
    assert mtx("translate", run_copy, text, "-o", out).returncode == 0
    assert out.read_bytes().count(b"\n") == 2


def test_any_number_of_threads_top_k_and_seed(trained: Path) -> None:
    few = mtx("translate", trained, "--top-k", "5", "--threads", "1", stdin=TEXT)
    many = mtx("translate", trained, "--top-k", "5", "--threads", "9" * 400, stdin=TEXT)
    assert few.returncode == many.returncode == 0 and few.stdout == many.stdout
    largest = mtx("translate", trained, "--top-k", "9" * 400, "--seed", "9" * 400, stdin=TEXT)
    assert largest.returncode == 0 and largest.stdout.count(b"\n") == TEXT.count(b"\n")


def test_more_than_a_search_can_have(refused, run_copy: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_bytes(TEXT)
    largest = {"--beam": 100, "--n-best": 1000, "--mbr": 1000, "--max-length": 10_000, "--batch-tokens": 10_000_000}
    for option, value in largest.items():
        refused(2, [f"'{option}'", f"{value}"], "translate", run_copy, text, "-o", out, option, value + 1)
    refused(2, ["--n-best 100 is more", "help: --beam 100"], "translate", run_copy, text, "-o", out, "--n-best", 100)
    refused(2, ["'--beam'", "100"], "evaluate", run_copy, "--beam", 101)
    assert not out.exists()


@pytest.mark.parametrize(
    "name, kind, hint",
    [
        ("letter.docx", "an office document, an archive or another binary file", "save a spreadsheet as"),
        (
            "memory.tmx",
            "a translation memory (TMX)",
            "to train on its pairs: data.train=FILE, or data.valid or data.test",
        ),
    ],
)
def test_a_file_that_is_not_text(refused, trained: Path, tmp_path: Path, name: str, kind: str, hint: str) -> None:  # type: ignore[no-untyped-def]
    text, letter, out = tmp_path / "text", tmp_path / name, tmp_path / "out"
    text.write_bytes(TEXT)
    letter.write_text('<?xml version="1.0"?>\n<tmx version="1.4">')
    if name == "letter.docx":
        with zipfile.ZipFile(letter, "w") as archive:
            archive.writestr("word/document.xml", "<w:t>Dear Sir</w:t>")
    words = [f"{letter}: expected plain text, got {kind}", f"help: {hint}"]
    if name == "letter.docx":  # the other is a document that is translated as one
        refused(2, words, "translate", trained, letter, "-o", out)
    refused(2, words, "translate", trained, text, "--prefix", letter, "-o", out)
    refused(2, words, "logprob", trained, letter, text, "-o", out)
    refused(2, words, "logprob", trained, text, letter, "-o", out)
    refused(2, words, "evaluate", trained, "--src", letter, "--ref", text)
    refused(2, words, "evaluate", "--hyp", text, "--ref", letter)
    refused(2, words, "evaluate", "--hyp", letter, "--ref", text)
    refused(2, words, "compare", text, text, "--ref", letter)
    assert not out.exists()
    through_stdin = mtx("translate", trained, stdin=letter.read_bytes())
    assert through_stdin.returncode == 2 and through_stdin.stdout == b""
    assert f"stdin: expected lines of text, got {kind}".encode() in through_stdin.stderr


def test_a_target_beyond_the_learned_positions(refused, trained: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    loaded = model_directory.load(trained / "model")
    model = tiny_model(loaded.tokenizer.num_ids, dtype=torch.float32, positions="learned")
    info = {key: value for key, value in loaded.info.items() if key != "model"}
    model_directory.write(tmp_path / "model", model.state_dict(), model.config, loaded.tokenizer, info)
    src, tgt = tmp_path / "src", tmp_path / "tgt"
    src.write_bytes(TEXT)
    tgt.write_text("eins\nzwei\n" + "drei " * 1200 + "\nvier\n")
    refused(1, ["target 'drei drei", "supports 1024"], "logprob", tmp_path / "model", src, tgt, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_text_is_not_translated_to_its_own_end(trained: Path, tmp_path: Path) -> None:
    """It would read its own output without end."""
    text = tmp_path / "text"
    text.write_bytes(TEXT * 1000)
    with text.open("ab") as end:
        process = subprocess.Popen(
            [*MTX, "translate", str(trained), str(text)], env=ENVIRONMENT, stdout=end, stderr=subprocess.PIPE
        )
        _, err = process.communicate(timeout=PATIENCE_S)
    check_error(process.returncode, err.decode(), 2, "the output would be appended to a file that is being read")
    assert text.read_bytes() == TEXT * 1000
