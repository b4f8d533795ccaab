"""oneDNN on or off in PyTorch, which has a switch."""

from typing import Any

import torch

from common.distributed.pinning import check_onednn


def use_onednn(asked: str) -> None:
    """Let oneDNN compute on the CPU of this process, or not, as `--onednn` says.

    Raises:
        UserError: it cannot be as asked for.
    """
    _mkldnn().enabled = asked != "off"
    check_onednn(asked, is_on=onednn_is_on())


def onednn_is_on() -> bool:
    """Return whether oneDNN computes in this process, as PyTorch says."""
    return bool(_mkldnn().enabled and _mkldnn().is_available())


def _mkldnn() -> Any:
    return torch.backends.mkldnn  # oneDNN's earlier name
