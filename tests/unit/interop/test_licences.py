"""Licences are the user's words: the hub's identifier where it has one, and never markup."""

import pytest

from mtx.interop.licences import Licences


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("CC-BY-SA-4.0", {"license": "cc-by-sa-4.0"}), ("apache-2.0", {"license": "apache-2.0"}),
        ("GPL-3.0-or-later", {"license": "gpl-3.0"}), ("LGPL-2.1-only", {"license": "lgpl-2.1"}),
        ("ODbL-1.0", {"license": "odbl"}), ("PDDL-1.0", {"license": "pddl"}), ("MIT", {"license": "mit"}),
        ("for use inside: ours", {"license": "other", "license_name": "for use inside: ours"}),
        ("CC-BY-9.9", {"license": "other", "license_name": "CC-BY-9.9"}), (None, {}),
    ],
)  # fmt: skip
def test_the_hub_gets_its_own_identifier_or_other(licence: str | None, expected: dict[str, str]) -> None:
    assert Licences(model=licence).metadata() == expected


def test_a_card_says_which_is_given() -> None:
    assert "model: not given; that of the training text is not given, and may bind" in Licences().sentence()
    assert "model: `MIT`; that of the training text is not given" in Licences("MIT").sentence()
    assert (
        "model: not given. Licence of the training text: `CC0-1.0`; it may bind" in Licences(None, "CC0-1.0").sentence()
    )


def test_what_a_strangers_file_holds_is_neither_markup_nor_an_error() -> None:
    hostile = Licences.of_scores({"run": {"licence": "a`\n# <img src=x>\x1b", "data_licence": ["x"]}})
    assert hostile.data is None and "model: `a  # <img src=x> `;" in hostile.sentence()
    assert hostile.metadata()["license_name"] == "a` # <img src=x> "
    for scores in (None, {}, {"run": 3}, {"run": {"licence": 4}}, {"run": {"licence": ""}}):
        assert Licences.of_scores(scores) == Licences()


def test_what_is_stored_is_read_again() -> None:
    for licences in (Licences(), Licences("a"), Licences(None, "b"), Licences("a", "b")):
        assert Licences.of_scores({"run": licences.stored()}) == licences
