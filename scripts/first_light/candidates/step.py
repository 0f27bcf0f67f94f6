"""The compiled training step with candidates in place of its own parts.

    with replaced(["norm", "loss"]):
        ...  # the first steps, in which torch compiles

`norm` replaces dropout, residual sums and LayerNorm of a Transformer, and `loss` the softmax of the loss. Both need
triton, and this module does not.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from torch._inductor.exc import OperatorIssue

from mtx.training import loss, micro_batch


@contextmanager
def replaced(names: Iterable[str]) -> Iterator[None]:
    """Compiles the steps within it with the candidates of these names: `norm`, `loss`.

    Raises:
        ValueError: for another name, and in the first step for a model that `norm` does not fit.
    """
    with ExitStack() as stack:
        for name in names:
            match name:
                case "norm":
                    from scripts.first_light.candidates.transformer import hidden_states

                    stack.enter_context(mock.patch.object(micro_batch, "hidden_states", hidden_states))
                    # For a log, torch's compiler writes out what a new operation reads, and what that reads, and so on.
                    # This text doubles with each sub-layer.
                    stack.enter_context(
                        mock.patch.object(OperatorIssue, "operator_str", lambda target, *_: str(target))
                    )
                case "loss":
                    from scripts.first_light.candidates.loss import loss_chunk

                    stack.enter_context(mock.patch.object(loss, "_compiled_chunk", loss_chunk))
                case _:
                    raise ValueError(f"no candidate {name}: expected norm, loss")
        yield
