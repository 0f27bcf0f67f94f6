"""Model cards: README.md of a run, of a CTranslate2 export, and of a MarianMT directory, in the hub's format.

Flow: configuration, report, scores, comparison -> `card.md.jinja` -> text. Names of files, corpora, languages and
licences are untrusted: they are formatted as code, file names without directories, so that nothing in them is markup.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mtx.config.schema import TEACHER_TEST, Config
from mtx.data.token_store import PreparedData
from mtx.decoding.model_directory import LoadedModel, add_scores
from mtx.errors import DamagedFileError
from mtx.formatting import file_name
from mtx.scoring.metrics import METRICS
from mtx.storage.durable import Json, read_json
from mtx.storage.model_description import language_pairs
from mtx.storage.run_files import CARD, REPORT, SCORES, RunLayout, stored_scores
from mtx.training.events import Run
from mtx.training.hooks import Hook

logger = logging.getLogger(__name__)

_LANGUAGE_CODE = re.compile("[a-z]{2,3}")  # the only codes that the hub accepts


@dataclass(frozen=True)
class Comparison:
    """A comparison of the translations of an export and of mtx.

    Attributes:
        identical: share of identical lines.
    """

    num_lines: int
    identical: float
    bleu_difference: float

    def line(self) -> str:
        return f"{self.num_lines} lines: {self.identical:.1%} identical, BLEU {self.bleu_difference:+.2f}"


def licences_of(config: Config) -> dict[str, str]:
    """The licences of the model and of its training text from the settings, for the entry `run` of scores.json."""
    licences = {"licence": config.model.licence, "data_licence": config.data.licence}
    return {key: licence for key, licence in licences.items() if licence}


def run_card(config: Config, report: Json, scores: Json, run: Json) -> str:
    """README.md of a model directory.

    Args:
        report: the report of the prepared data.
        scores: the scores of each test set, as in scores.json.
        run: the entry `run` of scores.json.
    """
    return write_card("mtx", config.data.language_pairs, {**scores, "run": run}, config=config, report=report, run=run)


class ModelCard(Hook):
    """Writes the card with the scores, and again if the licences of a finished run have changed."""

    def on_scores(self, run: Run, scores: Json, files: dict[str, str]) -> None:
        scores["run"] |= licences_of(run.config)
        files[CARD] = run_card(run.config, run.data.report, scores, scores["run"])

    def on_prepared(self, config: Config, paths: RunLayout, data: PreparedData | None) -> None:
        try:
            scores = stored_scores(paths)
            stored_run = read_json(paths.model / SCORES)["run"]
        except (DamagedFileError, KeyError):  # no finished model, or a model that will be rewritten
            return
        run = {**{key: value for key, value in stored_run.items() if "licence" not in key}, **licences_of(config)}
        if run != stored_run:
            card = run_card(config, read_json(paths.data / REPORT), scores, run)
            add_scores(paths.model, {**scores, "run": run}, {CARD: card})
            logger.info("%s: updated the licences in the model card", paths.model)


def export_card(
    kind: str,
    loaded: LoadedModel,
    precision: str,
    scores: Json,
    comparison: Comparison | None = None,
) -> str:
    """README.md of an export, for people who have neither mtx nor the run.

    Args:
        kind: ctranslate2, marian or m2m_100.
        scores: the content of scores.json next to the model.
        comparison: the comparison of the export's translations with the model's; None if there is none.
    """
    return write_card(
        kind, language_pairs(loaded.info), scores, loaded=loaded, precision=precision, comparison=comparison
    )


def as_code(text: str) -> str:
    """Untrusted text as Markdown code: on one line, and without backquotes."""
    return f"`{_on_one_line(text).replace('`', ' ')}`"


def write_card(kind: str, pairs: Sequence[Sequence[str]], scores: Json, **values: Any) -> str:
    """A card with the metadata for the hub. `scores` is the untrusted content of scores.json.

    Args:
        kind: mtx, imported, ctranslate2, marian or m2m_100.
        pairs: source and target of each direction; of an imported model all languages together.
        values: what the template shows of this kind; of an imported model its `config`, and the `source` that it was
            imported from.
    """
    languages = [*dict.fromkeys(chain(*pairs))]
    run = scores.get("run")
    licences = run if isinstance(run, Mapping) else {}
    licence = licences.get("licence")
    if not isinstance(licence, str):
        licence = ""
    data_licence = licences.get("data_licence")
    if not isinstance(data_licence, str):
        data_licence = ""
    return _TEMPLATES.get_template("card.md.jinja").render(
        kind=kind,
        direction=", ".join(" to ".join(map(as_code, pair)) for pair in pairs),
        languages=languages,
        hub_languages=[code for code in languages if _LANGUAGE_CODE.fullmatch(code)],
        hub_licence=re.sub("-(only|or-later)$", "", licence.strip().lower()),
        scores=[  # test set, metric, and its score with sacreBLEU's signature
            (name, metric, value)
            for name, metrics in scores.items()
            if isinstance(metrics, Mapping)
            for metric, value in metrics.items()
            if isinstance(value, Mapping) and isinstance(value.get("score"), int | float)
        ],
        titles=METRICS,
        teacher_test=TEACHER_TEST,
        licence=licence,
        data_licence=data_licence,
        **values,
    )


def _on_one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:200]


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {
    "code": as_code,
    "quoted": lambda text: json.dumps(_on_one_line(text), ensure_ascii=False),  # as in YAML
    "name": file_name,
    "number": "{:,}".format,
}
