"""`mtx train FILE` trains on any file of pairs with nothing else given."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtx import cli
from mtx.data.token_store import load_prepared
from tests.integration.commands import TINY, mtx
from tests.unit.data.sentences import sentences

SHORT = [word for word in TINY if not word.startswith(("data.", "training.max", "training.val"))]
SHORT += ["training.max_steps=4", "training.validate_every=4"]
PAIRS = list(zip(sentences("en"), sentences("de"), strict=True))
FILES: dict[str, Callable[[str, str], str]] = {
    "my.tsv": lambda src, tgt: f"{src}\t{tgt}\n",
    "spreadsheet.csv": lambda src, tgt: f'7,"{src}","{tgt}"\n',
    "corpus.jsonl": lambda src, tgt: json.dumps({"de": tgt, "en": src}) + "\n",
    "messages.po": lambda src, tgt: f'\nmsgid "{src}"\nmsgstr "{tgt}"\n',
}
HEADERS = {"spreadsheet.csv": "Nr.,English (US),German\n", "messages.po": 'msgid ""\nmsgstr "Language: de\\n"\n'}


@pytest.mark.parametrize("name, direction, told_by", [
    ("my.tsv", "en to de", "text"), ("spreadsheet.csv", "en to de", "header"), ("corpus.jsonl", "de to en", "header"),
    ("messages.po", "en to de", "text"),
])  # fmt: skip
def test_a_file_is_trained_on_by_its_name_alone(name: str, direction: str, told_by: str, tmp_path: Path) -> None:
    file, run = tmp_path / name, tmp_path / "run"
    file.write_text(HEADERS.get(name, "") + "".join(FILES[name](src, tgt) for src, tgt in PAIRS), encoding="utf-8")
    done = mtx("train", file, *SHORT, f"run_dir={run}")
    assert done.returncode == 0, done.stderr.decode()
    src, tgt = direction.split(" to ")
    said = f"{file}: {direction} (from its {told_by}); for the opposite direction: data.src={tgt} data.tgt={src}"
    assert said.encode() in done.stderr
    assert (run / "model" / "model.safetensors").is_file()
    again = mtx("train", file, *SHORT, f"run_dir={run}")
    assert again.returncode == 0 and again.stdout == done.stdout


def test_the_opposite_direction_is_what_the_hint_says(tmp_path: Path) -> None:
    file = tmp_path / "my.tsv"
    file.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS), encoding="utf-8")
    for number, given in enumerate((["data.src=de", "data.tgt=en"], ["data.src=de"], ["data.tgt=en"])):
        run = tmp_path / str(number)
        done = mtx("prepare", file, *SHORT, *given, f"run_dir={run}")
        assert done.returncode == 0, done.stderr.decode()
        assert f"{file}: the second text of each pair is de, so it is the source".encode() in done.stderr
        prepared = load_prepared(run / "data")
        for store in (prepared.train, prepared.tests["heldout"]):
            assert set(zip(store.tgt_texts(), store.src_texts(), strict=True)) < set(PAIRS)


def test_own_text_recognises_the_languages_too(tmp_path: Path) -> None:
    file = tmp_path / "my.tsv"
    file.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS), encoding="utf-8")
    given = {"data.train=my.tsv": f"data.dir={tmp_path}", f"data.train={file}": "data.columns=1,2"}
    for train, more in given.items():
        shown = mtx("config", "own-text", train, more)
        assert b"  src: en " in shown.stdout and b"  tgt: de " in shown.stdout, shown.stderr
        assert f"{file}: en to de (from its text)".encode() in shown.stderr
    plan = tmp_path / "my.yaml"
    plan.write_text(f"data: {{train: [{file}], columns: [2, 1]}}\n")
    assert b"  src: de " in mtx("config", plan).stdout


def test_a_language_that_is_no_code_is_refused_with_it(tmp_path: Path, refused: Any) -> None:
    file = tmp_path / "my.tsv"
    file.write_text("a\tb\n")
    for name, code in {"English": "en", "deutsch": "de", "Filipino": "tl"}.items():
        refused(2, [f"data.tgt={name}: expected the code", f"data.tgt={code}"], "train", file, f"data.tgt={name}")


def test_a_plan_is_written_by_config_and_taken_by_train(tmp_path: Path) -> None:
    name = "mein Text: ä #1.tsv"  # which YAML could misread
    (tmp_path / name).write_text("".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS), encoding="utf-8")
    plan = mtx("config", name, cwd=tmp_path)
    assert plan.returncode == 0, plan.stderr.decode()
    assert b"d_model: 128" in plan.stdout and b"# for about" in plan.stdout
    (tmp_path / "mtx.yaml").write_bytes(plan.stdout)
    trained = mtx("train", *SHORT, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr.decode()
    assert b"using mtx.yaml in this directory" in trained.stderr
    assert (tmp_path / "runs" / "mein Text: ä #1" / "model").is_dir()


def test_what_config_takes_its_argument_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["config", "tokenizer"]) == 0
    shown = capfd.readouterr().out
    assert "tokenizer.model: " in shown and "tokenizer.vocab_size: " in shown and "seed" not in shown
    for name, keys in {"patience": ["training.patience"], "batch_tokens": ["training", "decoding"]}.items():
        assert cli.run(["config", name]) == 0
        shown = capfd.readouterr().out
        assert all(f"{key.partition('.')[0]}.{name}: " in shown for key in keys) and shown.count("default:") == len(
            keys
        )
    (tmp_path / "data").mkdir()  # neither a file nor a run
    assert cli.run(["config", "data"]) == 0 and "data.src: " in capfd.readouterr().out
    (tmp_path / "data" / "config.yaml").write_text("seed: 5\n")
    (tmp_path / "patience").write_text("a\tb\n")
    assert cli.run(["config", "patience", "data.src=en", "data.tgt=de"]) == 0
    assert "train:" in capfd.readouterr().out
    for name in ("data", "seed", "demo"):  # a section, a key and a recipe
        (tmp_path / name).exists() or (tmp_path / name).write_text("seed: 5\n")
        assert cli.run(["config", f"./{name}"]) == 0 and "seed: 5 " in capfd.readouterr().out
