"""The `mtx` command: its commands, and the only place that turns an error into a line and an exit code.

stdout carries results; everything else goes to stderr. Nothing heavy is imported before a command needs it.
"""

import logging
import os
import re
import signal
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from mtx.commands.back_translate import back_translate
from mtx.commands.compare import compare
from mtx.commands.distil import distil
from mtx.commands.doctor import doctor
from mtx.commands.evaluate import evaluate
from mtx.commands.inspect_model import attention, encode, logprob
from mtx.commands.interop import export, import_
from mtx.commands.report import report
from mtx.commands.serve import serve
from mtx.commands.train import config, prepare, status, train
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
from mtx.formatting import color_labels, in_color, mtx_command
from mtx.machine import package_version
from mtx.storage import streams

# The groups of `mtx --help` in their order, and for each command what its help shows as an example.
EXAMPLES: dict[str, dict[str, list[str]]] = {
    "Train": {
        "train": [
            "mtx train demo",
            "mtx train my.tsv",
            "mtx train my.tsv --dry-run",
            "mtx train runs/my",
        ],
        "status": ["mtx status", "mtx status runs/my"],
        "prepare": [
            "mtx prepare own-text data.train=my.tsv data.src=en data.tgt=de",
            "mtx prepare multi30k-en-de --download-only",
        ],
        "config": [
            "mtx config",
            "mtx config demo",
            "mtx config training",
            "mtx config training.learning_rate",
            "mtx config memory.tmx > mtx.yaml",
        ],
        "doctor": ["mtx doctor"],
    },
    "Translate": {
        "translate": [
            "mtx translate runs/my input.txt -o output.txt",
            'echo "A man is reading a book." | mtx translate runs/my',
        ],
        "serve": ["mtx serve runs/my", "mtx serve runs/en-de runs/de-en --host 0.0.0.0 --api-key-file keys"],
    },
    "Evaluate": {
        "evaluate": ["mtx evaluate runs/my", "mtx evaluate --hyp output.txt --ref reference.txt"],
        "compare": ["mtx compare runs/my runs/second"],
        "report": ["mtx report runs/my runs/second -o both.html"],
    },
    "Improve": {
        "back-translate": ["mtx back-translate runs/de-en more.de -o bt.tsv"],
        "distil": [
            "mtx distil runs/my data.mono=more.en",
            "mtx distil runs/my+runs/second run_dir=runs/small model.preset=student-small",
        ],
    },
    "Inspect": {
        "attention": ['mtx attention runs/my "A man is reading a book." -o attention.html'],
        "logprob": ["mtx logprob runs/my input.txt output.txt"],
        "encode": ["mtx encode runs/my input.txt -o vectors.npy"],
    },
    "Import and export": {
        "export": [
            "mtx export runs/my --to ctranslate2 --precision int8",
            "mtx export runs/my --to huggingface -o exported",
            "mtx export runs/my --to argos -o en_de.argosmodel",
        ],
        "import": ["mtx import opus-mt-en-de -o models/en-de"],
    },
}


DOCUMENTATION = "https://OWNER.github.io/mtx/"  # as in pyproject.toml
_FIRST_STEPS = [
    "mtx trains a translation model from parallel text with one command.",
    "",
    "  mtx train demo     train a first model in a few minutes, without a download",
    "  mtx train my.tsv   train on your own text: source TAB target, one pair a line",
    "  mtx --help         list all commands",
    "",
    f"Documentation: {DOCUMENTATION}",
]
# The options of `mtx` that each of its commands takes too
_GLOBAL = "Global options"
# The groups of options in the help of a command that has many
_GROUPS = {
    "Output": "output as_json form n_best",
    "Search": "beam length_penalty max_length prefix",
    "Sampling": "temperature top_k top_p epsilon mbr seed",
    "Performance": "threads engine precision device batch_tokens",
    "Long jobs": "shard",
    _GLOBAL: "quiet verbose color help_all help",
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}
_MANY_PARAMETERS = 14
_NAME_WIDTH = 14  # of the longest name of a command
# What only --help-all shows
_HIDDEN = {
    "translate": "prefix top_k top_p epsilon mbr batch_tokens",
    "back-translate": "length_penalty top_k top_p epsilon precision batch_tokens",
    "evaluate": "beam length_penalty batch_tokens",
    "compare": "as_json",
    "distil": "threads engine batch_tokens",
    "logprob": "length_penalty",
    "encode": "threads precision",
}
# How the parser writes ranges, and how people do
_RANGES = {r"([\d.]+)<=x<=([\d.]+?)(?:\.0)?(?=\])": r"\1 to \2", "x>=": "at least "}


class _Help:
    """The help of `mtx` and of its commands."""

    def format_usage(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the usage line."""
        formatter.write_usage(ctx.command_path, " ".join(self.collect_usage_pieces(ctx)), f"{_title('Usage:')} ")

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        rows = {title: list[Any]() for title in ("Arguments", "Options", *_GROUPS)}
        shown = [each for each in self.get_params(ctx) if not getattr(each, "hidden", False)]
        for each in shown:
            if each.param_type_name == "argument":
                rows["Arguments"].append((each.metavar, each.help))
                continue
            name, help = each.get_help_record(ctx)
            for pattern, text in _RANGES.items():
                help = re.sub(pattern, text, help)
            group = _GROUP_OF.get(each.name, "Options")
            rows[group if group == _GLOBAL or len(shown) >= _MANY_PARAMETERS else "Options"].append((name, help))
        for title in filter(rows.get, rows):
            with formatter.section(_title(title)):
                formatter.write_dl(rows[title])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write where the documentation is."""
        formatter.write_paragraph()
        formatter.write(f"{_FIRST_STEPS[-1]}\n")


class Command(_Help, TyperCommand):
    """A command whose help ends with examples; it takes the global options too."""

    def __init__(self, name: str | None, **about: Any):
        super().__init__(name, **about)
        for each in self.params:
            if each.name in _HIDDEN.get(name or "", "").split():
                each.hidden = True  # type: ignore[attr-defined]

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own parameters, and the global options."""
        *own, help = super().get_params(ctx)
        return [*own, *(each for each in ctx.find_root().command.params if _GROUP_OF.get(each.name) == _GLOBAL), help]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments as their metavars write them, with brackets where they are optional."""
        return ["[OPTIONS]", *(each.metavar or "" for each in self.params if each.param_type_name == "argument")]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one a line and never wrapped, so that they can be pasted."""
        examples = next(group[self.name] for group in EXAMPLES.values() if self.name in group)
        with formatter.section(_title("Examples")):
            formatter.write("".join(f"{' ' * formatter.current_indent}{line}\n" for line in examples))
        super().format_epilog(ctx, formatter)


class Group(_Help, TyperGroup):
    """The `mtx` command, whose help lists the commands in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each group with the whole first sentence about each of its commands, and then the options."""
        for title, names in EXAMPLES.items():
            with formatter.section(_title(title)):
                formatter.write_dl(
                    [(name.ljust(_NAME_WIDTH), _first_sentence(self.commands[name].help or "")) for name in names]
                )
        super().format_options(ctx, formatter)


def _title(text: str) -> str:
    return in_color(text, sys.stdout)


def _first_sentence(text: str) -> str:
    """The first sentence of a docstring on one line, without its full stop."""
    return re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0]


app = typer.Typer(
    cls=Group,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train a translation model from parallel text with one command. Settings (key=value) define a run and are "
    "stored with it. Options (--device cpu) affect only this command. mtx COMMAND --help explains a command.",
)
for command in (
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
    config,
    status,
    doctor,
):
    app.command(cls=Command)(command)
app.command("import", cls=Command)(import_)
logger = logging.getLogger("mtx")
_CommandLineError: Any = typer.BadParameter.__base__  # UsageError, of click or of typer's own copy of it

# How long torch's idle CPU threads spin before they sleep. With the default (300,000) a training step takes twice as
# long whenever another program uses a core; on a quiet machine this setting costs about 5% (docs/decisions.md).
_SPIN_COUNT = "2000"


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
        os.environ["NO_COLOR"], os.environ["FORCE_COLOR"] = ("", "1") if when == "always" else ("1", "")


def _global_option(*names: str, callback: Any, **about: Any) -> Any:
    """An option of `mtx` and of all of its commands, which only calls `callback`."""
    return typer.Option(*names, callback=callback, is_eager=True, expose_value=False, **about)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: Annotated[
        bool, _global_option("-q", "--quiet", callback=_set_level, help="Print only warnings, errors and results.")
    ] = False,
    verbose: Annotated[
        bool,
        _global_option("-v", "--verbose", callback=_set_level, help="Also print details, such as where an error is."),
    ] = False,
    color: Annotated[
        Literal["auto", "always", "never"],
        _global_option("--color", callback=_set_color, metavar="WHEN", help="Colour messages: auto, always or never."),
    ] = "auto",
    help_all: Annotated[
        bool, _global_option("--help-all", callback=_print_whole_help, help="Show all options of a command.")
    ] = False,
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
        return color_labels("warning: " * (record.levelno == logging.WARNING) + text, sys.stderr)


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
    texts = [f"error: {error}", *([f"help: {error.help}"] if error.help else [])]
    streams.show(" ".join(filter(None, map(str.strip, text.split("\n")))) for text in texts)
    return error.exit_code


def _usage_error(error: Any) -> UsageError:
    """The parser's error in our words; for a setting written as an option, the help shows its right form."""
    from mtx.config.messages import NOT_THERE, keys_meant
    from mtx.config.schema import key_names

    option = getattr(error, "option_name", "")
    name = option.lstrip("-").split("=")[0].replace("-", "_")
    takes_settings = error.ctx is None or any(parameter.name == "settings" for parameter in error.ctx.command.params)
    if option and takes_settings and (keys := keys_meant(name, key_names())):
        values = " ".join(f"{key}=VALUE" for key in keys)
        return UsageError(f"no option {option}", f"settings are written key=value: {values}")
    if option and takes_settings and name in NOT_THERE:
        return UsageError(f"no option {option}", NOT_THERE[name])
    command = error.ctx.command_path.split()[1:] if error.ctx else []
    return UsageError(" ".join(error.format_message().split()).rstrip("."), mtx_command(*command, "--help"))


def _as_mtx_error(error: BaseException) -> MtxError:
    """Any error as an `MtxError`: a line, an exit code, and a help with the next step."""
    match error:
        case MtxError():
            return error
        case _CommandLineError():
            return _usage_error(error)
        case TerminatedError() if error.signal_number != signal.SIGINT:
            return StoppedError("terminated", error.signal_number)
        case KeyboardInterrupt() | typer.Abort():
            return StoppedError("interrupted", signal.SIGINT)
        case ModuleNotFoundError() if (error.name or "").startswith("mtx."):
            return UsageError(f"this mtx has no {error.name}")
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return MtxError(f"{where}{error.strerror or error}")
    text = f"{type(error).__name__}: {error}"
    if is_out_of_memory(error):
        smaller = "use a smaller training.micro_batch_tokens in a new run_dir, or a smaller --batch-tokens to translate"
        return MtxError(f"out of memory: {text}"[:300], smaller)
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
            streams.print_lines(_FIRST_STEPS)
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
        reported = _as_mtx_error(error)
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
    os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)  # read when torch is loaded
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
