"""Text becomes typed values, presets fill their keys, and values that contradict each other are refused."""

from pathlib import Path

import pytest

from mtx.config.schema import PRESETS, Config, TrainText
from mtx.config.settings import differences, resolve
from tests.unit.config.helpers import problems, value_of, write


def test_differences_name_each_key_with_its_old_and_new_value() -> None:
    old = resolve("multi30k-en-de", []).config
    new = resolve("multi30k-en-de", ["seed=2", "data.hub=null", "training.max_steps=9"]).config
    changes = {key: (before, after) for key, before, after in differences(old, new)}
    assert changes["seed"] == (1, 2)
    assert changes["training.max_steps"] == (old.training.max_steps, 9)
    assert changes["data.hub.name"] == ("bentrevett/multi30k", None)
    assert differences(old, old) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_the_keys_that_are_not_set(preset: str) -> None:
    model = resolve(None, [f"model.preset={preset}"]).config.model
    assert {key: getattr(model, key) for key in PRESETS["base"]} == PRESETS[preset]
    model = resolve(None, ["model.dropout=0.25", f"model.preset={preset}"]).config.model
    assert (model.dropout, model.d_model) == (0.25, PRESETS[preset]["d_model"])


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("training.learning_rate", "1e-4", 0.0001),
        ("training.learning_rate", "null", None),
        ("training.learning_rate", "", None),
        ("training.init_from", "models/en-de", "models/en-de"),
        ("training.init_from", "", None),
        ("training.max_steps", "12", 12),
        ("training.micro_batch_tokens", "auto", "auto"),
        ("training.micro_batch_tokens", "4096", 4096),
        ("tokenizer.vocab_size", "auto", "auto"),
        ("model.output_bias", "true", True),
        ("training.time_limit", "2h", 7200.0),
        ("training.time_limit", "90m", 5400.0),
        ("training.time_limit", "1h30m", 5400.0),
        ("training.time_limit", "600s", 600.0),
        ("training.time_limit", "1.5s", 1.5),
        ("training.time_limit", "~", None),
        ("device", "cuda:1", "cuda:1"),
        ("data.src", "no", "no"),
        ("data.tgt", "null", "null"),
        ("data.dir", r"C:\data\new", r"C:\data\new"),
        ("data.dir", "runs/2026-01-02 12:30", "runs/2026-01-02 12:30"),
        ("data.dir", "a=b=c", "a=b=c"),
        ("data.dir", "null", None),
        ("data.valid", "12:30", "12:30"),
        ("data.valid", "", None),
        ("data.test", "a, b,c=d", ("a", "b", "c=d")),
        ("data.test", "[a, train[:5]]", ("a", "train[:5]")),
        *(("data.test", nothing, ()) for nothing in ("null", "~", "[]", "[ ]", "")),
        ("data.train", "1e-4", ("1e-4",)),
        ("data.train", "null", ()),
    ],
)
def test_text_means_the_same_on_the_command_line_and_in_a_file(
    tmp_path: Path, key: str, text: str, value: object
) -> None:
    section, _, name = key.rpartition(".")
    indented = f"{section}:\n  {name}" if section else name
    path = write(tmp_path / "c.yaml", f"{indented}: {text}\n")
    configs = [resolve(None, [f"{key}={text}"]).config]
    if not text.startswith("[a") and "," not in text:  # a list is written otherwise in YAML
        configs.append(resolve(str(path), []).config)
    for config in configs:
        assert value_of(config, key) == value
        assert type(value_of(config, key)) is type(value)


def test_a_file_can_hold_lists(tmp_path: Path) -> None:
    text = (
        "data:\n  train: [{name: a, weight: 2, tag: BT}, b, {name: no, tag: null}]\n  test:\n    - 12:30\n    - 1e-4\n"
    )
    data = resolve(str(write(tmp_path / "c.yaml", text)), []).config.data
    assert data.train == (TrainText(name="a", weight=2.0, tag="BT"), "b", TrainText(name="no"))
    assert data.test == ("12:30", "1e-4")


def test_empty_sections_have_their_defaults(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "model:\ntraining:\ntokenizer: {}\ndata:\n  hub:\n")
    assert resolve(str(path), []).config == Config(run_dir="runs/c")
    assert resolve(str(write(tmp_path / "e.yaml", "# nothing\n")), []).config == Config(run_dir="runs/e")


def test_sentences_are_no_longer_than_the_table_of_learned_positions() -> None:
    longer = ["data.max_tokens=1025", "training.batch_tokens=2000"]
    assert problems(None, "model.positions=learned", *longer).startswith("data.max_tokens 1025 is above the 1024")
    assert resolve(None, longer)
    assert resolve(None, ["model.positions=learned", "data.max_tokens=1024"])
