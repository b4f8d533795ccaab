"""`python -m analysis clouds` without runs: what hardware explains, projections, the Pareto front, the page."""

import json
from dataclasses import replace
from datetime import date

import pytest
from analysis_builders import rows_of

from analysis.__main__ import main
from analysis.clouds.hardware import find_hardware, published_claim, ratios
from analysis.clouds.money import break_evens, find_money
from analysis.clouds.offers import Offer, offers, pareto
from analysis.clouds.projected import brackets, find_projected
from analysis.clouds.workloads import TO_TARGET, WORKLOADS, NodeTime, node_times, not_projected
from analysis.projection.study import read_study
from analysis.questions.clouds.break_even import owned_table
from analysis.questions.clouds.pricing import Pricing
from analysis.questions.projection import errors
from analysis.questions.projection.errors import LEFT_OUT, median_error
from common.sites.prices import Ownership, Price
from common.sites.table import Site, Sites, read_sites

SITES = read_sites()
PRICING = Pricing(sites=SITES, today=date(2026, 9, 1))


def test_the_ratios_of_the_hardware_by_hand():
    claim = published_claim()
    assert (claim.times, claim.base) == (7, "cte-power")
    assert [(one.figure.split(",")[0], round(one.times, 3), one.verdict(7)) for one in ratios(SITES, claim)] == [
        ("FP32", 3.271, "too little"),  # 15.7 / 4.8
        ("FP16", 26.042, "more than enough"),  # 125 on tensor cores / 4.8
        ("memory bandwidth", 5.625, "too little"),  # 900 / 160
        ("host link of a GPU", 4.762, "too little"),  # 75 / 15.75
        ("network of aws-g3-4xlarge", 10.0, "more than enough"),  # 100 / 10
        ("network of aws-g3-8xlarge", 10.0, "more than enough"),
        ("network of aws-g3-16xlarge", 4.0, "too little"),  # 100 / 25
    ]
    assert ratios(SITES, claim)[0].verdict(3.0) == "explains it"
    answer = find_hardware(SITES).answer
    assert "almost 7 times as long" in answer and "FP32 gives 3.3 times and memory bandwidth 5.6" in answer


def test_the_projected_ratio_is_between_those_of_the_hardware():
    """A roofline is never faster than its slower side: in float32 between equal overheads (1) and the bandwidths'."""
    found = brackets(SITES.gpus["v100"], SITES.gpus["m60"])
    assert len(found) == 2 * len(WORKLOADS)
    for one in found:
        assert 1 <= one.low <= one.times <= one.high <= (900 / 160 if one.dtype == "float32" else 125 / 4.8) + 1e-9
    assert {one.dtype for one in found if one.holds(7)} == {"float16"}
    named = ", ".join(dict.fromkeys(one.workload.model for one in found if one.holds(7)))
    answer = find_projected(SITES).answer
    assert f"7 times is within the interval of some batches of {named}, in float16 only." in answer
    assert {one.dtype for one in brackets(SITES.gpus["m60"], SITES.gpus["v100"])} == {"float32"}


def test_nodes_share_the_batch_and_those_without_figures_are_named():
    times = {one.name: one for one in node_times(SITES, TO_TARGET)}
    assert all(one.low <= one.hours <= one.high for one in times.values())
    wired = replace(SITES["aws-g5-12xlarge"], gpu_link_gb_s=300.0)  # a wider link is faster, the host link is not used
    wide = replace(wired, host_link_gb_s=900.0)
    faster, same = node_times(replace(SITES, sites={"wired": wired, "wide": wide}), TO_TARGET)
    assert same.hours == faster.hours < times["aws-g5-12xlarge"].hours
    assert 1 < times["aws-p3-2xlarge"].hours / times["aws-p3-8xlarge"].hours < 4  # the same GPU: 1 and 4 of them
    notes = not_projected(SITES)
    assert "marenostrum5" not in times and any(note.startswith("marenostrum5 is not projected") for note in notes)
    assert any(note.startswith("aws-c7i-16xlarge is not projected") for note in notes)


def an_offer(name, hours, usd, **site):
    place = Site(title=name, kind=site.pop("kind", "rented"), source="", gpu="t4", gpus=1, **site)
    time = NodeTime(name=name, site=place, gpu=SITES.gpus["t4"], low=hours, hours=hours, high=hours)
    price = Price(date=date(2026, 1, 1), usd_per_hour=1.0, terms="", source="")
    return Offer(time=time, price=price, usd=usd, spot_usd=None, job_usd=usd)


def test_the_pareto_front_and_the_break_even_by_hand():
    found = [
        an_offer("fast", 1.0, 10.0),
        an_offer("as-fast", 1.0, 12.0),
        an_offer("gone", 1.5, 1.0, retired=date(2025, 1, 1)),
        an_offer("ours", 2.0, None, kind="owned"),
        an_offer("beaten", 2.0, 11.0),
        an_offer("cheap", 4.0, 3.0),
    ]
    assert [one.name for one in pareto(found)] == ["fast", "cheap"]
    assert [one.name for one in pareto([*found, an_offer("paid", 3.0, 2.0, kind="owned")])] == ["fast", "paid"]
    even = {one.rented: one.usd_per_hour for one in break_evens(found, base="ours")}
    assert even == {"fast": 5.0, "as-fast": 6.0, "beaten": 5.5, "cheap": 1.5}
    assert break_evens(found, base="fast") == []  # has a price
    assert owned_table(break_evens(found, base="ours")).title.startswith("Break-even of the run alone, without set-up")


def test_dollars_are_hours_times_prices_and_have_the_interval_of_their_times():
    found = {one.name: one for one in offers(PRICING)}
    p5, cte, l40s = (found[name] for name in ("aws-p5-48xlarge", "cte-power", "aws-g6e-xlarge"))
    assert p5.usd == pytest.approx(p5.time.hours * 55.04) and p5.spot_usd == pytest.approx(p5.time.hours * 26.419)
    assert p5.job_usd == pytest.approx((p5.time.hours + 16 / 60) * 55.04)
    assert cte.usd is None and cte.usd_interval is None
    assert l40s.usd_interval == (pytest.approx(1.861 * l40s.time.low), pytest.approx(1.861 * l40s.time.high))
    even = next(one for one in break_evens(list(found.values())) if one.rented == l40s.name)
    ends = [1.861 * getattr(l40s.time, end) / getattr(cte.time, end) for end in ("low", "hours", "high")]
    assert (even.low, even.high) == (pytest.approx(min(ends)), pytest.approx(max(ends)))
    owned = replace(SITES["cte-power"], ownership=Ownership(date=date(2026, 1, 1), source="x", rate_usd_per_hour=2.0))
    priced = Sites(gpus=SITES.gpus, sites=SITES.sites | {"cte-power": owned})
    ours = next(one for one in offers(replace(PRICING, sites=priced)) if one.name == "cte-power")
    assert ours.usd == pytest.approx(2 * ours.time.hours) and ours.job_usd == ours.usd  # nothing is set up or idles
    money = find_money(PRICING)
    row = next(row for row in rows_of(money.tables[0]) if row["machine"] == l40s.name)
    assert (row["$ from"], row["$ to"]) == l40s.usd_interval
    error = median_error([one for one in errors.projected_steps(read_study()) if one.left_out == LEFT_OUT["model"]])
    assert "AWS's fastest node is faster than CTE-POWER" in money.answer
    assert f"their median error is {100 * error:.0f} %" in money.answer


def test_a_price_of_ones_own_machine_is_compared(tmp_path, capsys):
    table = tmp_path / "ours.toml"
    ownership = '[sites.cte-power.ownership]\ndate = 2026-01-01\nsource = "us"\nrate_usd_per_hour = {}\n'
    for rate, word in ((2.0, "cheaper"), (200.0, "no cheaper")):
        table.write_text(ownership.format(rate))
        assert main(["clouds", "--table", str(table), "--on", "2026-09-01", "--format", "json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        machines = {row["machine"]: row for one in shown["tables"] for row in one["rows"] if "Pareto front" in row}
        ours, rented = machines["cte-power"]["$ to target"], machines["aws-g6e-xlarge"]["$ to target"]
        assert machines["cte-power"]["Pareto front"] == ("yes" if word == "cheaper" else None)
        assert f"cte-power is {word}: ${ours:.2f} against ${rented:.2f} for aws-g6e-xlarge." in shown["answer"]
        assert "No price of" not in shown["answer"] and all(one["rows"] for one in shown["tables"])


def test_the_answer_and_the_notes_say_how_old_prices_are():
    notes = find_money(PRICING).notes  # of 2026-09-01
    assert any(note.startswith("spot prices over a year old: aws-p5-48xlarge, ") for note in notes)
    assert not any(note.startswith("prices over a year old") for note in notes)
    later = find_money(replace(PRICING, today=date(2027, 9, 1)))
    assert "Their prices are over a year old." in later.answer
    earlier = find_money(replace(PRICING, on=date(2024, 1, 1)))
    assert "No prices of 2024-01-01 are known; these are the first of a later day." in earlier.answer


def test_the_page_holds_all_of_it(tmp_path, capsys, plots):
    page = tmp_path / "clouds.html"
    assert main(["clouds", "--output", str(page)]) == 0
    assert f"page: {page} (" in capsys.readouterr().out
    for words in (
        *(f"<code>python -m analysis {name} --plots" for name in ("clouds", "projection", "frameworks --examples")),
        "How do CTE-POWER and AWS compare as published",
        "explains 7 times?",
        *(f'id="clouds-{name}"' for name in ("projected", "cost-against-time", "break-even")),
    ):
        assert words in page.read_text(), words
