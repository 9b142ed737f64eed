"""The page of `sluice serve` in a headless Chromium, as a user has it; what scripts that check it share."""

import json
import shutil
import sys

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WIDE, NARROW = (1280, 800), (360, 740)
EVIL = "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=2</script>"


def check(what, holds, shown=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what} {shown}", flush=True)
    if not holds:
        sys.exit(1)


def browser():
    options = webdriver.ChromeOptions()
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--lang=en",
    ):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or sys.exit("no chromium; scripts/setup.sh --page installs it")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


class Page:
    """The page at `url`, as a user has it before them."""

    def __init__(self, driver, url, size=WIDE):
        self.driver, self.url = driver, url
        self.resize(size)
        driver.get(url + "/")

    def resize(self, size):
        width, height = size
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )

    def emulate(self, **features):
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]},
        )

    def get(self, element_id):
        return self.driver.find_element(By.ID, element_id)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, holds, seconds=60):
        return WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda _: holds())

    def type(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def message(self):
        box = self.get("message")
        box.click()
        return box

    def set(self, element_id, value):
        """As if it were typed and left."""
        self.run(
            "document.getElementById('settings').open = true; const e = document.getElementById(arguments[0]);"
            "e.value = arguments[1]; e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change'));",
            element_id,
            value,
        )

    def articles(self):
        return self.driver.find_elements(By.TAG_NAME, "article")

    def last(self, what=".text"):
        found = self.articles()[-1].find_elements(By.CSS_SELECTOR, what)
        return self.run("return arguments[0].textContent", found[0]) if found else None

    def kept(self):
        """The messages of the conversation that the tab shows, as the browser keeps them."""
        return json.loads(
            self.run(
                "return localStorage.getItem('sluice.talk.' + JSON.parse(sessionStorage.getItem('sluice.place')).id)"
            )
        )["messages"]

    def raw(self):
        return self.kept()[-1]["content"]

    def is_writing(self):
        return self.get("stop").is_displayed()

    def notice(self):
        return self.get("notice").text

    def send(self, text, waits=True):
        self.message().send_keys(text, Keys.ENTER)
        if waits:
            self.until(lambda: not self.is_writing() and len(self.articles()) > 1)

    def problems(self):
        """What the browser's console has said since the last look, but for refusals that a check has asked for."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
            and "the server responded with a status of" not in entry["message"]
        ]


def words(text):
    return "".join(text.split())
