"""Drive a real JupyterLab in a headless Chromium, and read from the page what a learner sees."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import outputs
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright

WAIT = 600  # for what never comes: a machine may be slow
VIEW = ViewportSize(width=1280, height=720)
SETTINGS = {
    # A cell that is out of sight would not be in the page at all.
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "extensionmanager-extension/plugin": {"enabled": False},
}
# JupyterLab's debugger asks the kernel that was restarted for its breakpoints.
HARMLESS = "Could not restore the debugger state: Canceled future"
NOTEBOOK = ".jp-NotebookPanel:not(.lm-mod-hidden)"
OPENED = f"""name => {{
    const tab = document.querySelector('#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current');
    const bar = document.querySelector('#jp-main-statusbar');
    return tab?.innerText.trim() === name && document.querySelector('{NOTEBOOK} .jp-Cell')
        && /\\| Idle/.test(bar?.innerText);
}}"""
# Without numbers before the run, one is new; after an error the rest of the cells waits no more.
DONE = f"""() => {{
    const panel = document.querySelector('{NOTEBOOK}');
    const prompts = [...panel.querySelectorAll('.jp-CodeCell .jp-InputPrompt')];
    const texts = prompts.map(prompt => prompt.textContent.trim());
    const idle = panel.querySelector('.jp-Notebook-ExecutionIndicator').dataset.status === 'idle';
    const drawn = [...panel.querySelectorAll('img')].every(image => image.complete);
    return idle && drawn && texts.some(text => /\\d/.test(text)) && !texts.includes('[*]:');
}}"""
READ = f"""() => [...document.querySelectorAll('{NOTEBOOK} .jp-Cell')].map(cell => ({{
    prompt: cell.querySelector('.jp-InputPrompt')?.textContent.trim() ?? '',
    text: cell.querySelector('.jp-MarkdownOutput')?.innerText ?? '',
    outputs: [...cell.querySelectorAll('.jp-OutputArea-output')].map(output => ({{
        kind: output.dataset.mimeType, text: output.innerText,
    }})),
    images: [...cell.querySelectorAll('img')].map(image => ({{
        width: image.complete ? image.naturalWidth : 0, text: image.alt,
    }})),
}}))"""


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab server and the folder it serves."""

    url: str
    token: str
    folder: Path


@dataclass(frozen=True)
class Visit:
    """A page of the browser, and what went wrong in it so far."""

    page: Page
    problems: list[str]

    def open_lab(self, lab: Lab) -> None:
        """Open JupyterLab on the folder of the notebooks, as its start script does."""
        self.page.goto(f"{lab.url}/lab?token={lab.token}&reset")
        self.page.wait_for_selector(".jp-DirListing-item")

    def open_notebook(self, name: str) -> None:
        """Open a notebook from the list of files and wait for its kernel."""
        self.page.locator(".jp-DirListing-item").get_by_text(name, exact=True).dblclick()
        self.page.wait_for_function(OPENED, arg=name)

    def choose(self, menu: str, item: str) -> None:
        """Choose an item of a menu."""
        self.page.get_by_role("menuitem", name=menu, exact=True).first.click()
        self.page.get_by_role("menuitem", name=item).click()

    def restart_and_run_all(self) -> None:
        """Clear all outputs, so that no old one can be taken for new, and run from the top."""
        self.choose("Edit", "Clear Outputs of All Cells")
        self.choose("Run", "Restart Kernel and Run All Cells…")
        self.page.click(".jp-Dialog .jp-mod-accept")
        self.page.wait_for_function(DONE)

    def cells(self) -> list[dict[str, Any]]:
        """Return what each cell shows."""
        shown: list[dict[str, Any]] = self.page.evaluate(READ)
        return shown

    def popups(self) -> list[str]:
        """Return the texts of all messages and questions that lie over the page."""
        return self.page.locator(".Toastify__toast, .jp-Dialog").all_inner_texts()

    def save(self, path: Path) -> None:
        """Save with Ctrl+S and wait until the file is written."""
        before = path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        deadline = time.monotonic() + WAIT
        while path.stat().st_mtime_ns == before or not _is_whole(path):
            assert time.monotonic() < deadline, f"JupyterLab did not save {path.name}"
            self.page.wait_for_timeout(50)

    def photograph(self, folder: Path, name: str) -> None:
        """Write pictures of the whole notebook, one for each height of the window."""
        folder.mkdir(parents=True, exist_ok=True)
        scroller = self.page.locator(f"{NOTEBOOK} .jp-WindowedPanel-outer")
        height, whole = scroller.evaluate("e => [e.clientHeight, e.scrollHeight]")
        for number, top in enumerate(range(0, whole, height)):
            scroller.evaluate("(e, top) => e.scrollTo(0, top)", top)
            self.page.wait_for_timeout(100)
            self.page.screenshot(path=folder / f"{name}-{number:02}.png")


def _is_whole(path: Path) -> bool:
    """Tell whether the server has written the file to its end."""
    try:
        json.loads(path.read_bytes())
    except ValueError:
        return False
    return True


def chromium() -> str | None:
    """Return the path of a Chromium that is installed, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def running_browser(executable: str) -> Iterator[Browser]:
    """Start a Chromium that does nothing by itself."""
    quiet = ("background-networking", "component-update", "sync", "quic", "gpu")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            args=["--no-sandbox", *(f"--disable-{service}" for service in quiet)],
        )
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Browser, *places: str) -> Iterator[Visit]:
    """Open a page and note every error, and every request that goes elsewhere than `places`."""
    problems: list[str] = []

    def note(problem: str) -> None:
        if HARMLESS not in problem:
            problems.append(problem)

    page = browser.new_page(viewport=VIEW)
    page.set_default_timeout(WAIT * 1000)
    page.on("console", lambda said: note(f"console: {said.text}") if said.type == "error" else None)
    page.on("pageerror", lambda error: note(f"page: {error}"))
    page.on("requestfailed", lambda request: note(f"request failed: {request.url}"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((*places, "data:", "blob:"))
            else note(f"request that leaves the machine: {request.url}")
        ),
    )
    page.on(
        "response",
        lambda response: (
            note(f"HTTP {response.status}: {response.url}") if response.status >= 400 else None
        ),
    )
    yield Visit(page, problems)
    page.close()


@contextmanager
def running_lab(notebooks: Path, home: Path) -> Iterator[Lab]:
    """Serve a copy of `notebooks` from `home`, with nobody's settings but these.

    Raises:
        RuntimeError: The server did not start.
    """
    folder = home / "notebooks"
    shutil.copytree(notebooks, folder, ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    for place, values in SETTINGS.items():
        file = home / "settings" / "@jupyterlab" / f"{place}.jupyterlab-settings"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(values))
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lab = Lab(f"http://127.0.0.1:{port}", secrets.token_hex(16), folder)
    log = home / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
                *("--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"),
                f"--IdentityProvider.token={lab.token}",
                f"--ServerApp.root_dir={folder}",
                "--LabApp.extension_manager=readonly",
                "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
                "--LabApp.news_url=",
            ],
            env=outputs.kernel_environment() | {key: str(home / v) for key, v in places.items()},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + WAIT
        while True:
            try:
                urllib.request.urlopen(f"{lab.url}/api").close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    said = log.read_text(errors="replace")
                    raise RuntimeError(f"JupyterLab did not start:\n{said}") from None
                time.sleep(0.1)
        yield lab
    finally:
        server.terminate()
        server.wait(WAIT)
