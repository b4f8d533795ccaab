"""The smallest honest Horovod script in PyTorch: the article's dense 500-256-10 model, on synthetic data.

    horovodrun -np 2 python torch_impl/minimal.py                           two ranks, each with batches of 32
    python torch_impl/minimal.py --batch-size 64 --learning-rate 0.02       the same updates in one process

Nothing of this project is needed but this file. For the trainer with all settings, see train.py.
"""

import argparse
import time
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description="Train a dense 500-256-10 model with PyTorch on Horovod.")
parser.add_argument("--batch-size", type=int, default=32, help="per rank (default: %(default)s)")
parser.add_argument("--learning-rate", type=float, default=0.01, help="per rank (default: %(default)s)")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
parser.add_argument("--output", type=Path, help="save the weights to this new file (default: nowhere)")
args = parser.parse_args()
if args.output and args.output.exists():
    parser.error(f"argument --output: no file is overwritten. Received: {args.output}, which exists")

hvd.init()  # 1. Init: the processes of the launcher find each other.
device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")  # 2. Pin.
torch.set_default_dtype(getattr(torch, args.dtype))

random = np.random.default_rng(0)  # the same on all ranks
classes = random.integers(10, size=5120)
points = random.normal(size=(10, 500))[classes] + random.normal(scale=4.0, size=(5120, 500))  # around 10 centers
inputs, labels = torch.tensor(points, dtype=torch.get_default_dtype()), torch.tensor(classes)
train_data = TensorDataset(inputs[:4096], labels[:4096])
# 3. Shard: each rank takes every size-th sample, or all would compute the same. Equal shards: none waits for another.
sampler: DistributedSampler = DistributedSampler(train_data, hvd.size(), hvd.rank(), drop_last=True)
loader = DataLoader(train_data, args.batch_size, sampler=sampler, drop_last=True)

torch.manual_seed(hvd.rank())  # each rank draws its own weights, until the broadcast
model = torch.nn.Sequential(torch.nn.Linear(500, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)).to(device)
loss_function = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate * hvd.size())  # 4. Scale with the global batch.
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())  # 5. Wrap: average the gradients.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # 6. Broadcast: all ranks start from rank 0's state.
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(1, args.epochs + 1):
    start, losses = time.perf_counter(), []
    sampler.set_epoch(epoch)  # a new order, the same on all ranks
    for batch, targets in loader:
        optimizer.zero_grad()
        loss = loss_function(model(batch.to(device)), targets.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if hvd.rank() == 0:
        speed = len(losses) * args.batch_size * hvd.size() / (time.perf_counter() - start)
        mean = sum(losses) / len(losses)
        print(f"np {hvd.size()}, epoch {epoch}/{args.epochs}: loss {mean:.4f}, {speed:,.0f} images/s", flush=True)

if hvd.rank() == 0:  # 7. Rank 0 only: the weights are the same everywhere.
    with torch.no_grad():
        predictions = model(inputs[4096:].to(device)).argmax(dim=1).cpu()
    print(f"test accuracy: {(predictions == labels[4096:]).double().mean():.4f}")
    if args.output:
        torch.save(model.state_dict(), args.output)
