"""The wheel works outside the checkout, installed with its dependencies into a new environment (`make test-wheel`).

It is built here, or with MTX_WHEEL=FILE the one that `make release` has built.
"""

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from tests.integration.commands import ENVIRONMENT, write_tsv

pytestmark = pytest.mark.wheel

CHECKOUT = Path(__file__).parents[2]
SHORT = [
    "training.max_steps=20", "training.checkpoint_every=10", "training.validate_every=20", "decoding.beam_size=1",
    "model.num_encoder_layers=1", "model.num_decoder_layers=1", "device=cpu",
]  # fmt: skip


class Installed:
    """The environment, and a directory to work in that is no checkout."""

    def __init__(self, directory: Path):
        self.scripts = directory / "venv" / ("Scripts" if os.name == "nt" else "bin")
        self.cwd = directory / "work"
        self.cwd.mkdir()

    def run(self, program: str, *arguments: object, stdin: str = "") -> str:
        """What a program of the environment prints on stdout; it must succeed."""
        environment = {name: value for name, value in ENVIRONMENT.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        result = subprocess.run(
            [self.scripts / program, *map(str, arguments)],
            cwd=self.cwd, env=environment, input=stdin, capture_output=True, check=False, encoding="utf-8",
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    directory = tmp_path_factory.mktemp("wheel")
    wheel = os.environ.get("MTX_WHEEL")
    if not wheel:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, CHECKOUT]
        subprocess.run(build, check=True)
        [wheel] = map(str, directory.glob("*.whl"))
    venv.create(directory / "venv", with_pip=True)
    environment = Installed(directory)
    environment.run("python", "-m", "pip", "install", "--quiet", "-c", CHECKOUT / "constraints.txt", wheel)
    return environment


def test_what_is_imported_is_the_wheel(installed: Installed) -> None:
    place = installed.run("python", "-c", "import mtx; print(mtx.__file__)").strip()
    assert Path(place).is_relative_to(installed.scripts.parent)
    installed.run("python", "-m", "pip", "check")
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert installed.run("mtx", "--version") == f"mtx {project['version']}\n"


def test_the_recipes_are_in_it(installed: Installed) -> None:
    recipes = {path.stem for path in (CHECKOUT / "configs").glob("*.yaml")}
    _, *rows = installed.run("mtx", "config").partition("\n\n")[0].splitlines()
    assert {row.split()[0] for row in rows} == recipes


def test_the_demo_trains_translates_and_is_reported(installed: Installed) -> None:
    assert installed.run("mtx", "train", "demo", *SHORT, "run_dir=demo").startswith("grammar BLEU ")
    assert installed.run("mtx", "translate", "demo", stdin="the dog sleeps\n").count("\n") == 1
    report = installed.cwd / "demo" / "report.html"
    report.unlink()
    installed.run("mtx", "report", "demo")
    assert report.stat().st_size > 100_000
    installed.run("mtx", "attention", "demo", "the dog sleeps")
    assert (installed.cwd / "attention.html").is_file()


def test_a_recipe_by_name_trains_on_ones_own_text(installed: Installed) -> None:
    write_tsv(installed.cwd / "my.tsv", range(1000, 1400))
    text = ["data.train=my.tsv", "data.src=en", "data.tgt=de", "tokenizer.vocab_size=300", "model.preset=tiny"]
    assert installed.run("mtx", "train", "own-text", *text, *SHORT, "run_dir=mine").startswith("heldout BLEU ")
    assert installed.run("mtx", "translate", "mine", stdin="one two three\n").count("\n") == 1
