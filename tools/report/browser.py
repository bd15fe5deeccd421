"""Looks at a report in headless Chromium: console errors, plots that are not drawn, overflow."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service

PATIENCE_S = 240.0


@dataclass(frozen=True)
class View:
    name: str
    width: int
    height: int
    dark: bool
    screen: int = 1080  # the height that a reader sees at once
    most: int = 12  # screens before anything is unfolded
    whole: bool = False  # every plot is drawn, which takes 20 s, and not those in sight alone


VIEWS = (
    View("desktop-light", 1280, 1180, dark=False, whole=True),
    View("desktop-dark", 1280, 1180, dark=True),
    View("phone-light", 390, 2400, dark=False, screen=844, most=25),
    View("phone-dark", 390, 2400, dark=True, screen=844, most=25, whole=True),
)

# Of every visible plot: its id, whether it has axes and how many curves or sets of points.
PLOTS = """
return [...document.querySelectorAll('.plot')].filter(p => !p.hidden).map(p => ({
  id: p.id, drawn: !!p.querySelector('.main-svg'),
  traces: p.querySelectorAll('.scatterlayer .trace').length,
  labels: ['x', 'y'].map(a => [...p.querySelectorAll(`.${a}tick text`)]
    .filter(t => t.textContent.trim()).length),
  width: p.getBoundingClientRect().width,
  inner: Math.max(0, ...[...p.querySelectorAll(".main-svg")]
    .map(s => s.getBoundingClientRect().width))
}));
"""


def missing_programs() -> list[str]:
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


def open_browser(view: View) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    arguments = ["--headless=new", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
    if os.geteuid() == 0:
        arguments.append("--no-sandbox")
    for argument in arguments:
        options.add_argument(argument)
    options.page_load_strategy = "none"  # draw_everything() waits, in short calls
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(str(shutil.which("chromedriver"))))
    driver.set_script_timeout(20)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if view.dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    metrics = {"width": view.width, "height": view.height, "deviceScaleFactor": 1}
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {**metrics, "mobile": view.width < 600}
    )
    return driver


def length_problems(driver: webdriver.Chrome, view: View) -> list[str]:
    """Whether the page before unfolding is short, and its first screen holds every verdict."""
    problems = []
    tall = driver.execute_script("return document.documentElement.scrollHeight") / view.screen
    if tall > view.most:
        problems.append(f"the page is {tall:.1f} screens long, {view.most} are wanted")
    end = driver.execute_script(
        "const v = document.querySelector('.verdicts');"
        "return v ? v.getBoundingClientRect().bottom : 0"
    )
    if view.width > 600 and end > view.screen:
        problems.append(f"the verdicts end at pixel {end:.0f}, a screen has {view.screen}")
    return [f"{view.name}: {problem}" for problem in problems]


def wait_until_ready(driver: webdriver.Chrome) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if driver.execute_script("return document.documentElement.dataset.drawn"):
                return
        except TimeoutException:
            continue
        time.sleep(0.2)


def draw_everything(driver: webdriver.Chrome) -> None:
    """Returns when the page has drawn all its plots, or after PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    asked = False
    while time.monotonic() < deadline:
        try:
            state = driver.execute_script("return document.documentElement.dataset.drawn")
        except TimeoutException:  # a loaded machine, or a page that came between
            continue
        if state == "all":
            return
        if state == "ready" and not asked:
            # The command returns before the drawing, whose first part alone may take 20 s.
            driver.execute_script(
                "delete document.documentElement.dataset.drawn; setTimeout(drawEverything)"
            )
            asked = True
        time.sleep(0.2)


def problems_of(driver: webdriver.Chrome, view: View) -> list[str]:
    """The page's problems at this moment."""
    problems = [
        f"console: {entry['message']}"
        for entry in driver.get_log("browser")
        if entry["level"] in ("SEVERE", "WARNING")
    ]
    plots = driver.execute_script(PLOTS)
    if not plots:
        problems.append("there is no plot")
    for plot in plots:
        if not plot["drawn"] and not view.whole:
            continue
        if not plot["drawn"] or plot["traces"] == 0:
            problems.append(f"plot {plot['id']} is not drawn")
        elif min(plot["labels"]) < 1 or max(plot["labels"]) < 2:
            problems.append(f"plot {plot['id']} has an axis without labels")
        elif plot["inner"] > plot["width"] + 1:
            problems.append(f"plot {plot['id']} is wider than its frame")
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    if wide > view.width:
        problems.append(f"the page is {wide} pixels wide, the window {view.width}")
    return [f"{view.name}: {problem}" for problem in problems]


def change_shapes(driver: webdriver.Chrome) -> None:
    """Chooses the last shape of every file, as a reader would."""
    driver.execute_script(
        "for (const s of document.querySelectorAll('select[data-file]')) {"
        "  s.selectedIndex = s.options.length - 1; s.dispatchEvent(new Event('change')); }"
        "document.documentElement.dataset.drawn = 'ready';"
    )


def look(page: Path, folder: Path) -> list[str]:
    """Problems of all views, of whole ones also with other shapes; screenshots in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    for view in VIEWS:
        driver = open_browser(view)
        try:
            driver.get(page.resolve().as_uri())
            wait_until_ready(driver)
            problems += length_problems(driver, view)
            driver.save_screenshot(str(folder / f"{view.name}.png"))
            if view.whole:
                draw_everything(driver)
            problems += problems_of(driver, view)
            driver.execute_script(
                "document.getElementById('claims')?.scrollIntoView({behavior: 'instant'})"
            )
            driver.save_screenshot(str(folder / f"{view.name}-claims.png"))
            driver.execute_script(
                "document.getElementById('measurements').scrollIntoView({behavior: 'instant'})"
            )
            time.sleep(0.5)
            driver.save_screenshot(str(folder / f"{view.name}-plots.png"))
            if view.whole:
                change_shapes(driver)
                draw_everything(driver)
                problems += problems_of(driver, view)
        finally:
            driver.quit()
    return problems
