"""`mtx init`: looks at the user's files and writes a configuration with comments, which `mtx train` then takes.

It writes the settings of `own-text` and those that name the text. What the amount of text decides is written as
comments, so that it is chosen anew if the text grows.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtx.commands.options import is_text, open_output, require_stdout, resolve, run_dir_for
from mtx.errors import UsageError
from mtx.files.durations import format_duration
from mtx.files.shell import mtx_command
from mtx.files.streams import print_lines
from mtx.files.text_files import printable
from mtx.run.system_memory import check_address_space

if TYPE_CHECKING:
    from mtx.config.settings import Resolved

logger = logging.getLogger("mtx")

_OUTPUT = "mtx.yaml"
_CHOSEN = ("for about", "about")  # the beginnings of the reasons for what the amount of text decides


def init(
    files: Annotated[list[str], typer.Argument(metavar="FILE... [key=value]...", help="Parallel text, as in train.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The configuration.")] = Path(_OUTPUT),
) -> None:
    """Look at your files and write a configuration with comments. It takes a few training steps to tell the time."""
    require_stdout()
    arguments = _arguments(files, output)
    if output.exists():
        raise UsageError(f"{output}: exists already, and may hold your changes", "-o FILE names another file")
    resolved = resolve(arguments)
    check_address_space(is_training=True)
    from mtx import dry_run

    report = dry_run.rehearse(resolved.config)
    text = "".join(f"{line}\n" for line in _lines(resolved, report, files))
    with open_output(output) as file:
        file.write(text.encode())
    print_lines(dry_run.lines(report))
    logger.info("written: %s, which you may change before\n  %s", output, mtx_command("train", output))


def _arguments(words: list[str], output: Path) -> list[str]:
    """The arguments of `mtx train` that mean the same text; the run directory is named like `output`, if that has one.

    Raises:
        UsageError: if no file is given, or the languages are not known.
    """
    from mtx.config import settings
    from mtx.config.value_types import FILE_ENDING

    overrides = [word for word in words if settings.is_override(word)]
    names = [word for word in words if word not in overrides]
    if not names:
        raise UsageError("expected a file of parallel text", "mtx init memory.tmx")
    for name in names:
        if FILE_ENDING.search(name) and not settings.exists(Path(name)):
            raise UsageError(f"{name}: no such file")
    keys = {override.partition("=")[0] for override in overrides}
    name = names[0] if output == Path(_OUTPUT) else output.stem
    more = [] if "run_dir" in keys else [f"run_dir={run_dir_for(name)}"]
    if all(map(is_text, names)):
        return [*names, *overrides, *more]
    if not {"data.src", "data.tgt"} <= keys:
        text = f"{names[0]}: which languages it has is not known"
        raise UsageError(text, mtx_command("init", *names, "data.src=en", "data.tgt=de"))
    return ["own-text", f"data.train={','.join(names)}", *overrides, *more]


def _lines(resolved: "Resolved", report: dict[str, Any], files: list[str]) -> Iterator[str]:
    """The lines of the configuration."""
    from mtx.config import settings

    config, data, left = resolved.config, report["data"], report["time"]
    most = "at most " if left["may_end_sooner"] else ""
    yield printable(f"# Made by: {mtx_command('init', *files)}")
    yield printable(f"# It learns to translate {config.data.src} to {config.data.tgt} from {data['kept']:,} pairs.")
    for name, held in [("validation", data["valid"]), *data["tests"].items()]:
        origin = "which are held out of the training text" if held["held_out"] else "of a file of their own"
        yield printable(f"# {name}: {held['pairs']:,} pairs, {origin}")
    duration, device = format_duration(left["total_s"]), report["run"]["device"]
    yield f"# Training takes {most}about {duration} on this machine ({device})."
    yield "# `mtx config KEY` explains a key, such as `mtx config data.train`."
    reasons = {key: origin for key, origin in resolved.origins.items() if origin.startswith(_CHOSEN)}
    own = [key for key in resolved.origins if resolved.is_explicit(key) and key not in reasons]
    yield from settings.part_as_yaml(config, own).removesuffix("\n").split("\n")
    if reasons:
        yield ""
        why = max(reasons.values(), key=lambda reason: reason.startswith("for"))
        yield f"# Chosen {why}; what you write above stays. Now it is:"
        yield from (f"#   {line}" for line in settings.part_as_yaml(config, reasons).removesuffix("\n").split("\n"))
