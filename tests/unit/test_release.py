"""scripts/package/release.py: the notes of a version, and what its files may hold."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts.package import release

ROOT = Path(__file__).parents[2]
IN_WHEEL = ("mtx/__init__.py", "mtx_translate-1.0.0.dist-info/licenses/LICENSE")
IN_SDIST = ("LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt", "mtx/__init__.py")


def write_files(directory: Path, in_wheel: tuple[str, ...], in_sdist: tuple[str, ...], size: int = 1) -> list[Path]:
    wheel, sdist = directory / "mtx_translate-1.0.0-py3-none-any.whl", directory / "mtx_translate-1.0.0.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in in_wheel:
            archive.writestr(name, "a")
    with tarfile.open(sdist, "w:gz") as archive:
        for name in in_sdist:
            member = tarfile.TarInfo(f"mtx_translate-1.0.0/{name}")
            member.size = size
            archive.addfile(member, io.BytesIO(bytes(size)))
    return [wheel, sdist]


def test_the_notes_are_the_section_of_the_version() -> None:
    text = "# Changelog\n\n## 1.0.0 (2026-11-28)\n\n### Added\n\n- a\n\n## 0.2.0 (2026-11-21)\n\n- b\n"
    assert release.notes_of(text, "1.0.0") == "### Added\n\n- a\n"
    assert release.notes_of(text.replace("## 1.0.0", "## Unreleased\n\n## 1.0.0"), "0.2.0") == "- b\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("## 1.0.0 (2026-11-28)\n\n## 0.2.0 (2026-11-21)\n\n- b\n", "there is no section ## 1.0.0 "),
        ("## 1.0.0\n\n- a\n", "there is no section ## 1.0.0 "),
        ("## 1x0.0 (2026-11-28)\n\n- a\n", "there is no section ## 1.0.0 "),
        ("## Unreleased\n\n- c\n\n## 1.0.0 (2026-11-28)\n\n- a\n", "rename ## Unreleased"),
    ],
)
def test_a_changelog_without_the_version_is_refused(text: str, problem: str) -> None:
    with pytest.raises(release.ReleaseError, match=problem):
        release.notes_of(text, "1.0.0")


def test_files_of_a_release_are_accepted_and_listed(tmp_path: Path) -> None:
    files = write_files(tmp_path, IN_WHEEL, IN_SDIST)
    release.check_files(*files)
    release.write_sums(tmp_path, files)
    sums = (tmp_path / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert [line.split("  ")[1] for line in sums] == [path.name for path in files]
    assert all(len(line.split("  ")[0]) == 64 for line in sums)


@pytest.mark.parametrize(
    ("in_wheel", "in_sdist", "size", "problem"),
    [
        ((*IN_WHEEL, "tests/a.py"), IN_SDIST, 1, "tests/a.py is not a file of the package"),
        (IN_WHEEL[:1], IN_SDIST, 1, "there is no LICENSE"),
        (IN_WHEEL, IN_SDIST[1:], 1, "there is no LICENSE"),
        (IN_WHEEL, IN_SDIST, 2_000_001, "has more than 2,000,000 bytes"),
    ],
)
def test_other_files_are_refused(
    tmp_path: Path, in_wheel: tuple[str, ...], in_sdist: tuple[str, ...], size: int, problem: str
) -> None:
    with pytest.raises(release.ReleaseError, match=problem):
        release.check_files(*write_files(tmp_path, in_wheel, in_sdist, size))
