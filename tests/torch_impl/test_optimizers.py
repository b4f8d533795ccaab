"""Optimizers compute what PyTorch's own do, and do not load its compiler, which no optimizer here needs."""

import json
import subprocess
import sys
from pathlib import Path

from rule_workers import TESTS, environment

UPDATES = """
import json, sys
from dataclasses import replace
import numpy as np, torch
from common.config import Config
from torch_impl.optimizers import build_optimizer
from torch_impl.train import main

RULES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}

def updated(optimizer_of):
    torch.manual_seed(1)
    model = torch.nn.Linear(5, 3)
    optimizer = optimizer_of(model)
    for step in range(4):
        optimizer.zero_grad()
        (model(torch.ones(2, 5)) ** 2).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    return model.weight.tolist()

def ours(rule):
    config = replace(Config(), optimizer=replace(Config().optimizer, optimizer=rule))
    return updated(lambda model: build_optimizer(model, config, learning_rates=np.array([0.01])))

def theirs(rule):
    config = Config().optimizer
    given = {
        "sgd": {"momentum": config.momentum},
        "rmsprop": {"alpha": config.alpha, "eps": config.epsilon},
    }.get(rule, {"betas": (config.beta1, config.beta2), "eps": config.epsilon})
    return updated(lambda model: RULES[rule](model.parameters(), lr=0.01, weight_decay=config.weight_decay, **given))

main(["--model", "mlp", "--dataset", "synthetic:64x28x28x1x10", "--max-steps", "1", "--runs-folder", sys.argv[1]])
found = {rule: ours(rule) for rule in RULES}
loaded = "torch._dynamo" in sys.modules
print(json.dumps({"loaded": loaded, "same": {rule: found[rule] == theirs(rule) for rule in RULES}}))
"""


def test_optimizers_compute_what_pytorchs_own_do_without_its_compiler(tmp_path: Path) -> None:
    """A whole run does not load it either."""
    command = [sys.executable, "-c", UPDATES, str(tmp_path)]
    done = subprocess.run(command, env=environment(), cwd=TESTS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "loaded": False,
        "same": dict.fromkeys(["sgd", "adam", "adamw", "rmsprop"], True),
    }
