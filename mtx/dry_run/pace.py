"""What a run costs, measured: real steps, a checkpoint, validation, and searches as long as the references are.

A model that has hardly learned would end its translations anywhere, mostly at the longest length. So `</s>` is kept
from it, and each search ends at the length that translations have in this text; beam search with a trained model takes
that many steps, too (docs/decisions.md). The trainer that is measured is of no further use.
Flow: trainer -> `StepPace` and seconds -> `estimate`.
"""

import contextlib
import time
from dataclasses import dataclass

import numpy as np
import torch

from mtx.data.token_store import Side, TokenStore
from mtx.data.tokenizer import EOS_ID
from mtx.decoding.options import SearchOptions
from mtx.decoding.translator import Translator
from mtx.dry_run.text import spread
from mtx.evaluation import metrics
from mtx.run.layout import RunLayout
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from mtx.training.schedule import learning_rate
from mtx.training.trainer import Trainer
from mtx.training.validation import mean_nll

_WARM_UP = 2  # steps in which memory is first touched, or a graph recorded
_TIMED_STEPS, _TIMED_S = 60, 6.0  # whichever comes first
_CUDA_SAMPLE, _CPU_SAMPLE = 4096, 256  # sentences that stand for a set: four times what is decoded at once, or twice
_NEVER = -1e4  # added to the logit of `</s>`


@dataclass(frozen=True)
class StepPace:
    """What a step takes and learns from, as means.

    Attributes:
        start_s: until the first steps were done.
        step_s: of a step after them.
        num_timed: steps that were timed.
    """

    start_s: float
    step_s: float
    tgt_tokens: float
    pairs: float
    num_timed: int


def time_steps(trainer: Trainer) -> StepPace:
    """Take steps as the run would from where it stands."""
    training, d_model = trainer.config.training, trainer.config.model.d_model
    started, ends = time.monotonic(), list[float]()
    tokens, pairs = list[int](), list[int]()
    with contextlib.closing(trainer.load(_WARM_UP + _TIMED_STEPS)) as steps:
        for step, loaded in enumerate(steps, trainer.state.step + 1):
            rate = learning_rate(step, training.warmup_steps, d_model, training.learning_rate)
            figures = trainer.update(loaded, step, rate)
            assert figures is not None, "nobody listens to signals"
            figures.tolist()  # waits for the device
            ends.append(time.monotonic())
            tokens.append(loaded.num_tgt_tokens)
            pairs.append(sum(batch.num_sentences for batch in loaded.micro_batches))
            if len(ends) > _WARM_UP and ends[-1] - ends[_WARM_UP - 1] > _TIMED_S:
                break
    begun, num_timed = ends[_WARM_UP - 1], len(ends) - _WARM_UP
    step_s = (ends[-1] - begun) / num_timed
    return StepPace(begun - started, step_s, float(np.mean(tokens)), float(np.mean(pairs)), num_timed)


@dataclass(frozen=True)
class _Paced(SearchOptions):
    """A search that ends each translation at so many tokens for each of the source's."""

    tgt_per_src: float = 1.0

    def limit(self, source: list[int], prefix: list[int]) -> int:
        return max(1, round(len(source) * self.tgt_per_src))


def save_s(trainer: Trainer, scratch: RunLayout) -> float:
    """Seconds by which a checkpoint delays training: on a CPU it takes a core for as long as it is written.

    Args:
        scratch: where one is written.
    """
    if trainer.device.type != "cpu":
        return 0.0
    started = time.monotonic()
    checkpoint.save(scratch, checkpoint.snapshot(trainer.model, trainer.optimizer), State(step=1))
    return (time.monotonic() - started) / trainer.runtime.threads


def keep_end_away(trainer: Trainer) -> None:
    """Have the model end no translation by itself."""
    bias = torch.zeros(len(trainer.model.output_weight), device=trainer.device)
    bias[EOS_ID] = _NEVER
    trainer.model.output_bias = torch.nn.Parameter(bias)


def validation_s(trainer: Trainer) -> float:
    """Seconds of one validation, from a sample; after `keep_end_away`."""
    data = trainer.data
    sample, scale = _sample(trainer, data.valid)
    references = sample.tgt_texts()
    metrics.bleu(references[:1], references[:1])  # loads it
    started = time.monotonic()
    mean_nll(trainer.model, sample, data.tokenizer.pad_id)
    _translate(trainer, sample, SearchOptions(beam_size=1))
    metrics.bleu(references, references, trainer.config.data.tgt)
    return scale * (time.monotonic() - started)


def scoring_s(trainer: Trainer) -> float:
    """Seconds to translate and score all test sets, from a sample of each; after `keep_end_away`."""
    decoding, seconds = trainer.config.decoding, 0.0
    for store in trainer.data.tests.values():
        sample, scale = _sample(trainer, store)
        references = sample.tgt_texts()
        started = time.monotonic()
        _translate(trainer, sample, SearchOptions(decoding.beam_size, decoding.length_penalty), decoding.batch_tokens)
        metrics.score(references, references, trainer.config.data.tgt)
        seconds += scale * (time.monotonic() - started)
    return seconds


def _sample(trainer: Trainer, store: TokenStore) -> tuple[TokenStore, float]:
    """Sentences that stand for a set, and how many times as much as they the set is."""
    most = _CUDA_SAMPLE if trainer.device.type == "cuda" else _CPU_SAMPLE
    by_length = np.argsort(store.src.lengths, kind="stable")
    sample = store.take(by_length[spread(store.num_pairs, most)])
    return sample, _num_tokens(store) / _num_tokens(sample)


def _num_tokens(store: TokenStore) -> int:
    return int(store.src.lengths.sum()) + int(store.tgt.lengths.sum())


def _translate(trainer: Trainer, store: TokenStore, options: SearchOptions, batch_tokens: int = 4096) -> None:
    ratio = float(store.tgt.lengths.sum() / store.src.lengths.sum())
    paced = _Paced(options.beam_size, options.length_penalty, tgt_per_src=ratio)
    trainer.model.train()  # as training leaves it
    max_tokens = trainer.config.data.max_tokens
    translator = Translator(trainer.model, trainer.data.tokenizer, max_tokens, paced, batch_tokens=batch_tokens)
    sources = _sentences(store.src)
    translator.decode(sources, [[] for _ in sources])


def _sentences(side: Side) -> list[list[int]]:
    rows = zip(side.starts, side.lengths, strict=True)
    return [side.tokens[start : start + length].tolist() for start, length in rows]
