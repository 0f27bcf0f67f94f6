"""Which engine translates with a model: CTranslate2 on a CPU, torch on a GPU and for what CTranslate2 cannot do.

CTranslate2 in fp32 gives the translations of torch, and faster. The user's cache keeps the conversion of a model
(`export_cache`). This module imports neither engine before one is used.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mtx.decoding.options import Candidate, Sampling
from mtx.decoding.text_translator import Attention, TextTranslator
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.files import durable
from mtx.interop.export_cache import cached_export
from mtx.run.contents import model_directory, require_models
from mtx.run.layout import EXPORT_CONFIG
from mtx.run.machine import num_cores

if TYPE_CHECKING:
    from mtx.decoding.attention_maps import AttentionMaps
    from mtx.decoding.ctranslate2_engine import CTranslate2Translator
    from mtx.decoding.scoring import ForcedScore
    from mtx.decoding.torch_engine import TorchTranslator

logger = logging.getLogger(__name__)

EngineName = Literal["auto", "torch", "ctranslate2"]
Precision = Literal["fp32", "bf16", "fp16", "int8"]
PRECISIONS = {
    "auto": ("fp32", "bf16", "fp16", "int8"), "torch": ("fp32", "bf16"), "ctranslate2": ("fp32", "fp16", "int8"),
}  # fmt: skip
# one of these files is there if the driver of a GPU is; importing torch only to learn that there is none takes a second
_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd", f"{os.environ.get('SYSTEMROOT', '')}/System32/nvcuda.dll")


def find_export(
    model: str | Path, engine: str = "auto", precision: str | None = None, device: str = "auto",
    torch_options: Sequence[str] = (), sampling: Sampling | None = None,
) -> Path | None:  # fmt: skip
    """The CTranslate2 export to translate MODEL with, converted now if need be; None if torch translates.

    Args:
        engine: for auto, a reason why torch translates is logged, unless it is a GPU.
        precision: None means fp32; an export has its own.
        device: auto, cpu, cuda, cuda:1 or mps.
        torch_options: what was asked for and only torch has, by its name.
        sampling: auto lets torch draw samples, each of which depends on its own line alone.

    Raises:
        UsageError: the engine has no such precision, or CTranslate2 is needed and lacks one of the options.
        MtxError: CTranslate2 is needed, and cannot be used.
    """
    names = PRECISIONS[engine]
    if precision is not None and precision not in names:
        raise UsageError(f"precision {precision}: the engine {engine} has {', '.join(names)}")
    if engine == "torch" or (engine == "auto" and precision == "bf16"):
        return None
    if len(models := require_models(model)) > 1:
        torch_options = [*torch_options, "ensembles of models"]
    model = models[0]
    if _needs_ctranslate2(model, engine, precision):
        if torch_options:
            raise UsageError(f"only the engine torch has {torch_options[0]}", "leave it out, or take --engine torch")
        return cached_export(model, precision or "fp32")
    if device not in ("auto", "cpu") or (device == "auto" and _has_gpu()) or not _has_model(model):
        return None
    asked = [*torch_options, *(["samples that depend on their own line alone"] if sampling else [])]
    try:
        if not asked:
            return cached_export(model)
        reason = f"CTranslate2 has no {asked[0]}"
    except MtxError as error:
        reason = str(error)
    logger.info("torch translates: %s", reason)
    return None


def _needs_ctranslate2(model: Path, engine: str, precision: str | None) -> bool:
    return engine == "ctranslate2" or precision in ("fp16", "int8") or (model / EXPORT_CONFIG).is_file()


def _has_model(model: Path) -> bool:
    """Whether there is a model directory to convert; of a run without one torch takes a checkpoint."""
    return (model_directory(model) / durable.MANIFEST).is_file()


def load_fast(
    model: str | Path, engine: str = "auto", precision: Any = None, device: str = "auto",
    torch_options: Sequence[str] = (), **options: Any,
) -> "CTranslate2Translator | None":  # fmt: skip
    """Load MODEL for CTranslate2; None if torch translates, see `find_export`. A damaged conversion is made again.

    Args:
        options: see `CTranslate2Translator.load`.
    """
    export = find_export(model, engine, precision, device, torch_options, options.get("sampling"))
    if export is None:
        return None
    from mtx.decoding.ctranslate2_engine import CTranslate2Translator

    model = Path(model)
    if export == model:
        return CTranslate2Translator.load(export, device=device, precision=precision, **options)
    is_needed = _needs_ctranslate2(model, engine, precision)
    place = device if is_needed else "cpu"  # which was decided, whatever CTranslate2 finds
    try:
        try:
            loaded = CTranslate2Translator.load(export, device=place, **options)
        except DamagedFileError as error:
            logger.warning("%s; it is made again", error)
            cached_export(model, precision or "fp32", is_damaged=True)
            loaded = CTranslate2Translator.load(export, device=place, **options)
    except MtxError as error:
        if is_needed:
            raise
        logger.info("torch translates: %s", error)
        return None
    _tell_cost(export)
    return loaded


def _has_gpu() -> bool:
    if "torch" not in sys.modules and not any(Path(path).exists() for path in _DRIVERS):
        return False
    from mtx.model.device import find_device

    return find_device("auto").type != "cpu"


def _tell_cost(export: Path) -> None:
    """Log how the translations of an export in fp16 or int8 differ from those in fp32, if that was measured."""
    described = durable.read_json(export / EXPORT_CONFIG)
    if found := described.get("comparison"):
        logger.info("%s, compared with fp32 on %s", described["precision"], found)


class Translator(TextTranslator):
    """Translates lines of text with one model, by the engine that is fastest for it here; see `load`. Thread-safe.

    Args:
        engine: what searches.
        load_torch: loads the model for torch, which computes log-probabilities and attention.
    """

    def __init__(self, engine: TextTranslator, load_torch: "Callable[[], TorchTranslator]"):
        super().__init__(
            engine.tokenizer, engine.max_tokens, engine.options, num_tgt_positions=engine.num_tgt_positions,
            src=engine.src, tgt=engine.tgt, splitter=engine.splitter,
        )  # fmt: skip
        self.is_automatic, self.engine, self._load_torch = engine.is_automatic, engine, load_torch

    @classmethod
    def load(
        cls, model: str | Path, *, engine: EngineName = "auto", device: str = "auto",
        precision: Precision | None = None, threads: int | None = None, beam_size: int | None = None,
        length_penalty: float | None = None, max_length: int | None = None, sampling: Sampling | None = None,
        batch_tokens: int | None = None, split_sentences: bool | None = None,
    ) -> "Translator":  # fmt: skip
        """Load a model directory (or the model of a run directory), or an ensemble A+B of several.

        Args:
            engine: auto means CTranslate2 on a CPU, and torch on a GPU and for samples and batch_tokens.
            device: auto, cpu, cuda, cuda:1 or mps; see `find_device`.
            precision: fp32; bf16 with torch, fp16 or int8 with CTranslate2; None means fp32, or that of an export.
            beam_size, length_penalty: None means the run's configuration.
            max_length: most target tokens; None means the source's number of tokens + 50.
            split_sentences: whether the sentences of a line are translated one by one; None means if the model was
                trained on single sentences.

        Raises:
            UsageError: there is no such model, engine, device or precision.
            TypeError, ValueError: another argument is of another type, or out of its range.
            DamagedFileError: a file of the model is missing or damaged.
        """
        if engine not in PRECISIONS:
            raise UsageError(f"engine {engine}: expected {', '.join(PRECISIONS)}")
        require_models(model)
        options: dict[str, Any] = {
            "threads": min(threads, num_cores()) if isinstance(threads, int) else threads, "beam_size": beam_size,
            "length_penalty": length_penalty, "max_length": max_length, "sampling": sampling,
            "split_sentences": split_sentences,
        }  # fmt: skip

        def load_torch() -> "TorchTranslator":
            from mtx.decoding.ensemble import load_torch

            bits: Any = "bf16" if precision == "bf16" else "fp32"
            return load_torch(model, device=device, precision=bits, batch_tokens=batch_tokens, **options)

        torch_options = [] if batch_tokens is None else ["batch_tokens"]
        fast = load_fast(model, engine, precision, device, torch_options, **options)
        if fast is not None:
            return cls(fast, load_torch)
        slow = load_torch()
        return cls(slow, lambda: slow)

    @property
    def is_repeatable(self) -> bool:
        """See `TextTranslator.is_repeatable`."""
        return self.engine.is_repeatable

    def share_workers(self) -> int:
        """See `TextTranslator.share_workers`."""
        return self.engine.share_workers()

    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        """See `TextTranslator.decode`."""
        return self.engine.decode(sources, prefixes)

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """See `TextTranslator.cross_attention`."""
        return self.engine.cross_attention(sources, targets)

    @functools.cached_property
    def torch(self) -> "TorchTranslator":
        """The same model for torch."""
        return self._load_torch()

    def log_probs(self, src: Sequence[str], tgt: Sequence[str]) -> "list[ForcedScore]":
        """See `TorchTranslator.log_probs`."""
        return self.torch.log_probs(src, tgt)

    def attention_maps(self, src: Sequence[str], tgt: Sequence[str] | None = None) -> "list[AttentionMaps]":
        """See `TorchTranslator.attention_maps`."""
        return self.torch.attention_maps(src, tgt)
