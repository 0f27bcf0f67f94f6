"""Which engine the server translates with. The only place that decides it."""

from pathlib import Path

from mtx.decoding.ctranslate2_engine import CTranslate2Translator, library
from mtx.decoding.text_translator import TextTranslator
from mtx.interop.export_cache import cached_export
from mtx.run.layout import EXPORT_CONFIG


def load_translator(model: str) -> TextTranslator:
    """The translator of a model: torch where torch can use a GPU, else CTranslate2 on the CPU, both in fp32.

    Args:
        model: run directory, model directory, or an export to CTranslate2, which stays with CTranslate2.

    Raises:
        UsageError: there is no such model.
        DamagedFileError: a file of the model is missing or damaged.
        MtxError: CTranslate2 is not installed, or the converted model cannot be written into the model directory.
    """
    path = Path(model)
    if path.is_dir() and not (path / EXPORT_CONFIG).is_file() and library().get_cuda_device_count():
        from mtx.decoding.translator import Translator
        from mtx.model.device import find_device

        if find_device("auto").type == "cuda":
            return Translator.load(path)
    return CTranslate2Translator.load(cached_export(path, "fp32"), device="cpu")
