"""The attention maps of a model on CUDA are those of the same model on the CPU."""

import numpy as np
import pytest
import torch

from mtx.config.schema import TokenizerConfig
from mtx.data.tokenizer import train_tokenizer
from mtx.decoding.torch_engine import attention_maps
from tests.models import random_ids, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


def test_cuda_and_cpu_give_the_same_maps() -> None:
    lines = [" ".join(f"{a}{b}" for b in "abcdefgh") for a in "abcdefgh"] * 3
    tokenizer = train_tokenizer(iter(lines), TokenizerConfig(vocab_size=290), 200, [])
    src, tgt = random_ids([7, 1, 40], 200, 1), random_ids([5, 3, 33], 200, 2)
    ours, expected = (
        attention_maps(tiny_model(tokenizer.num_ids, dtype=torch.float32).to(device), tokenizer, src, tgt)
        for device in ("cuda", "cpu")
    )
    for one, other in zip(ours, expected, strict=True):
        for kind in ("encoder", "decoder", "cross"):
            np.testing.assert_allclose(getattr(one, kind), getattr(other, kind), atol=1e-5)
