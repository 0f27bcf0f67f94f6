"""How things are written for people: commands to paste into a shell, numbers, sizes, durations and tables.

Every command with a path or another word of the user in it is made here, so that spaces, quotes, line breaks and a
leading dash do not change what it means.
"""

import math
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal


def shell_command(*words: str | Path) -> str:
    """A command on one line that a shell such as bash or zsh reads as exactly these words.

    Args:
        words: a `Path` names a file or directory. `./` goes before one that could be taken for something else: an
            option, a setting (key=value), a recipe, or somebody's home directory.
    """
    return " ".join(_quote(_path_text(word) if isinstance(word, Path) else word) for word in words)


def mtx_command(*words: str | Path) -> str:
    """A command of mtx, as `shell_command`, with the program as this user calls it."""
    return f"{program_name()} {shell_command(*words)}"


def install_command(*packages: str) -> str:
    """The command that installs packages which are not there.

    Naming the packages works wherever mtx was installed from; naming an extra of mtx needs a release or a checkout.
    """
    return shell_command(sys.executable, "-m", "pip", "install", *packages)


def program_name() -> str:
    """How the user calls this program: `mtx` if the shell finds it by that name."""
    found = shutil.which("mtx")  # other programs have that name too
    if found and Path(found).resolve() == Path(sys.executable).with_name("mtx").resolve():
        return "mtx"
    return shell_command(sys.executable, "-m", "mtx")


def _path_text(path: Path) -> str:
    text = str(path)
    is_plain = path.is_absolute() or ("/" in text and text[0] not in "-~" and "=" not in text)
    return text if is_plain else f"./{text}"


def _quote(word: str) -> str:
    """A word as a shell reads it; what cannot be shown on a terminal is written as bytes, in ANSI-C quoting."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in os.fsencode(word))
    return f"$'{''.join(escaped)}'"


def counted(number: int, noun: str) -> str:
    """A number of things, such as `1 line` or `2,000 lines`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


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


Style = Literal["text", "markdown", "latex"]
_NAMES = "backslash asciitilde asciicircum less greater bar quotedbl"  # of LaTeX, after \text
_ESCAPES: dict[Style, dict[int, str]] = {
    "text": {},
    "markdown": str.maketrans({"\\": "\\\\", "|": "\\|"}),
    "latex": str.maketrans(
        {character: f"\\{character}" for character in "&%$#_{}"}
        | {character: rf"\text{name}{{}}" for character, name in zip('\\~^<>|"', _NAMES.split(), strict=True)}
        | {"±": r"$\pm$"}
    ),
}


def draw_table(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """The lines of a table whose first column holds names and is aligned left, all others right.

    Each of `rows` has as many cells as `head`. LaTeX needs no package; its special characters are escaped.
    """
    cells = [[cell.translate(_ESCAPES[style]) for cell in row] for row in (head, *rows)]
    if style == "markdown":
        cells.insert(1, [":--", *["--:"] * (len(head) - 1)])
    columns: list[list[str]] = []
    for column in zip(*cells, strict=True):
        width = max(map(len, column))
        columns.append([cell.rjust(width) if columns else cell.ljust(width) for cell in column])
    padded = zip(*columns, strict=True)
    match style:
        case "text":
            return ["  ".join(row).rstrip() for row in padded]
        case "markdown":
            return [f"| {' | '.join(row)} |" for row in padded]
    first, *others = [rf"{' & '.join(row)} \\" for row in padded]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    return [begin, r"\hline", first, r"\hline", *others, r"\hline", r"\end{tabular}"]
