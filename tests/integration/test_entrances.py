"""A line has one translation, whatever entrance it takes, with all its codes, its bullet and its number."""

import html
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx import cli
from mtx.config.schema import Config, TokenizerConfig
from mtx.data.sentence_splitter import sentence_splitter
from mtx.data.tokenizer import train_tokenizer
from mtx.decoding.options import Attention, Candidate, SearchOptions
from mtx.decoding.translator import Translator
from mtx.documents.document import translate_document
from mtx.evaluation.test_set_scores import system_outputs, translate
from mtx.scoring.metrics import TestSet, write_test_set
from mtx.storage.durable import read_json
from mtx.storage.resumable import Shard
from mtx.synthesis import synthetic_text
from mtx.synthesis.teachers import ModelTeacher
from mtx.training import run, validation
from mtx.training.ranks import Ranks
from tests.integration.commands import TINY, pairs
from tests.translators import FakeTranslator

WORDS = {
    "open": "öffne", "close": "schließe", "the": "das", "a": "ein", "file": "Dokument", "files": "Dokumente",
    "window": "Fenster", "new": "neue", "now": "jetzt", "you": "du", "have": "hast", "and": "und", "see": "siehe",
    "for": "für", "more": "mehr", "has": "hat", "pages": "Seiten",
}  # fmt: skip
LINES = {
    "open the file %s now": "öffne das Dokument %s jetzt",
    "- you have {count} new files": "- du hast {count} neue Dokumente",
    "  open $HOME and close the window": "  öffne $HOME und schließe das Fenster",
    "1) see https://example.org/a_b for more files": "1) siehe https://example.org/a_b für mehr Dokumente",
    "<b>open</b> the new window": "<b>öffne</b> das neue Fenster",
    "• close 3 files 🎉": "• schließe 3 Dokumente 🎉",
    "2. Open the file %d. Close the window.": "2. Öffne das Dokument %d. Schließe das Fenster.",
    "the file {0} has 10 pages, and {1} 5": "das Dokument {0} hat 10 Seiten, und {1} 5",
}


class ByWord(FakeTranslator):
    """Translates word by word, sentence by sentence; the attention of a word is on its source."""

    name = "ctranslate2"

    def __init__(self) -> None:
        words = [*WORDS, *WORDS.values(), *"0123456789.,"]
        text = [" ".join(words), " ".join(word.capitalize() for word in words)] * 50
        super().__init__(train_tokenizer(text, TokenizerConfig(vocab_size=600), 1, []), 50, SearchOptions())
        self.directions, self._languages = [("en", "de")], ("en", "de")
        self.splitter = sentence_splitter("en")

    def search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: SearchOptions
    ) -> list[list[Candidate]]:
        texts = [re.sub(r"[A-Za-z]+", _translation, text) for text in self.tokenizer.decode([*sources])]
        return [[Candidate(ids, 0.0)] for ids in self.tokenizer.encode(texts, target=True)]

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        words = [[self._words(ids) for ids in side] for side in (sources, targets)]
        return [np.equal.outer(tgt, src).astype(np.float32) for src, tgt in zip(*words, strict=True)]

    def _words(self, ids: list[int]) -> list[int]:
        return np.cumsum([piece.startswith("▁") for piece in self.tokenizer.pieces(ids)]).tolist()

    def log_probs(self, *_: Any, **__: Any) -> list[Any]:
        return []


def _translation(match: re.Match[str]) -> str:
    word = WORDS.get(match[0].lower(), match[0])
    return word if match[0].islower() else word.capitalize()


def _python(translator: ByWord, path: Path) -> list[str]:
    return translator.translate([*LINES])


def _one_by_one(translator: ByWord, path: Path) -> list[str]:
    return [translator.translate([line])[0] for line in LINES]


def _file(translator: ByWord, path: Path) -> list[str]:
    return _command(path, _write(path / "in.txt", LINES))


def _pipe(translator: ByWord, path: Path) -> list[str]:
    reader, writer = os.pipe()
    thread = threading.Thread(target=lambda: (os.write(writer, "\n".join(LINES).encode()), os.close(writer)))
    thread.start()
    try:
        return _command(path, Path(f"/dev/fd/{reader}"))
    finally:
        thread.join()
        os.close(reader)


def _command(path: Path, source: Path, *command: str) -> list[str]:
    (path / "model").mkdir(exist_ok=True)
    assert cli.run([*(command or ("translate",)), str(path / "model"), str(source), "-o", str(path / "out")]) == 0
    return (path / "out").read_text(encoding="utf-8").split("\n")[:-1]


def _write(path: Path, lines: Sequence[str] | dict[str, str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _evaluate(translator: ByWord, path: Path) -> list[str]:
    write_test_set(path / "t", translate(translator, TestSet("t", "de", [*LINES], [*LINES.values()])), {})
    return (path / "t" / "hyp.txt").read_text(encoding="utf-8").split("\n")[:-1]


def _compare(translator: ByWord, path: Path) -> list[str]:
    test_set = TestSet("t", "de", [*LINES], [*LINES.values()])
    [system], _ = system_outputs(test_set, [path], {path: translator})
    return list(system.hypotheses)


def _back_translate(translator: ByWord, path: Path) -> list[str]:
    return [pair.split("\t")[0] for pair in _command(path, _write(path / "in.txt", LINES), "back-translate")]


def _distil(translator: ByWord, path: Path) -> list[str]:
    _write(path / synthetic_text.TRAIN, [f"{line}\tx" for line in LINES])
    output = path / synthetic_text.DISTILLED
    lines = Shard(lambda: synthetic_text.source_lines(path, None))
    synthetic_text.translate_text(ModelTeacher(translator), lines, output, {})
    return [pair.split("\t")[1] for pair in output.read_text(encoding="utf-8").split("\n")[:-1]]


def _served(translator: Translator, form: str, lines: Iterable[str] = LINES) -> list[str]:
    pytest.importorskip("starlette")
    from tests.unit.serve.fakes import served

    texts = [line if form == "text" else f"<p>{line}</p>" for line in lines]
    with served(translator) as client:
        answer = client.post("/translate", json={"q": texts, "source": "en", "target": "de", "format": form})
    found: list[str] = answer.json()["translatedText"]
    return [text.removeprefix("<p>").removesuffix("</p>") for text in found]


# A document around units, a unit of a number and a line, and where its translation is
DOCUMENTS = {
    "xliff": (
        '<xliff version="1.2"><file source-language="en" original="a"><body>{}</body></file></xliff>',
        '<trans-unit id="{}"><source>{}</source></trans-unit>',
        r"<target[^>]*>(.*?)</target>",
    ),
    "tmx": (
        '<tmx version="1.4"><header srclang="en"/><body>{}</body></tmx>',
        '<tu tuid="{}"><tuv xml:lang="en"><seg>{}</seg></tuv></tu>',
        r'<tuv xml:lang="de"><seg>(.*?)</seg>',
    ),
    "po": ("{}", '#: {}\nmsgid "{}"\nmsgstr ""\n\n', r'msgstr "(.*)"'),
    "html": ("{}", '<p id="{}">{}</p>\n', r"<p.*?>(.*)</p>"),
    "markdown": ("{}", "<!-- {} -->\n\n{}\n\n", r"-->\n\n(.*)\n"),
    "subtitles": ("{}", "{}\n00:00:01,000 --> 00:00:02,000\n{}\n\n", r"--> .*\n(.*)\n"),
}


def _document(translator: ByWord, path: Path, kind: str) -> list[str]:
    whole, unit, pattern = DOCUMENTS[kind]
    is_xml = kind in ("xliff", "tmx")
    lines = [html.escape(line, quote=False) if is_xml else line for line in LINES]
    document = path / "document"
    document.write_text(whole.format("".join(map(unit.format, range(1, 9), lines))), encoding="utf-8")
    made = translate_document(document, kind, ("en", "de"), False, translator.translate_marked).decode()
    found = re.findall(pattern, made)
    return [html.unescape(line) for line in found] if is_xml else found


ENTRANCES: dict[str, Callable[[ByWord, Path], list[str]]] = {
    "Python": _python, "one line": _one_by_one, "a file": _file, "a pipe": _pipe, "evaluate": _evaluate,
    "compare": _compare, "back-translate": _back_translate, "distil": _distil,
    "/translate text": lambda translator, path: _served(translator, "text"),
    "/translate html": lambda translator, path: _served(translator, "html"),
    **{kind: partial(_document, kind=kind) for kind in DOCUMENTS},
}  # fmt: skip
_WITHOUT_INDENTATION = {"evaluate", "compare", "back-translate", "distil"}


@pytest.mark.parametrize("codes", [(), ("%s", "%d", "{count}", "{0}", "{1}", "$HOME")], ids=["none learned", "learned"])
@pytest.mark.parametrize("entrance", ENTRANCES)
def test_a_line_has_one_translation(
    codes: Sequence[str], entrance: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = ByWord()
    translator.codes = frozenset(codes)
    monkeypatch.setattr("mtx.decoding.translator.Translator.load", lambda *_, **__: translator)
    expected = [*LINES.values()]
    if entrance in _WITHOUT_INDENTATION:
        expected = [line.strip() for line in expected]
    assert ENTRANCES[entrance](translator, tmp_path) == expected


def test_training_translates_its_sets_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = ByWord()
    monkeypatch.setattr("mtx.decoding.translator.Translator.load", lambda *_, **__: translator)
    found = list[tuple[TestSet, list[tuple[str, None]]]]()
    monkeypatch.setattr(run, "_finish", lambda run, hooks, translator, tests: found.extend(tests))
    store: Any = SimpleNamespace(num_pairs=len(LINES), src_texts=lambda: [*LINES], tgt_texts=lambda: [*LINES.values()])
    ended: Any = SimpleNamespace(
        paths=SimpleNamespace(model=tmp_path),
        runtime=SimpleNamespace(device="cpu", threads=1),
        config=Config.model_validate({"run_dir": str(tmp_path), "data": {"src": "en", "tgt": "de"}}),
        data=SimpleNamespace(tests={"t": store}),
    )
    run._score(ended, Ranks(), [])
    [(test_set, translations)] = found
    assert test_set == TestSet("t", "de", [*LINES], [*LINES.values()], src="en")
    assert translations == [(line, None) for line in LINES.values()]
    monkeypatch.setattr(validation, "TorchEngine", lambda *_: translator)
    config = Config.model_validate({"run_dir": str(tmp_path), "data": {"src": "en", "tgt": "tr"}})
    side: Any = SimpleNamespace(sentences=lambda rows: [])
    store.src = store.tgt = side
    sources = [*LINES, "SEE THE FILE NOW"]
    store.num_pairs, store.corpus = len(sources), np.zeros(len(sources), int)
    store.texts = lambda rows: ([sources[row] for row in rows], [])
    data: Any = SimpleNamespace(valid=store, tokenizer=translator.tokenizer, report={})
    part = validation.validate_part(config, data, Any)
    assert part["hypotheses"] == [*LINES.values(), "SİEHE DAS DOKUMENT JETZT"], "the case of the target language"


def test_scores_are_equal_whatever_translated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of `mtx train`, of `mtx evaluate RUN`, and of what `mtx translate`, Python and /translate wrote."""
    known = [(f"{src} %s", f"{tgt} %s") for src, tgt in pairs(range(650))]
    tests = [
        (f"- {src} %s. {src} www.a.de/b 42", f"- {tgt} %s. {tgt} www.a.de/b 42") for src, tgt in pairs(range(650, 700))
    ]
    for name, rows in (("train", known[:600]), ("valid", known[600:]), ("test", tests)):
        _write(tmp_path / f"{name}.tsv", ["\t".join(pair) for pair in rows])
    sources, references = (list(side) for side in zip(*tests, strict=True))
    source, reference = _write(tmp_path / "src", sources), _write(tmp_path / "ref", references)
    files = [f"data.{name}={tmp_path / name}.tsv" for name in ("train", "valid", "test")]
    few = ["training.max_steps=8", "training.validate_every=4", "device=cpu"]
    assert cli.run(["train", *TINY, *files, *few, f"run_dir={tmp_path / 'run'}"]) == 0
    expected = read_json(tmp_path / "run" / "model" / "scores.json")["test"]
    outputs = {"Python": Translator.load(tmp_path / "run").translate(sources)}
    assert cli.run(["translate", str(tmp_path / "run"), str(source), "-o", str(tmp_path / "out")]) == 0
    outputs["mtx translate"] = (tmp_path / "out").read_text(encoding="utf-8").split("\n")[:-1]
    outputs["/translate"] = _served(Translator.load(tmp_path / "run"), "text", sources)
    capsys.readouterr()
    assert cli.run(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    assert _without_intervals(capsys.readouterr().out)["test"] == expected
    for name, lines in outputs.items():
        hypotheses = _write(tmp_path / "hyp", lines)
        assert cli.run(["evaluate", "--hyp", str(hypotheses), "--ref", str(reference), "--json"]) == 0
        assert _without_intervals(capsys.readouterr().out)["hyp"] == expected, name


def _without_intervals(printed: str) -> Any:
    def without(found: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in found.items() if key != "interval"}

    return json.loads(printed, object_hook=without)
