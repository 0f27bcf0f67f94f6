"""A language model of one side: trained from lines, it has a perplexity, scores lines, and goes on with prompts."""

import json
import math
import shutil
import signal
from pathlib import Path

import pytest

from tests.integration.commands import check_error, end_at_step, mtx, pairs

SETTINGS = [
    "model.architecture=decoder", "data.tgt=de", "data.max_tokens=32", "tokenizer.vocab_size=300",
    "model.preset=tiny", "model.d_model=32", "model.d_ff=64", "model.num_heads=2", "model.dropout=0.1",
    "model.num_decoder_layers=1", "training.batch_tokens=256", "training.warmup_steps=20",
    "training.learning_rate=0.01", "training.max_steps=40", "training.checkpoint_every=4",
    "training.validate_every=20", "training.average_last=3",
]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "lines.txt"
    path.write_text("".join(f"{target}\n" for _, target in pairs(range(1000, 1400))), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("lm") / "run"
    done = mtx("train", *SETTINGS, f"data.train={text}", f"run_dir={run}")
    shown = done.stderr.decode()
    assert done.returncode == 0, shown
    assert "training de into" in shown and "BLEU" not in shown + done.stdout.decode()
    assert "20 sentences are held out" in shown, "the lines differ, though none has a source"
    return run


def test_its_perplexity_is_that_of_the_probabilities_of_the_lines(run: Path, tmp_path: Path) -> None:
    evaluated = json.loads(mtx("evaluate", run, "--json").stdout)
    assert evaluated == {name: value for name, value in scores(run).items() if name == "heldout"}
    store = mtx("train", run)
    assert store.returncode == 0 and b"finished" in store.stderr
    lines = held_out(run)
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    values = [json.loads(row) for row in mtx("logprob", run, tmp_path / "lines", "--json").stdout.splitlines()]
    nll = -sum(value["log_prob"] for value in values) / sum(value["tokens"] for value in values)
    assert math.isclose(evaluated["heldout"]["perplexity"]["score"], math.exp(nll), rel_tol=1e-5)
    assert math.exp(nll) < 30, "of 300 pieces, so it has learned something"


def scores(run: Path) -> dict[str, object]:
    values: dict[str, object] = json.loads((run / "model" / "scores.json").read_text(encoding="utf-8"))
    return values


def held_out(run: Path) -> list[str]:
    from mtx.data.preprocess import load_prepared

    return load_prepared(run / "data").tests["heldout"].tgt_texts()


def test_it_goes_on_with_each_line(run: Path) -> None:
    lines = b"eins\n\nzwei drei\n"
    samples = [mtx("translate", run, "--temperature", 1, "--seed", seed, stdin=lines) for seed in (1, 1, 2)]
    first, same, other = (done.stdout.decode().splitlines() for done in samples)
    assert first == same != other and len(first) == 3
    for done in (first, other, mtx("translate", run, stdin=lines).stdout.decode().splitlines()):
        assert done[0].startswith("eins") and done[2].startswith("zwei drei") and all(done)
    alone = mtx("translate", run, "--temperature", 1, "--seed", 1, stdin=b"zwei drei\n")
    assert alone.stdout.decode().splitlines() == first[2:], "a sample depends on its prompt, not on other lines"
    listed = mtx("translate", run, "--temperature", 1, "--n-best", 3, "--json", stdin=b"eins\n")
    hypotheses = json.loads(listed.stdout)["hypotheses"]
    assert len({hypothesis["text"] for hypothesis in hypotheses}) == 3
    assert not any("suspicion" in hypothesis for hypothesis in hypotheses), "a prompt is no source that was copied"


def test_it_is_looked_at(run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert mtx("attention", run, "eins zwei", "-o", page).returncode == 0
    assert 'data-kind="decoder"' in page.read_text(encoding="utf-8")
    assert mtx("report", run, "-o", page).returncode == 0
    report = page.read_text(encoding="utf-8")
    assert "a language model of de" in report and "by greedy search; the test" not in report
    assert f"{scores(run)['heldout']['perplexity']['score']:.2f}" in report  # type: ignore[index]
    assert "test:      heldout perplexity" in mtx("status", run).stdout.decode()
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "goes on with text in `de`" in card and "text-generation" in card and "mtx export" not in card
    rows = [json.loads(row) for row in mtx("encode", run, "--tokens", stdin=b"eins zwei\n\n").stdout.splitlines()]
    assert len(rows[0]["pieces"]) == len(rows[0]["vectors"]) > 0 == len(rows[1]["vectors"])


def test_killed_it_goes_on_to_the_same_bits(run: Path, text: Path, tmp_path: Path) -> None:
    again, arguments = tmp_path / "run", [*SETTINGS, f"data.train={text}"]
    assert end_at_step(again, 8, signal.SIGKILL, *arguments)[0] == -signal.SIGKILL
    assert mtx("train", *arguments, f"run_dir={again}").returncode == 0
    name = "model/model.safetensors"
    assert (again / name).read_bytes() == (run / name).read_bytes()


def test_training_starts_from_it(run: Path, text: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run / "model", tmp_path / "model")
    done = mtx(
        "train", f"data.train={text}", "data.max_tokens=32", "training.max_steps=2", "training.batch_tokens=256",
        "training.warmup_steps=1", f"training.init_from={copy}", f"run_dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert "before: heldout perplexity" in done.stderr.decode()
    table = tmp_path / "pairs.tsv"
    table.write_text("eins\tone\n" * 9, encoding="utf-8")
    done = mtx("train", f"training.init_from={copy}", f"data.train={table}", "data.src=de", "data.tgt=en")
    check_error(done.returncode, done.stderr.decode(), 2, "is a language model, and this run does not", "")


def test_what_needs_a_translator_refuses_it(run: Path, text: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# eins\n", encoding="utf-8")
    for command in (
        ["translate", run, page, "-o", tmp_path / "out.md"], ["evaluate", run, "--src", text, "--ref", text],
        ["back-translate", run, text, "-o", tmp_path / "out"],
        ["compare", run / "model", text, "--src", text, "--ref", text], ["serve", run],
    ):  # fmt: skip
        done = mtx(*command)
        check_error(done.returncode, done.stderr.decode(), 2, "is a language model", "")
    for options in (["--beam", 2], ["--length-penalty", 1.0], ["--protocol", "aiayn"], ["--robust"]):
        done = mtx("evaluate", run, *options)
        check_error(done.returncode, done.stderr.decode(), 2, "is a language model", "")
    done = mtx("translate", run, text, "--split-sentences")
    check_error(done.returncode, done.stderr.decode(), 2, "goes on with whole lines", "")
    done = mtx("attention", run, "eins", "--target", "zwei", "-o", tmp_path / "page.html")
    check_error(done.returncode, done.stderr.decode(), 2, "no translations", "")
    done = mtx("logprob", run, text, text)
    check_error(done.returncode, done.stderr.decode(), 2, "scores one text", "mtx logprob MODEL TEXT")
    done = mtx("translate", run, text, "--prefix", text)
    check_error(done.returncode, done.stderr.decode(), 2, "takes no prefixes", "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["data.columns=1,2"], "data.columns is about pairs"),
        (["data.duplicates=newest"], "data.duplicates is about pairs"),
        (["training.copies=0.5"], "training.copies: is about sources"),
        (["training.typing_errors=0.5"], "training.typing_errors: is about sources"),
        (["training.choose_by=bleu"], "has only the nll"),
        (["data.src=null", "model.architecture=rnn"], "rnn needs a source"),
    ],
)
def test_settings_about_pairs_are_refused(settings: list[str], words: str, text: Path, tmp_path: Path) -> None:
    done = mtx("train", *SETTINGS, f"data.train={text}", *settings, f"run_dir={tmp_path / 'run'}")
    check_error(done.returncode, done.stderr.decode(), 2, words, "mtx config")


def test_long_lines_of_own_text_have_sizes(tmp_path: Path) -> None:
    """Copies, which long pairs get, are none of them."""
    text = tmp_path / "long.txt"
    text.write_text(
        "".join(f"{' '.join(target for _, target in pairs(range(n, n + 12)))}\n" for n in range(1000, 1300))
    )
    done = mtx("config", "own-text", "model.architecture=decoder", "data.tgt=de", f"data.train={text}")
    assert done.returncode == 0, done.stderr.decode()
    assert "copies: 0.0" in done.stdout.decode() and "src: null" in done.stdout.decode()


def test_init_and_a_dry_run_tell_of_lines(text: Path, tmp_path: Path) -> None:
    output = tmp_path / "lm.yaml"
    done = mtx("init", text, "model.architecture=decoder", "data.tgt=de", "-o", output)
    assert done.returncode == 0, done.stderr.decode()
    assert "# It learns a language model of de from" in output.read_text(encoding="utf-8")
    done = mtx("init", text, "model.architecture=rnn", "data.tgt=de", "-o", output)
    check_error(done.returncode, done.stderr.decode(), 2, "which languages it has is not known", "")
    done = mtx("train", *SETTINGS, f"data.train={text}", f"run_dir={tmp_path / 'run'}", "--dry-run")
    assert done.returncode == 0 and b"None" not in done.stdout and b"train de" in done.stdout


def test_a_source_is_left_out_by_a_decoder_alone_only(trained: Path, tmp_path: Path) -> None:
    from mtx.files import durable

    model = shutil.copytree(trained / "model", tmp_path / "model")
    info = durable.read_json(model / "config.json")
    durable.write_json(model / "config.json", {**info, "src": None})
    durable.write_manifest(model)
    done = mtx("translate", model, "--engine", "torch", stdin=b"eins\n")
    check_error(done.returncode, done.stderr.decode(), 1, "src is null, and only a decoder alone needs none", "")
