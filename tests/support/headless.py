"""Headless Chromium for tests of pages: it opens files and servers, and axe-core looks at them.

Needs Debian's chromium and chromium-driver, and Selenium from PyPI; without them a test is skipped,
and says which command brings them. Without axe-selenium-python its part is left out, which is said.
"""
import os
import shutil
import sys
import time

SKIP = 77
WAIT = 20  # seconds for anything to appear
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIP)


def build_folder():
    if sys.argv[1:2] == ["--lacks"]:
        return os.path.abspath(sys.argv[2])
    if len(sys.argv) > 2 and not sys.argv[1].startswith("--"):
        return os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[1])))  # of a program in it
    return os.path.join(ROOT, "build")


# Packages that the command PIP has brought.
BUILD = build_folder()
PACKAGES = os.path.join(BUILD, "page-packages")
sys.path.append(PACKAGES)
PIP = f"{sys.executable} -m pip install --target {PACKAGES} selenium axe-selenium-python"
try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    skip(f"there is no Selenium; to fetch it: {PIP}")
try:
    from axe_selenium_python import Axe
except ImportError:
    Axe = None
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    skip("there is no Chromium; to fetch it: apt-get install chromium chromium-driver")


def browser(width=1440, height=1000, dark=False, phone=False):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
                 "--hide-scrollbars", "--force-prefers-reduced-motion",
                 f"--window-size={width},{height}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    b = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    if dark:
        b.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone})
    return b


def until(what, test, seconds=WAIT):
    end = time.time() + seconds
    while time.time() < end:
        value = test()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"within {seconds} s there was never: {what}")


def find(b, selector):
    return b.find_element(By.CSS_SELECTOR, selector)


def text(b, selector):
    return b.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def click(b, selector):
    b.execute_script("document.querySelector(arguments[0]).click()", selector)


def expect(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: {got!r}, not {wanted!r}")


def complaints(b):
    return [entry["message"] for entry in b.get_log("browser")
            if entry["level"] == "SEVERE" and "401" not in entry["message"]]


def test_axe(b, name):
    """axe-core finds nothing serious."""
    if Axe is None:
        print(f"skipped: there is no axe-core; to fetch it: {PIP}")
        return
    b.set_script_timeout(120)
    Axe(b).inject()
    # Tokens are alike: some of them stand for all.
    found = b.execute_async_script("""const done = arguments[arguments.length - 1];
        axe.run({exclude: [["#tokens b:nth-child(n+60)"], ["#grid button:nth-child(n+20)"]]},
            {resultTypes: ["violations"]}).then(r => done(r.violations), e => done(String(e)))""")
    if isinstance(found, str):
        raise AssertionError(f"axe-core, {name}: {found}")
    wrong = [v for v in found if v["impact"] in ("serious", "critical")]
    if wrong:
        raise AssertionError(f"axe-core, {name}: " + "; ".join(
            f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]} {v['nodes'][0].get('failureSummary', '')[:300]}" for v in wrong))
