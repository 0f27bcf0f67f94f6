"""Decoding one position at a time gives the logits of the whole decoder, whatever is in the other slots."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mtx.model import inference, kv_cache
from mtx.model.architectures import new_search_model
from mtx.model.inference import IncrementalModel, PackedLinear
from mtx.model.transformer import Transformer
from tests.models import OTHERS, batch_of, random_ids, tiny_model

NUM_IDS = 13
SRC = [5, 9, 2, 1, 7]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "activation": "swish"},
    {"tie": "none", "positions": "learned", "output_bias": True},
    {"num_decoder_layers": 1, "num_heads": 2, "tie": "target"},
    *OTHERS,
]


def expected_logits(model: Transformer, src: list[int], ids: list[int]) -> Tensor:
    """Of the token after `ids`, by the whole decoder."""
    batch = batch_of([src], [[*ids, 0]], NUM_IDS)
    logits = model.decode(batch, model.encode(batch)) @ model.output_weight.T
    logits = logits if model.output_bias is None else logits + model.output_bias
    return logits[len(ids)]


class Rig:
    """Slots fed with random tokens, and what each of their beams has been fed."""

    def __init__(self, beams: int, num_slots: int, is_static: bool = False, **changes: Any):
        self.model, self.beams = tiny_model(NUM_IDS, **changes), beams
        self.decoder = new_search_model(self.model, torch.float64)
        self.decoder.is_static = is_static
        self.cache = self.decoder.start(num_slots, beams, 64)
        self.src: list[list[int]] = [[0] for _ in range(num_slots)]
        self.fed: list[list[list[int]]] = [[[] for _ in range(beams)] for _ in range(num_slots)]
        self.random = torch.Generator().manual_seed(3)
        self.admit(list(range(num_slots)), SRC[:num_slots])

    def admit(self, slots: list[int], lengths: list[int]) -> None:
        src = random_ids(lengths, NUM_IDS, int(torch.randint(1000, (1,), generator=self.random)))
        rows = list(reversed(range(len(slots))))
        self.cache.admit(slots, self.decoder.encode(src), rows)
        for slot, row in zip(slots, rows, strict=True):
            self.src[slot], self.fed[slot] = src[row], [[] for _ in range(self.beams)]

    def step(self, parents: list[list[int]] | None = None) -> None:
        """Feed every beam, compare, and let beam j go on from beam parents[slot][j]."""
        pad = self.model.pad_id
        ids = torch.tensor([[beam[-1] if beam else pad for beam in slot] for slot in self.fed])
        lengths = torch.tensor([len(slot[0]) for slot in self.fed])
        self.cache.prepare()
        got = self.decoder.step(ids, lengths, self.cache)
        for slot, (src, beams) in enumerate(zip(self.src, self.fed, strict=True)):
            for number, beam in enumerate(beams):
                torch.testing.assert_close(
                    got[slot, number, :NUM_IDS], expected_logits(self.model, src, beam), rtol=0, atol=1e-10
                )
        parents = parents or [list(range(self.beams)) for _ in self.fed]
        self.cache.reorder(torch.tensor(parents))
        tokens = torch.randint(1, NUM_IDS, ids.shape, generator=self.random).tolist()
        self.fed = [
            [[*beams[parent], token] for parent, token in zip(row, new, strict=True)]
            for beams, row, new in zip(self.fed, parents, tokens, strict=True)
        ]


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("changes", VARIANTS)
def test_steps_equal_the_whole_decoder(changes: dict[str, Any]) -> None:
    rig = Rig(3, 5, **changes)
    for _ in range(6):
        rig.step()


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}, *OTHERS])
def test_beams_cross_and_slots_change_hands(changes: dict[str, Any], is_static: bool) -> None:
    """With few columns, so that they are moved to the front and doubled in between."""
    rig = Rig(2, 3, is_static, **changes)
    rig.cache._columns_at_a_time, rig.cache._sources_at_a_time = 4, 3
    rig.step([[1, 0], [0, 0], [1, 1]])
    rig.step([[1, 1], [1, 0], [0, 1]])
    rig.cache.release([1])
    rig.admit([1], [6])
    for _ in range(3):
        rig.step([[1, 0], [1, 0], [0, 0]])
    rig.cache.release([0, 2])
    rig.admit([2, 0], [2, 9])
    assert rig.cache.version > 1, "columns were added"
    for _ in range(6):
        rig.step([[0, 0], [1, 0], [1, 0]])


@pytest.mark.parametrize("changes", [{}, {"architecture": "decoder"}])
def test_a_cache_that_is_used_again_reads_no_more_columns_than_needed(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache, "_COLUMNS_READ", 2)
    rig = Rig(3, 3, is_static=True, **changes)
    rig.cache._columns_at_a_time = 8
    widths = []
    for _ in range(4):  # searches
        for parents in ([1, 0, 0], [2, 2, 1], [0, 1, 1], [2, 0, 0], [1, 1, 0]):
            rig.step([parents] * 3)
            widths.append(rig.cache.target_mask.shape[3] // 3)
        rig.cache.release([0, 1, 2])
        rig.admit([0, 2, 1], [4, 6, 3])
    assert widths == [8] * 5 + [2, 2, 4, 4, 6] * 3
    assert rig.cache.version == 2, "tensors stayed where they were"


@pytest.mark.parametrize("changes", VARIANTS)
def test_source_states_are_the_encoder_without_padding(changes: dict[str, Any]) -> None:
    model, src = tiny_model(NUM_IDS, **changes), random_ids(SRC, NUM_IDS, seed=3)
    memory = model.encode(batch_of(src, src, NUM_IDS))
    states = new_search_model(model, torch.float64).source_states(src)
    assert [len(own) for own in states] == SRC
    alone = [new_search_model(model, torch.float64).source_states([source])[0] for source in src]
    expected = getattr(memory, "outputs", memory)
    if model.config.architecture == "decoder":  # which encodes nothing before it decodes
        expected = torch.cat(alone)
    for own, single, other in zip(states, alone, torch.split(expected, SRC), strict=True):
        torch.testing.assert_close(own, single)
        torch.testing.assert_close(own, other)


def test_moving_columns_frees_those_of_sentences_that_left() -> None:
    rig = Rig(2, 2)
    rig.cache._columns_at_a_time = 4
    versions = []
    for _ in range(12):  # one sentence of three steps after the other
        versions.append(rig.cache.version)
        for slot in (0, 1):
            rig.cache.release([slot])
            rig.admit([slot], [4])
            rig.step([[1, 0], [1, 1]])
    assert rig.cache._targets.shape[4] == 2 * 4, "no more were needed"
    assert len({*versions[4:]}) == 1, "and tensors stayed where they were"


def test_half_precision_is_close() -> None:
    model = tiny_model(NUM_IDS, dtype=torch.float32)
    decoders = [IncrementalModel(model, dtype) for dtype in (torch.float32, torch.bfloat16)]
    src = random_ids(SRC, NUM_IDS, 1)
    logits = []
    for decoder in decoders:
        cache = decoder.start(len(SRC), 1, 8)
        cache.admit(list(range(len(SRC))), decoder.encode(src), list(range(len(SRC))))
        cache.prepare()
        ids = torch.full((len(SRC), 1), model.pad_id)
        logits.append(decoder.step(ids, torch.zeros(len(SRC), dtype=torch.long), cache))
    assert [x.dtype for x in logits] == [torch.float32, torch.bfloat16]
    half, full = (x.float()[..., :NUM_IDS] for x in (logits[1], logits[0]))
    torch.testing.assert_close(half, full, rtol=0, atol=0.1)
    assert (half - full).abs().max() > 1e-4


def test_a_processor_without_bf16_has_plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    assert inference.onednn(torch.bfloat16) is None is not inference.onednn(torch.float32)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("rows", [1, 4, 67])
@pytest.mark.parametrize("has_onednn", [True, False])
@torch.inference_mode()
def test_packed_layers_equal_the_linear_layers(
    dtype: torch.dtype, tolerance: float, rows: int, has_onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_onednn:
        monkeypatch.setattr(inference, "onednn", lambda _: None)
    torch.manual_seed(rows)
    parts = [nn.Linear(24, 40), nn.Linear(24, 24)]
    x, residual = torch.randn(rows, 24, dtype=dtype), torch.randn(rows, 64, dtype=dtype)

    def close(got: Tensor, expected: Tensor) -> None:
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance)

    weights = [part.weight.to(dtype).double() for part in parts]
    biases = [part.bias.to(dtype).double() for part in parts]
    expected = torch.cat([x.double() @ w.T + b for w, b in zip(weights, biases, strict=True)], 1)
    both = PackedLinear.of(parts, dtype)
    close(both(x), expected)
    close(both.add_to(residual, x), expected + residual.double())
    halved = PackedLinear.of(parts, dtype, scale=0.5)(x)
    close(halved[:, :40], expected[:, :40] / 2)
    close(halved[:, 40:], expected[:, 40:])


@pytest.mark.parametrize("changes", [each for each in VARIANTS if each.get("architecture") != "rnn"])
def test_a_longer_search_leaves_the_positions_of_an_earlier_one(changes: dict[str, Any]) -> None:
    """A recorded step of the earlier one still reads them."""
    rig = Rig(2, 1, **changes)
    table = weakref.ref(rig.cache.positions)
    longer = rig.decoder.start(1, 2, 2000)
    assert rig.cache.positions is table()
    if rig.decoder._embeddings._is_learned:
        return
    assert longer.positions is not table()
    longer.positions.fill_(torch.nan)
    rig.step()
