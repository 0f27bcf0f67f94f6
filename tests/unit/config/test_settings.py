"""A configuration is found, overridden, and printed with the origin of each value; nothing is lost on the way."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mtx.config.schema import Config, key_names, write_list
from mtx.config.settings import (
    describe_key,
    differences,
    dump,
    dump_with_origins,
    find_config,
    is_override,
    load,
    replace_values,
    resolve,
)
from mtx.errors import UsageError
from mtx.storage.run_files import RunLayout
from tests.unit.config.helpers import problems, value_of, write


@pytest.mark.parametrize("key", key_names())
def test_every_key_is_described(key: str) -> None:
    description, default = describe_key(key)
    assert description
    if not key.startswith("data.hub."):
        value = value_of(resolve(None, ["run_dir="]).config, key)
        assert yaml.safe_load(default) == (list(value) if isinstance(value, tuple) else value) or key == "run_dir"


def test_defaults_are_printed_as_yaml() -> None:
    keys = ["data.hub.name", "data.hub.test", "data.valid", "model.output_bias", "training.max_steps", "model.d_model"]
    shown = [describe_key(key)[1] for key in keys]
    assert shown == ["none (required)", "[]", "null", "false", "100000", "512"]


def test_a_configuration_is_a_recipe_a_directory_or_a_file(tmp_path: Path) -> None:
    assert find_config("demo").name == "demo.yaml"
    path = write(tmp_path / "config.yaml", "seed: 3\n")
    assert find_config(str(tmp_path)) == path
    assert find_config(str(path)) == path
    resolved = resolve(str(tmp_path), [])
    assert (resolved.config.seed, resolved.config.run_dir) == (3, str(tmp_path))
    assert resolve(str(tmp_path), ["run_dir=x"]).config.run_dir == "x"
    assert resolve(None, ["data.src=en", "data.tgt=de"]).config.run_dir == "runs/en-de"


def test_a_recipe_takes_precedence_over_a_directory_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_local_text_that_nothing_would_read_is_refused(name: str, key: str) -> None:
    source = {"demo": "data.generator", "multi30k-en-de": "data.hub"}[name]
    problem = f"{key}: this recipe reads its text from {source}, not from local files"
    assert problems(name, f"{key}=mine.tsv") == problem
    assert resolve(name, [f"{key}=mine.tsv", f"{source}=null"])
    assert resolve(name, [f"{key}=null"])
    if name == "demo":
        assert problems(name, "data.dir=d").startswith("data.dir: this recipe reads its text from")
    else:
        assert resolve(name, [f"{key}=mine.tsv", "data.dir=d"])


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("training.maxsteps", "no recipe, setting or file named 'training.maxsteps', did you mean training.max_steps?"),
        ("modle.dropout", "no recipe, setting or file named 'modle.dropout', did you mean model.dropout?"),
        ("trainin", "no recipe named 'trainin', did you mean training?"),
        ("demoo", "no recipe named 'demoo', did you mean demo?"),
        ("max_steps", "no recipe named 'max_steps', did you mean training.max_steps?"),
        ("qqq", "no recipe named 'qqq'"),
        ("no.yaml", "no.yaml: no such text, configuration or run directory"),
        ("./no", "no: no such text, configuration or run directory"),
        ("a" * 5000, f"no recipe named '{'a' * 5000}'"),
        ("/" + "a" * 5000, f"/{'a' * 5000}: no such text, configuration or run directory"),
        ("/tmp", "/tmp: no such text, configuration or run directory"),
    ],
)
def test_a_missing_configuration_is_refused_with_the_most_similar_name(
    name: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problems(name) == problem


def test_a_given_tokenizer_has_its_own_subwords() -> None:
    config = resolve("multi30k-en-de", ["tokenizer.model=m", "tokenizer.vocab_size=auto"]).config
    assert config.tokenizer.vocab_size == "auto"
    with pytest.raises(UsageError, match=r"tokenizer\.vocab_size: tokenizer\.model has its own subwords"):
        resolve("multi30k-en-de", ["tokenizer.model=m", "tokenizer.vocab_size=300"])


def test_overrides_and_file_names_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_each_value_has_its_origin(tmp_path: Path) -> None:
    origins = resolve("multi30k-en-de", ["seed=2", "model.d_ff=512"]).origins
    assert sorted(origins) == sorted({*key_names()})
    assert origins["seed"] == origins["model.d_ff"] == "command line"
    assert origins["data.src"] == origins["data.hub.name"] == "recipe multi30k-en-de"
    assert origins["model.num_heads"] == "preset small"
    assert origins["model.norm"] == origins["run_dir"] == "default"
    path = write(tmp_path / "demo.yaml", "seed: 3\ntraining:\n  max_steps: 5\n")
    origins = resolve(str(path), ["training.max_steps=6"]).origins
    assert (origins["seed"], origins["training.max_steps"]) == (str(path), "command line")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], (20_000, 40)),
        (["training.max_epochs=50"], (None, 50)),
        (["training.max_epochs=50", "training.max_steps=900"], (900, 50)),
        (["training.max_epochs=null"], (20_000, None)),
        (["training.max_steps=900"], (900, None)),
    ],
)
def test_epochs_replace_the_steps_of_a_recipe_unless_both_are_set(
    overrides: list[str], expected: tuple[int | None, int | None], tmp_path: Path
) -> None:
    recipe = str(write(tmp_path / "recipe.yaml", "training:\n  max_steps: 20000\n  max_epochs: 40\n"))
    training = resolve(recipe, overrides).config.training
    assert (training.max_steps, training.max_epochs) == expected
    run = write(tmp_path / "config.yaml", dump(resolve(recipe, overrides).config))
    assert load(run).training == resolve(str(tmp_path), []).config.training == training
    longer = resolve(str(tmp_path), ["training.max_steps=7"]).config.training
    assert (longer.max_steps, longer.max_epochs) == (7, None), "the command line replaces the other one of a run too"


def test_epochs_alone_in_a_file_are_not_bounded_by_the_default_number_of_steps(tmp_path: Path) -> None:
    training = resolve(str(write(tmp_path / "c.yaml", "training:\n  max_epochs: 9\n")), []).config.training
    assert (training.max_steps, training.max_epochs) == (None, 9)
    both = write(tmp_path / "both.yaml", "training:\n  max_epochs: 9\n  max_steps: 100\n")
    assert resolve(str(both), []).config.training.max_steps == 100
    with pytest.raises(UsageError, match=r"training\.max_steps and training\.max_epochs are both null"):
        resolve(None, ["training.max_steps=null"])


def test_replaced_values_are_validated_and_have_their_origin() -> None:
    before = resolve("multi30k-en-de", ["data.dir=d", "data.test=a,b", "training.time_limit=2h"])
    after = replace_values(before, {"model.d_ff": 99, "data.src": "nl"}, "elsewhere")
    assert [key for key, *_ in differences(before.config, after.config)] == ["data.src", "model.d_ff"]
    assert (after.config.data.src, after.config.model.d_ff) == ("nl", 99)
    changed = {key: origin for key, origin in after.origins.items() if origin != before.origins[key]}
    assert changed == {"model.d_ff": "elsewhere", "data.src": "elsewhere"}
    assert list(after.origins) == list(before.origins)
    with pytest.raises(UsageError, match="model.d_model 128 is not divisible by model.num_heads 3"):
        replace_values(before, {"model.num_heads": 3}, "elsewhere")


def test_explicit_keys_are_those_of_a_recipe_or_the_command_line() -> None:
    resolved = resolve("multi30k-en-de", ["seed=1", "model.d_ff=1024"])
    explicit = ("seed", "model.d_ff", "model.preset", "data.src")
    keys = (*explicit, "model.num_heads", "model.norm", "device")
    assert [key for key in keys if resolved.is_explicit(key)] == list(explicit)


def test_origins_are_printed_behind_the_values() -> None:
    text = dump_with_origins(resolve("multi30k-en-de", ["data.test="]))
    assert "  test: []                                    # command line" in text.splitlines()
    assert "    test: [test]                              # recipe multi30k-en-de" in text.splitlines()


@pytest.mark.parametrize("name", ["demo", "multi30k-en-de", "iwslt17-de-en", "wmt14-en-de-big", None])
def test_printed_configurations_read_back_equal(name: str | None, tmp_path: Path) -> None:
    local = ["data.generator=null", "data.dir=d", "data.train=a, b"]
    overrides = [*local, "training.time_limit=1h30m", "training.learning_rate=1e-7", "run_dir=x"]
    resolved = resolve(name, overrides)
    assert load(write(tmp_path / "a.yaml", dump(resolved.config))) == resolved.config
    assert load(write(tmp_path / "b.yaml", dump_with_origins(resolved))) == resolved.config


def test_a_name_with_a_comma_is_in_double_quotes_on_the_command_line() -> None:
    names = ("t/en, de.tsv", "a.tsv", " b,", "[c, d]", '"e".tsv')
    text = write_list(names)
    assert text == '"t/en, de.tsv",a.tsv," b,","[c, d]","e".tsv'
    assert resolve(None, [f"data.test={text}"]).config.data.test == names
    assert resolve(None, ['data.test=[ "a, b" , c,, "d ]']).config.data.test == ("a, b", "c", '"d')


def test_a_duration_is_written_with_its_unit_but_in_json() -> None:
    resolved = resolve(None, ["training.time_limit=4m"])
    assert "\n  time_limit: 240s\n" in dump(resolved.config)
    assert "\n  time_limit: 240s " in dump_with_origins(resolved)
    other = resolve(None, ["training.time_limit=1.5h"]).config
    assert differences(resolved.config, other) == [("training.time_limit", "240s", "5400s")]
    stored = json.loads(resolved.config.model_dump_json())
    assert stored["training"]["time_limit"] == 240 and Config.model_validate(stored) == resolved.config


def test_bare_seconds_are_read_in_the_configuration_of_a_run_that_has_begun(tmp_path: Path) -> None:
    run = RunLayout(tmp_path)
    for text, seconds in (("240.0", 240), ("1.0e+16", 1e16), ("1.5e-05", 1.5e-5), ("240s", 240), ("null", None)):
        written = dump(resolve(None, ["run_dir=x"]).config).replace("time_limit: null", f"time_limit: {text}")
        write(run.config, written)
        line = written[: written.index("time_limit")].count("\n") + 1
        if text.endswith(("0", "6", "5")):
            refused = f"{run.config}:{line}: training.time_limit: {text} has no unit; {text}s, {text}m or {text}h?"
            assert problems(str(tmp_path)) == problems(str(run.config)) == refused
        write(run.chosen, "{}")
        for config in (load(run.config), resolve(str(tmp_path), []).config, resolve(str(run.config), []).config):
            assert config.training.time_limit == seconds
        run.chosen.unlink()


def test_the_configuration_imports_neither_torch_nor_datasets() -> None:
    code = "import sys, mtx.config.settings, mtx.data.prepare; print({'torch', 'datasets'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
