"""torchvision beside a PyTorch without CUDA."""

from types import ModuleType

import torch


def declare_missing_operators() -> None:
    """Let `import torchvision` work.

    The wheel of torchvision on PyPI is built for CUDA. Beside a PyTorch without CUDA its compiled part cannot load, and
    the import fails on two operators that it looks up by name; declared here, the models work, which do not use them.
    """
    if not torch.cuda.is_available() and torch.version.cuda is None:
        library = torch.library.Library("torchvision", "FRAGMENT")
        _keep_alive.append(library)
        for schema in (
            "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
            "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        ):
            if not hasattr(torch.ops.torchvision, schema.split("(")[0]):
                library.define(schema)


def torchvision_models() -> ModuleType:
    """Return `torchvision.models`."""
    declare_missing_operators()
    import torchvision.models

    return torchvision.models


_keep_alive: list[torch.library.Library] = []
