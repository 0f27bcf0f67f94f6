"""The list of hooks of `mtx train`: all of it is there, and what has been taken away is skipped."""

import importlib
import sys

import pytest

from mtx.commands.train import HOOKS, make_hooks
from mtx.config.schema import Config
from mtx.training.hooks import Hook

DATA = {"src": "en", "tgt": "de"}
CONFIG = Config.model_validate({"run_dir": "run", "data": DATA, "training": {"init_from": "model"}})


def test_every_hook_of_the_list_is_there() -> None:
    hooks = make_hooks(CONFIG)
    assert [type(hook).__name__ for hook in hooks] == [name for _, name, *_ in HOOKS]
    assert all(isinstance(hook, Hook) for hook in hooks)
    plain = make_hooks(Config.model_validate({"run_dir": "run", "data": DATA}))
    assert {type(hook).__name__ for hook in hooks} - {type(hook).__name__ for hook in plain} == {"ScoresBefore"}


def test_a_hook_that_has_been_taken_away_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    report = "mtx.report.live_report"
    monkeypatch.setitem(sys.modules, report, None)
    assert [type(hook).__name__ for hook in make_hooks(CONFIG)] == [name for path, name, *_ in HOOKS if path != report]


def test_a_library_that_is_missing_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        make_hooks(CONFIG)
