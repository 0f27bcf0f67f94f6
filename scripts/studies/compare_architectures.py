"""Trains the Transformer, a recurrent encoder-decoder and a decoder alone, and compares them in a table and a picture.

    python -m scripts.studies.compare_architectures multi30k-en-de multi30k-de-en data.dir=DIR --minutes 15 --dir RUNS

The arguments are recipes, and settings for all of them, as `mtx train` takes both. Each architecture learns each recipe
into RUNS/RECIPE/ARCHITECTURE. The same command resumes where it was interrupted. At the end RUNS has table.md,
table.csv and architectures.png, which shows the first recipe.

Equal text: the runs of a recipe have the same pairs, pieces, seed and search. They differ in the settings of `OTHERS`,
which come after those of the command line.
Equal parameters: `model.d_model` of the recurrent model and `model.num_decoder_layers` of the decoder alone are those
with which it comes nearest to the parameters of the recipe's Transformer, embeddings included.
Equal time: `training.time_limit` alone ends a training. So `training.max_steps`, which has to be a number, is out of
reach, and `training.patience` is off. If the recipe has a cooldown, the clock says when it begins (`Schedule`),
so that it fills the same share of each architecture's time. The limit covers steps, validations, the choice of the
final weights and the scores of the test set. The text is prepared before.

Translations are timed when all trainings are over, one model after the other, with torch, which all three can use, and
the search of the recipe. P is a validation perplexity: the lowest that all rows of a recipe have reached, or that of
--perplexity.
"""

import argparse
import math
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from mtx.commands.translator_options import load_translator
from mtx.config.schema import ModelConfig
from mtx.config.settings import is_override
from mtx.data.token_store import load_prepared
from mtx.decoding.torch_engine import score_pairs
from mtx.decoding.translator import Translator
from mtx.evaluation.comparison import Comparison, compare
from mtx.evaluation.test_set_scores import system_outputs
from mtx.evaluation.test_sets import test_sets_of_runs
from mtx.model.architectures import num_parameters
from mtx.model.translation_model import TranslationModel
from mtx.report.run_history import Curve, training_history
from mtx.runs.run_directory import load_config, read_events
from mtx.storage.run_files import RunLayout
from scripts.docs import pictures
from scripts.studies.trainings import Training, run_all, write_tables

_ROUNDS = 3  # of each measurement of speed; the best one counts


COLOURS = {"transformer": pictures.BLUE, "rnn": pictures.ORANGE, "decoder": pictures.GREY}
# The settings of the other architectures, the key that decides how large they are, and the values that it may have.
# Those of the recurrent model were found on Multi30k: it needs more dropout and smaller steps than the Transformer.
OTHERS = {
    "rnn": (
        "model.architecture=rnn model.preset=tiny model.num_encoder_layers=1 model.num_decoder_layers=1 "
        "model.dropout=0.3 training.learning_rate=0.002 training.clip_norm=1.0",
        "model.d_model", range(2, 1 << 13, 2),
    ),
    "decoder": ("model.architecture=decoder", "model.num_decoder_layers", range(1, 200)),
}  # fmt: skip


def main() -> None:
    """Reads the command line, trains what is not trained yet, measures, and writes the table and the picture."""
    arguments = _arguments()
    runs = {
        recipe: {name: arguments.dir / Path(recipe).stem / name for name in COLOURS} for recipe in arguments.recipes
    }
    limit = f"training.time_limit={60 * arguments.minutes:.0f}s training.max_steps=1000000 training.patience=null"
    common = [*limit.split(), "training.validate_every=100", *arguments.settings]
    transformers = [Training(recipe_runs["transformer"], [recipe, *common]) for recipe, recipe_runs in runs.items()]
    run_all("prepare", transformers, arguments.jobs, arguments.threads)
    other_trainings = []
    for recipe, recipe_runs in runs.items():
        paths = RunLayout(recipe_runs["transformer"])
        model = load_config(paths).model
        num_ids = load_prepared(paths.data).tokenizer.num_ids
        for name in OTHERS:
            other_trainings.append(Training(recipe_runs[name], [recipe, *common, *settings_of(name, model, num_ids)]))
    run_all("prepare", other_trainings, arguments.jobs, arguments.threads)
    run_all("train", [*transformers, *other_trainings], arguments.jobs, arguments.threads)
    results = {recipe: _measure(recipe_runs, arguments) for recipe, recipe_runs in runs.items()}
    rows = {f"{recipe}, {name}": row for recipe, result in results.items() for name, row in result.rows.items()}
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    cells = [[name, *(row.get(column, "") for column in columns)] for name, row in rows.items()]
    write_tables(
        arguments.dir, ["", *columns], cells, [f"{recipe}: {measured.note()}" for recipe, measured in results.items()]
    )
    _draw(*next(iter(results.items())), arguments.dir / "architectures.png")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("settings", nargs="+", help="recipes, and key=value settings of mtx train for all of them")
    parser.add_argument("--minutes", type=float, default=15.0, help="time of each training")
    parser.add_argument("--dir", type=Path, required=True, help="directory of the runs, the table and the picture")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--threads", type=int, default=1, help="threads of each training, and of translation")
    parser.add_argument("--perplexity", type=float, help="the perplexity that steps and minutes are counted to")
    arguments = parser.parse_intermixed_args()
    arguments.recipes = [word for word in arguments.settings if not is_override(word)]
    arguments.settings = [word for word in arguments.settings if is_override(word)]
    if not arguments.recipes:
        parser.error("expected a recipe, such as multi30k-en-de")
    return arguments


def settings_of(name: str, transformer: ModelConfig, num_ids: int) -> list[str]:
    """The settings of another architecture with about as many parameters as this Transformer."""
    target = num_parameters(transformer, num_ids)
    (fixed, key, values) = OTHERS[name]

    def settings(value: int) -> list[str]:
        return [*fixed.split(), f"{key}={value}"]

    def size(value: int) -> int:
        changes = dict(setting.split("=") for setting in settings(value))
        model_changes = {key.removeprefix("model."): text for key, text in changes.items() if key.startswith("model.")}
        return num_parameters(ModelConfig.model_validate({**transformer.model_dump(), **model_changes}), num_ids)

    place = bisect_left(values, target, key=size)
    return settings(min(values[max(0, place - 1) : place + 1], key=lambda value: abs(size(value) - target)))


@dataclass(frozen=True)
class Result:
    """What was measured of a recipe.

    Attributes:
        rows: the cells of each architecture, by column.
        curves: the perplexities of the validations of each architecture.
        target: the perplexity P.
    """

    rows: dict[str, dict[str, str]]
    curves: dict[str, Curve]
    target: float
    comparison: Comparison

    def note(self) -> str:
        """What is below the table."""
        lengths = ", ".join(f"{part.count} of {part.length}" for part in self.comparison.lengths)
        signatures = "; ".join(f"{metric.name}: {metric.signature}" for metric in self.comparison.metrics)
        return f"P is {self.target:.2f}; sentences by {self.comparison.length_unit}: {lengths}; {signatures}"


def _measure(runs: Mapping[str, Path], arguments: argparse.Namespace) -> Result:
    text = test_sets_of_runs(list(runs.values()))[0]
    outputs, references = system_outputs(text, list(runs.values()), {})
    comparison = compare(outputs, references, metrics=("bleu", "chrf"), tgt=text.tgt)
    options = {"split_sentences": False, "threads": arguments.threads, "engine": "torch"}
    models = {name: load_translator(str(run), **options) for name, run in runs.items()}
    times = {name: min(_seconds(model, text.sources) for _ in range(_ROUNDS)) for name, model in models.items()}
    histories = {name: training_history(read_events(RunLayout(run).metrics)) for name, run in runs.items()}
    curves = {name: history.curve("validation", "ppl") for name, history in histories.items()}
    target = arguments.perplexity or max(min(curve.values) for curve in curves.values())
    rows = {}
    for number, (name, run) in enumerate(runs.items()):
        model = models[name].torch.model
        steps = histories[name].events_of("train")
        bleu, chrf = (metric.systems[number].score for metric in comparison.metrics)
        rows[name] = {
            "million parameters": f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.3f}",
            "steps": str(steps[-1]["step"]), "BLEU": f"{bleu:.2f}", "chrF2": f"{chrf:.2f}",
            "perplexity": f"{_perplexity(model, run):.2f}",
            "training, target tokens/s": f"{median(step['tgt_tokens_per_s'] for step in steps):.0f}",
            "translation, sentences/s": f"{len(text.sources) / times[name]:.0f}",
            **_reached(curves[name], target),
        }  # fmt: skip
        for part in comparison.lengths:
            rows[name][f"BLEU, {part.length} {comparison.length_unit}"] = f"{part.bleu[number]:.2f}"
    return Result(rows, curves, target, comparison)


def _seconds(model: Translator, sources: list[str]) -> float:
    started = time.perf_counter()
    model.translate(sources)
    return time.perf_counter() - started


def _perplexity(model: TranslationModel, run: Path) -> float:
    """That of the final model on the validation set, per target token and without smoothing."""
    paths = RunLayout(run)
    valid = load_prepared(paths.data).valid
    rows = np.arange(valid.num_pairs)
    scores = score_pairs(model.eval(), valid.src.sentences(rows), valid.tgt.sentences(rows), alpha=0.0)
    return math.exp(-sum(score.log_prob for score in scores) / sum(score.num_tokens for score in scores))


def _reached(curve: Curve, target: float) -> dict[str, str]:
    """The step and the minute of the first validation that had this perplexity; empty if none had."""
    points = zip(curve.steps, curve.hours, curve.values, strict=True)
    reached = next(((f"{step:.0f}", f"{60 * hours:.1f}") for step, hours, value in points if value <= target), ("", ""))
    return dict(zip(("steps to P", "minutes to P"), reached, strict=True))


def _draw(recipe: str, result: Result, path: Path) -> None:
    """Draws the perplexity against the minutes next to BLEU by sentence length."""
    unit = result.comparison.length_unit
    lengths = result.comparison.lengths
    with style.context(["default", pictures.LOOKS]):
        figure = Figure(figsize=(8, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        for number, (name, curve) in enumerate(result.curves.items()):
            look = {"color": COLOURS[name], "marker": "o", "markersize": 3, "linewidth": 1.4, "label": name}
            left.plot([60 * hours for hours in curve.hours], curve.values, **look)
            right.plot([part.bleu[number] for part in lengths], **look)
        left.set(title=f"Validation perplexity, {recipe}", xlabel="minutes of training", yscale="log")
        left.yaxis.set_major_formatter("{x:g}")
        left.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
        right.set(title="BLEU by sentence length", xlabel=f"{unit} of the reference (sentences)")
        right.set_xticks(range(len(lengths)), [f"{part.length}\n({part.count})" for part in lengths])
        for axes in (left, right):
            axes.grid()
        left.legend(frameon=False)
        pictures.save(figure, path)


if __name__ == "__main__":
    main()
