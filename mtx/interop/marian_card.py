"""The model card of a MarianMT directory: README.md with the hub's YAML metadata and a description of the model."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from mtx.interop.licences import Licences
from mtx.interop.verify import Comparison
from mtx.model_directory.storage import LoadedModel

_LANGUAGE_CODE = re.compile("[a-z]{2,3}")  # the hub accepts no others

_CARD = """\
---
{language}{licence_metadata}tags:
- translation
- marian
- mtx
library_name: transformers
pipeline_tag: translation
---

# {src} to {tgt}

A Transformer that translates {src} to {tgt}. It was trained with mtx and exported as a MarianMT model.

- layers: {config.num_encoder_layers} encoder, {config.num_decoder_layers} decoder
- width: {config.d_model}, feed-forward {config.d_ff}, {config.num_heads} heads, {config.activation}
- vocabulary: {num_ids:,} entries
- parameters: {num_parameters:,}
- longest source: {max_tokens} tokens

## Usage

```python
from transformers import MarianMTModel, MarianTokenizer
path = "PATH"  # of this directory, or its name on the hub
tokenizer, model = MarianTokenizer.from_pretrained(path), MarianMTModel.from_pretrained(path)
inputs = tokenizer(["TEXT"], return_tensors="pt", padding=True, truncation=True)
outputs = model.generate(**inputs)
print(tokenizer.batch_decode(outputs, skip_special_tokens=True))
```
{normalization}{search}{scores}
## Comparison

{comparison}

## Licence

{licence}
"""

_NFC = """
The model was trained on text in Unicode NFC, and the tokenizer here does not see to that: pass
`unicodedata.normalize("NFC", text)`.
"""
_GREEDY = " Both searched greedily, because their beam searches have different length penalties."
_SEARCH = """
The length penalty that transformers divides by is |Y|^a, mtx's is ((5 + |Y|) / 6)^a; `generation_config.json` has the
a of training, so that beam search can choose another translation in a few sentences.
"""


def model_card(
    loaded: LoadedModel, scores: Mapping[str, Any] | None, comparison: Comparison | None = None
) -> str:  # fmt: skip
    """The text of the card.

    Args:
        scores: the content of scores.json.
        comparison: of the export's greedy translations with those of the model; None if they were not compared.
    """
    src, tgt = str(loaded.info["src"]), str(loaded.info["tgt"])
    codes = [json.dumps(code) for code in language_codes(src, tgt)]
    licences = Licences.of_scores(scores)
    return _CARD.format(
        language="".join(f"{line}\n" for line in ("language:", *(f"- {code}" for code in codes)) if codes),
        licence=licences.sentence(), comparison=f"{compared(comparison)}{_GREEDY if comparison else ''}",
        licence_metadata=yaml.safe_dump(metadata, allow_unicode=True) if (metadata := licences.metadata()) else "",
        src=src, tgt=tgt, config=loaded.model.config, num_ids=loaded.tokenizer.num_ids,
        num_parameters=sum(parameter.numel() for parameter in loaded.model.parameters()),
        max_tokens=loaded.info["max_tokens"],
        normalization=_NFC if loaded.tokenizer.normalization == "nfc" else "",
        search=_SEARCH if loaded.info["beam_size"] > 1 else "",
        scores="".join(f"{line}\n" for line in ("", "## Scores", "", *score_lines(scores))) if scores else "",
    )  # fmt: skip


def language_codes(src: str, tgt: str) -> list[str]:
    """Those of the two languages that the hub accepts as language codes."""
    return [code for code in dict.fromkeys((src, tgt)) if _LANGUAGE_CODE.fullmatch(code)]


def score_lines(scores: Mapping[str, Any]) -> Iterator[str]:
    """A line for each test set and metric, with sacreBLEU's signature."""
    for name, metrics in scores.items():
        for metric, value in metrics.items() if isinstance(metrics, Mapping) else ():
            if isinstance(value, Mapping) and isinstance(value.get("score"), int | float):
                yield f"- {name}, {metric}: {value['score']:.2f} (`{value.get('signature', 'no signature')}`)"


def compared(comparison: Comparison | None) -> str:
    """How the translations of an export compare with those of its model; None means that they were not compared."""
    if comparison is None:
        return "The translations of this export were not compared with those of the model that it was made from."
    text = f"On {comparison.num_lines:,} lines, {comparison.identical:.1%} of its translations are those of the model"
    if comparison.has_references:
        difference = f"{comparison.bleu_difference:+.2f}"
        return f"{text} that it was made from; its BLEU differs from that model's by {difference}."
    return f"{text} that it was made from; the others are {comparison.bleu_difference:.2f} BLEU apart."
