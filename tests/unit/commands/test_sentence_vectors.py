"""The vector of a line depends on that line alone, and no part of its text is left out."""

import numpy as np
import pytest
import torch

from mtx.commands.inspect_model import sentence_vectors
from mtx.decoding.translator import Translator
from mtx.model.architectures import new_search_model
from tests.exports import INFO, lively_bundle, small_tokenizer

LINES = ["ab cde fgü", "", "a", " cab\tfad  gab ", "\x00", "ab " * 60]


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Translator:
    directory = tmp_path_factory.mktemp("model") / "model"
    lively_bundle(small_tokenizer(), directory)
    return Translator.load(directory, engine="torch", device="cpu", threads=1, split_sentences=False)


def test_a_vector_is_the_mean_over_the_pieces_of_all_parts(translator: Translator) -> None:
    vectors, by_line = sentence_vectors(translator, LINES), translator.split([[line] for line in LINES])
    parts = [[part for part in parts if part.text] for parts in by_line]  # without indentation
    assert (vectors.shape, vectors.dtype) == ((6, 16), np.float32)
    assert len(parts[-1]) > 2 and max(len(part.ids) for part in parts[-1]) == INFO["max_tokens"]
    engine = new_search_model(translator.torch.model, torch.float32)
    for vector, some in zip(vectors, parts, strict=True):
        states = [state.numpy() for state in engine.source_states([part.ids for part in some])] if some else []
        expected = np.concatenate(states).mean(0) if states else np.zeros(16)
        np.testing.assert_allclose(vector, expected, atol=1e-6)
    assert vectors.any(1).tolist() == [True, False, True, True, True, True]


def test_lines_do_not_change_each_other(translator: Translator) -> None:
    together = sentence_vectors(translator, LINES)
    for order in (LINES[::-1], [*LINES[3:], *LINES[:3]]):
        for line, vector in zip(order, sentence_vectors(translator, order), strict=True):
            np.testing.assert_allclose(vector, together[LINES.index(line)], atol=1e-6)
    assert sentence_vectors(translator, []).shape == (0, 16)


def test_a_small_batch_gives_the_same(translator: Translator) -> None:
    expected, whole = sentence_vectors(translator, LINES), translator.torch.batch_tokens
    try:
        translator.torch.batch_tokens = 30
        np.testing.assert_allclose(sentence_vectors(translator, LINES), expected, atol=1e-6)
    finally:
        translator.torch.batch_tokens = whole
