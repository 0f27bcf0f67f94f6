"""Answers a mistyped command line with the words that would have been right."""

import os
from itertools import chain
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
        start = next((number for number, word in enumerate(words) if word.startswith(error.option_name)), len(words))
        option, value, _ = _read_option(words[start:] or [error.option_name])  # it is -m for -model, and for -qm
        if alternative := _find_alternative(option, value, command, words):
            return UsageError(f"no option {option}", alternative)
    names = error.ctx.command_path.split()[1:] if error.ctx else []
    return UsageError(" ".join(error.format_message().split()).rstrip("."), mtx_command(*names, "--help"))


def _find_alternative(option: str, value: str, command: Any, words: list[str]) -> str:
    """What mtx has instead of an unknown option: an option or argument of the command, or settings; "" if nothing."""
    from mtx.config.messages import NOT_THERE, keys_meant
    from mtx.config.schema import key_names

    name = _name_of(option)
    if name in NOT_THERE:
        return NOT_THERE[name]
    parameter = _find_parameter(option, value, command)
    if parameter and parameter.param_type_name == "argument":
        return mtx_command(command.name, *_without_argument_names(command, words))
    if parameter:
        return f"{parameter.opts[-1]} {'cuda' if parameter.name == 'device' else parameter.metavar or ''}"
    takes_settings = any(parameter.name == "settings" for parameter in command.params)
    settings = " ".join(f"{key}=VALUE" for key in keys_meant(name, key_names()) if takes_settings)
    return settings and f"settings are written key=value: {settings}"


def _read_option(words: list[str]) -> tuple[str, str, list[str]]:
    """The first word as an option, its value (empty if there is none), and the words after both."""
    option, has_value, value = words[0].partition("=")
    if has_value:
        return option, value, words[1:]
    return option, "".join(words[1:2]), words[2:]


def _name_of(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _find_parameter(option: str, value: str, command: Any) -> Any:
    """The option or argument that an unknown option with a value means; None if nothing.

    `--src` may be a file or a language: it is a language if no file has its name.
    """
    from mtx.config.messages import keys_meant

    parameters = {parameter.name: parameter for parameter in command.params}
    candidates = [parameters[name] for name in keys_meant(_name_of(option), parameters)]
    options = [parameter for parameter in candidates if parameter.param_type_name != "argument"]
    if options and not os.path.lexists(value):
        return options[0]
    return candidates[0] if candidates else None


def _without_argument_names(command: Any, words: list[str]) -> list[str]:
    """The words after a command, in which options that mean its arguments are arguments."""
    arguments = {argument.name: list[str]() for argument in command.params if argument.param_type_name == "argument"}
    other_words = list[str]()
    remaining = words[words.index(command.name) + 1 :]
    while remaining:
        option, value, words_after = _read_option(remaining)
        parameter = _find_parameter(option, value, command) if option.startswith("-") else None
        if parameter and parameter.name in arguments:
            arguments[parameter.name].append(value or parameter.metavar.strip("[]."))
            remaining = words_after
        else:
            other_words.append(remaining.pop(0))
    first_argument, *later_arguments = arguments.values()
    return [*first_argument, *other_words, *chain.from_iterable(later_arguments)]


def refuse_misplaced(command: Any, values: dict[str, Any], words: list[str]) -> None:
    """Raise UsageError if MODEL is not the first argument, or if FILE is a text.

    Args:
        values: the arguments and options, as they were read from the `words` after the command.
    """
    model = values["model"]
    file = values.get("file")
    arguments = (values.get(argument.name) for argument in command.params if argument.param_type_name == "argument")
    for word in chain.from_iterable(value if isinstance(value, list) else [str(value or "")] for value in arguments):
        if model and is_model(word) and not is_model(model):
            words.remove(word)
            words.insert(words.index(model), word)
            hint = mtx_command(command.name, *words)
            if "file" in values and _is_sentence(model):
                hint = _pipe(model, command, words)
            raise UsageError(f"{model}: not a model; MODEL comes first", hint)
    if file and _is_sentence(str(file)):
        raise UsageError(f"{file}: no such file", _pipe(str(file), command, words))


def _is_sentence(argument: str) -> bool:
    """Whether an argument has several words, and no file has its name or a similar one."""
    return len(argument.split()) > 1 and not (os.path.lexists(argument) or did_you_mean(Path(argument)))


def _pipe(text: str, command: Any, words: list[str]) -> str:
    """A command with a text from stdin in place of its FILE."""
    other_words = [word for word in words if word != text]
    return f"{shell_command('echo', text)} | {mtx_command(command.name, *other_words)}"


def refuse_name(words: list[str]) -> None:
    """Raise UsageError for a model or a text in the place of a command."""
    from mtx.config.settings import is_name

    if is_name(words[0]):
        command = "translate" if is_model(words[0]) else "train"
        raise UsageError(f"{words[0]}: not a command", mtx_command(command, *words))
