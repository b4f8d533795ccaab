"""`--topk`: only the largest gradients are averaged, and each rank adds the others to its next ones."""

import numpy as np
import torch
from torch import Tensor, nn

from common.run_folder.sharing import SharingRecord
from common.strategies.sharing import kept_entries, sparse_record
from torch_impl.distributed import gather
from torch_impl.strategies.strategy import Strategy


class TopK(Strategy):
    """Error feedback (Stich et al., arXiv 1809.07599); gradients are one vector, tensor by tensor."""

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, learning_rates: np.ndarray) -> None:
        """Take the model and the optimizer; nothing is left of gradients yet."""
        super().wrap(model, optimizer, learning_rates=learning_rates)
        weights = list(model.parameters())
        self._residual = weights[0].new_zeros(sum(weight.numel() for weight in weights))

    def kept(self) -> dict[str, Tensor]:
        """Return what is left of gradients."""
        return {"residual": self._residual}

    def before_update(self) -> None:
        """Average the largest entries of each gradient, which has this rank's weight in the mean already."""
        gradients = self.gradients()
        sizes = [gradient.numel() for gradient in gradients]
        total = self._residual + torch.cat([gradient.flatten() for gradient in gradients])
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        parts = zip(starts, total.split(sizes), strict=True)
        indices = torch.cat([start + self._largest(part) for start, part in parts])
        self._residual.copy_(total.index_fill(0, indices, 0))
        average = total - self._residual  # of one rank
        if self.comm.size > 1:
            average = self._average(total[indices], indices.int())
        for gradient, part in zip(gradients, average.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _average(self, values: Tensor, indices: Tensor) -> Tensor:
        """Return the average of vectors of which each rank has only these entries: values, int32 indices."""
        own = {"sparse_values": values, "sparse_indices": indices}
        parts = [entries.view(-1, len(values)) for entries in gather(own, config=self.config.device, meter=self.meter)]
        average = torch.zeros_like(self._residual)
        for of_rank, places in zip(*parts, strict=True):  # one after the other: the same sums on all ranks
            average[places] += of_rank / self.comm.size
        return average

    def _largest(self, part: Tensor) -> Tensor:
        """Return the places of the entries of one tensor that are sent; of equal ones, the first."""
        return part.abs().sort(descending=True, stable=True).indices[: kept_entries(self.config.strategy, len(part))]

    def exchanged(self) -> SharingRecord | None:
        """Return what this rank exchanged in its updates."""
        return sparse_record(self.task, self.meter, rank=self.comm.rank)
