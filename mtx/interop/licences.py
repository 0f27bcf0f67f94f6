"""What a model card says about licences: of the model (`model.licence`) and of its training text (`data.licence`).

Both are the user's own words, an SPDX identifier or free text; mtx checks nothing about them. They are stored in the
entry `run` of scores.json. Flow: settings, or scores.json of a model directory -> `Licences` -> cards.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mtx.config.schema import Config

# The identifiers of https://huggingface.co/docs/hub/repositories-licenses that text and models are published under.
_HUB = {
    "afl-3.0", "agpl-3.0", "apache-2.0", "artistic-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear",
    "bsl-1.0", "c-uda", "cc", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0",
    "cc-by-nc-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0",
    "cdla-sharing-1.0", "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1", "eupl-1.2", "gfdl", "gpl", "gpl-2.0",
    "gpl-3.0", "isc", "lgpl", "lgpl-2.1", "lgpl-3.0", "lppl-1.3c", "mit", "mpl-2.0", "ms-pl", "ncsa", "odbl", "odc-by",
    "ofl-1.1", "openrail", "osl-3.0", "pddl", "postgresql", "unknown", "unlicense", "wtfpl", "zlib",
}  # fmt: skip


@dataclass(frozen=True)
class Licences:
    """The licences that a user has given; None for one that is not given."""

    model: str | None = None
    data: str | None = None

    @classmethod
    def of_config(cls, config: Config) -> "Licences":
        return cls(config.model.licence, config.data.licence)

    @classmethod
    def of_scores(cls, scores: Mapping[str, Any] | None) -> "Licences":
        """Those in the scores.json of a model directory, which may be a stranger's; a value of another type is none."""
        run = (scores or {}).get("run")
        values = [run.get(key) if isinstance(run, Mapping) else None for key in ("licence", "data_licence")]
        return cls(*(value if isinstance(value, str) and value else None for value in values))

    def stored(self) -> dict[str, str]:
        """The entries for scores.json; none for a licence that is not given."""
        values = {"licence": self.model, "data_licence": self.data}
        return {key: value for key, value in values.items() if value is not None}

    def metadata(self) -> dict[str, str]:
        """The hub's metadata: `license` with an identifier that it knows, or `other` with the name as it was given."""
        if self.model is None:
            return {}
        if (name := _on_hub(self.model)) is not None:
            return {"license": name}
        return {"license": "other", "license_name": _on_one_line(self.model)}

    def sentence(self) -> str:
        """What the card says, in words."""
        model = "not given" if self.model is None else _as_code(self.model)
        binds = "may bind whoever passes the model on"
        if self.data is not None:
            return f"Licence of the model: {model}. Licence of the training text: {_as_code(self.data)}; it {binds}."
        return f"Licence of the model: {model}; that of the training text is not given, and {binds}."


def _on_hub(licence: str) -> str | None:
    """The hub's identifier for an SPDX identifier, which has another case and sometimes a longer ending."""
    name = re.sub("-(only|or-later)$", "", licence.strip().lower())
    return next((known for known in (name, re.sub(r"-1\.\d$", "", name)) if known in _HUB), None)


def _on_one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:200]


def _as_code(text: str) -> str:
    """Text of a user as Markdown code, so that nothing in it is markup."""
    return f"`{_on_one_line(text).replace('`', ' ')}`"
