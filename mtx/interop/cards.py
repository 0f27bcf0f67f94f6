"""Model cards: README.md of a run, of an export for CTranslate2, and of a MarianMT directory, in the form of the hub.

Flow: configuration, report, scores, comparison -> `card.md.jinja` -> text. Names of files, corpora and languages are
untrusted: they are shown as code, without their folders, so that nothing in them is markup.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mtx.config.schema import Config
from mtx.files.shell import requirement, shell_command
from mtx.interop.licences import Licences
from mtx.interop.verify import Comparison
from mtx.model.architecture import in_words
from mtx.model_directory.storage import LoadedModel
from mtx.run.layout import EXPORT_EXAMPLE

_LANGUAGE_CODE = re.compile("[a-z]{2,3}")  # the hub accepts no others
_METRICS = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}


def run_card(config: Config, report: Mapping[str, Any], scores: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """README.md of a model directory.

    Args:
        report: the report of the prepared data.
        scores: the scores of each test set, as in scores.json.
        run: the entry `run` of scores.json.
    """
    results = [
        {
            "task": {"type": "translation"},
            "dataset": {"name": name, "type": name},
            "metrics": [
                {"type": metric, "name": _METRICS[metric], "value": round(float(value["score"]), 2)}
                for metric, value in values.items()
            ],
        }
        for name, values in scores.items()
    ]
    what, sizes = in_words(config.model)
    index = {"model-index": [{"name": config.data.direction, "results": results}]}
    metadata = _metadata(config.data.languages, Licences.of_config(config), "mtx") | index
    return _render(
        metadata, Licences.of_config(config), scores, kind="run", src=config.data.src, tgt=config.data.tgt,
        config=config, report=report, run={"init_from": None, **run}, what=what, sizes=sizes,
    )  # fmt: skip


def ctranslate2_card(
    info: Mapping[str, Any], precision: str, scores: Mapping[str, Any] | None, comparison: Comparison | None = None
) -> str:
    """README.md of an export for CTranslate2, for people who have neither mtx nor the run.

    Args:
        info: the description of the model: src, tgt, max_tokens.
        scores: the content of scores.json beside the model.
        comparison: of the export's translations with those of the model; None if they were not compared.
    """
    licences = Licences.of_scores(scores)
    metadata = _metadata((info["src"], info["tgt"]), licences, "ctranslate2", "ctranslate2")
    install = shell_command("pip", "install", requirement("ctranslate2"), requirement("sentencepiece"))
    return _render(
        metadata, licences, scores, kind="ctranslate2", src=info["src"], tgt=info["tgt"], info=info,
        precision=precision, install=install, example=EXPORT_EXAMPLE, comparison=comparison,
    )  # fmt: skip


def marian_card(loaded: LoadedModel, scores: Mapping[str, Any] | None, comparison: Comparison | None = None) -> str:
    """README.md of a MarianMT directory; see `ctranslate2_card`. Its translations are compared by greedy search."""
    info, licences = loaded.info, Licences.of_scores(scores)
    metadata = _metadata((info["src"], info["tgt"]), licences, "transformers", "marian")
    num_parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    return _render(
        metadata, licences, scores, kind="marian", src=info["src"], tgt=info["tgt"], info=info, model=loaded.model,
        tokenizer=loaded.tokenizer, num_parameters=num_parameters, comparison=comparison,
    )  # fmt: skip


def shown(name: str) -> str:
    """A name as Markdown code: without its folders, on one line, and without backquotes."""
    text = "".join(c if c.isprintable() and c != "`" else " " for c in PurePath(name).name or name)
    return f"`{text[:100]}`"


def _metadata(languages: tuple[str, str], licences: Licences, library: str, *tags: str) -> dict[str, Any]:
    """The metadata that the hub reads, with those of the languages that it accepts as codes."""
    codes = [code for code in dict.fromkeys(languages) if _LANGUAGE_CODE.fullmatch(code)]
    language = {"language": codes} if codes else {}
    about = {"tags": ["translation", *tags, "mtx"], "library_name": library, "pipeline_tag": "translation"}
    return {**language, **licences.metadata(), **about}


def _score_rows(scores: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    """Test set, metric, score and sacreBLEU's signature of each score in scores.json, which may be a stranger's."""
    for name, metrics in scores.items():
        for metric, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if isinstance(value, Mapping) and isinstance(value.get("score"), int | float):
                yield name, str(_METRICS.get(metric, metric)), value["score"], value.get("signature", "no signature")


def _render(metadata: dict[str, Any], licences: Licences, scores: Mapping[str, Any] | None, **values: Any) -> str:
    text = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    rows = list(_score_rows(scores or {}))
    return (
        _environment()
        .get_template("card.md.jinja")
        .render(metadata=text, licence=licences.sentence(), scores=rows, **values)
    )


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters |= {"code": shown, "number": "{:,}".format}
    return environment
