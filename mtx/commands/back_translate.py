"""`mtx back-translate`: monolingual text becomes synthetic training pairs."""

import logging
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from mtx.commands.command_line import Model, Shard, argument, checked_output, open_output, option, refuse_own_output
from mtx.commands.translate import shard_bounds
from mtx.commands.translator_options import BEAM, PLACEMENT, SAMPLES, load_translator, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError

logger = logging.getLogger("mtx")


@takes(*BEAM, *SAMPLES, *PLACEMENT)
def back_translate(
    model: Model,
    mono: Annotated[Path, argument("FILE", "Text in the source language of MODEL, one sentence a line.")],
    output: Annotated[
        Path,
        option("FILE", "TSV file for the pairs.", "-o", "--output"),
    ],
    forward: Annotated[
        str | None,
        option("MODEL", "Drop the 5% of pairs that this model of the opposite direction rates worst."),
    ] = None,
    shard: Shard = None,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Turn monolingual text into synthetic training pairs.

    The pairs train a model of the opposite direction: their target side is your text, their source side the translation
    by MODEL. Running the same command again resumes an interrupted one.
    """
    from mtx.commands.translator_options import progress
    from mtx.storage import durable
    from mtx.storage.resumable import ResumableRows
    from mtx.storage.run_files import model_identity
    from mtx.storage.text_files import read_lines
    from mtx.synthesis.synthetic_text import BLOCK_LINES, SyntheticText, described

    if not mono.is_file():
        raise UsageError(
            f"{mono}: no such file, or a pipe", "a file with one sentence a line, which is read several times"
        )
    start, end = shard_bounds(shard, sum(1 for _ in read_lines(mono)))
    output = checked_output(output)
    refuse_own_output(None, output, mono)
    translator = load_translator(model, search, place)
    scorer: Any = None
    if forward is not None:
        scorer = load_translator(forward, search, Placement(place.device, "tf32", place.threads, engine="torch"))
    about = {
        "text": durable.sha256(mono),
        "search": repr(translator.options),
        "engine": [place.engine, place.precision, place.device],
        "shard": [start, end],
        "models": [model_identity(m) for m in (model, forward) if m],
    }
    kept = ResumableRows(output, about, BLOCK_LINES)

    score = scorer and partial(_scores, scorer)
    work = SyntheticText(
        lambda: ((line, None) for line in islice(read_lines(mono), start, end)),
        kept,
        lambda block, _: translator.translate(block),
        score,
    )
    with kept.lock(), progress(end - start) as bar:
        work.run(bar.update)
        with open_output(output) as sink:
            counts = work.write_pairs(sink)
        kept.remove()
    logger.info("%s: %s", output, described(counts))
    logger.info(
        "to train on these pairs, write a configuration as in the recipe back-translation: "
        "data: {train: [MINE, {name: %s, tag: BT, weight: W}]}",
        output,
    )


def _scores(scorer: Any, translations: list[str], lines: list[str]) -> list[float | None]:
    """The log-probability per token of each line; None for one that the model cannot score."""
    from mtx.data.cleaning import clean_text

    src, tgt = (
        scorer.tokenizer.encode([clean_text(line) for line in side], scorer.frame, target=is_target)
        for side, is_target in ((translations, False), (lines, True))
    )
    most = scorer.max_tokens, scorer.engine.num_tgt_positions
    rows = [row for row in range(len(src)) if 1 < len(src[row]) <= most[0] and 1 < len(tgt[row]) <= most[1]]
    scores: list[float | None] = [None] * len(lines)
    pairs = [src[row] for row in rows], [tgt[row] for row in rows]
    for row, score in zip(rows, scorer.torch.log_probs(*pairs, scorer.options.alpha), strict=True):
        scores[row] = score.log_prob / score.num_tokens
    return scores
