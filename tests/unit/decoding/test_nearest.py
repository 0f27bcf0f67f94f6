"""The nearest training sentences are those of a search by hand, each once, with its translations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtx.data.token_store import StoreWriter, TokenStore, store_batch
from mtx.decoding import nearest as module
from mtx.decoding.nearest import Neighbour, TrainingSentences

PAIRS = [
    ("a", "A"), ("b", "B"), ("a", "Ah"), ("c", "C"), ("a", "Ah"), ("d", "D"), ("b", "B"), ("e", "E"),
]  # fmt: skip
SOURCES = ["a", "b", "c", "d", "e"]


class Table:
    """An encoder by a table: each letter has a vector of its own, and a capital that of its letter."""

    rows = np.random.default_rng(3).normal(size=(5, 6)).astype(np.float32) + 4
    rows[:, 5] = 2.0  # a direction without variance

    def means(self, lines: list[str]) -> Any:
        zeros = np.zeros(6, np.float32)
        return np.array([self.rows[SOURCES.index(line.lower())] if line else zeros for line in lines])


@pytest.fixture
def sentences(tmp_path: Path) -> TrainingSentences:
    ids, (src, tgt) = [[0]] * len(PAIRS), zip(*PAIRS, strict=True)
    with StoreWriter(tmp_path / "a.arrow", 300, [1.0]) as writer:
        writer.add(store_batch(300, ids, ids, range(len(PAIRS)), [0] * len(PAIRS), [*src], [*tgt]))
    encoder: Any = Table()
    means = encoder.means([*src])
    mean, scaling = module._scaling(means)
    store = TokenStore.open(tmp_path / "a.arrow")
    return TrainingSentences(encoder, store, module._scaled(means, mean, scaling), mean, scaling)


def by_hand(line: str) -> list[tuple[str, float]]:
    """Cosines of centred vectors in which each principal direction is divided by the root of its deviation."""
    means = np.array([Table.rows[SOURCES.index(src)] for src, _ in PAIRS], np.float64)
    centred = means - means.mean(0)
    _, deviations, directions = np.linalg.svd(centred / len(PAIRS) ** 0.5)
    used = deviations > 1e-3 * deviations[0]
    scaled = {src: row @ directions[used].T / deviations[used] ** 0.5 for (src, _), row in zip(PAIRS, centred)}  # noqa: B905
    own = scaled[line]
    cosines = {src: own @ row / np.linalg.norm(own) / np.linalg.norm(row) for src, row in scaled.items()}
    return sorted(cosines.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("scores_at_once", [1 << 24, 2, 1])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 10**20])
def test_the_search_is_that_by_hand(
    scores_at_once: int, count: int, sentences: TrainingSentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SCORES_AT_ONCE", scores_at_once)
    lines = [*SOURCES, *SOURCES]
    for line, found in zip(lines, sentences.nearest(lines, count), strict=True):
        expected = by_hand(line)[:count]
        assert [neighbour.source for neighbour in found] == [source for source, _ in expected]
        assert [neighbour.similarity for neighbour in found] == pytest.approx([s for _, s in expected], abs=1e-4)


def test_a_sentence_is_found_once_with_the_most_frequent_translations_first(sentences: TrainingSentences) -> None:
    [found] = sentences.nearest(["a"], 2)
    assert found[0] == Neighbour(1.0, "a", ["Ah", "A"])
    assert sentences.nearest(["a"], 1)[0][0].translations == ["Ah"]
    assert sentences.nearest(["b"], 1) == [[Neighbour(1.0, "b", ["B"])]]


def test_a_line_without_text_has_no_neighbours(sentences: TrainingSentences) -> None:
    assert [len(found) for found in sentences.nearest(["", "a", ""], 3)] == [0, 3, 0]
    assert sentences.nearest([], 3) == []


def test_the_line_itself_comes_before_others_of_its_vector(
    sentences: TrainingSentences, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Table.rows.copy()
    rows[3] = rows[1]
    monkeypatch.setattr(Table, "rows", rows)
    sentences._vectors = module._scaled(sentences._encoder.means([src for src, _ in PAIRS]), sentences._mean,
                                        sentences._scaling)  # fmt: skip
    for line in ("b", "d", " d\t"):
        monkeypatch.setattr(Table, "means", lambda self, lines: rows[[SOURCES.index(line.strip()) for line in lines]])
        [found] = sentences.nearest([line], 2)
        assert (found[0].source, {neighbour.source for neighbour in found}) == (line.strip(), {"b", "d"})


def test_one_sentence_alone_can_be_scaled() -> None:
    means = np.ones((1, 3), np.float32)
    mean, scaling = module._scaling(means)
    assert np.isfinite(scaling).all() and (module._scaled(means, mean, scaling) == 0).all()
