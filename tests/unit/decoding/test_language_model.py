"""A language model reads a line where training has it: behind an empty source and the pad that begins a target."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mtx.data.tokenizer import EOS_ID
from mtx.decoding.ensemble import load_torch
from mtx.decoding.options import EXTRA_LENGTH, Sampling, SearchOptions
from mtx.decoding.sampling import Sampler
from mtx.decoding.sentence_vectors import SentenceEncoder
from mtx.decoding.torch_engine import TorchTranslator
from mtx.errors import UsageError
from mtx.model_directory import storage
from tests.exports import INFO, small_tokenizer
from tests.models import batch_of, tiny_model


@pytest.fixture(scope="module", params=["all", "none"])
def translator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchTranslator:
    directory, tokenizer = tmp_path_factory.mktemp("model") / "model", small_tokenizer()
    model = tiny_model(tokenizer.num_ids, dtype=torch.float32, architecture="decoder", tie=request.param)
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


def test_prompts_draw_their_own_numbers(translator: TorchTranslator) -> None:
    sampler = Sampler(Sampling(), num_slots=2, max_length=9, device=torch.device("cpu"))
    requests = translator._requests([[EOS_ID]] * 2, [[5, 6], [5, 7]], 1)
    sampler.admit([0, 1], [[*request.source, *request.prefix] for request in requests], [0, 0])
    assert not torch.equal(*sampler.uniform)
    options = translator.options
    translator.options = SearchOptions(sampling=Sampling(temperature=20.0), max_length=40)
    try:
        texts = translator.decode([[EOS_ID]] * 2, [[5, 6], [5, 7]])
    finally:
        translator.options = options
    first, second = (candidates[0].ids[2:] for candidates in texts)
    assert first != second


def test_a_prompt_leaves_room_for_what_follows(translator: TorchTranslator) -> None:
    [request] = translator._requests([[EOS_ID]], [[5] * 60], 1)
    assert request.limit == 1 + 60 + EXTRA_LENGTH


def test_there_are_no_sources(translator: TorchTranslator) -> None:
    assert translator.log_probs([""], ["ab"])
    with pytest.raises(UsageError, match="without sources"):
        translator.log_probs(["a"], ["ab"])
    with pytest.raises(UsageError, match="no translations"):
        translator.attention_maps(["a"], ["ab"])


def test_a_translator_and_a_language_model_do_not_search_together(translator: TorchTranslator, tmp_path: Path) -> None:
    for name, src in (("one", None), ("other", "de")):
        info = {**INFO, "src": src}
        config = translator.model.config
        storage.write(tmp_path / name, translator.model.state_dict(), config, translator.tokenizer, info)
    with pytest.raises(UsageError, match="a translator and a language model cannot search together"):
        load_torch(f"{tmp_path / 'one'}+{tmp_path / 'other'}", device="cpu")
