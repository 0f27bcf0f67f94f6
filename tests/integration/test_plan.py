"""The sizes of a run are decided once, when training starts, and stay whatever happens in between."""

from pathlib import Path
from typing import Any

import pytest

from mtx.commands.train import resolve
from mtx.config.settings import dump_with_origins, load
from mtx.data.model_sizes import row_values
from mtx.errors import UsageError
from mtx.runs.run_directory import check_settings
from mtx.storage import durable
from mtx.storage.run_files import RunLayout
from mtx.training import plan, run
from mtx.training.build import read_runtime
from tests.integration.commands import write_tsv

SPEEDS = {29_000: 1 / 500, 10_000: 1 / 5_000, 5_000: 1 / 5_000}  # seconds per target token
SMALL = ["training.max_steps=1", "training.validate_every=1", "data.max_tokens=32", "device=cpu"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tsv(tmp_path_factory.mktemp("text") / "digits.tsv", range(1000, 1300))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows that are measured; the text has the row of 29,000 pairs."""
    rows = list[int]()

    def measure(row: int, *_: Any) -> float:
        rows.append(row)
        return SPEEDS[row]

    monkeypatch.setattr(plan, "measure", measure)
    monkeypatch.setattr("mtx.data.model_sizes.nearest_row", lambda num_pairs: 29_000)
    return rows


def arguments(text: Path, root: Path, *settings: str) -> list[str]:
    return ["own-text", f"data.train={text}", "data.src=en", "data.tgt=de", *SMALL, f"run_dir={root}", *settings]


def sizes(config: Any) -> tuple[int, int, int]:
    return config.model.num_encoder_layers, config.model.d_ff, config.training.warmup_steps


def of_row(row: int) -> tuple[Any, ...]:
    keys = "model.num_encoder_layers", "model.d_ff", "training.warmup_steps"
    return tuple(row_values(row)[key] for key in keys)


def test_the_plan_is_recorded_with_its_reason_and_resumed(
    text: Path, tmp_path: Path, measured: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    call = arguments(text, tmp_path / "run", "training.time_limit=10m")
    resolved = resolve(call)
    assert resolved.config.sizes == 29_000 and sizes(resolved.config) == of_row(29_000)
    paths = run.prepare_only(resolved.config)
    check_settings(paths, resolve([*call, "model.d_ff=64"]).config)  # preparation fixes no sizes
    with pytest.raises(UsageError, match="data.max_tokens is 64, it was 32"):
        check_settings(paths, resolve([*call, "data.max_tokens=64"]).config)
    run.train(resolve(call).config)
    assert measured == [29_000, 10_000]
    written, chosen = load(paths.config), read_runtime(paths.chosen).plan
    assert (written.sizes, written.undecided, sizes(written)) == (10_000, (), of_row(10_000))
    assert chosen is not None and (chosen["row"], chosen["values"]["model.d_ff"]) == (10_000, 512)
    assert chosen["reason"] == "the time has room for 16% of what the sizes for 29,000 pairs need"
    assert "sizes for about 10,000 pairs: the time has room for" in caplog.text
    assert "sizes=29000: about " in caplog.text and " epochs in 10 min" in caplog.text
    later = resolve([*call, "training.time_limit=10h", "training.max_steps=2"])
    assert later.config.sizes == 10_000 and sizes(later.config) == of_row(10_000)
    assert later.origins["model.d_ff"] == f"for about 10,000 pairs ({chosen['reason']})"
    assert later.origins["training.max_steps"] == "command line"
    run.train(later.config)
    assert "the run keeps its sizes; a new run would have sizes=29000" in caplog.text
    assert measured == [29_000, 10_000], "a resumed run measures nothing"
    assert read_runtime(paths.chosen).plan == chosen
    with pytest.raises(UsageError, match="model.d_ff is 64, it was 512"):
        run.train(resolve([*call, "model.d_ff=64"]).config)
    assert resolve([str(paths.root)]).config.sizes == 10_000


@pytest.mark.parametrize(
    ("limit", "row", "reason"),
    [
        ("45m", 10_000, "the time has room for 70% of what the sizes for 29,000 pairs need; nearly sizes=29000"),
        ("51m", 29_000, "the measured size nearest to the text; nearly sizes=10000"),
    ],
)
def test_near_a_boundary_the_log_names_both_rows(
    text: Path, tmp_path: Path, measured: list[int], caplog: pytest.LogCaptureFixture, limit: str, row: int, reason: str
) -> None:
    """The boundary of these speeds lies at 48 minutes; a measured speed may be wrong by 15%."""
    caplog.set_level("INFO")
    run.train(resolve(arguments(text, tmp_path / "run", f"training.time_limit={limit}")).config)
    assert f"sizes for about {row:,} pairs: {reason}" in caplog.text


@pytest.mark.parametrize("where", ["before the plan", "before chosen.json", "before config.yaml"])
@pytest.mark.parametrize("by_run", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_start_that_ended_between_preparation_and_plan_is_resumed(
    text: Path, tmp_path: Path, measured: list[int], where: str, by_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = arguments(text, tmp_path / "run", "training.time_limit=10m", "model.dropout=0.25")
    name = {"before the plan": "decide", "before chosen.json": "choose_runtime", "before config.yaml": "build"}[where]
    with monkeypatch.context() as context:
        original = getattr(run, name)

        def ends(*arguments: Any, **named: Any) -> Any:
            raise KeyboardInterrupt

        def ends_before_config(*arguments: Any, **named: Any) -> Any:
            if arguments[0].name == "config.yaml" and (tmp_path / "run" / "chosen.json").exists():
                raise KeyboardInterrupt
            return write_text(*arguments, **named)

        write_text = durable.write_text
        if name == "build":
            context.setattr(durable, "write_text", ends_before_config)
        else:
            context.setattr(run, name, ends)
        with pytest.raises(KeyboardInterrupt):
            run.train(resolve(call).config)
        assert original is not None
    paths = RunLayout(tmp_path / "run")
    assert load(paths.config).undecided and paths.chosen.exists() == (name == "build")
    run.train(resolve([str(paths.root)] if by_run else call).config)
    written = load(paths.config)
    assert (written.sizes, sizes(written), written.model.dropout) == (10_000, of_row(10_000), 0.25)
    assert measured == [29_000, 10_000] * (1 if name != "choose_runtime" else 2)


def test_what_is_given_is_never_chosen(text: Path, tmp_path: Path, measured: list[int]) -> None:
    call = arguments(text, tmp_path / "run", "training.time_limit=10m", "model.d_ff=256", "training.warmup_steps=400")
    run.train(resolve(call).config)
    written = load(tmp_path / "run" / "config.yaml")
    assert sizes(written) == (3, 256, 400) and written.sizes == 10_000


def test_a_printed_configuration_is_trained_as_it_stands(text: Path, tmp_path: Path, measured: list[int]) -> None:
    file = tmp_path / "mine.yaml"
    printed = dump_with_origins(resolve(arguments(text, tmp_path / "run", "training.time_limit=10m")))
    file.write_text(printed.replace("d_ff: 256", "d_ff: 64"))
    run.train(resolve([str(file)]).config)
    assert not measured and sizes(load(tmp_path / "run" / "config.yaml")) == (4, 64, 400)


@pytest.mark.parametrize("setting", ["sizes=29000", "model.preset=tiny", "sizes=given"])
def test_sizes_by_hand_are_not_measured(text: Path, tmp_path: Path, measured: list[int], setting: str) -> None:
    call = arguments(text, tmp_path / "run", "training.time_limit=10m", setting, "model.d_model=32", "model.d_ff=64")
    config = resolve(call).config
    assert not config.undecided and not measured
    if setting == "sizes=29000":
        assert (config.model.num_encoder_layers, config.training.rdrop_alpha) == (4, 2)
    with pytest.raises(UsageError, match="sizes=28000: expected corpus, given or one of 5000, 10000, 29000, "):
        resolve([*call, "sizes=28000"])
