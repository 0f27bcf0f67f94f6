"""Text to text: clean lines, batches of similar length, search, detokenised lines in the order they came.

One line in, one line out, whatever the line holds: line breaks inside become spaces, an empty line stays empty, a
source longer than the model's limit is translated in parts.
Flow: lines -> ids -> PackedBatch -> search -> `Hypothesis`.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtx import bundle
from mtx.data.cleaning import clean_text
from mtx.data.loader import to_device, to_tensors
from mtx.data.packing import PackedBatch, Shape, pack
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding.search import greedy, search
from mtx.errors import UsageError

EXTRA_LENGTH = 50  # 6.1: maximum output length is source length + 50


@dataclass(frozen=True)
class Hypothesis:
    """One translation: text without line breaks, penalised score, and its pieces."""

    text: str
    score: float
    pieces: list[str]


@dataclass(frozen=True)
class _Side:
    """Sentences in the form in which `pack` reads a store."""

    tokens: Any
    starts: Any
    lengths: Any

    @classmethod
    def of(cls, sentences: Sequence[list[int]]) -> "_Side":
        lengths = np.array([len(s) for s in sentences], dtype=np.int32)
        tokens = np.array([i for s in sentences for i in s], dtype=np.int64)
        return cls(tokens, lengths.cumsum(dtype=np.int64) - lengths, lengths)


def pack_sentences(src: Sequence[list[int]], tgt: Sequence[list[int]], pad_id: int) -> PackedBatch:
    """One batch that holds exactly these sentences, as tensors in host memory."""
    sides = _Side.of(src), _Side.of(tgt)
    num_src, num_tgt = (int(side.lengths.sum()) for side in sides)
    longest = int(max(sides[0].lengths.max(), sides[1].lengths.max()))
    shape = Shape(num_src, num_tgt, len(src), longest, 0)
    packed = pack(sides[0], sides[1], np.arange(len(src)), shape, pad_id)
    return to_tensors(packed)


class Translator:
    """Translates lines of text with one model. Safe to call from several threads: one call decodes at a time.

    Args:
        max_tokens: longest source, in pieces with `</s>`, that goes through the model in one piece.
        batch_tokens: source tokens that are decoded at once.
        src, tgt: the languages, for messages and scores.
    """

    def __init__(
        self, model: Any, tokenizer: Tokenizer, max_tokens: int, *, beam_size: int = 4, length_penalty: float = 0.6,
        batch_tokens: int = 4096, src: str = "src", tgt: str = "tgt",
    ):  # fmt: skip
        self.src, self.tgt = src, tgt
        self.model, self.tokenizer, self.max_tokens = model, tokenizer, max_tokens
        self.beam_size, self.length_penalty, self.batch_tokens = beam_size, length_penalty, batch_tokens
        self._lock = threading.Lock()

    @classmethod
    def load(
        cls, model: str | Path, *, device: str = "cpu", beam_size: int | None = None,
        length_penalty: float | None = None, batch_tokens: int = 4096,
    ) -> "Translator":  # fmt: skip
        """Load a model directory (or the model of a run directory).

        Args:
            beam_size, length_penalty: None means what the run was configured with.
        """
        path = Path(model)
        if not path.is_dir():
            raise UsageError(f"{model}: no such model directory or run directory")
        loaded = bundle.load(path / "model" if (path / "model").is_dir() else path)
        return cls(
            loaded.model.to(device), loaded.tokenizer, int(loaded.info["max_tokens"]),
            beam_size=beam_size or int(loaded.info["beam_size"]),
            length_penalty=float(loaded.info["length_penalty"]) if length_penalty is None else length_penalty,
            batch_tokens=batch_tokens, src=str(loaded.info["src"]), tgt=str(loaded.info["tgt"]),
        )  # fmt: skip

    def translate(self, lines: list[str]) -> list[str]:
        """One translation per line, in order; an empty line gives an empty line."""
        return [hypotheses[0].text for hypotheses in self.hypotheses(lines)]

    def hypotheses(self, lines: list[str]) -> list[list[Hypothesis]]:
        """The finished hypotheses of each line, at most beam_size, best first, always at least one.

        A line that had to be translated in parts has one, the parts' best joined, with the sum of their scores.
        """
        parts = [self._split(line) for line in lines]
        sources = [ids for line_parts in parts for ids in line_parts]
        found = iter(self._decode(sources))
        results = []
        for line_parts in parts:
            candidates = [next(found) for _ in line_parts]
            results.append(candidates[0] if len(candidates) == 1 else [_join([c[0] for c in candidates])])
        return results

    def _split(self, line: str) -> list[list[int]]:
        """The ids of a line, in parts of at most max_tokens; none for a line with nothing to say."""
        ids = self.tokenizer.encode([clean_text(line)])[0]
        body, end = ids[:-1], ids[-1:]
        width = self.max_tokens - 1
        return [body[i : i + width] + end for i in range(0, len(body), width)]

    def _decode(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in sources]
        with self._lock, torch.no_grad():
            was_training = self.model.training
            self.model.eval()
            for rows in self._batches(sources):
                for row, hypotheses in zip(rows, self._decode_batch([sources[row] for row in rows]), strict=True):
                    results[row] = hypotheses
            self.model.train(was_training)
        return results

    def _batches(self, sources: list[list[int]]) -> Iterator[list[int]]:
        """Rows of similar length, longest first, at most batch_tokens source tokens with padding.

        Short sentences are limited by number: each beam has a row of logits.
        """
        rows: list[int] = []
        for row in sorted(range(len(sources)), key=lambda i: -len(sources[i])):
            if rows and max(len(sources[rows[0]]), 8) * (len(rows) + 1) > self.batch_tokens:
                yield rows
                rows = []
            rows.append(row)
        if rows:
            yield rows

    def _decode_batch(self, sources: list[list[int]]) -> list[list[Hypothesis]]:
        device = self.model.output_weight.device
        batch = to_device(pack_sentences(sources, [[EOS_ID]] * len(sources), self.tokenizer.pad_id), device)
        limits = torch.tensor([len(s) + EXTRA_LENGTH for s in sources])
        self.model.prepare_positions(int(limits.max()))
        memory = self.model.encode(batch)
        if self.beam_size == 1:
            found = greedy(self.model, memory, limits, self.length_penalty)
        else:
            found = search(self.model, memory, limits, self.beam_size, self.length_penalty)
        texts = iter(self.tokenizer.decode([candidate.ids for sentence in found for candidate in sentence]))
        return [
            [Hypothesis(next(texts), c.score, self.tokenizer.pieces(c.ids)) for c in sentence] for sentence in found
        ]


def _join(parts: list[Hypothesis]) -> Hypothesis:
    text = " ".join(part.text for part in parts if part.text)
    return Hypothesis(text, sum(part.score for part in parts), [piece for part in parts for piece in part.pieces])
