"""The kernel of the search finds what torch's operations find, in triton's interpreter; a wrong one is not used."""

from typing import Any

import pytest
import torch

from mtx.decoding import beam_search
from mtx.decoding.beam_search import Request, RequestQueue, find_reduction, search, top_continuations
from mtx.decoding.options import Sampling, SearchOptions
from mtx.model.inference import IncrementalModel
from tests.interpreted import (
    interpreted,
    needs_triton,
    not_interpreted,
    run_interpreted,
    scalars_of_new_numpy,  # noqa: F401
)
from tests.models import random_ids, tiny_model

CPU = torch.device("cpu")
NUM_IDS = 2_500  # with 16 slots of 4 beams, the search takes the best groups
GROUP = beam_search._GROUP


@pytest.fixture(autouse=True)
def no_earlier_answer() -> None:
    find_reduction.cache_clear()


@needs_triton
@interpreted
@pytest.mark.parametrize("groups", [1, 63, 64, 65, 579])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_sums_and_maxima_are_those_of_torch(groups: int, dtype: torch.dtype) -> None:
    from mtx.decoding.search_kernels import reduce_logits

    logits = (5 * torch.randn(3, 2, groups * GROUP, generator=torch.Generator().manual_seed(1))).to(dtype)
    logits[..., -40:] = float("-inf")  # tokens that fill the output layer up
    logits[1, 0] += 80
    logits[1, 1, 7] = float("nan")
    logits[2, 1] = logits[2, 1].sort().values  # each block has a larger maximum, and the first one may have none
    logits[2, 1, : min(4096, groups * GROUP - 1)] = float("-inf")
    logits = logits.transpose(1, 2).contiguous().transpose(1, 2)  # with gaps
    log_sums, maxima = reduce_logits(logits, GROUP)
    exact = logits.float()
    torch.testing.assert_close(log_sums, exact.logsumexp(-1), equal_nan=True)
    assert log_sums[1, 1].isnan()
    exact[1, 1] = maxima[1, 1] = 0
    assert torch.equal(maxima, exact.unflatten(-1, (-1, GROUP)).amax(-1))


@needs_triton
@interpreted
@pytest.mark.parametrize(
    ("beams", "models", "options"),
    [
        (4, 1, {}),
        (1, 1, {}),
        (3, 2, {}),
        (1, 1, {"sampling": Sampling(seed=3, top_k=7)}),
    ],
)
def test_translations_are_equal(
    beams: int, models: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a prefix that names the language, which does not count in a score."""
    engines = [
        IncrementalModel(tiny_model(NUM_IDS, seed=seed, dtype=torch.float32).eval(), torch.bfloat16)
        for seed in range(models)
    ]
    sources = random_ids([5, 3, 2, 7] * 4, NUM_IDS, 1)

    def translate() -> Any:
        requests = [Request(n, source, 6, [9] if n % 2 else [], n) for n, source in enumerate(sources)]
        queue = RequestQueue(requests, 16, num_forced=1)
        return search(engines, queue, SearchOptions(beams, 0.6, **options))

    expected = translate()
    reduction = find_reduction(CPU)
    calls = []

    def count(*arguments: Any) -> Any:
        calls.append(arguments)
        assert reduction is not None
        return reduction(*arguments)

    slots = beam_search.Slots.__init__

    def new_slots(self: Any, *arguments: Any) -> None:
        slots(self, *arguments)
        self.reduce_logits = count

    monkeypatch.setattr(beam_search.Slots, "__init__", new_slots)
    found = translate()
    assert len(calls) >= 2
    for number, candidates in expected.items():
        assert [each.ids for each in found[number]] == [each.ids for each in candidates]
        scores = [each.score for each in candidates]
        assert [each.score for each in found[number]] == pytest.approx(scores, abs=1e-4)


@needs_triton
@not_interpreted
@pytest.mark.seconds
def test_the_numbers_in_the_interpreter() -> None:
    run_interpreted(__file__)


@needs_triton
@not_interpreted
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_kernel_compiles_without_spills(dtype: str, capability: int) -> None:
    from mtx.decoding import search_kernels
    from scripts.traced.machine_code import Code, compile_kernel

    types = {"logits": f"*{dtype}", "log_sums": "*fp32", "maxima": "*fp32", "num_groups": "i32"}
    constants = {"GROUP": GROUP, "GROUPS": search_kernels._GROUPS_AT_ONCE, "num_warps": 4}
    assert Code.of(compile_kernel(search_kernels._reduce, types, constants, capability)).spilled == 0


@pytest.mark.parametrize("size", [640, 4032])
def test_known_maxima_change_nothing(size: int) -> None:
    logits = torch.randn(30, 4, size, generator=torch.Generator().manual_seed(size))
    scores = torch.randn(30, 4)
    maxima = logits.unflatten(-1, (-1, GROUP)).amax(-1)
    results = zip(top_continuations(scores, logits, 8), top_continuations(scores, logits, 8, maxima), strict=True)
    assert all(torch.equal(*pair) for pair in results)


@pytest.mark.parametrize("fault", ["no triton", "log_sums", "maxima", None])
def test_a_kernel_that_fails_or_is_wrong_is_not_used(
    fault: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def reduce_logits(logits: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
        log_sums, maxima = logits.float().logsumexp(-1), logits.float().unflatten(-1, (-1, group)).amax(-1)
        if fault == "log_sums":
            log_sums[-1, -1] += 0.01
        if fault == "maxima":
            maxima[-1, -1, -1] += 0.01
        return log_sums, maxima

    module = None if fault == "no triton" else type("Module", (), {"reduce_logits": staticmethod(reduce_logits)})
    monkeypatch.setitem(__import__("sys").modules, "mtx.decoding.search_kernels", module)
    with caplog.at_level("INFO"):
        found = find_reduction(CPU)
    if fault is None:
        assert found is reduce_logits and not caplog.text
    else:
        assert found is None and caplog.text.count("torch's operations instead of mtx's kernel") == 1
