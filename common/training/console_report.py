"""What rank 0 prints about a run: its settings at the start, a line per epoch, the totals at the end."""

import math
from collections.abc import Sequence

from common.distributed.console import counted, readable_seconds
from common.measurement.metrics import Sums
from common.model.specs import ModelSpec, layer_table
from common.run_folder.records import EpochRecord, NotRecorded, Totals, World
from common.run_folder.world_changes import WorldChange
from common.training.run_setup import RunSetup
from common.training.totals import recorded_sum


def start_lines(setup: RunSetup, world: World) -> list[str]:
    """Return the layers, the settings, the batch arithmetic and the ranks."""
    config = setup.config
    lines = [layer_table(setup.spec)]
    for subject, values in config.as_dict().items():
        lines.append(f"{subject}: " + ", ".join(f"{name} {value}" for name, value in values.items()))
    threads, cores = counted(world.threads_per_rank, "thread"), counted(world.cores, "core")  # type: ignore[arg-type]
    lines += [
        *_part_lines(setup),
        f"data: {setup.dataset.name}, {len(setup.training_indices):,} training, {len(setup.validation_indices):,} "
        f"validation, {len(setup.dataset.test.labels):,} test samples",
        *(f"note: {note}" for note in setup.dataset.notes),
        f"batch: {_batch(setup)} = {setup.global_batch_size} images per "
        f"update, {setup.steps_per_epoch} updates per epoch, the last {setup.dropped_samples} samples of each epoch's "
        f"order dropped; {setup.total_steps} updates in all",
        *_group_lines(setup),
        f"ranks: {_ranks(world)} on {', '.join(world.hosts)}, controller {world.controller}, "
        f"device {world.devices[0]}, {threads} per rank, {cores}",
    ]
    if config.device.device == "auto" and set(world.devices) == {"cpu"}:
        lines.append("no GPU was found: training on the CPU")
    lines += onednn_lines(config.model.onednn, world.onednn or [])
    if config.record.profile:
        lines.append("note: a profiled run waits for the device after each part of a step: do not compare its times")
    if config.device.share_gpu:
        lines.append("note: ranks share GPUs and exchange gradients in host memory: do not compare its times")
    if config.balance.slows_beside_the_subject:
        lines.append("note: a straggler is planted: do not compare the times of this run")
    return [*lines, *(_lines_of_shared_cores(world) if world.oversubscribed else [])]


def onednn_lines(asked: str, in_force: Sequence[str | None]) -> list[str]:
    """Return what it means that oneDNN is not in force on all ranks that compute on CPUs."""
    states = {state for state in in_force if state is not None}
    if len(states) > 1:
        on = ", ".join(str(rank) for rank, state in enumerate(in_force) if state == "on")
        return [f"note: oneDNN computes on some ranks only ({on}): the others are slower, and all wait for them"]
    if asked == "on" and "off" in states:
        return ["note: the framework has no oneDNN here (--onednn on), and trains without it"]
    return []


def _lines_of_shared_cores(world: World) -> list[str]:
    """Return what it means that ranks have fewer cores than threads, and how to measure fairly instead."""
    ranks, cores, each = counted(world.local_size, "rank"), counted(world.cores, "core"), world.cores / world.local_size
    if each < 1:
        alone = len(world.hosts) == 1 and not world.servers
        most = f"-np {world.cores}" if alone else f"{counted(world.cores, 'rank')} per host"
        share, longer = "half a" if each == 0.5 else f"{each:.2g} of a", f"{1 / each:.3g} times as long"
        wrong = f"each rank has {share} core, so a step takes about {longer}, and all together are no faster"
        fair = f"a core: {most} at most"
    else:
        wrong = f"{world.threads_per_rank} threads per rank are more than its cores"
        fair = f"no more threads than cores: --threads {int(each)}"
    return [
        f"note: {ranks} on {cores}: {wrong}. The run is correct, but its times do not count as a speedup",
        f"note: for times that count, give each rank {fair}",
    ]


def _part_lines(setup: RunSetup) -> list[str]:
    """Return what each rank of a copy holds, where a copy is divided among several."""
    if setup.config.parts.model_ranks:
        part = setup.partition.parts[0]
        of_rank = f"{part.parameters:,} parameters and {_share(part, setup)} of the multiply-adds"
        return [f"split: each of {setup.config.parts.model_ranks} ranks holds {of_rank}"]
    if not setup.config.parts.stages:
        return []
    lines = []
    for number, part in enumerate(setup.partition.parts):
        values = math.prod(part.rows[-1].output_shape)
        sent = f"; {values:,} values of each image go on" if part.rows[-1] is not setup.spec.rows[-1] else ""
        lines.append(
            f"stage {number}: {part.rows[0].layer.name} to {part.rows[-1].layer.name}, {part.parameters:,} parameters, "
            f"{_share(part, setup)} of the multiply-adds{sent}"
        )
    return lines


def _group_lines(setup: RunSetup) -> list[str]:
    """Return the choice of `--gradient-groups auto` and what it was chosen by."""
    if not setup.groups:
        return []
    times = ", ".join(f"{name} {value:.4g}" for name, value in setup.groups.milliseconds.items())
    why = f"milliseconds per update: {times}" if times else "one rank exchanges nothing"
    return [f"gradient groups: {setup.groups.chosen} ({why})"]


def _share(part: ModelSpec, setup: RunSetup) -> str:
    return f"{100 * part.multiply_adds / setup.spec.multiply_adds:.0f} %"


def _batch(setup: RunSetup) -> str:
    if setup.config.strategy.replicas:
        return f"{setup.config.training.batch_size} x {counted(setup.size, 'replica')}"
    sizes = setup.batch_sizes
    if len(set(sizes)) == 1:
        passes = setup.config.device.backward_passes_per_step
        of_passes = f" x {passes} backward passes" if passes > 1 else ""
        copies = counted(len(sizes), "rank") if setup.config.parts.count == 1 else f"{len(sizes)} of the model"
        return f"{sizes[0] // passes} x {copies}{of_passes}"
    how = ", measured" if setup.config.balance.shares == "auto" else ""
    return f"{' + '.join(map(str, sizes))} (one part per rank{how})"


def epoch_line(setup: RunSetup, epochs: Sequence[EpochRecord]) -> str:
    """Return the line of the last of these epochs, with the remaining time estimated from the mean of all epochs."""
    record = epochs[-1]
    spent = [recorded_sum([epoch.training_seconds, epoch.validation_seconds]) for epoch in epochs]
    left = _number(recorded_sum(spent)) / len(epochs) * (setup.epochs - record.epoch)
    width = len(str(setup.epochs))
    parts = [
        f"epoch {record.epoch:{width}}/{setup.epochs}",
        f"{_number(record.images_per_second):8,.0f} images/s",
        f"loss {_number(record.training_loss):.4f}",
        f"accuracy {100 * _number(record.training_accuracy):5.2f} %",
    ]
    if record.validation_loss is not None:
        parts += [
            f"validation loss {_number(record.validation_loss):.4f}",
            f"accuracy {100 * _number(record.validation_accuracy):5.2f} %",
        ]
    parts += [readable_seconds(_number(spent[-1]))]
    parts += [f"left {readable_seconds(left)}"] if left > 0 else []
    return "  ".join(parts)


def change_line(change: WorldChange) -> str:
    """Return in one line what happened to the ranks of an elastic run, and what it cost."""
    named = {"ended": change.ended, "joined": change.joined}
    who = "; ".join(f"{' and '.join(names)} {what}" for what, names in named.items() if names)
    return (
        f"{change.cause} ({who or 'the same ranks go on'}): {counted(change.ranks_before, 'rank')} before, "
        f"{change.ranks_after} now; went on after update {change.step}, made {counted(change.lost_steps, 'update')} "
        f"again, {readable_seconds(change.seconds)}"
    )


def end_lines(totals: Totals, test: Sums, *, folder: object) -> list[str]:
    """Return the totals, the test and the run folder."""
    launch = totals.launch_seconds
    before = f"launch {readable_seconds(launch)}, " if isinstance(launch, float) else ""
    return [
        f"trained {counted(totals.epochs, 'epoch')} in {_time(totals.training_seconds)}, "
        f"{_number(totals.images_per_second):,.0f} images/s "
        f"({before}start-up {_time(totals.startup_seconds)}, validation {_time(totals.validation_seconds)}, "
        f"test {_time(totals.test_seconds)}: not included)",
        f"test {describe_sums(test)}",
        f"run folder: {folder}",
    ]


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
        return str(world.size)
    return f"{world.size} worker{'s' * (world.size > 1)} and {world.servers} server{'s' * (world.servers > 1)}"
