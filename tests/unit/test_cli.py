"""The command line itself: its version, help, colours and messages, and completion for shells."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from mtx import cli
from mtx.commands.help import EXAMPLES
from mtx.machine import package_version

ROOT = Path(__file__).parent.parent.parent
COMMANDS = sorted(name for group in EXAMPLES.values() for name in group)
MTX = [sys.executable, "-m", "mtx"]
PLAIN = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")} | {"TERM": "xterm"}


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints to stdout that succeeds."""
    assert cli.run([*arguments]) == 0
    return capsys.readouterr().out


def on_terminal(*arguments: str, **environment: str) -> str:
    """What a command prints on a terminal."""
    leader, terminal = pty.openpty()
    process = subprocess.Popen(
        [*MTX, *arguments], stdin=terminal, stdout=terminal, stderr=terminal, env={**PLAIN, **environment}
    )
    os.close(terminal)
    text = b""
    while part := _read(leader):
        text += part
    os.close(leader)
    process.wait()
    return text.decode().replace("\r\n", "\n")


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 1 << 16)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_that_of_the_installed_package(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, option) == f"mtx {package_version() or '(not installed, from a checkout)'}\n"


def test_the_command_line_is_there_without_the_libraries_of_a_configuration() -> None:
    """They take as long to import as the rest of `mtx --help`."""
    heavy = "print({'pydantic', 'yaml', 'torch', 'numpy', 'rich'} & set(sys.modules))"
    for arguments, expected in (([], "mtx train demo"), (["--help"], "Usage: mtx")):
        code = f"import sys, mtx.cli; mtx.cli.run({arguments}); {heavy}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.endswith("\nset()\n") and expected in done.stdout


def test_mtx_alone_shows_what_to_do_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys).splitlines()
    assert [line.split("  ")[1] for line in lines if line.startswith("  ")] == [
        "mtx train demo",
        "mtx train my.tsv",
        "mtx --help",
    ]
    assert len(lines) < 8 and all(lines[2:])


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_the_help_has_groups_with_whole_summaries(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, *arguments)
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    assert sorted(commands) == COMMANDS
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == [*EXAMPLES, "Options", "Global options"]
    assert "..." not in text.partition("ARGS]...")[2] and "\x1b" not in text
    words = " ".join(text.split())
    for name, command in commands.items():
        assert f"{name} {' '.join(command.help.split()).partition('. ')[0].rstrip('.')}" in words


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, name, "--help")
    assert shown(capsys, name, "-h") == shown(capsys, "help", name) == text
    assert not re.search(r"[<>{}]|list\[", text.partition("Examples")[0])
    usage = re.search(r"Usage: (.*?)\n\n", text, re.DOTALL)
    assert (
        usage
        and usage[1].startswith(f"mtx {name} [OPTIONS]")
        and usage[1] == usage[1].upper().replace(f"MTX {name.upper()}", f"mtx {name}")
    )
    for option in ("-q, --quiet", "-v, --verbose", "--color WHEN", "-h, --help"):
        assert option in text.partition("Global options:\n")[2]
    lines = text.partition("Examples:\n")[2].splitlines()  # the last of it
    examples = [line.removeprefix("  ") for line in lines]
    assert examples in [group.get(name) for group in EXAMPLES.values()]
    assert all(re.match(r"(echo .* \| )?mtx ", line) and f"mtx {name}" in line for line in examples)
    assert max(map(len, examples)) <= 78


def options_of(command: Any) -> list[Any]:
    return [each for each in command.params if each.param_type_name == "option"]


@pytest.mark.seconds
def test_the_rarest_options_are_hidden_and_still_there() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    hidden = {name: {each.name for each in options_of(commands[name]) if each.hidden} for name in COMMANDS}
    assert {name: names for name, names in hidden.items() if names} == {
        "translate": {"prefix", "look_below", "seed", "top_k", "top_p", "epsilon", "mbr", "batch_tokens"},
        "back-translate": {"to", "from_", "length_penalty", "top_k", "top_p", "epsilon", "precision", "batch_tokens"},
        "evaluate": {"from_", "beam_size", "length_penalty", "batch_tokens", "protocol", "fit_quality"},
        "compare": {"to", "from_", "as_json"},
        "distil": {"to", "from_", "threads", "engine", "batch_tokens"},
        "logprob": {"to", "from_", "length_penalty"},
        "encode": {"to", "from_", "threads", "precision"},
        "attention": {"to", "from_"},
    }
    visible = [each for name in COMMANDS for each in options_of(commands[name]) if not each.hidden]
    assert 65 <= len(visible) <= 93
    assert all(each.metavar for each in visible if not each.is_flag)
    for name, many in (("translate", ["Output", "Search", "Sampling", "Performance", "Long jobs"]), ("serve", [])):
        texts = [
            subprocess.run([*MTX, name, option], capture_output=True, text=True, check=True).stdout
            for option in ("--help", "--help-all")
        ]
        for text in texts:
            titles = re.findall(r"^(\w.*):$", text, re.MULTILINE)
            assert titles == ["Arguments", "Options", *many, "Global options", "Examples"]
        of_hidden = [f"--{each.name.replace('_', '-')} " for each in options_of(commands[name]) if each.hidden]
        assert all(option not in texts[0] and option in texts[1] for option in of_hidden)


def test_every_command_that_computes_takes_a_device() -> None:
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    without = {name for name in COMMANDS if "device" not in [each.name for each in commands[name].params]}
    assert without == {"config", "corpora", "export", "import", "prepare", "report", "status"}


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("arguments", "environment", "is_colored"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"TERM": "dumb"}, False),
        (["--color", "never"], {}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
    ],
)
def test_a_terminal_shows_labels_and_titles_in_colour(
    arguments: list[str], environment: dict[str, str], is_colored: bool
) -> None:
    red, cyan, green = (f"\x1b[1;{number}m" if is_colored else "" for number in (31, 36, 32))
    end = "\x1b[0m" if is_colored else ""
    text = on_terminal(*arguments, "train", "no-such", **environment)
    assert f"{red}error:{end} no recipe named" in text and f"\n{cyan}help:{end} mtx config" in text
    text = on_terminal("train", *arguments, "-h", **environment)
    assert text.startswith(f"{green}Usage:{end} mtx train ") and f"\n{green}Options{end}:\n" in text


@pytest.mark.seconds
def test_a_pipe_gets_no_colours_unless_they_are_asked_for() -> None:
    for arguments, is_colored in ((["train", "-h"], False), (["--color", "always", "train", "-h"], True)):
        done = subprocess.run([*MTX, *arguments], capture_output=True, text=True, env=PLAIN, check=True)
        assert ("\x1b" in done.stdout) == is_colored
    done = subprocess.run([*MTX, "train", "no-such"], capture_output=True, text=True, env=PLAIN, check=False)
    assert done.returncode == 2 and "\x1b" not in done.stderr


@pytest.mark.seconds
@pytest.mark.parametrize("order", [1, -1])
def test_quiet_and_verbose_before_and_after_the_command(order: int, tmp_path: Path) -> None:
    def messages(*option: str) -> str:
        words = [option, ("prepare", "demo", f"run_dir={tmp_path / 'run'}", "--download-only")][::order]
        done = subprocess.run(
            [*MTX, *words[0], *words[1]], capture_output=True, text=True, env=PLAIN, check=True, cwd=tmp_path
        )
        return done.stderr

    assert messages() == messages("-v") == "all corpora are available: grammar, grammar, grammar\n"
    assert messages("-q") == messages("--quiet") == ""


@pytest.mark.seconds
def test_verbose_shows_where_an_error_was_raised(tmp_path: Path) -> None:
    for option, is_shown in ((["-v"], True), ([], False)):
        done = subprocess.run(
            [*MTX, *option, "translate", str(tmp_path), "-o", str(tmp_path / "out")],
            capture_output=True, text=True, env=PLAIN, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert ("Traceback" in done.stderr) == (is_shown and done.returncode == 1)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("mtx tra", ["train", "translate"]),
        ("mtx translate --len", ["--length-penalty"]),
        ("mtx translate runs/m", ["runs/mine"]),
        ("mtx train dem", ["demo"]),
        ("mtx train runs/", ["runs/mine"]),
        ("mtx train demo training.pat", ["training.patience="]),
        ("mtx config training.pat", ["training.patience"]),
        ("mtx config trai", ["training"]),
    ],
)
def test_a_shell_completes_commands_options_and_values_without_torch(
    words: str, expected: list[str], tmp_path: Path
) -> None:
    """Typer's protocol for bash: the words so far come in the environment, the completions go to stdout."""
    (tmp_path / "runs/mine").mkdir(parents=True)
    (tmp_path / "runs/mine/config.yaml").touch()
    code = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules)); from mtx.cli import main; main()"
    )
    number = str(len(words.split()) - 1)
    protocol = {"_MTX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": number, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **protocol}, capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    if words == "mtx config trai":
        expected = ["training", *(line for line in done.stdout.split() if line.startswith("training."))]
        assert len(expected) > 10
    assert done.stdout.split() == [*expected, "False"], done.stderr
