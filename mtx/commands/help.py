"""How `mtx --help` and `mtx COMMAND --help` look: commands in groups with whole summaries, and examples at the end.

Plain text, so that neither a terminal nor the library rich is needed, and nothing heavy is loaded.
"""

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

# The groups of `mtx --help` in their order, and for each command what its help shows as an example.
EXAMPLES: dict[str, dict[str, list[str]]] = {
    "Train": {
        "train": [
            "mtx train demo",
            "mtx train my.tsv",
            "mtx train own-text data.train=my.tsv data.src=en data.tgt=de --dry-run",
            "mtx train runs/mine",
        ],
        "distil": [
            "mtx distil runs/mine data.mono=more.en",
            "mtx distil runs/mine+runs/second run_dir=runs/small model.preset=student-small",
        ],
        "prepare": [
            "mtx prepare own-text data.train=my.tsv data.src=en data.tgt=de",
            "mtx prepare multi30k-en-de --download-only",
        ],
        "config": [
            "mtx config",
            "mtx config demo",
            "mtx config training.learning_rate",
            "mtx config memory.tmx > mtx.yaml",
        ],
        "status": ["mtx status runs/mine"],
        "doctor": ["mtx doctor"],
    },
    "Use": {
        "translate": [
            "mtx translate runs/mine input.txt -o output.txt",
            'echo "A man is reading a book." | mtx translate runs/mine',
        ],
        "serve": ["mtx serve runs/mine", "mtx serve runs/en-de runs/de-en --host 0.0.0.0 --api-key-file keys"],
        "back-translate": ["mtx back-translate runs/de-en more.de -o bt.tsv"],
        "logprob": ["mtx logprob runs/mine input.txt output.txt"],
        "encode": ["mtx encode runs/mine input.txt -o vectors.npy"],
    },
    "Judge": {
        "evaluate": ["mtx evaluate runs/mine", "mtx evaluate --hyp output.txt --ref reference.txt"],
        "compare": ["mtx compare runs/mine runs/second"],
        "report": ["mtx report runs/mine runs/second -o both.html"],
        "attention": ['mtx attention runs/mine "A man is reading a book." -o attention.html'],
    },
    "Exchange": {
        "export": [
            "mtx export runs/mine --to ctranslate2 --precision int8",
            "mtx export runs/mine --to huggingface -o exported",
            "mtx export runs/mine --to argos -o en_de.argosmodel",
        ],
        "import": ["mtx import opus-mt-en-de -o models/en-de"],
    },
}


class Command(TyperCommand):
    """A command whose help ends with examples."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, one a line and never wrapped, so that they can be pasted."""
        examples = next(group[self.name] for group in EXAMPLES.values() if self.name in group)
        with formatter.section("Examples"):
            formatter.write("".join(f"{' ' * formatter.current_indent}{line}\n" for line in examples))


class Group(TyperGroup):
    """The `mtx` command, whose help lists the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each group with the whole first sentence about each of its commands."""
        for title, names in EXAMPLES.items():
            with formatter.section(title):
                formatter.write_dl([(name, _first_sentence(self.commands[name].help or "")) for name in names])


def _first_sentence(text: str) -> str:
    """The first sentence of a docstring on one line, without its full stop."""
    return re.split(r"\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0]
