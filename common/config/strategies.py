"""What each strategy needs, supports and refuses: a class each.

Refusals, the notes of `--help-all`, what connects the ranks, and the table in `common/strategies/README.md` are made
from these classes.
"""

from collections.abc import Mapping
from typing import Any

from common.config.conditions import EXCLUSIONS, FLOAT16, NEEDS, Condition, Given
from common.config.rules import flag_of
from common.errors import UserError

STRATEGIES: list[type["Strategy"]] = []


class Strategy:
    """How ranks share the work of a batch.

    Attributes:
        chosen_by: the condition that chooses it, beside those of its bases; without values: its setting is given.
        frameworks: that have it.
        over_gloo: whether Gloo can connect its ranks; else only MPI can.
        uses_horovod: whether Horovod connects the ranks; else MPI alone does.
        options: conditions that no other strategy allows.
        needs: the option without which it says too little.
        ranks: how many ranks it takes, servers included, in words; see `takes_ranks`.
        refuses: conditions under which it does not train, and why.
    """

    chosen_by: Condition
    frameworks: tuple[str, ...] = ("torch", "keras")
    over_gloo = False
    uses_horovod = True
    options: tuple[Condition, ...] = ()
    needs: str | None = None
    ranks = "any number of ranks"
    refuses: tuple[tuple[Condition, str], ...] = ()

    def __init_subclass__(cls) -> None:
        STRATEGIES.append(cls)

    @classmethod
    def is_chosen(cls, values: Mapping[str, Any]) -> bool:
        """Return whether its condition and those of its bases hold."""
        conditions = [strategy.chosen_by for strategy in STRATEGIES if issubclass(cls, strategy)]
        return all(
            values[one.setting] in one.values if one.values else values[one.setting] is not None for one in conditions
        )

    @staticmethod
    def takes_ranks(ranks: int, needed: Any) -> bool:
        """Return whether it trains on so many ranks; `needed`: the value of the option that it needs."""
        return True


class AllReduce(Strategy):
    """gradients are averaged over the ranks before every update"""

    chosen_by = Condition("strategy", ("allreduce",))
    over_gloo = True
    options = (
        *map(Condition, ("adasum", "backward_passes_per_step", "compression", "elastic", "gradient_groups", "profile")),
        Condition("topk"),
        FLOAT16,
    )


class Adasum(AllReduce):
    """each rank computes an update, and Adasum combines the updates by the angles between them"""

    chosen_by = Condition("adasum", (True,))
    over_gloo = False
    ranks = "2, 4 or 8 ranks"
    refuses = (
        (Condition("profile"), "--profile times the averaging of gradients"),
        (Condition("compression"), "Adasum in float16 is not verified"),
        (FLOAT16, "Adasum in float16 is not verified"),
        (Condition("gradient_groups"), "all updates are combined in one group"),
        (Condition("shares"), "Adasum weights updates by their angles, not by images"),
        (Condition("elastic"), "Adasum needs MPI, which ends all ranks if one ends"),
    )

    @staticmethod
    def takes_ranks(ranks: int, needed: Any) -> bool:
        return ranks in (2, 4, 8)


class TopK(AllReduce):
    """only the largest gradients are averaged; each rank adds the others to its next ones"""

    chosen_by = Condition("topk")
    refuses = (
        (Condition("adasum"), "Adasum combines whole updates"),
        (Condition("profile"), "--profile times the averaging of whole gradients"),
        (Condition("compression"), "what float16 rounds off would be in no residual"),
        (FLOAT16, "residuals would have the loss scale of an earlier update"),
        (Condition("gradient_groups"), "the largest gradients are exchanged in one group"),
        (Condition("elastic"), "the residual of a rank would be lost with it"),
    )


class Averaging(Strategy):
    """(local SGD) each rank updates its own weights, which are averaged periodically"""

    chosen_by = Condition("strategy", ("averaging",))
    over_gloo = True
    options = (Condition("average_every"), Condition("average_state"), Condition("warmup_allreduce"))
    needs = "average_every"


class Divided(Strategy):
    """several ranks hold one copy of the model"""

    chosen_by = Condition("strategy", ("layers", "split"))
    ranks = "a multiple of this number of ranks"
    refuses = (
        (Condition("mixed_precision"), "activations in other types than that of the weights are not verified"),
        (Condition("compile"), "ranks exchange activations inside a pass"),
        (Condition("shares"), "ranks that divide one model use the same batches"),
        (Condition("slow"), "stragglers need ranks that hold whole models"),
    )

    @staticmethod
    def takes_ranks(ranks: int, needed: Any) -> bool:
        return bool(ranks % needed == 0)


class Layers(Divided):
    """(pipeline parallelism) ranks hold consecutive layers of one model"""

    chosen_by = Condition("strategy", ("layers",))
    options = tuple(map(Condition, ("stages", "cut_after", "microbatches", "pipeline_schedule")))
    needs = "stages"


class Split(Divided):
    """(tensor parallelism) ranks hold a part of every layer"""

    chosen_by = Condition("strategy", ("split",))
    options = (Condition("model_ranks"),)
    needs = "model_ranks"


class Server(Strategy):
    """ranks without data hold and update the weights"""

    chosen_by = Condition("strategy", ("server",))
    uses_horovod = False
    options = tuple(map(Condition, ("servers", "staleness", "push_every", "fetch_every", "replay")))
    needs = "servers"
    ranks = "more ranks than servers, which are ranks without data"
    refuses = ((Condition("horovod_timeline"), "Horovod is not started"),)

    @staticmethod
    def takes_ranks(ranks: int, needed: Any) -> bool:
        return bool(needed < ranks)


class Native(Strategy):
    """the framework's own strategy, without Horovod"""

    chosen_by = Condition("strategy", ("native",))
    uses_horovod = False
    options = (Condition("native"),)
    needs = "native"
    refuses = (
        (Condition("compile"), "the framework exchanges gradients inside a pass"),
        (Condition("horovod_timeline"), "native strategies do not start Horovod"),
        (Condition("share_gpu"), "the framework exchanges gradients between GPUs"),
        (Condition("shares"), "the framework divides batches equally"),
        (Condition("slow"), "stragglers are not implemented for native strategies"),
    )


class DistributedDataParallel(Native):
    """PyTorch's DistributedDataParallel"""

    chosen_by = Condition("native", ("ddp",))
    frameworks = ("torch",)


class Mirrored(Native):
    """TensorFlow's MirroredStrategy: one process with several devices"""

    chosen_by = Condition("native", ("mirrored",))
    frameworks = ("keras",)
    options = (Condition("replicas"),)
    needs = "replicas"
    ranks = "one rank, which has several devices"

    @staticmethod
    def takes_ranks(ranks: int, needed: Any) -> bool:
        return ranks == 1


class MultiWorker(Native):
    """TensorFlow's MultiWorkerMirroredStrategy: one process for each replica"""

    chosen_by = Condition("native", ("multiworker",))
    frameworks = ("keras",)


# Option -> the strategy that it belongs to; subclasses have the options of their bases.
OWNERS = {option: strategy for strategy in reversed(STRATEGIES) for option in strategy.options}


def strategy_of(values: Mapping[str, Any]) -> type[Strategy]:
    """Return the strategy that the values of settings choose: subclasses say more, and come later."""
    return next(strategy for strategy in reversed(STRATEGIES) if strategy.is_chosen(values))


def check_strategy(given: Given) -> None:
    """Raise UserError if an option is another strategy's, or one is missing, or what the strategy refuses is given."""
    strategy = strategy_of(given.values)
    for option, owner in OWNERS.items():
        if given.has(option) and not issubclass(strategy, owner):
            raise UserError(
                f"{option} is an option of {owner.chosen_by}. Received: {strategy.chosen_by} "
                f"{given.shown(option.setting)}. Leave it out, or give {owner.chosen_by}"
            )
    if strategy.needs:
        given.check_need(strategy.chosen_by, strategy.needs)
    for condition, reason in strategy.refuses:
        given.check_exclusion(strategy.chosen_by, condition, reason=reason)


def check_ranks(given: Given, ranks: int) -> None:
    """Raise UserError if so many ranks, servers included, cannot train by the strategy."""
    strategy = strategy_of(given.values)
    needed = strategy.needs or strategy.chosen_by.setting
    if not strategy.takes_ranks(ranks, given.values[needed]):
        raise UserError(
            f"{strategy.chosen_by} trains on {strategy.ranks}. Received: {given.shown(needed)} on {ranks}. "
            "Start another number of ranks with horovodrun --mpi, mpirun or srun"
        )


def kinds_of(setting: str) -> list[str]:
    """Return the strategies among which a setting chooses, each with its text."""
    named = {strategy.chosen_by: strategy for strategy in STRATEGIES}
    return [
        f"{condition.values[0]}: {strategy.__doc__}"
        for condition, strategy in named.items()
        if condition.setting == setting and condition.values != (True,) and len(condition.values) == 1
    ]


def notes_on(setting: str) -> list[str]:
    """Return which strategy has or needs a setting, which setting it needs itself, and which ones exclude it."""
    this = Condition(setting)
    pairs = [pair for pair in EXCLUSIONS if len(pair) == 2]
    pairs += [(strategy.chosen_by, condition) for strategy in STRATEGIES for condition, _ in strategy.refuses]
    notes = {
        "for": [str(OWNERS[this].chosen_by)] if this in OWNERS else [],
        "needs": [flag_of(needed) for condition, needed in NEEDS.items() if condition == this],
        "not with": [str(other) for pair in pairs for own, other in (pair, pair[::-1]) if own == this],
    }
    return [f"{words} {', '.join(flags)}" for words, flags in notes.items() if flags]
