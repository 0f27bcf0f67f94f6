"""The charts of a report: which curves of a run are shown, and what is said of them. Flow: `Run` -> drawings."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mtx.report.charts import AXES, Axis, Drawing, Line, draw
from mtx.report.history import Curve
from mtx.report.run_files import Run


def charts(runs: Sequence[Run], names: Sequence[str]) -> Iterable[dict[str, Any]]:
    """The six charts; each run has its colour, and in a report of one run training and validation have theirs."""

    def lines(kind: str, key: str, name: str, largest: bool = False, exp: bool = False) -> list[Line]:
        style: Any = "marked" if kind == "validation" else "line"
        found = []
        for number, run in enumerate(runs):
            curve = run.history.curve(kind, key, largest)
            if curve.steps:
                label = name if len(runs) == 1 else f"{names[number]}, {name}"
                colour = number if len(runs) > 1 else int(kind == "validation")
                found.append(Line(label, _exponential(curve) if exp else curve, colour, style))
        return found

    nll = [*lines("train", "nll", "training"), *lines("validation", "nll", "validation")]
    ppl = [*lines("train", "nll", "training", exp=True), *lines("validation", "nll", "validation", exp=True)]
    loss = [Line(f"{line.name}, with label smoothing", line.curve, 2 if len(runs) == 1 else line.colour, "dotted")
            for line in lines("train", "loss", "training")]  # fmt: skip
    bleu, rate = lines("validation", "bleu", "validation"), lines("train", "learning_rate", "training")
    norm = lines("train", "grad_norm", "training", largest=True)
    speed = lines("train", "tgt_tokens_per_s", "training")
    for title, about, unit, is_log, chosen in (
        (
            "Loss",
            "of the right piece (nll), should fall; with label smoothing it is what training makes small",
            "nats per target token",
            False,
            [*loss, *nll],
        ),
        ("Perplexity", "between how many pieces it hesitates; should fall", "perplexity", True, ppl),
        ("Validation BLEU", "by greedy search; should rise", "BLEU", False, bleu),
        ("Learning rate", "how large its steps are", "learning rate", False, rate),
        (
            "Gradient norm",
            "the largest of each interval, before clipping; a lasting rise is a warning",
            "gradient norm",
            True,
            norm,
        ),
        ("Speed", "validation and saving left out", "target tokens per second", False, speed),
    ):
        if chosen:
            drawings: dict[Axis, Drawing] = {axis: draw(title, chosen, unit, axis, is_log) for axis in AXES}
            yield {"title": title, "about": about, "lines": chosen, "drawings": drawings,
                   "data": _readable(chosen, drawings)}  # fmt: skip


def _exponential(curve: Curve) -> Curve:
    return Curve(curve.steps, curve.hours, [round(math.exp(min(value, 30.0)), 4) for value in curve.values])


def _readable(lines: Sequence[Line], drawings: Mapping[Axis, Drawing]) -> dict[str, Any]:
    """What the script reads values from under the pointer."""
    axes = {axis: {k: v for k, v in vars(drawing).items() if k != "svg"} for axis, drawing in drawings.items()}
    return {"axes": axes, "lines": [{"name": line.name, **asdict(line.curve)} for line in lines]}
