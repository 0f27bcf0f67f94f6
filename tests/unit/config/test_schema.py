"""The configuration: text becomes typed values, every problem is told at once and at its place, nothing is lost."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtx.config.schema import PRESETS, Config, TrainText, differences, key_names
from mtx.config.settings import (
    describe_key,
    dump,
    dump_with_origins,
    find_config,
    is_override,
    load,
    replace_values,
    resolve,
)
from mtx.config.yaml_text import read_yaml
from mtx.errors import UsageError


def value_of(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def problems(name: str | Path | None, *overrides: str) -> str:
    with pytest.raises(UsageError) as error:
        resolve(None if name is None else str(name), list(overrides))
    assert "\n" not in str(error.value)
    return str(error.value)


# The keys


@pytest.mark.parametrize("key", key_names())
def test_every_key_is_described(key: str) -> None:
    description, default = describe_key(key)
    assert description
    if not key.startswith("data.hub."):
        value = value_of(resolve(None, ["run_dir="]).config, key)
        assert yaml.safe_load(default) == (list(value) if isinstance(value, tuple) else value) or key == "run_dir"


def test_defaults_are_shown_as_they_are_written() -> None:
    keys = ["data.hub.name", "data.hub.test", "data.valid", "model.output_bias", "training.max_steps", "model.d_model"]
    shown = [describe_key(key)[1] for key in keys]
    assert shown == ["none, it must be set", "[]", "null", "false", "100000", "512"]


def test_differences_name_key_old_and_new() -> None:
    old = resolve("multi30k-en-de", []).config
    new = resolve("multi30k-en-de", ["seed=2", "data.hub=null", "training.max_steps=9"]).config
    found = {key: (before, after) for key, before, after in differences(old, new)}
    assert found["seed"] == (1, 2)
    assert found["training.max_steps"] == (old.training.max_steps, 9)
    assert found["data.hub.name"] == ("bentrevett/multi30k", None)
    assert differences(old, old) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_its_keys_and_gives_way(preset: str) -> None:
    model = resolve(None, [f"model.preset={preset}"]).config.model
    assert {key: getattr(model, key) for key in PRESETS["base"]} == PRESETS[preset]
    model = resolve(None, ["model.dropout=0.25", f"model.preset={preset}"]).config.model
    assert (model.dropout, model.d_model) == (0.25, PRESETS[preset]["d_model"])


# Values


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
        ("training.time_limit", "1.5", 1.5),
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


def test_lists_in_a_file(tmp_path: Path) -> None:
    text = (
        "data:\n  train: [{name: a, weight: 2, tag: BT}, b, {name: no, tag: null}]\n  test:\n    - 12:30\n    - 1e-4\n"
    )
    data = resolve(str(write(tmp_path / "c.yaml", text)), []).config.data
    assert data.train == (TrainText(name="a", weight=2.0, tag="BT"), "b", TrainText(name="no"))
    assert data.test == ("12:30", "1e-4")


def test_empty_sections(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "model:\ntraining:\ntokenizer: {}\ndata:\n  hub:\n")
    assert resolve(str(path), []).config == Config(run_dir="runs/c")
    assert resolve(str(write(tmp_path / "e.yaml", "# nothing\n")), []).config == Config(run_dir="runs/e")


# Errors


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("training.max_stpes=5", "training.max_stpes: unknown key, did you mean training.max_steps?"),
        ("max_steps=5", "max_steps: unknown key, did you mean training.max_steps?"),
        ("training.max-steps=5", "training.max-steps: unknown key, did you mean training.max_steps?"),
        ("modle.dropout=0", "modle.dropout: unknown key, did you mean model.dropout?"),
        ("seed.x=1", "seed.x: unknown key, did you mean seed?"),
        ("qqq=1", "qqq: unknown key"),
        ("training=5", "training: is a section, expected training.KEY=VALUE"),
        ("model=null", "model: is a section, expected model.KEY=VALUE"),
        ("seed=x", "seed: expected a whole number, got 'x'"),
        ("seed=", "seed: expected a whole number, got ''"),
        ("seed=1.5", "seed: expected a whole number, got 1.5"),
        ("seed=-1", "seed: expected at least 0, got -1"),
        ("seed=2147483648", "seed: expected less than 2147483648, got 2147483648"),
        ("data.max_tokens=5", "data.max_tokens: expected at least 8, got 5"),
        ("data.max_tokens=5000", "data.max_tokens: expected at most 4096, got 5000"),
        ("data.max_length_ratio=1", "data.max_length_ratio: expected more than 1, got 1"),
        ("data.src=", "data.src: expected 1 to 100 characters without /, got ''"),
        ("model.dropout=1", "model.dropout: expected less than 1, got 1"),
        ("training.max_steps=0", "training.max_steps: expected at least 1, got 0"),
        ("training.learning_rate=nan", "training.learning_rate: expected a finite number, got 'nan'"),
        ("training.learning_rate=fast", "training.learning_rate: expected a number, got 'fast'"),
        ("training.time_limit=0", "training.time_limit: expected more than 0, got 0"),
        (
            "training.time_limit=1h30",
            "training.time_limit: expected a duration such as 2h, 90m, 1h30m or 600s, got '1h30'",
        ),
        ("training.time_limit=x", "training.time_limit: expected a duration such as 2h, 90m, 1h30m or 600s, got 'x'"),
        ("tokenizer.vocab_size=x", "tokenizer.vocab_size: expected auto or a whole number, got 'x'"),
        ("tokenizer.vocab_size=9", "tokenizer.vocab_size: expected auto or at least 270, got 9"),
        ("model.output_bias=yes", "model.output_bias: expected true or false, got 'yes'"),
        ("model.preset=huge", "model.preset: expected tiny, small, base or big, got 'huge'"),
        ("precision=fp16", "precision: expected auto, fp32 or bf16, got 'fp16'"),
        ("device=gpu", "device: expected auto, cpu, cuda, cuda:1 or mps, got 'gpu'"),
        ("device=cpu\n", r"device: expected auto, cpu, cuda, cuda:1 or mps, got 'cpu\n'"),
        ("data.hub.subset=de-en", "data.hub.name: is missing"),
        ("model.num_heads=3", "model.d_model 512 is not even and divisible by model.num_heads 3"),
        ("training.batch_tokens=255", "training.batch_tokens 255 is below data.max_tokens 256"),
        ("training.micro_batch_tokens=255", "training.micro_batch_tokens 255 is below data.max_tokens 256"),
    ],
)
def test_a_wrong_override(override: str, problem: str, tmp_path: Path) -> None:
    assert problems(None, override) == problem
    # a file that is right is not named
    assert problems(write(tmp_path / "c.yaml", "data:\n  valid: v\nmodel:\n  norm: pre\n"), override) == problem


def test_all_problems_at_once() -> None:
    found = problems("demo", "training.max_stpes=5", "seed=x", "model.dropout=2", "modle.norm=pre")
    assert found.split("; ") == [
        "training.max_stpes: unknown key, did you mean training.max_steps?",
        "modle.norm: unknown key, did you mean model.norm?",
        "seed: expected a whole number, got 'x'",
        "model.dropout: expected less than 1, got 2",
    ]


WRONG = """seed: x
data:
  train:
    - {name: a, weight: x}
    - {weight: -1,
       name: b, tag: B T, wieght: 2}
    - [c]
  hub:
    valid: v
training: {max_stpes: 5}
modle:
  norm: pre
device: [cpu]
"""


def test_problems_of_a_file_are_located(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", WRONG)
    expected = [
        "1: seed: expected a whole number, got 'x'",
        "4: data.train[0].weight: expected a number, got 'x'",
        "5: data.train[1].weight: expected more than 0, got -1",
        "6: data.train[1].tag: expected letters, digits and _, got 'B T'",
        "6: data.train[1].wieght: unknown key, did you mean data.train[1].weight?",
        "7: data.train[2]: expected a section with keys, got a list",
        "8: data.hub.name: is missing",
        "10: training.max_stpes: unknown key, did you mean training.max_steps?",
        "12: modle.norm: unknown key, did you mean model.norm?",
        "13: device: expected text, got a list",
    ]
    assert sorted(problems(path).split("; ")) == sorted(f"{path}:{problem}" for problem in expected)
    with pytest.raises(UsageError, match=re.escape(f"{path}:1: seed")):
        load(path)


def test_the_file_is_named_only_where_it_holds_the_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "seed: x\nmodel:\n  norm: mid\ndata:\n  train: [{name: a, weight: x}]\n")
    found = problems(path, "seed=y", "data.train=b")
    assert found == f"seed: expected a whole number, got 'y'; {path}:3: model.norm: expected post or pre, got 'mid'"
    small = write(tmp_path / "s.yaml", "training:\n  batch_tokens: 9\n")
    assert problems(small) == f"{small}: training.batch_tokens 9 is below data.max_tokens 256"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("seed: 1\ndata:\n  src: a\n  tgt: b\n  src: c\n", ":5: the key 'src' stands twice"),
        ("seed: 1\n\nseed: 1\n", ":3: the key 'seed' stands twice"),
        ("data: &a\n  src: x\nmodel: *a\n", ":1: an alias (*name), which mtx does not read"),
        ("data: &a [*a]\n", ":1: an alias (*name), which mtx does not read"),
        ("seed: [1\n", ":1: expected ',' or ']', but got '<stream end>'"),
        ("seed: 1\n---\nseed: 2\n", ":2: but found another document"),
        ("? [a]\n: b\n", ":1: expected a key, got a list"),
        ("just words\n", ": expected sections with keys, got 'just words'"),
        ("- a\n", ": expected sections with keys, got a list"),
        ("a: \x07\n", ": is not YAML: "),
        ("[" * 3000, ": is nested too deeply"),
    ],
)
def test_yaml_that_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path / "c.yaml", text)
    assert problems(path).startswith(f"{path}{problem}")


def test_yaml_makes_no_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "a: !!python/object/apply:os.getcwd []\nb: !!int 3\nc: !!float x\nd: 0x10\n")
    assert read_yaml(path)[0] == {"a": [], "b": "3", "c": "x", "d": "0x10"}


@pytest.mark.parametrize(
    "keys",
    ["data.train=a", "data.train=x.tsv,a", "data.train=x.tsv data.valid=a", "data.train=x.tsv data.test=a.v2"],
)
def test_one_language_cannot_name_two_files(keys: str) -> None:
    equal = ["data.src=en", "data.tgt=en", *keys.split()]
    assert problems(None, *equal).startswith("data.src and data.tgt are both 'en': a")
    assert problems("multi30k-en-de", "data.dir=d", "data.tgt=en").startswith("data.src and data.tgt are both 'en'")
    assert resolve(None, ["data.src=en", "data.tgt=en", "data.train=x.tsv", "data.test=y.jsonl.gz"])
    assert resolve("multi30k-en-de", ["data.tgt=en"])  # from the hub, where names are no files


def test_a_sentence_is_no_longer_than_the_learned_positions() -> None:
    longer = ["data.max_tokens=1025", "training.batch_tokens=2000"]
    assert problems(None, "model.positions=learned", *longer).startswith("data.max_tokens 1025 is above the 1024")
    assert resolve(None, longer)
    assert resolve(None, ["model.positions=learned", "data.max_tokens=1024"])


# CONFIG


def test_what_config_means(tmp_path: Path) -> None:
    assert find_config("demo").name == "demo.yaml"
    path = write(tmp_path / "config.yaml", "seed: 3\n")
    assert find_config(str(tmp_path)) == path
    assert find_config(str(path)) == path
    resolved = resolve(str(tmp_path), [])
    assert (resolved.config.seed, resolved.config.run_dir) == (3, str(tmp_path))
    assert resolve(str(tmp_path), ["run_dir=x"]).config.run_dir == "x"
    assert resolve(None, ["data.src=en", "data.tgt=de"]).config.run_dir == "runs/en-de"


def test_a_recipe_goes_before_a_directory_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "myrun"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "config.yaml", "seed: 3\n")
    assert resolve("demo", []).config.data.generator == "grammar"
    for name in ("./demo", "myrun"):
        config = resolve(name, []).config
        assert (config.seed, config.run_dir) == (3, name)


@pytest.mark.parametrize("name", ["multi30k-en-de", "demo"])
@pytest.mark.parametrize("key", ["data.train", "data.valid", "data.test"])
def test_local_text_that_would_go_unread_is_refused(name: str, key: str) -> None:
    source = {"demo": "data.generator", "multi30k-en-de": "data.hub"}[name]
    problem = f"{key}: names local text, but this recipe takes its text from {source}"
    assert problems(name, f"{key}=mine.tsv") == problem
    assert resolve(name, [f"{key}=mine.tsv", f"{source}=null"])
    assert resolve(name, [f"{key}=null"])
    if name == "demo":
        assert problems(name, "data.dir=d").startswith("data.dir: names local text")
    else:
        assert resolve(name, [f"{key}=mine.tsv", "data.dir=d"])


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("training.maxsteps", "training.maxsteps: unknown key, did you mean training.max_steps?"),
        ("modle.dropout", "modle.dropout: unknown key, did you mean model.dropout?"),
        ("q.z", "q.z: unknown key"),
        ("training", "training: a section, not a recipe or a key"),
        ("demoo", "no recipe named 'demoo', did you mean demo?"),
        ("max_steps", "no recipe named 'max_steps', did you mean training.max_steps?"),
        ("qqq", "no recipe named 'qqq'"),
        ("no.yaml", "no.yaml: no such configuration file or run directory"),
        ("./no", "./no: no such configuration file or run directory"),
        ("a" * 5000, f"no recipe named '{'a' * 5000}'"),
        ("/" + "a" * 5000, f"/{'a' * 5000}: no such configuration file or run directory"),
        ("/tmp", "/tmp: no such configuration file or run directory"),
    ],
)
def test_a_config_that_is_none(name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems(name) == problem


def test_an_override_is_told_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a=b.yaml", "seed=1"):
        write(tmp_path / name, "")
    assert is_override("seed=1")
    assert is_override("seed=")
    assert is_override("sede=1")
    assert is_override("sede=" + "1" * 5000)
    assert not is_override("a=b.yaml")
    assert not is_override("./c=d.yaml")
    assert not is_override("demo")


# Origins, and back to YAML


def test_origins(tmp_path: Path) -> None:
    origins = resolve("multi30k-en-de", ["seed=2", "model.d_ff=512"]).origins
    assert sorted(origins) == sorted({*key_names()})
    assert origins["seed"] == origins["model.d_ff"] == "command line"
    assert origins["data.src"] == origins["data.hub.name"] == "recipe multi30k-en-de"
    assert origins["model.d_model"] == "preset small"
    assert origins["model.norm"] == origins["run_dir"] == "default"
    path = write(tmp_path / "demo.yaml", "seed: 3\ntraining:\n  max_steps: 5\n")
    origins = resolve(str(path), ["training.max_steps=6"]).origins
    assert (origins["seed"], origins["training.max_steps"]) == (str(path), "command line")


def test_replaced_values_are_validated_and_have_their_origin() -> None:
    before = resolve("multi30k-en-de", ["data.dir=d", "data.test=a,b", "training.time_limit=2h"])
    after = replace_values(before, {"model.d_ff": 99, "data.src": "nl"}, "elsewhere")
    assert [key for key, *_ in differences(before.config, after.config)] == ["data.src", "model.d_ff"]
    assert (after.config.data.src, after.config.model.d_ff) == ("nl", 99)
    changed = {key: origin for key, origin in after.origins.items() if origin != before.origins[key]}
    assert changed == {"model.d_ff": "elsewhere", "data.src": "elsewhere"}
    assert list(after.origins) == list(before.origins)
    with pytest.raises(UsageError, match="model.d_model 256 is not even and divisible by model.num_heads 3"):
        replace_values(before, {"model.num_heads": 3}, "elsewhere")


def test_what_is_given_is_no_default() -> None:
    resolved = resolve("multi30k-en-de", ["seed=1", "model.d_ff=1024"])
    given = ("seed", "model.d_ff", "model.preset", "data.src")
    assert [key for key in (*given, "model.d_model", "model.norm", "device") if resolved.is_explicit(key)] == list(
        given
    )


def test_explain_is_the_configuration_with_origins() -> None:
    text = dump_with_origins(resolve("multi30k-en-de", ["data.test="]))
    assert "  test: []                                    # command line" in text.splitlines()
    assert "    test: [test]                              # recipe multi30k-en-de" in text.splitlines()


@pytest.mark.parametrize("name", ["demo", "multi30k-en-de", "iwslt17-de-en", "wmt14-en-de-big", None])
def test_explain_and_dump_read_back(name: str | None, tmp_path: Path) -> None:
    local = ["data.generator=null", "data.dir=d", "data.train=a, b"]
    overrides = [*local, "training.time_limit=1h30m", "training.learning_rate=1e-7", "run_dir=x"]
    resolved = resolve(name, overrides)
    assert load(write(tmp_path / "a.yaml", dump(resolved.config))) == resolved.config
    assert load(write(tmp_path / "b.yaml", dump_with_origins(resolved))) == resolved.config


LINES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
LANGUAGES = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=30)
CONFIGS = st.builds(
    lambda data, run_dir, rate, limit: Config.model_validate(
        {"data": data, "run_dir": run_dir, "training": {"learning_rate": rate, "time_limit": limit}}
    ),
    st.fixed_dictionaries(
        {
            "src": LANGUAGES.map(lambda text: f"a{text}"),
            "tgt": LANGUAGES.map(lambda text: f"b{text}"),
            "train": st.lists(
                LINES | st.fixed_dictionaries({"name": LINES, "weight": st.floats(1e-9, 1e9), "tag": st.just("x_1")})
            ),
            "test": st.lists(LINES),
        }
    ),
    LINES,
    st.none() | st.floats(min_value=1e-300, allow_infinity=False),
    st.none() | st.floats(min_value=1e-3, max_value=1e9),
)


@pytest.mark.seconds
@given(config=CONFIGS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_dumped_reads_back_equal(tmp_path: Path, config: Config) -> None:
    assert load(write(tmp_path / "c.yaml", dump(config))) == config


def test_no_torch_and_no_datasets() -> None:
    code = "import sys, mtx.config.settings, mtx.data.preprocess; print({'torch', 'datasets'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
