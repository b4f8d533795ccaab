"""The sources of the two trainers are twins: the same files, names and parameters, the same steps."""

import ast
import difflib
import itertools
import re
from pathlib import Path

import pytest

from common.checks.parity_cases import IMAGES

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("torch", "keras")
# Files that one side alone has, and why.
EXTRA_FILES = {
    "torch": {
        "vision.py": "torchvision's wheel beside a PyTorch without CUDA",
    },
    "keras": {
        "batch_norm.py": "PyTorch's running variance; Keras keeps the biased one",
        "distributed_optimizer.py": "Horovod's DistributedOptimizer, which averages nothing under Keras 3",
        "exchange_meter.py": "counts inside a graph; PyTorch's loop takes the one of `common`",
        "gradient_exchange.py": "the Horovod calls behind it",
        "pipeline.py": "messages inside a graph; PyTorch's loop takes those of `common`",
        "onednn.py": "TensorFlow reads its variable as it is imported; PyTorch has a switch",
        "quiet_tensorflow.py": "TensorFlow without its start-up lines",
        "update_rules.py": "PyTorch's update rules",
    },
}
# Public names that one side alone has, and why. A model is a class in PyTorch and a function of tensors in Keras.
EXTRA_NAMES = {
    "torch": {
        "server.py": {"Server.wrap_model": "see Native.wrap_model"},
        "native.py": {
            "Native.wrap_model": "see Native.scope of Keras",
            "join_ranks": "TensorFlow's strategies find each other by TF_CONFIG",
        },
        "model_parallel.py": {"ModelParallel.wrap_model": "the same"},
        "parts.py": {
            "PartOfModel": "a model is a class in PyTorch and a function in Keras",
            "PartOfModel.__init__": "the same",
            "PartOfModel.forward": "the same",
            "PartOfModel.share": "Keras cuts a model of functions by its tensors",
        },
        "strategies.py": {"Strategy.wrap_model": "the same"},
        "straggler.py": {
            "LateGradient": "PyTorch sleeps in the backward pass, in which gradients are exchanged; Keras after it",
            "LateGradient.__init__": "the same",
            "LateGradient.start": "the same",
            "planted_slowdown": "the same",
        },
    },
    "keras": {
        "profiled.py": {"ProfiledTrainer.warm_up": "as Trainer.warm_up"},
        "model_parallel.py": {"ModelParallel.scope": "see Native.scope", "StageTrainer.warm_up": "as Trainer.warm_up"},
        "distributed.py": {"exchange_device": "TensorFlow names the place of an operation; PyTorch moves its tensors"},
        "layers.py": {"padded": "Keras pads in a layer of its own"},
        "parts.py": {
            "part_of_model": "see PartOfModel",
            **dict.fromkeys(
                [
                    f"{kind}{method}"
                    for kind in ("SplitConvolution", "ColumnsDense", "RowsDense", "Gather")
                    for method in ("", ".__init__", ".call")
                    if (kind, method) != ("RowsDense", ".__init__")
                ],
                "what a rank computes of a layer is a Keras layer; PyTorch's part has it in its forward pass",
            ),
        },
        "loop.py": {
            "Trainer.warm_up_evaluation": "Keras builds a graph at the first evaluation, PyTorch builds nothing",
        },
        "native.py": {
            "Native.scope": "TensorFlow copies variables where they are made; PyTorch wraps a model",
            "NativeTrainer": "the loop of several replicas in one process, which PyTorch has not",
        },
        "strategies.py": {"Strategy.scope": "see Native.scope"},
        "straggler.py": {"late": "see LateGradient", "timed_from_here": "the clock of a graph"},
        "models.py": {
            "set_precision_and_layout": "both are global in Keras; PyTorch's are those of tensors and autocast"
        },
        "server.py": {"Server.scope": "see Native.scope"},
        "state.py": {"TrainingState.trainable": "Keras' variables have a layout of their own"},
        "weights.py": {
            "WeightMap": "Keras' layouts differ from the file's, PyTorch's are the file's",
            "weight_maps": "the same",
        },
        "optimizers.py": {
            "LearningRates": "Keras asks a schedule, PyTorch is given the rate of each step",
            "LearningRates.__init__": "the same",
            "LearningRates.get_config": "the same",
            "LossScaleOptimizer": "PyTorch's loss scale is no optimizer, and its loop counts the steps",
            "LossScaleOptimizer.build": "the same",
            "LossScaleOptimizer.apply": "the same",
        },
    },
}
# Parameters that one side alone has (torch's, Keras'), and why.
EXTRA_PARAMETERS = {
    # PyTorch's loop sets the rate of each step, Keras' optimizer looks it up.
    ("loop.py", "Trainer.__init__"): ({"learning_rates"}, set()),
    ("profiled.py", "ProfiledTrainer.__init__"): ({"learning_rates"}, set()),
    # A split layer is a Keras layer of another kind; PyTorch's part has what it adds in its forward pass.
    ("layers.py", "dense"): (set(), {"kind"}),
    ("layers.py", "convolution"): (set(), {"kind"}),
    # PyTorch's optimizers count no updates.
    ("strategies.py", "Averaging.__init__"): ({"step"}, set()),
    # TensorFlow accepts the number of threads once, so the worker pins the device once for all contestants.
    ("bench_worker.py", "build_contestant"): (set(), {"device"}),
}
# Statements that one train.py alone has (torch's, Keras'), and why.
EXTRA_STATEMENTS = {
    "torch": {
        "trainer = trainer_class(state, data, learning_rates=learning_rates, phases=session.phases)": "see above",
        "model = strategy.wrap_model(build_model(spec, config.model, exchange=strategy.exchange).to(device))": (
            "no devices in Keras"
        ),
        "checkpoint = session.start(setup, device=str(device), gpu=gpu, threads=threads)": "a torch.device has a name",
    },
    "keras": {
        "trainer = trainer_class(state, data, phases=session.phases)": "see above",
        "model = build_model(spec, config.model, exchange=strategy.exchange)": "see above",
        "with strategy.scope():": "TensorFlow's strategies copy variables where they are made",
        "checkpoint = session.start(setup, device=device, gpu=gpu, threads=threads, pinned_memory=NOT_PINNED)": "same",
        "set_precision_and_layout(config)": "both are global in Keras",
        "from X_impl.onednn import say_without_onednn": "TensorFlow uses it by default on some processors only",
        "say_without_onednn(session.console, asked=config.model.onednn, device=device)": "same",
        "strategy.meter.restart()": "Keras' warm-up exchanges gradients, too",
        "trainer.warm_up_evaluation()": "see its name above",
    },
}
LONGEST_TRAIN = 120  # lines


def public_api(file):
    """Return the public functions and methods of a file with their parameters, and its classes (None)."""
    names = {}

    def collect(body, prefix):
        for node in body:
            if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
                arguments = node.args
                names[prefix + node.name] = {
                    argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
                }
            elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                names[prefix + node.name] = None
                collect(node.body, f"{prefix}{node.name}.")

    collect(ast.parse(file.read_text()).body, "")
    return names


def twin_files():
    """Return (torch's name, path, Keras' path) of the files that both sides have."""
    torch_names = sorted({file.name for file in (ROOT / "torch_impl").glob("*.py")} - set(EXTRA_FILES["torch"]))
    return [(name, ROOT / "torch_impl" / name, ROOT / "keras_impl" / name) for name in torch_names]


def test_same_files():
    names = {
        side: {file.name for file in (ROOT / f"{side}_impl").glob("*.py")} - set(EXTRA_FILES[side])
        for side in FRAMEWORKS
    }
    assert names["torch"] == names["keras"]
    for side, extra in EXTRA_FILES.items():
        assert all((ROOT / f"{side}_impl" / name).exists() for name in extra), "an exception that is none any more"


@pytest.mark.parametrize(
    ("name", "torch_file", "keras_file"), twin_files(), ids=lambda value: getattr(value, "name", value)
)
def test_same_public_names_and_parameters(name, torch_file, keras_file):
    torch_api, keras_api = public_api(torch_file), public_api(keras_file)
    if name == "models.py":
        torch_models = {key for key in torch_api if "." not in key} - {"build_model"}
        keras_models = set(keras_api) - {"build_model"} - set(EXTRA_NAMES["keras"][name])
        assert {model.lower() for model in torch_models} == keras_models == set(IMAGES)
        assert torch_api["build_model"] == keras_api["build_model"]
        return
    torch_extra = set(EXTRA_NAMES["torch"].get(name, {}))
    keras_extra = set(EXTRA_NAMES["keras"].get(name, {}))
    assert set(torch_api) - torch_extra == set(keras_api) - keras_extra
    assert torch_extra <= set(torch_api) and keras_extra <= set(keras_api), "an exception that is none any more"
    for function in set(torch_api) & set(keras_api):
        ours, theirs = torch_api[function] or set(), keras_api[function] or set()
        assert (ours - theirs, theirs - ours) == EXTRA_PARAMETERS.get((name, function), (set(), set())), function


STEP = re.compile(r"^ *# Horovod (\d)/7 - ([^:]+): \S")
STEPS = [
    ("1", "init", "distributed.init"),
    ("2", "pin", "distributed.pin_device"),
    ("3", "shard", "ShardedData"),
    ("4", "scale", "setup.scaled_learning_rates"),
    ("5", "wrap", "strategy.wrap_optimizer"),
    ("6", "broadcast", "strategy.broadcast_state"),
    ("7", "rank 0 only", "session.record_epoch"),
]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_each_of_the_seven_comments_is_directly_above_the_call_that_does_the_step(framework):
    lines = train_lines(framework)
    found = []
    for line, following in itertools.pairwise(lines):
        if match := STEP.match(line):
            statement = ast.parse(following.strip()).body[0]
            assert isinstance(statement, ast.Expr | ast.Assign) and isinstance(statement.value, ast.Call), following
            found.append((match[1], match[2], ast.unparse(statement.value.func)))
    assert found == STEPS


def test_both_train_files_are_the_same_but_for_what_the_frameworks_force():
    torch_lines, keras_lines = (
        [line.strip().replace(f"{framework}_impl", "X_impl") for line in train_lines(framework)]
        for framework in FRAMEWORKS
    )
    changes = list(difflib.ndiff(torch_lines, keras_lines))
    only = {"torch": [c[2:] for c in changes if c[0] == "-"], "keras": [c[2:] for c in changes if c[0] == "+"]}
    for framework in FRAMEWORKS:
        statements = {line for line in only[framework] if line and not is_about_the_framework(line)}
        assert statements == set(EXTRA_STATEMENTS[framework])


def is_about_the_framework(line):
    """Return whether a line differs by the framework's name alone, or is an import or TensorFlow's start-up."""
    named = (
        "Train a model with",
        "is its twin",
        'framework="',
        "import X_impl  # isort: skip",
        "import X_impl.onednn",
        "import X_impl.quiet_tensorflow",
        "from X_impl.models import",
        "from X_impl.data import",
    )
    return any(word in line for word in named)


def train_lines(framework):
    return (ROOT / f"{framework}_impl/train.py").read_text().splitlines()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_train_is_short_and_has_no_nested_function(framework):
    assert len(train_lines(framework)) <= LONGEST_TRAIN
    for function in ast.walk(ast.parse("\n".join(train_lines(framework)))):
        if isinstance(function, ast.FunctionDef):
            inner = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef | ast.Lambda)]
            assert inner in ([function], []), function.name
