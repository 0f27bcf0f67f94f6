"""Answers a mistyped command line with the words that would have been right."""

import os
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from mtx.errors import UsageError
from mtx.formatting import did_you_mean, mtx_command, shell_command
from mtx.storage.run_files import is_model


def explain(error: Any, words: list[str]) -> UsageError:
    """The parser's error in our words; the help shows the right form of what is missing or unknown in `words`."""
    command: Any = error.ctx and error.ctx.command
    if hasattr(error, "param_type"):
        name = error.param.metavar if error.param.param_type_name == "argument" else error.param.opts[-1]
        return UsageError(f"{name} is missing: {error.param.help.rstrip('.')}", command.examples[0])
    if hasattr(error, "possibilities"):  # unlike an option without its value
        typed = [word.partition("=")[0] for word in words if word.startswith(error.option_name)]
        option = typed[0] if typed else error.option_name  # it is -m for -model, and for -qm
        if instead := _instead_of(option, command, words):
            return UsageError(f"no option {option}", instead)
    names = error.ctx.command_path.split()[1:] if error.ctx else []
    return UsageError(" ".join(error.format_message().split()).rstrip("."), mtx_command(*names, "--help"))


def _instead_of(option: str, command: Any, words: list[str]) -> str:
    """What mtx has instead of an unknown option: an option or argument of the command, or settings; "" if nothing."""
    from mtx.config.messages import NOT_THERE, keys_meant
    from mtx.config.schema import key_names

    name = option.lstrip("-").replace("-", "_")
    parameters = {parameter.name: parameter for parameter in command.params}
    if name in NOT_THERE:
        return NOT_THERE[name]
    if meant := keys_meant(name, parameters):
        parameter = parameters[meant[0]]
        if parameter.param_type_name == "argument":
            return mtx_command(command.name, *_without_names(command, words))
        return f"{parameter.opts[-1]} {'cuda' if parameter.name == 'device' else parameter.metavar or ''}"
    values = " ".join(f"{key}=VALUE" for key in keys_meant(name, key_names()) if "settings" in parameters)
    return values and f"settings are written key=value: {values}"


def _without_names(command: Any, words: list[str]) -> list[str]:
    """The words after a command, in which options that mean its arguments are arguments."""
    from mtx.config.messages import keys_meant

    arguments = {each.name: list[str]() for each in command.params if each.param_type_name == "argument"}
    others = list[str]()
    remaining = iter(words[words.index(command.name) + 1 :])
    for word in remaining:
        option, _, value = word.partition("=")
        meant = keys_meant(option.lstrip("-"), arguments) if option.startswith("-") else []
        if meant:
            arguments[meant[0]].append(value or next(remaining, ""))
        else:
            others.append(word)
    first, *rest = arguments.values()
    return [*first, *others, *chain.from_iterable(rest)]


def refuse_misplaced(command: str, model: str, file: Path | None, words: list[str]) -> None:
    """Raise UsageError if MODEL is not the first argument, or if FILE is a text.

    Args:
        model, file: what was read from the `words` after the command.
    """
    for before, word in pairwise(["", *words]):
        if is_model(word) and not is_model(model) and not before.startswith("-"):
            words.remove(word)
            words.insert(words.index(model), word)
            raise UsageError(f"{model}: not a model; MODEL comes first", mtx_command(command, *words))
        if Path(word) == file and len(word.split()) > 1 and not (os.path.lexists(word) or did_you_mean(file)):
            words.remove(word)
            help = f"{shell_command('echo', word)} | {mtx_command(command, *words)}"
            raise UsageError(f"{word}: no such file", help)


def refuse_name(words: list[str]) -> None:
    """Raise UsageError for what `mtx train` takes, in the place of a command."""
    from mtx.config.settings import is_name

    if is_name(words[0]):
        raise UsageError(f"{words[0]}: not a command", mtx_command("train", *words))
