"""Horovod is imported where a launcher started the ranks; one process alone trains without it, and without MPI."""

import importlib
import os
from typing import Any

from common.distributed.launchers import under_launcher
from common.errors import UserError


class NoHorovod:
    """Stands for Horovod where it is not imported, for a reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @property
    def error(self) -> UserError:
        """What is wrong where it is needed all the same."""
        return UserError(
            f"several ranks need Horovod. Received: {self._reason}. Run `make setup`, which builds it, or start one "
            "process: python, without a launcher"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks for these itself
            raise AttributeError(name)
        raise self.error


def horovod_module(name: str) -> Any:
    """Return a module of Horovod, such as horovod.torch, or what stands for it."""
    if not under_launcher(os.environ):
        return NoHorovod("one process without a launcher")
    try:
        return importlib.import_module(name)
    except ImportError as error:
        return NoHorovod(f"{type(error).__name__}: {error}")


def lost_rank_errors() -> tuple[type[BaseException], ...]:
    """Return the errors by which Horovod says that another rank has ended."""
    exceptions = horovod_module("horovod.common.exceptions")
    return () if isinstance(exceptions, NoHorovod) else (exceptions.HorovodInternalError,)


def listen_to_hosts(listener: Any) -> None:
    """Have Horovod call `on_hosts_updated` of an object, from another thread, when the hosts change (`--elastic`)."""
    manager = importlib.import_module("horovod.common.elastic").notification_manager  # brings Horovod's launcher along
    manager.init()
    manager.register_listener(listener)
