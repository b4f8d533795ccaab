"""What rank 0 prints about a run: what is trained, warnings, a line per epoch, the totals at the end."""

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.config import Config, changed_settings, completed, settings_flags
from common.distributed.console import counted, readable_seconds
from common.measurement.metrics import Sums
from common.model.specs import ModelSpec, layer_table
from common.run.totals import recorded_sum
from common.run_folder.environment import Environment
from common.run_folder.records import EpochRecord, NotRecorded, RunRecord, Totals, World
from common.run_folder.world_changes import WorldChange
from common.task.task import Task

_STACKS = {
    "torch": [("PyTorch", "torch")],
    "keras": [("Keras", "keras"), ("TensorFlow", "tensorflow"), ("TensorFlow", "tensorflow-cpu")],
}
_OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "rmsprop": "RMSprop"}
_CONTROLLERS = {"mpi": "MPI", "gloo": "Gloo"}
# Settings that other lines of the start show.
_SHOWN = {
    "dataset", "model", "batch_size", "optimizer", "learning_rate", "momentum", "lr_scaling", "warmup_epochs",
    "stages", "model_ranks", "threads", "runs_folder", "name", "resume", "resume_or_start", "verbose", "site",
}  # fmt: skip
_OTHER = {"torch": "keras", "keras": "torch"}


def start_lines(task: Task, world: World, *, record: RunRecord, folder: Path) -> list[str]:
    """Return what is trained, how and where; with `--verbose` also the layers and all settings.

    Args:
        record: of the run, for framework and versions.
        folder: of the run.
    """
    config, validation = task.config, len(task.validation_indices)
    lines = [
        _ranks_line(world, task=task, framework=record.framework, packages=_packages(record)),
        f"data: {task.dataset.name}, {len(task.training_indices):,} training, "
        f"{f'{validation:,}' if validation else 'no'} validation, {len(task.dataset.test.labels):,} test images",
        f"model: {task.spec.name}, {task.spec.parameters:,} parameters{_parts(task)}",
        f"batch: {_batch(task)} = {task.samples_per_update} images per update; {task.steps_per_epoch:,} updates per "
        f"epoch, {task.total_steps:,} in total{_left_over(task)}",
        f"optimizer: {_optimizer(task)}",
        *_group_lines(task),
        f"settings: {_changed(task) or 'defaults'}",
        f"run folder: {folder}",
    ]
    if config.record.verbose:
        lines += [layer_table(task.spec), *_part_lines(task)]
        for subject, values in config.as_dict().items():
            lines.append(f"{subject}: " + ", ".join(f"{name} {value}" for name, value in values.items()))
    return lines


def warning_lines(task: Task, world: World, *, others: Sequence[str] = ()) -> list[str]:
    """Return what may surprise in the run, or makes its timings invalid: a line for each cause.

    Args:
        others: programs of others on this machine.
    """
    config = task.config
    causes = [*task.dataset.notes, *onednn_notes(config.model.onednn, world.onednn or [])]
    if config.record.profile:
        causes.append("a profiled run waits for the device after each part of a step. Timings are invalid")
    if config.device.share_gpu:
        causes.append("ranks share GPUs and exchange gradients in host memory. Timings are invalid")
    if config.balance.slows_beside_the_subject:
        causes.append("one rank is a straggler (--slow). Timings are invalid")
    if world.oversubscribed:
        causes.append(_shared_cores(world))
    if others:
        causes.append(f"other programs use this machine: {'; '.join(others)}. Times may be longer")
    return [warning(cause) for cause in causes]


def warning(cause: str) -> str:
    """Return the line of a warning."""
    return f"Warning: {cause}"


def onednn_notes(asked: str, in_force: Sequence[str | None]) -> list[str]:
    """Return what it means that oneDNN is not in force on all ranks that compute on CPUs."""
    states = {state for state in in_force if state is not None}
    if len(states) > 1:
        on = ", ".join(str(rank) for rank, state in enumerate(in_force) if state == "on")
        return [f"only some ranks use oneDNN ({on}): the others are slower, and all ranks wait for them"]
    if asked == "on" and "off" in states:
        return ["this build of the framework has no oneDNN (--onednn on), and trains without it"]
    return []


def _shared_cores(world: World) -> str:
    """Return what it means that ranks have fewer cores than threads, and how to measure fairly instead."""
    ranks, cores, each = counted(world.local_size, "rank"), counted(world.cores, "core"), world.cores / world.local_size
    if each < 1:
        alone = len(world.hosts) == 1 and not world.servers
        most = f"-np {world.cores}" if alone else f"{counted(world.cores, 'rank')} per host"
        share, longer = "half a" if each == 0.5 else f"{each:.2g} of a", f"{1 / each:.3g} times as long"
        wrong = f"each rank has {share} core, so a step takes about {longer}, and throughput does not increase"
        fair = f"start at most {most}"
    else:
        wrong = f"each rank has more threads ({world.threads_per_rank}) than cores"
        fair = f"use --threads {int(each)}"
    return f"{ranks} on {cores}: {wrong}. The run is correct, but its timings are invalid; for valid timings, {fair}"


def _ranks_line(world: World, *, task: Task, framework: str, packages: Mapping[str, str]) -> str:
    """Return who trains: ranks, hosts, versions, device."""
    versions = [f"{title} {packages[name]}" for title, name in _STACKS[framework] if name in packages]
    if world.controller in _CONTROLLERS:
        controller = _CONTROLLERS[world.controller]
        uses_horovod = task.config.strategy.traits.uses_horovod
        versions.append(f"Horovod {packages.get('horovod', '')} ({controller})" if uses_horovod else controller)
    device = next((gpu for gpu in world.gpus or [] if gpu), "CPU")
    threads, cores = counted(world.threads_per_rank, "thread"), counted(world.cores, "core")  # type: ignore[arg-type]
    return f"{_ranks(world)} on {', '.join(world.hosts)}: {', '.join(versions)}, {device}, {threads} per rank, {cores}"


def _packages(record: RunRecord) -> Mapping[str, str]:
    return record.environment.packages if isinstance(record.environment, Environment) else {}


def _parts(task: Task) -> str:
    if task.config.parts.model_ranks:
        return f", each layer split over {task.config.parts.model_ranks} ranks"
    return f", in {task.config.parts.stages} stages" if task.config.parts.stages else ""


def _left_over(task: Task) -> str:
    dropped = task.dropped_samples
    return f"; the last {dropped} images of each epoch are dropped" if dropped else ""


def _optimizer(task: Task) -> str:
    config, rate = task.config, task.config.optimizer.learning_rate
    highest, epochs = float(max(task.scaled_learning_rates(), default=rate)), config.schedule.warmup_epochs
    words = [_OPTIMIZERS[config.optimizer.optimizer]]
    if config.optimizer.optimizer == "sgd" and config.optimizer.momentum:
        words.append(f"momentum {config.optimizer.momentum:g}")
    scaled = f" x {highest / rate:.4g} = {highest:.4g}" if rate and abs(highest / rate - 1) > 1e-6 else ""
    warm_up = f" after {epochs:g} epoch{'s' * (epochs != 1)} of warm-up" if scaled and epochs else ""
    words.append(f"learning rate {rate:g}{scaled}{warm_up}")
    return ", ".join(words)


def _changed(task: Task) -> str:
    """Return the settings that differ from their defaults, but for those that other lines show."""
    changes = changed_settings(completed(Config()), task.config)
    return ", ".join(f"{name.replace('_', ' ')} {value}" for _, name, _, value in changes if name not in _SHOWN)


def _part_lines(task: Task) -> list[str]:
    """Return what each rank of a copy holds, where a copy is divided among several."""
    if task.config.parts.model_ranks:
        part = task.partition.parts[0]
        of_rank = f"{part.parameters:,} parameters and {_share(part, task)} of the multiply-adds"
        return [f"split: each of {task.config.parts.model_ranks} ranks holds {of_rank}"]
    if not task.config.parts.stages:
        return []
    lines = []
    for number, part in enumerate(task.partition.parts):
        values = math.prod(part.rows[-1].output_shape)
        sent = f"; {values:,} values per image are passed on" if part.rows[-1] is not task.spec.rows[-1] else ""
        lines.append(
            f"stage {number}: {part.rows[0].layer.name} to {part.rows[-1].layer.name}, {part.parameters:,} parameters, "
            f"{_share(part, task)} of the multiply-adds{sent}"
        )
    return lines


def _group_lines(task: Task) -> list[str]:
    """Return the choice of `--gradient-groups auto` and what it was chosen by."""
    if not task.groups:
        return []
    times = ", ".join(f"{name} {value:.4g}" for name, value in task.groups.milliseconds.items())
    why = f"milliseconds per update: {times}" if times else "one rank exchanges nothing"
    return [f"gradient groups: {task.groups.chosen} ({why})"]


def _share(part: ModelSpec, task: Task) -> str:
    return f"{100 * part.multiply_adds / task.spec.multiply_adds:.0f} %"


def _batch(task: Task) -> str:
    if task.config.strategy.replicas:
        return f"{task.config.training.batch_size} x {counted(task.copies, 'replica')}"
    sizes = task.samples_of_ranks
    if len(set(sizes)) == 1:
        passes = task.config.device.backward_passes_per_step
        of_passes = f" x {passes} backward passes" if passes > 1 else ""
        copies = (
            counted(len(sizes), "rank")
            if task.config.parts.count == 1
            else f"{len(sizes)} cop{'y' if len(sizes) == 1 else 'ies'} of the model"
        )
        return f"{sizes[0] // passes} x {copies}{of_passes}"
    how = ", measured" if task.config.balance.shares == "auto" else ""
    return f"{' + '.join(map(str, sizes))} (one part per rank{how})"


def epoch_line(task: Task, epochs: Sequence[EpochRecord]) -> str:
    """Return the line of the last of these epochs, with the remaining time estimated from the mean of all epochs."""
    record = epochs[-1]
    spent = [recorded_sum([epoch.training_seconds, epoch.validation_seconds]) for epoch in epochs]
    left = _number(recorded_sum(spent)) / len(epochs) * (task.epochs - record.epoch)
    width = len(str(task.epochs))
    parts = [
        f"epoch {record.epoch:{width}}/{task.epochs}",
        f"train loss {_number(record.training_loss):.4f}",
        f"train accuracy {100 * _number(record.training_accuracy):5.2f} %",
    ]
    if record.validation_loss is not None:
        parts += [
            f"validation loss {_number(record.validation_loss):.4f}",
            f"validation accuracy {100 * _number(record.validation_accuracy):5.2f} %",
        ]
    parts += [f"{_number(record.images_per_second):,.0f} images/s", readable_seconds(_number(spent[-1]))]
    parts += [f"ETA {readable_seconds(left)}"] if left > 0 else []
    return "  ".join(parts)


def change_line(change: WorldChange) -> str:
    """Return in one line what happened to the ranks of an elastic run, and what it cost."""
    named = {"ended": change.ended, "joined": change.joined}
    who = "; ".join(f"{' and '.join(names)} {what}" for what, names in named.items() if names)
    return (
        f"{change.cause} ({who or 'the same ranks continue'}): {counted(change.ranks_before, 'rank')} before, "
        f"{change.ranks_after} now; continued after update {change.step}, repeated "
        f"{counted(change.lost_steps, 'update')}, {readable_seconds(change.seconds)}"
    )


def end_lines(totals: Totals, test: Sums, *, folder: object) -> list[str]:
    """Return the test, the totals and the run folder."""
    launch = totals.launch_seconds
    before = f"launch {readable_seconds(launch)}, " if isinstance(launch, float) else ""
    return [
        f"test: {describe_sums(test)}",
        f"trained {counted(totals.epochs, 'epoch')} in {_time(totals.training_seconds)}, "
        f"{_number(totals.images_per_second):,.0f} images/s "
        f"({before}start-up {_time(totals.startup_seconds)}, validation {_time(totals.validation_seconds)}, "
        f"test {_time(totals.test_seconds)}: not included)",
        f"run folder: {folder}",
    ]


def next_lines(record: RunRecord) -> list[str]:
    """Return the commands that a user may want next: the other framework's run, and the comparison of both."""
    config, world = record.config, record.world
    assert isinstance(config, Config), "a run that ends was measured"
    assert isinstance(world, World), "a run that ends was measured"
    compare = f"python -m analysis frameworks {config.record.runs_folder}"
    elsewhere = len(world.hosts) > 1 or world.launcher == "srun" or config.record.site != "local"
    if elsewhere or config.strategy.native or config.strategy.replay or config.faults.elastic:
        return [f"next: {compare}"]
    changes = changed_settings(completed(Config()), config)
    settings = {name: value for subject, name, _, value in changes if subject != "record" or name == "runs_folder"}
    words = ["--framework", _OTHER[record.framework], "--np", str(world.processes)]
    if world.controller == "gloo" and world.size > 1:
        words += ["--controller", "gloo"]
    words += ["--", *settings_flags(settings)] if settings else []
    return [f"next: python -m launch train {shlex.join(words)}", f"then: {compare}"]


def describe_sums(sums: Sums) -> str:
    """Return mean loss and accuracy in words."""
    return (
        f"loss {_number(sums.mean_loss):.4f}, accuracy {100 * _number(sums.accuracy):.2f} % "
        f"({sums.correct:.0f}/{sums.samples:.0f})"
    )


def _number(value: float | NotRecorded | None) -> float:
    """Return a figure to be printed: `nan` where it is unknown."""
    return value if isinstance(value, int | float) else math.nan


def _time(seconds: float | NotRecorded) -> str:
    return readable_seconds(seconds) if isinstance(seconds, int | float) else "an unknown time"


def _ranks(world: World) -> str:
    if not world.servers:
        return counted(world.size, "rank")
    return f"{world.size} worker{'s' * (world.size > 1)} and {world.servers} server{'s' * (world.servers > 1)}"
