"""Depthwise convolutions by shifted products: PyTorch has no fast ones in float64, and computes channel by channel."""

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F


def is_depthwise(named: dict[str, Any]) -> bool:
    """Return whether `F.conv2d` is given a filter for each channel, and padding in numbers."""
    images, weight = named.get("input"), named.get("weight")
    if not isinstance(images, torch.Tensor) or not isinstance(weight, torch.Tensor) or images.ndim != 4:
        return False
    return named.get("groups", 1) == images.shape[1] == len(weight) > 1 and not isinstance(named.get("padding"), str)


def depthwise(named: dict[str, Any]) -> torch.Tensor:
    """Return what `F.conv2d` returns for its arguments."""
    weight, bias, pads = named["weight"], named.get("bias"), _pair(named.get("padding", 0))
    (down, right), steps = _pair(named.get("stride", 1)), _pair(named.get("dilation", 1))
    images = F.pad(named["input"], (pads[1], pads[1], pads[0], pads[0]))
    height, width = (images.shape[2 + axis] - steps[axis] * (weight.shape[2 + axis] - 1) for axis in (0, 1))
    total: Any = 0
    for row, column in product(range(weight.shape[2]), range(weight.shape[3])):
        top, left = row * steps[0], column * steps[1]
        shifted = images[:, :, top : top + height : down, left : left + width : right]
        total = total + shifted * weight[:, 0, row, column, None, None]
    return total if bias is None else total + bias[:, None, None]


def _pair(value: Any) -> tuple[int, int]:
    both = value if isinstance(value, tuple | list) else (value,)
    return both[0], both[-1]
