"""`mtx back-translate`: pairs from text of one language, the same bytes however often it is killed."""

import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import mtx, pairs, start
from tests.rig import PATIENCE_S


@pytest.fixture(scope="module")
def mono(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mono") / "mono.en"
    path.write_text("".join(f"{src}\n" for src, _ in pairs(range(7000))), encoding="utf-8")
    return path


@pytest.mark.extended
def test_killed_five_times_it_writes_the_same_bytes(trained: Path, mono: Path, tmp_path: Path) -> None:
    out, killed = tmp_path / "bt.tsv", tmp_path / "killed.tsv"
    options = ["--temperature", 1, "--seed", 3, "--threads", 1]
    result = mtx("back-translate", trained, mono, "-o", out, *options)
    assert result.returncode == 0 and b" of 7,000 lines" in result.stderr, result.stderr.decode()
    part, sizes = tmp_path / "killed.tsv.part", list[int]()
    for _ in range(5):
        process = start("back-translate", trained, mono, "-o", killed, *options)
        size, end = part.stat().st_size if part.exists() else 0, time.monotonic() + PATIENCE_S
        while process.poll() is None and time.monotonic() < end:
            if part.exists() and part.stat().st_size > max(size, 2000):
                break
            time.sleep(0.01)
        process.kill()
        process.wait()
        sizes.append(part.stat().st_size if part.exists() else -1)
    assert sizes == sorted(set(sizes)) and sizes[0] > 0, "each process went on"
    assert not killed.exists()
    result = mtx("back-translate", trained, mono, "-o", killed, *options)
    assert result.returncode == 0 and b"are translated; resuming" in result.stderr
    assert killed.read_bytes() == out.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bt.tsv", "killed.tsv"]
    rows = [line.split("\t") for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    assert all(len(row) == 2 for row in rows) and {row[1] for row in rows} <= {src for src, _ in pairs(range(7000))}


def test_a_forward_model_drops_the_least_probable(trained: Path, mono: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.en"
    few.write_text("".join(mono.read_text(encoding="utf-8").splitlines(keepends=True)[:200]), encoding="utf-8")
    result = mtx("back-translate", trained, few, "-o", tmp_path / "bt.tsv", "--beam", 1, "--forward", trained)
    assert result.returncode == 0 and b"improbable" in result.stderr, result.stderr.decode()


def test_the_shards_make_up_the_whole(trained: Path, mono: Path, tmp_path: Path) -> None:
    few, outputs = tmp_path / "few.en", [tmp_path / f"{name}.tsv" for name in ("whole", "1", "2")]
    few.write_text("".join(mono.read_text(encoding="utf-8").splitlines(keepends=True)[:101]), encoding="utf-8")
    for out, shard in zip(outputs, ([], ["--shard", "1/2"], ["--shard", "2/2"]), strict=True):
        result = mtx("back-translate", trained, few, "-o", out, "--beam", 1, *shard)
        assert result.returncode == 0, result.stderr.decode()
    whole, first, second = (out.read_bytes() for out in outputs)
    assert first and second and first + second == whole


def test_text_in_another_language_than_the_models_source(trained: Path, tmp_path: Path) -> None:
    mono = tmp_path / "mono.fr"
    objects = ["la porte de la maison", "un livre sur la table", "les enfants dans le jardin", "mon frère à la gare"]
    subjects = ["Le chien de mon voisin", "Elle ne veut pas", "Nous avons trouvé", "Je suis allé voir"]
    mono.write_text("".join(f"{a} {b}.\n" for a, b in product(subjects, objects)), encoding="utf-8")
    result = mtx("back-translate", trained, mono, "-o", tmp_path / "bt.tsv", "--beam", 1)
    assert result.returncode == 0 and b"mono.fr is in fr; " in result.stderr, result.stderr.decode()


def test_what_is_refused(trained: Path, tmp_path: Path, refused: Any) -> None:
    mono = tmp_path / "mono"
    mono.write_text("one\n")
    refused(2, ["mono", "also reads the file"], "back-translate", trained, mono, "-o", mono)
    refused(2, ["nothing", "no such file"], "back-translate", trained, tmp_path / "nothing", "-o", tmp_path / "out")
    refused(2, ["--shard 3/2: expected K/N"], "back-translate", trained, mono, "-o", tmp_path / "out", "--shard", "3/2")
    refused(2, ["-o", "no directory"], "back-translate", trained, mono, "-o", tmp_path / "no" / "out")
    (tmp_path / "out.part").write_text('{"format": 2}\n')
    refused(2, ["out.part: was started with another"], "back-translate", trained, mono, "-o", tmp_path / "out")
