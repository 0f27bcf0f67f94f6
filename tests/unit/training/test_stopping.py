"""The part of a time limit that is kept for the end of a run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx.config.schema import Config
from mtx.training.stopping import StoppingCriteria
from mtx.training.validation import Validation


def criteria(**training: object) -> StoppingCriteria:
    store: Any = SimpleNamespace(num_pairs=1000)
    data: Any = SimpleNamespace(valid=store, tests={"test": store})
    config = Config.model_validate({"training": training, "decoding": {"beam_size": 4}})
    return StoppingCriteria(config, data, 0.0, 0.0)


def test_the_reserve_grows_with_the_validation_up_to_half_of_the_limit() -> None:
    stopping = criteria(time_limit="10m")
    assert stopping.reserve_s(600.0, 20.0) == pytest.approx(18 + 10 + 20 + 60)
    assert stopping.reserve_s(600.0, 200.0) == 300.0


def validation(length_ratio: float) -> Validation:
    return Validation(nll=3.0, bleu=0.0, chrf=None, seconds=60.0, hypotheses=[], samples=[], length_ratio=length_ratio)


def test_a_validation_with_endless_translations_does_not_tell_what_later_ones_take() -> None:
    assert validation(0.25).later_seconds == 15.0
    assert validation(0.0).later_seconds == 6.0, "translations are not all that takes time"
    assert validation(np.inf).later_seconds == 60.0, "short translations are no reason to expect more"
