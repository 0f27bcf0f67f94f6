"""What is timed is what a trained model would do: as many steps of the search as translations have tokens."""

from types import SimpleNamespace
from typing import Any

import pytest

from mtx.data.tokenizer import EOS_ID
from mtx.decoding.continuous_batching import Request, RequestQueue, search
from mtx.dry_run.pace import _Paced, keep_end_away
from mtx.model.inference import IncrementalModel
from tests.models import random_ids, tiny_model


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_is_as_long_as_it_is_paced(beam_size: int) -> None:
    model = tiny_model(num_ids=3)  # one of which is `</s>`
    trainer: Any = SimpleNamespace(model=model, device=model.output_weight.device)
    keep_end_away(trainer)
    options = _Paced(beam_size, 1.4, tgt_per_src=1.5)
    sources = random_ids([2, 5, 9, 12], 3, seed=3)
    requests = [Request(number, source, options.limit(source, []), []) for number, source in enumerate(sources)]
    found = search(IncrementalModel(model), RequestQueue.of(requests, 2), options)
    lengths = [{len(candidate.ids) for candidate in found[number]} for number in range(4)]
    assert lengths == [{3}, {8}, {14}, {18}]
    assert all(EOS_ID not in candidate.ids[:-1] for found_one in found.values() for candidate in found_one)
