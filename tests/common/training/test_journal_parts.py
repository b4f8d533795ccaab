"""The parts of an epoch in the journal: ranks agree, checkpoints hold what each has, their time is no training."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import make_config, make_setup, random_weights
from fake_ranks import alone, run_ranks

from common.config import Config
from common.distributed.communicator import Communicator
from common.distributed.console import Console
from common.errors import UserError
from common.measurement.metrics import Sums
from common.model.weights import Weights
from common.run_folder.checkpoints import EpochProgress, checkpoint_folders, load_newest_checkpoint
from common.run_folder.records import read_run
from common.training import journal as journal_module
from common.training.checkpoint_schedule import CheckpointSchedule
from common.training.journal import EpochResult, Journal
from common.training.run_setup import RunSetup

OFTEN = {"checkpoint_minutes": 1e-9}


@dataclass
class Trainer:
    """Stands for a trainer of one rank: its steps take a second each, and its parts are those of the journal."""

    journal: Journal
    weights: Weights

    def train_epoch(self, epoch: int, begun: EpochProgress | None = None) -> list[int]:
        """Return the parts of an epoch."""
        self.clock = 0.0
        journal, begun = self.journal, begun or EpochProgress()
        journal.phases._clock = lambda: self.clock
        parts = []
        with journal.phases.phase("training", synchronize=lambda: None, before=begun.training_seconds) as self.training:
            for part in journal.parts(
                epoch, begun=begun, weights=lambda: self.weights, optimizer_state=dict, progress=self.progress
            ):
                self.clock += part
                parts.append(part)
        self.result = EpochResult(
            training=Sums(6.0, 3, 12), training_seconds=self.training.seconds, data_wait_seconds=0.0
        )
        return parts

    def progress(self) -> EpochProgress:
        """Return what this rank has; its time passes in the pause, which is none of the training's."""
        self.clock += 1000.0
        state = {"sums": np.full(2, self.journal.comm.rank + 0.5)}
        return EpochProgress(training_seconds=self.training.seconds, state=state)

    def end_epoch(self, epoch: int) -> bool:
        """End it as `train.py` does."""
        return self.journal.epoch_ended(epoch, self.result, weights=self.weights, optimizer_state=dict)


def start(setup: RunSetup, comm: Communicator, **changes: Weights) -> Trainer:
    """Start a journal, and a trainer whose weights are those of the other ranks but for `changes`."""
    journal = Journal(framework="torch", comm=comm, console=Console(comm, progress="lines"))
    journal.start(setup, device="cpu", threads=1)
    journal.training_starts()
    return Trainer(journal, {**random_weights(setup), **changes.get("weights", {})})


def config_of(folder: Path, **record: Any) -> Config:
    """Return settings for epochs of 4 steps on 2 ranks."""
    return make_config(folder, training={"batch_size": 15}, record={"name": "run", **record})


def test_without_the_setting_an_epoch_is_one_part_and_nobody_is_asked(tmp_path: Path) -> None:
    setup = make_setup(config_of(tmp_path), size=1)
    asked = []

    def allgather(value: Any) -> list[Any]:
        asked.append(value)
        return [value]

    trainer = start(setup, replace(alone(), allgather=allgather))
    asked.clear()
    assert trainer.train_epoch(1) == [8]
    assert trainer.train_epoch(1, EpochProgress(steps=3)) == [5]
    assert asked == [] and trainer.result.training_seconds == 5.0


def test_all_ranks_train_the_same_parts_and_a_checkpoint_holds_what_each_has(tmp_path: Path) -> None:
    setup = make_setup(config_of(tmp_path, **OFTEN), size=2)

    def work(comm: Communicator) -> tuple[list[int], float]:
        trainer = start(setup, comm)
        return trainer.train_epoch(1), trainer.result.training_seconds

    # Each rank has a clock of its own, of which the first decides; seconds in a pause are none of the training.
    assert run_ranks(2, work) == [([1, 1, 1, 1], 4.0)] * 2
    (folder,) = checkpoint_folders(tmp_path / "run")
    assert folder.name == "epoch-0001-step-000003"
    found = load_newest_checkpoint(tmp_path / "run", spec=setup.spec, recorded_epochs=0)
    assert (found.epoch, found.step) == (0, 3)
    assert [rank.steps for rank in found.ranks] == [3, 3]
    assert [rank.training_seconds for rank in found.ranks] == [3.0, 3.0]
    assert [rank.state["sums"].tolist() for rank in found.ranks] == [[0.5, 0.5], [1.5, 1.5]]


def test_the_first_rank_decides_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make_setup(config_of(tmp_path, **OFTEN), size=2)
    hurried = iter([2, 2, 1, 1, 1, 1])

    def work(comm: Communicator) -> list[int]:
        trainer = start(setup, comm)
        if comm.rank:
            trainer.journal._schedule = _Other(hurried)  # type: ignore[assignment]
        return trainer.train_epoch(1)

    assert run_ranks(2, work) == [[1, 1, 1, 1]] * 2


class _Other(CheckpointSchedule):
    """A schedule that wants something else."""

    def __init__(self, parts: Iterator[int]) -> None:
        super().__init__(1.0)
        self._parts = parts

    def part_ended(self) -> bool:
        return False

    def next_steps(self, left: int) -> int:
        return next(self._parts)


def test_pauses_count_as_time_of_checkpoints_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make_setup(config_of(tmp_path, **OFTEN), size=1)
    now = [0.0]
    monkeypatch.setattr(journal_module.time, "perf_counter", lambda: now[0])
    save = journal_module.save_checkpoint

    def save_slowly(*arguments: Any, **options: Any) -> None:
        now[0] += 10.0
        save(*arguments, **options)

    monkeypatch.setattr(journal_module, "save_checkpoint", save_slowly)
    trainer = start(setup, alone())
    for epoch in (1, 2):
        assert trainer.train_epoch(epoch) == [1] * 8
        trainer.end_epoch(epoch)
    run = read_run(tmp_path / "run")
    assert [epoch.checkpoint_seconds for epoch in run.epochs] == [80.0, 80.0]  # 7 inside, and the last
    assert [epoch.training_seconds for epoch in run.epochs] == [8.0, 8.0]
    assert [folder.name for folder in checkpoint_folders(run.folder)] == ["epoch-0002"]
    newest = trainer.train_epoch(3) and load_newest_checkpoint(run.folder, spec=setup.spec)
    assert isinstance(newest, journal_module.Checkpoint)
    assert newest.checkpoint_seconds == 60.0, "before its own"


def test_seconds_before_a_resumption_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make_setup(config_of(tmp_path, **OFTEN), size=1)
    now = [0.0]
    monkeypatch.setattr(journal_module.time, "perf_counter", lambda: now[0])
    trainer = start(setup, alone())
    trainer.train_epoch(1)
    trainer.journal.end("interrupted", message="by the test")
    state = checkpoint_folders(tmp_path / "run")[-1] / "state.json"
    state.write_text(state.read_text().replace('"checkpoint_seconds": 0.0', '"checkpoint_seconds": 50.0'))

    resumed = make_setup(config_of(tmp_path, resume=str(tmp_path / "run")), size=1)
    journal = Journal(framework="torch", comm=alone(), console=Console(alone(), progress="lines"))
    checkpoint = journal.start(resumed, device="cpu", threads=1)
    journal.training_starts()
    assert checkpoint is not None and (checkpoint.epoch, checkpoint.step) == (0, 7)
    trainer = Trainer(journal, random_weights(resumed))
    assert trainer.train_epoch(1, checkpoint.ranks[0]) == [1]
    trainer.end_epoch(1)
    run = read_run(tmp_path / "run")
    (epoch,) = run.epochs
    assert (epoch.training_seconds, epoch.checkpoint_seconds) == (8.0, 50.0)
    assert run.record.status.resumed_after_epochs == [0]  # type: ignore[union-attr]
    assert run.record.status.resumed_after_steps == [7]  # type: ignore[union-attr]


def test_weights_that_differ_stop_all_ranks_before_a_checkpoint(tmp_path: Path) -> None:
    setup = make_setup(config_of(tmp_path, **OFTEN), size=2)

    def work(comm: Communicator) -> None:
        bias = random_weights(setup)["fc2.bias"]
        start(setup, comm, weights={"fc2.bias": bias + comm.rank}).train_epoch(1)

    for error in run_ranks(2, work):
        assert isinstance(error, UserError) and "after step 1 of epoch 1: 1 of 4 tensors differ" in str(error)
    assert checkpoint_folders(tmp_path / "run") == []
