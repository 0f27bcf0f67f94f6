"""The text and the model of `translate.py`: a user's model, or one with random weights.

A random model never ends a translation: its row of `</s>` is zero, so any other token is more probable. Every system is
therefore made to write translations as long as the sources, as trained models do: mtx exactly as long, the others as
long as the mean of each batch, whose sentences have similar lengths. mtx's CTranslate2 engine is skipped: it computes
the score of a translation that was cut off a second time, and real translations are seldom cut off. The vocabulary has
the size of the paper's: it consists of the pieces of the text and of invented words.
"""

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from mtx.config.schema import ModelConfig, TokenizerConfig
from mtx.data.token_store import load_prepared
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.decoding import model_directory
from mtx.decoding.load import cached_export
from mtx.errors import MtxError, UsageError
from mtx.evaluation.test_sets import parallel_lines
from mtx.interop.huggingface import export_huggingface
from mtx.model.transformer import Transformer
from mtx.storage import model_description
from mtx.storage.run_files import REFERENCE_TEXT, SOURCE_TEXT, RunLayout, find_model, is_prepared, is_run
from mtx.storage.text_files import read_lines

NEAR = 25  # source tokens of the sentence whose latency is reported
RANDOM_PIECES = 37_000
RANDOM_INFO = {"src": "src", "tgt": "tgt", "max_tokens": 256, "beam_size": 4, "length_penalty": 0.6}


@dataclass(frozen=True)
class Text:
    """The sentences that every system translates, each in one piece.

    Attributes:
        name: where the sentences are from.
        references: one for each sentence, or none at all.
        line_of_25, tokens_of_25: the sentence whose length is nearest to 25 tokens, and its length.
        num_left_out: number of empty and too long lines before the last sentence.
    """

    name: str
    lines: list[str]
    references: list[str]
    line_of_25: str
    tokens_of_25: int
    num_left_out: int


@dataclass(frozen=True)
class Exports:
    """Where the model is, in mtx's and in Hugging Face's form, and by system the reasons why an export failed."""

    model: Path
    huggingface: Path
    reasons: dict[str, str]


def find_text(model: Path | None, src: Path | None, ref: Path | None) -> tuple[str, list[str], list[str]]:
    """Returns name, sentences and references: of the files, or of the test set or validation text of a run.

    Raises:
        UsageError: if there is no file and MODEL is not a run.
    """
    if src is not None:
        return str(src), *((list(read_lines(src)), []) if ref is None else parallel_lines(src, ref))
    if model is None or ref is not None or not is_run(model):
        raise UsageError(f"{model}: this model has no text; give sentences with --src FILE, references with --ref FILE")
    paths = RunLayout(model)
    for directory in sorted(paths.evaluation.glob("*/")):
        files = directory / SOURCE_TEXT, directory / REFERENCE_TEXT
        if all(path.is_file() for path in files):
            return directory.name, *parallel_lines(*files)
    if not is_prepared(paths.data):
        raise UsageError(f"{model}: this run has neither a test set nor data; give the sentences with --src FILE")
    data = load_prepared(paths.data)
    name, store = next(iter(data.tests.items()), ("validation", data.valid))
    return name, store.src_texts(), store.tgt_texts()


def usable_text(model: Path, name: str, sources: Sequence[str], references: Sequence[str], count: int) -> Text:
    """Returns the first `count` sentences that are not empty and that the model can translate in one piece."""
    about = model_description.read(model)
    lengths = [len(ids) for ids in Tokenizer.load(model).encode(list(sources))]
    rows = [row for row, length in enumerate(lengths) if 1 < length <= about.info["max_tokens"]][:count]
    if not rows:
        raise UsageError(f"{name}: this model cannot translate any line in one piece")
    nearest = min(rows, key=lambda row: abs(lengths[row] - NEAR))
    return Text(
        name, [sources[row] for row in rows], [references[row] for row in rows] if references else [],
        sources[nearest], lengths[nearest], rows[-1] + 1 - len(rows),
    )  # fmt: skip


def copy_model(model: Path, directory: Path) -> None:
    """Copies the model directory of a model or a run."""
    shutil.copytree(find_model(model), directory)


def random_model(preset: str, src: Sequence[str], directory: Path) -> None:
    """Writes a model directory with random weights, whose translations never end by themselves."""
    tokenizer = train_tokenizer(_filled_up(src), TokenizerConfig(vocab_size=RANDOM_PIECES), len(src), [])
    torch.manual_seed(1)
    config = ModelConfig.model_validate({"preset": preset})
    model = Transformer(config, tokenizer.num_ids)
    with torch.no_grad():
        model.embedding[0] = 0.0  # </s>; the output layer is the same matrix
    model_directory.write(directory, model.state_dict(), config, tokenizer, RANDOM_INFO)


def _filled_up(src: Sequence[str]) -> Iterator[str]:
    """Yields the text several times, so that its own pieces come first, and then words that fill any vocabulary."""
    for _ in range(4):
        yield from src
    rng = random.Random(1)
    for _ in range(10_000):
        yield " ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(6))


def write_exports(model: Path, systems: Sequence[str], scratch: Path) -> Exports:
    """Writes the exports that the systems read; a system whose export fails gets a reason."""
    exports = Exports(model, scratch / "huggingface", {})
    for system in systems:
        try:
            if "ctranslate2" in system:
                cached_export(model, system.rpartition("-")[2])
            elif system == "transformers":
                export_huggingface(model_directory.load(model), exports.huggingface)
        except MtxError as error:
            exports.reasons[system] = " ".join(f"{error} {error.help or ''}".split())
    return exports
