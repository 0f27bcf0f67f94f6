"""The peer of `quality.py`: transformers' MarianMTModel in a training loop that a careful user would write.

3+3 layers of size 256 and 1024, label smoothing, bf16 where it is fast, compiled, Adam with 400 steps of warmup to
0.002 and then a cosine to zero at the end of the time. Batches are sentences of similar length, drawn again each epoch.
The checkpoint with the best of 12 validation losses, evenly spaced in time, translates with transformers' own beam
search, beam 5.
"""

import copy
import json
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from mtx.config import settings
from mtx.data.token_store import PreparedData, TokenStore, load_prepared
from mtx.model.device import fast_precision
from mtx.model.transformer import Transformer
from mtx.scoring import metrics
from mtx.training.run import prepare_only
from scripts.benchmarks.baselines import MarianBaseline, PaddedBatch, cut, padded_batch
from scripts.benchmarks.train_worker import compiled_program

SIZES = (
    "model.num_encoder_layers=3", "model.num_decoder_layers=3", "model.d_model=256", "model.d_ff=1024",
    "model.num_heads=4", "tokenizer.vocab_size=auto",
)  # fmt: skip
PEAK = 0.002
WARMUP_STEPS = 400
NUM_VALIDATIONS = 12
BEAM_SIZE = 5
BATCH_TOKENS = 2048  # padded target positions
POOL_BATCHES = 50  # whose sentences are sorted by length together, but an eighth of the text at most
MAX_NEW_TOKENS = 200
CPU = torch.device("cpu")


def main() -> None:
    """Trains as the job in the first argument says, and prints the figures as JSON."""
    job = json.loads(sys.argv[1])
    torch.set_num_threads(job["threads"])
    mine = [*job["settings"], *SIZES, f"model.dropout={job['dropout']}", f"run_dir={job['run_dir']}"]
    config = settings.resolve(mine[0], mine[1:]).config
    data = load_prepared(prepare_only(config).data)
    torch.manual_seed(config.seed)
    model = MarianBaseline(Transformer(config.model, data.tokenizer.num_ids), config.data.max_tokens, "eager")
    precision = fast_precision(CPU) if config.precision == "auto" else config.precision
    steps, nll = train(model, data, job["seconds"], config.seed, precision)
    (store, *_) = data.tests.values()
    texts = (translate(model, data, store), store.tgt_texts())
    form = data.tokenizer.normalization
    hypotheses, references = (metrics.normalize_lines(lines, form) for lines in texts)
    scores = metrics.score(hypotheses, references, config.data.tgt, metrics=("bleu", "chrf"))
    bleu, chrf = (scores[name]["score"] for name in ("bleu", "chrf"))
    figures = {"bleu": bleu, "chrf": chrf, "nll": nll, "steps": steps, "seconds": job["seconds"]}
    print(json.dumps(figures))


def batches(store: TokenStore, rng: np.random.Generator) -> Iterator[PaddedBatch]:
    """One epoch of batches of similar length, in random order."""
    tgt = store.tgt.lengths.astype(np.int64)
    src = store.src.lengths
    order = rng.permutation(store.num_pairs)
    size = min(round(POOL_BATCHES * BATCH_TOKENS / float(tgt.mean())), -(-store.num_pairs // 8))
    groups = []
    for start in range(0, len(order), size):
        pool = order[start : start + size]
        groups += cut(pool[np.lexsort((src[pool], tgt[pool]))], tgt, BATCH_TOKENS)
    for number in rng.permutation(len(groups)):
        yield padded_batch(store, groups[number])


def train(model: MarianBaseline, data: PreparedData, seconds: float, seed: int, precision: str) -> tuple[int, float]:
    """Train, and leave the best weights in `model`; returns the number of steps and the best validation nll."""
    program = compiled_program(model, is_tuned=True)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    rng = np.random.default_rng(seed)
    best_nll = math.inf
    best_weights = copy.deepcopy(model.state_dict())
    single_pair = padded_batch(data.train, np.array([0]))  # has a program of its own
    for batch in [single_pair, *list(batches(data.train, np.random.default_rng(0)))[:WARM_UPS]]:  # compiles
        run(program, batch, precision).backward()
    optimizer.zero_grad()
    step = 0
    uncounted_s = 0.0
    started = time.monotonic()
    validations = 0
    while True:
        for batch in batches(data.train, rng):
            share = (time.monotonic() - started - uncounted_s) / seconds
            if share >= (validations + 1) / NUM_VALIDATIONS:
                validation_began = time.monotonic()
                validations += 1
                nll = validation_nll(model, data.valid)
                print(f"{share:.0%}, step {step}: validation nll {nll:.4f}", file=sys.stderr)
                if nll < best_nll:
                    best_nll = nll
                    best_weights = copy.deepcopy(model.state_dict())
                uncounted_s += time.monotonic() - validation_began
            if share >= 1:
                model.load_state_dict(best_weights)
                return step, best_nll
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = PEAK * min(step / WARMUP_STEPS, (1 + math.cos(math.pi * share)) / 2)
            run(program, batch, precision).backward()
            optimizer.step()
            optimizer.zero_grad()


WARM_UPS = 8  # batches of other lengths, whose programs are compiled before the time counts


def run(program: Any, batch: PaddedBatch, precision: str) -> Any:
    """The mean loss of a batch; `precision` is the setting's, by default bf16 where it is fast, as in mtx."""
    program.train()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        return program(*batch.to(CPU)) / batch.num_tgt_tokens


@torch.no_grad()
def validation_nll(model: MarianBaseline, store: TokenStore) -> float:
    """The nll of a target token, without smoothing."""
    model.eval()
    order = np.argsort(store.tgt.lengths, kind="stable")
    total = 0.0
    for group in cut(order, store.tgt.lengths.astype(np.int64), 4 * BATCH_TOKENS):
        batch = padded_batch(store, group)
        weight = model.output_weight()
        logits = model.hidden(batch.src_ids, batch.tgt_in_ids) @ weight.T
        total += float(
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), batch.tgt_out_ids.flatten(), ignore_index=len(weight), reduction="sum"
            )
        )
    return total / int(store.tgt.lengths.sum())


@torch.no_grad()
def translate(model: MarianBaseline, data: PreparedData, store: TokenStore) -> list[str]:
    """Beam search of transformers, sentences of similar length together."""
    model.eval()
    pad_id = data.tokenizer.pad_id
    order = np.argsort(store.src.lengths, kind="stable")
    hypotheses = [""] * store.num_pairs
    for group in cut(order, store.src.lengths.astype(np.int64), BATCH_TOKENS):
        batch = padded_batch(store, group)
        output_ids = model.marian.generate(
            input_ids=batch.src_ids, attention_mask=batch.src_ids != pad_id, num_beams=BEAM_SIZE, use_cache=True,
            max_new_tokens=MAX_NEW_TOKENS, bad_words_ids=[[pad_id]], early_stopping=True,
        )  # fmt: skip
        ids = [[token for token in row[1:] if token not in (0, pad_id)] for row in output_ids.tolist()]
        for number, text in zip(group, data.tokenizer.decode(ids), strict=True):
            hypotheses[number] = text
    return hypotheses


if __name__ == "__main__":
    main()
