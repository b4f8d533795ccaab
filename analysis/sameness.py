"""Whether two runs were the same experiment: first weights, order of the samples, and the settings that matter."""

from common.config import Config
from common.records import DataRecord, Hashes, NotRecorded, Run

# Subjects of the settings that define an experiment; the device and the record of a run do not.
SUBJECTS = ("data", "model", "optimizer", "schedule", "training")
# Settings that may differ where what comes of them does not: the global batch is compared, and where the data lies and
# how an evaluation is shared out changes no number.
FREE = {"batch_size", "eval_batch_size", "data_folder", "validation"}
HASHES = {"initial_weights": "first weights", "sample_order": "order of the samples"}


def why_not_the_same(first: Run, second: Run) -> list[str]:
    """Return, in plain words, why two runs cannot be called the same experiment; nothing if they can."""
    return [
        *(f"{run.folder} is {run.state}, not finished" for run in (first, second) if run.state != "finished"),
        *_hashes_differ(first, second),
        *_settings_differ(first, second),
    ]


def _hashes_differ(first: Run, second: Run) -> list[str]:
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
    assert isinstance(hashes[0], Hashes)
    return reasons


def _settings_differ(first: Run, second: Run) -> list[str]:
    configs = [run.record.config for run in (first, second)]
    reasons = [
        f"{run.folder} ({run.record.origin}) has no settings: {config.not_recorded}"
        for run, config in zip((first, second), configs, strict=True)
        if isinstance(config, NotRecorded)
    ]
    if reasons:
        return reasons
    for subject in SUBJECTS:
        one, other = (vars(getattr(config, subject)) for config in configs)
        reasons += [
            f"{subject}.{name} differs: {one[name]} and {other[name]}"
            for name in one
            if name not in FREE and one[name] != other[name]
        ]
    precision = [config.device.mixed_precision for config in configs if isinstance(config, Config)]
    if precision[0] != precision[1]:
        reasons.append(f"device.mixed_precision differs: {precision[0]} and {precision[1]}")
    batches = [run.record.data.global_batch_size for run in (first, second) if isinstance(run.record.data, DataRecord)]
    if len(batches) == 2 and batches[0] != batches[1]:
        reasons.append(f"the global batch differs: {batches[0]} and {batches[1]} images")
    rates = [[epoch.learning_rate for epoch in run.epochs] for run in (first, second)]
    shared = min(len(rates[0]), len(rates[1]))
    if rates[0][:shared] != rates[1][:shared]:
        reasons.append("the learning rates differ: they depend on the number of ranks (--lr-scaling)")
    return reasons
