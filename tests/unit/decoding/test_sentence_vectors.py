"""The vector of a line depends on that line alone, and no part of its text is left out."""

import numpy as np
import pytest

from mtx.decoding.sentence_vectors import SentenceEncoder
from mtx.decoding.torch_engine import TorchTranslator
from tests.exports import INFO, lively_bundle, small_tokenizer

LINES = ["ab cde fgü", "", "a", " cab\tfad  gab ", "\x00", "ab " * 60]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    directory = tmp_path_factory.mktemp("model") / "model"
    lively_bundle(small_tokenizer(), directory)
    return SentenceEncoder(TorchTranslator.load(directory, device="cpu", threads=1, split_sentences=False))


def test_a_line_has_a_vector_for_each_piece_and_their_mean(encoder: SentenceEncoder) -> None:
    for line, mean in zip(encoder.of_pieces(LINES), encoder.means(LINES), strict=True):
        assert line.vectors.shape == (len(line.pieces), encoder.size) and line.vectors.dtype == mean.dtype == np.float32
        np.testing.assert_allclose(line.vectors.mean(0) if line.pieces else np.zeros(16), mean, atol=1e-6)
    assert [len(line.pieces) for line in encoder.of_pieces(["", " "])] == [0, 0]
    assert encoder.of_pieces(["a"])[0].pieces[-1] == "</s>"


def test_lines_do_not_change_each_other(encoder: SentenceEncoder) -> None:
    together = encoder.means(LINES)
    for order in (LINES[::-1], [*LINES[3:], *LINES[:3]]):
        for line, mean in zip(order, encoder.means(order), strict=True):
            np.testing.assert_allclose(mean, together[LINES.index(line)], atol=1e-6)
    np.testing.assert_allclose(encoder.means(LINES[:1])[0], together[0], atol=1e-6)
    assert encoder.means([]).shape == (0, 16)


def test_the_parts_of_a_long_line_count_by_their_pieces(encoder: SentenceEncoder) -> None:
    """120 pieces and one `</s>` in each part of at most 24 tokens."""
    [line], most = encoder.of_pieces(["ab " * 60]), INFO["max_tokens"]
    ends = [place + 1 for place, piece in enumerate(line.pieces) if piece == "</s>"]
    assert ends[:-1] == list(range(most, len(line.pieces), most)) and ends[-1] == len(line.pieces) and len(ends) > 2
    text = "".join(piece for piece in line.pieces if piece != "</s>")
    assert text.replace("▁", " ").split() == ["ab"] * 60
    np.testing.assert_allclose(line.vectors.mean(0), encoder.means(["ab " * 60])[0], atol=1e-6)


def test_a_small_batch_gives_the_same(encoder: SentenceEncoder) -> None:
    lines = [*LINES, *LINES[::-1]]
    expected, translator = encoder.means(lines), encoder.translator
    pieces, whole = encoder.of_pieces(lines), translator.batch_tokens
    try:
        translator.batch_tokens = 30
        np.testing.assert_allclose(encoder.means(lines), expected, atol=1e-6)
        for own, other in zip(encoder.of_pieces(lines), pieces, strict=True):
            np.testing.assert_allclose(own.vectors, other.vectors, atol=1e-6)
    finally:
        translator.batch_tokens = whole
