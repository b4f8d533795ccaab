"""What both programs `support.py` share: each case is tried in processes of its own, and becomes a row of a table."""

import json
import os
import re
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import numpy as np

MARK = "outcome: "
SECONDS = 120  # bound for a case: some strategies wait for ever
STEPS, BATCH = 10, 16  # the latter over all workers
RATE, MOMENTUM = 0.0625, 0.5  # exact in every type
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Case:
    """A strategy and a way of training, in so many processes of which the first reports."""

    strategy: str
    way: str
    processes: int = 1


# Given the case, the number of the process and the addresses of all: trains, and returns what came of it.
Try = Callable[[Case, int, list[str]], str]


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (samples, 8) and targets (samples, 4) of a linear problem, float64."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(STEPS * BATCH, 8))
    return inputs, inputs @ generator.normal(size=(8, 4))


def first_weights() -> list[np.ndarray]:
    """Return kernel (8, 4) and bias (4,) of the model."""
    return [np.full((8, 4), 0.1), np.zeros(4)]


def one_process() -> list[np.ndarray]:
    """Return the weights with which one process ends after an epoch of SGD with momentum."""
    weights, velocities = first_weights(), [np.zeros_like(one) for one in first_weights()]
    inputs, labels = data()
    for start in range(0, STEPS * BATCH, BATCH):
        x, y = inputs[start : start + BATCH], labels[start : start + BATCH]
        error = 2 * (x @ weights[0] + weights[1] - y) / y.size
        for weight, velocity, gradient in zip(weights, velocities, (x.T @ error, error.sum(axis=0)), strict=True):
            velocity *= MOMENTUM
            velocity += gradient
            weight -= RATE * velocity
    return weights


def compared(weights: Sequence[np.ndarray]) -> str:
    """Return the outcome of a training that should end as one process does."""
    differences = [float(np.abs(ours - theirs).max()) for ours, theirs in zip(weights, one_process(), strict=True)]
    return "works" if max(differences) < TOLERANCE else f"wrong: {max(differences):.1g} away from one process"


def improved(weights: Sequence[np.ndarray]) -> str:
    """Return the outcome of a training whose workers do not wait for each other."""
    before, after = (loss_of(one) for one in (first_weights(), weights))
    return "works" if after < before else f"wrong: the loss of {before:.3g} became {after:.3g}"


def loss_of(weights: Sequence[np.ndarray]) -> float:
    """Return the mean squared error."""
    inputs, labels = data()
    return float(np.mean((inputs @ weights[0] + weights[1] - labels) ** 2))


def main(cases: Sequence[Case], try_case: Try, *, versions: str) -> None:
    """Print the table of all cases or, as a process of a case, train."""
    if len(sys.argv) == 1:
        rows = [f"| {case.strategy} | {case.way} | {tried(case)} |" for case in cases]
        print("\n".join([f"| {versions} | trained by | outcome |", "|---|---|---|", *rows]))
        return
    case, number, addresses = json.loads(sys.argv[1])
    try:
        result = try_case(Case(**case), number, addresses)
    except BaseException as error:
        traceback.print_exc()
        text = re.sub(r", numpy=.*?(?=>)", "", " ".join(str(error).split()))  # of a tensor its type is enough
        result = f"{type(error).__name__}: {text}"
    sys.stdout.write(f"\n{MARK}{json.dumps(result)}\n")
    sys.stdout.flush()
    os._exit(0)  # some strategies wait for others at their end


def tried(case: Case) -> str:
    """Return what came of a case."""
    with ExitStack() as stack:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(case.processes)]
        processes = []
        for number in range(case.processes):
            argument = json.dumps([asdict(case), number, addresses])
            command = [sys.executable, sys.argv[0], argument]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            stack.callback(process.kill)
            processes.append(process)
        try:
            text, _ = processes[0].communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"does not end within {SECONDS} s"
        found = [line.removeprefix(MARK) for line in text.splitlines() if line.startswith(MARK)]
        return json.loads(found[0]) if found else f"dies (exit code {processes[0].returncode})"


def free_ports(count: int) -> list[int]:
    """Return ports of this host that nothing uses."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
