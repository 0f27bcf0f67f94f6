"""Writes the model card of a run: README.md in its model directory, for the hub."""

import logging
from typing import Any

from mtx.config.schema import Config
from mtx.data.token_store import PreparedData
from mtx.decoding import model_directory
from mtx.errors import DamagedFileError
from mtx.interop.cards import licences_of, run_card
from mtx.storage import durable
from mtx.storage.run_contents import stored_scores
from mtx.storage.run_files import CARD, REPORT, SCORES, RunLayout
from mtx.training.hooks import Hook
from mtx.training.trainer import Trainer

logger = logging.getLogger(__name__)


class ModelCard(Hook):
    """Writes the card with the scores; of a finished run again if its licences have changed, which are only words."""

    def on_scores(self, trainer: Trainer, scores: dict[str, Any], files: dict[str, str]) -> None:
        scores["run"] |= licences_of(trainer.config)
        results = {name: value for name, value in scores.items() if name != "run"}
        files[CARD] = run_card(trainer.config, trainer.data.report, results, scores["run"])

    def on_prepared(self, config: Config, paths: RunLayout, data: PreparedData | None) -> None:
        try:
            scores, before = stored_scores(paths), durable.read_json(paths.model / SCORES)["run"]
        except (DamagedFileError, KeyError):  # no finished model, or one that will be written again
            return
        run = {**{key: value for key, value in before.items() if "licence" not in key}, **licences_of(config)}
        if run != before:
            card = run_card(config, durable.read_json(paths.data / REPORT), scores, run)
            model_directory.add_scores(paths.model, {**scores, "run": run}, {CARD: card})
            logger.info("%s: its model card gives the licences of today", paths.model)
