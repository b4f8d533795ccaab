"""Horovod's part of a run whose ranks come and go (`--elastic`)."""

import keras
import tensorflow as tf

from common.config import Config
from common.distributed.communicator import Communicator
from common.distributed.horovod_module import lost_rank_errors
from common.run.elastic import Hooks
from keras_impl import distributed


def rejoin(settings: Config) -> Communicator:
    """Leave Horovod and join it again, with the ranks that are there then."""
    distributed.hvd.shutdown()
    # Ranks match operations by name: those of a model that is built again have to be those of a new rank's first.
    keras.utils.clear_session()
    distributed.gradient_exchange.name_anew()
    return distributed.init(settings)


def is_lost_rank(error: BaseException) -> bool:
    """Return whether an exchange has failed: of TensorFlow's own, or of Horovod, which it reports as unknown."""
    if isinstance(error, (*lost_rank_errors(), tf.errors.UnavailableError)):
        return True
    # The message is Horovod's, or that of Gloo below it.
    words = str(error).lower()
    return isinstance(error, tf.errors.UnknownError) and ("horovod" in words or "gloo" in words)


HOOKS = Hooks(horovod=distributed.hvd, rejoin=rejoin, is_lost_rank=is_lost_rank)
