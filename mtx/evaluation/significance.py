"""Paired significance tests of systems by sacreBLEU: bootstrap resampling and approximate randomisation.

Flow: hypotheses of several systems + references -> `paired_tests` -> one `MetricComparison` for each metric. The first
system is the baseline. sacreBLEU's own seed makes the results reproducible.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mtx.data.languages import tokenizer_of
from mtx.errors import UsageError
from mtx.evaluation.metrics import ter_takes_too_long
from mtx.evaluation.protocols import Protocol

TestType = Literal["bs", "ar"]  # bootstrap resampling (Koehn 2004), approximate randomisation (Riezler & Maxwell 2005)
METRICS = ("bleu", "chrf", "ter")
SIGNIFICANCE_LEVEL = 0.05  # a difference with a smaller p-value is significant


@dataclass(frozen=True)
class System:
    """The hypotheses of one system, one line for each sentence."""

    name: str
    hypotheses: list[str]


@dataclass(frozen=True)
class SystemScore:
    """The score of one system by one metric.

    Attributes:
        mean: mean over the bootstrap samples; None with approximate randomisation.
        ci: half of the 95% confidence interval around `mean`; None with approximate randomisation.
        p_value: of the difference to the baseline; None for the baseline itself. It is 1 if both have the same score,
            for which sacreBLEU's tests would give 0.0001.
    """

    score: float
    mean: float | None
    ci: float | None
    p_value: float | None


@dataclass(frozen=True)
class MetricComparison:
    """One metric of all systems, in their order; `signature` is sacreBLEU's, with seed and number of samples."""

    name: str
    signature: str
    systems: list[SystemScore]

    @property
    def is_error(self) -> bool:
        """Whether a lower score is better."""
        return self.name == "TER"

    def gain(self, index: int) -> float:
        """How many points a system is better than the baseline."""
        difference = self.systems[index].score - self.systems[0].score
        return -difference if self.is_error else difference

    def is_worse(self, index: int) -> bool:
        """Whether a system is significantly worse than the baseline."""
        p_value = self.systems[index].p_value
        return p_value is not None and p_value < SIGNIFICANCE_LEVEL and self.gain(index) < 0


def paired_tests(
    systems: Sequence[System], references: list[str], paired: TestType, metrics: Sequence[str], tgt: str,
    protocol: Protocol | None,
) -> list[MetricComparison]:  # fmt: skip
    """The scores of all systems by each metric, tested against the baseline; for the arguments see `compare`."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    factories = {"bleu": lambda: BLEU(tokenize=tokenizer_of(tgt, references)), "chrf": CHRF, "ter": TER}
    if "ter" in metrics and any(ter_takes_too_long(system.hypotheses, references) for system in systems):
        metrics = [name for name in metrics if name != "ter"]
    chosen = {name: factories[name]() for name in METRICS if name in metrics}
    comparisons = _test(systems, references, paired, chosen) if chosen else []
    if protocol is not None:
        text = protocol.tokenized(references, [system.hypotheses for system in systems])
        tokenized = [System(system.name, lines) for system, lines in zip(systems, text.systems, strict=True)]
        [bleu] = _test(tokenized, text.references, paired, {"bleu": protocol.metric()})
        name, signature = f"{protocol.name} {bleu.name}", text.signature(bleu.signature)
        comparisons.append(replace(bleu, name=name, signature=signature))
    return comparisons


def _test(
    systems: Sequence[System], references: list[str], paired: TestType, metrics: dict[str, Any]
) -> list[MetricComparison]:
    from sacrebleu.significance import PairedTest

    named = [(system.name, system.hypotheses) for system in systems]
    seed = os.environ.get("SACREBLEU_SEED", "0")  # read by sacreBLEU
    if not (seed.lower() == "none" or (seed.isascii() and seed.isdecimal() and int(seed) < 1 << 32)):
        raise UsageError(f"SACREBLEU_SEED={seed}: expected a whole number below 2^32, or none")
    signatures, results = PairedTest(named, metrics, [references], test_type=paired)()
    comparisons = []
    for name in (name for name in results if name != "System"):
        baseline, *others = results[name]
        scores = [_system_score(baseline, _optional_float(baseline.p_value))]
        for system, result in zip(systems[1:], others, strict=True):
            is_equal = result.score == baseline.score or system.hypotheses == systems[0].hypotheses
            scores.append(_system_score(result, 1.0 if is_equal else _optional_float(result.p_value)))
        comparisons.append(MetricComparison(name, str(signatures[name]), scores))
    return comparisons


def _system_score(result: Any, p_value: float | None) -> SystemScore:
    return SystemScore(float(result.score), _optional_float(result.mean), _optional_float(result.ci), p_value)


def _optional_float(value: Any) -> float | None:
    return None if value is None else float(value)
