"""A translation memory is trained on by its name alone: its languages are found, and the newest translations count."""

import json
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from mtx.config import settings
from tests.integration.commands import TINY, mtx, pairs

SHORT = [setting for setting in TINY if not setting.startswith(("data.src", "data.tgt"))]


def write_memory(path: Path, num_units: int = 300) -> Path:
    def variant(language: str, text: str, date: str = "20250101T000000Z") -> str:
        return f'<tuv xml:lang="{language}" changedate="{date}"><seg>{escape(text)}</seg></tuv>'

    units = [variant("en-US", src) + variant("de-DE", tgt) for src, tgt in pairs(range(100, 100 + num_units))]
    units += [variant("en-US", "not translated"), units[0].replace("2025", "2024").replace("eins", "falsch")]
    body = "\n".join(f"<tu>{unit}</tu>" for unit in units)
    path.write_text(f'<tmx version="1.4"><header srclang="en-US"/><body>\n{body}\n</body></tmx>', encoding="utf-8")
    return path


def test_a_memory_is_a_recipe_of_its_own(tmp_path: Path) -> None:
    memory, run = write_memory(tmp_path / "my memory.tmx"), tmp_path / "run"
    command = ["train", memory, *SHORT, f"run_dir={run}"]
    first = mtx(*command)
    assert first.returncode == 0, first.stderr.decode()
    assert f"train own-text 'data.train={memory}' data.src=en data.tgt=de ".encode() in first.stderr
    assert first.stdout.startswith(b"heldout BLEU ")
    report = json.loads((run / "data/report.json").read_text(encoding="utf-8"))
    assert report["read"] == 302 and report["kept"] + report["held_out"] == 300
    dropped = {reason: entry["pairs"] for reason, entry in report["dropped"].items()}
    assert dropped == {"not translated": 1, "older translation": 1}
    assert report["dropped"]["older translation"]["example"]["tgt"].startswith("falsch")
    again = mtx(*command)
    assert again.returncode == 0 and again.stdout == first.stdout


@pytest.mark.parametrize("given, languages", [([], "en de"), (["data.src=de", "data.tgt=en"], "de en")])
def test_languages_that_are_given_count(given: list[str], languages: str, tmp_path: Path) -> None:
    memory = write_memory(tmp_path / "m.tmx", 20)
    shown = mtx("config", memory, memory, *given)
    assert shown.returncode == 0, shown.stderr.decode()
    (tmp_path / "shown.yaml").write_bytes(shown.stdout)
    config = settings.resolve(str(tmp_path / "shown.yaml"), []).config
    assert f"{config.data.src} {config.data.tgt}" == languages and config.data.train == (str(memory), str(memory))
    assert config.run_dir == "runs/m"


def test_a_folder_of_a_hundred_files_of_four_kinds_is_trained_on_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "memories"
    for number in range(100):
        place = folder / f"client {number % 3}" / str(number)
        place.mkdir(parents=True)
        texts = pairs(range(100 + 8 * number, 108 + 8 * number))
        match number % 4:
            case 0:
                units = (f"<source>{src}</source><target>{tgt}</target>" for src, tgt in texts)
                body = "".join(f'<trans-unit id="{at}">{unit}</trans-unit>' for at, unit in enumerate(units))
                file = f'<file source-language="en" target-language="de"><body>{body}</body></file>'
                (place / "job.xlf").write_text(f'<xliff version="1.2">{file}</xliff>', encoding="utf-8")
            case 1:
                (place / "pairs.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in texts), encoding="utf-8")
            case 2:
                messages = "".join(f'\nmsgid "{src}"\nmsgstr "{tgt}"\n' for src, tgt in texts)
                (place / "de.po").write_text(f'msgid ""\nmsgstr ""\n{messages}', encoding="utf-8")
            case _:
                tuv = '<tuv xml:lang="en"><seg>{}</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv>'
                body = "".join(f"<tu>{tuv.format(*pair)}</tu>" for pair in texts)
                (place / "m.tmx").write_text(f'<tmx version="1.4"><header/><body>{body}</body></tmx>', encoding="utf-8")
    (folder / "notes.docx").write_bytes(b"PK")
    command = ["train", "memories", *SHORT]
    first = mtx(*command, cwd=tmp_path, draws=True)
    messages = first.stderr.decode()
    assert first.returncode == 0, messages
    assert "1 other file skipped, such as notes.docx" in messages and "data.train=memories/" in messages
    assert messages.count("of memories/") == 3, "its languages, and the two sets that are held out"
    assert first.stdout.startswith(b"heldout BLEU ")
    run = tmp_path / "runs/memories"
    [corpus] = json.loads((run / "data/report.json").read_text(encoding="utf-8"))["corpora"]
    assert (corpus["name"], corpus["read"], corpus["dropped"]) == ("100 files of memories/", 800, {})
    for page in (run / "report.html", run / "model/README.md"):
        text = page.read_text(encoding="utf-8")
        assert "100 files of memories/" in text and "de.po" not in text
    again = mtx(*command, cwd=tmp_path)
    assert again.returncode == 0 and again.stdout == first.stdout
