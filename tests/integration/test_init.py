"""`mtx init` writes a configuration that `mtx train` takes, and never replaces one."""

import subprocess
from pathlib import Path

import yaml

from tests.integration import commands

SHORT = ["training.max_steps=2", "training.validate_every=1"]


def mtx(here: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    return commands.mtx(*words, cwd=here)


def write_tsv(path: Path) -> None:
    path.write_text("".join(f"a dog number {n} sees {n * 7}\tein Hund Nummer {n} sieht {n * 7}\n" for n in range(200)))


def test_a_table_whose_name_yaml_could_misread(tmp_path: Path) -> None:
    name = "mein Text: ä #1.tsv"
    write_tsv(tmp_path / name)
    refused = mtx(tmp_path, "init", name)
    assert refused.returncode == 2 and b"which languages are in it?" in refused.stderr
    assert not (tmp_path / "mtx.yaml").exists()
    done = mtx(tmp_path, "init", name, "data.src=en", "data.tgt=de")
    assert done.returncode == 0, done.stderr.decode()
    text = (tmp_path / "mtx.yaml").read_text()
    assert yaml.safe_load(text)["data"] == {"src": "en", "tgt": "de", "train": [name]}
    assert "# heldout: 10 pairs, which are held out" in text and "# Training takes at most about" in text
    assert "#     d_model: 128\n" in text and "(of the measured sizes the nearest to 200 pairs of" in text
    again = mtx(tmp_path, "init", name, "data.src=en", "data.tgt=de")
    assert again.returncode == 2 and b"mtx.yaml: exists already" in again.stderr
    assert (tmp_path / "mtx.yaml").read_text() == text
    trained = mtx(tmp_path, "train", "mtx.yaml", *SHORT)
    assert trained.returncode == 0, trained.stderr.decode()
    assert (tmp_path / "runs" / "mein Text: ä #1" / "model").is_dir()
    assert b"dropout" in mtx(tmp_path, "config", "mtx.yaml").stdout


def test_a_memory_names_its_languages(tmp_path: Path) -> None:
    units = "".join(
        f'<tu><tuv xml:lang="en"><seg>a dog number {n}</seg></tuv><tuv xml:lang="fr"><seg>un chien {n}</seg></tuv></tu>'
        for n in range(200)
    )
    (tmp_path / "memory.tmx").write_text(f'<tmx version="1.4"><header srclang="en"/><body>{units}</body></tmx>')
    done = mtx(tmp_path, "init", "memory.tmx", "-o", "mine.yaml", "model.dropout=0.3")
    assert done.returncode == 0, done.stderr.decode()
    values = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert values["data"] == {"src": "en", "tgt": "fr", "train": ["memory.tmx"]} and values["model"] == {"dropout": 0.3}
    assert values["run_dir"] == "runs/mine"
    assert mtx(tmp_path, "init").returncode == 2
    missing = mtx(tmp_path, "init", "other.tmx", "-o", "other.yaml")
    assert missing.returncode == 2 and missing.stderr == b"error: other.tmx: no such file\n"
