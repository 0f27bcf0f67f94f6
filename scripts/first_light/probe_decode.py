"""Search with random weights and translations as long as their sources, each text three times.

The first two searches of a text record steps, so its rate is the one of the third.
"""

import argparse
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch
from turns import errors_reported, report

from mtx.config import settings
from mtx.data.tokenizer import EOS_ID
from mtx.decoding.beam_search import find_reduction
from mtx.decoding.options import Placement, SearchOptions
from mtx.decoding.torch_engine import TorchEngine
from mtx.model.device import find_device, use_device
from mtx.model.transformer import Transformer
from scripts.benchmarks.train_worker import drawn_data, synchronize
from scripts.benchmarks.translate_worker import limit_to_source_length

BEAM_SIZE = 4
NUM_RUNS = 3
NUM_SINGLE = 5  # calls with one sentence
NEVER = -1e4  # added to the logit of `</s>`


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--ids", type=int, default=37_000)
    parser.add_argument("--lines", default="3000,30000", help="sizes of the texts")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    use_device(device)
    config = settings.resolve(None, ["data.src=en", "data.tgt=de", f"model.preset={options.preset}"]).config
    sizes = [int(size) for size in options.lines.split(",")]
    side = drawn_data(config, options.ids, max(sizes)).train.src
    torch.manual_seed(1)
    model = Transformer(config.model, options.ids).to(device).eval()
    forbid_end(model)
    limit_to_source_length()
    tokenizer = SimpleNamespace(num_ids=model.pad_id, pad_id=model.pad_id, marks=None, num_forced=0)
    for size in sizes:
        with errors_reported("decode", lines=size):
            engine = TorchEngine([model], tokenizer, Placement(precision="bf16"))
            measure_engine(engine, side.sentences(np.arange(size)))


def forbid_end(model) -> None:
    """Makes `</s>` impossible, so that the model ends no translation by itself."""
    bias = torch.zeros(len(model.output_weight), device=model.output_weight.device)
    bias[EOS_ID] = NEVER
    model.output_bias = torch.nn.Parameter(bias)


def measure_engine(engine: TorchEngine, sources) -> None:
    """Reports each search of all sources, and the time of a call with one of 25 tokens."""
    search = SearchOptions(BEAM_SIZE, 0.6)
    kernel = "mtx" if engine.device.type == "cuda" and find_reduction(engine.device) else "torch"
    about = {"precision": engine.precision, "beam": BEAM_SIZE, "lines": len(sources), "kernel": kernel}
    for number in range(1, NUM_RUNS + 1):
        begun = time.perf_counter()
        results = engine.search(sources, [[] for _ in sources], search)
        synchronize(engine.device)
        seconds = time.perf_counter() - begun
        num_tokens = sum(len(candidates[0].ids) for candidates in results)
        report("decode", **about, run=number, seconds=round(seconds, 2), tgt_tokens_per_s=round(num_tokens / seconds))
    sentence = [*max(sources, key=len)[:24], 0]
    for _ in range(NUM_RUNS - 1):  # which record the steps of this shape
        engine.search([sentence], [[]], search)
    begun = time.perf_counter()
    for _ in range(NUM_SINGLE):
        engine.search([sentence], [[]], search)
    report("decode", **about, one_sentence_ms=round(1e3 * (time.perf_counter() - begun) / NUM_SINGLE, 1))


if __name__ == "__main__":
    main(sys.argv[1:])
