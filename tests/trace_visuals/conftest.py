"""A real browser, started once for the tests that need it."""

import shutil

import pytest


@pytest.fixture(scope="session")
def browser():
    selenium = pytest.importorskip("selenium", reason="the Python package selenium is not installed")
    from selenium import webdriver

    assert selenium
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()
