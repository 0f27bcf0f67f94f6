"""Chooses model sizes and regularisation by the amount of training text, for recipes with `sizes: corpus`.

A table has the values for each amount of text, a row; docs/explanation/sizes.md names what was measured. When training
starts, `mtx.training.plan` may choose a smaller row that fits the time; from then on a run keeps its values. No torch.
Flow: `Resolved` -> `choose_sizes` -> `Resolved`, in which the origin of each chosen value is its reason.
"""

import json
import math
from itertools import chain
from pathlib import Path
from typing import Any

from mtx.config import settings
from mtx.config.schema import PRESETS, DataConfig, leaves
from mtx.config.settings import Resolved
from mtx.data.sources import find_corpora
from mtx.data.tokenizer import auto_vocab_sizes
from mtx.errors import UsageError
from mtx.storage import durable
from mtx.storage.run_files import RunLayout, has_begun

# For text of about N pairs. On Multi30k d_model, tokens of a step and R-Drop were measured for 29,000 pairs; dropout
# and R-Drop for 5,000, copies for 6,500 longer pairs. The sizes for 60,000 were compared on 43,500 long pairs in half
# an hour, without R-Drop. The other values were not compared yet. 160,000 pairs have the preset small, larger text the
# base model of the paper. The learning rate is the paper's for the d_model and the warmup (Eq. 3).
_TABLE = """
pairs                                5000    10000    29000    60000   160000  1000000  5000000
model.num_encoder_layers                3        3        4        4        3        6        6
model.num_decoder_layers                3        3        4        4        3        6        6
model.d_model                         128      128      128      192      256      512      512
model.d_ff                            512      512      256      512     1024     2048     2048
model.num_heads                         4        4        4        6        4        8        8
model.dropout                         0.2      0.2      0.1      0.1      0.1      0.1      0.1
training.label_smoothing              0.1      0.1      0.1      0.1      0.1      0.1      0.1
training.batch_tokens                1024     1024     1024     2048     4096     8192    25000
training.warmup_steps                 400      400      400      600     1000     4000     4000
training.max_epochs                   120       80       40       40       40       20       10
training.patience                      12       12       12       10        8        8        8
training.rdrop_alpha                    2        2        2        2        0        0        0
training.copied_target_ratio          0.5      0.5        0        0        0        0        0
"""
_VALUES = {key: [json.loads(value) for value in values] for key, *values in map(str.split, _TABLE.strip().split("\n"))}
_ROWS: list[int] = _VALUES.pop("pairs")
# Values that do not depend on the amount of text, but must not change when another version resumes a run.
_FIXED_VALUES = {
    "training.max_steps": None,
    "training.learning_rate": None,
    "training.cooldown": 0.5,
    "training.no_end_punctuation": 0.2,
    "decoding.beam_size": 5,
    "decoding.length_penalty": 1.0,
}
KEYS = (*_VALUES, *_FIXED_VALUES)

_PAIR_BYTES = 130  # UTF-8 bytes of a pair in the text of the measurements, both sides together
_COPIES_FROM_BYTES = 100  # per side: captions of 65 bytes need no copies to learn from their sources, news of 156 do
_MOST_PAIRS = 3_000_000  # at which counting stops; more make no difference
_MOST_AT_HIGH_RATE = 160_000  # pairs; the peak of Eq. 3 is 0.002 there, higher in smaller rows, and 0.0007 above
_ROW_WITHOUT_TEXT = 29_000  # the row that is shown while there is no text


def smaller_rows(row: int) -> list[int]:
    """The rows below `row`, the largest first."""
    return [smaller for smaller in reversed(_ROWS) if smaller < row]


def nearest_row(num_pairs: float) -> int:
    """The row for an amount of text, by the ratio to the pairs of the row."""
    return min(_ROWS, key=lambda pairs: abs(math.log(pairs / max(1.0, num_pairs))))


def row_values(row: int) -> dict[str, Any]:
    """The values of `KEYS` in a row."""
    return {key: values[_ROWS.index(row)] for key, values in _VALUES.items()} | _FIXED_VALUES


def measure(data: DataConfig) -> tuple[int, int]:
    """The number of pairs of the training text before cleaning, and their bytes; up to `_MOST_PAIRS` pairs.

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
    """Set the keys of the table that neither a recipe nor the command line sets; a run keeps its values.

    The row is that of the text, and its keys are undecided until training starts; or it is the one that `sizes` names.

    Raises:
        UsageError: if there is no such row.
        UsageError, DataError: if the training text cannot be read.
    """
    config = resolved.config
    run = RunLayout(Path(config.run_dir))
    explicit = set(filter(resolved.is_explicit, resolved.origins))
    if "model.preset" in explicit:
        explicit |= {f"model.{name}" for name in PRESETS["base"]}
    if "training.max_steps" in explicit:  # which ends the training then
        explicit.add("training.max_epochs")
    if settings.exists(run.config) and has_begun(run):
        run_values = dict(leaves(settings.load(run.config).model_dump()))
        values = {key: run_values[key] for key in (*KEYS, "model.preset") if key not in explicit}
        undecided = {key for key in run_values["undecided"] if resolved.origins[key] != "command line"}
        values |= {"sizes": run_values["sizes"], "undecided": sorted(undecided)}
        sized = settings.replace_values(resolved, values, str(run.config))
        plan = durable.read_json(run.chosen).get("plan") if run.chosen.exists() else None
        if plan and sized.config.sizes == plan["row"]:
            sized.origins.update(dict.fromkeys(plan["keys"], f"for about {plan['row']:,} pairs ({plan['reason']})"))
        return sized
    row = _ROW_WITHOUT_TEXT
    num_pairs = row
    reason = "data.train is not set yet"
    side_bytes = 0.0
    if isinstance(config.sizes, int) and config.sizes not in _ROWS:
        raise UsageError(f"sizes={config.sizes}: expected corpus, given or one of {', '.join(map(str, _ROWS))}")
    if config.data.train or config.data.hub or config.data.generator:
        num_pairs, num_bytes = measure(config.data)
        row = nearest_row(num_bytes / _PAIR_BYTES)  # for the number of pairs of the measured length with these bytes
        side_bytes = num_bytes / max(1, 2 * num_pairs)
        more = " or more" if num_pairs >= _MOST_PAIRS else ""
        reason = f"the measured size nearest to {num_pairs:,} pairs{more} of {side_bytes:.0f} bytes per side"
    if isinstance(config.sizes, int):
        row = config.sizes
        reason = "as sizes says"
    # a model that starts from another, and a model of short pairs, use their sources without copies; so does a model of
    # several directions, since a copy has none
    is_multilingual = config.data.language_pairs[1:]
    if config.training.init_from or side_bytes < _COPIES_FROM_BYTES or is_multilingual:
        explicit.add("training.copied_target_ratio")
    values = row_values(row)
    if is_multilingual:  # at the rate of Eq. 3 for small models, the encoder of six directions learned nothing
        values["training.learning_rate"] = 0.002 if row <= _MOST_AT_HIGH_RATE else 0.0007
    values["training.batch_tokens"] = max(values["training.batch_tokens"], config.data.max_tokens)
    values = {key: value for key, value in values.items() if key not in explicit}
    # sizes that are given as a whole fit no other row
    is_open = config.sizes == "corpus" and "model.preset" not in explicit and not config.training.init_from
    values |= {"sizes": row, "undecided": sorted(values.keys() & _VALUES) if is_open else ()}
    sized = settings.replace_values(resolved, values, f"for about {row:,} pairs ({reason})")
    if config.tokenizer.vocab_size == "auto":
        sized.origins["tokenizer.vocab_size"] = f"about {auto_vocab_sizes(num_pairs)[0]:,} subwords ({reason})"
    return sized
