"""Which engine translates with a model: CTranslate2 on a CPU, torch on a GPU and for what CTranslate2 cannot do.

CTranslate2 in fp32 gives the translations of torch, and faster. The user's cache keeps the conversion of a model
(`export_cache`). This module imports neither engine before one is used.
"""

import functools
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mtx.decoding.export_cache import cached_export
from mtx.decoding.options import EngineName, Placement, SearchOptions
from mtx.decoding.text_translator import FromModel, Hypothesis, TextTranslator
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.machine import num_cores
from mtx.storage import durable
from mtx.storage.run_contents import require_models
from mtx.storage.run_files import EXPORT_CONFIG

if TYPE_CHECKING:
    from mtx.decoding.attention_maps import AttentionMaps
    from mtx.decoding.scoring import ForcedScore
    from mtx.decoding.torch_engine import TorchTranslator

logger = logging.getLogger(__name__)

Kind = Literal["model", "export", "ensemble"]
# one of these files is there if the driver of a GPU is; importing torch only to learn that there is none takes a second
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", f"{os.environ.get('SYSTEMROOT', '')}/System32/nvcuda.dll")


def choose_engine(
    placement: Placement, kind: Kind, draws: bool, has_gpu: Callable[[], bool]
) -> tuple[EngineName, str | None]:
    """The engine that translates: torch or ctranslate2, or auto, which is CTranslate2 if it can be used, else torch.

    Args:
        kind: what the model is.
        draws: whether samples are drawn. torch draws each by the seed, its line and its number alone.
        has_gpu: whether this machine has one; asked only where that decides.

    Returns:
        The engine, and why auto takes torch, unless that goes without saying.

    Raises:
        UsageError: CTranslate2 is needed for what only torch has.
    """
    asked, precision = placement.engine, placement.precision
    only_torch = "ensembles of models" if kind == "ensemble" else "random sampling" if draws else None
    if asked == "torch" or (asked == "auto" and precision == "bf16"):
        return "torch", None
    if asked == "ctranslate2" or precision in ("fp16", "int8") or kind == "export":
        if only_torch:
            raise UsageError(f"only the engine torch has {only_torch}", "leave it out, or take --engine torch")
        return "ctranslate2", None
    on_cpu = placement.device == "cpu" or (placement.device == "auto" and not has_gpu())
    if not on_cpu:
        return "torch", None
    return ("torch", f"only it has {only_torch}") if only_torch else ("auto", None)


def load(model: str | Path, search: SearchOptions, placement: Placement) -> TextTranslator:
    """Load MODEL, a model directory, run, export or ensemble A+B, for the engine that `choose_engine` takes.

    Raises:
        UsageError: there is no such model, device or precision.
        DamagedFileError: a file of the model is missing or damaged.
        MtxError: CTranslate2 is needed, and cannot be used.
    """
    models = require_models(model)
    placement = replace(placement, threads=placement.threads and min(placement.threads, num_cores()))
    engine, reason = choose_engine(placement, kind_of(models), search.sampling is not None, has_gpu)
    try:
        if engine == "ctranslate2":
            return _load_fast(models[0], search, placement)
        if engine == "auto":
            return _load_fast(models[0], search, replace(placement, device="cpu"))  # whatever CTranslate2 finds
    except MtxError as error:
        if engine == "ctranslate2":
            raise
        reason = str(error)
    if reason:
        logger.info("torch translates: %s", reason)
    from mtx.decoding.torch_engine import TorchTranslator

    return TorchTranslator.open(model, search, placement)


def _load_fast(model: Path, search: SearchOptions, placement: Placement) -> TextTranslator:
    """Load MODEL for CTranslate2: an export, or the conversion in the cache, which is made again if it is damaged."""
    from mtx.decoding.ctranslate2_engine import CTranslate2Translator

    if kind_of([model]) == "export":
        return CTranslate2Translator.open(model, search, placement)
    precision, placement = placement.precision or "fp32", replace(placement, precision=None)
    export = cached_export(model, precision)
    try:
        loaded = CTranslate2Translator.open(export, search, placement)
    except DamagedFileError as error:
        logger.warning("%s; it is made again", error)
        shutil.rmtree(export, ignore_errors=True)
        cached_export(model, precision)
        loaded = CTranslate2Translator.open(export, search, placement)
    if found := durable.read_json(export / EXPORT_CONFIG).get("comparison"):  # of fp16 or int8, if it was measured
        logger.info("%s, compared with fp32 on %s", precision, found)
    return loaded


def fill_cache(model: Path) -> None:
    """Convert a model now, so that its first translation here need not wait."""
    if not has_gpu():
        try:
            cached_export(model)
        except MtxError as error:
            logger.info("torch translates: %s", error)


def kind_of(models: Sequence[Path]) -> Kind:
    """What the models are that a MODEL argument names."""
    if len(models) > 1:
        return "ensemble"
    return "export" if (models[0] / EXPORT_CONFIG).is_file() else "model"


def has_gpu() -> bool:
    """Whether this machine has a GPU that torch can use."""
    if "torch" not in sys.modules and not any(Path(path).exists() for path in _DRIVERS):
        return False
    from mtx.model.device import find_device

    return find_device("auto").type != "cpu"


class Translator(FromModel):
    """Translates lines of text with one model, by the engine that is fastest for it here; see `load`. Thread-safe.

    Attributes:
        src, tgt: the languages.
        max_tokens: the longest source, in pieces with `</s>`, that is translated as a whole.
    """

    def __init__(self, model: str | Path, search: SearchOptions, placement: Placement):
        self._model = model
        self._search, self._placement = search, placement
        self.engine = load(model, search, placement)
        self.src, self.tgt = self.engine.src, self.engine.tgt
        self.max_tokens = self.engine.max_tokens

    @classmethod
    def open(cls, model: str | Path, search: SearchOptions, placement: Placement) -> "Translator":
        """See `FromModel.load`."""
        return cls(model, search, placement)

    def translate(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[str]:
        """See `TextTranslator.translate`."""
        return self.engine.translate(lines, prefixes)

    def hypotheses(self, lines: Sequence[str], prefixes: Sequence[str] | None = None) -> list[list[Hypothesis]]:
        """See `TextTranslator.hypotheses`."""
        return self.engine.hypotheses(lines, prefixes)

    @functools.cached_property
    def torch(self) -> "TorchTranslator":
        """The same model for torch, which computes log-probabilities and attention."""
        from mtx.decoding.torch_engine import TorchTranslator

        if isinstance(self.engine, TorchTranslator):
            return self.engine
        return TorchTranslator.open(self._model, self._search, replace(self._placement, engine="torch", precision=None))

    def log_probs(self, src: Sequence[str], tgt: Sequence[str]) -> "list[ForcedScore]":
        """See `TorchTranslator.log_probs`."""
        return self.torch.log_probs(src, tgt)

    def attention_maps(self, src: Sequence[str], tgt: Sequence[str] | None = None) -> "list[AttentionMaps]":
        """See `TorchTranslator.attention_maps`."""
        return self.torch.attention_maps(src, tgt)
