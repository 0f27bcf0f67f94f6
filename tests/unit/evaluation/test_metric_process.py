"""A program that computes a metric answers with a number for each row, or one error names what it did instead."""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mtx.errors import MtxError, UsageError
from mtx.evaluation import metric_process
from mtx.evaluation.metric_process import CommandMetric, choose_commands, score_by_command, stored_entries
from mtx.scoring.metrics import TestSet
from mtx.storage import durable
from tests.integration.commands import have_ended, spawn, wait_until

Program = Callable[[str], CommandMetric]
TEXT = TestSet("heldout", "de", ["a\n", "bé", "c"], ["A", "B", "C"], translations=["Aa", "Bbb", "Ö"])
FOR_EACH_ROW = "import json, sys\nfor line in sys.stdin:\n    row = json.loads(line)\n    "


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a metric of the code of a program."""

    def make(code: str) -> CommandMetric:
        (tmp_path / "program.py").write_text(code, encoding="utf-8")
        return CommandMetric("the program", [sys.executable, str(tmp_path / "program.py")])

    return make


def test_the_numbers_are_stored_in_the_order_of_the_rows_under_the_name_in_the_signature(program: Program) -> None:
    name, entry = score_by_command(program("print('# length|v:1')\n" + FOR_EACH_ROW + "print(len(row['hyp']))"), TEXT)
    rows = [{"src": "a", "hyp": "Aa", "ref": "A"}, {"src": "bé", "hyp": "Bbb", "ref": "B"}]
    rows.append({"src": "c", "hyp": "Ö", "ref": "C"})
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()
    low, high = entry.pop("interval")
    assert low < 2 < high and name == "length"
    assert entry == {
        "score": 2, "signature": "length|v:1", "command": "the program", "text": hashlib.sha256(text).hexdigest(),
        "sentences": [2, 3, 1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("printed", "name", "signature"),
    [
        ("1\n2\n3\n", "the program", "the program"),
        ("1\n2\n3", "the program", "the program"),
        ("#  a b \x1b[1m|c\n1e0\n 2\n3\n", r"a b \x1b[1m", r"a b \x1b[1m|c"),
        (f"# {'n' * 50}\n1\n2\n3\n", "n" * 50, "n" * 50),
    ],
)
def test_a_signature_is_the_first_line_or_the_command(
    program: Program, printed: str, name: str, signature: str
) -> None:
    found, entry = score_by_command(program(f"import sys\nsys.stdout.write({printed!r})"), TEXT)
    assert (found, entry["signature"], entry["sentences"]) == (name, signature, [1, 2, 3])


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("", "expected 3 numbers, got 0"),
        ("print('# s')", "expected 3 numbers, got 0"),
        ("print('1\\n2')", "expected 3 numbers, got 2"),
        ("print('1\\n2\\n3\\n4')", "expected 3 numbers, got more"),
        ("while True: print(1)", "expected 3 numbers, got more"),
        ("while True: print('1' * 10_000, end='')", "writes a line of more than 1,048,576 bytes"),
        ("print('1\\ngood\\n3')", "answer 2: expected a number, got 'good'"),
        ("print('1\\n\\n3')", "answer 2: expected a number, got ''"),
        ("print('nan\\n2\\n3')", "answer 1: expected a number, got 'nan'"),
        ("print('1\\n2\\n1e999')", "answer 3: expected a number, got '1e999'"),
        ("print('1\\n2\\n\\x1b[31m3')", r"answer 3: expected a number, got '\x1b[31m3'"),
        ("print('1\\n# late\\n3')", "answer 2: expected a number, got '# late'"),
        ("print('1 # 5\\n1\\n2\\n3')", "expected 3 numbers, got more"),
        ("print('# chrF2|v:1\\n1\\n2\\n3')", "its name is 'chrF2'"),
        ("print('# |v:1\\n1\\n2\\n3')", "its name is ''"),
        ("import sys; print('1\\n2\\n3'); sys.exit('no model\\n')", "ended with exit code 1: no model"),
        ("import sys; sys.stderr.write('x' * 10**7 + '\\nat\\x07 last'); sys.exit(3)", r"exit code 3: at\x07 last"),
        ("import os; os.kill(os.getpid(), 9)", "was killed by signal 9"),
    ],
)
def test_any_other_answer_is_an_error(program: Program, code: str, problem: str) -> None:
    with pytest.raises(MtxError) as raised:
        score_by_command(program(code), TEXT)
    assert str(raised.value).startswith("the program: ") and problem in str(raised.value)


NEVER_ENDS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], stdout=subprocess.DEVNULL)
with open(os.path.join(os.path.dirname(__file__), "pids"), "w") as file:
    file.write(f"{os.getpid()} {child.pid} ")
CODE
time.sleep(1000)
"""


@pytest.mark.parametrize(
    ("first_s", "code"),
    [
        (1.0, ""),
        (1.0, "sys.stdout.write('1'); sys.stdout.flush()"),
        (1000.0, "print(1, flush=True)"),
        (1000.0, "print('1\\n2\\n3', flush=True); os.close(1)"),
    ],
)
def test_a_program_that_does_not_answer_in_time_is_ended_with_all_that_it_started(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first_s: float, code: str
) -> None:
    monkeypatch.setattr(metric_process, "_FIRST_ANSWER_S", first_s)
    monkeypatch.setattr(metric_process, "_NEXT_ANSWER_S", 1.0)
    with pytest.raises(MtxError, match="^the program: takes too long to answer$"):
        score_by_command(program(NEVER_ENDS.replace("CODE", code)), TEXT)
    if first_s > 1:  # otherwise it may not have got so far
        assert have_ended([*map(int, (tmp_path / "pids").read_text().split())])


@pytest.mark.seconds
def test_no_program_is_left_when_mtx_is_terminated(program: Program, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\n")
    files = [word for option in ("--hyp", "--ref", "--src") for word in (option, tmp_path / "text")]
    command = shlex.join(program(NEVER_ENDS.replace("CODE", "")).words)
    process = spawn("evaluate", *files, "--metric-command", command)
    pids = tmp_path / "pids"
    wait_until(lambda: pids.exists() and pids.read_text().endswith(" "), process)
    process.terminate()
    assert process.wait() == 128 + 15
    assert have_ended([*map(int, pids.read_text().split())])


@pytest.mark.parametrize(
    ("metrics", "command", "has_source", "problem"),
    [
        (["bleu", "comer"], None, True, "-m comer: expected bleu, chrf, chrf++, ter, comet or comet:MODEL"),
        ([], "", True, "'': command not found"),
        ([], "no-such-program x", True, "'no-such-program x': command not found"),
        ([], f'{sys.executable} "x', True, "No closing quotation"),
        ([], sys.executable, False, "needs the source text"),
    ],
)
def test_wrong_requests_are_refused(metrics: list[str], command: str | None, has_source: bool, problem: str) -> None:
    with pytest.raises(UsageError) as raised:
        choose_commands(metrics, None, command, has_source)
    assert problem in str(raised.value)


def test_comet_runs_in_its_own_python() -> None:
    metrics = choose_commands(["comet", "bleu", "comet:a/b"], sys.executable, None, True)
    assert [metric.command for metric in metrics] == ["comet:Unbabel/wmt22-comet-da", "comet:a/b"]
    assert [metric.words[0] for metric in metrics] == [sys.executable] * 2
    assert [metric.words[-1] for metric in metrics] == ["Unbabel/wmt22-comet-da", "a/b"]
    with pytest.raises(UsageError, match="metric-python PATH") as raised:
        choose_commands(["comet"], None, None, True)
    assert raised.value.help and "'setuptools<81'" in raised.value.help
    with pytest.raises(UsageError, match="not an executable file"):
        choose_commands(["comet"], Path("no/such/python"), None, True)


def test_what_is_said_before(program: Program, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    several = TestSet("t", "de", ["a"], ["A"], [["B"]], translations=["A"])
    words = program("print(1)").words
    score_by_command(CommandMetric("comet:x", words, bytes_per_s=1), several)
    expected = "t: scoring 1 sentence by comet:x against the first reference; without a GPU about 37 s on one core"
    assert caplog.messages == [expected]


def test_stored_numbers_are_those_of_the_same_text(program: Program, tmp_path: Path) -> None:
    directory = tmp_path / "heldout"
    assert stored_entries(directory, TEXT) == {}
    name, entry = score_by_command(program("print('1\\n2\\n3')"), TEXT)
    with durable.new_directory(directory) as new:
        durable.write_json(new / "scores.json", {"heldout": {"bleu": {"score": 1.0}, name: entry}})
    [(stored_name, stored)] = stored_entries(directory, TEXT).items()
    assert (stored_name, stored["sentences"]) == (name, entry["sentences"])
    assert stored_entries(directory, TEXT.translated(["Aa", "Bbb", "C"], "none")) == {}
    (directory / "scores.json").write_text("{}")
    assert stored_entries(directory, TEXT) == {}
