"""The settings that define a run, as columns of the table of runs."""

import re
from collections.abc import Hashable
from operator import attrgetter
from pathlib import Path

from analysis.runs.labels import onednn_in_force, tuning_words
from common.config import Config, defined_settings
from common.run_folder.environment import Environment
from common.run_folder.records import DataRecord, ModelRecord, NotRecorded, RunRecord, World

ONEDNN_IN_FORCE = "onednn_in_force"  # column: whether oneDNN computed, which `--onednn framework` leaves open
TUNED = "tuned"  # column and value: of runs with the settings of speed that `launch tune` found
SERIES = "series"  # of imported runs: keeps their cells apart, and is no difference between experiments
UNKNOWN = "unknown"
PUBLISHED_FOLDER = "published:"  # first part of the path of a published result, which is on no disk
RENAMED_SITES = {"thesis-003": "thesis-machine"}  # names in run folders of earlier versions -> names of today
_IN_A_PLACE = ("prepared", "images")  # data sets whose names are paths
# Column -> where the config has it.
_OF_CONFIG = {
    name: f"{subject}.{name}"
    for subject, settings in defined_settings().items()
    for name, defines in settings.items()
    if defines.cell
}
_values_of = attrgetter(*_OF_CONFIG.values())
# Every column of settings, in the order in which labels name them.
SETTING_COLUMNS = (
    "framework", "model", "data_set", "np", "site", "device", "image_size", "global_batch", "hosts", "controller",
    "at_once", "threads", "tuning", "samples", "mean_of_pixels", "data", "machine", *_OF_CONFIG, ONEDNN_IN_FORCE,
    SERIES, "published_in", "origin",
)  # fmt: skip


def settings_of(folder: Path, record: RunRecord) -> dict[str, Hashable]:
    """Return column -> value of all settings that define a run but its seed; without those it does not have.

    None is a setting that is off, or a number that is not known. `published_in` is the document and the place in it of
    a result that `--published` has added.
    """
    settings: dict[str, Hashable] = {
        "framework": record.framework,
        "model": record.model.name if isinstance(record.model, ModelRecord) else UNKNOWN,
        "site": RENAMED_SITES.get(record.site, record.site),
    }
    settings |= _of_ranks(record.world)
    settings |= _of_data(record.data)
    settings["tuning"] = tuning_words(record)
    if (in_force := onednn_in_force(record)) is not None:
        settings[ONEDNN_IN_FORCE] = in_force
    document = folder.parent.name if folder.parts[0] == PUBLISHED_FOLDER else None
    if isinstance(record.data, NotRecorded) and document is None:  # data not recorded for another reason are other data
        settings["data"] = record.data.not_recorded
    if isinstance(record.environment, Environment):
        settings["machine"] = record.environment.machine
    if isinstance(record.config, Config):
        settings |= _of_config(record.config)
    if record.origin == "imported":
        # Runs that a source keeps apart were not made in one series, whatever their records have in common.
        settings[SERIES] = re.sub(r"-(r|energy)[0-9]+$", "", folder.name)
    # Results in different places of a document were not measured in one series.
    return settings | {"published_in": document, "origin": record.origin}


def _of_ranks(world: World | NotRecorded) -> dict[str, Hashable]:
    if isinstance(world, NotRecorded):
        return {"np": None, "device": UNKNOWN}
    models = world.gpus or [None] * len(world.devices)
    kinds = sorted({_device(*of_rank) for of_rank in zip(world.devices, models, strict=False)})
    settings: dict[str, Hashable] = {
        "np": world.size,
        "device": " and ".join(kinds) or UNKNOWN,
        "hosts": len(set(world.hosts)),
        "controller": world.controller,
        "at_once": world.at_once,
    }
    if not isinstance(world.threads_per_rank, NotRecorded):
        settings["threads"] = world.threads_per_rank
    return settings


def _device(device: str, model: str | None) -> str:
    """Return a rank's device: "cpu", or "gpu" and its model where that is known."""
    return "cpu" if device == "cpu" else f"gpu {model}" if model else "gpu"


def kind_of_device(device: str) -> str:
    """Return the kind of a value of the column `device`: cpu, gpu, unknown, or "cpu and gpu"."""
    return " and ".join(dict.fromkeys(one.split(" ", 1)[0] for one in device.split(" and ")))


def _of_data(data: DataRecord | NotRecorded) -> dict[str, Hashable]:
    if isinstance(data, NotRecorded):
        return {"data_set": UNKNOWN, "image_size": UNKNOWN, "global_batch": None}
    kind, colon, path = data.name.partition(":")
    settings: dict[str, Hashable] = {
        # The path of a file or folder is another at every site.
        "data_set": f"{kind}:{Path(path).name}" if colon and kind in _IN_A_PLACE else data.name,
        "image_size": f"{data.image_shape[1]}x{data.image_shape[0]}",
        "global_batch": data.global_batch_size or None,
        "samples": f"{data.training_samples}/{data.validation_samples}/{data.test_samples}",
    }
    if data.name.startswith(_IN_A_PLACE):  # files of one name may hold other pixels
        settings["mean_of_pixels"] = ", ".join(f"{mean:.9g}" for mean in data.mean)
    return settings


def _of_config(config: Config) -> dict[str, Hashable]:
    settings = dict(zip(_OF_CONFIG, _values_of(config), strict=True))
    settings[TUNED] = TUNED if config.model.tuned else f"not {TUNED}"
    # Each seed may start from a run of its own; first weights are compared by their hashes.
    settings["start_weights"] = None if config.training.start_weights is None else "of a run"
    return settings
