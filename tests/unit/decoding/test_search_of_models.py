"""With every architecture, a beam that is wide enough finds the best of all translations."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from mtx.decoding.beam_search import Request, RequestQueue, search
from mtx.decoding.options import SearchOptions, penalty
from mtx.model.architectures import new_search_model
from tests.models import OTHERS, batch_of, random_ids, tiny_model


class Narrow:
    """A model of search without the outputs that fill its last layer up, so that a beam may be wider than they are."""

    def __init__(self, model: Any, num_ids: int):
        self._model, self._num_ids = model, num_ids

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def step(self, *arguments: Any) -> Tensor:
        logits: Tensor = self._model.step(*arguments)
        return logits[..., : self._num_ids]


@pytest.mark.parametrize("changes", [{}, *OTHERS])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_translations(changes: dict[str, Any], alpha: float) -> None:
    model, limit = tiny_model(4, **changes), 4
    sources = random_ids([3, 5, 2, 4], 4, 1)
    requests = [Request(number, source, limit, []) for number, source in enumerate(sources)]
    engine = Narrow(new_search_model(model, torch.float64), 4)
    found = search([engine], RequestQueue(requests, 4), SearchOptions(64, alpha))
    bodies = [body for length in range(limit) for body in product(range(1, 4), repeat=length)]
    for number, source in enumerate(sources):
        targets = [[*body, 0] for body in bodies]
        batch = batch_of([source] * len(targets), targets, 4)
        log_probs = torch.log_softmax(model.decode(batch, model.encode(batch)) @ model.output_weight.T, -1)
        of_tokens = log_probs[torch.arange(sum(map(len, targets))), torch.tensor(sum(targets, []))]
        by_target = [float(part.sum()) for part in of_tokens.split([len(target) for target in targets])]
        scores = [value / penalty(len(target), alpha) for value, target in zip(by_target, targets, strict=True)]
        best = max(range(len(targets)), key=lambda row: scores[row])
        assert found[number][0].ids == targets[best]
        assert found[number][0].score == pytest.approx(scores[best], abs=1e-6)
