"""Causes, verdicts and the report, from comparisons that are made here."""

from dataclasses import replace

import pytest
from browser import started_browser

from common.twins.causes import Lead, cause_between, causes_inside
from common.twins.contract import PairSource
from common.twins.records import Cause, Comparison, Dropout, Event, Parting, Row, Side, Whole, read_record, write_record
from common.twins.report import MOST_LINES, report_lines, write_page
from common.twins.training import dropout_causes, training_causes
from common.twins.verdict import judge

SIDE = Side(arrays=1, matched=1, parameters=1, multiply_adds=1, seconds=1.0, memory_bytes=10**9)


def event(name, place="layer", **numbers):
    return Event(name=name, place=place, numbers=numbers)


def inside(torch, keras, **more):
    """Return the causes of a layer whose output differs."""
    return causes_inside(torch, keras, **more)


def between(torch, keras, *, later=((), ()), sources=("", ""), **more):
    """Return the cause of an input that differs."""
    leads = [
        Lead(first=list(first), later=list(follows), source=source)
        for first, follows, source in zip((torch, keras), later, sources, strict=True)
    ]
    return [cause_between(*leads, **more)]


def parting(causes, *, torch=None, keras=None, where="inside", difference=0.1, **more):
    layers = {"torch": torch or event("linear"), "keras": keras or event("Dense")}
    return Parting(**{"where": where, "mode": "inference", "difference": difference, "causes": causes} | layers | more)


def comparison(*partings, rows=(), unmatched=(), training=(), torch=SIDE, keras=SIDE, **more):
    plain = Comparison(
        sides={"torch": torch, "keras": keras},
        rows=list(rows),
        partings=list(partings),
        unmatched=list(unmatched),
        training=list(training),
        whole=Whole(differences={"outputs in inference": (1e-15, "")}, updates=10),
    )
    return replace(plain, **more)


CONVOLUTION = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
EPSILON = inside(event("layer_norm", eps=1e-5), event("LayerNormalization", epsilon=1e-3))
STRIDES = inside(event("conv2d", **CONVOLUTION | {"stride": [2, 2]}), event("Conv2D", strides=(1, 1), padding="same"))
UNKNOWN = inside(event("linear"), event("Dense"))
CAUSES = [
    (EPSILON, "epsilon", "Keras: LayerNormalization(epsilon=1e-05)"),
    (STRIDES, "strides", "Keras: Conv2D(strides=2)"),
    (
        inside(event("conv2d", **CONVOLUTION | {"stride": [2, 2]}), event("Conv2D", strides=(2, 2), padding="same")),
        "padding",
        "Keras: ZeroPadding2D(1) before it, and Conv2D(padding='valid')",
    ),
    (
        inside(
            event("conv2d", **CONVOLUTION),
            event("Conv2D", strides=(1, 1), padding="valid"),
            pads=[(0, 2), (0, 2)],
        ),
        "padding",
        "Keras: ZeroPadding2D(1)",
    ),
    (
        inside(event("conv2d", **CONVOLUTION | {"dilation": [2, 2]}), event("Conv2D", strides=(1, 1), padding="same")),
        "dilation",
        "Keras: Conv2D(dilation_rate=2)",
    ),
    (
        inside(event("group_norm", num_groups=4, eps=1e-5), event("GroupNormalization", groups=2, epsilon=1e-5)),
        "groups",
        "Keras: GroupNormalization(groups=4)",
    ),
    (inside(event("linear"), event("Dense"), lone_bias=True), "bias", "Keras: Dense(use_bias=True)"),
    (UNKNOWN, "unknown", ""),
    (between([event("relu6")], [event("ReLU")]), "activation", "Keras: keras.layers.ReLU(max_value=6.0)"),
    (
        between([event("max_pool2d", kernel_size=3, stride=2, padding=1)], [event("MaxPooling2D", pool_size=(2, 2))]),
        "pooling",
        "Keras: keras.layers.ZeroPadding2D(1), then keras.layers.MaxPooling2D(3, strides=2)",
    ),
    (between([], [event("Rescaling", scale=0.1)]), "scale", "Keras: leave out Rescaling"),
    (
        between([event("add")], [event("Relu")], later=([event("relu")], [event("Add"), event("Relu")])),
        "activation",
        "Keras: leave out Relu",
    ),
    (between([], [], sources=("a", "b")), "wiring", ""),
    (between([], [event("Permute")], reordered=True), "order", "Keras: keras.layers.Permute before it"),
    (
        between(
            [event("scaled_dot_product_attention", heads=2, masked=True)], [event("attention", heads=2, masked=False)]
        ),
        "mask",
        "Keras: use_causal_mask=True",
    ),
    (
        between(
            [event("scaled_dot_product_attention", heads=2, masked=True)], [event("attention", heads=4, masked=True)]
        ),
        "heads",
        "Keras: num_heads=2",
    ),
]


@pytest.mark.parametrize(("causes", "kind", "remedy"), CAUSES)
def test_the_cause_is_named_with_the_line_that_makes_both_equal(causes, kind, remedy):
    assert [(cause.kind, cause.remedy) for cause in causes] == [(kind, remedy)]


OTHER_WORK = replace(SIDE, multiply_adds=2)
LONE = Cause(kind="arrays", text="only in Keras", names=["a/bias (3,)"], level="work")
UNSUPPORTED = Cause(kind="unsupported", text="cannot be matched", names=["lstm"], level="undecided")
MOMENTUM = Cause(kind="momentum", text="text", level="training")
LEVELS = [
    (comparison(), "equal", 0),
    (comparison(parting(UNKNOWN, difference=2e-8)), "equal", 0),  # a constant in float32
    (comparison(parting(EPSILON, difference=5e-9)), "numbers", 1),  # small, but of a number that differs
    (comparison(training=[MOMENTUM]), "training", 1),
    (comparison(parting(EPSILON, mode="training")), "training", 1),
    (comparison(whole=Whole(differences={"gradients": (0.5, "a")})), "training", 1),
    (comparison(whole=Whole(differences={"outputs in inference": (0.5, "")})), "numbers", 1),
    (comparison(parting(EPSILON)), "numbers", 1),
    (comparison(parting(EPSILON, difference=float("inf"), shapes="shapes (1,) in PyTorch, (2,) in Keras")), "work", 1),
    (comparison(unmatched=[LONE]), "work", 1),
    (comparison(keras=OTHER_WORK), "work", 1),
    (comparison(parting(STRIDES)), "work", 1),
    (comparison(parting(EPSILON), unmatched=[UNSUPPORTED]), "undecided", 2),
]


@pytest.mark.parametrize(("compared", "level", "code"), LEVELS)
def test_the_verdict_says_what_may_be_compared(compared, level, code):
    verdict = judge(compared)
    assert (verdict.level, verdict.exit_code) == (level, code)
    assert report_lines(compared, verdict, page="")[0] == verdict.headline


def test_the_report_has_at_most_40_lines_however_much_differs(tmp_path):
    many = [parting(causes, torch=event("linear", f"t{n}")) for n, (causes, _, _) in enumerate(CAUSES * 9)]
    training = [replace(MOMENTUM, text=f"text {n}", remedy="remedy") for n in range(20)]
    unmatched = [*[replace(LONE, names=[f"array{n}" for n in range(99)])] * 4]
    all_that_differs = comparison(*many, training=training, unmatched=unmatched, tried=7)
    lines = report_lines(all_that_differs, judge(all_that_differs), page="page.html")
    assert len(lines) <= MOST_LINES
    assert lines[0].startswith("DIFFERENT WORK")


def test_a_cause_at_several_places_is_said_once():
    same = [parting(EPSILON, torch=event("layer_norm", f"norm{n}", eps=1e-5)) for n in range(5)]
    text = "\n".join(report_lines(comparison(*same), judge(comparison(*same)), page=""))
    assert "inside norm0 / layer: epsilon, 1.0e-01 apart, and 4 more like it" in text
    assert text.count("epsilon 1e-05 in PyTorch") == 1


def test_what_is_written_is_what_is_read(tmp_path):
    rows = [
        Row(torch=event("linear"), keras=None),
        Row(torch=event("linear"), keras=event("Dense"), before=0.0, inside=float("inf")),
    ]
    partings = [parting(causes) for causes, _, _ in CAUSES]
    write_record(tmp_path / "first.json", comparison(*partings, rows=rows, training=[MOMENTUM]))
    read = read_record(tmp_path / "first.json", Comparison)
    assert read == comparison(*partings, rows=rows, training=[MOMENTUM])


def test_the_page_has_all_layers_and_shows_markup_as_text(tmp_path):
    rows = [Row(torch=event("linear", "<b>"), keras=event("Dense", "dense"), before=0.1, inside=1e-15)]
    activation = comparison(parting(between([event("relu")], []), where="before"), rows=rows)
    write_page(tmp_path / "page.html", PairSource(file="<script>.py"), activation, judge(activation))
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;" in page and "<b>" not in page and "<script>" not in page
    assert page.count("<details open>") == 1
    assert "1.0e-01" in page and "1.0e-15" in page


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_is_whole_by_itself_and_no_wider_than_the_screen(tmp_path, width):
    places = [f"features.{n}.block.{n}.a_long_name_of_a_layer" for n in range(30)]
    infinite = float("inf")
    rows = [Row(torch=event("conv2d", at), keras=event("Conv2D", at), before=0.1, inside=infinite) for at in places]
    all_that_differs = comparison(
        *(parting(causes) for causes, _, _ in CAUSES), rows=rows, unmatched=[replace(LONE, names=places)]
    )
    write_page(tmp_path / "page.html", PairSource(file="file.py"), all_that_differs, judge(all_that_differs))
    address = (tmp_path / "page.html").as_uri()
    with started_browser(tmp_path) as browser:
        browser.open(address, width=width)
        assert browser.value("document.documentElement.scrollWidth") <= width
        assert browser.errors == [] and browser.requests == [address]
        assert browser.value("document.querySelectorAll('details[open]').length") == 1


def dropout(layer, rate, number=1.0, **more):
    return Dropout(layer=layer, rate=rate, input=[4.0, number, 5.0, 6.0, 2.0, -1.0], **more)


def test_dropout_is_compared_by_place_not_by_name_or_order():
    torch = [dropout("a", 0.1, 1.0), dropout("b", 0.5, 2.0)]
    assert list(dropout_causes(torch, [dropout("x", 0.5, 2.0), dropout("y", 0.1, 1.0)])) == []
    swapped = training_causes(dropout_causes(torch, [dropout("x", 0.1, 2.0), dropout("y", 0.5, 1.0)]))
    assert [cause.text for cause in swapped] == [
        "dropout: 0.1 in PyTorch, 0.5 in Keras, at a",
        "dropout: 0.5 in PyTorch, 0.1 in Keras, at b",
    ]


def test_dropout_in_inference_is_named():
    causes = training_causes(dropout_causes([dropout("a", 0.1, always=True)], [dropout("x", 0.1)]))
    assert [cause.text for cause in causes] == ["dropout: PyTorch drops in inference, too, at a"]


def test_of_many_rates_of_dropout_the_first_are_shown():
    torch = [dropout(f"layer{number}", number / 10, number) for number in range(1, 6)]
    causes = training_causes(dropout_causes(torch, []))
    assert [cause.remedy for cause in causes] == [f"Keras: Dropout(0.{number})" for number in (1, 2, 3)]
    assert causes[-1].text == "dropout: 0.3 in PyTorch, 0 in Keras, at layer3; and 2 more rates"
