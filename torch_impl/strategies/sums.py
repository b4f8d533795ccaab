"""What a rank sums up in an epoch, and its generators: all that is neither a weight nor the optimizer's."""

import torch
from torch import Tensor

from common.measurement.metrics import Sums
from common.model.weights import Weights


class PlaceSums:
    """Sums of losses and right answers, which stay on the device: reading them at every step would make it wait.

    One sum per place in the batch, as all batches have one size: the sum within the batch is taken once, at the end.

    Args:
        places: samples of a batch.
    """

    def __init__(self, places: int, *, device: torch.device) -> None:
        self._losses = torch.zeros(places, dtype=torch.float64, device=device)
        self._correct = torch.zeros(places, dtype=torch.int64, device=device)

    def add(self, outputs: Tensor, losses: Tensor, labels: Tensor) -> None:
        """Add those of a batch."""
        self._losses += losses
        self._correct += outputs.argmax(dim=1) == labels

    def read(self, samples: int) -> Sums:
        """Return the sums over all places, of so many samples."""
        return Sums(float(self._losses.sum()), float(self._correct.sum()), samples)

    def state(self) -> Weights:
        """Return the sums, and the state of the generators from which masks of dropout are drawn."""
        arrays = {name: tensor.cpu().numpy().copy() for name, tensor in self._by_name().items()}
        arrays["generator"] = torch.get_rng_state().numpy()
        if self._losses.is_cuda:
            arrays["device_generator"] = torch.cuda.get_rng_state(self._losses.device).numpy()
        return arrays

    def restore(self, state: Weights) -> None:
        """Go on from what `state` returned."""
        for name, tensor in self._by_name().items():
            if name in state:  # not at the start of an epoch
                tensor.copy_(torch.from_numpy(state[name]))
        if "generator" in state:  # not of a rank that joins in the middle of an epoch
            torch.set_rng_state(torch.from_numpy(state["generator"]))
            if self._losses.is_cuda:
                torch.cuda.set_rng_state(torch.from_numpy(state["device_generator"]), self._losses.device)

    def _by_name(self) -> dict[str, Tensor]:
        return {"losses_of_places": self._losses, "correct_of_places": self._correct}
