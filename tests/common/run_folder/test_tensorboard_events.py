"""TensorBoard events: read back by TensorBoard's own loader; without the package the run ends before it starts."""

import json
import sys

import pytest
from builders import make_config, make_task
from played_run import play
from processes import run_python

from common.config import config_from_dict
from common.errors import UserError
from common.run_folder.records import read_run
from common.run_folder.tensorboard_events import EVENTS_FILE

# TensorBoard reads with TensorFlow where it is installed, which takes seconds to import; it can do without.
READER = """
import json, sys
sys.modules["tensorflow"] = None
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
tags = events.Tags()["scalars"]
print(json.dumps({tag: [[event.step, event.value] for event in events.Scalars(tag)] for tag in tags}))
"""


def test_tensorboard_reads_the_events_of_a_run_and_of_its_resumption(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the tensorboard package (pip install tensorboard)")

    def train(epochs):
        def script(played):
            for epoch in range(played.done + 1, epochs + 1):
                played.end_epoch(epoch, training_seconds=float(epoch))
            played.end("interrupted")

        return script

    config, loaded = make_config(tmp_path, record={"tensorboard": True}), set(sys.modules)
    play(config, train(1))
    size = (tmp_path / "run" / EVENTS_FILE).stat().st_size
    play(config_from_dict({"record": {"resume": str(tmp_path / "run")}}, base=config), train(3))
    assert not {"tensorflow", "torch", "keras"} & (set(sys.modules) - loaded), "writing imports no framework"
    run = read_run(tmp_path / "run")
    assert size < (run.folder / EVENTS_FILE).stat().st_size < 3 * size
    read = json.loads(run_python("-c", READER, str(run.folder)).stdout)
    assert read["training_loss"] == [[1, 0.5], [2, 0.5], [3, 0.5]]
    assert read["training_seconds"] == [[1, 1.0], [2, 2.0], [3, 3.0]]
    assert read["images_per_second"] == [[1, 120.0], [2, 60.0], [3, 40.0]]
    numbers = {tag for tag, value in vars(run.epochs[0]).items() if isinstance(value, float)}
    assert set(read) == numbers and "validation_loss" not in read


def test_without_the_package_the_run_ends_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith("tensorboard.")]:
        monkeypatch.setitem(sys.modules, name, None)
    config = make_config(tmp_path, record={"tensorboard": True})
    with pytest.raises(UserError, match=r"need the tensorboard package.*Received: --tensorboard.*pip install") as error:
        make_task(config)
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []
    make_task(make_config(tmp_path))
