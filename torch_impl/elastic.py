"""Horovod's part of a run whose ranks come and go (`--elastic`)."""

from torch.distributed import DistError

from common.config import Config
from common.distributed.communicator import Communicator
from common.distributed.horovod_module import lost_rank_errors
from common.run.elastic import Hooks
from torch_impl import distributed


def rejoin(settings: Config) -> Communicator:
    """Leave Horovod and join it again, with the ranks that are there then."""
    distributed.hvd.shutdown()
    return distributed.init(settings)


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an exchange has failed: one of Horovod, or of PyTorch's own, of which Gloo's has no type."""
    if isinstance(error, (*lost_rank_errors(), DistError)):
        return True
    return isinstance(error, RuntimeError) and "gloo" in str(error).lower()


HOOKS = Hooks(horovod=distributed.hvd, rejoin=rejoin, is_lost_rank=is_lost_rank)
