"""What is written is what is read, on generated examples: tensors, means, the state of a training, configurations."""

import difflib
import math
import os
import string
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from pydantic import ValidationError

from mtx.config import settings
from mtx.config.limits import MAX_BATCH_TOKENS, MAX_PIECES, MAX_WEIGHT
from mtx.config.messages import KEYS_FOR
from mtx.config.schema import Config, key_names, leaves
from mtx.data.sampler import SamplerState
from mtx.decoding import model_directory
from mtx.errors import DamagedFileError, UsageError
from mtx.storage import durable
from mtx.storage.run_files import STATE, WEIGHTS, RunLayout
from mtx.training import checkpoint
from mtx.training.averaging import average
from mtx.training.checkpoint import Snapshot, State
from tests.reliability.properties import Tally, hold

CORPUS = Path(__file__).parent.parent / "corpus"

# --- tensors ---

DTYPES = {
    torch.float32: 4, torch.bfloat16: 2, torch.float16: 2, torch.float64: 8, torch.int8: 1, torch.uint8: 1,
    torch.int16: 2, torch.int32: 4, torch.int64: 8,
}  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(lambda name: name != "__metadata__")
SHAPES = st.lists(st.integers(0, 4), max_size=4)
VIEWS = st.sampled_from(["as it is", "transposed", "every other", "expanded", "a parameter"])


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bytes as a tensor of any type and shape, so with NaN of every payload; often a view of another."""
    dtype, shape = draw(st.sampled_from(list(DTYPES))), draw(SHAPES)
    size = math.prod(shape) * DTYPES[dtype]
    data = torch.tensor(list(draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8)
    tensor = data.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    match draw(VIEWS):
        case "transposed" if len(shape) > 1:
            return tensor.transpose(0, 1)
        case "every other" if shape:
            return tensor[::2]
        case "expanded":
            return tensor.expand(2, *shape)
        case "a parameter" if dtype.is_floating_point:
            return torch.nn.Parameter(tensor)
    return tensor


def bits(tensor: torch.Tensor) -> tuple[torch.dtype, list[int], list[int]]:
    """Type, shape and bytes: equal where NaN is equal too, and -0 differs from 0."""
    flat = tensor.detach().flatten().clone(memory_format=torch.contiguous_format)
    return tensor.dtype, list(tensor.shape), flat.view(torch.uint8).tolist() if flat.numel() else []


def test_tensors_come_back_bit_for_bit(tmp_path: Path, tally: Tally) -> None:
    def check(given: dict[str, torch.Tensor]) -> None:
        with durable.new_directory(tmp_path / "new") as new:
            model_directory.save_tensors(new / WEIGHTS, given)
        durable.verify(tmp_path / "new", [WEIGHTS])
        found = model_directory.load_tensors(tmp_path / "new" / WEIGHTS)
        assert {name: bits(tensor) for name, tensor in found.items()} == {n: bits(t) for n, t in given.items()}

    hold(tally, "tensors saved and loaded", check, st.dictionaries(NAMES, tensors(), max_size=6))


def test_tensors_that_share_memory_come_back(tmp_path: Path, tally: Tally) -> None:
    def check(whole: torch.Tensor) -> None:
        given = {"whole": whole, "again": whole, "part": whole[1:], "turned": whole.t()}
        model_directory.save_tensors(tmp_path / "x", given)
        found = model_directory.load_tensors(tmp_path / "x")
        assert {name: bits(tensor) for name, tensor in found.items()} == {n: bits(t) for n, t in given.items()}

    hold(tally, "tensors that share memory", check, st.integers(1, 5).map(lambda n: torch.rand(n, n)))


# --- the mean of checkpoints ---

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = st.lists(FLOATS, min_size=3, max_size=3)


def write(paths: RunLayout, vectors: list[list[float]]) -> list[int]:
    """A checkpoint of each vector, in this order; their steps."""
    for step, vector in enumerate(vectors, 1):
        checkpoint.save(paths, Snapshot({"x": torch.tensor(vector)}, {}), State(step))
    return list(range(1, len(vectors) + 1))


def test_the_mean_of_equal_checkpoints_is_the_checkpoint(tmp_path: Path, tally: Tally) -> None:
    def check(vector: list[float], count: int) -> None:
        paths = RunLayout(tmp_path)
        mean = average(paths, write(paths, [vector]) * count)["x"]
        assert bits(mean) == bits(torch.tensor(vector))

    hold(tally, "means of equal checkpoints", check, VECTORS, st.integers(1, 200), push=60)


def test_the_mean_does_not_depend_on_the_order(tmp_path: Path, tally: Tally) -> None:
    def check(vectors: list[list[float]], random: Any) -> None:
        paths = RunLayout(tmp_path)
        steps = write(paths, vectors)
        first = average(paths, steps)["x"]
        random.shuffle(steps)
        largest = torch.tensor(vectors).double().abs().amax(0)
        assert ((average(paths, steps)["x"] - first).abs() <= 1e-6 * largest).all()

    hold(tally, "means in any order", check, st.lists(VECTORS, min_size=1, max_size=5), st.randoms(), push=60)


@pytest.mark.parametrize("other, named", [({"x": (3,)}, "x"), ({"x": (1,)}, "x"), ({"y": (2,)}, "x"), ({}, "x")])
def test_checkpoints_of_different_models_have_no_mean(tmp_path: Path, other: dict[str, Any], named: str) -> None:
    paths = RunLayout(tmp_path)
    for step, shapes in enumerate(({"x": (2,)}, other), 1):
        weights = {name: torch.ones(shape) for name, shape in shapes.items()}
        checkpoint.save(paths, Snapshot(weights, {}), State(step))
    with pytest.raises(DamagedFileError, match=f"step-00000002.*{named}"):
        average(paths, [1, 2])


# --- the state of a training ---

COUNTS = st.integers(0, 2**60)
SECONDS = st.floats(0, allow_infinity=False)
STATES = st.builds(
    State, COUNTS, st.builds(SamplerState, COUNTS, COUNTS), st.none() | st.floats(0, 100), COUNTS, COUNTS,
    COUNTS,
    SECONDS, SECONDS, st.none() | st.text(string.hexdigits, max_size=64),
)  # fmt: skip


def test_a_state_comes_back(tmp_path: Path, tally: Tally) -> None:
    def check(state: State) -> None:
        durable.write_json(tmp_path / STATE, asdict(state))
        assert checkpoint.load_state(tmp_path / STATE) == state

    hold(tally, "states written and read", check, STATES)


# --- configurations ---

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
MANY = st.integers(1, 10**9)
POSITIVE = st.floats(0, exclude_min=True, allow_infinity=False)
SHARE = st.floats(0, 1, exclude_max=True)
HUB = st.fixed_dictionaries(
    {"name": TEXT}, optional={"subset": TEXT, "revision": TEXT, "train": TEXT, "valid": TEXT, "test": st.lists(TEXT)}
)
WEIGHT = st.floats(0, MAX_WEIGHT, exclude_min=True)
PART = st.fixed_dictionaries(
    {"name": TEXT},
    optional={"weight": WEIGHT | st.none(), "tag": st.text("aZ0_", min_size=1), "src": TEXT, "tgt": TEXT},
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "run_dir": TEXT, "sizes": st.sampled_from(["given", "corpus", 29_000]), "undecided": st.lists(TEXT),
    "seed": st.integers(0, 2**31 - 1),
    "precision": st.sampled_from(["auto", "fp32", "bf16"]),
    "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:3", "mps"]),
    "data.src": TEXT, "data.tgt": TEXT, "data.dir": TEXT, "data.hub": HUB,
    "data.directions": st.lists(st.sampled_from(["en-de", "de-en", "en-fr", "zh_Hans-en"]), unique=True),
    "data.temperature": st.floats(1, allow_infinity=False), "data.generator": st.just("grammar"),
    "data.train": st.lists(TEXT | PART), "data.valid": TEXT, "data.test": st.lists(TEXT),
    "data.columns": st.lists(TEXT, min_size=2, max_size=2, unique=True), "data.licence": TEXT, "model.licence": TEXT,
    "data.max_tokens": st.integers(8, 4096),
    "data.max_length_ratio": st.floats(1, exclude_min=True, allow_infinity=False),
    "tokenizer.model": st.lists(TEXT, max_size=2),
    "tokenizer.vocab_size": st.just("auto") | st.integers(270, MAX_PIECES),
    "tokenizer.normalization": st.sampled_from(["nfc", "nmt_nfkc", "none"]),
    "model.preset": st.sampled_from(["tiny", "small", "base", "big"]),
    "model.num_encoder_layers": st.integers(1, 1000), "model.num_decoder_layers": st.integers(1, 1000),
    "model.d_ff": st.integers(1, 1 << 18), "model.dropout": SHARE,
    "model.d_model": st.integers(1, 9).map(lambda n: 16 * n), "model.num_heads": st.sampled_from([1, 2, 4, 8, 16]),
    "model.norm": st.sampled_from(["post", "pre"]), "model.activation": st.sampled_from(["relu", "swish", "gelu"]),
    "model.tie": st.sampled_from(["all", "target", "none"]), "model.output_bias": st.booleans(),
    "model.positions": st.sampled_from(["sinusoidal", "learned", "fairseq"]),
    "model.start": st.sampled_from(["pad", "eos"]),
    "model.architecture": st.sampled_from(["transformer", "decoder", "rnn"]),
    "model.cell": st.sampled_from(["lstm", "gru"]),
    "model.score": st.sampled_from(["additive", "scaled_dot_product", "multiplicative"]),
    "training.init_from": TEXT, "training.max_steps": MANY, "training.max_epochs": MANY,
    "training.time_limit": POSITIVE.map(lambda seconds: f"{seconds}s"),
    "training.batch_tokens": st.integers(4096, MAX_BATCH_TOKENS), "training.warmup_steps": MANY,
    "training.cooldown": st.floats(0, 0.9), "training.bpe_dropout": SHARE,
    "training.rdrop_alpha": st.floats(0, 100), "training.copied_target_ratio": st.floats(0, 1),
    "training.upper_case": st.floats(0, 1), "training.title_case": st.floats(0, 1),
    "training.no_end_punctuation": st.floats(0, 1), "training.typing_errors": st.floats(0, 1),
    "data.terms": st.just("auto"), "data.duplicates": st.sampled_from(["auto", "newest", "all"]),
    "training.best_metric": st.sampled_from(["auto", "bleu", "chrf", "nll"]),
    "training.clip_norm": POSITIVE, "training.learning_rate": POSITIVE,
    "training.micro_batch_tokens": st.just("auto") | st.integers(4096, MAX_BATCH_TOKENS),
    "training.label_smoothing": SHARE, "training.validate_every": MANY, "training.checkpoint_every": MANY,
    "training.average_last": MANY, "training.patience": MANY, "training.deterministic": st.booleans(),
    "training.tensorboard": st.booleans(), "training.compile": st.just("auto") | st.booleans(),
    "training.shard": st.booleans(),
    "decoding.beam_size": st.integers(1, 100), "decoding.length_penalty": st.floats(0, 50),
    "decoding.batch_tokens": st.none() | st.integers(1, MAX_BATCH_TOKENS),
}  # fmt: skip
CONFIGS = st.fixed_dictionaries({}, optional=VALUES)


def nested(keys: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *sections, last = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return tree


def come_back(resolved: settings.Resolved, directory: Path) -> None:
    """Check that a run's file and what `mtx config` prints are read as the same configuration."""
    for text in (settings.dump(resolved.config), settings.dump_with_origins(resolved)):
        durable.write_text(directory / "written.yaml", text)
        assert settings.load(directory / "written.yaml") == resolved.config


def test_a_configuration_comes_back(tmp_path: Path, tally: Tally) -> None:
    sections = {f"{key.partition('.hub.')[0]}.hub" if ".hub." in key else key for key in key_names()}
    assert sections == set(VALUES)

    def check(keys: dict[str, Any]) -> None:
        try:
            config = Config.model_validate(nested(keys))
        except ValidationError as error:  # such as equal languages
            assert all(problem["type"] == "value_error" for problem in error.errors()), error
            assume(False)
        durable.write_text(tmp_path / "given.yaml", settings.dump(config))
        assert settings.load(tmp_path / "given.yaml") == config
        come_back(settings.resolve(str(tmp_path / "given.yaml"), []), tmp_path)

    hold(tally, "configurations written and read", check, CONFIGS, push=100, nightly=2000)


def test_a_single_value_is_the_same_on_the_command_line_and_in_a_file(tally: Tally) -> None:
    lists = ("undecided", "data.hub", "data.train", "data.test", "data.columns", "data.directions", "tokenizer.model")
    plain = {key: values for key, values in VALUES.items() if key not in lists}
    one = st.sampled_from(sorted(plain)).flatmap(lambda key: st.tuples(st.just(key), plain[key]))

    def check(given: tuple[str, Any]) -> None:
        key, value = given
        text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        try:
            config = Config.model_validate(nested({key: value}))
        except ValidationError:
            assume(False)
        found = dict(leaves(settings.resolve(None, [f"{key}={text}"]).config.model_dump()))
        expected = dict(leaves(config.model_dump()))
        assert {name: found[name] for name in found if name != "run_dir"} == {
            name: expected[name] for name in expected if name != "run_dir"
        }

    hold(tally, "values given as key=value", check, one)


@cache
def known_keys() -> frozenset[str]:
    return frozenset(key_names())


@st.composite
def misspelt(draw: st.DrawFn) -> tuple[str, str]:
    """A key of at least four letters, and what one slip makes of it."""
    key = draw(st.sampled_from(sorted(key for key in known_keys() if len(key.rpartition(".")[2]) >= 4)))
    start = len(key.rpartition(".")[0]) + 1
    at = draw(st.integers(start, len(key) - 1))
    letter = draw(st.sampled_from(string.ascii_lowercase))
    slips = [key[:at] + key[at + 1 :], key[:at] + letter + key[at:], key[:at] + letter + key[at + 1 :]]
    slip = draw(st.sampled_from([*slips, key[:at] + key[at : at + 2][::-1] + key[at + 2 :]]))
    assume(slip not in known_keys() and not slip.endswith(".") and slip not in {k.split(".")[0] for k in known_keys()})
    return key, slip


def test_an_unknown_key_is_refused_with_the_nearest(tmp_path: Path, tally: Tally) -> None:
    def check(given: tuple[str, str]) -> None:
        key, slip = given
        assume(slip.rpartition(".")[2] not in KEYS_FOR)  # what other programs call a key, such as size
        durable.write_text(tmp_path / "c.yaml", settings._to_yaml(nested({slip: "1"})))
        for name, overrides in ((None, [f"{slip}=1"]), (str(tmp_path / "c.yaml"), [])):
            with pytest.raises(UsageError, match="unknown key, did you mean ") as error:
                settings.resolve(name, overrides)
            told = str(error.value).rpartition("did you mean ")[2].split("?")[0]
            assert told in known_keys() and likeness(slip, told) >= likeness(slip, key), (slip, told)

    hold(tally, "misspelt keys", check, misspelt())


def likeness(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, second, first).ratio()


# --- what was once wrong ---


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_configuration_that_did_not_come_back(path: Path, tmp_path: Path) -> None:
    come_back(settings.resolve(str(path), []), tmp_path)


@pytest.mark.parametrize("setting", (CORPUS / "settings-in-latin-1.txt").read_bytes().split())
def test_a_name_that_is_no_utf8_is_refused_at_once(setting: bytes) -> None:
    """A file name, say: what records it, config.yaml and report.json, could not be written after all the work."""
    argument = os.fsdecode(setting)
    with pytest.raises(UsageError, match=rf"{argument.partition('=')[0]}.*: expected text in UTF-8, got '.*udce9"):
        settings.resolve(None, [argument])


def test_a_configuration_file_whose_name_is_no_utf8_names_no_run(tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9.yaml"
    path.write_text("seed: 2")
    with pytest.raises(UsageError, match="run_dir: expected text in UTF-8"):
        settings.resolve(str(path), [])
    assert settings.resolve(str(path), ["run_dir=x"]).config.seed == 2
