"""One error reports all problems, each with its key, the expected value, and its line in a file."""

import re
from pathlib import Path

import pytest
import typer

from mtx import cli
from mtx.config.messages import KEYS_FOR, NOT_THERE, keys_meant
from mtx.config.schema import key_names
from mtx.config.settings import load
from mtx.errors import UsageError
from tests.unit.config.helpers import problems, write

NINES = "9" * 400


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("training.max_stpes=5", "training.max_stpes: unknown key, did you mean training.max_steps?"),
        ("max_steps=5", "max_steps: unknown key, did you mean training.max_steps?"),
        ("training.max-steps=5", "training.max-steps: unknown key, did you mean training.max_steps?"),
        ("modle.dropout=0", "modle.dropout: unknown key, did you mean model.dropout?"),
        ("qqq=1", "qqq: unknown key"),
        ("training=5", "training: expected a section with keys, got 5"),
        ("model=null", "model: expected a section with keys, got 'null'"),
        ("seed=x", "seed: expected a whole number, got 'x'"),
        ("seed=", "seed: expected a whole number, got ''"),
        ("seed=1.5", "seed: expected a whole number, got 1.5"),
        ("seed=-1", "seed: expected at least 0, got -1"),
        ("seed=2147483648", "seed: expected less than 2147483648, got 2147483648"),
        ("data.max_tokens=5", "data.max_tokens: expected at least 8, got 5"),
        ("data.max_tokens=5000", "data.max_tokens: expected at most 4096, got 5000"),
        ("data.max_length_ratio=1", "data.max_length_ratio: expected more than 1, got 1"),
        ("data.tgt=", "data.tgt: expected 1 to 100 characters without /, got ''"),
        ("model.dropout=1", "model.dropout: expected less than 1, got 1"),
        ("training.max_steps=0", "training.max_steps: expected at least 1, got 0"),
        ("training.learning_rate=nan", "training.learning_rate: expected a finite number, got 'nan'"),
        ("training.learning_rate=fast", "training.learning_rate: expected a number, got 'fast'"),
        ("training.time_limit=0s", "training.time_limit: expected more than 0, got '0s'"),
        ("training.time_limit=4", "training.time_limit: 4 has no unit; 4s, 4m or 4h?"),
        ("training.time_limit=1.5", "training.time_limit: 1.5 has no unit; 1.5s, 1.5m or 1.5h?"),
        (
            "training.time_limit=1h30",
            "training.time_limit: expected a duration such as 2h, 90m, 1h30m or 600s, got '1h30'",
        ),
        ("training.time_limit=x", "training.time_limit: expected a duration such as 2h, 90m, 1h30m or 600s, got 'x'"),
        ("tokenizer.vocab_size=x", "tokenizer.vocab_size: expected auto or a whole number, got 'x'"),
        ("tokenizer.vocab_size=9", "tokenizer.vocab_size: expected auto or at least 270, got 9"),
        ("model.output_bias=x", "model.output_bias: expected true or false, got 'x'"),
        ("model.preset=huge", "model.preset: expected tiny, small, base, big, student or student-small, got 'huge'"),
        ("precision=fp16", "precision: expected auto, fp32 or bf16, got 'fp16'"),
        ("device=gpu", "device: expected auto, cpu, cuda, cuda:1 or mps, got 'gpu'"),
        ("device=cpu\n", r"device: expected auto, cpu, cuda, cuda:1 or mps, got 'cpu\n'"),
        ("data.hub.subset=de-en", "data.hub.name: is missing"),
        ("model.num_heads=3", "model.d_model 512 is not divisible by model.num_heads 3"),
        ("training.batch_tokens=255", "training.batch_tokens 255 is below data.max_tokens 256"),
        ("training.micro_batch_tokens=255", "training.micro_batch_tokens 255 is below data.max_tokens 256"),
        (f"training.batch_tokens={10**20}", f"training.batch_tokens: expected at most 10000000, got {10**20}"),
        (
            f"training.micro_batch_tokens={10**20}",
            f"training.micro_batch_tokens: expected auto or at most 10000000, got {10**20}",
        ),
        (f"decoding.batch_tokens={NINES}", f"decoding.batch_tokens: expected at most 10000000, got {NINES}"),
        (f"training.max_steps={NINES}", f"training.max_steps: expected at most 1000000000, got {NINES}"),
        (f"training.checkpoint_every={2**63}", f"training.checkpoint_every: expected at most 1000000000, got {2**63}"),
        (f"tokenizer.vocab_size={2**31}", f"tokenizer.vocab_size: expected auto or at most 1048576, got {2**31}"),
        ("training.time_limit=1e999h", "training.time_limit: expected a finite number, got inf"),
        (
            "training.time_limit=٣h",
            "training.time_limit: expected a duration such as 2h, 90m, 1h30m or 600s, got '٣h'",
        ),
        ("device=cuda:٣", "device: expected auto, cpu, cuda, cuda:1 or mps, got 'cuda:٣'"),
        ("decoding.beam_size=101", "decoding.beam_size: expected at most 100, got 101"),
        ("model.cell=gru", "model.cell gru requires model.architecture=rnn"),
    ],
)
def test_a_wrong_override_is_refused_with_what_was_expected(override: str, problem: str, tmp_path: Path) -> None:
    assert problems(None, override) == problem
    # a file that is right is not named
    assert problems(write(tmp_path / "c.yaml", "data:\n  valid: v\nmodel:\n  norm: pre\n"), override) == problem


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            "model.architecture=decoder model.score=multiplicative",
            "model.score multiplicative requires model.architecture=rnn",
        ),
        (
            "model.architecture=rnn training.compile=true",
            "training.compile requires model.architecture=transformer, not rnn",
        ),
        (
            "model.architecture=decoder training.shard=true",
            "training.shard requires model.architecture=transformer, not decoder",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: str, problem: str) -> None:
    assert problems(None, *settings.split()) == problem


BOTH_LAYERS = "model.num_encoder_layers and model.num_decoder_layers"


@pytest.mark.parametrize(
    ("keys", "meant"),
    [
        ("lr training.lr optimizer.lr model.LR training.learning-rate", "training.learning_rate"),
        ("max_tokens training.max_tokens", "data.max_tokens and training.batch_tokens"),
        ("epochs training.epochs num_train_epochs", "training.max_epochs"),
        ("layers model.layers num_layers", BOTH_LAYERS),
        ("heads model.heads", "model.num_heads"),
        ("hidden hidden_size emb embedding_dim model.hidden_dim", "model.d_model"),
        ("ffn model.ffn_dim", "model.d_ff"),
        ("bpe vocab vocabulary tokenizer.vocab", "tokenizer.vocab_size"),
        ("beam decoding.beam num_beams", "decoding.beam_size"),
        ("early_stopping patience", "training.patience"),
        ("gpu cuda training.gpu", "device"),
        ("fp16 bf16 training.amp", "precision"),
        ("lang languages", "data.src and data.tgt"),
        ("source data.source", "data.src"), ("target data.target", "data.tgt"),
        ("dev data.dev data.validation", "data.valid"),
        ("steps updates training.max_updates", "training.max_steps"),
        ("clip grad_clip", "training.clip_norm"), ("warmup training.warmup", "training.warmup_steps"),
        ("save_every", "training.checkpoint_every"), ("eval_every valid_every", "training.validate_every"),
        ("tied_embeddings", "model.tie"), ("max_len data.max_length", "data.max_tokens"),
        ("dropout training.dropout", "model.dropout"), ("tensorboard", "training.tensorboard"),
    ],
)  # fmt: skip
def test_what_other_programs_call_a_key_is_understood_with_and_without_a_section(keys: str, meant: str) -> None:
    for key in keys.split():
        assert problems(None, f"{key}=1") == f"{key}: unknown key, did you mean {meant}?"


def test_sentences_are_not_taken_for_tokens() -> None:
    for key in ("batch_size", "training.batch-size"):
        expected = "unknown key, did you mean training.batch_tokens?; mtx counts target tokens, not sentences"
        assert problems(None, f"{key}=64") == f"{key}: {expected}"


def test_what_mtx_does_not_have_is_said_with_what_there_is_instead() -> None:
    instead = "mtx does not support such services; training.tensorboard=true writes metrics for TensorBoard"
    assert problems(None, "wandb=true") == f"wandb: unknown key; {instead}"
    assert problems(None, "training.num_workers=4").startswith("training.num_workers: unknown key; there is no such")
    for name in ("devices", "num_gpus", "training.world_size"):
        assert problems(None, f"{name}=2").startswith(f"{name}: unknown key; mtx train --device N trains on N")


@pytest.mark.parametrize("key", ["training.zzz", "model.xyz", "training.parallel", "tokenizer.qqq", "data.foo"])
def test_keys_of_a_section_do_not_resemble_each_other_by_the_name_of_the_section(key: str) -> None:
    assert problems(None, f"{key}=1") == f"{key}: unknown key"


def test_the_other_names_belong_to_keys_and_are_none_themselves() -> None:
    keys = key_names()
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    parameters = {parameter.name for command in commands.values() for parameter in command.params}
    assert {key for keys_of_name in KEYS_FOR.values() for key in keys_of_name} <= {*keys} | parameters
    names_of_keys = {*KEYS_FOR, *NOT_THERE} & {key.rpartition(".")[2] for key in keys}
    assert names_of_keys == {"max_tokens", "src", "tgt"}  # it means two keys; they mean options too
    assert all(keys_meant(name, keys) == [f"data.{name}"] for name in ("src", "tgt"))
    assert not {*KEYS_FOR} & {*NOT_THERE}


def misspelled(word: str) -> set[str]:
    """A word with one letter missing or doubled, or two swapped."""
    halves = [(word[:at], word[at:]) for at in range(len(word))]
    missing = {before + after[1:] for before, after in halves}
    doubled = {before + after[0] + after for before, after in halves}
    swapped = {before + after[1] + after[0] + after[2:] for before, after in halves[:-1]}
    return (missing | doubled | swapped) - {word, ""}


def test_a_misspelled_key_of_a_section_is_found_in_it() -> None:
    keys = [*key_names()]
    wrong = dict[str, list[str]]()
    for key in keys:
        section, dot, last = key.rpartition(".")
        for word in misspelled(last):
            name = section + dot + word
            if name not in keys and (meant := keys_meant(name, keys)) != [key]:
                wrong[name] = meant
    assert wrong == {
        "size": ["model.preset"],  # of other programs
        "data.direction": ["data.src", "data.tgt"],
        "model.num_ecoder_layers": ["model.num_encoder_layers"],  # or of the decoder
    }


def test_a_misspelled_key_is_found_without_its_section_if_no_other_is_called_so() -> None:
    keys = [*key_names()]
    lasts = [key.rpartition(".")[2] for key in keys]
    known = {"size", "direction", "num_ecoder_layers"}
    for key, last in zip(keys, lasts, strict=True):
        for word in misspelled(last) - {*lasts} - known if lasts.count(last) == 1 else ():
            meant = keys_meant(word, keys)
            assert meant == [key] or len(last) == 3, word  # two letters of three are little


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("data.scr=en", "data.src"),
        ("data.sorce=en", "data.src"),
        ("data.gtt=de", "data.tgt"),
        ("model.ite=true", "model.tie"),
        ("model.scor=true", "model.score"),
        ("training.beam_size=2", "decoding.beam_size"),
        ("data.SRC=en", "data.src"),
    ],
)
def test_the_section_that_was_typed_counts_before_similarity(override: str, meant: str) -> None:
    assert problems(None, override) == f"{override.partition('=')[0]}: unknown key, did you mean {meant}?"


def test_one_error_reports_all_problems() -> None:
    message = problems("demo", "training.max_stpes=5", "seed=x", "model.dropout=2", "modle.norm=pre")
    assert message.split("; ") == [
        "training.max_stpes: unknown key, did you mean training.max_steps?",
        "modle.norm: unknown key, did you mean model.norm?",
        "seed: expected a whole number, got 'x'",
        "model.dropout: expected less than 1, got 2",
    ]


WRONG = """seed: x
data:
  train:
    - {name: a, weight: x}
    - {weight: -1,
       name: b, tag: B T, wieght: 2}
    - [c]
  hub:
    valid: v
training: {max_stpes: 5}
modle:
  norm: pre
device: [cpu]
"""


def test_problems_of_a_file_have_their_line(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", WRONG)
    expected = [
        "1: seed: expected a whole number, got 'x'",
        "4: data.train[0].weight: expected a number, got 'x'",
        "5: data.train[1].weight: expected more than 0, got -1",
        "6: data.train[1].tag: expected letters, digits and _, got 'B T'",
        "6: data.train[1].wieght: unknown key, did you mean data.train[1].weight?",
        "7: data.train[2]: expected a section with keys, got a list",
        "8: data.hub.name: is missing",
        "10: training.max_stpes: unknown key, did you mean training.max_steps?",
        "11: modle: unknown key, did you mean model?",
        "13: device: expected text, got a list",
    ]
    assert sorted(problems(path).split("; ")) == sorted(f"{path}:{problem}" for problem in expected)
    with pytest.raises(UsageError, match=re.escape(f"{path}:1: seed")):
        load(path)


def test_a_file_is_named_only_if_it_holds_the_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "c.yaml", "seed: x\nmodel:\n  norm: mid\ndata:\n  train: [{name: a, weight: x}]\n")
    message = problems(path, "seed=y", "data.train=b")
    assert message == f"seed: expected a whole number, got 'y'; {path}:3: model.norm: expected post or pre, got 'mid'"
    small = write(tmp_path / "s.yaml", "training:\n  batch_tokens: 9\n")
    assert problems(small) == f"{small}: training.batch_tokens 9 is below data.max_tokens 256"
