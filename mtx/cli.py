"""The `mtx` command: its commands, and the only place that turns an error into a line and an exit code.

stdout carries results; everything else goes to stderr. Nothing heavy is imported before a command needs it.
"""

import logging
import os
import signal
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import typer

from mtx.commands.corpora import corpora
from mtx.commands.doctor import doctor
from mtx.commands.evaluate import compare, evaluate, report
from mtx.commands.help import FIRST_STEPS, Command, Group
from mtx.commands.improve import back_translate, distil
from mtx.commands.inspect_model import attention, encode, logprob
from mtx.commands.interop import export, import_
from mtx.commands.mistyped import explain
from mtx.commands.serve import serve
from mtx.commands.train import prepare, show_config, status, train
from mtx.commands.translate import translate
from mtx.errors import (
    STOPPING_SIGNALS,
    MtxError,
    ReportedError,
    StoppedError,
    TerminatedError,
    UsageError,
    exit_code,
    is_out_of_memory,
)
from mtx.formatting import color_labels
from mtx.machine import package_version
from mtx.storage import streams

app = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a translation model from parallel text with one command. Settings (key=value) define a run and are "
    "stored with it. Options (--device cpu) affect only this command. mtx COMMAND --help explains a command.",
)
for command in (
    corpora,
    train,
    distil,
    prepare,
    back_translate,
    translate,
    serve,
    evaluate,
    compare,
    logprob,
    encode,
    attention,
    report,
    export,
    status,
    doctor,
):
    app.command(cls=Command)(command)
app.command("config", cls=Command)(show_config)
app.command("import", cls=Command)(import_)
logger = logging.getLogger("mtx")
_CommandLineError: Any = typer.BadParameter.__base__  # UsageError, of click or of typer's own copy of it


def _print_version(is_asked: bool) -> None:
    if is_asked:
        streams.print_lines([f"mtx {package_version() or '(not installed, from a checkout)'}"])
        raise typer.Exit


def _print_whole_help(context: typer.Context, is_asked: bool) -> None:
    if is_asked:
        command: Any = context.command
        for parameter in command.params:
            parameter.hidden = False
        command.get_help_option(context).callback(context, None, True)


def _set_level(option: typer.CallbackParam, is_asked: bool) -> None:
    if is_asked:
        logger.setLevel(logging.WARNING if option.name == "quiet" else logging.DEBUG)


def _set_color(when: str) -> None:
    if when != "auto":
        os.environ["NO_COLOR"] = "" if when == "always" else "1"
        os.environ["FORCE_COLOR"] = "1" if when == "always" else ""


def _global_option(default: Any, *names: str, callback: Any, **attributes: Any) -> Any:
    """An option of `mtx` and of all of its commands, which only calls `callback`."""
    return typer.Option(default, *names, callback=callback, is_eager=True, expose_value=False, **attributes)


@app.callback()
def _options(
    version: bool = _global_option(False, "-V", "--version", callback=_print_version, help="Print the version."),
    quiet: bool = _global_option(
        False, "-q", "--quiet", callback=_set_level, help="Print only warnings, errors and results."
    ),
    verbose: bool = _global_option(
        False, "-v", "--verbose", callback=_set_level, help="Also print details, such as where an error is."
    ),
    color: Literal["auto", "always", "never"] = _global_option(
        "auto", "--color", callback=_set_color, metavar="WHEN", help="Colour messages: auto, always or never."
    ),
    help_all: bool = _global_option(
        False, "--help-all", callback=_print_whole_help, help="Show all options of a command."
    ),
) -> None:
    """Options of mtx itself."""


class _LogHandler(logging.StreamHandler[Any]):
    def emit(self, record: logging.LogRecord) -> None:
        with streams.above_bars():
            super().emit(record)


class _LogFormat(logging.Formatter):
    """Escapes what a message quotes, so that nothing in a stranger's file can look like another message."""

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_quoted, record.args))
        text = "\n".join(map(streams.message_line, super().format(record).split("\n")))
        if record.levelno == logging.WARNING:
            text = f"warning: {text}"
        return color_labels(text, sys.stderr)


def _quoted(value: Any) -> Any:
    """A value that goes into a message; the lines of an error become one."""
    if isinstance(value, int | float):
        return value
    return streams.message_line(" ".join(str(value).split("\n")) if isinstance(value, Exception) else str(value))


def _set_up_logging() -> None:
    handler = _LogHandler(sys.stderr)
    handler.setFormatter(_LogFormat())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logging.getLogger().addHandler(logging.NullHandler())  # the logs and warnings of libraries are not for users
    warnings.simplefilter("ignore")


def _report_error(error: MtxError) -> int:
    texts = [f"error: {error}"]
    if error.help:
        texts.append(f"help: {error.help}")
    streams.show(" ".join(filter(None, map(str.strip, text.split("\n")))) for text in texts)
    return error.exit_code


def _as_mtx_error(error: BaseException, words: list[str]) -> MtxError:
    """Any error as an `MtxError`: a line, an exit code, and a hint with the next step."""
    match error:
        case MtxError():
            return error
        case _CommandLineError():
            return explain(error, words)
        case TerminatedError():
            return StoppedError(str(error), error.signal_number, error.help)
        case KeyboardInterrupt() | typer.Abort():
            return StoppedError("interrupted", signal.SIGINT)
        case ModuleNotFoundError() if (error.name or "").startswith("mtx."):
            return UsageError(f"this mtx has no {error.name}")
        case OSError():
            place = f"{error.filename}: " if error.filename else ""
            return MtxError(f"{place}{error.strerror or error}")
    text = f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        hint = "close other programs, or use a larger machine; a smaller --batch-tokens translates in less memory"
        return MtxError(f"out of memory: {text}"[:300], hint)
    return MtxError(f"mtx itself failed: {text}", "this is a bug; MTX_DEBUG=1 shows where it happened")


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    try:
        if arguments:
            command = typer.main.get_command(app)
            with command.make_context("mtx", list(arguments), color=True) as context:  # `in_color` decides
                command.invoke(context)
        else:
            streams.print_lines(FIRST_STEPS)
        sys.stdout.flush()
        return 0
    except (typer.Exit, ReportedError) as error:  # a command's own exit code, or 0 after --help
        return error.exit_code
    except BrokenPipeError:
        streams.finish(sys.stdout)
        return 128 + 13  # SIGPIPE
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get("MTX_DEBUG"):
            raise
        streams.finish(sys.stdout, is_stopped=isinstance(error, KeyboardInterrupt))
        reported = _as_mtx_error(error, arguments)
        if not isinstance(reported, UsageError):
            logger.debug("the error below was raised here:", exc_info=error)
        return _report_error(reported)


def _stop(number: int, frame: FrameType | None) -> None:
    raise TerminatedError(number)


def _require_streams() -> None:
    """Refuse a closed stdout: a file that is opened later would get its number, and what is printed."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.exit(_report_error(UsageError("stdout is closed", "> FILE, or > /dev/null")))


def main() -> None:
    """The `mtx` command."""
    _require_streams()
    if "_MTX_COMPLETE" in os.environ:  # a shell asks for completions: Typer answers and exits
        app(prog_name="mtx")
    # How long torch's idle CPU threads spin before they sleep, read when torch is loaded. With the default (300,000) a
    # training step takes twice as long whenever another program uses a core; on a quiet machine 2000 costs about 5%
    # (docs/archive/decisions-2026.md, 2026-11-21).
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large tensors in huge pages, which saves 2% of a step
    streams.set_up()
    _set_up_logging()
    for number in STOPPING_SIGNALS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # nohup ignores SIGHUP
            signal.signal(number, _stop)
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt as error:  # a second signal before the first was reported
        code = exit_code(error)
        streams.finish(sys.stdout, is_stopped=True)
    for number in STOPPING_SIGNALS:  # the outcome has been reported: none may change the exit code while Python ends
        signal.signal(number, signal.SIG_IGN)
    streams.finish(sys.stderr)
    sys.exit(code)
