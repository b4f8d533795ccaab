"""Horovod's part of a run whose ranks come and go (`--elastic`)."""

from typing import Any

import keras
import tensorflow as tf

from common.config import Config
from common.distributed.communicator import Communicator
from common.distributed.horovod_module import lost_rank_errors
from common.elastic.membership import Hooks
from keras_impl import distributed


def elastic_hooks(settings: Config) -> Hooks:
    """Return how this process leaves Horovod and joins it again, and how it learns that it has to."""

    def rejoin() -> Communicator:
        distributed.hvd.shutdown()
        # Ranks match operations by name: those of a model that is built again have to be those of a new rank's first.
        keras.utils.clear_session()
        distributed.gradient_exchange.name_anew()
        return distributed.init(settings)

    return Hooks(rejoin=rejoin, is_lost_rank=_is_lost_rank, listen=_listen)


def _is_lost_rank(error: BaseException) -> bool:
    """Return whether an exchange has failed: of TensorFlow's own, or of Horovod, which it reports as unknown."""
    if isinstance(error, (*lost_rank_errors(), tf.errors.UnavailableError)):
        return True
    # The message is Horovod's, or that of Gloo below it.
    words = str(error).lower()
    return isinstance(error, tf.errors.UnknownError) and ("horovod" in words or "gloo" in words)


def _listen(listener: Any) -> None:
    from horovod.common.elastic import notification_manager  # brings Horovod's launcher along, which other runs spare

    notification_manager.init()
    notification_manager.register_listener(listener)
