"""The sizes of a model, and the regularisation, that suit an amount of text: one table, which was measured.

`tokenizer.vocab_size: auto` and `sizes: corpus` (`mtx.data.corpus_sizes`) take their values from it; docs/results.md
has the measurements.
"""

import math

_NAMES = (
    "num_pieces", "model.num_encoder_layers", "model.num_decoder_layers", "model.d_model", "model.d_ff",
    "model.num_heads", "model.dropout", "training.label_smoothing", "training.batch_tokens", "training.patience",
)  # fmt: skip
# For text of about so many pairs. From 160,000 pairs on, the values are from publications and not measured here: from
# fairseq's recipe for IWSLT14, and from table 3 of "Attention Is All You Need".
_ROWS: dict[int, tuple[float, ...]] = {
    5_000: (2_000, 3, 3, 256, 512, 4, 0.3, 0.1, 1_024, 6),
    10_000: (2_000, 3, 3, 256, 512, 4, 0.3, 0.1, 1_024, 6),
    29_000: (4_000, 3, 3, 256, 512, 4, 0.2, 0.1, 1_024, 6),
    160_000: (8_000, 6, 6, 512, 1_024, 4, 0.3, 0.1, 4_096, 6),
    1_000_000: (16_000, 6, 6, 512, 2_048, 8, 0.1, 0.1, 8_192, 6),
    5_000_000: (32_000, 6, 6, 512, 2_048, 8, 0.1, 0.1, 25_000, 6),
}
KEYS = _NAMES[1:]


def nearest_row(num_pairs: float) -> int:
    """The row for so much text, by the ratio to the pairs of the row."""
    return min(_ROWS, key=lambda pairs: abs(math.log(pairs / max(1.0, num_pairs))))


def num_pieces(row: int) -> int:
    """The size of the vocabulary in a row."""
    return int(_ROWS[row][0])


def value(row: int, key: str) -> float:
    """The value of one of `KEYS` in a row."""
    return _ROWS[row][_NAMES.index(key)]


def larger_vocabularies(row: int) -> list[int]:
    """The sizes of the vocabulary in a row and in those after it, each once, in ascending order."""
    return sorted({int(values[0]) for pairs, values in _ROWS.items() if pairs >= row})
