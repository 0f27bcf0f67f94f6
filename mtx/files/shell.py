"""Commands that mtx prints for users to paste into a shell: its own, and those of other programs.

Every command with a path or another word of the user in it is made here, so that spaces, quotes, line breaks and a
leading dash do not change what it means.
"""

import importlib.metadata
import os
import re
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
    """The command that installs packages which are not there, in the versions that mtx's own metadata asks for.

    Naming the packages works wherever mtx was installed from; naming an extra of mtx needs a release or a checkout.
    """
    pip = Path(sys.executable).with_name("pip")
    program = ("pip",) if _is_on_path("pip", pip) else (sys.executable, "-m", "pip")
    return shell_command(*program, "install", *map(requirement, packages))


def requirement(package: str) -> str:
    """A package with the versions that an extra of the installed mtx needs, such as `ctranslate2>=4.8`."""
    try:
        lines = importlib.metadata.requires("mtx-translate") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        lines = []
    names = (line.partition(";")[0].strip() for line in lines)
    return next((name for name in names if re.match(r"[\w.-]+", name)[0] == package), package)  # type: ignore[index]


def program_name() -> str:
    """How the user calls this program: `mtx` if the shell finds it by that name."""
    called = Path(sys.argv[0])
    if _is_on_path("mtx", called, Path(sys.executable).with_name("mtx")):  # other programs have that name too
        return "mtx"
    if called.name == "mtx" and called.is_file():
        return shell_command(called)
    return shell_command(sys.executable, "-m", "mtx")


def _is_on_path(name: str, *ours: Path) -> bool:
    """Whether the shell finds one of `ours` by this name."""
    on_path = shutil.which(name)
    return on_path is not None and Path(on_path).resolve() in [path.resolve() for path in ours]


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
