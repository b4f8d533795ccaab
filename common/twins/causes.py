"""Why two models part at a place: the number or function that differs, and the line that would make them equal."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.twins.arrays import CONSTANTS
from common.twins.comparison import Parting, Step

# Kind of a function -> its names in PyTorch, Keras and TensorFlow, in lower case.
KINDS = {
    "normalization": r"batch_norm|layer_norm|group_norm|rms_norm|.*normalization|normalize|l2_normalize",
    "convolution": r".*conv.*",
    "dense": r"linear|dense|einsumdense|(mat|b)mm?|matmul.*|einsum",
    "attention": r"scaled_dot_product_attention|attention|dot_product_attention",
    "pooling": r".*pool.*|mean|reduce_mean|amax|global.*",
    "activation": r"(leaky_?|p|c|s)?re?lu6?|.*elu|.*silu|swish|hardtanh|hard_?(swish|sigmoid|silu|tanh)|.*softmax|"
    r"softplus|softsign|sigmoid|log_?sigmoid|tanh|mish|erf|activation|threshold|glu|exponential|squareplus",
    "padding": r"(constant_)?pad(v2)?|zeropadding.*|mirrorpad",
    "residual": r"add(v2)?|addn|sum|sub|subtract",
    "concatenation": r"cat|concat.*",
    "scale": r"mul|multiply|div|true_?div(ide)?|rescaling|realdiv|layerscale|pow|sqrt",
    "resizing": r"interpolate|upsampl.*|resize.*|upsample.*",
    "selection": r"getitem|select|(strided)?slice|gather.*|take.*|cropping.*|chunk.*|split.*|unbind.*|index_select|"
    r"narrow",
    "dropout": r".*dropout.*|stochasticdepth",
    "order": r"permute|transpose|flip|roll|reverse.*",
}
# PyTorch's function -> how it is written in Keras.
IN_KERAS = {
    "relu": "keras.layers.ReLU()",
    "relu6": "keras.layers.ReLU(max_value=6.0)",
    "silu": "keras.activations.silu",
    "hardtanh": "keras.layers.ReLU(max_value=6.0)",
    "leaky_relu": "keras.layers.LeakyReLU(negative_slope={slope})",
    "tanh": "keras.activations.tanh",
    "sigmoid": "keras.activations.sigmoid",
    "elu": "keras.layers.ELU()",
    "selu": "keras.activations.selu",
    "hardswish": "keras.activations.hard_silu",
    "mish": "keras.activations.mish",
    "hardsigmoid": "keras.activations.hard_sigmoid",
    "softmax": "keras.layers.Softmax()",
    "add": "keras.layers.Add()",
    "gelu": "keras.activations.gelu(x, approximate={approximate})",
    "cat": "keras.layers.Concatenate()",
    "mean": "keras.layers.GlobalAveragePooling2D()",
    "adaptive_avg_pool2d": "keras.layers.GlobalAveragePooling2D()",
    "softplus": "keras.activations.softplus",
    "log_softmax": "keras.activations.log_softmax",
}
POOLING = {"max_pool2d": "MaxPooling2D", "avg_pool2d": "AveragePooling2D"}
UNEXPLAINED = "unknown"


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why two models part.

    Attributes:
        kind: of KINDS, or of what differs inside a layer: epsilon, strides, padding, dilation, groups, bias, ...
        text: what each side has.
        remedy: a line that would make them equal; empty: none is known.
        work: whether the models do other work, and not only other numbers.
    """

    kind: str
    text: str
    remedy: str = ""
    work: bool = False


def causes_of(parting: Parting) -> list[Cause]:
    """Return why two models part at a place."""
    found = _inside(parting) if parting.where == "inside" else [_between(parting)]
    if not found:
        found = [Cause(kind=UNEXPLAINED, text="the same input and arrays, another output")]
    shapes = parting.facts.get("shapes")
    if shapes:
        text = f"shapes {tuple(shapes[0])} in PyTorch, {tuple(shapes[1])} in Keras"
        found = [Cause(kind=one.kind, text=f"{one.text}; {text}", remedy=one.remedy, work=True) for one in found]
    return found


def is_constant(parting: Parting, causes: Sequence[Cause]) -> bool:
    """Return whether a difference is that of a constant which TensorFlow keeps in float32."""
    if parting.difference is None or parting.difference > CONSTANTS:
        return False
    return parting.where != "inside" or all(one.kind == UNEXPLAINED for one in causes)


def _inside(parting: Parting) -> list[Cause]:
    """Return the numbers in which a layer differs."""
    assert parting.torch and parting.keras
    torch, keras = parting.torch.numbers, parting.keras.numbers
    name, found = parting.keras.name, list[Cause]()
    epsilons = torch.get("eps"), keras.get("epsilon")
    if None not in epsilons and epsilons[0] != epsilons[1]:
        found.append(
            Cause(
                kind="epsilon",
                text=f"epsilon {epsilons[0]:g} in PyTorch, {epsilons[1]:g} in Keras",
                remedy=f"Keras: {name}(epsilon={epsilons[0]:g})",
            )
        )
    if parting.torch.name.startswith("conv"):
        found += _convolution(parting, torch, keras)
    groups = torch.get("num_groups"), keras.get("groups", 1)
    if groups[0] is not None and groups[0] != groups[1]:
        text = f"{groups[0]} groups in PyTorch, {groups[1]} in Keras"
        found.append(Cause(kind="groups", text=text, remedy=f"Keras: {name}(groups={groups[0]})"))
    if parting.facts.get("lone") == "PyTorch":  # one of Keras' alone is zero, and has no effect
        remedy = f"Keras: {name}(use_bias=True)"
        found.append(Cause(kind="bias", text="only PyTorch has a bias here", remedy=remedy, work=True))
    axis = keras.get("axis")
    if (
        parting.torch.name == "layer_norm"
        and axis is not None
        and _count(axis) != len(torch.get("normalized_shape", [0]))
    ):
        text = f"normalized over {_shown(torch['normalized_shape'])} in PyTorch, over axis {_shown(axis)} in Keras"
        found.append(Cause(kind="axis", text=text))
    return found


def _convolution(parting: Parting, torch: dict[str, Any], keras: dict[str, Any]) -> list[Cause]:
    assert parting.keras
    name, found = parting.keras.name, list[Cause]()
    strides = list(keras.get("strides", [1, 1]))
    stride = _repeated(torch.get("stride", 1), len(strides))
    if stride != strides:
        text = f"strides {_shown(stride)} in PyTorch, {_shown(strides)} in Keras"
        found.append(Cause(kind="strides", text=text, remedy=f"Keras: {name}(strides={_shown(stride)})", work=True))
    dilations = list(keras.get("dilation_rate", [1] * len(strides)))
    dilation = _repeated(torch.get("dilation", 1), len(strides))
    if dilation != dilations:
        text = f"dilation {_shown(dilation)} in PyTorch, {_shown(dilations)} in Keras"
        found.append(Cause(kind="dilation", text=text, remedy=f"Keras: {name}(dilation_rate={_shown(dilation)})"))
    padding = _padding(parting, torch, keras, stride=stride) if stride == strides and dilation == dilations else None
    return [*found, *([padding] if padding else [])]


def _padding(parting: Parting, torch: dict[str, Any], keras: dict[str, Any], *, stride: list[int]) -> Cause | None:
    """Return the padding that differs: "same" in Keras pads more after than before where a stride does not divide."""
    assert parting.keras
    name, padding = parting.keras.name, torch.get("padding", 0)
    if isinstance(padding, str):
        padding = padding if padding != keras.get("padding") else None
    own = _repeated(padding, len(stride)) if isinstance(padding, int | list | tuple) else padding
    if own is None:
        return None
    shown = _shown(own)
    remedy = f"Keras: ZeroPadding2D({shown}) before it, and {name}(padding='valid')" if isinstance(own, list) else ""
    if "Transpose" in name:
        text = f"padding {shown} in PyTorch, {keras.get('padding')!r} in Keras"
        return Cause(kind="padding", text=text, remedy="Keras: padding='valid', then Cropping2D")
    if keras.get("padding") == "same" and max(stride) > 1:
        text = f"padding {shown} on both sides in PyTorch; 'same' in Keras pads more after than before at a stride"
        return Cause(kind="padding", text=text, remedy=remedy)
    pads = parting.facts.get("pads")
    if pads and isinstance(own, list) and any(list(one) != [n, n] for one, n in zip(pads, own, strict=False)):
        both = " and ".join(f"{before} before, {after} after" for before, after in dict.fromkeys(map(tuple, pads)))
        text = f"padding {shown} on both sides in PyTorch, {both} in Keras"
        return Cause(kind="padding", text=text, remedy=f"Keras: ZeroPadding2D({shown})")
    if keras.get("padding") in ("valid", "same") and (parting.facts.get("shapes") or own != [0] * len(stride)):
        text = f"padding {shown} in PyTorch, {keras.get('padding')!r} in Keras"
        return Cause(kind="padding", text=text, remedy=remedy)
    return None


def _between(parting: Parting) -> Cause:
    """Return what one side computes before a layer, or after the last, and the other does not."""
    torch, keras = parting.torch_steps, parting.keras_steps
    if parting.reordered:
        text = "the same numbers in another order: of channels, of positions, or of a flattened image"
        return Cause(kind="order", text=text, remedy="Keras: keras.layers.Permute before it")
    if not torch and not keras:
        text = f"PyTorch gives it {parting.torch_source}, Keras {parting.keras_source or 'something else'}"
        return Cause(kind="wiring", text=text)
    # What both compute, one of them after something else, is not the cause.
    counts = (
        Counter(map(kind_of, [*torch, *parting.torch_later])),
        Counter(map(kind_of, [*keras, *parting.keras_later])),
    )
    lone_torch = [one for one in torch if counts[0][kind_of(one)] > counts[1][kind_of(one)]]
    lone_keras = [one for one in keras if counts[1][kind_of(one)] > counts[0][kind_of(one)]]
    if lone_torch or lone_keras:
        torch, keras = lone_torch, lone_keras
    kinds = [kind_of(one) for one in (*torch, *keras)]
    kind = next((one for one in kinds if one != UNEXPLAINED), UNEXPLAINED)
    if torch and keras and kind == "attention" and len(set(kinds)) == 1:
        return _attention(torch[0], keras[0])
    if torch and keras and set(kinds) <= {"residual", "concatenation", "scale"} and len(set(kinds)) == 1:
        if parting.same_inputs:
            text = f"both compute {torch[0].name} of the same numbers, in another order or at other positions"
            return Cause(kind="order", text=text)
        if parting.torch_inputs and parting.keras_inputs:
            both = [" and ".join(one) for one in (parting.torch_inputs, parting.keras_inputs)]
            return Cause(kind="wiring", text=f"{torch[0].name} of {both[0]} in PyTorch, of {both[1]} in Keras")
    sides = [" and ".join(dict.fromkeys(str(one) for one in side)) or "nothing" for side in (torch[:2], keras[:2])]
    return Cause(kind=kind, text=f"PyTorch: {sides[0]}. Keras: {sides[1]}", remedy=_remedy(torch, keras))


def _attention(torch: Step, keras: Step) -> Cause:
    """Return the number in which two attentions differ."""
    own, other = torch.numbers, keras.numbers
    masked = bool(own.get("masked")), bool(other.get("masked"))
    if masked[0] != masked[1]:
        side = "PyTorch" if masked[0] else "Keras"
        text = f"only {side} masks its attention (a causal mask, or another)"
        return Cause(kind="mask", text=text, remedy=f"Keras: use_causal_mask={masked[0]}")
    heads = own.get("heads"), other.get("heads")
    if None not in heads and heads[0] != heads[1]:
        text = f"{heads[0]} heads in PyTorch, {heads[1]} in Keras"
        return Cause(kind="heads", text=text, remedy=f"Keras: num_heads={heads[0]}")
    return Cause(kind="attention", text=f"PyTorch: {torch}. Keras: {keras}")


def kind_of(step: Step) -> str:
    """Return what kind of function a step is."""
    name = step.name.lower().removeprefix("tf.").partition("[")[0]
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name)), UNEXPLAINED)


def _remedy(torch: Sequence[Step], keras: Sequence[Step]) -> str:
    if not torch:
        return f"Keras: leave out {keras[0].name}"
    step = torch[0]
    if step.name in POOLING:
        return _pooling(step)
    slope = step.numbers.get("negative_slope", step.numbers.get("argument 1", 0.01))
    approximate = step.numbers.get("approximate") == "tanh"
    line = IN_KERAS.get(step.name, "").format(slope=slope, approximate=approximate)
    if step.name == "hardtanh" and (step.numbers.get("min_val"), step.numbers.get("max_val")) != (0.0, 6.0):
        return ""
    return f"Keras: {line}" if line else ""


def _pooling(step: Step) -> str:
    names = (("kernel_size", "argument 1"), ("stride", "argument 2"), ("padding", "argument 3"))
    size, stride, padding = (step.numbers.get(name, step.numbers.get(position)) for name, position in names)
    pads = f"keras.layers.ZeroPadding2D({_shown(padding)}), then " if padding and max(_repeated(padding, 2)) else ""
    return f"Keras: {pads}keras.layers.{POOLING[step.name]}({_shown(size)}, strides={_shown(stride or size)})"


def _repeated(value: Any, count: int) -> list[int]:
    both = list(value) if isinstance(value, list | tuple) else [value]
    return both * count if len(both) == 1 else both


def _count(axis: Any) -> int:
    return len(axis) if isinstance(axis, list | tuple) else 1


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return str(value[0]) if len(set(value)) == 1 else str(tuple(value))
    return repr(value)
