"""The compiled training step of mtx by its own trainer, as it is or with one change, and the profile of its kernels.

With --turn it is measured as soon as it is ready, next to other processes, and again in its turn, alone on the device.

python probe_step.py --preset base --profile FILE
python probe_step.py --variant "norm alone" --candidates norm
"""

import argparse
import collections
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from turns import EARLY_S, errors_reported, peak_flops, rates, report, wait_for_turn

from mtx.config import settings
from mtx.model.device import attention_kernel, fast_precision, find_device, use_device
from mtx.training import loss
from mtx.training.micro_batch import RuntimeChoices
from scripts.benchmarks.train_worker import (
    MEASURED_RATE,
    System,
    drawn_data,
    flops_per_tgt_token,
    measure,
    mtx_system,
    synchronize,
    warm_up,
)
from scripts.first_light.candidates.step import replaced

NUM_WARM_UPS = 4  # steps after the first one
NUM_PROFILED = 4  # steps
NUM_LONGEST = 10  # kernels that are reported, for probe_ncu.py
IN_BLOCKS = ("_forward", "_backward_of_queries", "_backward_of_keys")  # the kernels of mtx/model/block_kernels.py
KINDS = {  # what another kernel belongs to, by words in its name; the first that fits counts
    "products": ("gemm", "cutlass", "nvjet", "sm90", "cublas", "wgmma", "xmma", "splitk"),
    "softmax": ("softmax", "SoftMax"), "Adam": ("adam", "Adam"), "generated": ("triton_",),
    "copies": ("Memcpy", "memcpy", "Memset", "memset", "copy"),
}  # fmt: skip


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--tokens", type=int, default=25_000)
    parser.add_argument("--ids", type=int, default=37_000)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--variant", default="compiled", help="the name in the rows")
    parser.add_argument("--turn", action="store_true", help="measure when ready, and again in a turn")
    parser.add_argument("--profile", type=Path, help="append all kernels to this file")
    parser.add_argument("--in-range", action="store_true", help="only take a step in a range for ncu")
    parser.add_argument("--combo", action="store_true", help="inductor combines independent kernels")
    parser.add_argument("--loss-rows", type=int, help="rows of a chunk of the loss")
    parser.add_argument("--candidates", help="names of kernels in candidates/, with commas")
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    use_device(device)
    about = {"preset": options.preset, "variant": options.variant}
    with errors_reported("step", **about), changed(options):
        run(options, device, about)


@contextlib.contextmanager
def changed(options: argparse.Namespace) -> Iterator[None]:
    """Changes what the compiler makes of a step, or what it sees."""
    with contextlib.ExitStack() as changes:
        torch._inductor.config.combo_kernels = options.combo
        if rows := options.loss_rows:
            changes.enter_context(mock.patch.object(loss, "_rows_at_once", lambda *_: rows))
        if options.candidates and options.device != "cpu":  # where there may be no triton
            changes.enter_context(replaced(options.candidates.split(",")))
        yield


def run(options: argparse.Namespace, device: torch.device, about: dict[str, str]) -> None:
    """Compiles and measures a step; on a CPU, where mtx does not compile, one operation after the other."""
    is_cuda = device.type == "cuda"
    precision = fast_precision(device)
    peak = peak_flops(device, precision)
    config = settings.resolve(
        None,
        ["data.src=en", "data.tgt=de", f"model.preset={options.preset}", f"training.batch_tokens={options.tokens}",
         f"run_dir={Path(tempfile.gettempdir(), 'first-light-step')}"],
    ).config  # fmt: skip
    data = drawn_data(config, options.ids, 8 * options.tokens)
    flops = flops_per_tgt_token(config.model, data.train)
    kernel = attention_kernel(config.model, device, precision)
    threads = torch.get_num_threads()
    runtime = RuntimeChoices(str(device), precision, options.tokens, kernel, threads, compile=is_cuda)
    started = time.perf_counter()
    system = mtx_system(config, data, device, runtime)
    misses = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"]
    seconds = warm_up(system, device, started, NUM_WARM_UPS)
    is_cold = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"] > misses
    compiled = f"needs CUDA, not {device.type}"
    if is_cuda:
        compiled = "with a cold cache" if is_cold else "from the cache"
    if options.in_range:
        torch.cuda.profiler.start()
        system.update(next(system.source), MEASURED_RATE)
        synchronize(device)
        torch.cuda.profiler.stop()
        return
    report(
        "first step", **about, seconds=round(seconds, 1), compiled=compiled,
        loss=float(system.update(next(system.source), MEASURED_RATE)),
    )  # fmt: skip

    def report_step(alone: str, seconds: float) -> None:
        host_ms = host_time(system, device)
        row = measure(system, seconds, device)
        step_ms = 1e3 * row["tgt_tokens_per_step"] / row["tgt_tokens_per_s"]
        report(
            "step", **about, precision=precision, alone=alone, step_ms=round(step_ms, 2), host_ms=round(host_ms, 2),
            **rates(row, flops, peak),
        )  # fmt: skip

    if options.turn:
        report_step("no", min(EARLY_S, options.seconds))
        wait_for_turn(device)
    report_step("yes", options.seconds)
    if options.profile and is_cuda:
        profile(f"{options.preset} {options.variant}", system, device, options.profile)


def host_time(system: System, device: torch.device, num_steps: int = 6) -> float:
    """Returns the milliseconds that the host needs to start a step, if the device does not make it wait."""
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(num_steps):
        system.update(next(system.source), MEASURED_RATE)
    host_s = (time.perf_counter() - begun) / num_steps
    synchronize(device)
    return 1e3 * host_s


def profile(name: str, system: System, device: torch.device, path: Path) -> None:
    """Appends all kernels of some steps by their time to a file; reports the kinds of work and the longest kernels."""
    from torch.autograd import DeviceType

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        begun = time.perf_counter()
        for _ in range(NUM_PROFILED):
            system.update(next(system.source), MEASURED_RATE)
        synchronize(device)
        wall_ms = 1e3 * (time.perf_counter() - begun) / NUM_PROFILED
    times, counts, kinds = (collections.Counter() for _ in range(3))  # milliseconds of a step, launches, milliseconds
    for event in profiler.events():
        if event.device_type == DeviceType.CUDA:
            ms = event.time_range.elapsed_us() / NUM_PROFILED / 1e3
            times[event.name] += ms
            kinds[kind_of(event.name)] += ms
            counts[event.name] += 1
    launches = counts.total() / NUM_PROFILED
    device_ms = times.total()
    lines = [f"{name}: {device_ms:.2f} ms of kernels a step, {wall_ms:.2f} ms by the clock, {launches:.0f} launches"]
    lines += [f"  {kind:20} {ms:8.3f} ms {ms / max(device_ms, 1e-9):6.1%}" for kind, ms in kinds.most_common()]
    for kernel, ms in times.most_common():
        each_us = 1e3 * ms * NUM_PROFILED / counts[kernel]
        lines.append(f"  {ms:8.3f} ms {counts[kernel] / NUM_PROFILED:7.1f} x {each_us:8.1f} us  {kernel[:200]}")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n\n")
    report(
        "profile", step=name, device_ms=round(device_ms, 2), wall_ms=round(wall_ms, 2), launches=round(launches),
        ms_by_kind={kind: round(ms, 2) for kind, ms in kinds.most_common()},
    )  # fmt: skip
    functions = collections.Counter()
    for kernel, ms in times.items():
        if kind_of(kernel) != "copies":
            functions[function_of(kernel)] += ms
    for function, ms in functions.most_common(NUM_LONGEST):
        report("kernel", step=name, function=function, ms=round(ms, 3))


def kind_of(kernel: str) -> str:
    """Returns the kind of work that a kernel does."""
    if kernel in IN_BLOCKS:
        return "attention in blocks"
    return next((kind for kind, words in KINDS.items() if any(word in kernel for word in words)), "other")


def function_of(kernel: str) -> str:
    """Returns the bare name of a kernel's function, without its namespaces, arguments and parameters of templates."""
    qualified = kernel.replace("(anonymous namespace)", "")
    return re.split(r"[<(]", qualified, maxsplit=1)[0].rpartition("::")[2].rpartition(" ")[2]


if __name__ == "__main__":
    main(sys.argv[1:])
