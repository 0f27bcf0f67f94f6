"""A run that has begun refuses a change of a fixed key, with both values, and writes nothing.

A run has begun once anything was made with its configuration; here that is chosen.json alone.
"""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pytest

from mtx.config import settings
from mtx.config.schema import Config, key_names, leaves
from mtx.errors import UsageError
from mtx.report.run_history import improvement, training_history
from mtx.runs.run_directory import check_settings, open_run, quality, read_events, recorded_metric
from mtx.storage import durable
from mtx.storage.run_files import RunLayout

BEGUN = {"tokenizer.normalization": "none",
    "data.src": "en", "data.tgt": "de", "data.hub.name": "owner/name",
    "training.max_steps": "100", "model.architecture": "rnn", "model.num_encoder_layers": "2",
    "model.num_decoder_layers": "2", "model.d_model": "512", "model.d_ff": "2048", "model.num_heads": "8",
    "model.dropout": "0.1",
}  # fmt: skip
# Another value for every key of the run `BEGUN`; a new key belongs into one of the two tables.
FIXED: dict[str, Any] = {
    "seed": 2, "precision": "fp32",
    "data.src": "fr", "data.tgt": "nl", "data.generator": "grammar", "data.train": ("a.tsv",),
    "data.valid": "v.tsv", "data.test": ("t.tsv",), "data.columns": ("2", "1"), "data.max_tokens": 64,
    "data.max_length_ratio": 9.0, "data.directions": ("en-de", "en-fr"), "data.temperature": 2.0,
    "data.hub.name": "owner/other", "data.hub.subset": "de-en", "data.hub.revision": "v2", "data.hub.train": "all",
    "data.hub.valid": "dev", "data.hub.test": ("test",),
    "tokenizer.model": ("other.model",), "tokenizer.vocab_size": 8000, "tokenizer.normalization": "nfc",
    "model.preset": "big", "model.num_encoder_layers": 3, "model.num_decoder_layers": 3, "model.d_model": 256,
    "model.architecture": "decoder", "model.cell": "gru", "model.score": "multiplicative",
    "model.d_ff": 64, "model.num_heads": 4, "model.dropout": 0.2, "model.norm": "pre", "model.activation": "gelu",
    "model.tie": "none", "model.positions": "learned", "model.start": "eos", "model.output_bias": True,
    "training.init_from": "runs/other", "training.batch_tokens": 1000, "training.micro_batch_tokens": 500,
    "training.learning_rate": 0.1, "training.warmup_steps": 5, "training.label_smoothing": 0.2,
    "training.clip_norm": 1.0, "training.cooldown": 0.5, "training.bpe_dropout": 0.2, "training.rdrop_alpha": 3.0,
    "training.copied_target_ratio": 0.5, "training.upper_case": 0.1,
    "training.title_case": 0.1,
    "training.no_end_punctuation": 0.1, "training.typing_errors": 0.1, "training.best_metric": "nll",
    "data.duplicates": "newest", "data.terms": "auto", "training.deterministic": True,
}  # fmt: skip
MAY_CHANGE: dict[str, Any] = {
    "run_dir": "moved", "sizes": "corpus", "undecided": ("model.d_ff",), "device": "cpu", "data.dir": "elsewhere",
    "data.licence": "CC0-1.0", "model.licence": "MIT",
    "training.max_steps": 200, "training.max_epochs": 3, "training.time_limit": 60.0, "training.validate_every": 7,
    "training.checkpoint_every": 7, "training.average_last": 2, "training.patience": 3,
    "training.tensorboard": True, "training.compile": False, "training.shard": True,
    "decoding.beam_size": 1, "decoding.length_penalty": 1.0, "decoding.batch_tokens": 64,
}  # fmt: skip


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> settings.Resolved:
    """The configuration of a run in `run/` of the current directory."""
    monkeypatch.chdir(tmp_path)
    dropped = {"model.architecture"} if "training.shard" in request.node.name else set()  # only a Transformer has it
    values = {key: value for key, value in BEGUN.items() if key not in dropped} | {"run_dir": "run"}
    resolved = settings.resolve(None, [f"{key}={value}" for key, value in values.items()])
    with open_run(resolved.config) as paths:
        paths.chosen.write_text("{}")
    return resolved


def tree(directory: Path) -> dict[str, bytes]:
    """The content of every file."""
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def value_of(config: Config, key: str) -> Any:
    return dict(leaves(config.model_dump()))[key]


def test_every_key_is_in_one_table() -> None:
    assert sorted([*FIXED, *MAY_CHANGE]) == sorted(key_names())


@pytest.mark.parametrize("key", FIXED)
def test_a_fixed_key_is_refused_with_both_values(key: str, begun: settings.Resolved) -> None:
    config = settings.replace_values(begun, {key: FIXED[key]}, "test").config
    old, new = value_of(begun.config, key), value_of(config, key)
    before = tree(Path())
    with pytest.raises(UsageError) as error, open_run(config):
        raise AssertionError("the run was opened")
    assert error.value.exit_code == 2
    assert f"another configuration: {key} is {shown(new)}, it was {shown(old)}" in str(error.value)
    assert old != new and ";" not in str(error.value), "only this key differs"
    assert tree(Path()) == before


def shown(value: object) -> str:
    return repr(",".join(map(str, value)) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("key", MAY_CHANGE)
def test_a_key_that_may_change_takes_its_new_value(
    key: str, begun: settings.Resolved, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = settings.replace_values(begun, {key: MAY_CHANGE[key]}, "test").config
    assert value_of(config, key) != value_of(begun.config, key)
    Path("run").rename(config.run_dir)
    with open_run(config) as paths:
        assert settings.load(paths.config) == config
        told = "".join(message for message in caplog.messages if "continues with changed settings" in message)
        assert (key == "run_dir") == (not told) and (not told or f"{key} is {shown(value_of(config, key))}" in told)
        assert paths.chosen.read_text() == "{}"


def test_a_run_keeps_its_steps(begun: settings.Resolved) -> None:
    """A lower limit would say afterwards that the model was trained for fewer steps than it was."""
    paths = RunLayout(Path("run"))
    paths.checkpoint(20).mkdir(parents=True)
    less, equal = (settings.replace_values(begun, {"training.max_steps": steps}, "test").config for steps in (19, 20))
    with pytest.raises(UsageError, match="max_steps is less than the number of steps"):
        check_settings(paths, less)
    check_settings(paths, equal)


def test_a_run_that_has_not_begun_may_change_every_key(begun: settings.Resolved) -> None:
    Path("run", "chosen.json").unlink()
    with open_run(settings.replace_values(begun, {"seed": 2, "model.d_ff": 64}, "test").config) as paths:
        assert settings.load(paths.config).seed == 2


# Directories that are no run's


def open_at(root: Path, **values: Any) -> None:
    with open_run(Config.model_validate({"run_dir": str(root), **values})):
        pass


@pytest.mark.parametrize(
    "name", ["model/file", "evaluation/test/file", "data/file", "report.html", "metrics.jsonl", ".tmp-old-model/file",
             "run.lock", "status.json", "config.yaml", ".tmp-notes", "chosen.json", "notes"],
)  # fmt: skip
def test_a_directory_with_other_files_is_refused_and_keeps_them(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    if ".tmp-old" in name:
        (tmp_path / "notes").touch()
    before = tree(tmp_path)
    with pytest.raises(UsageError, match=r"run_dir .*: not a run directory, and not empty \([\w./-]+\)") as caught:
        open_at(tmp_path)
    assert caught.value.exit_code == 2 and tree(tmp_path) == before
    assert (tmp_path / "run.lock").exists() == (name == "run.lock")
    if name == "run.lock":
        assert (tmp_path / name).read_text() == "mine"


def test_the_root_directory_is_refused() -> None:
    with pytest.raises(UsageError, match="run_dir /: not a run"):
        open_at(Path("/"))
    assert not Path("/run.lock").exists()


@pytest.mark.parametrize(
    "left", [(), ("run.lock",), ("run.lock", "config.yaml"), ("run.lock", "config.yaml", "status.json")]
)
def test_a_start_that_was_killed_at_any_moment_leaves_a_run(tmp_path: Path, left: tuple[str, ...]) -> None:
    texts = {
        "run.lock": "",
        "config.yaml": settings.dump(Config()),
        "status.json": '{"format": 2, "state": "running", "stage": "preparing", "pid": 1}',
    }
    for name in left:
        (tmp_path / name).write_text(texts[name])
    (tmp_path / ".tmp-0123456789abcdef").mkdir()
    (tmp_path / ".tmp-00000000ffffffff").touch()
    open_at(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "run.lock", *left}


def test_a_fresh_volume_is_empty(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    for name in (".DS_Store", ".nfs000000000123", ".snapshot"):
        (tmp_path / name).touch()
    open_at(tmp_path)
    assert (tmp_path / "lost+found").is_dir() and (tmp_path / ".DS_Store").exists()
    assert (tmp_path / "config.yaml").exists()
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "lost+found").mkdir()
    with pytest.raises(ZeroDivisionError), open_run(Config(run_dir=str(tmp_path / "second"))):
        raise ZeroDivisionError
    assert [path.name for path in (tmp_path / "second").iterdir()] == ["lost+found"]


def test_a_run_may_hold_anything_beside_its_files(begun: settings.Resolved) -> None:
    for name in ("notes", ".tmp-mine"):
        Path("run", name).mkdir()
        Path("run", name, "file").touch()
    for lock in ("process 7 on host since 2026-01-01 00:00:00\n", None):
        Path("run", "run.lock").unlink() if lock is None else Path("run", "run.lock").write_text(lock)
        if lock is None:  # a copied run: its data tell that it is one
            with durable.new_directory(Path("run", "data")) as new:
                (new / "report.json").touch()
        with open_run(begun.config):
            pass
        assert Path("run", "notes", "file").exists() and Path("run", ".tmp-mine", "file").exists()


def test_a_failed_start_removes_only_what_it_made(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(settings.dump(Config()))
    (tmp_path / "run.lock").write_text("process 7 on host since 2026-01-01 00:00:00\n")
    for name in ("status.json", "notes"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(ZeroDivisionError), open_run(Config(run_dir=str(tmp_path))):
        raise ZeroDivisionError
    assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", "run.lock", "status.json", "notes"}
    assert (tmp_path / "status.json").read_text() == "mine"


VALIDATION = {"event": "validation", "step": 5, "bleu": 20.0, "nll": 2.0}


@pytest.mark.parametrize(
    "event, metric",
    [
        ({}, "bleu"),
        ({"chrf": 40.0, "decides": "bleu"}, "bleu"),
        ({"decides": "nll"}, "nll"),
        ({"decides": []}, "bleu"),
        ({"decides": "loss"}, "bleu"),
    ],
)
def test_the_last_validation_says_what_decides(event: dict[str, Any], metric: str) -> None:
    assert recorded_metric([{**VALIDATION, "decides": "nll"}, {**VALIDATION, **event}]) == metric


def test_a_better_validation_has_a_larger_quality() -> None:
    assert quality({"nll": 1.5}, "nll") > quality({"nll": 2.0}, "nll") > quality({"nll": None}, "nll") == -math.inf
    assert quality({"bleu": 2.0}, "bleu") > quality({"bleu": 1.0}, "bleu") > quality({}, "bleu")


def test_events_that_lack_their_numbers_are_left_out(tmp_path: Path) -> None:
    plans = [{"event": "cooldown"}, {"event": "cooldown", "first": "x", "last": 9}]
    good = {"event": "cooldown", "first": 6, "last": 9}
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in [VALIDATION, *plans, good]))
    assert list(read_events(path)) == [VALIDATION, good]
    assert improvement(training_history(read_events(path))) is None
