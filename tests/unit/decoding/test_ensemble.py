"""Models that search together: by the mean of their probabilities, with one tokenizer, and on torch alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from mtx.commands.inspect_model import sentence_vectors
from mtx.decoding.translator import Translator
from mtx.errors import UsageError
from mtx.storage.run_files import model_identity
from tests.exports import lively_bundle, small_tokenizer
from tests.unit.decoding.test_beam_search import Prefix, TableModel, brute_force, run, same

LINES = ["ab cde", "fgü a", "cab fad gab", "", "gab ab"]


class MeanOfTables(TableModel):
    """The mean of two tables, by hand."""

    def __init__(self, *models: TableModel):
        super().__init__(models[0].pad_id)
        self.models = models

    def log_probs(self, source: int, prefix: Prefix) -> Tensor:
        return torch.stack([model.log_probs(source, prefix).exp() for model in self.models]).mean(0).log()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and one with another tokenizer."""
    root = tmp_path_factory.mktemp("models")
    for number in (1, 2):
        lively_bundle(small_tokenizer(), root / f"model-{number}", seed=number)
    lively_bundle(small_tokenizer(tag="ELSE"), root / "other")
    return root


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_wide_beam_is_brute_force_over_the_mean_probability(alpha: float) -> None:
    tables, sources = [TableModel(4, seed=1), TableModel(4, seed=2)], list(range(8))
    expected = [brute_force(MeanOfTables(*tables), source, 4, alpha) for source in sources]
    found = run(tables, sources, [4] * 8, 64, alpha)
    for own, others in zip(found, expected, strict=True):
        same(own, others[: len(own)])
    alone = run(tables[0], sources, [4] * 8, 64, alpha)
    assert [c[0].ids for c in found] != [c[0].ids for c in alone]


def test_a_model_with_itself_is_the_model(models: Path) -> None:
    names = models / "model-1", f"{models}/model-1+{models}/model-1"
    one, twice = (Translator.load(name, engine="torch", threads=1) for name in names)
    assert [len(one.torch.models), len(twice.torch.models)] == [1, 2]
    pairs = zip(one.hypotheses(LINES), twice.hypotheses(LINES), strict=True)
    for own, both in pairs:
        assert [h.text for h in own] == [h.text for h in both]
        assert [h.score for h in own] == pytest.approx([h.score for h in both], abs=1e-4)


@pytest.mark.seconds
def test_what_an_ensemble_does_and_does_not(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    name = f"{models}/model-1+{models}/model-2"
    translator = Translator.load(name, device="cpu", threads=2)
    assert translator.engine.name == "torch" and not caplog.messages
    alone = [Translator.load(models / f"model-{number}", device="cpu", threads=1) for number in (1, 2)]
    out = translator.translate(LINES)
    assert out == [translator.translate([line])[0] for line in LINES]
    assert all(out != one.translate(LINES) for one in alone)
    ids = translator.tokenizer.encode(["ab cde"])
    rows = [one.torch.cross_attention(ids, ids)[0] for one in alone]
    assert np.allclose(translator.engine.cross_attention(ids, ids)[0], np.mean(rows, axis=0), atol=1e-6)
    for refused in (lambda: translator.log_probs(["ab"], ["ab"]), lambda: translator.attention_maps(["ab"])):
        with pytest.raises(UsageError, match="not supported for an ensemble"):
            refused()
    with pytest.raises(UsageError, match="only the engine torch supports ensembles of models"):
        Translator.load(name, precision="int8")
    assert model_identity(name) == "+".join(model_identity(models / f"model-{number}") for number in (1, 2))


def test_the_vectors_of_an_ensemble_are_those_of_its_models_side_by_side(models: Path) -> None:
    names = models / "model-1", models / "model-2", f"{models}/model-1+{models}/model-2"
    one, two, both = (
        sentence_vectors(Translator.load(name, engine="torch", threads=1), ["ab cde", "fgü"]) for name in names
    )
    np.testing.assert_allclose(both, np.concatenate([one, two], 1), atol=1e-6)


def test_models_that_cannot_search_together(models: Path) -> None:
    with pytest.raises(UsageError, match="model-1 and .*other: an ensemble needs models with the same tokenizer"):
        Translator.load(f"{models}/model-1+{models}/other", engine="torch")
    for name, missing in ((f"{models}/model-1+", r"\+"), (f"{models}/model-1+nowhere", "nowhere")):
        with pytest.raises(UsageError, match=f"^{missing}: no such model directory"):
            Translator.load(name, engine="torch")
