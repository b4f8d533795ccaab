"""Every finding that a test of the analysis builds is checked: its answer can be taken in at once."""

from collections.abc import Iterator

import pytest
from answers import check_answer

from analysis.output.finding import Finding


@pytest.fixture(autouse=True, scope="session")
def _answers_are_short() -> Iterator[None]:
    build = Finding.__post_init__

    def checked(finding: Finding) -> None:
        build(finding)
        check_answer(finding.answer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Finding, "__post_init__", checked)
        yield
