"""Matches all layers; where weights fit several layers with the same input, tries other choices.

A choice is right if the models part later. One that makes them part earlier is wrong, and the group it belongs to is
settled: its layers are told apart by what comes between.
"""

from contextlib import suppress
from itertools import islice, permutations

from keras_impl.twins.matcher import Case, Choices, Group, Matcher
from keras_impl.twins.runner import PartedError, Runner

MOST_TRIALS = 120
MOST_ORDERS = 24  # tried of a group
LAST_GROUPS = 4  # before a place, that are tried there


class Search:
    """Finds the match of all layers.

    Attributes:
        tried: choices between layers with equal inputs.
    """

    def __init__(self, case: Case) -> None:
        self.tried = 0
        self._case, self._choices = case, Choices()
        self._settled: set[Group] = set()

    def _run(self, choices: Choices, *, parts_at_most: int | None = None) -> Runner:
        runner = Runner(Matcher(self._case, choices=choices), parts_at_most=parts_at_most)
        with suppress(PartedError):
            runner.run()
        return runner

    def best(self) -> Runner:
        """Return the run in which the models part as late as can be."""
        runner, place = self._run(self._choices), 0
        while place < len(runner.parted_at) and self.tried < MOST_TRIALS:
            better = self._better(runner, place)
            if better is None:
                place += 1  # a real difference
            else:
                self._choices = better
                runner = self._run(better)
        return self._run(self._choices) if self.tried else runner

    def _better(self, runner: Runner, place: int) -> Choices | None:
        """Return choices after which the models part later than at a place."""
        row = runner.parted_at[place]
        groups = runner.matcher.binding.groups.items()
        before = [group for group, rows in groups if rows and min(rows) < row and group not in self._settled]
        for group in before[-LAST_GROUPS:][::-1]:
            now = self._choices.order(group)
            for order in islice(permutations(range(len(group))), MOST_ORDERS):
                if order == now:
                    continue
                self.tried += 1
                trial = Choices({**self._choices.of, group: order}, self._choices.preferred)
                parted = self._run(trial, parts_at_most=place).parted_at
                until = parted[place] if len(parted) > place else None
                if until is None or until > row:
                    return Choices(trial.of, {**self._choices.preferred, len(group): order})
                if until < row:
                    self._settled.add(group)
                    break
                if self.tried >= MOST_TRIALS:
                    return None
        return None
