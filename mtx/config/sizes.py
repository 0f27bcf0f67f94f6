"""The sizes of a model, and the regularisation, that suit an amount of text, in one table.

`tokenizer.vocab_size: auto` and `sizes: corpus` (`mtx.data.corpus_sizes`) take their values from it; docs/decisions.md
says what was measured.
"""

import math

_NAMES = (
    "num_pieces",
    "model.num_encoder_layers",
    "model.num_decoder_layers",
    "model.d_model",
    "model.d_ff",
    "model.num_heads",
    "model.dropout",
    "training.label_smoothing",
    "training.batch_tokens",
    "training.warmup_steps",
    "training.max_epochs",
    "training.patience",
    "training.rdrop_alpha",
    "training.copied_target_ratio",
)
# For text of about so many pairs. On Multi30k d_model, tokens of a step and R-Drop were measured for 29,000 pairs, and
# pieces in short trainings only; pieces, dropout and R-Drop for 5,000, copies for 6,500 longer pairs. What else these
# rows hold was not compared yet. 160,000 pairs have the preset small, larger text the base model of the paper. The
# learning rate is that of the paper for the d_model and the warmup (Eq. 3).
_ROWS: dict[int, tuple[float, ...]] = {
    5_000: (4_000, 3, 3, 128, 512, 4, 0.2, 0.1, 1_024, 400, 120, 12, 2, 0.5),
    10_000: (4_000, 3, 3, 128, 512, 4, 0.2, 0.1, 1_024, 400, 80, 12, 2, 0.5),
    29_000: (8_000, 4, 4, 128, 256, 4, 0.1, 0.1, 1_024, 400, 40, 12, 2, 0),
    160_000: (8_000, 3, 3, 256, 1_024, 4, 0.1, 0.1, 4_096, 1_000, 40, 8, 0, 0),
    1_000_000: (16_000, 6, 6, 512, 2_048, 8, 0.1, 0.1, 8_192, 4_000, 20, 8, 0, 0),
    5_000_000: (32_000, 6, 6, 512, 2_048, 8, 0.1, 0.1, 25_000, 4_000, 10, 8, 0, 0),
}
COPIES_FROM_BYTES = 100  # a side: captions of 65 need no copies to learn from their sources, news of 156 do
# What does not depend on the amount of text, but must not change under a run that has begun with another version.
_SAME: dict[str, float | None] = {
    "training.learning_rate": None,
    "training.cooldown": 0.5,
    "training.no_end_punctuation": 0.2,
    "decoding.beam_size": 5,
    "decoding.length_penalty": 1.0,
}
KEYS = (*_NAMES[1:], *_SAME)


def nearest_row(num_pairs: float) -> int:
    """The row for so much text, by the ratio to the pairs of the row."""
    return min(_ROWS, key=lambda pairs: abs(math.log(pairs / max(1.0, num_pairs))))


def values(row: int) -> dict[str, float | None]:
    """The values of `KEYS` in a row, and its `num_pieces`."""
    return {**dict(zip(_NAMES, _ROWS[row], strict=True)), **_SAME}


def larger_vocabularies(row: int) -> list[int]:
    """The sizes of the vocabulary in a row and in those after it, each once, in ascending order."""
    return sorted({int(values[0]) for pairs, values in _ROWS.items() if pairs >= row})
