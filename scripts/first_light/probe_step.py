"""The training step of mtx by its own trainer: eager with the padded kernel, recorded, and compiled; with a profile.

A compiled step attends with the kernels of mtx (`compiled`) or with torch's FlexAttention (`flex`). Each variant is
measured as soon as it is ready, and again in the turn of this process, alone on the device.

python probe_step.py --preset base --variants eager,graph,compiled,flex --profile FILE
"""

import argparse
import collections
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import torch
from flex_layout import FlexLayout
from turns import EARLY_S, errors_reported, peak_flops, rates, report, wait_for_turn

from mtx.config import settings
from mtx.model import transformer
from mtx.model.device import attention_kernel, fast_precision, find_device, use_device
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

NUM_PROFILED = 4  # steps
NUM_KERNELS = 25  # the longest ones are listed
IN_BLOCKS = ("_forward", "_backward_of_queries", "_backward_of_keys")  # the kernels of mtx/model/block_kernels.py
KINDS = {  # what another kernel belongs to, by words in its name; the first that fits counts
    "attention varlen": ("flash", "fmha"),
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
    parser.add_argument("--variants", default="eager,graph,compiled")
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--profile", type=Path)
    options = parser.parse_args(arguments)
    systems = dict[str, System]()
    device = find_device(options.device)
    use_device(device)
    config = settings.resolve(
        None,
        ["data.src=en", "data.tgt=de", f"model.preset={options.preset}", f"training.batch_tokens={options.tokens}",
         f"run_dir={Path(tempfile.gettempdir(), 'first-light-step')}"],
    ).config  # fmt: skip
    data = drawn_data(config, options.ids, 8 * options.tokens)
    precision = fast_precision(device)
    peak = peak_flops(device, precision)
    flops = flops_per_tgt_token(config.model, data.train)

    def report_step(variant: str, is_turn: bool) -> None:
        system = systems[variant]
        host_ms = host_time(system, device)
        row = measure(system, options.seconds if is_turn else min(EARLY_S, options.seconds), device)
        step_ms = 1e3 * row["tgt_tokens_per_step"] / row["tgt_tokens_per_s"]
        report(
            "step", preset=options.preset, variant=variant, precision=precision, alone="yes" if is_turn else "no",
            step_ms=round(step_ms, 2), host_ms=round(host_ms, 2), **rates(row, flops, peak),
        )  # fmt: skip

    for variant in options.variants.split(","):
        if variant != "eager" and device.type != "cuda":
            report("step", preset=options.preset, variant=variant, precision=f"needs CUDA, not {device.type}")
            continue
        layout = FlexLayout if variant == "flex" else transformer.BlockLayout
        with (
            errors_reported("step", preset=options.preset, variant=variant),
            mock.patch.object(transformer, "BlockLayout", layout),  # which the compiler sees in the first step
        ):
            started = time.perf_counter()
            kernel = "padded" if variant == "eager" else attention_kernel(config.model, device, precision)
            threads = torch.get_num_threads()
            compiled = variant in ("compiled", "flex")
            runtime = RuntimeChoices(str(device), precision, options.tokens, kernel, threads, compiled)
            system = mtx_system(config, data, device, runtime)
            misses = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"]
            seconds = warm_up(system, device, started, 4)
            loss = float(system.update(next(system.source), MEASURED_RATE))  # of the sixth step
            systems[variant] = system
            is_cold = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"] > misses
            report(
                "first step", preset=options.preset, system=f"mtx {variant}", seconds=round(seconds, 1), loss=loss,
                compiled=("with a cold cache" if is_cold else "from the cache") if compiled else "no",
            )  # fmt: skip
            report_step(variant, is_turn=False)
    wait_for_turn(device)
    for variant, system in systems.items():
        with errors_reported("step", preset=options.preset, variant=variant):
            report_step(variant, is_turn=True)
            if options.profile and device.type == "cuda":
                profile(f"{options.preset} {variant}", system, device, options.profile)


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
    """Appends the kernels of some steps by their time to a file, and reports what kind of work they are."""
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
    shown = {kind: round(ms, 2) for kind, ms in kinds.most_common()}
    report(
        "profile", step=name, device_ms=round(device_ms, 2), wall_ms=round(wall_ms, 2), launches=round(launches),
        ms_by_kind=shown,
    )  # fmt: skip
    lines = [f"{name}: {device_ms:.2f} ms of kernels a step, {wall_ms:.2f} ms by the clock, {launches:.0f} launches"]
    lines += [f"  {kind:20} {ms:8.3f} ms {ms / max(device_ms, 1e-9):6.1%}" for kind, ms in kinds.most_common()]
    for kernel, ms in times.most_common(NUM_KERNELS):
        each_us = 1e3 * ms * NUM_PROFILED / counts[kernel]
        lines.append(f"  {ms:8.3f} ms {counts[kernel] / NUM_PROFILED:7.1f} x {each_us:8.1f} us  {kernel[:150]}")
    with path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n\n")


def kind_of(kernel: str) -> str:
    """Returns the kind of work that a kernel does."""
    if kernel in IN_BLOCKS:
        return "attention in blocks"
    return next((kind for kind, words in KINDS.items() if any(word in kernel for word in words)), "other")


if __name__ == "__main__":
    main(sys.argv[1:])
