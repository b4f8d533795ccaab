"""Why two models part at a place: the number or function that differs, and the line that would make them equal."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from common.twins.arrays import alike
from common.twins.records import Cause, Event

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
    "max_pool2d": "{pads}keras.layers.MaxPooling2D({size}, strides={stride})",
    "avg_pool2d": "{pads}keras.layers.AveragePooling2D({size}, strides={stride})",
}
UNEXPLAINED = "unknown"
Pads = tuple[int, int]  # before and after


class Number(NamedTuple):
    """A number that a layer has in both frameworks.

    Attributes:
        torch, keras: the names of its argument.
        default: of both; None: without the argument, nothing is compared.
        text, remedy: what is said of it, with {torch}, {keras} and {layer}.
    """

    kind: str
    torch: str
    keras: str
    default: Any
    text: str
    remedy: str
    level: str = "numbers"


SIDES_TEXT = "{torch} in PyTorch, {keras} in Keras"
IN_LAYER = (
    Number("epsilon", "eps", "epsilon", None, f"epsilon {SIDES_TEXT}", "{layer}(epsilon={torch})"),
    Number("strides", "stride", "strides", 1, f"strides {SIDES_TEXT}", "{layer}(strides={torch})", "work"),
    Number("dilation", "dilation", "dilation_rate", 1, f"dilation {SIDES_TEXT}", "{layer}(dilation_rate={torch})"),
)
IN_GROUPS = Number(
    "groups", "num_groups", "groups", 1, "{torch} groups in PyTorch, {keras} in Keras", "{layer}(groups={torch})"
)
IN_ATTENTION = Number(
    "heads", "heads", "heads", None, "{torch} heads in PyTorch, {keras} in Keras", "num_heads={torch}"
)


def _number_cause(number: Number, torch: Event, keras: Event) -> Cause | None:
    """Return a cause if both sides have another number."""
    values = torch.numbers.get(number.torch, number.default), keras.numbers.get(number.keras, number.default)
    if None in values:
        return None
    count = max(map(len, map(_listed, values)))
    if _repeated(values[0], count) == _repeated(values[1], count):
        return None
    words = {"torch": _shown(values[0]), "keras": _shown(values[1]), "layer": keras.name}
    remedy = f"Keras: {number.remedy.format(**words)}"
    return Cause(kind=number.kind, text=number.text.format(**words), remedy=remedy, level=number.level)


def causes_inside(
    torch: Event, keras: Event, *, lone_bias: bool = False, pads: Sequence[Pads] = (), same_shape: bool = True
) -> list[Cause]:
    """Return the numbers in which a layer of both differs that is given the same input and arrays.

    Args:
        lone_bias: whether PyTorch alone has one.
        pads: zeros before and after the rows and columns of Keras' input; empty: none are known.
        same_shape: of both outputs.
    """
    numbers = [*IN_LAYER, *([IN_GROUPS] if torch.name == "group_norm" else [])]
    causes = [_number_cause(number, torch, keras) for number in numbers]
    if torch.name.startswith("conv") and causes[1:] == [None, None]:
        causes.append(_padding(torch, keras, pads=pads, same_shape=same_shape))
    if lone_bias:  # one of Keras' alone is zero, and has no effect
        remedy = f"Keras: {keras.name}(use_bias=True)"
        causes.append(Cause(kind="bias", text="only PyTorch has a bias here", remedy=remedy, level="work"))
    shape, axis = torch.numbers.get("normalized_shape", [0]), keras.numbers.get("axis")
    if torch.name == "layer_norm" and axis is not None and len(_listed(axis)) != len(shape):
        text = f"normalized over {_shown(shape)} in PyTorch, over axis {_shown(axis)} in Keras"
        causes.append(Cause(kind="axis", text=text))
    unknown = Cause(kind=UNEXPLAINED, text="the same input and arrays, another output")
    return [cause for cause in causes if cause] or [unknown]


def _padding(torch: Event, keras: Event, *, pads: Sequence[Pads], same_shape: bool) -> Cause | None:
    """Return the padding that differs: "same" in Keras pads more after than before where a stride does not divide."""
    name, other, padding = keras.name, keras.numbers.get("padding"), torch.numbers.get("padding", 0)
    if padding == other:
        return None
    strides = _listed(keras.numbers.get("strides", [1, 1]))
    own, shown, in_words = _repeated(padding, len(strides)), _shown(padding), isinstance(padding, str)
    remedy = "" if in_words else f"Keras: ZeroPadding2D({shown}) before it, and {name}(padding='valid')"
    if "Transpose" in name:
        text, remedy = f"{shown} in PyTorch, {other!r} in Keras", "Keras: padding='valid', then Cropping2D"
    elif other == "same" and max(strides) > 1:
        text = f"{shown} on both sides in PyTorch; 'same' in Keras pads more after than before at a stride"
    elif not in_words and any(zeros != (n, n) for zeros, n in zip(pads, own, strict=False)):
        both = " and ".join(f"{before} before, {after} after" for before, after in dict.fromkeys(pads))
        text, remedy = f"{shown} on both sides in PyTorch, {both} in Keras", f"Keras: ZeroPadding2D({shown})"
    elif other in ("valid", "same") and (not same_shape or any(own)):
        text = f"{shown} in PyTorch, {other!r} in Keras"
    else:
        return None
    return Cause(kind="padding", text=f"padding {text}", remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class Lead:
    """What one side alone computes before a layer, or after the last."""

    first: list[Event] = field(default_factory=list)  # the first events of it
    later: list[Event] = field(default_factory=list)  # what follows them, up to the layer
    source: str = ""  # what hands the layer its input, in words
    inputs: list[str] = field(default_factory=list)  # what the first of the events takes
    prints: list[list[float]] = field(default_factory=list)  # its fingerprints


def cause_between(torch_lead: Lead, keras_lead: Lead, *, reordered: bool = False) -> Cause:
    """Return what one side computes before a layer, and the other does not.

    Args:
        reordered: the same numbers come in, in another order.
    """
    torch, keras = torch_lead.first, keras_lead.first
    if reordered:
        text = "the same numbers in another order: of channels, of positions, or of a flattened image"
        return Cause(kind="order", text=text, remedy="Keras: keras.layers.Permute before it")
    if not torch and not keras:
        text = f"PyTorch gives it {torch_lead.source}, Keras {keras_lead.source or 'something else'}"
        return Cause(kind="wiring", text=text)
    # What both compute, one of them after something else, is not the cause.
    counts = [Counter(map(kind_of, [*lead.first, *lead.later])) for lead in (torch_lead, keras_lead)]
    lone_torch = [event for event in torch if counts[0][kind_of(event)] > counts[1][kind_of(event)]]
    lone_keras = [event for event in keras if counts[1][kind_of(event)] > counts[0][kind_of(event)]]
    if lone_torch or lone_keras:
        torch, keras = lone_torch, lone_keras
    kinds = [kind_of(event) for event in (*torch, *keras)]
    kind = next((kind for kind in kinds if kind != UNEXPLAINED), UNEXPLAINED)
    if torch and keras and len(set(kinds)) == 1:
        cause = _of_one_kind(kind, torch[0], keras[0], leads=(torch_lead, keras_lead))
        if cause:
            return cause
    sides = [" and ".join(dict.fromkeys(map(str, events[:2]))) or "nothing" for events in (torch, keras)]
    return Cause(kind=kind, text=f"PyTorch: {sides[0]}. Keras: {sides[1]}", remedy=_remedy(torch, keras))


def _of_one_kind(kind: str, torch: Event, keras: Event, *, leads: Sequence[Lead]) -> Cause | None:
    """Return in what two functions of one kind differ, if it is known."""
    if kind == "attention":
        masked = bool(torch.numbers.get("masked"))
        if masked != bool(keras.numbers.get("masked")):
            text = f"only {'PyTorch' if masked else 'Keras'} masks its attention (a causal mask, or another)"
            return Cause(kind="mask", text=text, remedy=f"Keras: use_causal_mask={masked}")
        unknown = Cause(kind=kind, text=f"PyTorch: {torch}. Keras: {keras}")
        return _number_cause(IN_ATTENTION, torch, keras) or unknown
    if kind not in ("residual", "concatenation", "scale"):
        return None
    prints, others = (lead.prints for lead in leads)
    if len(prints) == len(others) and all(alike(others, wanted).any() for wanted in prints):
        text = f"both compute {torch.name} of the same numbers, in another order or at other positions"
        return Cause(kind="order", text=text)
    inputs = [" and ".join(lead.inputs) for lead in leads]
    if all(inputs):
        return Cause(kind="wiring", text=f"{torch.name} of {inputs[0]} in PyTorch, of {inputs[1]} in Keras")
    return None


def kind_of(event: Event) -> str:
    """Return what kind of function an event is."""
    name = event.name.lower().removeprefix("tf.").partition("[")[0]
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name)), UNEXPLAINED)


def _remedy(torch: Sequence[Event], keras: Sequence[Event]) -> str:
    """Return how PyTorch's function is written in Keras."""
    if not torch:
        return f"Keras: leave out {keras[0].name}"
    name, numbers = torch[0].name, torch[0].numbers
    if name == "hardtanh" and (numbers.get("min_val"), numbers.get("max_val")) != (0.0, 6.0):
        return ""
    size, stride, padding = (
        numbers.get(name, numbers.get(position))
        for name, position in (("kernel_size", "argument 1"), ("stride", "argument 2"), ("padding", "argument 3"))
    )
    line = IN_KERAS.get(name, "").format(
        slope=numbers.get("negative_slope", numbers.get("argument 1", 0.01)),
        approximate=numbers.get("approximate") == "tanh",
        pads=f"keras.layers.ZeroPadding2D({_shown(padding)}), then " if padding and any(_listed(padding)) else "",
        size=_shown(size),
        stride=_shown(stride or size),
    )
    return f"Keras: {line}" if line else ""


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _repeated(value: Any, count: int) -> list[Any]:
    values = _listed(value)
    return values * count if len(values) == 1 else values


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return str(value[0]) if len(set(value)) == 1 else str(tuple(value))
    return f"{value:g}" if isinstance(value, float) else repr(value)
