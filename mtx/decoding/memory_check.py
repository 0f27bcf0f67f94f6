"""Refuses options of a search that ask for more memory than is free, before the search starts. No torch here.

The estimate counts only the first steps of a search, from the sizes of the model, the options and the text. It is too
low rather than too high, so a search that would work is not refused. Options up to `ORDINARY` are never refused.
"""

import bisect
import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mtx.config.limits import MAX_BEAM_SIZE
from mtx.config.schema import ModelConfig
from mtx.decoding.options import SearchOptions
from mtx.errors import UsageError
from mtx.files.sizes import readable

ORDINARY = {"--beam": 10, "--n-best": 10, "--mbr": 64, "--max-length": 500, "--batch-tokens": 8192}
_NEVER_REFUSED = 1 << 30  # bytes; the free memory is not known more exactly
_HYPOTHESIS_BYTES = 1000  # of one hypothesis as Python objects: ids, pieces and text of about 15 tokens
_LARGEST = 1 << 40  # the largest value of an option that is tried


class Engine(Protocol):
    """The part of an engine that the check uses."""

    options: SearchOptions
    batch_tokens: int

    def bytes_needed(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> int:
        """The least memory that a search needs; for the arguments see `TextTranslator.decode`."""

    def bytes_available(self) -> int | None:
        """The free memory of the device that searches; None if it is unknown."""


def check_memory(engine: Engine, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> None:
    """Refuse a search that needs more memory than is free.

    Raises:
        UsageError: naming the options, the memory that they need, the free memory, and values that fit.
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
        # Half of the free memory, because the estimate counts only the first steps.
        count = bisect.bisect_right(larger, bound // 2, key=lambda value: needed_with({alone: value}))
        refused, fitting = {alone: large[alone]}, {alone: ORDINARY[alone] + count}
    wants, has = readable(needed, available)
    raise UsageError(f"{_shown(refused)} needs {wants} of memory here, and {has} are free", _shown(fitting))


def check_beam(name: str, beam_size: int, num_ids: int) -> None:
    """Refuse a beam of more hypotheses than tokens: the hypotheses of the first step differ only in their one token.

    Args:
        name: the option or setting that `beam_size` comes from.
    """
    separator = "=" if "." in name else " "
    help = f"{name}{separator}{min(num_ids, ORDINARY['--beam'])}"
    if beam_size > num_ids:
        raise UsageError(f"{name} {beam_size} is more than the {num_ids:,} tokens of the vocabulary", help)
    if beam_size > MAX_BEAM_SIZE:
        raise UsageError(f"{name} {beam_size} is more than {MAX_BEAM_SIZE:,}, the largest beam", help)


def search_bytes(config: ModelConfig, num_ids: int, rows: int, steps: int, value_bytes: int, num_looked_at: int) -> int:
    """The memory that the first steps of a search need.

    Args:
        rows: number of hypotheses that are continued at once.
        steps: number of steps for which the cache of keys and values has room.
        value_bytes: size of a number in that cache.
        num_looked_at: positions in the mask of a hypothesis, which hides those of other hypotheses; 0 without a mask.
    """
    keys_values = 2 * config.num_decoder_layers * rows * steps * config.d_model * value_bytes
    mask = rows * num_looked_at * value_bytes
    attention = 2 * config.num_heads * mask  # scores and their softmax
    outputs = 3 * 4 * rows * num_ids  # logits, log-probabilities, and these added to the scores of the hypotheses
    return keys_values + mask + max(attention, outputs)


def hypothesis_bytes(options: SearchOptions, num_sources: int) -> int:
    """The memory of the hypotheses of `num_sources` sources when they are returned."""
    per_source = options.beam_size if options.sampling is None else options.sampling.num_samples
    return num_sources * per_source * _HYPOTHESIS_BYTES


def _values(engine: Engine) -> dict[str, int]:
    """The values of those options that the needed memory depends on."""
    options = engine.options
    name, value = "--beam", options.beam_size
    if options.sampling is not None:
        name, value = "--mbr" if options.sampling.mbr else "--n-best", options.sampling.num_samples
    return {name: value, "--max-length": options.max_length or 0, "--batch-tokens": engine.batch_tokens}


def _changed(engine: Engine, values: Mapping[str, int]) -> Engine:
    """A copy of the engine with these values of its options."""
    changed, options = copy.copy(engine), engine.options
    fields: dict[str, Any] = {}
    for name, value in values.items():
        match name:
            case "--beam":
                fields["beam_size"] = value
            case "--n-best" | "--mbr" if options.sampling is not None:
                fields["sampling"] = replace(options.sampling, num_samples=value)
            case "--max-length":
                fields["max_length"] = value
            case _:
                changed.batch_tokens = value
    changed.options = replace(options, **fields)
    return changed


def _shown(values: Mapping[str, int]) -> str:
    return " ".join(f"{name} {value}" for name, value in values.items())
