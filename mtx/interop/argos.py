"""Writes a model as a package of Argos Translate: a zip file that Argos installs offline.

The package contains the model for CTranslate2, the SentencePiece model of the tokenizer, and a sentence splitter
(`scripts/package/sentence_model.py`). Argos Translate searches with its own beam and length penalty, so a few
translations differ from mtx's.
"""

import json
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from mtx.data.languages import KNOWN, code_of
from mtx.data.sentence_splitter import MOSTLY_SINGLE
from mtx.decoding.ctranslate2_engine import library
from mtx.decoding.ctranslate2_writer import write_ctranslate2
from mtx.decoding.model_directory import LoadedModel
from mtx.errors import UsageError
from mtx.storage import durable
from mtx.storage.model_description import language_pairs
from mtx.storage.run_files import CARD, CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY, CTRANSLATE2_WEIGHTS, TOKENIZER_MODEL

ENDING = ".argosmodel"
_METADATA = "metadata.json"
_MODEL_FILES = CTRANSLATE2_WEIGHTS, CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY
_SPLITTER = Path(__file__).with_name("sentences.onnx")
_SPLITS = b'"no_ssplit": false'
_KEEPS_WHOLE = b'"no_ssplit": true '  # as long as the one above
_SEARCH = {"beam_size": 4, "num_hypotheses": 1, "length_penalty": 0.2, "replace_unknowns": True}  # of Argos Translate


def is_package(file: Path) -> bool:
    """Whether a file is a package of Argos Translate."""
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as package:
        return any(name.endswith(f"/{_METADATA}") for name in package.namelist())


def write_argos(loaded: LoadedModel, file: Path, precision: str, card: str) -> None:
    """Write a package. The file is replaced as a whole.

    Args:
        precision: fp32, fp16 or int8.
        card: the content of its README.md.

    Raises:
        UsageError: if the model has two tokenizers, or several directions.
    """
    if TOKENIZER_MODEL not in loaded.tokenizer.models.files or loaded.tokenizer.languages:
        raise UsageError(
            "a package of Argos Translate has one direction and no language tokens, and one tokenizer for both "
            "languages, so it cannot have this model",
            "--to ctranslate2",
        )
    src, tgt = map(code_of, language_pairs(loaded.info)[0])
    metadata = {
        "package_version": "1.0",
        "argos_version": "1.9.0",
        "type": "translate",
        "from_code": src,
        "from_name": KNOWN[src][0] if src in KNOWN else src,
        "to_code": tgt,
        "to_name": KNOWN[tgt][0] if tgt in KNOWN else tgt,
    }
    splitter = _SPLITTER.read_bytes()
    if loaded.info.get("multi_sentence_share", 0.0) >= MOSTLY_SINGLE:
        splitter = splitter.replace(_SPLITS, _KEEPS_WHOLE)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=durable.TEMPORARY_PREFIX) as temporary:
        model = Path(temporary) / "model"
        write_ctranslate2(loaded, model, precision)
        contents = {
            CARD: card.encode(),
            _METADATA: json.dumps(metadata).encode(),
            "sentencepiece.model": loaded.tokenizer.models.source,
            f"minisbd/{_SPLITTER.name}": splitter,
            **{f"model/{name}": (model / name).read_bytes() for name in _MODEL_FILES},
        }
        with durable.new_file(file) as package_file, zipfile.ZipFile(package_file, "w") as package:
            for name, content in contents.items():
                entry = zipfile.ZipInfo(f"translate-{src}_{tgt}-1_0/{name}", (1980, 1, 1, 0, 0, 0))
                package.writestr(entry, content, zipfile.ZIP_DEFLATED)  # the same model gives the same bytes


def translate_as_argos(package: Path, lines: Sequence[str]) -> list[str]:
    """Translate lines, each as one sentence, as Argos Translate does with this package."""
    import sentencepiece

    with zipfile.ZipFile(package) as package_file:
        root = package_file.namelist()[0].partition("/")[0]
        files = {name: package_file.read(f"{root}/model/{name}") for name in _MODEL_FILES}
        processor = sentencepiece.SentencePieceProcessor(model_proto=package_file.read(f"{root}/sentencepiece.model"))
    translator = library().Translator(str(package), "cpu", files=files)
    results = translator.translate_batch([processor.encode(line, out_type=str) for line in lines], **_SEARCH)
    return [processor.decode(result.hypotheses[0]).replace("_", " ").strip() for result in results]
