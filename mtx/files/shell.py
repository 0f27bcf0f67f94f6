"""Commands that mtx prints for users to paste into a shell: its own, and those of other programs.

Every command with a path or another word of the user in it is made here, so that spaces, quotes, line breaks and a
leading dash do not change what it means.
"""

import os
import shlex
import shutil
import sys
from pathlib import Path


def shell_command(*words: str | Path) -> str:
    """A command on one line that a shell such as bash or zsh reads as exactly these words.

    Args:
        words: a `Path` names a file or directory. `./` goes before one that could be taken for something else: an
            option, a setting (key=value), a recipe, or somebody's home directory.
    """
    return " ".join(_quoted(_path_text(word) if isinstance(word, Path) else word) for word in words)


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
    called = Path(sys.argv[0])
    found = shutil.which("mtx")  # other programs have that name too
    ours = [path.resolve() for path in (called, Path(sys.executable).with_name("mtx"))]
    if found and Path(found).resolve() in ours:
        return "mtx"
    if called.name == "mtx" and called.is_file():
        return shell_command(called)
    return shell_command(sys.executable, "-m", "mtx")


def _path_text(path: Path) -> str:
    text = str(path)
    is_plain = path.is_absolute() or ("/" in text and text[0] not in "-~" and "=" not in text)
    return text if is_plain else f"./{text}"


def _quoted(word: str) -> str:
    """A word as a shell reads it; what cannot be shown on a terminal is written as bytes, in ANSI-C quoting."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = (chr(b) if 32 <= b < 127 and b not in b"'\\" else f"\\x{b:02x}" for b in os.fsencode(word))
    return f"$'{''.join(escaped)}'"
