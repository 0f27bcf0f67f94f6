"""Text for people (commands to paste into a shell, numbers, sizes and durations), and rounding up.

Every command that contains a path or another word of the user is made here, so that spaces, quotes and a leading dash
do not change its meaning. This module imports nothing of mtx, so that every folder may import it.
"""

import contextlib
import difflib
import itertools
import math
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

# ANSI styles: bold in red, yellow, cyan and magenta, which are legible on light and dark
_STYLES = {"error": "1;31", "warning": "1;33", "help": "1;36", "advice": "1;36", "hint": "1;36", "verdict": "1;35"}
_LABEL = re.compile(rf"^ *({'|'.join(_STYLES)}):", re.MULTILINE)


def shell_command(*words: str | Path) -> str:
    """A command that a shell such as bash or zsh reads as exactly these words.

    Args:
        words: a `Path` names a file or directory. `./` goes before one that could be taken for something else: an
            option, a setting (key=value), a recipe, or somebody's home directory.
    """
    return " ".join(shlex.quote(_path_text(word) if isinstance(word, Path) else word) for word in words)


def mtx_command(*words: str | Path) -> str:
    """A command of mtx, as `shell_command`, with the program as this user calls it."""
    return f"{program_name()} {shell_command(*words)}"


def install_command(*packages: str) -> str:
    """The command that installs missing packages.

    Naming packages works however mtx was installed; naming an extra of mtx would need a release or a checkout.
    """
    return shell_command(sys.executable, "-m", "pip", "install", *packages)


def program_name() -> str:
    """How the user calls this program: `mtx` if the shell finds it by that name."""
    path_of_mtx = shutil.which("mtx")  # other programs have the same name
    if path_of_mtx and Path(path_of_mtx).resolve() == Path(sys.executable).with_name("mtx").resolve():
        return "mtx"
    return shell_command(sys.executable, "-m", "mtx")


def _path_text(path: Path) -> str:
    text = str(path)
    is_plain = path.is_absolute() or ("/" in text and text[0] not in "-~" and "=" not in text)
    return text if is_plain else f"./{text}"


def did_you_mean(path: Path) -> str:
    """The end of a message about a missing file: the most similar name next to it; empty if none is, or it is there."""
    if os.path.lexists(path):
        return ""
    names = list[str]()
    with contextlib.suppress(OSError, ValueError):
        names = [entry.name for entry in itertools.islice(os.scandir(path.parent), 1000)]
    cutoff = 0.75 if len(path.name) > 2 else 0.5  # one letter of two
    similar = difflib.get_close_matches(path.name, names, 3, cutoff)
    if not similar:
        return ""
    likeliest = max(similar, key=lambda name: len(os.path.commonprefix([name, path.name])))
    return f", did you mean {path.with_name(likeliest)}?"


def file_name(path: str) -> str:
    """The last part of a path, with the slash at the end of a folder."""
    return re.sub(r".*[/\\](?=.)", "", path)


def divide_up(dividend: int, divisor: int) -> int:
    """The quotient rounded up to a whole number, exact for integers of any size."""
    return -(-dividend // divisor)


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple that is at least the number."""
    return divide_up(number, multiple) * multiple


def counted(number: int, noun: str) -> str:
    """A number of things, such as `1 line` or `2,000 lines`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_size(num_bytes: int) -> str:
    """A number of bytes in MB, such as `7,400 MB`."""
    return f"{num_bytes / 1e6:,.0f} MB"


def format_duration(seconds: float) -> str:
    """A number of seconds as 45 s, 12 min or 3 h 20 min; "unknown" if it is not finite."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def in_color(text: str, stream: Any, style: str = "1;32") -> str:
    """The text in an ANSI style, by default bold green, if the stream is a terminal.

    NO_COLOR and FORCE_COLOR in the environment override.
    """
    is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    if os.environ.get("NO_COLOR") or not (is_terminal or os.environ.get("FORCE_COLOR")):
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def color_labels(text: str, stream: Any) -> str:
    """A message with its label, such as `error:`, in colour where `in_color` allows it."""
    return _LABEL.sub(lambda match: in_color(match[0], stream, _STYLES[match[1]]), text)
