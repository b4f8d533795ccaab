"""What each rank measures in one pass over samples, and its reduction over all ranks."""

from dataclasses import dataclass

import numpy as np

from common.distributed.communicator import Communicator
from common.measurement.metrics import Sums


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The sums and the time of one pass; the defaults mean that no pass was made.

    Attributes:
        data_wait_seconds: the part of `seconds` spent waiting for batches, where that is measured.
    """

    sums: Sums = Sums()  # noqa: RUF009 - frozen
    seconds: float = 0.0
    data_wait_seconds: float = 0.0

    def over_ranks(self, comm: Communicator) -> "Measured":
        """Return the sums added over the ranks, and the times of the slowest; every rank calls this.

        Of the ranks that hold a model together, one has the sums.
        """
        sums = comm.sum(np.array(self.sums, np.float64) * comm.has_outputs)
        seconds, wait = comm.maximum(np.array([self.seconds, self.data_wait_seconds]))
        return Measured(sums=Sums(*sums.tolist()), seconds=float(seconds), data_wait_seconds=float(wait))


NOT_MEASURED = Measured()
