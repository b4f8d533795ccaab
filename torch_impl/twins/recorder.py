"""Records each call of a PyTorch function: inputs, arrays, outputs.

A function mode sees every call, whichever module makes it: `F.linear`, `F.conv2d`, `F.batch_norm`. So
`nn.MultiheadAttention`, a tied head and a bare `nn.Parameter` need no case of their own. Dropout is switched off here.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from common.twins.arrays import fingerprint
from common.twins.records import ArrayFolder, Dropout, Event, base_name
from torch_impl.twins.depthwise import depthwise, is_depthwise

CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
# Functions whose arrays a Keras layer has, too -> names of their arguments.
ARGUMENTS = {
    "linear": ("input", "weight", "bias"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), CONVOLUTION),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), TRANSPOSED),
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "embedding": ("input", "weight"),
    "prelu": ("input", "weight"),
    "addmm": ("bias", "input", "weight"),  # x W + b: the weight is (inputs, outputs)
    "matmul": ("input", "weight"),
}
PRODUCTS = ("linear", "matmul", "addmm")
ATTENTION = "scaled_dot_product_attention"
ATTENTION_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
ATTENTION_OF_MODULE = "multi_head_attention_forward"
# Functions of Python that call others, which are recorded in their place.
COMPOSITE = (ATTENTION_OF_MODULE, "_in_projection_packed", "_in_projection")
# Functions that change neither numbers nor their order within a sample, or return no numbers.
SILENT = re.compile(
    r"get|size|dim|numel|is_floating_point|contiguous|clone|detach|expand|expand_as|type|type_as|to|view|view_as|"
    r"reshape|reshape_as|flatten|unflatten|transpose|permute|squeeze|unsqueeze|t|len|ravel|movedim|swapaxes|float|double"
)
BRANCH_DROPS = ("StochasticDepth", "DropPath")  # classes of modules
DROPS = re.compile(r"(alpha_|feature_alpha_|feature_)?dropout|dropout[123]d")
SAME = {"iadd": "add", "radd": "add", "imul": "mul", "rmul": "mul", "isub": "sub", "rmatmul": "matmul", "mm": "matmul"}
UNIMPORTANT = ("inplace", "training", "return_indices", "_stacklevel", "dtype", "out")  # arguments
RANDOM = ("rand", "normal", "bernoulli", "multinomial", "uniform", "exponential", "poisson")


class Origin(NamedTuple):
    """Where a tensor comes from: the number of the event, and a sample's shape before it was flattened."""

    number: int
    flat: tuple[int, ...] | None = None


class Recorder(TorchFunctionMode):
    """Sees the calls of a model.

    Args:
        arrays: takes inputs and outputs of the calls that are given arrays; None: nothing is recorded.
        mode: "inference" or "training".
    """

    def __init__(self, model: nn.Module, *, arrays: ArrayFolder | None, mode: str) -> None:
        super().__init__()
        self.events: list[Event] = []  # the model's input, and the calls
        self.dropouts: list[Dropout] = []
        self.random: list[str] = []  # functions that draw random numbers
        self.result = 0  # number of the call that made the output
        self._arrays, self._mode = arrays, mode
        self._names = {id(tensor): name for name, tensor in named_arrays(model)}
        self._storages = {_address(tensor): (name, tensor) for name, tensor in model.named_parameters()}
        self._modules: list[str] = []
        self._in_attention = False  # of a module, whose weights drop entries
        self._hooks = []
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(partial(self._enter, name)))
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))

    def run(self, model: nn.Module, samples: torch.Tensor) -> Any:
        """Call the model, and take the hooks off it."""
        self.events.append(Event(name="input", output=fingerprint(samples.numpy())))
        samples._twins = Origin(0)  # type: ignore[attr-defined]
        try:
            with self:
                output = model(samples)
            self.result = getattr(output, "_twins", Origin(0)).number
            return output
        finally:
            for hook in self._hooks:
                hook.remove()

    def _enter(self, name: str, module: nn.Module, arguments: Any) -> None:
        self._modules.append(name)
        if type(module).__name__ in BRANCH_DROPS and module.training:
            self._note_dropout(arguments[0], getattr(module, "p", 0.0) or getattr(module, "drop_prob", 0.0))
            module.training = False

    def _leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self._modules.pop()
        if type(module).__name__ in BRANCH_DROPS:
            module.training = self._mode == "training"

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Call a function and record it."""
        kwargs = kwargs or {}
        own_name = getattr(func, "__name__", str(func))
        name = SAME.get(own_name.strip("_"), own_name.strip("_"))
        if own_name in COMPOSITE:
            # Without this, the function would ask this mode again and again.
            outer, self._in_attention = self._in_attention, own_name == ATTENTION_OF_MODULE
            try:
                with self, patch.object(F, "has_torch_function", lambda *_: False):
                    return func(*args, **kwargs)
            finally:
                self._in_attention = outer
        if DROPS.fullmatch(name):
            named = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
            if named.get("training", named.get("train", True)):  # as torch.dropout calls it
                self._note_dropout(named["input"], named.get("p", 0.5), attention=self._in_attention)
            return named["input"]
        if name == ATTENTION:
            kwargs = dict(zip(ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
            args = [kwargs.pop(tensor) for tensor in ATTENTION_ARGUMENTS[:3]]
            self._note_dropout(args[0], kwargs.get("dropout_p", 0.0), attention=True)
            kwargs["dropout_p"] = 0.0
        named = dict(zip(ARGUMENTS.get(name, ()), args, strict=False)) | kwargs
        is_slow = name == "conv2d" and is_depthwise(named)
        compute = partial(depthwise, named) if is_slow else partial(func, *args, **kwargs)
        if self._arrays is None:
            return compute()
        if name.startswith(RANDOM):
            self.random.append(f"torch.{name} in {self._place()}")
        return self._recorded(name, args, kwargs, named, compute)

    def _note_dropout(self, tensor: torch.Tensor, rate: float, *, attention: bool = False) -> None:
        """Record that the module that calls drops entries."""
        if rate and self._arrays is not None:
            seen = fingerprint(tensor.detach().numpy())
            self.dropouts.append(Dropout(layer=self._place(), rate=float(rate), input=seen, attention=attention))

    def _place(self) -> str:
        """Return the module that calls."""
        return (self._modules[-1] if self._modules else "") or "forward"

    def _recorded(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], named: dict[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """Make a call and record it; what it is given is recorded before, as it may be overwritten in place."""
        tensors = list(_tensors([*args, *kwargs.values()]))
        origins = [origin for tensor in tensors if (origin := getattr(tensor, "_twins", None))]
        sources = list(dict.fromkeys(origin.number for origin in origins))
        flat = next((origin.flat for origin in origins if origin.flat), None)
        images = next((tensor for tensor in tensors if tensor.ndim in (4, 5)), None)
        silent = bool(SILENT.fullmatch(name))
        if not silent:
            event = replace(self._event(name, args, kwargs, named, tensors), sources=sources, flat=flat and list(flat))
            x = named["input"].detach().numpy().copy() if event.shapes else None
        result = compute()
        outputs = list(_tensors([result]))
        for number, out in enumerate(outputs):
            if not out.is_floating_point():
                continue
            new_flat = flat if any(out.shape == tensor.shape for tensor in tensors) else None
            if silent and images is not None and out.ndim == 2 and len(out) == len(images):
                new_flat = tuple(images.shape[1:])
            if not silent:
                self._add(replace(event, name=f"{event.name}[{number}]" if len(outputs) > 1 else event.name), x, out)
                sources = [len(self.events) - 1]
            if sources:
                out._twins = Origin(sources[0], new_flat)  # type: ignore[attr-defined]
        return result

    def _event(
        self, name: str, args: Sequence[Any], kwargs: Any, named: dict[str, Any], tensors: list[torch.Tensor]
    ) -> Event:
        """Return what is known of a call before it is made: its shapes are those of input and, for now, nothing."""
        weights, transposed = self._weights(name, named)
        if weights:
            return Event(
                name="linear" if name in PRODUCTS else name,
                place=_layer(weights),
                weights=weights,
                transposed=transposed,
                numbers={role: value for role, value in _literals([], named).items() if role not in weights},
                inputs=[fingerprint(named["input"].detach().numpy())],
                shapes=[list(named["input"].shape)],
            )
        bare = dict.fromkeys(array for tensor in tensors if (array := self._name_of(tensor, parts=True)))
        weights = {f"bare{number}": array for number, array in enumerate(bare)}
        values = [tensor for tensor in tensors if tensor.is_floating_point() and not self._name_of(tensor, parts=True)]
        return Event(
            name=name,
            place=_layer(weights) or self._place(),
            weights=weights,
            numbers=_attention(args, kwargs) if name == ATTENTION else _literals(args[1:], kwargs),
            inputs=[fingerprint(tensor.detach().numpy()) for tensor in values] if weights else [],
        )

    def _weights(self, name: str, named: dict[str, Any]) -> tuple[dict[str, str], bool]:
        """Return arrays of a call by their roles, and whether its weight is (inputs, outputs)."""
        if not isinstance(named.get("input"), torch.Tensor):
            return {}, False
        given = {role: tensor for role, tensor in named.items() if role != "input"}
        weights = {role: array for role, tensor in given.items() if (array := self._name_of(tensor, parts=False))}
        if name not in ("matmul", "addmm") or not isinstance(weight := named.get("weight"), torch.Tensor):
            return weights, False
        array, whole = self._storages.get(_address(weight), ("", weight))
        if not array or whole.ndim != 2 or weight.numel() != whole.numel():
            return {}, False
        return {**weights, "weight": array}, weight.stride() == whole.stride()

    def _add(self, event: Event, x: np.ndarray | None, out: torch.Tensor) -> None:
        """Record a call with its output."""
        assert self._arrays is not None
        values, number, work = out.detach().numpy(), len(self.events), 0
        if x is not None:
            self._arrays[f"{self._mode}/{number}/x"], self._arrays[f"{self._mode}/{number}/y"] = x, values
            if event.name == "linear":
                work = values.size * x.shape[-1]
            elif event.name.startswith("conv") and "weight" in event.weights:
                kernel = self._arrays[f"weights/{event.weights['weight']}"]
                side = x if event.name.startswith("conv_transpose") else values
                work = int(side.size * np.prod(kernel.shape[1:]))
        shapes = [*event.shapes, list(values.shape)] if x is not None else []
        output = fingerprint(values)
        self.events.append(replace(event, number=number, output=output, shapes=shapes, multiply_adds=work))

    def _name_of(self, tensor: Any, *, parts: bool) -> str:
        """Return the name of a parameter or buffer, with rows if it is a part; `parts`: whatever part it is."""
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return ""
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        name, whole = self._storages.get(_address(tensor), ("", tensor))
        if parts or not name:
            return name
        if not tensor.numel() or not tensor.is_contiguous() or tensor.shape[1:] != whole.shape[1:]:
            return ""
        start = tensor.storage_offset() // max(1, int(np.prod(whole.shape[1:])))
        return f"{name}[{start}:{start + len(tensor)}]"


def named_arrays(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and floating buffers by name, each once."""
    yield from model.named_parameters()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point())


def _layer(weights: dict[str, str]) -> str:
    """Return the module of the first array; if it is in none, the array."""
    first = next(iter(weights.values()), "")
    return base_name(first).rpartition(".")[0] or first


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _tensors(value)
        elif isinstance(value, torch.Tensor):
            yield value


def _attention(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of `scaled_dot_product_attention`; the arguments are the query, key and value."""
    masked = kwargs.get("attn_mask") is not None or bool(kwargs.get("is_causal"))
    return {"heads": args[0].shape[1] if args[0].ndim > 3 else 1, "masked": masked}


def _literals(values: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that are numbers, words, or several of them."""
    literals: dict[str, Any] = {}
    for name, value in ({f"argument {number}": value for number, value in enumerate(values, 1)} | named).items():
        if name in UNIMPORTANT or value is None:
            continue
        if isinstance(value, tuple | list) and value and all(isinstance(n, int | float) for n in value):
            literals[name] = list(value)
        elif isinstance(value, int | float | str):
            literals[name] = value
        elif name.startswith("argument") and not isinstance(value, torch.Tensor):
            literals[name] = str(value)
    return literals
