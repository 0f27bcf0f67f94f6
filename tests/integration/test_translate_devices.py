"""`--devices` of `mtx translate` and `mtx evaluate`: the same lines in the same order; a dead worker ends all."""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from mtx.decoding import many_devices
from mtx.decoding.dealing import collect, deal
from mtx.decoding.many_devices import ManyDevices
from mtx.decoding.torch_engine import TorchTranslator
from mtx.errors import MtxError, UsageError
from tests.integration.commands import check_error, have_ended, mtx, pairs, start, wait_until

pytestmark = [
    pytest.mark.seconds, pytest.mark.skipif(os.name != "posix", reason="workers need a POSIX system")
]  # fmt: skip
TWO = ["--device", "cpu", "--devices", "2", "--beam", "1", "--max-length", "8"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4,300 lines of one to five words, so that a block of two devices ends within."""
    path, rng = tmp_path_factory.mktemp("text") / "in.txt", random.Random(1)
    lines = [pairs(range(n, n + 1))[0][0] for n in (rng.randrange(10 ** rng.randint(1, 5)) for _ in range(4300))]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def children(pid: int) -> list[int]:
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def two(model: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> ManyDevices:
    """A translator on two devices that never thinks that one will do."""
    monkeypatch.setattr(many_devices, "_FEW", 0)
    monkeypatch.setattr(many_devices, "_LEAST", 1)
    values = {"threads": 1, **settings}
    return ManyDevices(TorchTranslator.load(model, device="cpu", **values), ["cpu", "cpu"], model, values)


def test_two_devices_translate_as_one_does(trained: Path, text: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "two"
    assert mtx("translate", trained, text, "-o", one, "--json", *TWO[:2], *TWO[4:]).returncode == 0
    process = start("translate", trained, text, "-o", other, "--json", *TWO)
    workers = set[int]()
    while process.poll() is None:
        workers.update(children(process.pid))
        time.sleep(0.01)
    assert process.returncode == 0, process.communicate()
    found, expected = ([json.loads(line) for line in path.read_text().splitlines()] for path in (other, one))
    assert [line["text"] for line in found] == [line["text"] for line in expected] and len(found) == 4300
    assert all(abs(a["score"] - b["score"]) < 1e-4 for a, b in zip(found, expected, strict=True))
    assert len(workers) == 1 and have_ended(workers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_worker_and_ctrl_c_end_all(number: signal.Signals, trained: Path, text: Path, tmp_path: Path) -> None:
    long, output = tmp_path / "long", tmp_path / "out"
    long.write_bytes(text.read_bytes() * 40)
    process = start("translate", trained, long, "-o", output, *TWO)
    wait_until(lambda: children(process.pid), process)
    worker = children(process.pid)[0]
    os.kill(worker if number == signal.SIGKILL else process.pid, number)
    _, err = process.communicate(timeout=90)
    words = ["device 1", "killed by SIGKILL"] if number == signal.SIGKILL else ["interrupted"]
    check_error(process.returncode, err.decode(), 1 if number == signal.SIGKILL else 130, *words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long"]
    assert have_ended([worker])


def test_beams_prefixes_and_samples_are_those_of_one_device(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtx.decoding.options import Sampling

    lines = ["one two three", "", "four", "five six seven eight nine", "zero"]
    for settings in ({"beam_size": 3}, {"sampling": Sampling(2)}):
        dealt = two(trained, monkeypatch, **settings)
        alone = TorchTranslator.load(trained, device="cpu", **settings)
        prefixes = ["", "null", "vier", "", "eins"]
        found, expected = dealt.hypotheses(lines, prefixes), alone.hypotheses(lines, prefixes)
        assert [[h.text for h in line] for line in found] == [[h.text for h in line] for line in expected]


def test_an_error_of_a_worker_has_its_device_and_workers_start_again(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["one two", "three", "four five", "six"]
    dealt = two(trained, monkeypatch)
    expected = dealt.translate(lines)
    (worker,) = dealt._workers
    worker._process.kill()
    with pytest.raises(MtxError, match="the process of device 1 was killed by SIGKILL"):
        dealt.translate(lines)
    assert dealt.translate(lines) == expected
    dealt._load = (trained / "absent", dealt._load[1])
    with pytest.raises(MtxError, match="device cpu: .*absent: no such model"):
        dealt.translate(lines)
    assert not dealt._workers


def test_few_lines_stay_on_one_device(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dealt = two(trained, monkeypatch)
    monkeypatch.setattr(many_devices, "_FEW", 4)
    dealt.translate(["one"] * 4)
    assert not dealt._workers
    monkeypatch.setattr(many_devices, "_LEAST", 2)
    dealt.translate(["one"] * 3)
    assert not dealt._workers
    dealt.translate(["one"] * 4)
    assert len(dealt._workers) == 1


def test_evaluate_finds_the_same_scores(trained: Path, text: Path, tmp_path: Path) -> None:
    files = ["--src", text, "--ref", text, "--beam", "1", "--device", "cpu", "--json"]
    one, other = mtx("evaluate", trained, *files), mtx("evaluate", trained, *files, "--devices", "2")
    assert one.returncode == other.returncode == 0, other.stderr
    assert one.stdout == other.stdout


@pytest.mark.parametrize("options, words", [
    (["--devices", "2", "--engine", "ctranslate2"], ["--devices", "torch"]),
    (["--devices", "all", "--device", "cpu"], ["--devices all", "CUDA"]),
    (["--devices", "none"], ["--devices none", "a number"]),
])  # fmt: skip
def test_what_devices_cannot_be(options: list[str], words: list[str], trained: Path) -> None:
    done = mtx("translate", trained, *options, stdin=b"one\n")
    check_error(done.returncode, done.stderr.decode(), UsageError.exit_code, *words)


def test_sentences_are_dealt_by_length_and_collected_in_order() -> None:
    lengths = [3, 9, 1, 9, 4, 4, 2]
    rows = deal(lengths, 3)
    assert sorted(sum(rows, [])) == list(range(7)) and deal(lengths, 1) == [list(range(7))]
    sums = [sum(lengths[row] for row in part) for part in rows]
    assert max(sums) - min(sums) <= max(lengths)
    assert collect([[lengths[row] for row in part] for part in rows], rows) == lengths
