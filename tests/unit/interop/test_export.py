"""How far an export may be from mtx."""

from pathlib import Path

import pytest

from mtx.errors import MtxError
from mtx.interop.cards import Comparison
from mtx.interop.export import check_tolerances, compare_export, compare_translations
from mtx.interop.huggingface import export_huggingface
from mtx.storage.model_description import language_pairs
from tests.exports import lively_bundle, small_tokenizer

WORDS = "a small house stands on the hill"


def test_shares_and_differences() -> None:
    ours, theirs = [WORDS, "one two three four five"], [WORDS, "one two three four six"]
    compared = compare_translations(ours, theirs, [WORDS, "one two three four five"], "en")
    assert (compared.num_lines, compared.identical) == (2, 0.5) and compared.bleu_difference < 0
    assert compare_translations(["two"], ["two"], ["two"], "en").bleu_difference == 0


@pytest.mark.parametrize(
    "precision, comparison, is_refused",
    [
        ("fp32", Comparison(200, 0.98, 0.1), False),
        ("fp32", Comparison(200, 0.975, 0.0), True),
        ("fp32", Comparison(200, 1.0, -0.11), True),
        ("fp16", Comparison(200, 0.95, -0.2), False),
        ("fp16", Comparison(200, 0.94, 0.0), True),
        ("int8", Comparison(200, 0.5, -1.0), False),
        ("int8", Comparison(200, 0.5, -1.1), True),
        ("int8", Comparison(99, 0.5, -9.0), False),
    ],
)
def test_what_is_refused(precision: str, comparison: Comparison, is_refused: bool) -> None:
    if not is_refused:
        check_tolerances(comparison, precision)
        return
    with pytest.raises(MtxError, match=r"200 lines.* nothing was written"):
        check_tolerances(comparison, precision)


@pytest.mark.seconds
def test_lines_that_mtx_cuts_are_not_compared_with_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("transformers")
    loaded = lively_bundle(small_tokenizer(), tmp_path / "model")
    export_huggingface(loaded, tmp_path / "export")
    long = "ab cd " * 200
    paths = tmp_path / "model", "huggingface", tmp_path / "export"
    (pair,) = language_pairs(loaded.info)
    assert compare_export(*paths, {pair: [[long], ["x"]]}) is None
    assert "all lines are too long for the model, in capitals or codes" in caplog.text
    comparison = compare_export(*paths, {pair: [[long, "ab cd"], ["x", "y"]]})
    assert comparison == Comparison(1, 1.0, 0.0)
