"""The time of a run, by hand, what its memory adds up to, and searches as long as a trained model's."""

from typing import Any

import pytest
import torch

from mtx.config.schema import TrainingConfig
from mtx.data.tokenizer import EOS_ID
from mtx.decoding.continuous_batching import Request, RequestQueue, search
from mtx.decoding.options import SearchOptions
from mtx.model.inference import IncrementalModel
from mtx.training.checkpoint import State
from mtx.training.forecast import forbid_end, forecast, memory
from tests.models import random_ids, tiny_model

MEASURED = {
    "prepare_s": 7.0, "start_s": 3.0, "step_s": 0.5, "tgt_tokens_per_s": 2000.0, "save_s": 2.0, "validation_s": 4.0,
    "scoring_s": 20.0, "reserve_s": 40.0, "ended_by": None,
}  # fmt: skip


def left(done: int = 0, elapsed_s: float = 0.0, **training: Any) -> dict[str, Any]:
    config = TrainingConfig.model_validate({"checkpoint_every": 64, **training})
    return forecast(config, State(step=done, elapsed_s=elapsed_s), MEASURED, (config.max_steps or 0, "max_steps"))


def counts(value: dict[str, Any]) -> tuple[int, int, str]:
    return value["steps"], value["validations"], value["ends_by"]


def test_all_parts_are_added() -> None:
    value = left(max_steps=100, validate_every=30)
    assert counts(value) == (100, 4, "max_steps")  # validations at 30, 60, 90 and the end
    assert value["saves"] == 2  # at 64 and the end
    assert value["total_s"] == 7 + 3 + 100 * 0.5 + 2 * 2 + 4 * 4 + 20
    assert value["tgt_tokens_per_s"] == 2000


def test_a_run_goes_on_from_where_it_stands() -> None:
    assert counts(left(done=60, max_steps=100, validate_every=30)) == (40, 2, "max_steps")
    assert counts(left(done=100, max_steps=100, validate_every=30)) == (0, 0, "max_steps")


def test_a_model_to_start_from_is_validated_first() -> None:
    assert left(max_steps=100, validate_every=100, init_from="model")["validations"] == 2
    assert left(done=10, max_steps=100, validate_every=100, init_from="model")["validations"] == 1


@pytest.mark.parametrize(
    "elapsed_s, limit, steps, ends_by",
    [
        (0.0, "1000s", 100, "max_steps"),
        (0.0, "100s", 76, "time_limit"),  # (100 - 40 - 7 - 3) / (0.5 + 2 / 64 + 4 / 32)
        (25.0, "100s", 38, "time_limit"),
        (0.0, "20s", 1, "time_limit"),
    ],
)
def test_a_time_limit_ends_a_run(elapsed_s: float, limit: str, steps: int, ends_by: str) -> None:
    value = left(elapsed_s=elapsed_s, max_steps=100, validate_every=32, time_limit=limit)
    assert (value["steps"], value["ends_by"]) == (steps, ends_by)


@pytest.mark.parametrize("key", ["patience", "time_limit"])
def test_nothing_is_left_of_a_run_that_has_ended(key: str) -> None:
    training = TrainingConfig.model_validate({"max_steps": 1000, "patience": 3, "time_limit": "100s"})
    value = forecast(training, State(step=200, elapsed_s=90.0), {**MEASURED, "ended_by": key}, (1000, "max_steps"))
    assert counts(value) == (0, 0, key)


def test_memory_is_the_sum_of_its_parts() -> None:
    value = memory(torch.device("cpu"), 1000)
    parts = [value[part] for part in ("weights", "gradients", "adam", "checkpoint_copy")]
    assert parts == [4000, 4000, 8000, 12000]
    assert value["needed"] == 28000 + (value["other"] or 0)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_is_as_long_as_its_limit(beam_size: int) -> None:
    model = tiny_model(num_ids=3)  # one of which is `</s>`
    forbid_end(model)
    options = SearchOptions(beam_size, 1.4, max_length=7)
    sources = random_ids([2, 5, 9, 12], 3, seed=3)
    requests = [Request(number, source, options.limit(source, []), []) for number, source in enumerate(sources)]
    found = search(IncrementalModel(model), RequestQueue.of(requests, 2), options)
    assert {len(candidate.ids) for candidates in found.values() for candidate in candidates} == {7}
    assert all(EOS_ID not in candidate.ids[:-1] for candidates in found.values() for candidate in candidates)
