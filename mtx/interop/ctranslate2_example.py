"""Translate lines from stdin to stdout with the CTranslate2 model in this directory: python example.py < text

Needs only ctranslate2 and sentencepiece. Lines are cut off after max_tokens subwords.
"""

import json
import re
import sys
import unicodedata
from pathlib import Path

import ctranslate2
import sentencepiece

BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # a model with byte pieces can write any character


def main() -> None:
    here = Path(__file__).resolve().parent
    settings, tokenizer = (json.loads((here / name).read_text("utf-8")) for name in ("mtx.json", "tokenizer.json"))
    models = sorted(here.glob("tokenizer*.model"))  # one for both languages, or one for each
    source, *_, target = [sentencepiece.SentencePieceProcessor(model_file=str(path)) for path in models] * 2
    translator = ctranslate2.Translator(str(here), device="cpu")
    text = sys.stdin.buffer.read().decode("utf-8", errors="replace").removesuffix("\n")
    lines = [line.strip() for line in text.split("\n")]
    if tokenizer["normalization"] == "nfc":
        lines = [unicodedata.normalize("NFC", line) for line in lines]
    pieces = source.encode(lines, out_type=str)
    starts, prefixes = [], None
    if "languages" in tokenizer:  # their tokens, from the model's first language into its second
        names, ids = {token: name for name, token in tokenizer["pieces"].items()}, tokenizer["languages"]["ids"]
        src, tgt = (names[ids[settings[side]]] for side in ("src", "tgt"))
        is_both = tokenizer["languages"]["rule"] == "both"
        starts, prefixes = [src if is_both else tgt], [[tgt]] * len(lines) if is_both else None
    results = translator.translate_batch(
        [starts + line for line in pieces],
        target_prefix=prefixes,
        max_batch_size=512,
        batch_type="tokens",
        max_input_length=settings["max_tokens"],
        max_decoding_length=settings["max_tokens"] + 49,
        min_decoding_length=0,
        beam_size=settings["beam_size"],
        num_hypotheses=settings["beam_size"],
        length_penalty=1e-9,  # CTranslate2's is |Y|^alpha; the model's setting is for ((5 + |Y|) / 6)^alpha
        return_scores=True,
    )
    num_forced = len(prefixes[0]) if prefixes else 0
    for line, result in zip(pieces, results, strict=True):
        scored = zip(result.scores, result.hypotheses, strict=True)
        best = max(
            scored, key=lambda pair: pair[0] / ((6 + len(pair[1]) - num_forced) / 6) ** settings["length_penalty"]
        )
        text = target.decode(best[1]) if line else ""
        sys.stdout.buffer.write(BREAKS.sub(" ", text).encode("utf-8") + b"\n")


if __name__ == "__main__":
    main()
