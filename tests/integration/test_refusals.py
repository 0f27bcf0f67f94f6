"""Asked wrongly: one `error:` line, the right exit code, nothing started, nothing lost, nothing half-written."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mtx import cli
from mtx.commands.command_line import open_output, resolve_output
from tests.integration.commands import TINY, check_error, flip_bit, mtx, tree, write_tsv

Refused = Callable[..., None]
DIGITS = ["data.train=digits.tsv", "data.src=en", "data.tgt=de"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "arguments, words",
    [
        (
            ["traning.max_steps=1", "model.dropout=x", "data.max_tokens=4"],
            ["traning", "model.dropout", "data.max_tokens"],
        ),
        ([], ["nothing to train on"]),
        (["missing.jsonl"], ["missing.jsonl: no such file"]),
        (["digits.tsv", "demo"], ["expected one CONFIG, got digits.tsv and demo"]),
        (["digits.tsv", "data.train=a.tsv"], ["expected one of them", "data.train=digits.tsv,OTHER"]),
        (
            ["digits.tsv"],
            ["digits.tsv: cannot tell its two languages", "mtx train ./digits.tsv data.src=CODE data.tgt=CODE"],
        ),
        ([*DIGITS, "run_dir=digits.tsv"], ["run_dir digits.tsv"]),
        ([*DIGITS, "run_dir=digits.tsv/run"], ["run_dir digits.tsv/run"]),
        ([*DIGITS, "run_dir=."], ["run_dir .: not a run directory, and not empty (digits.tsv)"]),
        (["data.train=nothing.tsv", "run_dir=new/deep/run"], ["nothing.tsv"]),
        (["data.train=nothing.tsv", "run_dir=empty"], ["nothing.tsv"]),
    ],
)
def test_train_refuses(arguments: list[str], words: list[str], here: Path, refused: Refused) -> None:
    write_tsv(here / "digits.tsv", range(100, 120))
    (here / "empty").mkdir()
    before = tree(here)
    refused(2, words, "train", *arguments)
    assert tree(here) == before and {path.name for path in here.iterdir()} == {"digits.tsv", "empty"}


@pytest.mark.parametrize(
    "command, words",
    [
        (["train", "data.train=cut.tsv.gz"], ["cut.tsv.gz", "truncated"]),
        (["train", "data.train=columns.tsv"], ["columns.tsv:2"]),
        (["train", "data.train=digits.tsv", "tokenizer.vocab_size=5000"], ["vocab_size 5000", "maximum is"]),
        (["train", "memory.tmx"], ["memory.tmx:1: damaged XML: no element found"]),
        (["prepare", "own-text", "data.train=memory.tmx"], ["memory.tmx:1: damaged XML"]),
    ],
)
def test_text_that_cannot_be_used(command: list[str], words: list[str], here: Path, refused: Refused) -> None:
    digits = write_tsv(here / "digits.tsv", range(100, 2000)).read_bytes()
    (here / "cut.tsv.gz").write_bytes(gzip.compress(digits)[:-600])
    (here / "columns.tsv").write_text("a\tb\nno tab\n")
    (here / "memory.tmx").write_text("<tmx>")
    before = tree(here)
    refused(1, words, command[0], *TINY, *command[1:])
    assert tree(here) == before and not (here / "runs").exists()


def test_a_run_with_another_configuration(run_copy: Path, settings: list[str], refused: Refused) -> None:
    before = tree(run_copy)
    words = ["model.d_ff is 128, it was 64", "seed", "another run_dir"]
    refused(2, words, "train", *settings, f"run_dir={run_copy}", "model.d_ff=128", "seed=5")
    refused(2, ["model.d_ff is 128, it was 64"], "train", run_copy, "model.d_ff=128")
    assert tree(run_copy) == before


def test_a_run_whose_data_is_gone(run_copy: Path, settings: list[str], refused: Refused) -> None:
    shutil.rmtree(run_copy / "data")
    arguments = ["train", *settings, f"run_dir={run_copy}"]
    before = tree(run_copy)
    refused(2, ["model.d_ff is 128, it was 64"], *arguments, "model.d_ff=128")
    assert tree(run_copy) == before
    refused(1, [f"{run_copy / 'data'}: the prepared data", "another run_dir"], *arguments, "training.max_steps=44")
    assert set(tree(run_copy)) == set(before)
    assert mtx(*arguments).returncode == 0  # it is finished
    (run_copy / "chosen.json").unlink()
    refused(2, ["model.d_ff is 128, it was 64"], *arguments, "model.d_ff=128")
    assert (run_copy / "config.yaml").exists()


def test_a_damaged_checkpoint_costs_what_came_after_the_one_before(run_copy: Path, settings: list[str]) -> None:
    newest = run_copy / "checkpoints" / "step-00000040"
    flip_bit(newest / "model.safetensors")
    shutil.rmtree(run_copy / "model")
    again = mtx("train", *settings, f"run_dir={run_copy}", "training.max_steps=41")
    assert again.returncode == 0
    for words in (
        b"warning: ",
        b"step-00000040/model.safetensors: damaged file",
        b"resuming from step 36 instead",
    ):
        assert words in again.stderr


def test_no_whole_checkpoint(run_copy: Path, settings: list[str]) -> None:
    for path in run_copy.glob("checkpoints/*/model.safetensors"):
        flip_bit(path)
    shutil.rmtree(run_copy / "model")
    before = tree(run_copy)
    result = mtx("train", *settings, f"run_dir={run_copy}", "training.max_steps=41")
    check_error(
        result.returncode, result.stderr.decode(), 1, "step-00000040/model.safetensors", "all checkpoints of this"
    )
    after = tree(run_copy)
    assert json.loads(after.pop("status.json"))["state"] == "failed"
    del before["config.yaml"], after["config.yaml"], before["status.json"]
    assert result.stdout == b"" and after == before


@pytest.mark.parametrize("name", ["data/train.arrow", "data/tokenizer.model", "chosen.json"])
def test_damaged_data(name: str, run_copy: Path, refused: Refused) -> None:
    flip_bit(run_copy / name, 3)
    refused(1, [name], "train", run_copy, "training.max_steps=41")


def test_a_damaged_model_of_a_finished_run_is_written_again(run_copy: Path, trained: Path) -> None:
    flip_bit(run_copy / "model" / "model.safetensors")
    result = mtx("train", run_copy)
    assert result.returncode == 0 and b"writing the model again" in result.stderr
    assert tree(run_copy / "model") == tree(trained / "model")


@pytest.mark.parametrize(
    "error, code, words",
    [
        (MemoryError(), 1, ["out of memory", "close other programs", "--batch-tokens"]),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), 1, ["out of memory", "--batch-tokens"]),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, ["out of memory"]),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            1,
            ["out of memory"],
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), 1, ["out of memory"]),
        (OSError(28, "No space left on device", "x"), 1, ["x: No space left on device"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
    ],
)
def test_what_a_command_can_raise(
    error: BaseException, code: int, words: list[str], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: list[str]) -> None:
        raise error

    monkeypatch.setattr("mtx.commands.train.resolve", fail)
    refused(code, words, "train")


def test_an_error_of_mtx_itself_is_a_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mtx.commands.train.resolve", lambda arguments: {}["missing"])
    assert cli.run(["train"]) == 1
    assert capsys.readouterr().err.startswith("error: mtx itself failed: KeyError: 'missing'\nhelp: ")


def test_what_is_no_run_has_no_status(refused: Refused, here: Path) -> None:
    refused(2, ["nowhere", "not a run directory"], "status", "nowhere")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["single.txt"], ["single.txt: expected sentence pairs, got single sentences", "name both of two files"]),
        (["a.en", "a.en"], ["a.en and a.en are in one language, en"]),
        (
            ["a.en", "single.txt"],
            ["a.en: expected sentence pairs", "/dev/null ./single.txt > pairs.txt", "mtx train pairs.txt"],
        ),
        (
            ["data.train=tab.en,a.de"],
            ["tab.en: expected sentence pairs", "paste -d '|' ./tab.en /dev/null /dev/null ./a.de > pairs.txt"],
        ),
        (
            ["data.train=single.txt"],
            ["single.txt: expected sentence pairs", "./single.txt /dev/null /dev/null ./OTHER"],
        ),
    ],
)
def test_single_sentences_are_answered_with_how_to_pair_them(
    arguments: list[str], words: list[str], here: Path, refused: Refused
) -> None:
    for name in ("a.en", "a.de", "single.txt"):
        (here / name).write_text("one side\n")
    (here / "tab.en").write_text("one\tside\n")
    refused(2, words, "train", *arguments)


def test_an_export_is_not_written_over_a_link_that_leads_nowhere(trained: Path, here: Path, refused: Refused) -> None:
    (here / "link").symlink_to("nowhere")
    refused(2, ["link: not an earlier export or import"], "export", trained, "--to", "huggingface", "-o", "link")


def test_a_page_of_somebody_else_is_not_replaced(trained: Path, here: Path, refused: Refused) -> None:
    for name, command in (
        ("report.html", ["report", trained, trained]),
        ("attention.html", ["attention", trained, "a"]),
    ):
        page = "<!doctype html>mine" + " " * 1000 + '<meta name="generator" content="mtx">'
        (here / name).write_text(page)
        refused(2, [f"{name}: was not written by mtx"], *command)
        assert (here / name).read_text() == page


def test_an_output_that_is_named_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path.resolve() / "large.txt"
    file.write_text("mine")
    monkeypatch.setattr(Path, "read_bytes", pytest.fail)
    assert resolve_output(file) == file


@pytest.mark.parametrize("name", [
    "model/model.safetensors", "model/manifest.json", "config.yaml", "chosen.json", "run.lock", "metrics.jsonl",
    "status.json", "data/train.arrow", "evaluation/test/hyp.txt",
])  # fmt: skip
def test_an_output_never_replaces_what_mtx_reads_again(refused: Refused, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(Path(__file__).parents[1] / "compat" / "format-2" / "run", tmp_path / "run"))
    text = run / "evaluation" / "test" / "src.txt"
    before = tree(run)
    words = [name.rpartition("/")[2], "mtx needs this file"]
    refused(2, words, "translate", run, text, "-o", run / name)
    (tmp_path / "link").symlink_to(run / name)
    refused(2, words, "logprob", run, text, text, "-o", tmp_path / "link")
    refused(2, words, "report", run, "-o", run / name)
    assert tree(run) == before
    with open_output(run / "report.html") as file:
        file.write(b"new")
    with open_output(run / "model" / "mine.txt") as file:
        file.write(b"new")
