"""Chooses the sizes and the regularisation that suit the training text, for a recipe with `sizes: corpus`.

`mtx.config.sizes` has the table. A run that has begun keeps what was chosen for it. No torch.
Flow: `Resolved` -> `choose_sizes` -> `Resolved`, in which the origin of each chosen value is its reason.
"""

from itertools import chain
from pathlib import Path
from typing import Any

from mtx.config import settings, sizes
from mtx.config.schema import PRESETS, DataConfig, leaves
from mtx.config.settings import Resolved, may_change
from mtx.data.sources import find_corpora
from mtx.storage.run_files import RunLayout, fixed_config, has_begun

_PAIR_BYTES = 130  # of UTF-8 in a pair of the text that the table was measured with, both sides together
_MOST_PAIRS = 3_000_000  # which are counted; more make no difference
_UNKNOWN = 29_000  # the row that is shown while there is no text


def measure(data: DataConfig) -> tuple[int, int]:
    """The pairs of the training text, as it is before cleaning, and the bytes of both sides; up to `_MOST_PAIRS`.

    Raises:
        UsageError, DataError: if it cannot be read.
    """
    num_pairs = num_bytes = 0
    for block in chain.from_iterable(corpus.blocks() for corpus in find_corpora(data).train):
        num_pairs += len(block.src)
        num_bytes += len("".join(chain(block.src, block.tgt)).encode(errors="surrogatepass"))
        if num_pairs >= _MOST_PAIRS:
            break
    return num_pairs, num_bytes


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
        fixed, written = (dict(leaves(each.model_dump())) for each in (fixed_config(run), settings.load(run.config)))
        of_run = {key: (written if may_change(key) else fixed)[key] for key in kept}
        return settings.replace_values(resolved, of_run, str(run.config))
    num_pairs = row = _UNKNOWN
    why = "data.train is not set yet"
    side_bytes = 0.0
    if config.data.train or config.data.hub or config.data.generator:
        num_pairs, num_bytes = measure(config.data)
        row = sizes.nearest_row(num_bytes / _PAIR_BYTES)  # for so many pairs of the measured length as hold this text
        side_bytes = num_bytes / max(1, 2 * num_pairs)
        pairs = f"{num_pairs:,} pairs" + (" or more" if num_pairs >= _MOST_PAIRS else "")
        why = f"of the measured sizes the nearest to {pairs} of {side_bytes:.0f} bytes a side"
    # a model that starts from another, and one of short pairs, use their sources without copies
    if config.training.init_from is not None or side_bytes < sizes.COPIES_FROM_BYTES:
        keys = [key for key in keys if key != "training.copied_target_ratio"]
    table = sizes.values(row)
    values: dict[str, Any] = {key: table.get(key) for key in keys}
    if tokens := values.get("training.batch_tokens"):
        values["training.batch_tokens"] = max(tokens, config.data.max_tokens)
    chosen = settings.replace_values(resolved, values, f"for about {row:,} pairs ({why})")
    if config.tokenizer.vocab_size == "auto":
        pieces = sizes.larger_vocabularies(sizes.nearest_row(num_pairs))[0]
        chosen.origins["tokenizer.vocab_size"] = f"about {pieces:,} pieces ({why})"
    return chosen
