"""The torch engine on several devices of this machine: this process decodes on the first, a worker on each other one.

Each call of `decode` deals its sentences out and waits for all, so that no more than one block of lines is in memory.
Flow: ids -> `deal` -> this device and workers -> `collect` -> `Candidate`.
"""

import functools
import gc
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mtx.data.workers import Worker
from mtx.decoding.dealing import collect, deal
from mtx.decoding.ensemble import load_torch
from mtx.decoding.options import Candidate
from mtx.decoding.text_translator import Attention, TextTranslator
from mtx.decoding.torch_engine import TorchTranslator
from mtx.errors import MtxError, first_line
from mtx.model.device import keep_freed_memory

_FEW = 2048  # sentences that one device translates before a model is loaded for others
_LEAST = 64  # sentences for each device, without which one device is as fast


class ManyDevices(TextTranslator):
    """Translates with the model of `own` on several devices; workers start when there is enough to do.

    Args:
        own: the translator of this process, on the first device.
        devices: the names of all devices, that of `own` first.
        model, settings: what `load_torch` takes beside the device.
    """

    def __init__(self, own: TorchTranslator, devices: Sequence[str], model: str | Path, settings: Mapping[str, Any]):
        super().__init__(
            own.tokenizer, own.max_tokens, own.options, num_tgt_positions=own.num_tgt_positions, src=own.src,
            tgt=own.tgt, splitter=own.splitter,
        )  # fmt: skip
        self.is_automatic, self.num_devices = own.is_automatic, len(devices)
        self._own, self._devices, self._num_seen = own, devices, 0
        self._load = (model, tuple(settings.items()))
        self._workers: list[Worker] = []
        weakref.finalize(self, _end, self._workers)  # also when the interpreter ends

    def decode(self, sources: Sequence[list[int]], prefixes: Sequence[list[int]]) -> list[list[Candidate]]:
        """See `TextTranslator.decode`.

        Raises:
            MtxError: a worker failed or was killed; it is named.
        """
        self._num_seen += len(sources)
        if self._num_seen <= _FEW or len(sources) < _LEAST * self.num_devices:
            return self._own.decode(sources, prefixes)
        if not self._workers:
            self._workers += [Worker(f"the process of device {number}") for number in range(1, self.num_devices)]
        rows = deal(list(map(len, sources)), self.num_devices)
        items = [([sources[row] for row in part], [prefixes[row] for row in part]) for part in rows]
        try:
            for worker, device, item in zip(self._workers, self._devices[1:], items[1:], strict=True):
                worker.send(_decode, (device, self._load, *item))
            return collect([self._own.decode(*items[0]), *map(_received, self._workers)], rows)
        except BaseException:
            _end(self._workers)
            raise

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """See `TextTranslator.cross_attention`; on the first device alone."""
        return self._own.cross_attention(sources, targets)


def _received(worker: Worker) -> list[list[Candidate]]:
    result: list[list[Candidate]] = worker.receive()
    return result


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.end()
    workers.clear()


def _decode(item: tuple[str, Any, list[list[int]], list[list[int]]]) -> list[list[Candidate]]:
    """In a worker: decode sentences with the model, which it loads for the first of them."""
    device, load, sources, prefixes = item
    try:
        return _translator(device, *load).decode(sources, prefixes)
    except MtxError as error:
        raise MtxError(f"device {device}: {error}", error.help) from None
    except (RuntimeError, MemoryError) as error:
        raise RuntimeError(f"device {device}: {first_line(error)}") from None


@functools.cache
def _translator(device: str, model: str | Path, settings: tuple[tuple[str, Any], ...]) -> TorchTranslator:
    gc.enable()  # workers go without it, and a search may leave cycles
    values = dict(settings)
    if (threads := values["threads"]) is not None:
        torch.set_num_threads(threads)
    keep_freed_memory()
    return load_torch(model, device=device, **values)
