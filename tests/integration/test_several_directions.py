"""`--to` and `--from`, documents and the server choose a direction of one model, and its exports keep all of them."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mtx.data.sentencepiece_models import SplitModel
from mtx.data.tokenizer import Tokenizer
from mtx.decoding import model_directory
from tests.integration.commands import mtx, write_tsv
from tests.models import tiny_model
from tests.unit.data.test_tokenizer import PIECES, side_model
from tests.unit.decoding.test_translator_directions import LINES, multilingual
from tests.unit.documents.test_find_direction import PO


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose ids name the target language, or both; only its translations depend on that."""
    root = tmp_path_factory.mktemp("several")
    (root / "text").write_text("\n".join(LINES) + "\n")
    (root / "german.po").write_text(PO.format(tgt="de"))
    return multilingual(root / "model", getattr(request, "param", "target"))


def run(*arguments: Any, code: int = 0) -> tuple[str, str]:
    done = mtx(*arguments)
    assert done.returncode == code, done.stderr
    return done.stdout.decode(), done.stderr.decode()


def scores_of(lines: str) -> list[float]:
    return [json.loads(line)["score"] for line in lines.splitlines()]


@pytest.mark.parametrize("model", ["target", "both"], indirect=True)
def test_to_chooses_the_target(model: Path) -> None:
    text = model.parent / "text"
    translate = partial(run, "translate", model, text, "--json")  # with scores, since random models say little
    assert translate("--to", "de")[0] != translate("--to", "fr")[0]
    # with a larger beam, CTranslate2 does not end a translation right after a prefix
    greedy = ["--to", "de", "--beam", 1, "--engine"]
    scores = [scores_of(translate(*greedy, engine)[0]) for engine in ("torch", "ctranslate2")]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)
    english = [translate("--to", "en", "--from", src)[0] for src in ("de", "fr")]
    has_source = json.loads((model / "tokenizer.json").read_text())["languages"]["rule"] == "both"
    assert (english[0] != english[1]) == has_source
    log_probs = [run("logprob", model, text, text, "--to", tgt)[0] for tgt in ("de", "fr")]
    assert log_probs[0] != log_probs[1]


@pytest.mark.parametrize(
    "options, problem",
    [
        ([], "error: choose a direction of the model; it has en-de, en-fr, de-en, fr-en\nhelp: --to de"),
        (["--to", "it"], "error: --to it: no such direction; the model has en-de, en-fr, de-en, fr-en\n"),
        (["--to", "en"], "error: --to en: several directions; the model has de-en, fr-en\nhelp: --from de --to en\n"),
    ],
)
@pytest.mark.parametrize("command", ["translate", "logprob", "evaluate", "back-translate"])
def test_a_command_needs_one_direction(
    model: Path, tmp_path: Path, command: str, options: list[str], problem: str
) -> None:
    text = model.parent / "text"
    more = {"logprob": [text], "back-translate": ["-o", tmp_path / "bt.tsv"]}.get(command, [])
    arguments = ["--src", text, "--ref", text] if command == "evaluate" else [text, *more]
    assert run(command, model, *arguments, *options, code=2)[1].startswith(problem)
    assert not [*tmp_path.iterdir()]


def test_a_document_chooses_and_is_checked(model: Path) -> None:
    catalogue = model.parent / "german.po"
    assert run("translate", model, catalogue)[0] == run("translate", model, catalogue, "--to", "de")[0]
    error = run("translate", model, catalogue, "--to", "fr", code=2)[1]
    assert "german.po: is ? to de, the model translates en to fr" in error


def test_an_interrupted_translation_resumes_in_its_direction_only(model: Path, tmp_path: Path) -> None:
    from mtx.commands.translator_options import resumed_with

    plain = {"engine": "auto", "device": "cpu"}
    assert resumed_with(plain) == {"engine": ["auto", None, "cpu"]}  # that of an earlier mtx
    french, german = ({**plain, "to": tgt} for tgt in ("fr", "de"))
    assert resumed_with(french) != resumed_with(german)


def test_exports_have_all_directions(model: Path, tmp_path: Path) -> None:
    text = model.parent / "text"
    run("export", model, "--to", "ctranslate2", "-o", tmp_path / "export")
    for options in (["--to", "fr"], ["--to", "en", "--from", "fr"]):
        expected = scores_of(run("translate", model, text, "--json", "--engine", "ctranslate2", *options)[0])
        got = scores_of(run("translate", tmp_path / "export", text, "--json", *options)[0])
        assert got == pytest.approx(expected, abs=1e-3)
    error = run("export", model, "--to", "argos", "-o", tmp_path / "package", code=2)[1]
    assert "one direction and no language tokens" in error and not (tmp_path / "package").exists()


def test_a_text_of_several_directions_has_no_student(model: Path, tmp_path: Path) -> None:
    error = run("distil", model, "--to", "fr", f"run_dir={tmp_path / 'student'}", code=2)[1]
    assert "data.train or data.mono must name" in error and not (tmp_path / "student").exists()


def test_a_test_set_of_sacrebleu_has_its_own_direction(model: Path) -> None:
    asked = ["--testset", "wmt99", "--direction", "en-de", "--protocol", "aiayn"]
    assert "no test set wmt99 for the direction en-de" in run("evaluate", model, *asked, code=2)[1]


def test_pieces_that_name_languages_leave_a_published_model_its_direction(tmp_path: Path) -> None:
    """It is not refused as a model of several is; a document that fits several of its targets has its own."""
    models = SplitModel(side_model("ab"), side_model("xy"), {piece: token for token, piece in enumerate(PIECES)})
    weights = tiny_model(len(PIECES) - 1, dtype=torch.float32)
    info = {"src": "en", "tgt": "fra", "max_tokens": 24, "beam_size": 1, "length_penalty": 1.0}  # and it has >>fr<<
    published = tmp_path / "published"
    model_directory.write(published, weights.state_dict(), weights.config, Tokenizer(models, "none", []), info)
    (tmp_path / "text").write_text("ab ba\n")
    for tgt in ("fr", "de"):
        (catalogue := tmp_path / f"{tgt}.po").write_text(PO.format(tgt=tgt))
        code = {"fr": 0, "de": 2}[tgt]
        assert run("translate", published, catalogue, code=code) == run(
            "translate", published, catalogue, "--to", "fra", code=code
        )
    run("back-translate", published, tmp_path / "text", "-o", tmp_path / "bt.tsv", "--forward", published)
    text = write_tsv(tmp_path / "text.tsv", range(40))
    run(
        "prepare",
        "adapt",
        f"training.init_from={published}",
        f"data.train={text}",
        "data.max_tokens=24",
        f"run_dir={tmp_path / 'run'}",
    )
    shutil.copytree(published, tmp_path / "run" / "model")
    assert "training.max_steps" in run("distil", tmp_path / "run", "training.max_steps=no", code=2)[1]
