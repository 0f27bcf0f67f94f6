"""Chooses the sizes and the regularisation that suit the training text, for a recipe with `sizes: corpus`.

`mtx.config.sizes` has the table. A run that has begun keeps what was chosen for it. No torch.
Flow: `Resolved` -> `choose_sizes` -> `Resolved`, in which the origin of each chosen value is its reason.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.config import settings, sizes
from mtx.config.fixed import may_change
from mtx.config.schema import PRESETS, DataConfig, leaves
from mtx.config.settings import Resolved
from mtx.data.sources import find_corpora
from mtx.storage.run_contents import fixed_config, has_begun
from mtx.storage.run_files import RunLayout

_PAIR_BYTES = 130  # of UTF-8 in a pair of the text that the table was measured with, both sides together
_MOST_PAIRS = 3_000_000  # which are counted; more make no difference
_UNKNOWN = 29_000  # the row that is shown while there is no text


@dataclass(frozen=True)
class TextSize:
    """How much training text there is: pairs, and the bytes of both sides of all of them."""

    num_pairs: int
    num_bytes: int

    @property
    def row(self) -> int:
        """The row of the table for so many pairs of the length that was measured as hold this text."""
        return sizes.nearest_row(self.num_bytes / _PAIR_BYTES)

    @property
    def bytes_a_side(self) -> float:
        """The mean length of a source or a target."""
        return self.num_bytes / max(1, 2 * self.num_pairs)

    def __str__(self) -> str:
        pairs = f"{self.num_pairs:,} pairs" + (" or more" if self.num_pairs >= _MOST_PAIRS else "")
        return f"{pairs} of {self.bytes_a_side:.0f} bytes a side"


def measure(data: DataConfig) -> TextSize:
    """Count the training text, as it is before cleaning, up to `_MOST_PAIRS`.

    Raises:
        UsageError, DataError: if it cannot be read.
    """
    num_pairs = num_bytes = 0
    for corpus in find_corpora(data).train:
        for block in corpus.blocks():
            num_pairs += len(block.src)
            num_bytes += sum(len(line.encode(errors="surrogatepass")) for line in (*block.src, *block.tgt))
            if num_pairs >= _MOST_PAIRS:
                return TextSize(num_pairs, num_bytes)
    return TextSize(num_pairs, num_bytes)


def choose_sizes(resolved: Resolved) -> Resolved:
    """Set the keys of the table that neither a recipe nor the command line sets; those of a run stay as they are.

    Raises:
        UsageError, DataError: if the training text cannot be read.
    """
    config, run = resolved.config, RunLayout(Path(resolved.config.run_dir))
    keys = [key for key in sizes.KEYS if not resolved.is_explicit(key)]
    if resolved.is_explicit("model.preset"):
        keys = [key for key in keys if key.removeprefix("model.") not in PRESETS["base"]]
    if resolved.is_explicit("training.max_steps"):  # which ends the training then
        keys = [key for key in keys if key != "training.max_epochs"]
    elif "training.max_epochs" in keys:
        keys.append("training.max_steps")
    if settings.exists(run.config) and has_begun(run):
        kept = keys if resolved.is_explicit("model.preset") else [*keys, "model.preset"]
        return settings.replace_values(resolved, _of_run(run, kept), str(run.config))
    num_pairs = row = _UNKNOWN
    why = "data.train is not set yet"
    has_long_pairs = False
    if config.data.train or config.data.hub or config.data.generator:
        text = measure(config.data)
        num_pairs = text.num_pairs
        row = text.row
        why = f"of the measured sizes the nearest to {text}"
        has_long_pairs = text.bytes_a_side >= sizes.COPIES_FROM_BYTES
    if config.training.init_from is not None or not has_long_pairs:  # a model that uses its source without copies
        keys = [key for key in keys if key != "training.copied_target_ratio"]
    values = {key: None if key == "training.max_steps" else sizes.value(row, key) for key in keys}
    if tokens := values.get("training.batch_tokens"):
        values["training.batch_tokens"] = max(tokens, config.data.max_tokens)
    chosen = settings.replace_values(resolved, values, f"for about {row:,} pairs ({why})")
    if config.tokenizer.vocab_size == "auto":
        pieces = sizes.num_pieces(sizes.nearest_row(num_pairs))
        chosen.origins["tokenizer.vocab_size"] = f"about {pieces:,} pieces ({why})"
    return chosen


def _of_run(run: RunLayout, keys: list[str]) -> dict[str, Any]:
    """The values of a run that has begun; of what may change, those of its config.yaml."""
    fixed, written = (dict(leaves(config.model_dump())) for config in (fixed_config(run), settings.load(run.config)))
    return {key: (written if may_change(key) else fixed)[key] for key in keys}
