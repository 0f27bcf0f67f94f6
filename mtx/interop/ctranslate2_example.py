"""Translate lines from stdin to stdout with the CTranslate2 model in this directory: python example.py < text

With a model of several directions: python example.py en-de < text; its first direction is the default.
Needs only ctranslate2 and sentencepiece. Lines are cut off after max_tokens subwords.
"""

import json
import re
import sys
import unicodedata
from pathlib import Path

import ctranslate2
import sentencepiece

BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffd]")  # a model with byte pieces can write any character


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
    start = list[str]()
    prefix = list[str]()
    if languages := tokenizer.get("languages"):  # their tokens
        directions = settings.get("directions") or ["{src}-{tgt}".format_map(settings)]
        names = (*sys.argv[1:], *directions)[0].split("-")
        src, tgt = ([source.id_to_piece(languages["ids"][name])] for name in names)
        start, prefix = (src, tgt) if languages["rule"] == "both" else (tgt, [])
    results = translator.translate_batch(
        [start + line for line in pieces],
        target_prefix=[prefix] * len(lines),
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
    for line, result in zip(pieces, results, strict=True):
        scored = zip(result.scores, result.hypotheses, strict=True)
        size = 6 - len(prefix)
        best = max(scored, key=lambda pair: pair[0] / ((size + len(pair[1])) / 6) ** settings["length_penalty"])
        text = target.decode(best[1]) if line else ""
        sys.stdout.buffer.write(BREAKS.sub(" ", text).encode("utf-8") + b"\n")


if __name__ == "__main__":
    main()
