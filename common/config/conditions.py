"""Which settings need or exclude each other. What a strategy needs and excludes, it declares itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.config.rules import flag_of, settings_flags
from common.errors import UserError


@dataclass(frozen=True)
class Condition:
    """That a setting has one of these values; without values: another than its default."""

    setting: str
    values: tuple[Any, ...] = ()

    def __str__(self) -> str:
        """Return it as on a command line, such as "--strategy layers"."""
        return f"{flag_of(self.setting)} {' or '.join(map(str, self.values))}".removesuffix(" True").rstrip()


@dataclass(frozen=True)
class Given:
    """The value of every setting, and its default, by the setting's name."""

    values: Mapping[str, Any]
    defaults: Mapping[str, Any]

    def has(self, condition: Condition) -> bool:
        """Return whether a condition holds."""
        value = self.values[condition.setting]
        return value in condition.values if condition.values else value != self.defaults[condition.setting]

    def shown(self, *settings: str) -> str:
        """Return settings as on a command line, or that they were left out."""
        words = []
        for setting in settings:
            value = self.values[setting]
            is_left_out = value is None or value is self.defaults[setting] is False
            words += ["without", flag_of(setting)] if is_left_out else settings_flags({setting: value})
        return " ".join(words)

    def check_need(self, condition: Condition, needed: str) -> None:
        """Raise UserError if the condition holds without a setting that it needs."""
        value = self.values[needed]
        if self.has(condition) and not value:
            own, flag = self.shown(condition.setting), flag_of(needed)
            remedy = f"Give {flag}, see --help-all" if value is None or value is False else f"Give {flag} above 0"
            raise UserError(f"{own} needs {flag}. Received: {own} {self.shown(needed)}. {remedy}")

    def check_exclusion(self, *conditions: Condition, reason: str) -> None:
        """Raise UserError if all of the conditions hold."""
        if all(self.has(condition) for condition in conditions):
            received = self.shown(*(condition.setting for condition in conditions))
            raise UserError(f"{reason}. Received: {received}. Leave one of them out")


COMPILE = Condition("compile")
CPU = Condition("device", ("cpu",))
ELASTIC = Condition("elastic")
ENERGY = Condition("energy")
FLOAT16 = Condition("mixed_precision", ("float16",))
GRADIENT_GROUPS = Condition("gradient_groups")
MIXED_PRECISION = Condition("mixed_precision")
PROFILE = Condition("profile")
REPLAY = Condition("replay")
SHARES = Condition("shares")
SLOW = Condition("slow")
STALENESS = Condition("staleness")

# Condition -> setting that must be given, too: not None, off or 0.
NEEDS = {
    Condition("nesterov"): "momentum",
    Condition("tuned_by"): "tuned",
    Condition("slow_is_subject"): "slow",
    STALENESS: "lr_scaling",  # each update uses one worker's batch: a rate scaled for all workers may be too large
    Condition("push_every"): "staleness",  # without it, all workers push and fetch in every update
    Condition("fetch_every"): "staleness",
    REPLAY: "staleness",
    Condition("commit_steps"): "elastic",
    Condition("on_stall", ("drop",)): "elastic",  # other ranks cannot continue
    Condition("resume_or_start"): "name",
}
# Conditions that must not all hold -> why.
EXCLUSIONS = {
    (Condition("loss", ("cross_entropy",)), Condition("output_activation")): (
        "cross_entropy contains its own softmax and needs linear outputs"
    ),
    (FLOAT16, CPU): "mixed precision in float16 needs a GPU (bfloat16 does not)",
    (MIXED_PRECISION, Condition("dtype", ("float64",))): "mixed precision has float32 weights, not float64",
    (Condition("pinned_memory"), CPU): "pinned memory is for copies to a GPU",
    (Condition("share_gpu"), CPU): "ranks on the CPU have no GPU to share",
    (PROFILE, GRADIENT_GROUPS): "--profile times a single exchange, after the last gradient",
    (PROFILE, MIXED_PRECISION): "--profile does not support mixed precision",
    (PROFILE, Condition("batch_norm")): "--profile needs steps that are all alike",
    (PROFILE, ENERGY): "--profile changes the steps whose energy would be measured",
    (PROFILE, COMPILE): "--compile merges the parts of a step that --profile times",
    (PROFILE, Condition("backward_passes_per_step")): "--profile needs plain steps",
    (PROFILE, SLOW): "--profile needs plain steps",
    (SLOW, GRADIENT_GROUPS): "a straggler sleeps before it exchanges anything",
    (STALENESS, SHARES): "with this staleness, workers already share the work by their speed",
    (REPLAY, Condition("checkpoint_minutes")): "in a replay, workers synchronize at the same updates as in the run",
    (ENERGY, Condition("native", ("mirrored",)), Condition("device", ("auto", "gpu"))): (
        "energy is measured for one GPU per rank; of replicas on CPUs, give --device cpu"
    ),
    (ELASTIC, SHARES): "parts of the batch change with the ranks",
    (ELASTIC, Condition("gradient_groups", ("auto",))): "groups are measured with constant ranks",
    (ELASTIC, SLOW): "the straggler may end, or become another rank",
    (ELASTIC, ENERGY): "energy is measured for ranks that run from start to end",
    (ELASTIC, PROFILE): "a profile needs ranks that run from start to end",
    (ELASTIC, Condition("horovod_timeline")): "a timeline needs ranks that run from start to end",
    (ELASTIC, COMPILE): "the model would be recompiled after each change of ranks",
    (ELASTIC, Condition("memory_limit")): "the limit ends all ranks if one exceeds it",
}
