"""Model cards: README.md of a run, of a CTranslate2 export, and of a MarianMT directory, in the hub's format.

Flow: configuration, report, scores, comparison -> `card.md.jinja` -> text. Names of files, corpora, languages and
licences are untrusted: they are formatted as code, file names without directories, so that nothing in them is markup.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mtx.config.schema import Config
from mtx.data.token_store import PreparedData
from mtx.decoding import model_directory
from mtx.decoding.metrics import METRICS
from mtx.decoding.model_directory import LoadedModel
from mtx.errors import DamagedFileError
from mtx.model.architectures import model_class
from mtx.storage import durable
from mtx.storage.run_files import CARD, REPORT, SCORES, RunLayout, stored_scores
from mtx.training.hooks import Hook, Run

if TYPE_CHECKING:
    from mtx.interop.export import Comparison

logger = logging.getLogger(__name__)

_LANGUAGE_CODE = re.compile("[a-z]{2,3}")  # the only codes that the hub accepts
# Common licences of models in https://huggingface.co/docs/hub/repositories-licenses.
_HUB_LICENCES = {
    "agpl-3.0",
    "apache-2.0",
    "bsd-2-clause",
    "bsd-3-clause",
    "cc-by-4.0",
    "cc-by-nc-4.0",
    "cc-by-nc-nd-4.0",
    "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0",
    "cc-by-sa-3.0",
    "cc-by-sa-4.0",
    "cc0-1.0",
    "eupl-1.2",
    "gpl-2.0",
    "gpl-3.0",
    "lgpl-2.1",
    "lgpl-3.0",
    "mit",
    "mpl-2.0",
    "openrail",
    "unlicense",
}


def licences_of(config: Config) -> dict[str, str]:
    """The licences of the model and of its training text from the settings, for the entry `run` of scores.json."""
    given = {"licence": config.model.licence, "data_licence": config.data.licence}
    return {key: value for key, value in given.items() if value}


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
                {"type": metric, "name": METRICS[metric], "value": round(float(value["score"]), 2)}
                for metric, value in values.items()
            ],
        }
        for name, values in scores.items()
    ]
    what, sizes = model_class(config.model.architecture).describe(config.model)
    return _card(
        "mtx",
        config.data.languages,
        {**scores, "run": run},
        index=[{"name": config.data.direction, "results": results}],
        config=config,
        report=report,
        run=run,
        what=what,
        sizes=sizes,
    )


class ModelCard(Hook):
    """Writes the card with the scores, and again if the licences of a finished run have changed."""

    def on_scores(self, run: Run, scores: dict[str, Any], files: dict[str, str]) -> None:
        scores["run"] |= licences_of(run.config)
        results = {name: value for name, value in scores.items() if name != "run"}
        files[CARD] = run_card(run.config, run.data.report, results, scores["run"])

    def on_prepared(self, config: Config, paths: RunLayout, data: PreparedData | None) -> None:
        try:
            scores, before = stored_scores(paths), durable.read_json(paths.model / SCORES)["run"]
        except (DamagedFileError, KeyError):  # no finished model, or a model that will be rewritten
            return
        run = {**{key: value for key, value in before.items() if "licence" not in key}, **licences_of(config)}
        if run != before:
            card = run_card(config, durable.read_json(paths.data / REPORT), scores, run)
            model_directory.add_scores(paths.model, {**scores, "run": run}, {CARD: card})
            logger.info("%s: updated the licences in the model card", paths.model)


def export_card(
    kind: str,
    loaded: LoadedModel,
    precision: str,
    scores: Mapping[str, Any],
    comparison: "Comparison | None" = None,
) -> str:
    """README.md of an export, for people who have neither mtx nor the run.

    Args:
        kind: ctranslate2 or marian.
        scores: the content of scores.json next to the model.
        comparison: the comparison of the export's translations with the model's; None if there is none.
    """
    languages = loaded.info["src"], loaded.info["tgt"]
    return _card(kind, languages, scores, loaded=loaded, precision=precision, comparison=comparison)


def shown(text: str) -> str:
    """Untrusted text as Markdown code: on one line, and without backquotes."""
    return f"`{_on_one_line(text).replace('`', ' ')}`"


def _card(
    kind: str, languages: tuple[str, str], scores: Mapping[str, Any], index: Sequence[Any] = (), **values: Any
) -> str:
    """A card with the metadata for the hub. `scores` is the untrusted content of scores.json.

    Args:
        kind: mtx, ctranslate2 or marian.
        index: the hub's list of results.
    """
    licence, data_licence = (_licence(scores.get("run"), key) for key in ("licence", "data_licence"))
    on_hub = re.sub("-(only|or-later)$", "", licence.strip().lower())
    is_known = on_hub in _HUB_LICENCES
    metadata = {
        "language": [code for code in dict.fromkeys(languages) if _LANGUAGE_CODE.fullmatch(code)],
        "license": on_hub if is_known else licence and "other",
        "license_name": "" if is_known else _on_one_line(licence),
        "tags": [*dict.fromkeys(["translation", kind, "mtx"])],
        "library_name": "transformers" if kind == "marian" else kind,
        "pipeline_tag": "translation",
        "model-index": index,
    }
    text = yaml.safe_dump({key: value for key, value in metadata.items() if value}, sort_keys=False, allow_unicode=True)
    return _TEMPLATES.get_template("card.md.jinja").render(
        kind=kind,
        metadata=text,
        src=languages[0],
        tgt=languages[1],
        scores=list(_score_rows(scores)),
        licence=licence,
        data_licence=data_licence,
        **values,
    )


def _score_rows(scores: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    """Test set, metric, score and sacreBLEU's signature of each score."""
    for name, metrics in scores.items():
        for metric, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if isinstance(value, Mapping) and isinstance(value.get("score"), int | float):
                yield name, str(METRICS.get(metric, metric)), value["score"], value.get("signature", "no signature")


def _licence(run: object, key: str) -> str:
    value = run.get(key) if isinstance(run, Mapping) else None
    return value if isinstance(value, str) else ""


def _on_one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:200]


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {"code": shown, "name": lambda path: PurePath(path).name or path, "number": "{:,}".format}
