"""The card says what the run was, in the hub's form, and holds nothing of a stranger's as markup."""

from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from mtx.config import settings
from mtx.interop.cards import as_code, export_card, licences_of, run_card

SCORES = {"news": {"bleu": {"score": 37.944, "signature": "nrefs:1|tok:13a"}, "ter": {"score": 47.0, "signature": "x"}}}
RUN = {"device": "cpu", "training_precision": "bf16", "torch": "2.13.0", "steps": 4500, "elapsed": "21 min"}
REPORT: dict[str, Any] = {
    "kept": 28995, "read": 29000, "held_out": 0, "src_tokens": 444233, "tgt_tokens": 460679, "pieces": 8000,
    "corpora": [{"name": "/home/me/my.tsv", "read": 29000, "dropped": {"duplicate": 5}}],
}  # fmt: skip


def card(*overrides: str, **changes: Any) -> str:
    config = settings.resolve(None, ["data.src=en", "data.tgt=de", "model.preset=small", *overrides]).config
    return run_card(config, {**REPORT, **changes}, SCORES, RUN)


def test_an_architecture_of_a_fork_has_a_card() -> None:
    config = settings.resolve(None, ["data.src=en", "data.tgt=de"]).config
    model = config.model.model_copy(update={"architecture": "mine"})
    assert "mine" in run_card(config.model_copy(update={"model": model}), REPORT, SCORES, RUN)


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
        "28,995 of 29,000 pairs were used for training, 0 were held out" in text
        and "4,500 steps of 25,000 target tokens, seed 1" in text
    )
    assert "`pip install .` in a checkout of mtx's repository" in text and "mtx-translate" not in text
    assert "21 min on cpu in bf16, torch 2.13.0" in text and "3+3 layers, width 256" in text


def test_cards_say_that_references_are_the_teachers() -> None:
    config = settings.resolve(None, ["data.src=en", "data.tgt=de", "model.preset=small"]).config
    loaded: Any = SimpleNamespace(info={"src": "en", "tgt": "de", "max_tokens": 256})
    for scores in (SCORES, {"teacher-text": SCORES["news"]}):
        for text in (run_card(config, REPORT, scores, RUN), export_card("ctranslate2", loaded, "fp32", scores)):
            assert ("translations by the teacher of this model, not by people" in text) == ("teacher-text" in scores)


def test_languages_that_the_hub_does_not_know_are_left_out() -> None:
    found = yaml.safe_load(card("data.src=src", "data.tgt=x-y").split("---\n", 2)[1])
    assert found["language"] == ["src"]


def test_names_are_shown_as_code() -> None:
    name = "/home/a`<script>alert(1)<b>\n# x\x1b[2J\u202e.tsv"
    assert as_code("a`<script>\n# x\x1b[2J\u202e") == "`a <script> # x [2J `"
    assert as_code("x" * 300) == f"`{'x' * 200}`" and as_code("") == "``"
    text = card(corpora=[{"name": name, "read": 1, "dropped": {}}])
    assert "\n- `a <script>alert(1)<b> # x [2J .tsv`: 1 pairs; dropped: none\n" in text


def exported(run: Any) -> tuple[dict[str, Any], str]:
    """The metadata and the text of the card of an export of a model with this entry `run` in its scores.json."""
    loaded: Any = SimpleNamespace(info={"src": "en", "tgt": "de", "max_tokens": 9})
    text = export_card("ctranslate2", loaded, "fp32", {"run": run})
    return yaml.safe_load(text.split("---\n", 2)[1]), text


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("CC-BY-SA-4.0", {"license": "cc-by-sa-4.0"}),
        ("apache-2.0", {"license": "apache-2.0"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}),
        ("LGPL-2.1-only", {"license": "lgpl-2.1"}),
        ("MIT", {"license": "mit"}),
        ("for use inside: ours", {"license": "other", "license_name": "for use inside: ours"}),
        ("CC-BY-9.9", {"license": "other", "license_name": "CC-BY-9.9"}),
        (None, {}),
    ],
)
def test_the_hub_gets_its_own_identifier_or_other(licence: str | None, expected: dict[str, str]) -> None:
    metadata, _ = exported({"licence": licence})
    assert {key: value for key, value in metadata.items() if key.startswith("license")} == expected


def test_a_card_says_which_licence_is_given() -> None:
    assert "not given. The licence of the training text is not given; it may apply" in exported({})[1]
    assert "model: `MIT`. The licence of the training text is not given" in exported({"licence": "MIT"})[1]
    assert "Licence of the training text: `CC0-1.0`; it may apply" in exported({"data_licence": "CC0-1.0"})[1]


def test_what_a_strangers_file_holds_is_neither_markup_nor_an_error() -> None:
    metadata, text = exported({"licence": "a`\n# <img src=x>\x1b", "data_licence": ["x"]})
    assert "model: `a  # <img src=x> `. The licence of the training text is not given" in text
    assert metadata["license_name"] == "a` # <img src=x> "
    for run in (3, {"licence": 4}, {"licence": ""}, None):
        assert "Licence of the model: not given" in exported(run)[1]


def test_the_licences_of_a_configuration() -> None:
    config = settings.resolve(None, ["data.src=en", "data.tgt=de", "model.preset=small", "data.licence=b"]).config
    assert licences_of(config) == {"data_licence": "b"}
