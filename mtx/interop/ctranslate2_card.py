"""The model card of an export for CTranslate2: README.md, for people who have neither mtx nor the run."""

from collections.abc import Mapping
from typing import Any

import yaml

from mtx.files.shell import requirement, shell_command
from mtx.interop.licences import Licences
from mtx.interop.marian_card import compared, language_codes, score_lines
from mtx.interop.model_card import shown
from mtx.interop.verify import Comparison
from mtx.run.layout import EXPORT_EXAMPLE

_CARD = """\
---
{metadata}---

# {src} to {tgt}, for CTranslate2

A Transformer that translates {src} to {tgt}. It was trained with mtx and exported for CTranslate2 in {precision}.

## How to use it

```
{install}
python {example} < input.txt > output.txt
```

`{example}` translates one sentence a line and shows what a program needs; neither mtx nor torch is used. Sources longer
than {max_tokens} tokens are cut off there, and a translation can have 50 tokens more than that. `mtx translate DIR
--engine ctranslate2` (`DIR` is this directory) searches in the same way, but translates the sentences of a line one by
one if the model was trained on single sentences, a longer line in parts, and stops at the source's length + 50 tokens.

## How good it is

{scores}

{comparison}

## Licence

{licence}
"""


def ctranslate2_card(
    info: Mapping[str, Any], precision: str, scores: Mapping[str, Any] | None, comparison: Comparison | None = None
) -> str:
    """The text of the card.

    Args:
        info: the description of the model: src, tgt, max_tokens.
        scores: the content of scores.json beside the model.
        comparison: of the export's translations with those of the model; None if they were not compared.
    """
    src, tgt, licences = str(info["src"]), str(info["tgt"]), Licences.of_scores(scores)
    codes = language_codes(src, tgt)
    metadata = {
        **({"language": codes} if codes else {}), **licences.metadata(), "tags": ["translation", "ctranslate2", "mtx"],
        "library_name": "ctranslate2", "pipeline_tag": "translation",
    }  # fmt: skip
    lines = list(score_lines(scores or {}))
    return _CARD.format(
        metadata=yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True), src=shown(src), tgt=shown(tgt),
        precision=precision,
        install=shell_command("pip", "install", requirement("ctranslate2"), requirement("sentencepiece")),
        example=EXPORT_EXAMPLE, max_tokens=info["max_tokens"],
        scores="\n".join(["Before the export, in fp32:", "", *lines]) if lines else "It was not scored.",
        comparison=compared(comparison), licence=licences.sentence(),
    )  # fmt: skip
