"""Horovod's part of a run whose ranks come and go (`--elastic`)."""

from typing import Any

from torch.distributed import DistError

from common.config import Config
from common.distributed.communicator import Communicator
from common.distributed.horovod_module import lost_rank_errors
from common.elastic.membership import Hooks
from torch_impl import distributed


def elastic_hooks(settings: Config) -> Hooks:
    """Return how this process leaves Horovod and joins it again, and how it learns that it has to."""

    def rejoin() -> Communicator:
        distributed.hvd.shutdown()
        return distributed.init(settings)

    return Hooks(rejoin=rejoin, is_lost_rank=_is_lost_rank, listen=_listen)


def _is_lost_rank(error: BaseException) -> bool:
    """Return whether an exchange has failed: one of Horovod, or of PyTorch's own, of which Gloo's has no type."""
    if isinstance(error, (*lost_rank_errors(), DistError)):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()


def _listen(listener: Any) -> None:
    from horovod.common.elastic import notification_manager  # brings Horovod's launcher along, which other runs spare

    notification_manager.init()
    notification_manager.register_listener(listener)
