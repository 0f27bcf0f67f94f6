"""Two models that search together on CUDA give the translations of the CPU."""

import pytest
import torch

from mtx.decoding.torch_engine import TorchEngine
from mtx.decoding.translator import Translator
from tests.exports import lively_bundle, small_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
LINES = [word * count for count in range(1, 30) for word in ("ab cde ", "fgü a ", "cab fad gab ", "gab ab ")]


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("models")
    for seed in (1, 2):
        lively_bundle(small_tokenizer(), root / f"model-{seed}", seed=seed)
    return f"{root}/model-1+{root}/model-2"


@pytest.mark.parametrize("beam_size", [1, 4])
def test_cuda_finds_what_the_cpu_finds(name: str, beam_size: int) -> None:
    ours, expected = (
        Translator.load(name, engine="torch", device=device, beam_size=beam_size, threads=1).hypotheses(LINES)
        for device in ("cuda", "cpu")
    )
    same = sum(a[0].text == b[0].text for a, b in zip(ours, expected, strict=True))
    assert same >= 0.98 * len(LINES)
    assert len({a[0].text for a in expected}) > 20


def test_bf16_runs_with_caches_that_grow(name: str) -> None:
    translator = Translator.load(name, engine="torch", device="cuda", precision="bf16", batch_tokens=256)
    assert isinstance(translator.engine, TorchEngine) and len(translator.engine.models) == 2
    assert len(translator.translate(LINES)) == len(LINES)
