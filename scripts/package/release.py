"""Builds a release into dist/ and checks it: `make release`. It uploads nothing and changes nothing but dist/.

In order: CHANGELOG.md has a section of the version, which becomes dist/NOTES.md; sdist and wheel are built; both build
the same wheel; their metadata, names and sizes are right; the wheel's tests pass in a fresh environment; and
dist/SHA256SUMS lists what is to be uploaded.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
MAX_FILE_BYTES = 2_000_000
MAX_SDIST_BYTES = 10_000_000


class ReleaseError(Exception):
    """What is wrong with the release, in one line."""


def notes_of(changelog: str, version: str) -> str:
    """The text of the section of a version.

    Raises:
        ReleaseError: if there is no dated section of it, or changes are listed as unreleased.
    """
    sections = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    for title, text in sections:
        if title == "Unreleased" and text.strip():
            raise ReleaseError(f"CHANGELOG.md: rename ## Unreleased to ## {version} (YYYY-MM-DD)")
        if re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", title) and text.strip():
            return f"{text.strip()}\n"
    raise ReleaseError(f"CHANGELOG.md: there is no section ## {version} (YYYY-MM-DD)")


def wheel_files(wheel: Path) -> dict[str, str]:
    """The sha256 of each file of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def sdist_sizes(sdist: Path) -> dict[str, int]:
    """The size of each file of an sdist, by its path in the repository."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2]: member.size for member in archive.getmembers() if member.isfile()}


def check_files(wheel: Path, sdist: Path) -> None:
    """Raise ReleaseError if one lacks the licence, or has what is not a release's."""
    in_wheel = [*wheel_files(wheel)]
    if foreign := [name for name in in_wheel if not re.match(r"mtx/|mtx_translate-[\d.]+\.dist-info/", name)]:
        raise ReleaseError(f"{wheel.name}: {foreign[0]} is not a file of the package")
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in in_wheel):
        raise ReleaseError(f"{wheel.name}: there is no LICENSE")
    sizes = sdist_sizes(sdist)
    if missing := {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt"} - {*sizes}:
        raise ReleaseError(f"{sdist.name}: there is no {min(missing)}")
    if large := [name for name, size in sizes.items() if size > MAX_FILE_BYTES]:
        raise ReleaseError(f"{sdist.name}: {large[0]} has more than {MAX_FILE_BYTES:,} bytes")
    if sdist.stat().st_size > MAX_SDIST_BYTES:
        raise ReleaseError(f"{sdist.name}: it has more than {MAX_SDIST_BYTES:,} bytes")


def write_sums(directory: Path, files: list[Path]) -> None:
    """Write SHA256SUMS, which `sha256sum -c` reads."""
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files))
    (directory / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def _run(*arguments: str | Path, **environment: str) -> None:
    subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, env={**os.environ, **environment}, check=True)


def build() -> None:
    """Make dist/."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    shutil.rmtree(DIST, ignore_errors=True)
    _run("build", "--outdir", DIST)  # the wheel from the sdist
    [wheel] = DIST.glob(f"*-{version}-*.whl")
    [sdist] = DIST.glob(f"*-{version}.tar.gz")
    with tempfile.TemporaryDirectory() as directory:
        _run("build", "--wheel", "--outdir", directory)
        [from_checkout] = Path(directory).glob("*.whl")
        if wheel_files(wheel) != wheel_files(from_checkout):
            raise ReleaseError("the sdist and the checkout build different wheels: is a file missing in the sdist?")
    check_files(wheel, sdist)
    _run("twine", "check", "--strict", wheel, sdist)
    _run("pytest", "-m", "wheel", "tests/integration/test_wheel.py", MTX_WHEEL=str(wheel), OMP_NUM_THREADS="1")
    (DIST / "NOTES.md").write_text(notes, encoding="utf-8")
    write_sums(DIST, [wheel, sdist])
    print(f"dist/ has mtx {version}: {wheel.name}, {sdist.name}, NOTES.md and SHA256SUMS")


if __name__ == "__main__":
    try:
        build()
    except ReleaseError as error:
        sys.exit(f"error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(map(str, error.cmd[1:4]))} failed")
