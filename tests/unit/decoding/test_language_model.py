"""A language model reads a line where training has it: behind an empty source and the pad that begins a target."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mtx.data.tokenizer import EOS_ID
from mtx.decoding.options import EXTRA_LENGTH
from mtx.decoding.sentence_vectors import SentenceEncoder
from mtx.decoding.torch_engine import TorchTranslator
from mtx.model_directory import storage
from tests.exports import INFO, small_tokenizer
from tests.models import batch_of, tiny_model


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> TorchTranslator:
    directory, tokenizer = tmp_path_factory.mktemp("model") / "model", small_tokenizer()
    model = tiny_model(tokenizer.num_ids, dtype=torch.float32, architecture="decoder")
    storage.write(directory, model.state_dict(), model.config, tokenizer, {**INFO, "src": None})
    return TorchTranslator.load(directory, device="cpu", threads=1)


def test_it_is_known_by_its_directory(translator: TorchTranslator) -> None:
    assert translator.is_language_model and translator.src == translator.tgt == INFO["tgt"]
    assert translator.splitter is None


def test_its_vectors_are_the_states_of_training(translator: TorchTranslator) -> None:
    model, lines = translator.model, ["ab cde", "b", ""]
    ids = translator.tokenizer.encode(lines, target=True)
    batch = batch_of([[EOS_ID]] * 3, ids, model.pad_id)
    model.prepare_positions(batch.max_tokens)
    with torch.no_grad():
        states = model.decode(batch, model.encode(batch)).split([len(line) for line in ids])
    encoder = SentenceEncoder(translator)
    for expected, line, mean in zip(states, encoder.of_pieces(lines), encoder.means(lines), strict=True):
        vectors = expected[1:].numpy()  # the first has read pad alone
        np.testing.assert_allclose(line.vectors, vectors, atol=1e-5)
        assert len(line.pieces) == len(vectors)
        np.testing.assert_allclose(mean, vectors.mean(0) if len(vectors) else 0 * mean, atol=1e-5)


def test_a_prompt_leaves_room_for_what_follows(translator: TorchTranslator) -> None:
    [request] = translator._requests([[EOS_ID]], [[5] * 60], 1)
    assert request.limit == 1 + 60 + EXTRA_LENGTH


def test_a_translator_and_a_language_model_do_not_search_together(translator: TorchTranslator, tmp_path: Path) -> None:
    from mtx.decoding.ensemble import load_torch
    from mtx.errors import UsageError

    for name, src in (("one", None), ("other", "de")):
        info = {**INFO, "src": src}
        config = translator.model.config
        storage.write(tmp_path / name, translator.model.state_dict(), config, translator.tokenizer, info)
    with pytest.raises(UsageError, match="a translator and a language model cannot search together"):
        load_torch(f"{tmp_path / 'one'}+{tmp_path / 'other'}", device="cpu")
