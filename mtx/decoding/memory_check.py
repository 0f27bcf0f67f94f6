"""Refuses options of a search that ask for more memory than is free, before the search starts. No torch here.

The estimate is of the first steps only, by the sizes of the model, the options and the text, so that a search
that would work is not refused. Options up to `ORDINARY` never are.
"""

import bisect
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mtx.config.schema import ModelConfig
from mtx.decoding.options import SearchOptions
from mtx.errors import UsageError

ORDINARY = {"--beam": 10, "--n-best": 10, "--max-length": 500, "--batch-tokens": 8192}
_NEVER_REFUSED = 1 << 30  # bytes; what is free cannot be told more exactly
_HYPOTHESIS_BYTES = 1000  # of one in Python: the ids, the pieces and the text of some 15 tokens
_LARGEST = 1 << 40  # of a value that may fit


class Engine(Protocol):
    """What the check knows of an engine."""

    options: SearchOptions
    batch_tokens: int

    def bytes_needed(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> int:
        """What a search for the translations of `sources` takes at least, see `TextTranslator.decode`."""

    def bytes_available(self) -> int | None:
        """What is free on the device that searches; None where that is not known."""


def check_memory(engine: Engine, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> None:
    """Refuse a search that needs more memory than there is.

    Raises:
        UsageError: naming the options, what they need, what there is, and a value that fits.
    """
    large = {name: value for name, value in _values(engine).items() if value > ORDINARY[name]}
    needed = engine.bytes_needed(sources, prefixes) if large else 0
    if needed <= _NEVER_REFUSED:
        return
    available = engine.bytes_available()
    if available is None or needed <= available:
        return
    bound = max(_NEVER_REFUSED, available)

    def needed_with(values: Mapping[str, int]) -> int:
        return _changed(engine, values).bytes_needed(sources, prefixes)

    refused, fitting = large, {name: ORDINARY[name] for name in large}
    largest_first = sorted(large, key=lambda name: large[name] // ORDINARY[name], reverse=True)
    alone = next((name for name in largest_first if needed_with({name: ORDINARY[name]}) <= bound), None)
    if alone is not None:
        larger = range(ORDINARY[alone] + 1, min(large[alone], _LARGEST))
        # Half of what there is, for the estimate is of the first steps.
        count = bisect.bisect_right(larger, bound // 2, key=lambda value: needed_with({alone: value}))
        refused, fitting = {alone: large[alone]}, {alone: ORDINARY[alone] + count}
    gigabytes = f"{-(-needed // 10**9):,} GB of memory here, and {available / 1e9:,.1f} GB are free"
    raise UsageError(f"{_shown(refused)} needs {gigabytes}", _shown(fitting))


def check_vocabulary(beam_size: int, num_ids: int) -> None:
    """Refuse a beam of more hypotheses than there are tokens to tell them apart at first."""
    if beam_size > num_ids:
        size = min(num_ids, ORDINARY["--beam"])
        raise UsageError(f"--beam {beam_size} is more than the {num_ids:,} tokens of the vocabulary", f"--beam {size}")


def search_bytes(config: ModelConfig, num_ids: int, rows: int, steps: int, value_bytes: int, num_looked_at: int) -> int:
    """What the first steps of a search take.

    Args:
        rows: hypotheses that are continued at once.
        steps: for which there is room in the cache of keys and values.
        value_bytes: of a number in that cache.
        num_looked_at: cached positions that a hypothesis masks, as those of others; 0 where it looks at its own only.
    """
    keys_values = 2 * config.num_decoder_layers * rows * steps * config.d_model * value_bytes
    mask = rows * num_looked_at * value_bytes
    attention = 2 * config.num_heads * mask  # scores and their softmax
    outputs = 3 * 4 * rows * num_ids  # logits, log-probabilities, and these added to the scores of the hypotheses
    return keys_values + mask + max(attention, outputs)


def hypothesis_bytes(options: SearchOptions, num_sources: int) -> int:
    """What the hypotheses of so many sources take as they are handed back."""
    per_source = options.beam_size if options.sampling is None else options.sampling.num_samples
    return num_sources * per_source * _HYPOTHESIS_BYTES


def _values(engine: Engine) -> dict[str, int]:
    """The values of the options that memory grows with."""
    options = engine.options
    name, value = "--beam", options.beam_size
    if options.sampling is not None:
        name, value = "--n-best", options.sampling.num_samples
    return {name: value, "--max-length": options.max_length or 0, "--batch-tokens": engine.batch_tokens}


def _changed(engine: Engine, values: Mapping[str, int]) -> Engine:
    """The engine with other values of options."""
    changed, options = copy.copy(engine), engine.options
    fields: dict[str, Any] = {}
    for name, value in values.items():
        match name:
            case "--beam":
                fields["beam_size"] = value
            case "--n-best" if options.sampling is not None:
                fields["sampling"] = replace(options.sampling, num_samples=value)
            case "--max-length":
                fields["max_length"] = value
            case _:
                changed.batch_tokens = value
    changed.options = replace(options, **fields)
    return changed


def _shown(values: Mapping[str, int]) -> str:
    return " ".join(f"{name} {value}" for name, value in values.items())
