"""`mtx back-translate`: text of one language becomes synthetic training pairs."""

import logging
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtx.commands.options import (
    Alpha,
    BatchTokens,
    Beam,
    Device,
    Model,
    Shard,
    checked_output,
    open_output,
    refuse_own_output,
)
from mtx.commands.translate_lines import shard_bounds
from mtx.commands.translators import (
    Engine,
    Epsilon,
    OneEngine,
    OnePrecision,
    Seed,
    Temperature,
    Threads,
    TopK,
    TopP,
    load_translator,
    sampling_options,
)
from mtx.errors import UsageError

if TYPE_CHECKING:
    from mtx.decoding.text_translator import TextTranslator

logger = logging.getLogger("mtx")


def back_translate(
    model: Model,
    mono: Annotated[Path, typer.Argument(help="Text in the source language of MODEL, one sentence a line.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the pairs, as TSV.")],
    forward: Annotated[
        str | None,
        typer.Option(help="A model of the other direction; the 5% that it finds least probable are dropped."),
    ] = None,
    beam: Beam = None,
    length_penalty: Alpha = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    epsilon: Epsilon = None,
    seed: Seed = None,
    engine: OneEngine = Engine.auto,
    precision: OnePrecision = None,
    threads: Threads = None,
    device: Device = "auto",
    batch_tokens: BatchTokens = None,
    shard: Shard = None,
) -> None:
    """Make training pairs for the other direction from text of one language; the same command goes on if stopped."""
    from tqdm import tqdm

    from mtx.decoding.synthetic_text import BLOCK_LINES, SyntheticText, described, write_pairs
    from mtx.files import durable
    from mtx.files.resumable import ResumableRows, part_of
    from mtx.files.text_files import read_lines
    from mtx.run.contents import model_identity

    sampling = sampling_options(temperature, top_k, top_p, epsilon, seed, 1, beam)
    if not mono.is_file():
        raise UsageError(f"{mono}: is no file; it is read several times", "one sentence a line")
    start, end = shard_bounds(shard, sum(1 for _ in read_lines(mono)))
    output = checked_output(output)
    for written in (output, part_of(output)):
        refuse_own_output(None, written, mono)
    translator = load_translator(
        model, engine, precision, device=device, threads=threads, beam_size=beam, length_penalty=length_penalty,
        sampling=sampling, batch_tokens=batch_tokens,
    )  # fmt: skip
    scorer: Any = None if forward is None else load_translator(forward, device=device, threads=threads)
    about = {
        "text": durable.sha256(mono), "search": repr(translator.options),
        "engine": [engine, precision, device], "shard": [start, end],
        "models": [model_identity(m) for m in (model, forward) if m],
    }  # fmt: skip
    kept = ResumableRows.beside(output, about, BLOCK_LINES)
    lines = partial(_lines, mono, start, end)
    work = SyntheticText(lines, kept, partial(_translations, translator), scorer and partial(_scores, scorer))
    with kept.held(), tqdm(desc="translating", total=end - start, unit=" lines", disable=None) as bar:
        if not translator.is_repeatable:
            kept.remove()
        work.run(bar.update)
        with open_output(output) as sink:
            counts = write_pairs(work, sink, drop_worst=scorer is not None)
        kept.remove()
    logger.info("%s: %s", output, described(counts))
    logger.info(
        "train with them in a configuration, as the recipe back-translation does: "
        "data: {train: [MINE, {name: %s, tag: BT, weight: W}]}", output,
    )  # fmt: skip


def _lines(mono: Path, start: int, end: int) -> Iterator[str]:
    from mtx.files.text_files import read_lines

    return islice(read_lines(mono), start, end)


def _translations(translator: "TextTranslator", lines: list[str], first: int) -> list[str]:
    return [hypotheses[0].text for hypotheses in translator.hypotheses(lines, None, first, n_best=1)]


def _scores(scorer: Any, translations: list[str], lines: list[str]) -> list[float | None]:
    """The log-probability per token of each line; None for one that the model cannot score."""
    from mtx.data.cleaning import clean_text

    src, tgt = (
        scorer.tokenizer.encode([clean_text(line) for line in side], target=is_target)
        for side, is_target in ((translations, False), (lines, True))
    )
    most = scorer.num_tgt_positions or sys.maxsize
    rows = [row for row in range(len(src)) if 1 < len(src[row]) <= scorer.max_tokens and 1 < len(tgt[row]) <= most]
    scores: list[float | None] = [None] * len(lines)
    for row, score in zip(rows, scorer.forced([src[row] for row in rows], [tgt[row] for row in rows]), strict=True):
        scores[row] = score.log_prob / score.num_tokens
    return scores
