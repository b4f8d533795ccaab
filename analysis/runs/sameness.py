"""Whether two runs were the same experiment: first weights, order of the samples, and the settings that matter."""

from analysis.runs.labels import onednn_in_force, onednn_words, tuning_words
from common.config import Config, defined_settings
from common.model.layers import BatchNorm, Dropout
from common.model.specs import model_spec
from common.run_folder.environment import Environment
from common.run_folder.records import DataRecord, NotRecorded, RecordedRun, RunRecord, World

# Subject -> settings that define an experiment.
SETTINGS = {
    subject: [name for name, defines in settings.items() if defines.experiment]
    for subject, settings in defined_settings().items()
}
HASHES = {"initial_weights": "first weights", "sample_order": "order of the samples"}


def why_not_the_same(first: RecordedRun, second: RecordedRun) -> list[str]:
    """Return, in plain words, why two runs cannot be called the same experiment; nothing if they can."""
    return [
        *(f"{run.folder} is {run.state}, not finished" for run in (first, second) if run.state != "finished"),
        *_hashes_differ(first, second),
        *_settings_differ(first, second),
        *unlike_by_nature(first.record, second.record),
        *(
            f"{run.folder} is {what}, its times are not to be compared"
            for run in (first, second)
            for what in _untimed(run)
        ),
        *_not_as_many_at_once(first, second),
        *_tuned_otherwise(first, second),
    ]


def onednn_differs(first: RunRecord, second: RunRecord) -> list[str]:
    """Return why the times of two runs do not compare, of which oneDNN computed one only, or may have.

    That does not make them other experiments: it changes the last bits.
    """
    configs = [record.config for record in (first, second) if isinstance(record.config, Config)]
    if len(configs) < 2:
        return []
    asked = [config.model.onednn for config in configs]
    in_force = [onednn_in_force(record) for record in (first, second)]
    compare = in_force[0] == in_force[1]
    if None in in_force:
        alike = (first.framework, _processor(first)) == (second.framework, _processor(second))
        compare = asked[0] == asked[1] and (alike or asked[0] != "framework")
    words = " and ".join(onednn_words(*one) for one in zip(asked, in_force, strict=True))
    return [] if compare else [f"oneDNN: {words}: the times do not compare"]


def _processor(record: RunRecord) -> str | None:
    return record.environment.processor if isinstance(record.environment, Environment) else None


def unlike_by_nature(first: RunRecord, second: RunRecord) -> list[str]:
    """Return what no setting makes alike: masks of dropout, and batches that BatchNorm sees."""
    configs, data = (first.config, second.config), (first.data, second.data)
    if not all(isinstance(config, Config) for config in configs) or not isinstance(data[0], DataRecord):
        return []
    model, reasons = configs[0].model.model, []  # type: ignore[union-attr]
    height, width, channels = data[0].image_shape
    spec = model_spec(model, input_shape=(channels, height, width), outputs=len(data[0].class_names))
    sizes = [record.world.size if isinstance(record.world, World) else None for record in (first, second)]
    other_framework = first.framework != second.framework
    if spec.holds(Dropout) and configs[0].model.dropout and (other_framework or sizes[0] != sizes[1]):  # type: ignore[union-attr]
        reasons.append(
            f"the masks of dropout differ: {model} was trained with it, and they come from framework and rank"
        )
    batches = [config.training.batch_size for config in configs]  # type: ignore[union-attr]
    if spec.holds(BatchNorm) and batches[0] != batches[1]:
        reasons.append(f"BatchNorm saw other batches: {batches[0]} and {batches[1]} images per rank")
    return reasons


def _untimed(run: RecordedRun) -> list[str]:
    """Return what a run measured in place of time."""
    config = run.record.config
    if not isinstance(config, Config):
        return []
    untimed = {
        "of a planted straggler": config.balance.slows_beside_the_subject,
        "profiled": config.record.profile, "metered": config.energy.energy, "of shared GPUs": config.device.share_gpu,
    }  # fmt: skip
    return [what for what, applies in untimed.items() if applies]


def _not_as_many_at_once(first: RecordedRun, second: RecordedRun) -> list[str]:
    """Return why the times of runs cannot be compared that did not have as much of their host."""
    worlds = [run.record.world for run in (first, second)]
    counts = [world.at_once for world in worlds if isinstance(world, World)]
    if len(set(counts)) < 2:
        return []
    return [f"{counts[0]} and {counts[1]} runs were made at once, their times are not to be compared"]


def _tuned_otherwise(first: RecordedRun, second: RecordedRun) -> list[str]:
    """Return why the times of runs cannot be compared whose exchange or threads were tuned by other variables."""
    words = [tuning_words(run.record) or "none" for run in (first, second)]
    return [f"tuning variables differ: {words[0]} and {words[1]}"] if words[0] != words[1] else []


def _hashes_differ(first: RecordedRun, second: RecordedRun) -> list[str]:
    reasons = []
    for run in (first, second):
        if isinstance(run.record.hashes, NotRecorded):
            reasons.append(f"{run.folder} ({run.record.origin}) has no hashes: {run.record.hashes.not_recorded}")
    if reasons:
        return reasons
    hashes = [run.record.hashes for run in (first, second)]
    for name, title in HASHES.items():
        values = [getattr(one, name) for one in hashes]
        for run, value in zip((first, second), values, strict=True):
            if isinstance(value, NotRecorded):
                reasons.append(f"{run.folder} ({run.record.origin}) has no hash of its {title}: {value.not_recorded}")
        if all(isinstance(value, str) for value in values) and values[0] != values[1]:
            reasons.append(f"the {title} differ: {values[0]} and {values[1]}")
    return reasons


def _settings_differ(first: RecordedRun, second: RecordedRun) -> list[str]:
    configs = [run.record.config for run in (first, second)]
    reasons = [
        f"{run.folder} ({run.record.origin}) has no settings: {config.not_recorded}"
        for run, config in zip((first, second), configs, strict=True)
        if isinstance(config, NotRecorded)
    ]
    if reasons:
        return reasons
    for subject, names in SETTINGS.items():
        one, other = (getattr(config, subject) for config in configs)
        for name in names:
            pair = getattr(one, name), getattr(other, name)
            if pair[0] != pair[1]:
                reasons.append(f"{subject}.{name} differs: {pair[0]} and {pair[1]}")
    batches = [run.record.data.global_batch_size for run in (first, second) if isinstance(run.record.data, DataRecord)]
    if len(batches) == 2 and batches[0] != batches[1]:
        reasons.append(f"the global batch differs: {batches[0]} and {batches[1]} images")
    rates = [[epoch.learning_rate for epoch in run.epochs] for run in (first, second)]
    shared = min(len(rates[0]), len(rates[1]))
    if rates[0][:shared] != rates[1][:shared]:
        reasons.append("the learning rates differ: they depend on the number of ranks (--lr-scaling)")
    return reasons
