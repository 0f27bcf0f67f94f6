"""Runs a Python command with `no_gpu.c`, which reports a GPU to torch, so that CUDA code is traced without one.

    python -m scripts.traced.no_gpu -m pytest tests/traced
    python -m scripts.traced.no_gpu -m scripts.traced.count_step

It needs the CUDA build of torch, triton and a C compiler. See `traced_step.py` for what runs.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")


def headers() -> list[Path]:
    """Returns the folders of CUDA's headers, which come with torch's CUDA build and with triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        sys.exit("this environment has no triton: install torch for CUDA (scripts/traced/check_traced.sh makes one)")
    packages = Path(spec.origin).parents[1]
    return [*packages.glob("nvidia/cu*/include"), *packages.glob("triton/backends/nvidia/include")]


def build(directory: Path) -> Path:
    """Builds the library in `directory`; both the runtime and the driver are in it."""
    library = directory / "libcuda.so.1"
    symbols = directory / "symbols.map"
    folders = headers()
    runtime = next((f for folder in folders for f in folder.parent.glob("lib/libcudart.so.*")), Path("libcudart.so.13"))
    symbols.write_text(f"{runtime.name} {{ global: *; }};\n")
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-Wl,--version-script={symbols}", "-o", str(library)]
    includes = [f"-I{folder}" for folder in folders]
    subprocess.run([os.environ.get("CC", "cc"), *includes, str(_SOURCE), *options], check=True)
    return library


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        preload = [str(build(Path(directory))), *filter(None, [os.environ.get("LD_PRELOAD")])]
        environment = {**os.environ, "LD_PRELOAD": ":".join(preload)}
        sys.exit(subprocess.run([sys.executable, *sys.argv[1:]], env=environment).returncode)


if __name__ == "__main__":
    main()
