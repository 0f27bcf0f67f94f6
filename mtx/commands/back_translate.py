"""`mtx back-translate`: text of one language becomes synthetic training pairs."""

import logging
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from mtx.commands.options import Model, Shard, checked_output, open_output, refuse_own_output
from mtx.commands.translate import shard_bounds
from mtx.commands.translator_options import BEAM, PLACEMENT, SAMPLES, load_translator, progress, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError

logger = logging.getLogger("mtx")


@takes(*BEAM, *SAMPLES, *PLACEMENT)
def back_translate(
    model: Model,
    mono: Annotated[Path, typer.Argument(help="Text in the source language of MODEL, one sentence a line.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the pairs, as TSV.")],
    shard: Shard = None,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Make training pairs for the other direction from text of one language; the same command resumes if stopped."""
    from mtx.storage import durable
    from mtx.storage.resumable import ResumableRows, part_of
    from mtx.storage.run_contents import model_identity
    from mtx.storage.text_files import read_lines
    from mtx.synthesis.synthetic_text import BLOCK_LINES, SyntheticText, described, write_pairs

    if not mono.is_file():
        raise UsageError(f"{mono}: is no file; it is read several times", "one sentence a line")
    start, end = shard_bounds(shard, sum(1 for _ in read_lines(mono)))
    output = checked_output(output)
    for written in (output, part_of(output)):
        refuse_own_output(None, written, mono)
    translator = load_translator(model, search, place)
    about = {
        "text": durable.sha256(mono),
        "search": repr(translator.options),
        "engine": [place.engine, place.precision, place.device],
        "shard": [start, end],
        "model": model_identity(model),
    }
    kept = ResumableRows.for_output(output, about, BLOCK_LINES)
    work = SyntheticText(
        lambda: islice(read_lines(mono), start, end), kept, lambda block, _: translator.translate(block)
    )
    with kept.lock(), progress(end - start) as bar:
        work.run(bar.update)
        with open_output(output) as sink:
            counts = write_pairs(work, sink)
        kept.remove()
    logger.info("%s: %s", output, described(counts))
    logger.info(
        "train with them in a configuration, as the recipe back-translation does: "
        "data: {train: [MINE, {name: %s, tag: BT, weight: W}]}",
        output,
    )
