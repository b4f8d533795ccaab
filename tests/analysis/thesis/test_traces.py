"""The reader of the thesis's energy files, on synthetic ones. `test_numbers.py` reads the originals."""

import pytest

from analysis.thesis.traces import TRACE_HEADER, ThesisEnergy, read_sums, read_trace
from common.errors import UserError

# The first GPU above 20 W from the start, then at rest, then at work: the last two samples count.
GPU_WATTS = (47, 47, 16, 16, 21, 100, 120)
SUMS = '"CPU0","RAM0","CPU1","RAM1","GPU0","GPU1","TIEMPO"\r\n1,2,3,4,5.5,6,7\r\n'


def trace_text(header=TRACE_HEADER, watts=GPU_WATTS):
    return "\n".join([" ".join(header), *(f"20.0 1.0 10.0 2.0 {gpu}.000 16.5" for gpu in watts)]) + "\n"


@pytest.mark.parametrize("header", [TRACE_HEADER, tuple(name.replace("_", "-") for name in TRACE_HEADER)])
def test_a_trace_counts_from_the_sample_after_the_gpu_rises(tmp_path, header):
    path = tmp_path / "energia0.dat"
    path.write_text(trace_text(header))
    trace = read_trace(path)
    assert trace.watts.shape == (7, 6)
    assert trace.first == 5
    assert trace.energy() == ThesisEnergy(
        seconds=0.5, joules={"cpu0": 20, "ram0": 1, "cpu1": 10, "ram1": 2, "gpu0": 110, "gpu1": 16.5}
    )


def test_sums(tmp_path):
    path = tmp_path / "consumos.dat"
    path.write_text(SUMS, newline="")
    sums = read_sums(path)
    assert sums.seconds == 7
    assert sums.sum(("cpu0", "gpu0")) == 6.5


@pytest.mark.parametrize(
    "text",
    ["", trace_text(("a", "b")), trace_text(watts=()), trace_text(watts=(47, 47)), trace_text(watts=(16, 21)),
     trace_text().replace("16.5\n", "\n", 1), trace_text().replace("47.000", "nan"),
     trace_text().replace("47.000", "-1"), "\xff"],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "energia0.dat"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"is not a file of the thesis\. Received: .*\. Name an original file"):
        read_trace(path)


@pytest.mark.parametrize("text", [SUMS.replace("TIEMPO", "T"), SUMS + "1,2,3,4,5,6,7\n", SUMS.replace("5.5", "5,5")])
def test_what_is_no_sum_is_refused(tmp_path, text):
    path = tmp_path / "consumos.dat"
    path.write_text(text)
    with pytest.raises(UserError, match="is not a file of the thesis"):
        read_sums(path)


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"cannot read a file of the thesis: No such file.*Received: .*energia0\.dat"):
        read_trace(tmp_path / "energia0.dat")
