"""The card says what the run was, in the hub's form, and holds nothing of a stranger's as markup."""

from typing import Any

import yaml

from mtx.config import settings
from mtx.interop.cards import run_card, shown

SCORES = {"news": {"bleu": {"score": 37.944, "signature": "nrefs:1|tok:13a"}, "ter": {"score": 47.0, "signature": "x"}}}
RUN = {"device": "cpu", "training_precision": "bf16", "torch": "2.13.0", "steps": 4500, "elapsed": "21 min"}
REPORT: dict[str, Any] = {
    "kept": 28995, "read": 29000, "held_out": 0, "src_tokens": 444233, "tgt_tokens": 460679, "pieces": 8000,
    "corpora": [{"name": "/home/me/my.tsv", "read": 29000, "dropped": {"duplicate": 5}}],
}  # fmt: skip


def card(*overrides: str, **changes: Any) -> str:
    config = settings.resolve(None, ["data.src=en", "data.tgt=de", "model.preset=small", *overrides]).config
    return run_card(config, {**REPORT, **changes}, SCORES, RUN)


def test_the_hub_can_read_it() -> None:
    _, metadata, text = card().split("---\n", 2)
    found = yaml.safe_load(metadata)
    assert found["language"] == ["en", "de"] and found["pipeline_tag"] == "translation"
    results = found["model-index"][0]["results"]
    assert results[0]["dataset"]["name"] == "news"
    assert results[0]["metrics"][0] == {"type": "bleu", "name": "BLEU", "value": 37.94}
    assert "- `news`: BLEU 37.94 (`nrefs:1|tok:13a`)" in text
    assert "- `my.tsv`: 29,000 pairs; dropped: 5 duplicate" in text and "/home/me" not in text
    assert (
        "28,995 of 29,000 pairs were trained on, 0 were held out" in text
        and "4,500 steps of 25,000 target tokens, seed 1" in text
    )
    assert "`pip install .` in a checkout of mtx's repository" in text and "mtx-translate" not in text
    assert "21 min on cpu in bf16, torch 2.13.0" in text and "3+3 layers, width 256" in text


def test_languages_that_the_hub_does_not_know_are_left_out() -> None:
    found = yaml.safe_load(card("data.src=src", "data.tgt=x-y").split("---\n", 2)[1])
    assert found["language"] == ["src"]


def test_names_are_shown_as_code() -> None:
    name = "a`<script>alert(1)</script>\n# x\x1b[2J\u202e.tsv"
    assert shown(name) == "`script> # x [2J .tsv`"
    assert shown("x" * 200) == f"`{'x' * 100}`" and shown("") == "``"
    text = card(corpora=[{"name": "b`\n\n<img src=x>", "read": 1, "dropped": {}}])
    assert "\n- `b   <img src=x>`: 1 pairs; dropped: none\n" in text
