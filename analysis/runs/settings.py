"""The settings that define a run, by names for people."""

import re
from collections.abc import Hashable
from typing import Any

from analysis.runs.reading import IN_A_PLACE, StudiedRun
from analysis.runs.sameness import SETTINGS
from common.run_folder.environment import Environment
from common.run_folder.records import DataRecord, NotRecorded, World

SERIES = "series"  # of imported runs: keeps their cells apart, and is no difference between experiments
Settings = dict[str, Hashable]


def settings_of(run: StudiedRun) -> Settings:
    """Return all settings that define a run but its seed, by names for people."""
    record, config = run.record, run.config
    settings: Settings = {
        "framework": run.framework,
        "model": run.model,
        "data set": run.dataset,
        "np": run.ranks,
        "site": run.site,
        "device": run.device,
        "image size": run.image_size,
        "global batch": run.global_batch,
    }
    if isinstance(record.world, World):
        settings["hosts"] = len(set(record.world.hosts))
        settings["controller"] = record.world.controller
        if not isinstance(record.world.threads_per_rank, NotRecorded):
            settings["threads"] = record.world.threads_per_rank
    if isinstance(record.data, DataRecord):
        data = record.data
        settings["samples"] = f"{data.training_samples}/{data.validation_samples}/{data.test_samples}"
        if data.name.startswith(IN_A_PLACE):  # files of one name may hold other pixels
            settings["mean of pixels"] = ", ".join(f"{mean:.9g}" for mean in data.mean)
    elif not run.published_in:  # what is unknown for another reason is something else
        settings["data"] = record.data.not_recorded
    if isinstance(record.environment, Environment):
        settings["machine"] = f"{record.environment.processor}, {record.environment.cores} cores"
    if config is not None:
        settings["gradient groups"] = config.device.gradient_groups
        settings["validation"] = config.training.validation
        for subject, names in SETTINGS.items():
            part: Any = getattr(config, subject)
            for name in names:
                if name not in ("seed", "dataset", "model", "image_size"):
                    settings[name.replace("_", " ")] = getattr(part, name)
    if run.origin == "imported":
        # Runs that a source keeps apart were not made together, whatever their records have in common.
        settings[SERIES] = re.sub(r"-(r|energy)[0-9]+$", "", run.name)
    # What stands in different places of a document was not measured together.
    settings["origin"] = f"{run.published_in}, {run.origin}" if run.published_in else run.origin
    return settings
