"""Settings of the device, and of the exchange of gradients."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from common.config.rules import NOTHING, SPEED, Count, Precision, Settings

# Loss scaling of mixed precision, for which the frameworks have different defaults: the initial factor, which is halved
# after each overflow, and the number of updates without overflow after which it is doubled.
INITIAL_LOSS_SCALE = 2.0**15
LOSS_SCALE_GROWTH_STEPS = 2000

# Value of `--gradient-groups` -> number of groups, each averaged in one all-reduce; None: each tensor is its own.
Groups = Literal["one", "2", "4", "each"]
GRADIENT_GROUPS: dict[Groups, int | None] = {"one": 1, "2": 2, "4": 4, "each": None}


@dataclass(frozen=True)
class DeviceConfig(Settings):
    """the device, and the exchange of gradients"""

    device: Annotated[Literal["auto", "cpu", "gpu"], NOTHING] = "auto"
    """auto: one GPU per rank if there are GPUs, otherwise the CPU"""
    mixed_precision: Precision = "none"
    """type in which layers compute, with float32 weights: float16, with loss scaling, on GPUs only; or bfloat16"""
    tf32: bool = False
    """let GPUs since Ampere round the factors of float32 products to 10 bits, as TensorFlow does by default"""
    cudnn_benchmark: Annotated[bool, SPEED] = False
    """let cuDNN benchmark its algorithms and use the fastest, whose sums may differ in their last bits between runs;
    without this flag, only kernels that always add in the same order are used"""
    channels_last: Annotated[bool, SPEED] = True
    """layout of images and activations: height, width, channels; --no-channels-last: channels first (Keras: on GPUs
    only). PyTorch's weights stay channels first, because Horovod exchanges no other layout"""
    pinned_memory: Annotated[bool, SPEED] = False
    """copy batches to the GPU from page-locked memory, while the GPU computes; a copy from other memory waits for the
    GPU, which counts as waiting for data. PyTorch only, because TensorFlow manages its own copies"""
    share_gpu: Annotated[bool, SPEED] = False
    """let the ranks of a host share its GPUs, for tests: gradients go through host memory, because NCCL refuses two
    ranks on one GPU; the times of such a run are not compared"""
    threads: Annotated[int, Field(ge=1, le=1024), NOTHING] | None = None
    """compute threads per rank (None: cores of the host / ranks on the host)"""
    compression: Literal["none", "fp16"] = "none"
    """type in which gradients are sent: none: unchanged; fp16: float16"""
    gradient_groups: Annotated[Literal["one", "2", "4", "each", "auto"], SPEED] = "one"
    """one: average all gradients in one grouped all-reduce; 2 or 4: in this many groups, each sent as soon as its
    gradients are ready; each: every tensor separately; auto: the fastest of these, measured before training"""
    backward_passes_per_step: Annotated[Count, SPEED] = 1
    """gradient accumulation, for allreduce: number of batches per rank whose gradients are averaged before one exchange
    and one update. The global batch size is this many times larger, and --lr-scaling counts batches like ranks"""
    memory_limit: Annotated[int, Field(ge=1, le=10**9), SPEED] | None = None
    """megabytes (10^6 bytes) that a rank may use in addition to its memory use before its model is built; the run ends
    if a rank uses more"""

    @property
    def exchanges_in_host_memory(self) -> bool:
        """Whether gradients are in host memory when they are exchanged, whatever GPUs there are."""
        return self.device == "cpu" or self.share_gpu

    @property
    def groups(self) -> int | None:
        """Number of groups in which gradients are averaged; None: each tensor is its own."""
        assert self.gradient_groups != "auto", "it is measured before training"
        return GRADIENT_GROUPS[self.gradient_groups]
