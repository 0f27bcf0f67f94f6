"""`mtx evaluate` prints the numbers that the sacrebleu command prints for the same files."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from mtx.storage import durable
from tests.integration.commands import ENVIRONMENT, check_error, mtx, tree
from tests.unit.data.sentences import sentences

NAMES = {"BLEU": "bleu", "chrF2": "chrf", "TER": "ter"}


def _sacrebleu(ref: Path, hyp: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "sacrebleu", ref, "-i", hyp, "-m", "bleu", "chrf", "ter", "-w", "6"]
    done = subprocess.run([*map(str, command)], env=ENVIRONMENT, capture_output=True, check=True)
    return {metric["name"]: metric["score"] for metric in json.loads(done.stdout)}


def test_a_run_gets_the_scores_of_the_sacrebleu_command(run_copy: Path) -> None:
    model = tree(run_copy / "model")
    result = mtx("evaluate", run_copy, "--json")
    assert result.returncode == 0, result.stderr.decode()
    ours = json.loads(result.stdout)["heldout"]
    directory = run_copy / "evaluation" / "heldout"
    theirs = _sacrebleu(directory / "ref.txt", directory / "hyp.txt")
    assert theirs["chrF2"] > 5
    assert {name: round(ours[key]["score"], 6) for name, key in NAMES.items()} == theirs
    assert _interval(directory / "ref.txt", directory / "hyp.txt") in mtx("evaluate", run_copy).stdout.decode()
    assert tree(run_copy / "model") == model
    assert json.loads((directory / "scores.json").read_text())["heldout"] == ours
    stored = tree(run_copy / "evaluation")
    assert mtx("evaluate", run_copy, "--beam", "1", "--length-penalty", "0").returncode == 0
    assert tree(run_copy / "evaluation") == stored, "what compare and the report read is of the run's own search"


def test_files_get_the_scores_of_the_sacrebleu_command(tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("the cat sat on the mat .\nit's 3.5 m² big\u2028really\n", encoding="utf-8")
    (tmp_path / "hyp").write_text("the cat sat on a mat .\nit's 3.5 m² big\u2028really", encoding="utf-8")
    result = mtx("evaluate", "--hyp", tmp_path / "hyp", "--ref", tmp_path / "ref")
    theirs = _sacrebleu(tmp_path / "ref", tmp_path / "hyp")
    bleu = f"{theirs['BLEU']:.2f} {_interval(tmp_path / 'ref', tmp_path / 'hyp')}"
    line = f"hyp BLEU {bleu}  chrF2 {theirs['chrF2']:.1f}  TER {theirs['TER']:.1f}  nrefs:1|case:mixed"
    assert result.stdout.decode().startswith(line) and result.stdout.count(b"\n") == 1
    assert (result.returncode, result.stderr) == (0, b"")


def _interval(ref: Path, hyp: Path) -> str:
    """sacreBLEU's 95% interval of BLEU by its bootstrap."""
    command = [sys.executable, "-m", "sacrebleu", ref, "-i", hyp, "--confidence", "-w", "6"]
    done = subprocess.run([*map(str, command)], env=ENVIRONMENT, capture_output=True, check=True)
    mean, half = map(float, re.findall(r"\d+\.\d+", json.loads(done.stdout)["confidence"]))
    return f"[{mean - half:.1f}, {mean + half:.1f}]"


def test_several_references_count_as_in_the_sacrebleu_command(tmp_path: Path) -> None:
    words = [f"wort{number}" for number in range(40)]
    lines = [" ".join(words[number : number + 9]) for number in range(30)]
    texts = {"hyp": lines, "a": [line if number % 3 else line[::-1] for number, line in enumerate(lines)]}
    texts["b"] = [line if number % 3 == 0 else line.replace("1", "2") for number, line in enumerate(lines)]
    for name, text in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    hyp, a, b = (tmp_path / name for name in ("hyp", "a", "b"))
    both = json.loads(mtx("evaluate", "--hyp", hyp, "--ref", a, "--ref", b, "--json").stdout)["hyp"]
    assert (both["bleu"]["score"], both["chrf"]["score"], both["ter"]["score"]) == pytest.approx((100, 100, 0))
    assert both["bleu"]["interval"] == pytest.approx([100, 100]) and both["bleu"]["signature"].startswith("nrefs:2|")
    one = json.loads(mtx("evaluate", "--hyp", hyp, "--ref", b, "--json").stdout)["hyp"]
    assert {name: round(one[key]["score"], 6) for name, key in NAMES.items()} == _sacrebleu(b, hyp)
    for metric in one.values():
        low, high = metric["interval"]
        assert low < metric["score"] < high
    assert _interval(b, hyp) == "[{:.1f}, {:.1f}]".format(*one["bleu"]["interval"])


def test_text_in_another_language_than_the_target_is_told(trained: Path, tmp_path: Path) -> None:
    for language in ("en", "de", "fr"):
        (tmp_path / language).write_text("".join(f"{line}\n" for line in sentences(language, 60)), encoding="utf-8")
    en, de, fr = (tmp_path / language for language in ("en", "de", "fr"))
    told = b"are sides swapped?"
    swapped = mtx("evaluate", trained, "--src", de, "--ref", en)
    assert b"warning: de: the references are in en, not de; are sides swapped?" in swapped.stderr
    for hyp, direction, warning in (
        (fr, [], b"de: the translations are in fr, not de"), (de, [], b""), (de, ["--direction", "en-de"], b""),
        (de, ["--direction", "de-en"], b"de: the references are in de, not en"),
    ):  # fmt: skip
        found = mtx("evaluate", "--hyp", hyp, "--ref", de, *direction)
        assert found.returncode == 0 and (told in found.stderr) == bool(warning) and warning in found.stderr


def test_a_model_is_scored_on_files_without_writing(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "src.en").write_text("one two three four\nfour five six seven\n")
    (tmp_path / "ref.de").write_text("eins zwei drei vier\nvier fünf sechs sieben\n", encoding="utf-8")
    before = tree(trained)
    result = mtx("evaluate", trained / "model", "--src", tmp_path / "src.en", "--ref", tmp_path / "ref.de")
    assert result.returncode == 0 and result.stdout.startswith(b"src.en BLEU ")
    assert tree(trained) == before


def test_changed_copies_of_test_sets_are_scored_too(run_copy: Path, tmp_path: Path, refused: Any) -> None:
    changes = ["upper case", "title case", "no end punctuation", "typing errors"]
    ours = json.loads(mtx("evaluate", run_copy, "--robust", "--json").stdout)
    assert list(ours) == ["heldout", *(f"heldout, {change}" for change in changes)]
    plain, upper, _, _, mistyped = (ours[name]["chrf"]["score"] for name in ours)
    assert mistyped != plain and upper > 0.9 * plain, "capitals are translated as they are usually written"
    directory = run_copy / "evaluation" / "heldout"
    for side in ("src", "ref"):
        text = (directory / f"{side}.txt").read_text(encoding="utf-8")
        (tmp_path / side).write_text(text.upper(), encoding="utf-8")
    files = json.loads(mtx("evaluate", run_copy, "--src", tmp_path / "src", "--ref", tmp_path / "ref", "--json").stdout)
    assert files["src"]["bleu"]["score"] == ours["heldout, upper case"]["bleu"]["score"]
    refused(2, ["--robust", "MODEL"], "evaluate", "--robust", "--hyp", directory / "hyp.txt", "--ref", tmp_path / "ref")


def test_leaked_lines_are_left_out_of_another_score(run_copy: Path, tmp_path: Path, refused: Any) -> None:
    def store(leaks: dict[str, Any]) -> None:
        report["tests"]["heldout"]["leaks"] = leaks
        (run_copy / "data" / "report.json").write_text(json.dumps(report))
        durable.write_manifest(run_copy / "data")

    report = json.loads((run_copy / "data" / "report.json").read_bytes())
    assert report["tests"]["heldout"]["leaks"]["lines"] == []
    leaked = [1, 4, 20]
    store({"train_pairs": 3, "example": None, "lines": leaked})
    result = mtx("evaluate", run_copy, "--without-leaks", "--json")
    ours = json.loads(result.stdout)
    assert list(ours) == ["heldout", "heldout, without leaks"]
    directory = run_copy / "evaluation" / "heldout"
    for side in ("hyp", "ref"):
        lines = (directory / f"{side}.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for number, line in enumerate(lines, 1) if number not in leaked]
        (tmp_path / side).write_text("".join(kept), encoding="utf-8")
    assert "heldout: 17 of 20 lines have no match in the training text" in result.stderr.decode()
    theirs = _sacrebleu(tmp_path / "ref", tmp_path / "hyp")
    scores = ours["heldout, without leaks"]
    assert {name: round(scores[key]["score"], 6) for name, key in NAMES.items()} == theirs
    store({"train_pairs": 0, "example": None})
    refused(2, ["an earlier version of mtx has prepared its data"], "evaluate", run_copy, "--without-leaks")
    store({"lines": [*range(1, 21)]})
    assert list(json.loads(mtx("evaluate", run_copy, "--without-leaks", "--json").stdout)) == ["heldout"]
    needs_run = ["--without-leaks needs a run"]
    refused(2, needs_run, "evaluate", run_copy / "model", "--without-leaks")
    refused(2, needs_run, "evaluate", "--hyp", tmp_path / "hyp", "--ref", tmp_path / "ref", "--without-leaks")
    refused(2, needs_run, "evaluate", run_copy, "--without-leaks", "--src", tmp_path / "ref", "--ref", tmp_path / "ref")


def test_published_protocols_are_printed_below_sacrebleus_own_score(run_copy: Path, tmp_path: Path) -> None:
    for name, line in (("hyp", 'Der "Rich-Text" ist Müll.'), ("ref", "Der „Rich-Text“ ist Müll.")):
        (tmp_path / name).write_text(f"{line}\n", encoding="utf-8")
    files = ["evaluate", "--hyp", tmp_path / "hyp", "--ref", tmp_path / "ref"]
    plain = mtx(*files).stdout.decode()
    aiayn = mtx(*files, "--direction", "en-de", "--protocol", "aiayn").stdout.decode()
    assert aiayn.startswith(plain + "hyp aiayn BLEU 100.00  nrefs:1|case:mixed|eff:no|tok:ascii-punctuation+moses-de-")
    assert not plain.startswith("hyp BLEU 100")
    scores = json.loads(mtx(*files, "--direction", "en-de", "--protocol", "multi30k-lc", "--json").stdout)["hyp"]
    assert list(scores) == ["bleu", "chrf", "ter", "multi30k-lc"] and "|case:lc|" in scores["multi30k-lc"]["signature"]
    of_run = mtx("evaluate", run_copy, "--protocol", "multi30k-lc")
    lines = of_run.stdout.decode().split("\n")
    assert lines[0].startswith("heldout BLEU ") and lines[1].startswith("heldout multi30k-lc BLEU "), of_run.stderr
    of_model = mtx(
        "evaluate", run_copy / "model", "--src", run_copy / "evaluation" / "heldout" / "src.txt", "--ref",
        run_copy / "evaluation" / "heldout" / "ref.txt", "--protocol", "multi30k-lc",
    )  # fmt: skip
    assert of_model.stdout.decode() == "\n".join(line.replace("heldout", "src.txt", 1) for line in lines)


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    """An environment in which wmt14/full and wmt20/tworefs are in sacreBLEU's cache."""
    src, ref = "one two three four\nfour five six seven\n", "eins zwei drei vier\nvier fünf sechs sieben\n"
    other = "eins zwei drei fünf\nvier fünf sechs acht\n"
    for name, texts in (
        ("wmt14/full", {"src": src, "ref": ref}),
        ("wmt20/tworefs", {"src": src, "ref-0": other, "ref-1": ref}),
    ):
        directory = tmp_path / "sacrebleu" / name
        directory.mkdir(parents=True)
        for field, text in (texts | dict.fromkeys(("docid", "genre", "origlang"), "")).items():
            (directory / f"{name.replace('/', '_')}.en-de.{field}").write_text(text, encoding="utf-8")
    return {**ENVIRONMENT, "SACREBLEU": str(tmp_path / "sacrebleu")}


def test_sacrebleus_test_sets_are_scored(trained: Path, tmp_path: Path, cache: dict[str, str]) -> None:
    result = mtx("evaluate", trained, "--testset", "wmt14/full", env=cache)
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.startswith(b"wmt14-full BLEU ")
    (tmp_path / "hyp").write_text("eins zwei drei vier\nvier fünf sechs sieben\n", encoding="utf-8")
    scored_file = ["evaluate", "--hyp", tmp_path / "hyp", "--testset", "wmt14/full", "--direction", "en-de"]
    same = mtx(*scored_file, env=cache)
    assert same.stdout.startswith(b"wmt14-full BLEU 100.00 [100.0, 100.0]  chrF2 100.0  TER 0.0")
    both = mtx(*scored_file, "--protocol", "aiayn", env=cache).stdout
    assert both.startswith(same.stdout + b"wmt14-full aiayn BLEU 100.00  ")


@pytest.mark.extended
def test_all_references_of_sacrebleus_test_sets_count(trained: Path, tmp_path: Path, cache: dict[str, str]) -> None:
    hyp = tmp_path / "hyp"
    hyp.write_text("eins zwei drei vier\nvier fünf sechs acht\n", encoding="utf-8")  # a line of each reference
    scored_file = ["evaluate", "--hyp", hyp, "--testset", "wmt20/tworefs", "--direction", "en-de"]
    line = mtx(*scored_file, env=cache).stdout
    assert line.startswith(b"wmt20-tworefs BLEU 100.00 [100.0, 100.0]  chrF2 100.0  TER 0.0  nrefs:2|case:mixed")
    both = mtx(*scored_file, "--protocol", "aiayn", env=cache).stdout
    assert both.startswith(line + b"wmt20-tworefs aiayn BLEU 100.00  nrefs:2|")
    theirs = [sys.executable, "-m", "sacrebleu", "-t", "wmt20/tworefs", "-l", "en-de", "-i", str(hyp), "-b"]
    assert float(subprocess.run(theirs, env=cache, capture_output=True, check=True).stdout) == 100
    result = mtx("evaluate", trained, "--testset", "wmt20/tworefs", env=cache)
    assert result.returncode == 0 and b"  nrefs:2|case:mixed" in result.stdout, result.stderr


def test_wrong_requests_are_refused(refused, trained: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for name, text in (("two", "a\nb\n"), ("three", "a\nb\nc\n"), ("empty", "")):
        (tmp_path / name).write_text(text)
    two, three, empty = (tmp_path / name for name in ("two", "three", "empty"))
    refused(1, ["two has 2 lines", "three has 3"], "evaluate", "--hyp", two, "--ref", three)
    refused(1, ["nothing to score"], "evaluate", "--hyp", empty, "--ref", empty)
    refused(2, ["no such file"], "evaluate", "--hyp", tmp_path / "none", "--ref", two)
    refused(2, ["--hyp needs"], "evaluate", "--hyp", two)
    published = ["evaluate", "--hyp", two, "--ref", two, "--protocol", "aiayn"]
    refused(2, ["--protocol aiayn", "--direction en-de"], *published)
    refused(2, ["expected the target language de or fr, got zh"], *published, "--direction", "en-zh")
    refused(2, ["'multi30k-lc'"], "evaluate", trained, "--protocol", "wmt")
    refused(2, ["MODEL or --hyp"], "evaluate")
    refused(2, ["--src and --ref"], "evaluate", trained, "--src", two)
    refused(2, ["no test set wmt99"], "evaluate", trained, "--testset", "wmt99")
    refused(2, ["--src and --ref"], "evaluate", trained, "--testset", "wmt14/full", "--src", two, "--ref", two)
    refused(2, ["--direction"], "evaluate", trained, "--direction", "en-de")
    refused(2, ["--direction"], "evaluate", trained, "--src", two, "--ref", two, "--direction", "en-de")
    with FileLock(trained / "run.lock"):
        refused(1, ["in use by another process"], "evaluate", trained)
    refused(
        2, ["for the direction xx-yy", "en-de"], "evaluate", trained, "--testset", "wmt14/full", "--direction", "xx-yy"
    )
    refused(2, ["expected two languages"], "evaluate", trained, "--testset", "wmt14/full", "--direction", "german")
    refused(2, ["not a run directory", "--src FILE --ref FILE"], "evaluate", trained / "model")
    refused(2, ["no such"], "evaluate", tmp_path / "nowhere")
    shutil.copytree(trained / "model", tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    result = mtx("evaluate", tmp_path / "model", "--src", two, "--ref", two)
    check_error(result.returncode, result.stderr.decode(), 1, "tokenizer.json: missing file")


def test_text_that_is_not_utf_8_is_refused_with_its_encoding(refused, trained: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """References in cp1252 were scored as if every umlaut were wrong, and UTF-16 as noise."""
    text, names = "Das Mädchen läuft über die Straße.\n" * 3, ("good", "cp1252", "utf-16")
    good, narrow, wide = (tmp_path / name for name in names)
    for path, codec in zip((good, narrow, wide), ("utf-8", "cp1252", "utf-16"), strict=True):
        path.write_text(text, encoding=codec)
    words = [f"{narrow}:1: not UTF-8, perhaps WINDOWS-1252", f"iconv -f WINDOWS-1252 -t UTF-8 {narrow} > NEW"]
    for hyp, ref in ((good, narrow), (narrow, good)):
        refused(1, words, "evaluate", "--hyp", hyp, "--ref", ref)
        refused(1, words, "compare", good, hyp, "--ref", ref)
        refused(1, words, "evaluate", trained, "--src", hyp, "--ref", ref)
        refused(1, words, "logprob", trained, hyp, ref, "-o", tmp_path / "out")
    wide_words = [f"{wide}: expected UTF-8, got UTF-16", f"iconv -f UTF-16 -t UTF-8 {wide} > NEW"]
    refused(1, wide_words, "evaluate", "--hyp", good, "--ref", wide)
    refused(1, wide_words, "translate", trained, wide, "-o", tmp_path / "out")
    refused(1, wide_words, "translate", trained, good, "--prefix", wide, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_references_that_are_too_short_for_bleu_are_told(tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("Open\nSave as\nQuit\n")
    for arguments in (("evaluate", "--hyp", tmp_path / "ref"), ("compare", tmp_path / "ref", tmp_path / "ref")):
        result = mtx(*arguments, "--ref", tmp_path / "ref")
        assert result.returncode == 0 and result.stderr.count(b"warning: ref: half of the references have fewer") == 1


def test_an_estimate_of_quality_needs_text_with_references(refused, run_copy: Path) -> None:  # type: ignore[no-untyped-def]
    model = run_copy / "model"
    before = tree(model)
    refused(2, ["--fit-quality needs MODEL, --src and one --ref"], "evaluate", model, "--fit-quality")
    src, ref = (run_copy / "evaluation" / "heldout" / name for name in ("src.txt", "ref.txt"))
    words = ["no estimate of quality was fitted"]
    refused(1, words, "evaluate", model, "--fit-quality", "--src", src, "--ref", ref)
    assert tree(model) == before
