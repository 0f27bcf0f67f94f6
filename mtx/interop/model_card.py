"""The model card of a run: README.md beside the model, in the form of the hub, with YAML metadata first.

Flow: configuration + report + scores -> text. Names of files and corpora are untrusted: they are shown as code, without
their folders, so that nothing in them is markup.
"""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import yaml

from mtx.config.schema import Config
from mtx.interop.licences import Licences
from mtx.interop.marian_card import language_codes
from mtx.model.architecture import in_words

_METRICS = {"bleu": "BLEU", "chrf": "chrF2", "ter": "TER"}

_CARD = """\
---
{metadata}---

# {src} to {tgt}

{kind} that translates {src} to {tgt}, trained with mtx.

## How to use it

```
echo "…" | mtx translate DIR
```

`DIR` is this directory; `pip install .` in a checkout of mtx's repository installs mtx.{exports}

## How good it is

{scores}

Scored in fp32 with beam size {m.beam_size} and length penalty {m.length_penalty}. Text unlike the training text will be
translated less well. Nobody has looked for bias or harm in what it puts out.

## What it was trained on

{data}

{kept:,} of {read:,} pairs were trained on, {held_out:,} were held out for validation and test.
That is {src_tokens:,} source and {tgt_tokens:,} target tokens.
{licence}

## How it was trained

- {sizes}
- {pieces:,} pieces
- {steps:,} steps of {batch:,} target tokens, seed {seed}, dropout {dropout}
- {elapsed} on {device} in {precision}, torch {torch}
{weights}{init}"""


_EXPORTS = """ `mtx export DIR --to
ctranslate2` and `--to huggingface` make of it what other programs load."""


def run_card(
    config: Config, report: Mapping[str, Any], scores: Mapping[str, Any], run: Mapping[str, Any], steps: int,
    elapsed: str,
) -> str:  # fmt: skip
    """README.md of a model directory.

    Args:
        report: the report of the prepared data.
        scores: the scores of each test set, as in scores.json.
        run: the entry `run` of scores.json.
        steps: number of updates. elapsed: duration of training, in words.
    """
    init, model = run.get("init_from"), config.model
    kind, sizes = in_words(model)
    return _CARD.format(
        metadata=yaml.safe_dump(_metadata(config, scores), sort_keys=False, allow_unicode=True),
        src=shown(config.data.src), tgt=shown(config.data.tgt), kind=kind, m=config.decoding,
        exports=_EXPORTS if model.architecture == "transformer" else "", sizes=sizes,
        scores="\n".join(_score_lines(scores)) or "It was not scored.",
        data="\n".join(_data_lines(config, report)), kept=report["kept"], read=report["read"],
        held_out=report["held_out"], src_tokens=report["src_tokens"], tgt_tokens=report["tgt_tokens"],
        pieces=report["pieces"], licence=Licences.of_config(config).sentence(),
        steps=steps, batch=config.training.batch_tokens, seed=config.seed, dropout=model.dropout, elapsed=elapsed,
        device=run["device"], precision=run["training_precision"], torch=run["torch"],
        weights=f"- the weights are {run['weights']}\n" if "weights" in run else "",
        init=f"- started from the weights of {shown(str(init['path']))}, sha256 {init['sha256']}\n" if init else "",
    )  # fmt: skip


def shown(name: str) -> str:
    """A name as Markdown code: without its folders, on one line, and without backquotes."""
    text = "".join(c if c.isprintable() and c != "`" else " " for c in PurePath(name).name or name)
    return f"`{text[:100]}`"


def _metadata(config: Config, scores: Mapping[str, Any]) -> dict[str, Any]:
    codes, task = language_codes(*config.data.languages), "translation"
    results = [
        {
            "task": {"type": task},
            "dataset": {"name": name, "type": name},
            "metrics": [
                {"type": metric, "name": _METRICS[metric], "value": round(float(value["score"]), 2)}
                for metric, value in values.items()
            ],
        }
        for name, values in scores.items()
    ]
    metadata: dict[str, Any] = {"language": codes} if codes else {}
    metadata |= Licences.of_config(config).metadata()
    metadata |= {"tags": [task, "mtx"], "library_name": "mtx", "pipeline_tag": task}
    return {**metadata, "model-index": [{"name": config.data.direction, "results": results}]}


def _score_lines(scores: Mapping[str, Any]) -> list[str]:
    return [
        f"- {shown(name)}: {_METRICS[metric]} {value['score']:.2f} (`{value['signature']}`)"
        for name, values in scores.items()
        for metric, value in values.items()
    ]


def _data_lines(config: Config, report: Mapping[str, Any]) -> list[str]:
    lines = []
    if config.data.generator:
        lines.append("- synthetic text of mtx's own grammar, good for a demonstration and for nothing else")
    elif config.data.hub and config.data.dir is None:
        lines.append(f"- the dataset `{config.data.hub.name}` on the Hugging Face hub")
    for corpus in report["corpora"]:
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in corpus["dropped"].items()) or "none"
        lines.append(f"- {shown(corpus['name'])}: {corpus['read']:,} pairs; dropped: {dropped}")
    return lines
