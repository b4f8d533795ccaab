"""What jobs of ranks may break or replace in a trainer (`Job.patch`): each is undone when the job ends.

Each is a function of the framework that returns a context.
"""

import contextlib
import functools
import importlib
import itertools
import os
import resource
import threading
import time
from unittest import mock

import numpy as np

from common.data import batches
from common.distributed.horovod_module import NoHorovod
from common.distributed.launchers import launcher_rank
from common.errors import UserError
from common.measurement.exchange_meter import ExchangeMeter
from common.measurement.timing import Phases
from common.model import specs as model_specs
from common.parameter_server import client
from common.run import checkpoints
from common.task import schedule
from common.task import task as task_module

FILLER = "filler"


def _module(framework, name):
    return importlib.import_module(f"{framework}_impl.{name}")


def _rank():
    return launcher_rank(os.environ)


def unaveraged(framework):
    """Let every rank learn from its own gradients, as Horovod's own optimizer silently does under Keras 3."""
    if framework == "keras":
        exchange = _module("keras", "horovod_keras3.exchange").GradientExchange
        return mock.patch.object(exchange, "__call__", lambda self, gradients, variables: list(gradients))
    strategies = _module("torch", "strategies")
    return mock.patch.object(strategies, "AllReduce", strategies.Strategy)


def spoiled_average(framework):
    """Let rank 1 take part in the averaging and then learn from something else."""
    factor = 1.5 if _rank() == 1 else 1.0
    if framework == "keras":
        exchange = _module("keras", "horovod_keras3.exchange").GradientExchange
        average = exchange.__call__

        def call(self, gradients, variables):
            return [gradient * factor for gradient in average(self, gradients, variables)]

        return mock.patch.object(exchange, "__call__", call)
    distributed = _module("torch", "distributed")
    wrap = distributed.wrap_optimizer

    def wrapped(optimizer, **options):
        distributed_optimizer = wrap(optimizer, **options)
        synchronize = distributed_optimizer.synchronize

        def spoil():
            synchronize()
            for group in distributed_optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(factor)

        distributed_optimizer.synchronize = spoil
        return distributed_optimizer

    return mock.patch.object(distributed, "wrap_optimizer", wrapped)


def without_gpu(framework):
    """Let ranks share a GPU where there is none: all that is done for it runs in host memory."""
    return mock.patch.object(_module(framework, "distributed"), "choose_gpu", lambda gpus, **_: None)


def unlike_starts(framework):
    """Let rank 1 draw other first weights."""
    draw = task_module.draw_initial_weights

    def drawn(spec, *, seed, **options):
        return draw(spec, seed=seed + _rank(), **options)

    return mock.patch.object(task_module, "draw_initial_weights", drawn)


@contextlib.contextmanager
def no_broadcast(framework):
    """Leave out the broadcast that mends unlike starts."""
    broadcast = mock.patch.object(_module(framework, "distributed"), "broadcast_state", lambda *_, **__: None)
    with unlike_starts(framework), broadcast:
        yield


@contextlib.contextmanager
def no_second_broadcast(framework):
    """Forbid Horovod's broadcast of tensors: a checkpoint has reached every rank."""
    hvd = _module(framework, "distributed").hvd
    with contextlib.ExitStack() as stack:
        for name in ("broadcast_", "broadcast_parameters", "broadcast_variables"):
            if not isinstance(hvd, NoHorovod) and hasattr(hvd, name):
                stack.enter_context(mock.patch.object(hvd, name, side_effect=AssertionError("sent twice")))
        yield


def unsharded(framework):
    """Let every rank take rank 0's samples."""
    rank_slice = batches.rank_slice
    return mock.patch.object(
        batches, "rank_slice", lambda step, *, rank, **options: rank_slice(step, rank=0, **options)
    )


def unscaled(framework, *, ranks):
    """Let some ranks forget to scale their learning rate."""
    scale = schedule.scale_factor

    def scaled(name, *, size):
        return 1.0 if _rank() in ranks else scale(name, size=size)

    return mock.patch.object(schedule, "scale_factor", scaled)


def one_differs(framework):
    """Change the last bit of one value on the last rank where weights are read for the check."""
    strategy = _module(framework, "strategies.strategy")
    get_weights = strategy.get_weights

    def changed(*arguments, **options):
        weights = get_weights(*arguments, **options)
        if _rank() == 1:
            weights["fc2.bias"][3] = np.nextafter(weights["fc2.bias"][3], np.float32(np.inf))
        return weights

    return mock.patch.object(strategy, "get_weights", changed)


@contextlib.contextmanager
def full_disk(framework, *, room_bytes):
    """Let the disk be full when the first checkpoint is to be written: really full where it is a small one of its own.

    Elsewhere no file may grow beyond the room that is left, by the system's limit on the size of files.
    """
    save = checkpoints.save_checkpoint
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    fillers = []

    def fill_and_save(run_folder, *arguments, **options):
        disk = run_folder.parent
        if disk.is_mount():
            fillers.append(disk / FILLER)
            with fillers[0].open("wb", buffering=0) as file:
                with contextlib.suppress(OSError):
                    while file.write(bytes(4096)):
                        pass
                file.truncate(file.tell() - room_bytes)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, limits[1]))
        save(run_folder, *arguments, **options)

    try:
        with mock.patch.object(checkpoints, "save_checkpoint", fill_and_save):
            yield
    finally:
        for filler in fillers:
            filler.unlink()
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def stuck_source(framework):
    """Let the last of two ranks wait for ever for its fifth batch, as for a file system that does not answer."""
    gather, count = batches.gather, itertools.count(1)

    def stuck(*arguments):
        if _rank() == 1 and next(count) == 5:
            threading.Event().wait()
        return gather(*arguments)

    return mock.patch.object(batches, "gather", stuck)


# Of a batch or a step that is made slow: far longer than a step lasts even on a busy machine, for Keras makes the
# next batch beside it.
SLOW_SECONDS = 0.1


def slow_source(framework, *, ranks):
    """Let every batch of some ranks take its time to be made."""
    gather = batches.gather

    def slowly(split, samples, table):
        if _rank() in ranks:
            time.sleep(SLOW_SECONDS * max(1, len(samples) // 32))  # several batches are gathered at once
        return gather(split, samples, table)

    return mock.patch.object(batches, "gather", slowly)


def slow_model(framework):
    """Let every step take its time to be computed."""
    strategy = _module(framework, "strategies.strategy")
    loss_per_sample = strategy.loss_per_sample

    def wait(outputs):
        time.sleep(SLOW_SECONDS)
        return outputs

    def losses(outputs, *arguments, **options):
        if framework == "torch":
            return loss_per_sample(wait(outputs), *arguments, **options)
        late = strategy.tf.numpy_function(wait, [outputs], outputs.dtype)
        with strategy.tf.control_dependencies([late]):
            return loss_per_sample(strategy.tf.identity(outputs), *arguments, **options)

    return mock.patch.object(strategy, "loss_per_sample", losses)


def stopped(framework, *, epoch, steps):
    """End a run inside an epoch on all ranks, after so many steps of it and before these are in a checkpoint."""
    paused = checkpoints.Checkpoints.paused

    def ended(self, now):
        if now.number == epoch and now.done >= steps:
            raise UserError("stopped by the test. Received: a patch. Resume it")
        paused(self, now)

    return mock.patch.object(checkpoints.Checkpoints, "paused", ended)


SMALL = {64: 64, 128: 16}  # filters of a stage of ResNet-34 -> of the small one, which has no others


@contextlib.contextmanager
def shallow(framework):
    """Let the deep model have two stages of one block, the second of them narrow: all its kinds of layers, quickly."""
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(model_specs, "RESNET34_BLOCKS", (1,) * len(SMALL)))
        patches.enter_context(mock.patch.object(model_specs, "RESNET34_FILTERS", tuple(SMALL.values())))
        if framework == "torch":
            nn = importlib.import_module("torch").nn
            vision = _module("torch", "vision").torchvision_models()
            make_layer = vision.ResNet._make_layer

            def make_small(model, block, filters, *others, **options):
                if filters not in SMALL:
                    return nn.Sequential()
                return make_layer(model, block, SMALL[filters], *others, **options)

            def build(num_classes):
                model = vision.ResNet(vision.resnet.BasicBlock, [1, 1, 1, 1], num_classes)
                model.fc = nn.Linear(SMALL[128], num_classes)
                return model

            patches.enter_context(mock.patch.object(vision.ResNet, "_make_layer", make_small))
            patches.enter_context(mock.patch.object(vision, "resnet34", build))
        yield


def without_compiler(framework):
    """Let PyTorch trace both passes as for its compiler, and run what it traced as it is."""
    if framework == "keras":
        return contextlib.nullcontext()
    torch = importlib.import_module("torch")
    compiler = torch.compile

    def traced(function, *, options, **others):
        return compiler(function, backend="aot_eager", **others)

    return mock.patch.object(torch, "compile", traced)


def without_onednn(framework):
    """Let the programs that compute alone find a build without oneDNN."""
    return mock.patch.object(_module(framework, "predict"), "onednn_is_on", lambda: False)


def worker_leaves(framework):
    """Let worker 1 draw only two batches of every segment."""
    items = client.Client.items

    def few(self, first, stop):
        return itertools.islice(items(self, first, stop), 2 if _rank() == 1 else None)

    return mock.patch.object(client.Client, "items", few)


def unweighted_statistics(framework):
    """Let ranks with unequal parts of a batch count alike where the statistics of BatchNorm are averaged."""
    distributed = _module(framework, "distributed")
    average = distributed.average_batch_norm

    def unweighted(*arguments, weight, **options):
        average(*arguments, weight=1.0, **options)

    return mock.patch.object(distributed, "average_batch_norm", unweighted)


@contextlib.contextmanager
def unrehearsed(framework):
    """Let the first update and the first evaluation of a run be those that its record counts."""
    strategy = _module(framework, "strategies").Strategy
    with (
        mock.patch.object(strategy, "rehearse", lambda self, batches, epoch: None),
        mock.patch.object(strategy, "rehearse_evaluation", lambda self, batches: None),
    ):
        yield


@contextlib.contextmanager
def noted_rehearsal(framework):
    """Print, a line each, what a rank rehearses, what servers get, and the end of start-up."""
    strategies, module = _module(framework, "strategies"), _module(framework, "strategies.strategy")
    base, undone = strategies.Strategy, module.undone
    silent = (strategies.Layers, strategies.Server)  # stages and servers send other things than gradients
    kinds = [kind for named in vars(strategies).values() if isinstance(named, type) for kind in named.__mro__]
    counting = {kind for kind in kinds if "rehearsals" in vars(kind) and kind not in silent}

    def note(words, function, *arguments):
        print(f"noted: {words}")
        return function(*arguments)

    def state_of(strategy):
        is_served = isinstance(strategy, strategies.Server)
        return strategy.weights() | ({} if is_served else strategy.optimizer_state())

    def is_same(before, now):
        return before.keys() == now.keys() and all(np.array_equal(before[name], now[name]) for name in before)

    @contextlib.contextmanager
    def compared(strategy):
        before = state_of(strategy)
        with undone(strategy):
            yield
            now = strategy.weights()
            still = [name for name in now if np.array_equal(now[name], before[name])]
        print(f"noted: {'not ' if still else ''}all tensors moved")
        print(f"noted: {'nothing' if is_same(before, state_of(strategy)) else 'something'} is left of it")

    def counted(strategy, rehearsals):
        for _ in rehearsals(strategy):
            yield
            if not isinstance(strategy, silent):
                meter = getattr(strategy, "meter", ExchangeMeter())
                print(f"noted: {(meter.read() if hasattr(meter, 'read') else meter).sent_bytes} bytes sent")

    with contextlib.ExitStack() as patches:
        for kind in counting:
            method = functools.partialmethod(counted, kind.rehearsals)
            patches.enter_context(mock.patch.object(kind, "rehearsals", method))
        patches.enter_context(mock.patch.object(module, "undone", compared))
        for kind, name, words in (
            (base, "evaluate", "evaluation"),
            (Phases, "startup_ends", "start-up ends"),
            (client.Client, "exchange", "pushed"),
            (client.Client, "items", "drawn"),
        ):
            noted = functools.partialmethod(
                lambda self, words, function, *arguments: note(words, function, self, *arguments),
                words,
                getattr(kind, name),
            )
            patches.enter_context(mock.patch.object(kind, name, noted))
        yield


PATCHES = {
    "": lambda framework: contextlib.nullcontext(),
    "unaveraged": unaveraged,
    "spoiled_average": spoiled_average,
    "without_gpu": without_gpu,
    "unlike_starts": unlike_starts,
    "no_broadcast": no_broadcast,
    "no_second_broadcast": no_second_broadcast,
    "unsharded": unsharded,
    "unweighted_statistics": unweighted_statistics,
    "unscaled": functools.partial(unscaled, ranks={0, 1}),
    "one_unscaled": functools.partial(unscaled, ranks={1}),
    "one_differs": one_differs,
    "stuck_source": stuck_source,
    "slow_source": functools.partial(slow_source, ranks={0, 1}),
    "slow_source_of_one": functools.partial(slow_source, ranks={1}),
    "slow_model": slow_model,
    "shallow": shallow,
    "without_compiler": without_compiler,
    "without_onednn": without_onednn,
    "worker_leaves": worker_leaves,
    "unrehearsed": unrehearsed,
    "noted_rehearsal": noted_rehearsal,
    "stopped": functools.partial(stopped, epoch=1, steps=4),
    "stopped_later": functools.partial(stopped, epoch=2, steps=3),
    "full_disk": functools.partial(full_disk, room_bytes=0),
    "nearly_full_disk": functools.partial(full_disk, room_bytes=2**17),
}
