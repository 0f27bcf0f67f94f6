"""What a model computes besides translations, on torch: `mtx logprob`, `mtx encode` and `mtx attention`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtx.commands.command_line import (
    AS_JSON,
    MODEL,
    OUTPUT,
    argument,
    logger,
    open_input,
    open_output,
    option,
)
from mtx.commands.translate import blocks, in_blocks, pair_lines
from mtx.commands.translator_options import DIRECTION, EXACT, LoadOptions, load_translator, takes
from mtx.errors import UsageError
from mtx.storage.text_files import InvalidLines, read_lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mtx.decoding.translator import Translator


@takes(*DIRECTION, "length_penalty", "precision", "threads", "device")
def logprob(
    model: str = MODEL,
    src: Path = argument("SRC", "File with the source text."),
    tgt: Path = argument("TGT", "File with its translations, line by line."),
    output: Path | None = OUTPUT,
    as_json: bool = AS_JSON,
    *,
    options: LoadOptions,
) -> None:
    """Print the log-probability of translations.

    The logarithm is the natural one. --json also prints the number of tokens and the score of the beam search.
    """
    with open_output(output, src, tgt) as sink:
        translator: Any = load_translator(model, **EXACT | options)
        for block in in_blocks(pair_lines(read_lines(src, "strict"), tgt, "strict")):
            for score in translator.log_probs(*map(list, zip(*block, strict=True))):
                value = {"log_prob": score.log_prob, "tokens": score.num_tokens, "score": score.score}
                sink.write((json.dumps(value) if as_json else f"{score.log_prob:.6f}").encode() + b"\n")


@takes(*DIRECTION, "precision", "threads", "device")
def encode(
    model: str = MODEL,
    file: Path | None = argument("[FILE]", "Text to encode; stdin by default."),
    output: Path | None = option(
        "FILE", "Output file; FILE.npy is a NumPy matrix.  [default: stdout]", "-o", "--output"
    ),
    *,
    options: LoadOptions,
) -> None:
    """Print a vector of each line of text, as JSON.

    The vector is the mean of the encoder's outputs.
    """
    with open_input(file) as source, open_output(output, source) as sink:
        translator = load_translator(model, **EXACT | options)
        translator.splitter = None
        invalid = InvalidLines()
        texts = (map(list, zip(*block, strict=True)) for block in blocks(source, file))
        vectors = (sentence_vectors(translator, invalid.replace(*lines)) for lines in texts)
        if output and output.suffix.lower() == ".npy":
            import numpy as np

            np.save(sink, np.concatenate([sentence_vectors(translator, []), *vectors]))
        else:
            for block in vectors:
                rows = ({"vector": list(map(float, row))} for row in block.astype(str))  # the shortest such numbers
                sink.writelines(json.dumps(row).encode() + b"\n" for row in rows)
                sink.flush()
    invalid.log()


def sentence_vectors(translator: "Translator", lines: list[str]) -> "npt.NDArray[np.float32]":
    """The mean of the encoder's outputs over the pieces of each line, codes included, [L, D]; zeros without text.

    A line with more than max_tokens pieces is encoded in parts, which count by their pieces.
    """
    import numpy as np
    import torch

    from mtx.data.tokenizer import EOS_ID
    from mtx.decoding.torch_engine import batch_by_length

    parts_by_line = enumerate(translator.split([[line] for line in lines]))
    parts = [(row, part.ids) for row, parts in parts_by_line for part in parts if part.text]
    ids = [ids for _, ids in parts]
    engine = translator.torch
    with engine.use_models():
        width = sum(model.source_states([[EOS_ID]])[0].shape[1] for model in engine.search_models)
        sums = np.zeros((len(lines), width), np.float32)
        num_pieces = np.zeros((len(lines), 1), np.float32)
        for batch in batch_by_length(ids, ids, engine.batch_tokens):
            batch_ids = [ids[number] for number in batch]
            states_by_model = [model.source_states(batch_ids) for model in engine.search_models]
            for number, *states in zip(batch, *states_by_model, strict=True):
                row = parts[number][0]
                sums[row] += torch.cat(states, -1).float().sum(0).cpu().numpy()
                num_pieces[row] += len(ids[number])
    sums /= np.maximum(num_pieces, 1)
    return sums


@takes(*DIRECTION, "device")
def attention(
    model: str = MODEL,
    sentences: list[str] = argument("SENTENCE...", "Sentences to translate."),
    target: list[str] | None = option("TEXT", "Translation to show, once for each SENTENCE.  [default: MODEL's own]"),
    output: Path | None = option("FILE", "HTML page to write.  [default: attention.html]", "-o", "--output"),
    *,
    options: LoadOptions,
) -> None:
    """Draw the attention weights of a model on an HTML page.

    The page shows every layer and head.
    """
    page = output or Path("attention.html")
    if page.suffix.lower() != ".html":
        raise UsageError(f"-o {page}: expected a name that ends in .html", "the page can save each map as a picture")
    if target and len(target) != len(sentences):
        raise UsageError(f"got {len(target)} --target for {len(sentences)} sentences, expected one each")
    with open_output(page, is_page=not output) as sink:
        translator = load_translator(model, **EXACT | options)
        from mtx.report.html_page import attention_page

        maps = translator.attention_maps(sentences, target)
        sink.write(attention_page(maps, *translator.languages).encode())
    logger.info("attention: %s", page)
