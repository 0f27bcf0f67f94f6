"""The help of `mtx` and of its commands: groups, examples, and which options a help hides; misplaced arguments.

Typer's own groups and colours need rich, which `mtx --help` does not import.
"""

import os
import re
import sys
from collections import defaultdict
from typing import Any

from typer.core import TyperCommand, TyperGroup

from mtx.commands.mistyped import refuse_misplaced, refuse_name
from mtx.formatting import in_color
from mtx.storage.run_files import is_model

# The groups of `mtx --help` and their commands, in this order, with the examples in the help of each command
EXAMPLES = {
    "Train": {
        "train": [
            "mtx train demo",
            "mtx train my.tsv",
            "mtx train my.tsv --dry-run",
            "mtx train runs/my",
        ],
        "corpora": [
            "mtx corpora en-sw",
            "mtx corpora en-sw Tatoeba TED2020@v1 -o text",
            "mtx corpora en-de --testset wmt14/full -o sets",
            "mtx corpora en-fr --hub Helsinki-NLP/opus_books -o text",
        ],
        "status": [
            "mtx status",
            "mtx status runs/my",
        ],
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
        "serve": [
            "mtx serve runs/my",
            "mtx serve runs/en-de runs/de-en --host 0.0.0.0 --api-key-file keys",
        ],
    },
    "Evaluate": {
        "evaluate": [
            "mtx evaluate runs/my",
            "mtx evaluate --hyp output.txt --ref reference.txt",
            "mtx evaluate runs/my -m comet --metric-python comet/bin/python",
        ],
        "compare": ["mtx compare runs/my runs/second"],
        "report": ["mtx report runs/my runs/second -o both.html"],
    },
    "Improve": {
        "back-translate": ["mtx back-translate runs/de-en more.de -o bt.tsv"],
        "distil": [
            "mtx distil runs/my data.mono=more.en",
            "mtx distil runs/my+runs/second run_dir=runs/small model.preset=student-small",
            "mtx distil http://127.0.0.1:5000 data.mono=more.en data.src=en data.tgt=de",
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
        "import": [
            "mtx import hf:Helsinki-NLP/opus-mt-en-de -o models/en-de",
            "mtx import hf:facebook/nllb-200-distilled-600M --languages en,yo -o models/yo",
        ],
    },
}
FIRST_STEPS = [
    "mtx trains a translation model from parallel text with one command.",
    "",
    "  mtx train demo     train a first model in a few minutes, without a download",
    "  mtx train my.tsv   train on your own text: source TAB target, one pair a line",
    "  mtx --help         list all commands",
]
# The options of `mtx` that each of its commands takes too
GLOBAL = "Global options"
# The groups of options in the help of a command that has many
_GROUPS = {
    "Output": "output as_json alignment form n_best",
    "Search": "beam_size length_penalty max_length prefix",
    "Sampling": "temperature top_k top_p epsilon mbr seed",
    "Performance": "threads engine precision device batch_tokens",
    "Long jobs": "shard",
    GLOBAL: "quiet verbose color help_all help",
}
GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}
# What only --help-all shows
_HIDDEN = {
    "translate": "prefix look_below top_k top_p epsilon mbr seed batch_tokens",
    "back-translate": "to from_ length_penalty top_k top_p epsilon precision batch_tokens",
    "evaluate": "from_ beam_size length_penalty batch_tokens protocol fit_quality",
    "compare": "to from_ as_json",
    "distil": "to from_ threads engine batch_tokens",
    "logprob": "to from_ length_penalty",
    "encode": "to from_ threads precision",
    "attention": "to from_",
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
        rows = defaultdict[str, list[Any]](list)
        shown = [parameter for parameter in self.get_params(ctx) if not getattr(parameter, "hidden", False)]
        for parameter in shown:
            if parameter.param_type_name == "argument":
                rows["Arguments"].append((parameter.metavar, parameter.help))
                continue
            name, description = parameter.get_help_record(ctx)
            for pattern, text in _RANGES.items():
                description = re.sub(pattern, text, description)
            group = GROUP_OF.get(parameter.name, "Options")
            has_groups = group == GLOBAL or len(shown) >= 14
            rows[group if has_groups else "Options"].append((name, description))
        for title in filter(rows.get, ("Arguments", "Options", *_GROUPS)):
            with formatter.section(_title(title)):
                formatter.write_dl(rows[title])


class Command(_Help, TyperCommand):
    """A command whose help ends with examples; it takes the global options too."""

    def __init__(self, name: str | None, **attributes: Any):
        super().__init__(name, **attributes)
        for parameter in self.params:
            if parameter.name in _HIDDEN.get(name or "", "").split():
                parameter.hidden = True  # type: ignore[attr-defined]

    @property
    def examples(self) -> list[str]:
        """The examples of the command."""
        return next(lines for group in EXAMPLES.values() for name, lines in group.items() if name == self.name)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command; see `refuse_misplaced`."""
        words = [*args]
        remaining_args = super().parse_args(ctx, args)
        model = ctx.params.get("model")
        file = ctx.params.get("file")
        is_wrong = (model and not is_model(model)) or (file and not os.path.lexists(file))
        if is_wrong and not ctx.resilient_parsing:  # if it is true, a shell asks for completions
            refuse_misplaced(self, ctx.params, words)
        return remaining_args

    def get_params(self, ctx: Any) -> list[Any]:
        """The command's own parameters, and the global options."""
        *parameters, help_option = super().get_params(ctx)
        options = ctx.find_root().command.params
        return [*parameters, *(option for option in options if GROUP_OF.get(option.name) == GLOBAL), help_option]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The arguments as their metavars write them, with brackets where they are optional."""
        arguments = (parameter for parameter in self.params if parameter.param_type_name == "argument")
        return ["[OPTIONS]", *(argument.metavar or "" for argument in arguments)]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one a line and never wrapped, so that they can be pasted."""
        with formatter.section(_title("Examples")):
            for line in self.examples:
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")


class Group(_Help, TyperGroup):
    """The `mtx` command, whose help lists the commands in groups."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; see `refuse_name`."""
        if args[0] not in self.commands and not ctx.resilient_parsing:
            refuse_name(args)
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write each group with the whole first sentence about each of its commands, and then the options."""
        for title, names in EXAMPLES.items():
            with formatter.section(_title(title)):
                descriptions = ((name, " ".join((self.commands[name].help or "").split())) for name in names)
                formatter.write_dl(
                    [(name.ljust(14), re.split(r"\.(?:\s|$)", description)[0]) for name, description in descriptions]
                )
        super().format_options(ctx, formatter)


def _title(text: str) -> str:
    return in_color(text, sys.stdout)
