"""Search with random weights and translations as long as their sources: mtx and the `generate` of transformers."""

import argparse
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch
from turns import errors_reported, report, wait_for_turn

from mtx.config import settings
from mtx.data.tokenizer import EOS_ID
from mtx.decoding.options import Placement, SearchOptions
from mtx.decoding.torch_engine import TorchEngine
from mtx.model.device import find_device, use_device
from mtx.model.transformer import Transformer
from scripts.benchmarks.baselines import MarianBaseline
from scripts.benchmarks.train_worker import drawn_data, synchronize
from scripts.benchmarks.translate_worker import limit_to_source_length

NUM_SINGLE = 5  # calls with one sentence
PEER_BATCH = 256  # sentences
NEVER = -1e4  # added to the logit of `</s>`


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--ids", type=int, default=37_000)
    parser.add_argument("--lines", type=int, default=3_000)
    parser.add_argument("--peer-lines", type=int, default=512)
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    use_device(device)
    config = settings.resolve(None, ["data.src=en", "data.tgt=de", f"model.preset={options.preset}"]).config
    side = drawn_data(config, options.ids, options.lines).train.src
    sources = side.sentences(np.arange(side.num_sentences))
    torch.manual_seed(1)
    model = Transformer(config.model, options.ids).to(device).eval()
    forbid_end(model)
    limit_to_source_length()
    wait_for_turn(device)
    for precision, beam_size in (("bf16", 4), ("bf16", 1), ("fp32", 4)):
        with errors_reported("decode", system="mtx", precision=precision, beam=beam_size):
            measure_engine(model, sources, precision, beam_size, device)
    with errors_reported("decode", system="transformers"):
        model.output_bias = None
        precision = torch.bfloat16 if device.type == "cuda" else torch.float32
        marian = MarianBaseline(model.cpu(), config.data.max_tokens, "sdpa").marian.to(device, precision).eval()
        marian.generation_config.forced_eos_token_id = marian.generation_config.bad_words_ids = None
        marian.config.use_cache = marian.generation_config.use_cache = True
        for beam_size in (4, 1):
            measure_generate(marian, model.pad_id, sorted(sources[: options.peer_lines], key=len), beam_size, device)


def forbid_end(model) -> None:
    """Makes `</s>` impossible, so that the model ends no translation by itself."""
    bias = torch.zeros(len(model.output_weight), device=model.output_weight.device)
    bias[EOS_ID] = NEVER
    model.output_bias = torch.nn.Parameter(bias)


def measure_engine(model, sources, precision, beam_size, device) -> None:
    """Reports the rate of mtx's engine over all sources, and the time of a call with one of 25 tokens."""
    tokenizer = SimpleNamespace(num_ids=model.pad_id, pad_id=model.pad_id, marks=None, num_forced=0)
    engine = TorchEngine([model], tokenizer, Placement(precision=precision))
    search = SearchOptions(beam_size, 0.6)
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        results = engine.search(sources, [[] for _ in sources], search)
        synchronize(device)
        times.append(time.perf_counter() - begun)
    num_tokens = sum(len(candidates[0].ids) for candidates in results)
    sentence = [*max(sources, key=len)[:24], 0]
    engine.search([sentence], [[]], search)  # records the step of this shape
    begun = time.perf_counter()
    for _ in range(NUM_SINGLE):
        engine.search([sentence], [[]], search)
    single_ms = 1e3 * (time.perf_counter() - begun) / NUM_SINGLE
    report(
        "decode", system="mtx", precision=precision, beam=beam_size, lines=len(sources),
        tgt_tokens_per_s=round(num_tokens / times[-1]), first_s=round(times[0], 2), second_s=round(times[-1], 2),
        one_sentence_ms=round(single_ms, 1),
    )  # fmt: skip


def measure_generate(marian, pad_id, sources, beam_size, device) -> None:
    """Reports the rate of `generate` over sorted sources, all of a batch as long as its mean."""
    times = []
    num_tokens = 0
    for _ in range(2):
        begun = time.perf_counter()
        num_tokens = 0
        for start in range(0, len(sources), PEER_BATCH):
            rows = sources[start : start + PEER_BATCH]
            width = max(map(len, rows))
            length = round(sum(map(len, rows)) / len(rows))
            ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows], device=device)
            with torch.inference_mode():
                marian.generate(
                    input_ids=ids, attention_mask=(ids != pad_id).long(), num_beams=beam_size, do_sample=False,
                    max_new_tokens=length, min_new_tokens=length,
                )  # fmt: skip
            num_tokens += length * len(rows)
        synchronize(device)
        times.append(time.perf_counter() - begun)
    report(
        "decode", system="transformers", precision=str(marian.dtype).removeprefix("torch."), beam=beam_size,
        lines=len(sources), tgt_tokens_per_s=round(num_tokens / times[-1]), first_s=round(times[0], 2),
        second_s=round(times[-1], 2),
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
