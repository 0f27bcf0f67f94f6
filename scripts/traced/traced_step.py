"""Runs mtx's training step and search on fake CUDA tensors, and torch's compiler for CUDA, all without a GPU.

Fake tensors have a shape, a type and a device, but no numbers. So the host's side of a step runs as it would on a GPU,
and every operation that it starts is seen: `Trace` refuses those that would wait for the device or whose shapes depend
on numbers, and checks how kernels are called. What mtx compiles is compiled for the compute capability that the device
has, down to machine code. A process that has no GPU needs `no_gpu.py`. `tests/traced` and `count_step.py` use this.
"""

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config
from torch._inductor.fx_passes import joint_graph
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import MultiOutput
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
from torch._inductor.utils import get_fused_kernel_name
from torch._library.custom_ops import OPDEFS
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import addmm_flop, flop_registry, register_flop_formula
from triton.backends.compiler import GPUTarget

from mtx.config import settings
from mtx.data.packing import load_steps
from mtx.data.sampler import SamplerState, steps
from mtx.data.token_store import PreparedData, Side, TokenStore
from mtx.model import block_kernels
from mtx.storage.run_files import RunLayout
from mtx.training.build import build
from mtx.training.micro_batch import RuntimeChoices

MEAN_LENGTH = 27  # tokens of a sentence of WMT, on average
NUM_IDS = 37_000  # pieces of the paper's English-German vocabulary
# Of torch's fused operations.
_FUSED_CHUNK = 65_536  # elements of a block
_FUSED_BLOCKS = 320  # blocks of a launch
_FUSED_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}  # tensors of a launch, by lists of tensors
aten = torch.ops.aten
_INDEXED = aten.gather, aten.index, aten.index_copy_, aten.index_put_  # of a tensor they touch what the index names
# A generated kernel leaves partial sums, fp32 [rows, columns], which its caller adds up by an operation of torch.
_PARTIAL_SUMS = re.compile(r"\.view\((\d+), (\d+)\)\.sum\(dim=0\)")
register_flop_formula(aten._addmm_activation, get_raw=True)(addmm_flop)
_META = torch.library.Library("aten", "IMPL", "Meta")
_META.impl("_fused_adam_.tensor_lr", lambda *_, **__: None)  # which torch lacks; it changes its arguments only


class RefusedError(AssertionError):
    """An operation that a step must not contain, or a kernel that is called in a way that it does not support."""


@dataclass(frozen=True)
class Kernel:
    """A call of a kernel, or several that one operation makes.

    Attributes:
        part: forward and backward of what is compiled, the rest of the recorded graph, or what the host starts.
        kind: product, attention, generated (by the compiler) or operation (any other of torch's).
        num_bytes: read and written, each tensor once.
        shapes: of the tensors that it reads.
    """

    part: str
    kind: str
    name: str
    launches: int
    num_bytes: int
    flops: int
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Binary:
    """A generated kernel, compiled: its name, the compute capability, and the size of its machine code."""

    name: str
    capability: int
    num_bytes: int


class Trace(TorchDispatchMode):
    """Sees every operation of the code that runs within it.

    Args:
        number: what the host gets when it reads a number of the device, outside of a recording; None refuses that.

    Attributes:
        kernels, recorded: the kernels that the host starts, and those that a CUDA graph has recorded.
        graphs: what was compiled, with the compiler's own operations: forward, backward.
        binaries: the generated kernels.
        num_recorded, num_replayed: of CUDA graphs.
        num_reads: how often the host waited for a number of the device.
    """

    def __init__(self, number: int | None = None):
        super().__init__()
        self.kernels: list[Kernel] = []
        self.recorded: list[Kernel] = []
        self.graphs: list[torch.fx.GraphModule] = []
        self.binaries: list[Binary] = []
        self.num_recorded = self.num_replayed = self.num_reads = 0
        self.is_recording = self._is_compiled = False
        self._number = number

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether torch compiles within this mode, and leaves it off while it does."""
        return True

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = options or {}
        if self._is_compiled or function.namespace == "prim":
            return function(*arguments, **options)
        if _is_on_host(arguments, options):
            with _disable_current_modes():
                return function(*arguments, **options)
        with self:  # inference mode passes operations on that consist of others
            if (out := function.decompose(*arguments, **options)) is not NotImplemented:
                return out
        if function is aten._local_scalar_dense.default and self._number is not None and not self.is_recording:
            self.num_reads += 1
            return self._number
        check_operation(function, arguments, options)
        out = function(*arguments, **options)
        self._check_copy(function, arguments, options, out)
        check_kernel(function, arguments, options)
        if is_kernel(function) and any(tensor.is_cuda for tensor in _tensors(out, arguments)):
            part = "graph" if self.is_recording else "host"
            self._add([kernel_of(part, function, (arguments, options), out)])
        return out

    def _check_copy(self, function: Any, arguments: Any, options: Any, out: Any) -> None:
        """Refuses a copy to the host, which waits for the device; and any copy from the host within a recording."""
        if function.overloadpacket not in (aten.copy_, aten._to_copy, aten.copy):
            return
        source = arguments[1] if function.overloadpacket is not aten._to_copy else arguments[0]
        if source.device.type == out.device.type:
            return
        is_asynchronous = options.get("non_blocking", arguments[2] if len(arguments) > 2 else False)
        if self.is_recording or (source.is_cuda and not is_asynchronous):
            raise RefusedError(f"{function} copies {tuple(source.shape)} from {source.device} to {out.device}")

    def _add(self, kernels: list[Kernel]) -> None:
        (self.recorded if self.is_recording else self.kernels).extend(kernels)

    def add_graph(self, graph: torch.fx.GraphModule, is_backward: bool, kernels: list[Kernel]) -> Callable[..., Any]:
        """Checks a compiled graph; returns a function that runs its operations on fake tensors."""
        for node in graph.graph.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                arguments, options = _values((node.args, node.kwargs))
                check_operation(node.target, arguments, options)
                check_kernel(node.target, arguments, options)
        self.graphs.append(graph)
        part = "backward" if is_backward else "forward"

        def run(arguments: Sequence[Any]) -> Any:
            self._add([replace(kernel, part=part) for kernel in kernels])
            self._is_compiled = True
            try:
                return graph(*list(arguments))
            finally:
                self._is_compiled = False

        run._boxed_call = True  # type: ignore[attr-defined]
        return run


def check_operation(function: Any, arguments: Any, options: Any) -> None:
    """Refuses an operation whose result the host must wait for: numbers of the device, or shapes that depend on them.

    Raises:
        RefusedError: naming the operation.
    """
    tags = function.tags
    if function.overloadpacket in (aten.index, aten.index_put, aten.index_put_, aten._unsafe_index):
        indices = [index for index in arguments[1] if isinstance(index, Tensor)]
        is_refused = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        if any(index.device.type == "cpu" for index in indices) and arguments[0].is_cuda:
            raise RefusedError(f"{function} copies its index from the host to the device")
    else:
        is_refused = torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
        if options.get("output_size") is not None:  # repeat_interleave with a known size does not wait
            is_refused = False
    if is_refused and any(tensor.is_cuda for tensor in _tensors(arguments, options)):
        raise RefusedError(f"{function} waits for numbers of the device")


def check_kernel(function: Any, arguments: Any, options: Any) -> None:
    """Checks the call of a kernel whose fake implementation checks less than the kernel itself does.

    Raises:
        RefusedError: naming the argument.
    """
    schema = function._schema
    named = dict(zip((argument.name for argument in schema.arguments), arguments, strict=False)) | options
    if schema.name.startswith("torch_attn::_varlen_attn"):
        _check_attention(named)
    elif schema.name.startswith("mtx::packed_attention"):
        _check_blocks(named)
    elif schema.name.startswith("aten::_fused_adam"):
        _check_adam(arguments, options)


def _check_attention(named: dict[str, Any]) -> None:
    """What FlashAttention's mha_varlen_fwd and mha_varlen_bwd require, as torch 2.11 and 2.13 build them."""
    rows = {name: named[name] for name in ("query", "key", "value", "grad_out", "out") if name in named}
    offsets = {name: named[name] for name in ("cu_seq_q", "cu_seq_k")}
    query = rows["query"]
    key = rows["key"]
    for name, x in rows.items():
        _require(x.is_cuda and x.dtype == query.dtype and x.dtype in (torch.bfloat16, torch.float16), name, x)
        _require(x.dim() == 3 and x.stride(-1) == 1 and x.shape[-1] % 8 == 0 and x.shape[-1] <= 256, name, x)
        _require(x.shape[2] == query.shape[2] and query.shape[1] % x.shape[1] == 0, name, x)
    _require(named["value"].shape[:2] == key.shape[:2], "value", named["value"])
    for name, x in offsets.items():
        _require(x.is_cuda and x.dtype == torch.int32 and x.is_contiguous() and x.dim() == 1, name, x)
        _require(x.shape == offsets["cu_seq_q"].shape and len(x) > 1, name, x)
    for name in ("max_q", "max_k"):
        _require(isinstance(named[name], int) and named[name] > 0, name, named[name])
    _require(len(offsets["cu_seq_q"]) - 1 <= 65_535, "the number of sentences", offsets["cu_seq_q"])


def _check_blocks(named: dict[str, Any]) -> None:
    """What the kernels of `mtx.model.block_kernels` require: heads side by side, and ranges without gaps."""
    q = named["q"]
    k = named["k"]
    for name in ("q", "k", "v", "out", "grad"):
        if (x := named.get(name)) is not None:
            rows = q if name in ("q", "out", "grad") else k
            _require(x.is_cuda and x.dtype == q.dtype and x.dtype in (torch.bfloat16, torch.float16), name, x)
            _require(x.shape == rows.shape and x.shape[1:] == q.shape[1:], name, x)
            _require(x.dim() == 3 and x.stride()[1:] == (x.shape[2], 1) and x.shape[2] <= 256, name, x)
    for name, rows in (("key_ranges", q), ("query_ranges", k)):
        if (x := named.get(name)) is not None:
            _require(x.is_cuda and x.dtype == torch.int32 and x.is_contiguous(), name, x)
            _require(x.shape == (2, len(rows)), name, x)
    if (x := named.get("log_sums")) is not None:
        _require(x.dtype == torch.float32 and x.is_contiguous() and x.shape == (q.shape[1], len(q)), "log_sums", x)


def _check_adam(arguments: Any, options: Any) -> None:
    """What torch's fused Adam requires on CUDA: lists that match, in fp32, and steps of one element on the device."""
    parameters, *states, step_numbers = arguments[:4] + arguments[5:6]
    for name, tensors in zip(("gradients", "exp_avgs", "exp_avg_sqs"), states, strict=True):
        for parameter, tensor in zip(parameters, tensors, strict=True):
            has_same_layout = tensor.shape == parameter.shape and tensor.stride() == parameter.stride()
            is_fp32 = tensor.dtype == parameter.dtype == torch.float32
            _require(tensor.is_cuda and has_same_layout and is_fp32, name, tensor)
    for number in step_numbers:
        _require(number.is_cuda and number.dtype == torch.float32 and number.numel() == 1, "state_steps", number)
    for name in ("found_inf", "grad_scale"):
        if (scalar := options.get(name)) is not None:
            _require(scalar.is_cuda and scalar.dtype == torch.float32 and scalar.numel() == 1, name, scalar)


def _require(holds: bool, name: str, value: Any) -> None:
    if not holds:
        raise RefusedError(f"{name}: the kernel does not take {value}")


def is_kernel(function: Any) -> bool:
    """Whether an operation starts a kernel: views and empty tensors do not."""
    returns = function._schema.returns
    is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return not is_view and not function._schema.name.split("::")[1].startswith(("empty", "new_empty", "_unsafe_view"))


def kernel_of(part: str, function: Any, inputs: Any, out: Any) -> Kernel:
    """Returns the kernel of an operation with these arguments and this result."""
    name = str(function._schema.name).removeprefix("aten::")
    written = [] if function._schema.is_mutable else _tensors(out)
    mutated = _tensors(inputs) if function._schema.is_mutable else []
    inputs_read = list({id(tensor): tensor for tensor in _tensors(inputs)}.values())
    flops = flop_registry.get(function.overloadpacket)
    num_flops = int(flops(*inputs[0], **inputs[1], out_val=out)) if flops is not None else 0
    if function.overloadpacket in _INDEXED:
        inputs_read = inputs_read[1:]
        mutated = []
    kind = "attention" if "attn" in name or "attention" in name else "product" if num_flops else "operation"
    num_bytes = sum(tensor.nbytes for tensor in inputs_read + written)
    if mutated:
        num_bytes += _mutated_bytes(function, inputs)
    return Kernel(part, kind, name, _launches(function, inputs[0]), num_bytes, num_flops, _shapes(inputs_read))


class _Kernels(TorchDispatchMode):
    """Collects the kernels of the operations that run within it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        out = function(*arguments, **(options or {}))
        if function.namespace != "prim" and is_kernel(function):
            self.kernels.append(kernel_of("", function, (arguments, options or {}), out))
        return out

    def launch(self, kernel: Any, arguments: Any) -> None:
        """Stands for the start of a kernel of Triton's."""
        tensors = _tensors(arguments)
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        kind = "attention" if kernel.__module__ == block_kernels.__name__ else "operation"
        name = f"{kernel.__module__}.{kernel.__name__}"
        self.kernels.append(Kernel("", kind, name, 1, num_bytes, 0, _shapes(tensors)))


def kernels_within(function: Any, arguments: Any, options: Any) -> list[Kernel]:
    """Returns the kernels of an operation of mtx's own, which consists of others that the compiler does not see."""
    launches = _Kernels()
    with (
        detect_fake_mode((arguments, options)), launches, torch.no_grad(),  # type: ignore[union-attr]
        mock.patch.object(triton.runtime.JITFunction, "run", lambda kernel, *args, **_: launches.launch(kernel, args)),
    ):  # fmt: skip
        OPDEFS[function._schema.name]._init_fn(*arguments, **options)
    return launches.kernels


def _mutated_bytes(function: Any, inputs: Any) -> int:
    """Returns the bytes that an operation writes into its arguments, 0 if it reads none of them first."""
    written = 0
    scales_gradients = inputs[1].get("grad_scale") is not None
    for argument, value in zip(function._schema.arguments, inputs[0], strict=False):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        if is_written and (argument.name != "grads" or scales_gradients):
            written += sum(tensor.nbytes for tensor in _tensors(value))
    is_overwritten = function.overloadpacket in (aten.copy_, aten.fill_, aten.zero_, aten._foreach_zero_)
    return 0 if is_overwritten else written


def _launches(function: Any, arguments: Any) -> int:
    """Returns how many kernels an operation starts: one, and for lists of tensors as many as their sizes need."""
    name = function._schema.name
    if not name.startswith(("aten::_foreach", "aten::_fused")):
        return 1
    lists = [
        value for value in arguments if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor)
    ]
    depth = min(4, len(lists)) if name.startswith("aten::_fused") else min(5, len(lists))
    chunks = sum(-(-tensor.numel() // _FUSED_CHUNK) for tensor in lists[0])
    return max(-(-chunks // _FUSED_BLOCKS), -(-len(lists[0]) // _FUSED_TENSORS[depth]))


def _is_on_host(arguments: Any, options: Any) -> bool:
    """Whether an operation reads and makes only tensors in host memory, which are not fake."""
    devices = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, torch.device)]
    is_real = not any(isinstance(tensor, FakeTensor) for tensor in _tensors(arguments, options))
    return is_real and all(device.type == "cpu" for device in devices)


def _tensors(*values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _shapes(tensors: Sequence[Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(size) for size in tensor.shape) for tensor in tensors[:64])


def _values(arguments: Any) -> Any:
    """Returns arguments of a node of a graph as fake tensors."""
    return tree_map_only(torch.fx.Node, lambda node: node.meta.get("val"), arguments)


# Torch's compiler


class _OnHost(TorchDispatchMode):
    """Makes tensors on the host that were meant for the device: the compiler computes constants there."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        options = dict(options or {})
        if "device" in options:
            options["device"] = torch.device("cpu")
        return function(*arguments, **options)


def generated_kernels(graph: GraphLowering) -> list[Kernel]:
    """Returns the kernels of a graph that the compiler has scheduled."""
    kernels = []
    for node in graph.scheduler.nodes:
        if isinstance(node, NopKernelSchedulerNode) or isinstance(node.node, MultiOutput):
            continue
        if isinstance(node, ExternKernelSchedulerNode):
            called = getattr(node.node, "op_overload", None)
            origins = node.node.get_origins()
            origin = node.node.get_origin_node() or next((o for o in origins if o.target is called), None)
            if origin is None or not isinstance(origin.target, torch._ops.OpOverload):
                if num_bytes := node.get_read_write_buffers_sizes():
                    name = str(getattr(node.node, "python_kernel_name", None) or type(node.node).__name__)
                    kernels.append(Kernel("", "operation", name, 1, int(num_bytes), 0, ()))
            elif origin.target.namespace == "mtx":
                kernels += kernels_within(origin.target, *_values((origin.args, origin.kwargs)))
            elif is_kernel(origin.target):
                kernels.append(kernel_of("", origin.target, _values((origin.args, origin.kwargs)), origin.meta["val"]))
            continue
        name = get_fused_kernel_name(node.get_nodes(), "original_aten").removeprefix("fused_")
        kernels.append(Kernel("", "generated", name, 1, int(node.get_read_write_buffers_sizes()), 0, ()))
    return kernels


def sums_of_partial_sums(code: str) -> list[Kernel]:
    """Returns the operations that add up partial sums in generated code, which the scheduler does not know."""
    kernels = []
    for rows, columns in _PARTIAL_SUMS.findall(code):
        num_bytes = 4 * int(columns) * (2 * int(rows) + 1)  # the kernel writes them
        kernels.append(Kernel("", "generated", "sum of partial sums", 1, num_bytes, 0, ()))
    return kernels


@contextlib.contextmanager
def _compiler(trace: Trace) -> Iterator[None]:
    """Lets torch compile for the device without one; what it compiled runs on fake tensors."""
    compile_inner = compile_fx.compile_fx_inner
    fold = joint_graph.UniformValueConstantFolder.run
    to_module = GraphLowering.compile_to_module
    kernels: list[Kernel] = []

    def compile_and_trace(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
        kernels.clear()
        compile_inner(graph, inputs, **options)
        return trace.add_graph(graph, bool(options.get("is_backward")), kernels.copy())

    def fold_on_host(folder: Any) -> Any:
        with _OnHost():
            return fold(folder)

    def to_module_and_count(graph: GraphLowering) -> Any:
        module = to_module(graph)
        kernels.extend(generated_kernels(graph) + sums_of_partial_sums(Path(module.__file__).read_text("utf-8")))
        return module

    def precompile(kernel: Any, *_: Any, **__: Any) -> None:
        kernel._precompile_worker()
        capability = kernel.device_props.cc
        name = kernel.inductor_meta.get("kernel_name", "")
        codes = [result.kernel.asm["cubin"] for result in kernel.compile_results]
        trace.binaries.extend(Binary(name, capability, len(code)) for code in codes)

    major, minor = torch.cuda.get_device_capability()
    target = GPUTarget("cuda", 10 * major + minor, 32)
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (joint_graph.UniformValueConstantFolder, "run", fold_on_host),
            (GraphLowering, "compile_to_module", to_module_and_count),
            (compile_fx, "compile_fx", functools.partial(compile_fx.compile_fx, inner_compile=compile_and_trace)),
            (triton_heuristics.CachingAutotuner, "precompile", precompile),
            (triton_helpers, "set_driver_to_gpu", lambda: None),
            (triton.runtime.driver, "_active", SimpleNamespace(get_current_target=lambda: target)),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        # Padding of products is decided by timing them on the device, and the launcher of its own loads them there.
        stack.enter_context(
            inductor_config.patch(
                compile_threads=1, force_disable_caches=True, shape_padding=False, use_static_cuda_launcher=False
            )
        )
        torch._dynamo.reset()
        yield


# CUDA graphs


@contextlib.contextmanager
def _graphs(trace: Trace) -> Iterator[None]:
    """Stands for torch's CUDA graphs: what is recorded runs once, and a replay does nothing."""

    class Graph:
        def replay(self) -> None:
            trace.num_replayed += 1

    @contextlib.contextmanager
    def recording(graph: Graph, *_: Any, **__: Any) -> Iterator[None]:
        assert isinstance(graph, Graph) and not trace.is_recording
        trace.num_recorded += 1
        trace.is_recording = True
        try:
            yield
        finally:
            trace.is_recording = False

    with (
        mock.patch.object(torch.cuda, "CUDAGraph", Graph), mock.patch.object(torch.cuda, "graph", recording),
        mock.patch.object(torch.cuda, "set_rng_state", lambda *_: None),
    ):  # fmt: skip
        yield


@contextlib.contextmanager
def traced(number: int | None = None) -> Iterator[Trace]:
    """Makes all tensors of the device fake, and traces; see `Trace` for `number`."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    trace = Trace(number)
    with (
        mock.patch.object(FakeTensorMode, "avoid_device_init", True),
        mock.patch.object(FakeTensor, "data_ptr", lambda tensor: id(tensor), create=True),
        mock.patch.object(fake_tensor, "init_gpu_context", lambda device: None),
        mock.patch.object(_foreach_utils, "_foreach_supported_types", [Tensor, FakeTensor]),
        mock.patch.object(nn.Module, "to", lambda module, *_, **__: module),  # torch cannot move a fake parameter
        _compiler(trace), _graphs(trace), mode, trace,
    ):  # fmt: skip
        yield trace


# The training step


class TrainingStep:
    """mtx's own trainer and one step of drawn sentences, on fake tensors; make it within `traced`.

    Args:
        preset: `base` or `big`.
        changes: further settings, as `mtx train` takes them.
    """

    def __init__(self, preset: str, compiled: bool, tokens: int = 25_000, changes: Sequence[str] = ()):
        sizes = [f"model.preset={preset}", f"training.batch_tokens={tokens}"]
        languages = ["data.src=en", "data.tgt=de"]
        self.config = settings.resolve(None, [*sizes, *languages, *changes, "run_dir=traced"]).config
        self.data = drawn_data(self.config.data.max_tokens, 8 * tokens)
        runtime = RuntimeChoices(
            device="cuda", precision="bf16", micro_batch_tokens=tokens, kernel="varlen", threads=1, compile=compiled,
        )  # fmt: skip
        with torch.device("cuda"):
            self.trainer = build(self.config, runtime, self.data, RunLayout(Path("traced")))
        trainer = self.trainer
        train = self.data.train
        host = load_steps(train, steps(trainer.sampler, SamplerState(), 1), trainer.num_micro_steps, trainer.shape)
        with contextlib.closing(host):
            self.loaded = next(host)

    def update(self) -> None:
        """Runs one optimizer update."""
        assert self.trainer.update(self.loaded, 1, 1e-4) is not None


def drawn_data(max_tokens: int, num_pairs: int) -> PreparedData:
    """Draws sentences of random lengths like those of WMT, always the same; their ids are all equal."""
    rng = np.random.default_rng(1)
    tgt = rng.lognormal(math.log(MEAN_LENGTH) - 0.18, 0.6, num_pairs)
    src = tgt * rng.lognormal(-0.05, 0.2, num_pairs)
    sides = []
    for drawn in (src, tgt):
        lengths = np.clip(np.rint(drawn), 2, max_tokens).astype(np.int32)
        sides.append(Side.cut(np.ones(lengths.sum(), np.uint16), lengths))
    store = TokenStore(NUM_IDS, np.ones(1), num_pairs, np.zeros(1, np.uint16), *sides, read_block=None)
    tokenizer: Any = SimpleNamespace(num_ids=NUM_IDS)
    report = {"src_tgt_ratio": float(sides[0].lengths.sum() / sides[1].lengths.sum())}
    return PreparedData(store, store, {}, tokenizer, report, sha256="")
