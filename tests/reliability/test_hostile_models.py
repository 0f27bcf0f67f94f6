"""Models from strangers: whatever a model directory holds, it is refused in one line, and nothing in it runs.

Each trial makes an honest model hostile, gives it a manifest that is right about it, and hands it to a command in a
process that is watched (`trials`). What is done to a model directory stands in `hostile_models`, the rest here.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mtx.cli
import mtx.commands.translator_options
import mtx.decoding.torch_engine
import mtx.training.run  # noqa: F401
from mtx.config import settings
from mtx.config.schema import Config
from mtx.decoding import model_directory
from mtx.errors import DamagedFileError
from mtx.evaluation.test_sets import test_sets_of_runs as sets_of_runs
from mtx.interop.huggingface import export_huggingface
from mtx.runs.run_directory import read_events
from mtx.storage import durable
from mtx.storage.durable import MANIFEST
from mtx.storage.run_files import REPORT, WEIGHTS
from mtx.training import init_from
from tests.exports import lively_bundle, small_tokenizer
from tests.integration.commands import check_error
from tests.reliability import trials
from tests.reliability.conftest import size
from tests.reliability.hostile_changes import Change, huge, put
from tests.reliability.hostile_files import torch_pickle
from tests.reliability.hostile_models import (
    CONFIGS,
    HARMLESS,
    LINKS,
    MANIFESTS,
    NO_MODELS,
    TOKENIZERS,
    WEIGHT_FILES,
)  # fmt: skip
from tests.reliability.hostile_others import (
    CHECKPOINT,
    EXPORTS,
    PUBLISHED,
    RUN_CONFIG,
    RUNS,
    RUNS_ASKED_WRONGLY,
    STARTS,
    Cases,
)  # fmt: skip

MEMORY = 600 << 20  # most that a refusal may take: 16 MB of braces make 400 MB of dictionaries
CANARY = "canary"
Tally = Callable[[str, int, int], None]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)  # a child of a fork has no other threads
    directory = tmp_path_factory.mktemp("honest") / "model"
    lively_bundle(small_tokenizer(), directory, num_encoder_layers=1, num_decoder_layers=1)
    return directory


@pytest.fixture(scope="module")
def honest_run(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has a checkpoint and no model yet."""
    run = tmp_path_factory.mktemp("honest") / "run"
    loaded = model_directory.load(honest)
    tree = {"model": loaded.model.config.model_dump(), "data": {"src": "de", "tgt": "en", "max_tokens": 24}}
    for name in ("data", CHECKPOINT):
        (run / name).mkdir(parents=True)
    (run / RUN_CONFIG).write_text(settings.dump(Config.model_validate(tree)))
    loaded.tokenizer.save(run / "data")
    durable.write_json(run / "data" / REPORT, {})
    shutil.copy(honest / WEIGHTS, run / CHECKPOINT)
    durable.write_json(run / CHECKPOINT / "state.json", {"best_step": 1})
    vouch(run)
    return run


@pytest.fixture(scope="module")
def published(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A MarianMT directory."""
    directory = tmp_path_factory.mktemp("honest") / "published"
    directory.mkdir()
    export_huggingface(model_directory.load(honest), directory)
    return directory


def vouch(directory: Path) -> None:
    """Make every manifest of a model or a run right."""
    for inner in (directory, directory / "data", directory / CHECKPOINT):
        is_one = (inner / MANIFEST).is_file() or (inner / "state.json").is_file() or inner.name == "data"
        if is_one and inner.is_dir():
            durable.write_manifest(inner)


def ended(honest: Path, change: Change, folder: Path, *arguments: str) -> trials.Ended:
    """Run a command on a changed copy, which lies in `folder` under its own name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    hostile = folder / honest.name
    shutil.copytree(honest, hostile)
    if not change(hostile):
        vouch(hostile)
    return trials.run(list(arguments), folder)


def problem(found: trials.Ended, folder: Path, code: int, *words: str) -> str | None:
    """What is wrong with how a trial ended."""
    try:
        assert not found.caught and not (folder / CANARY).exists(), f"it ran or opened: {found.caught}"
        check_error(found.code, found.err, code, *words)
        is_short = len(found.err) < 12_000  # the error, and the same text as the reason why torch translates
        assert found.out == b"" and is_short, f"{found.out!r}, {len(found.err)} characters of messages"
        assert found.memory < MEMORY, f"{found.memory:,} bytes"
    except AssertionError as error:
        return f"code {found.code}, {found.seconds:.1f} s: {str(error)[:500]}"
    return None


def share(cases: dict[str, Any]) -> dict[str, Any]:
    """Every second of some cases; all of them at night."""
    return dict(list(cases.items())[:: size(2, 1)])


def check(problems: dict[str, str | None], what: str, tally: Tally) -> None:
    """Count what held; all that did not in one failure."""
    wrong = {name: text for name, text in problems.items() if text is not None}
    assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())
    tally(what, len(problems), len(problems))


@pytest.mark.parametrize(
    "what, cases, code",
    [
        ("weights", WEIGHT_FILES, 1), ("config.json", CONFIGS, 1), ("tokenizers", TOKENIZERS, 1),
        ("manifests", MANIFESTS, 1), ("links and pipes", LINKS, 1), ("what is no model", NO_MODELS, 2),
    ],
)  # fmt: skip
def test_a_hostile_model_is_refused(
    honest: Path, tmp_path: Path, what: str, cases: Cases, code: int, tally: Tally
) -> None:
    folder = tmp_path / "trial"
    found = {
        name: problem(ended(honest, change, folder, "translate", "model"), folder, code, word)
        for name, (change, word) in share(cases).items()
    }
    check(found, f"hostile models: {what}", tally)


def test_what_is_harmless_is_not_read(honest: Path, tmp_path: Path, tally: Tally) -> None:
    folder = tmp_path / "trial"
    problems = {}
    for name, change in share(HARMLESS).items():
        found = ended(honest, change, folder, "translate", "model")
        is_good = (found.code, found.err, found.out.count(b"\n"), found.caught) == (0, "", 1, "")
        problems[name] = None if is_good and not (folder / CANARY).exists() else str(found)
    check(problems, "hostile models: harmless files", tally)


def test_a_hostile_run_is_refused(honest_run: Path, tmp_path: Path, tally: Tally) -> None:
    folder = tmp_path / "trial"
    honest = ended(honest_run, lambda run: None, folder, "translate", "run")
    assert honest.code == 0, honest
    problems = {}
    for name, (change, word) in share(RUNS).items():
        found = ended(honest_run, change, folder, "translate", "run")
        problems[name] = problem(found, folder, 2 if name in RUNS_ASKED_WRONGLY else 1, word)
    for command in ("config", "status", "train"):
        found = ended(honest_run, RUNS["a tag"][0], folder, command, "run")
        problems[f"{command}: a tag"] = problem(found, folder, 2, "expected a section")
    check(problems, "hostile runs", tally)


def test_a_hostile_published_model_is_not_imported(published: Path, tmp_path: Path, tally: Tally) -> None:
    folder = tmp_path / "trial"
    honest = ended(published, lambda directory: None, folder, "import", "published", "-o", "new")
    assert honest.code == 0, honest
    problems = {}
    for name, (change, word) in share(PUBLISHED).items():
        found = ended(published, change, folder, "import", "published", "-o", "new")
        problems[name] = problem(found, folder, 1, word)
        if problems[name] is None and (folder / "new").exists():
            problems[name] = "something was written"

    def only_pickle(directory: Path) -> None:
        (directory / WEIGHTS).unlink()
        put("pytorch_model.bin", torch_pickle())(directory)

    found = ended(published, only_pickle, folder, "import", "published", "-o", "new")
    problems["nothing but pickle"] = problem(found, folder, 2, "pickle files are unsafe")
    check(problems, "hostile published models", tally)


def test_the_links_of_a_hub_cache_are_read(published: Path, tmp_path: Path) -> None:
    cached = tmp_path / "models--x"
    (cached / "snapshots" / "1").mkdir(parents=True)
    shutil.copytree(published, cached / "blobs")
    for path in published.iterdir():
        (cached / "snapshots" / "1" / path.name).symlink_to(f"../../blobs/{path.name}")
    found = trials.run(["import", "models--x/snapshots/1", "-o", "new"], tmp_path)
    assert found.code == 0, found


def test_no_run_starts_from_a_hostile_model(honest: Path, tmp_path: Path, tally: Tally) -> None:
    (tmp_path / "corpus.tsv").write_text("".join(f"ab cd{i}\tcd ab{i}\n" for i in range(60)))
    problems = {}
    for name, (change, word) in share(STARTS).items():
        folder = tmp_path / "trial"

        def with_text(model: Path, change: Change = change) -> Any:
            shutil.copy(tmp_path / "corpus.tsv", model.parent)
            return change(model)

        arguments = ["train", "data.train=corpus.tsv", "training.init_from=model", "run_dir=new"]
        problems[name] = problem(ended(honest, with_text, folder, *arguments), folder, 1, word)
    check(problems, "hostile models to start from", tally)


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.model", "tokenizer.json"])
def test_no_file_is_read_beyond_what_it_can_be(honest: Path, tmp_path: Path, name: str, tally: Tally) -> None:
    folder, problems = tmp_path / "trial", {}
    for arguments in (("translate", "model"), ("export", "model", "--to", "huggingface", "-o", "new")):
        found = ended(honest, huge(name), folder, *arguments)
        problems[arguments[0]] = problem(found, folder, 1, name, "expected at most")
        with pytest.raises(DamagedFileError, match="expected at most"):
            init_from.describe(str(folder / "model"))
    check(problems, "files of 10 TB in a model", tally)


def test_no_file_of_a_run_is_read_beyond_what_it_can_be(honest_run: Path, tmp_path: Path, tally: Tally) -> None:
    folder = tmp_path / "trial"
    export = ("export", "run", "--to", "huggingface", "-o", "new")
    cases = {
        "checkpoint": (f"{CHECKPOINT}/{WEIGHTS}", ("translate", "run")),
        "tokenizer": ("data/tokenizer.model", ("translate", "run")),
        "validation": ("data/valid.arrow", export),
    }
    problems = {}
    for name, (path, arguments) in cases.items():
        found = ended(honest_run, huge(path), folder, *arguments)
        problems[name] = problem(found, folder, 1, "expected at most")
    check(problems, "files of 10 TB in a run", tally)
    run = folder / "run"
    put("metrics.jsonl", b"x")(run)
    os.truncate(run / "metrics.jsonl", 10 << 40)
    with pytest.raises(DamagedFileError, match="metrics.jsonl: .* expected at most"):
        list(read_events(run / "metrics.jsonl"))
    (run / "evaluation" / "test").mkdir(parents=True)
    for text in ("src.txt", "ref.txt", "hyp.txt"):
        (run / "evaluation" / "test" / text).write_text("a\n")
    huge("hyp.txt")(run / "evaluation" / "test")
    with pytest.raises(DamagedFileError, match="hyp.txt: .* expected at most"):
        sets_of_runs([run])


def test_what_is_not_needed_is_not_read(honest: Path, tmp_path: Path) -> None:
    found = ended(honest, huge("extra.bin"), tmp_path / "trial", "translate", "model")
    assert (found.code, found.err) == (0, ""), found


# --- CTranslate2 ---


@pytest.fixture(scope="module")
def exported(honest: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pytest.importorskip("ctranslate2")
    from mtx.decoding.ctranslate2_writer import write_ctranslate2

    directory = tmp_path_factory.mktemp("honest") / "export"
    write_ctranslate2(model_directory.load(honest), directory, "int8")
    yield directory


def test_a_hostile_export_is_refused(exported: Path, tmp_path: Path, tally: Tally) -> None:
    folder = tmp_path / "trial"
    arguments = ["translate", "export", "--engine", "ctranslate2", "--threads", "1"]
    honest = ended(exported, lambda directory: None, folder, *arguments)
    assert honest.code == 0, honest
    problems = {
        name: problem(ended(exported, change, folder, *arguments), folder, 1, word)
        for name, (change, word) in share(EXPORTS).items()
    }
    check(problems, "hostile CTranslate2 exports", tally)
