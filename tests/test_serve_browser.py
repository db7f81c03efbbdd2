"""The live page in a real browser: it follows a run from its start to its end, in light and dark, on a phone, and when the server goes away."""

import pytest

from browser import BROWSER, browser
from written import Written, finished, served

pytestmark = pytest.mark.skipif(BROWSER is None, reason="NO BROWSER: install chromium to test the live page in one")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(autouse=True)
def quiet(page):
    """Whatever a test does, the console stays silent, and a broken rule of the content policy is said there."""
    page.problems.clear()
    page.look()
    yield
    assert [p for p in page.problems if "ERR_CONNECTION_REFUSED" not in p and "ERR_INCOMPLETE" not in p] == []


@pytest.fixture
def runs(tmp_path):
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def points(page):
    return page.value("document.querySelector('#f-accuracy polyline').points.length")


def test_an_open_page_follows_a_run_that_starts_goes_on_fails_and_another_that_finishes(page, runs):
    with served(runs) as address:
        page.open(address)
        page.says("Nothing to see in")
        page.wait("document.getElementById('link').textContent === 'live'")
        page.value("window.unchanged = true")
        one = Written(runs / "first")
        page.says("running")
        one.record(0, 0.1)
        one.record(10, 0.2)
        page.says("20.00 %")
        two = Written(runs / "second")
        page.wait("document.querySelectorAll('tr[id^=r-]').length === 2")
        one.fail("the loss of node 3 is not a number <b>")
        page.says("the loss of node 3 is not a number <b>")
        two.record(100, 0.8)
        two.finish(0.8)
        page.wait("document.querySelectorAll('tr .s-finished').length === 1")
        assert page.value("window.unchanged"), "the page was never loaded again"
        assert page.value("document.title").startswith("2 runs")


def test_the_page_of_a_run_draws_what_comes_and_keeps_what_was_opened(page, runs):
    written = Written(runs / "first")
    written.record(0, 0.1)
    written.record(10, 0.2)
    with served(runs) as address:
        page.open(address)
        page.open(address + page.value("document.querySelector('th a').getAttribute('href')"))
        page.wait("document.getElementById('link').textContent === 'live'")
        assert points(page) == 2
        page.value("document.querySelector('details').open = true")
        written.record(20, 0.3)
        page.wait("document.querySelector('#f-accuracy polyline').points.length === 3")
        assert page.value("document.title").startswith("20/100")
        colour = page.value("getComputedStyle(document.querySelector('#f-accuracy polyline')).stroke")
        assert colour == "rgb(213, 94, 0)", "colours of exchanged charts are applied"
        written.finish(0.3)
        page.wait("document.getElementById('state').innerText.includes('finished')")
        assert page.value("document.querySelector('details').open")


def test_a_server_that_is_gone_is_said_and_one_that_comes_back_is_followed(page, runs):
    written = Written(runs / "first")
    written.record(0, 0.1)
    with served(runs) as address:
        page.open(address)
        page.wait("document.getElementById('link').textContent === 'live'")
    page.says("No connection to the server since")
    written.record(50, 0.4)
    with served(runs, port=int(address.rpartition(":")[2])):
        page.wait("document.getElementById('link').textContent === 'live'")
        page.says("40.00 %")


def test_two_hundred_runs_in_light_dark_and_on_a_phone(page, runs, tmp_path):
    pil = pytest.importorskip("PIL.Image")
    for i in range(200):
        finished(runs / "grid" / f"learning_rate={i},a_long_name={i}")
    with served(runs) as address:
        for dark, width in ((False, 1280), (True, 390)):
            page.look(width=width, dark=dark)
            page.open(address)
            page.wait("document.querySelectorAll('tr[id^=r-]').length === 200")
            assert page.value("document.documentElement.scrollWidth") == width, "nothing is cut off"
            with pil.open(page.picture(tmp_path / "page.png")) as picture:
                shade = picture.convert("L").resize((1, 1)).getpixel((0, 0))
            assert shade < 80 if dark else shade > 200
        page.open(address + page.value("document.querySelector('h2 a').getAttribute('href')"))
        page.says("24 of 200 runs are drawn")
        assert page.value("document.documentElement.scrollWidth") == 390
