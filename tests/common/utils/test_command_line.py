"""Arguments that are paths: an empty one is refused, by every program, instead of meaning the current folder."""

import pytest

from analysis.__main__ import main as analysis
from launch.__main__ import main as launch


@pytest.mark.parametrize(
    ("program", "words", "argument"),
    [
        (analysis, "clouds --format csv --folder", "--folder"),
        (analysis, "clouds --plots", "--plots"),
        (analysis, "clouds --output", "--output"),
        (analysis, "clouds", "RUNS"),
        (analysis, "bench", "FILE"),
        (launch, "submit --jobs-folder", "--jobs-folder"),
        (launch, "submit --runs-folder", "--runs-folder"),
        (launch, "fetch --folder", "--folder"),
        (launch, "export --to torch --output x.pt", "RUN"),
        (launch, "sites --table", "--table"),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    program, words, argument, capsys,
    tmp_path, monkeypatch):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        program([*words.split(), ""])
    (line,) = capsys.readouterr().err.splitlines()
    assert f"error: argument {argument}: must not be empty. Received: ''. See `python -m" in line
    assert not list(tmp_path.iterdir())
