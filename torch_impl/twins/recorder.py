"""Records each call of a PyTorch function: inputs, arrays, outputs.

A function mode sees every call, whichever module makes it: `F.linear`, `F.conv2d`, `F.batch_norm`. So
`nn.MultiheadAttention`, a tied head and a bare `nn.Parameter` need no case of their own. Dropout is switched off here.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from common.twins.arrays import fingerprint
from common.twins.trace import ArrayFolder, Call, Dropout
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
# Functions of Python that call others, which are recorded in their place.
COMPOSITE = {"multi_head_attention_forward", "_in_projection_packed", "_in_projection"}
# Functions that change neither numbers nor their order within a sample, or return no numbers.
SILENT = {
    "get",
    "size",
    "dim",
    "numel",
    "is_floating_point",
    "contiguous",
    "clone",
    "detach",
    "expand",
    "type",
    "to",
    "view",
    "reshape",
    "flatten",
    "transpose",
    "permute",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "t",
    "expand_as",
    "len",
    "ravel",
    "movedim",
    "swapaxes",
    "float",
    "double",
    "view_as",
    "reshape_as",
    "type_as",
}
DROPS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout"}
SAME = {"iadd": "add", "radd": "add", "imul": "mul", "rmul": "mul", "isub": "sub", "rmatmul": "matmul", "mm": "matmul"}
UNIMPORTANT = {"inplace", "training", "return_indices", "_stacklevel", "dtype", "out"}  # arguments
RANDOM = ("rand", "normal", "bernoulli", "multinomial", "uniform", "exponential", "poisson")


class Origin(NamedTuple):
    """Where a tensor comes from: the number of the call, and a sample's shape before it was flattened."""

    order: int
    flat: tuple[int, ...] | None


class Recorder(TorchFunctionMode):
    """Sees the calls of a model.

    Args:
        arrays: takes inputs and outputs of the calls that are given arrays; None: nothing is recorded.
        mode: "inference" or "training".
    """

    def __init__(self, model: nn.Module, *, arrays: ArrayFolder | None, mode: str) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.dropouts: list[Dropout] = []
        self.random: list[str] = []
        self._arrays, self._mode = arrays, mode
        self._named = {id(tensor): name for name, tensor in named_arrays(model)}
        self._storages = {_address(tensor): (name, tensor) for name, tensor in model.named_parameters()}
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
        self._modules: list[str] = []
        self._hooks = []
        for name, module in model.named_modules():
            self._hooks.append(module.register_forward_pre_hook(self._enter(name)))
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _enter(self, name: str) -> Callable[[nn.Module, Any], None]:
        return lambda _, arguments: self._modules.append(name)

    def _leave(self, module: nn.Module, arguments: Any, output: Any) -> None:
        self._modules.pop()

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Call a function and record it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func)).strip("_")
        name = SAME.get(name, name)
        if getattr(func, "__name__", "") in COMPOSITE:
            # Without this, the function would ask this mode again and again.
            with self, patch.object(F, "has_torch_function", lambda *_: False):
                return func(*args, **kwargs)
        if name in DROPS:
            return self._drop(args, kwargs)
        attention = name == "scaled_dot_product_attention"
        if attention and kwargs.get("dropout_p"):
            self._note_dropout(args[0], kwargs["dropout_p"], attention=True)
            kwargs = {**kwargs, "dropout_p": 0.0}
        named = dict(zip(ARGUMENTS.get(name, ()), args, strict=False)) | kwargs
        is_slow = name == "conv2d" and is_depthwise(named)
        compute = partial(depthwise, named) if is_slow else partial(func, *args, **kwargs)
        if self._arrays is None:
            return compute()
        if name.startswith(RANDOM):
            self.random.append(f"torch.{name} in {self._place()}")
        given = [one for one in _tensors([*args, *kwargs.values()]) if isinstance(one, torch.Tensor)]
        before = self._before(name, args, kwargs, given)
        out = compute()
        many = isinstance(out, tuple | list)
        for number, one in enumerate(out if many else [out]):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                self._record(f"{name}[{number}]" if many and len(out) > 1 else name, before, given, one)
        return out

    def _drop(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        training = kwargs.get("training", args[2] if len(args) > 2 else True)
        if training:
            self._note_dropout(args[0], rate, attention=False)
        return args[0]

    def _note_dropout(self, tensor: torch.Tensor, rate: float, *, attention: bool) -> None:
        if rate and self._arrays is not None:
            seen = fingerprint(tensor.detach().numpy())
            self.dropouts.append(Dropout(layer=self._place(), rate=float(rate), input=seen, attention=attention))

    def _place(self) -> str:
        """Return the module that calls."""
        return (self._modules[-1] if self._modules else "") or "forward"

    def _before(self, name: str, args: Sequence[Any], kwargs: Any, given: list[torch.Tensor]) -> dict[str, Any]:
        """Return what is known of a call before it is made; an operation in place overwrites its input."""
        known: dict[str, Any] = {"weights": {}, "numbers": {}, "x": None, "transposed": False}
        origins = [getattr(one, "_twins", None) for one in given]
        known["sources"] = [origin.order for origin in origins if origin]
        known["flat"] = next((origin.flat for origin in origins if origin and origin.flat), None)
        if name in SILENT:
            return known
        self._find_weights(known, name, dict(zip(ARGUMENTS.get(name, ()), args, strict=False)) | kwargs)
        if known["x"] is None:
            bare = [found for one in given if (found := self._name_of(one, parts=True))]
            known["weights"] = {f"bare{number}": one for number, one in enumerate(dict.fromkeys(bare))}
            attention = name == "scaled_dot_product_attention"
            known["numbers"] = _attention(args, kwargs) if attention else _literals([*args[1:]], kwargs)
        known["inputs"] = []
        if known["x"] is not None:
            known["inputs"] = [fingerprint(known["x"].detach().numpy())]
        elif known["weights"]:
            others = [one for one in given if one.is_floating_point() and not self._name_of(one, parts=True)]
            known["inputs"] = [fingerprint(one.detach().numpy()) for one in others]
        known["array"] = known["x"].detach().numpy().copy() if known["x"] is not None else None
        return known

    def _find_weights(self, known: dict[str, Any], name: str, named: dict[str, Any]) -> None:
        """Find arrays by their roles."""
        weights = {
            role: found for role, one in named.items() if role != "input" and (found := self._name_of(one, parts=False))
        }
        if name in ("matmul", "addmm") and isinstance(named.get("weight"), torch.Tensor):
            whole = self._storages.get(_address(named["weight"]))
            if whole is None or whole[1].ndim != 2 or named["weight"].numel() != whole[1].numel():
                return
            weights["weight"] = whole[0]
            known["transposed"] = tuple(named["weight"].stride()) == tuple(whole[1].stride())
        if weights and isinstance(named.get("input"), torch.Tensor):
            known["x"], known["weights"] = named["input"], weights
            known["numbers"] = {role: one for role, one in _literals([], named).items() if role not in weights}

    def _record(self, name: str, before: dict[str, Any], given: list[torch.Tensor], out: torch.Tensor) -> None:
        sources = list(dict.fromkeys(before["sources"]))
        flat = before["flat"] if any(out.shape == one.shape for one in given) else None
        images = [one for one in given if one.ndim in (4, 5)]
        if name in SILENT and images and out.ndim == 2 and len(out) == len(images[0]):
            flat = tuple(images[0].shape[1:])
        if name in SILENT:
            if sources:
                out._twins = Origin(sources[0], flat)  # type: ignore[attr-defined]
            return
        values, order, x = out.detach().numpy(), len(self.calls), before["array"]
        linear = name in ("matmul", "addmm") and x is not None
        call = Call(
            order=order,
            function="linear" if linear else name,
            module=self._place(),
            weights=before["weights"],
            numbers=before["numbers"],
            sources=sources,
            output=fingerprint(values),
            inputs=before["inputs"],
            transposed=before["transposed"],
            flat=list(before["flat"]) if before["flat"] else None,
            shapes=[list(x.shape), list(values.shape)] if x is not None else [],
            multiply_adds=self._multiply_adds(name, before, values),
        )
        assert self._arrays is not None
        if x is not None:
            self._arrays[f"{self._mode}/{order}/x"], self._arrays[f"{self._mode}/{order}/y"] = x, values
        self.calls.append(call)
        out._twins = Origin(order, flat)  # type: ignore[attr-defined]

    def _multiply_adds(self, name: str, before: dict[str, Any], values: np.ndarray) -> int:
        """Return the multiplications of a convolution or of a product with an array."""
        if before["array"] is None or not name.startswith(("linear", "conv", "matmul", "addmm")):
            return 0
        shape = self._shapes.get(before["weights"].get("weight", ""), (0,))
        if name in ("linear", "matmul", "addmm"):
            return values.size * before["array"].shape[-1]
        side = before["array"] if name.startswith("conv_transpose") else values
        return int(side.size * np.prod(shape[1:]))

    def _name_of(self, tensor: Any, *, parts: bool) -> str | None:
        """Return the name of a parameter or buffer, with rows if it is a part; `parts`: whatever part it is."""
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            return None
        if id(tensor) in self._named:
            return self._named[id(tensor)]
        name, whole = self._storages.get(_address(tensor), (None, None))
        if name is None or whole is None:
            return None
        if parts:
            return name
        if not tensor.numel() or not tensor.is_contiguous() or tensor.shape[1:] != whole.shape[1:]:
            return None
        start = tensor.storage_offset() // max(1, int(np.prod(whole.shape[1:])))
        return f"{name}[{start}:{start + len(tensor)}]"


def named_arrays(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and floating buffers by name, each once."""
    yield from model.named_parameters()
    yield from ((name, one) for name, one in model.named_buffers() if one.is_floating_point())


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _tensors(values: Sequence[Any]) -> Iterator[Any]:
    for one in values:
        if isinstance(one, tuple | list):
            yield from _tensors(one)
        else:
            yield one


def _attention(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of `scaled_dot_product_attention(query, key, value, mask, dropout, causal)`."""
    mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
    causal = kwargs.get("is_causal", args[5] if len(args) > 5 else False)
    return {"heads": args[0].shape[1] if args[0].ndim > 3 else 1, "masked": mask is not None or bool(causal)}


def _literals(values: Sequence[Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return arguments that are numbers, words, or several of them."""
    both = {f"argument {number}": one for number, one in enumerate(values, 1)} | named
    shown: dict[str, Any] = {}
    for name, one in both.items():
        if name in UNIMPORTANT:
            continue
        if isinstance(one, int | float | str) and one is not None:
            shown[name] = one
        elif isinstance(one, tuple | list) and one and all(isinstance(n, int | float) for n in one):
            shown[name] = list(one)
        elif name.startswith("argument") and not isinstance(one, torch.Tensor) and one is not None:
            shown[name] = str(one)
    return shown
