"""The tables of results: name in the pages -> how it is made from `analysis/data`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import pandas as pd

from analysis.output.finding import Finding, Plot
from analysis.output.options import MARGIN
from analysis.output.tables import Table, render
from analysis.projection.study import STUDY_FILE, read_study
from analysis.questions import bench, faults, frameworks, layers, tune
from analysis.questions.hyperparameters import command as hyperparameters
from analysis.questions.hyperparameters.searches import Search, statements
from analysis.questions.hyperparameters.searches import tables as search_tables
from analysis.questions.parity import command as parity
from analysis.questions.projection import command as projection
from analysis.questions.scaling import command as scaling
from analysis.questions.strategies import command as strategies
from analysis.questions.strategies.claims import claims_table as strategy_claims
from analysis.questions.strategies.parts import GROWN
from analysis.questions.strategies.ways import places_of
from analysis.runs.cells import cells_of
from analysis.runs.reading import load_runs
from analysis.runs.table import Selection
from common.checks.bench_record import BENCH_FILE, BENCHES
from common.checks.chaos_record import CHANGE_HEADINGS, HEADINGS, read_trials, struck, summary, summary_of_changes
from common.checks.parity_record import read_parity
from common.distributed.console import counted
from common.measurement.interference import Interference
from common.run_folder.environment import Environment
from common.run_folder.records import Status
from common.run_folder.search_record import read_search

PACKAGES = ("horovod", "torch", "tensorflow-cpu", "keras")
HEADLINE = "headline"  # the experiment of the front page


def headline_table(data: Path) -> str:
    """Return Keras against PyTorch on the front page: a row for each way to run, with its processor."""
    selection = _runs(data / HEADLINE)
    table = frameworks.find(selection).tables[0]
    wanted = ["model, data set, np", "Keras / PyTorch time", "95 % interval", "verdict", "within 0.5 points"]
    shown = _frame(table)[wanted].rename(columns={"within 0.5 points": "accuracy, within 0.5 points"})
    # What the trainers do by default comes first.
    shown = shown.sort_values(wanted[0], key=lambda names: names.str.contains("as installed"), kind="stable")
    processors = {one.environment.processor: one.environment.cores for one in selection.runs["record"]}
    shown["processor"] = " and ".join(f"{name}, {cores} cores" for name, cores in processors.items())
    return f"{described(selection)}\n\n{_shown(shown, table.formats)}"


def summary_table(data: Path) -> str:
    """Return what people ask, and what was found: an answer from each experiment."""
    searched = statements(Search(data / "search", read_search(data / "search")))
    speed = BENCHES.read(data / "bench" / BENCH_FILE)
    answers = {
        "Which framework trains faster?": frameworks.find(_runs(data / HEADLINE)).answer,
        "What do two ranks bring?": scaling.find(_runs(data / "results")).answer,
        "Which strategy should I take?": _strategies(data, STRATEGIES[0]).answer,
        "Which strategy trains a model that does not fit?": _strategies(data, MEMORY_BUDGET).answer,
        "Which settings make training faster?": " ".join(_tuned(folder).answer for folder in _tuned_folders(data)),
        "Which framework finds better hyperparameters?": searched[-1],
        "Where do the steps of the frameworks differ?": layers.find(_runs(data / "layers")).answer,
        "What does an exchange cost?": bench.find(speed).answer,
        "What does a rank that ends cost?": _faults(data).answer,
        "How far can projected times be trusted?": _projection(data).answer.replace("\n", " "),
    }
    return _shown(pd.DataFrame(answers.items(), columns=["question", "answer"]), {})


def frameworks_table(data: Path) -> str:
    """Return Keras against PyTorch, with what the runs ran on."""
    selection = _runs(data / "results")
    table = frameworks.find(selection).tables[0]
    return f"{described(selection)}\n\n{_shown(_frame(table).drop(columns='p'), table.formats)}"


def times_table(data: Path) -> str:
    """Return training time, rate and test accuracy of each framework."""
    _, times, accuracies = (_frame(table) for table in frameworks.find(_runs(data / "results")).tables)
    cell = ["framework", "model, data set, np"]
    merged = times.merge(accuracies, on=cell, suffixes=("", ", accuracy"))
    shown = [*cell, "n", "training, s", "95 % interval", "images/s", "accuracy, %", "95 % interval, accuracy"]
    return _shown(merged[shown], {"n": "d", "training, s": ".2f", "images/s": ",.0f", "accuracy, %": ".2f"})


def scaling_table(data: Path) -> str:
    """Return the speedups of training over one rank."""
    table = scaling.find(_runs(data / "results")).tables[0]
    speedups = _frame(table).drop(columns=["total, s", "speedup", "95 % interval", "efficiency"])
    return _shown(speedups[speedups["scaling"] != "base"], table.formats)


def parity_table(data: Path) -> str:
    """Return the largest relative differences between the two frameworks in float64, a row per model."""
    comparisons = pd.DataFrame([asdict(one) for one in read_parity(data / "parity").comparisons])
    # Without first weights, whose limit is 0.
    judged = comparisons[(comparisons["tolerance"] > 0) & (comparisons["dtype"] == "float64")]
    between = judged["between"].map(lambda names: names[0].split()[0] != names[1].split()[0])
    one_pass = judged["what"].str.startswith(("outputs", "gradients"))
    names = one_pass.map({True: "outputs, losses, gradients", False: "updates and whole runs"})
    limits = judged["tolerance"].map(lambda limit: f" (limit {limit:.0e})".replace("e-0", "e-"))
    judged = judged[between].assign(compared=names + limits)
    by_model = judged.groupby("model", sort=False)
    largest = judged.pivot_table(index="model", columns="compared", values="difference", aggfunc="max", sort=False)
    shown = by_model.agg(comparisons=("difference", "size")).join(largest).reset_index()
    return _shown(shown, {"comparisons": "d"} | dict.fromkeys(largest.columns, ".1e"))


def projection_table(data: Path) -> str:
    """Return the errors of projected steps on what was left out of the fit, with what was measured."""
    found = _projection(data)
    table = found.tables[0]
    frame = _frame(table).query("framework == 'all'").drop(columns="framework")
    words = " ".join([*found.answer.splitlines(), found.notes[0]])
    return f"{words}\n\n{_shown(frame, table.formats)}"


def published_times_table(data: Path) -> str:
    """Return published times beside projected ones."""
    table = next(table for table in _projection(data).tables if table.title.startswith("Published times"))
    return _shown(_frame(table).drop(columns="published"), table.formats)


STRATEGIES = ("strategies", "averaging", "stragglers", "servers")  # experiments
MODEL_PARALLEL = "model-parallel"
PIPELINES, MEMORY_BUDGET = "pipelines", "memory-budget"
# Plots that several experiments have -> the one about them.
PLOT_OF = {
    "strategies-schedule": MODEL_PARALLEL,
    "strategies-bubble": PIPELINES,
    "strategies-memory": MEMORY_BUDGET,
}


def strategies_table(data: Path) -> str:
    """Return all strategies against all-reduce, in time and accuracy, with what the runs ran on."""
    selection = _runs(data / STRATEGIES[0])
    found = _strategies(data, STRATEGIES[0])
    table = _frame(found.tables[0]).drop(columns=["p", "95 % interval of it"])
    return f"{found.answer} {described(selection)}\n\n{_shown(table, found.tables[0].formats)}"


def strategy_costs_table(data: Path) -> str:
    """Return what each strategy exchanges, how long that takes, how stale it is, and its memory."""
    table = _strategies(data, STRATEGIES[0]).tables[1]
    wanted = ["framework", "model, data set, workers, site", "strategy", "images/s", "bytes/image", "exchange, %",
              "staleness: median", "most", "memory per rank, MB"]  # fmt: skip
    return _shown(_frame(table)[wanted], table.formats)


def stragglers_table(data: Path) -> str:
    """Return the time of each strategy, for each factor of a straggler, over that of all-reduce with it."""
    table = _frame(_strategies(data, "stragglers").tables[0])
    table = table[table["model, data set, workers, site"].str.contains("slow")]
    factor = table["model, data set, workers, site"].str.extract(r"slow \d+:(\S+)", expand=False)
    table = table.assign(factor="straggler " + factor, time=table["time / allreduce"].astype(float))
    shown = table.pivot_table(
        index=["framework", "strategy"], columns="factor", values="time", sort=False
    ).reset_index()
    return _shown(shown, dict.fromkeys(shown.columns[2:], ".2f"))


def model_parallel_table(data: Path) -> str:
    """Return time, exchange and memory of models that ranks hold together, with what the runs ran on."""
    wanted = ["model, data set, workers, site", "strategy", *strategies.COUNTS, "time / allreduce", "accuracy, %",
              "bytes/image", "waiting, %", "bubble, %", "memory per rank, MB", GROWN, "by forecast"]  # fmt: skip
    return _times_and_costs(data, MODEL_PARALLEL, wanted)


def pipelines_table(data: Path) -> str:
    """Return how long even stages wait for each other, and what that costs against one rank and all-reduce."""
    wanted = [
        "strategy",
        *strategies.COUNTS,
        "training, s",
        "efficiency, %",
        "time / allreduce",
        "waiting, %",
        "bubble, %",
    ]
    return _times_and_costs(data, PIPELINES, wanted)


def memory_budget_table(data: Path) -> str:
    """Return which ways train a model within a budget of memory, and which end by it."""
    costs = _strategies(data, MEMORY_BUDGET).tables[0]  # all-reduce, which others are compared with, has no time
    wanted = ["framework", "model, data set, workers, site", "strategy", *strategies.COUNTS, "ended by the limit",
              "training, s", GROWN, "by forecast"]  # fmt: skip
    shown = _shown(_frame(costs)[wanted], costs.formats)
    return f"{described(_runs(data / MEMORY_BUDGET))}\n\n{shown}"


def communication_table(data: Path) -> str:
    """Return what the variables of Horovod, groups, float16 and passes change in time, accuracy and bytes."""
    wanted = [
        "strategy",
        *strategies.COUNTS,
        "time / allreduce",
        "95 % interval",
        "accuracy, %",
        "bytes/update",
        "exchange, %",
    ]
    table = _times_and_costs(data, "communication", wanted)
    notes = _strategies(data, "communication").notes
    return "\n\n".join([table, *(note for note in notes if note.startswith(strategies.NO_EXCHANGE))])


def _times_and_costs(data: Path, experiment: str, wanted: Sequence[str]) -> str:
    """Return columns of both tables of strategies, a row for each framework and way, with what the runs ran on."""
    against, costs = _strategies(data, experiment).tables[:2]
    row = ["framework", "model, data set, workers, site", "strategy"]
    ratios = _frame(against)[[*row, "time / allreduce", "95 % interval"]]
    merged = _frame(costs).drop(columns="95 % interval").merge(ratios, on=row, how="left")
    merged = merged.astype(object).where(merged.notna(), None)
    described_runs = described(_runs(data / experiment))
    return f"{described_runs}\n\n{_shown(merged[['framework', *wanted]], costs.formats | against.formats)}"


def tuned_table(data: Path) -> str:
    """Return which settings of speed pay on a machine, task by task, from the runs of `launch tune`."""
    folders = _tuned_folders(data)
    found = [_tuned(folder) for folder in folders]
    if not found:
        return _shown(pd.DataFrame({"settings": ["not measured yet"]}), {})
    tables = [one.tables[0] for one in found]
    # The title goes on with settings that are the same in all rows.
    frames = [_frame(table).assign(task=re.sub(r"(, np \d+).*", r"\1", table.title)) for table in tables]
    frame = pd.concat(frames)[["task", *tables[0].headings]]
    return f"{described(load_runs(folders))}\n\n{_shown(frame, tables[0].formats)}"


def _tuned_folders(data: Path) -> list[Path]:
    return sorted(data.glob("tune-*"))


@cache
def _tuned(folder: Path) -> Finding:
    return tune.find(_runs(folder))


def bench_table(data: Path) -> str:
    """Return the speed of the trainers in pairs of turns, with the machine; a line where it was not measured yet."""
    file = data / "bench" / BENCH_FILE
    if not file.exists():
        return _shown(pd.DataFrame({"speed": ["not measured yet"]}), {})
    record = BENCHES.read(file)
    found = bench.find(record)
    machine, _, *methods = found.notes
    said = (f"{words[0].upper()}{words[1:]}." for words in (machine, *methods, *found.flags))
    words = [found.answer, f"Of {record.started[:10]}:", *said]
    return "\n\n".join([" ".join(words), *(_shown(_frame(table), table.formats) for table in found.tables)])


def layers_table(data: Path) -> str:
    """Return where a step of each framework spends its time, with what the runs ran on."""
    selection = _runs(data / "layers")
    found = layers.find(selection)
    words = " ".join([found.answer, *(f"{note[0].upper()}{note[1:]}." for note in found.notes), described(selection)])
    return "\n\n".join([words, *(_shown(_frame(table), table.formats) for table in found.tables)])


def faults_table(data: Path) -> str:
    """Return what became of runs and files after the faults of a campaign."""
    trials = struck(read_trials(data / "chaos"))
    machines, days = ({getattr(one, name) for one in trials} for name in ("machine", "day"))
    faults, lost = sum(one.strikes for one in trials), sum(not one.is_survived for one in trials)
    whole = f"{faults} faults in {len(trials)} runs of programs, {lost} of them not survived; "
    where = f"of {' and '.join(sorted(days))} on {' and '.join(sorted(machines))}."
    tables = [_shown(pd.DataFrame(summary(trials), columns=list(HEADINGS)), {})]
    if changes := summary_of_changes(trials):
        tables += [
            "How long elastic runs took, from the last update before a change to the first after it:",
            _shown(pd.DataFrame(changes, columns=list(CHANGE_HEADINGS)), {}),
        ]
    return "\n\n".join([whole + where, *tables])


def elastic_table(data: Path) -> str:
    """Return how far runs whose ranks came and went are from runs whose ranks stayed, and what it cost."""
    found = _faults(data)
    shown = [_shown(_frame(table).dropna(axis="columns", how="all"), table.formats) for table in found.tables[1:3]]
    return "\n\n".join([found.answer, *shown])


def search_table(data: Path) -> str:
    """Return what a search of both frameworks found at the same points, with what its trials ran on."""
    search = Search(data / "search", read_search(data / "search"))
    shown = [_shown(_frame(table), table.formats) for table in search_tables(search)[:3]]
    return "\n\n".join([" ".join([*statements(search), described(_runs(data / "search"))]), *shown])


def claims_table(data: Path) -> str:
    """Return what documents claim about strategies, and what the runs of all experiments show."""
    folders = [data / name for name in (*STRATEGIES, MODEL_PARALLEL, MEMORY_BUDGET, "search")]
    cells = cells_of(load_runs([folder for folder in folders if folder.exists()]).runs)
    table = strategy_claims(places_of(cells, margin=MARGIN), cells, margin=MARGIN)
    return _shown(_frame(table).drop(columns="where"), table.formats)


@cache
def _strategies(data: Path, experiment: str) -> Finding:
    return strategies.find(_runs(data / experiment))


TABLES: dict[str, Callable[[Path], str]] = {
    "headline": headline_table,
    "summary": summary_table,
    "frameworks": frameworks_table,
    "times": times_table,
    "scaling": scaling_table,
    "strategies": strategies_table,
    "strategy-costs": strategy_costs_table,
    "stragglers": stragglers_table,
    "communication": communication_table,
    "model-parallel": model_parallel_table,
    "pipelines": pipelines_table,
    "memory-budget": memory_budget_table,
    "tuned": tuned_table,
    "bench": bench_table,
    "layers": layers_table,
    "faults": faults_table,
    "elastic": elastic_table,
    "search": search_table,
    "claims": claims_table,
    "parity": parity_table,
    "projection": projection_table,
    "published-times": published_times_table,
}
FIGURES = (
    f"{HEADLINE}-time",
    "losses",
    "projection",
    "strategies-accuracy-time",
    "strategies-interval",
    "strategies-stragglers",
    "strategies-memory",
    "strategies-schedule",
    "strategies-bubble",
    "hyperparameters-search",
    "layers",
    "faults",
    "faults-2",
)


def plots(data: Path) -> list[Plot]:
    """Return the plots whose names are in FIGURES."""
    times, *_ = frameworks.find(_runs(data / HEADLINE)).plots
    of_parity = parity.find(data / "parity").plots
    # The first one of a name counts: intervals are those of the experiment about them.
    of_strategies = [
        plot
        for name in ("averaging", "strategies", "stragglers", MODEL_PARALLEL, PIPELINES, MEMORY_BUDGET)
        for plot in _strategies(data, name).plots
        if PLOT_OF.get(plot.name, name) == name
    ]
    of_search = hyperparameters.find(_runs(data / "search")).plots
    of_faults, of_layers = _faults(data).plots, layers.find(_runs(data / "layers")).plots
    found = [
        replace(times, name=f"{HEADLINE}-time"),
        *of_parity,
        *_projection(data).plots,
        *of_strategies,
        *of_search,
        *of_layers,
        *of_faults,
    ]
    return list({plot.name: plot for plot in reversed(found) if plot.name in FIGURES}.values())


def described(selection: Selection) -> str:
    """Return a sentence about the runs: how many, when, on what, with which versions, and what else was at work."""
    runs = selection.runs
    records = list(runs["record"])
    environments = [one.environment for one in records if isinstance(one.environment, Environment)]
    machines = dict.fromkeys(f"{one.processor} with {one.cores} cores" for one in environments)
    versions = dict.fromkeys(f"{name} {one.packages[name]}" for one in environments for name in PACKAGES
                             if name in one.packages)  # fmt: skip
    days = sorted({one.status.started_at[:10] for one in records if isinstance(one.status, Status)})
    epochs = sorted({int(number) for number in runs["trained_epochs"].dropna()})
    trained = counted(epochs[0], "epoch") if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]} epochs"
    seeds = set(runs["seed"])
    disturbed = sum(
        isinstance(one.isolation, Interference) and bool(one.isolation.other_processes_before) for one in records
    )
    load = f"Before {disturbed} of the runs, other processes used" if disturbed else "No other process used"
    return (
        f"{counted(len(runs), 'run')} with {counted(len(seeds), 'seed')}, {trained} each, of "
        f"{' and '.join(days)} on {' and '.join(machines)}; {', '.join(versions)}. "
        f"{load} the machine."
    )


@cache
def _faults(data: Path) -> Finding:
    return faults.find(_runs(data / "chaos"))


@cache
def _projection(data: Path) -> Finding:
    return projection.find(read_study(data / "projection" / STUDY_FILE.name))


@cache
def _runs(folder: Path) -> Selection:
    return load_runs([folder])


def _frame(table: Table) -> pd.DataFrame:
    return pd.DataFrame([*table.rows], columns=[*table.headings], dtype=object)


def _shown(frame: pd.DataFrame, formats: dict[str, str]) -> str:
    """Return a table in Markdown, without empty columns."""
    frame = frame.dropna(axis="columns", how="all")
    return render(Table("", [*frame], frame.to_numpy().tolist(), formats), "md")
