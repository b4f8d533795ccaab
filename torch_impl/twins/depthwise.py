"""Depthwise convolutions by shifted products: PyTorch has no fast ones in float64, and computes channel by channel."""

from typing import Any

import torch
import torch.nn.functional as F


def is_depthwise(named: dict[str, Any]) -> bool:
    """Return whether `F.conv2d` is given a filter for each channel, and padding in numbers."""
    images, weight = named.get("input"), named.get("weight")
    if not isinstance(images, torch.Tensor) or not isinstance(weight, torch.Tensor) or images.ndim != 4:
        return False
    groups = named.get("groups", 1)
    return groups == images.shape[1] == len(weight) > 1 and not isinstance(named.get("padding", 0), str)


def depthwise(named: dict[str, Any]) -> torch.Tensor:
    """Return what `F.conv2d` returns for its arguments."""
    images, weight, bias = named["input"], named["weight"], named.get("bias")
    strides, pads, dilations = (
        _pair(named.get(name, one)) for name, one in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    padded = F.pad(images, (pads[1], pads[1], pads[0], pads[0]))
    height, width = (
        (size - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel, stride, dilation in zip(padded.shape[2:], weight.shape[2:], strides, dilations, strict=True)
    )
    total = None
    for row in range(weight.shape[2]):
        for column in range(weight.shape[3]):
            top, left = row * dilations[0], column * dilations[1]
            rows = slice(top, top + (height - 1) * strides[0] + 1, strides[0])
            columns = slice(left, left + (width - 1) * strides[1] + 1, strides[1])
            product = padded[:, :, rows, columns] * weight[:, 0, row, column, None, None]
            total = product if total is None else total + product
    assert total is not None
    return total if bias is None else total + bias[:, None, None]


def _pair(value: Any) -> tuple[int, int]:
    both = tuple(value) if isinstance(value, tuple | list) else (value,)
    return (both[0], both[-1])
