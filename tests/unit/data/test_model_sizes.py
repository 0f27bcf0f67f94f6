"""Sizes by corpus: what a recipe with `sizes: corpus` chooses, and what stays as it was given."""

from pathlib import Path

import pytest

from mtx.config import settings
from mtx.config.settings import Resolved
from mtx.data.model_sizes import choose_sizes, measure, nearest_row, row_values
from mtx.data.tokenizer import auto_vocab_sizes
from mtx.errors import UsageError
from mtx.storage import durable
from mtx.storage.run_files import RunLayout

PAIR = f"{'s' * 30}\t{'ü' * 50}\n"  # 30 and 100 bytes, which is as long as the pairs that were measured
LONG_PAIR = f"{'s' * 90}\t{'ü' * 55}\n"  # 90 and 110 bytes


def text(path: Path, num_pairs: int, pair: str = PAIR) -> str:
    path.write_text(num_pairs * pair, encoding="utf-8")
    return f"data.train={path}"


def chosen(*settings_: str) -> Resolved:
    return choose_sizes(settings.resolve("own-text", [*settings_, "data.src=en", "data.tgt=de"]))


def test_the_row_is_that_of_the_amount_of_text(tmp_path: Path) -> None:
    five, ten = (text(tmp_path / f"{n}.tsv", n) for n in (5_000, 10_000))
    for setting, row in ((five, 5_000), (ten, 10_000)):
        resolved = chosen(setting, f"run_dir={tmp_path / 'run'}")
        values = resolved.config
        assert values.model.d_ff == row_values(row)["model.d_ff"]
        assert values.training.patience == row_values(row)["training.patience"]
        assert resolved.origins["model.d_ff"] == (
            f"for about {row:,} pairs (the measured size nearest to {row:,} pairs of 65 bytes per side)"
        )
        about = resolved.origins["tokenizer.vocab_size"]
        assert about.startswith(f"about {auto_vocab_sizes(row)[0]:,} subwords (")


def test_long_pairs_count_more(tmp_path: Path) -> None:
    setting = text(tmp_path / "long.tsv", 2_500, PAIR.replace("s", "s" * 5).replace("\t", "\t" + "t" * 270))
    resolved = chosen(setting)
    assert measure(resolved.config.data) == (2_500, 2_500 * (150 + 270 + 100))
    assert resolved.origins["model.d_ff"].startswith("for about 10,000 pairs")


def test_what_is_given_stays(tmp_path: Path) -> None:
    setting = text(tmp_path / "my.tsv", 5_000)
    given = chosen(setting, "model.d_ff=99", "training.patience=77", "tokenizer.vocab_size=500")
    assert (given.config.model.d_ff, given.config.training.patience) == (99, 77)
    assert (given.config.tokenizer.vocab_size, given.origins["tokenizer.vocab_size"]) == (500, "command line")
    base = chosen(setting, "model.preset=base").config
    assert (base.model.d_model, base.model.dropout, base.model.num_heads) == (512, 0.1, 8)
    assert base.training.batch_tokens == row_values(5_000)["training.batch_tokens"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("model.d_model=100", None),
        ("model.num_heads=3", "model.d_model 128 is not divisible by model.num_heads 3"),
        ("model.d_model=130", "model.d_model 130 is not divisible by model.num_heads 4"),
        ("model.d_model=100 model.preset=base", "model.d_model 100 is not divisible by model.num_heads 8"),
        ("model.d_model=100 sizes=given", "model.d_model 100 is not divisible by model.num_heads 8"),
    ],
)
def test_sizes_are_checked_against_those_that_the_run_has(tmp_path: Path, given: str, problem: str | None) -> None:
    arguments = [text(tmp_path / "my.tsv", 5_000), *given.split()]
    if problem is None:
        model = chosen(*arguments).config.model
        assert (model.d_model, model.num_heads) == (100, 4)
    else:
        with pytest.raises(UsageError) as caught:
            chosen(*arguments)
        assert str(caught.value) == problem


def test_several_directions_learn_at_a_lower_rate(tmp_path: Path) -> None:
    path = tmp_path / "my.tsv"
    path.write_text("en\tde\n" + "A small tomato.\tEine kleine Tomate.\n" * 5_000, encoding="utf-8")
    given = [f"data.train={path}", "data.columns=en,de", "data.directions=en-de,de-en"]

    def rate(*more: str) -> float | None:
        return choose_sizes(settings.resolve("own-text", [*given, *more])).config.training.learning_rate

    assert chosen(text(tmp_path / "one.tsv", 5_000)).config.training.learning_rate is None  # that of the paper
    assert (rate(), rate("sizes=1000000"), rate("training.learning_rate=0.003")) == (0.002, 0.0007, 0.003)


def test_a_file_may_set_a_preset(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("sizes: corpus\nmodel: {preset: base}\n", encoding="utf-8")
    setting = text(tmp_path / "my.tsv", 5_000)
    values = choose_sizes(settings.resolve(str(recipe), [setting, "data.src=en", "data.tgt=de"])).config
    assert (values.model.d_model, values.model.num_encoder_layers) == (512, 6)
    assert values.training.patience == row_values(5_000)["training.patience"]


def test_a_step_holds_the_longest_sentence(tmp_path: Path) -> None:
    setting = text(tmp_path / "my.tsv", 5_000)
    assert chosen(setting, "data.max_tokens=1500").config.training.batch_tokens == 1500


def test_a_model_that_translates_and_one_of_short_pairs_need_no_copies(tmp_path: Path) -> None:
    setting = text(tmp_path / "my.tsv", 5_000, LONG_PAIR)
    assert chosen(text(tmp_path / "short.tsv", 5_000, LONG_PAIR[1:])).config.training.copied_target_ratio == 0
    assert (
        chosen(setting).config.training.copied_target_ratio
        > 0
        == chosen(setting, "training.init_from=m").config.training.copied_target_ratio
    )
    run = RunLayout(tmp_path / "run")
    begun = [setting, "training.init_from=m", f"run_dir={run.root}"]
    first = chosen(*begun, "training.copied_target_ratio=1")
    run.root.mkdir()
    durable.write_text(run.config, settings.dump(first.config))
    durable.write_json(run.chosen, {})
    assert chosen(*begun).config == first.config


def test_one_of_steps_and_epochs_ends_the_training(tmp_path: Path) -> None:
    setting, epochs = text(tmp_path / "my.tsv", 5_000), row_values(5_000)["training.max_epochs"]
    for given, expected in (
        ([], (None, epochs)),
        (["training.max_steps=9"], (9, None)),
        (["training.max_epochs=9"], (None, 9)),
    ):
        training = chosen(setting, *given).config.training
        assert (training.max_steps, training.max_epochs) == expected


def test_a_run_that_has_begun_keeps_its_sizes(tmp_path: Path) -> None:
    run = RunLayout(tmp_path / "run")
    first = chosen(text(tmp_path / "my.tsv", 5_000), f"run_dir={run.root}", "model.d_ff=96")
    run.root.mkdir()
    durable.write_text(run.config, settings.dump(first.config))
    durable.write_json(run.chosen, {})
    later = chosen(text(tmp_path / "my.tsv", 100_000, "a\tb\n"), f"run_dir={run.root}")
    assert later.config == first.config
    earlier = settings.replace_values(first, {"model.preset": "small"}, "recipe own-text")  # which set it once
    durable.write_text(run.config, settings.dump(earlier.config))
    assert chosen(text(tmp_path / "my.tsv", 5_000), f"run_dir={run.root}").config == earlier.config
    durable.write_text(run.config, settings.dump(first.config))
    (tmp_path / "my.tsv").unlink()  # the text of a finished run may be gone
    assert chosen(f"data.train={tmp_path / 'my.tsv'}", f"run_dir={run.root}").config.model == first.config.model


def test_without_text_the_table_is_shown_and_missing_text_is_an_error(tmp_path: Path) -> None:
    assert chosen().origins["model.d_ff"] == "for about 29,000 pairs (data.train is not set yet)"
    with pytest.raises(UsageError, match="missing.tsv"):
        chosen(f"data.train={tmp_path / 'missing.tsv'}", f"run_dir={tmp_path / 'run'}")


def test_rows_meet_in_the_middle_of_their_ratio() -> None:
    assert [nearest_row(n) for n in (0, 5_000, 7_000, 7_100, 29_000, 10**9)] == [
        5_000, 5_000, 5_000, 10_000, 29_000, 5_000_000,
    ]  # fmt: skip
    assert auto_vocab_sizes(160_000) == [8_000, 16_000, 32_000]
