"""The page of `clouds` in a real headless Chromium: nothing goes wrong, and it fits a phone."""

import pytest
from browser import started_browser

from analysis.__main__ import main

pytestmark = pytest.mark.browser


def test_the_page_fits_a_phone_and_loads_nothing(tmp_path):
    page = tmp_path / "clouds.html"
    assert main(["clouds", "--output", str(page)]) == 0
    with started_browser(tmp_path) as browser:
        browser.open(page.as_uri(), width=400)
        assert browser.errors == []
        assert [address for address in browser.requests if not address.startswith(("file:", "data:"))] == []
        open_all = "for (const one of document.querySelectorAll('details')) one.open = true"
        assert browser.value(f"(() => {{ {open_all}; return innerWidth }})()") == 400
        shown = browser.value("Array.from(document.images).filter(image => image.naturalWidth > 0).length")
        assert shown == browser.value("document.images.length") >= 3
