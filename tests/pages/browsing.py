"""A page as a browser shows it, with the network cut: what is off-screen, what cannot be read, what it asks for."""

import asyncio
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

CHROMIUM = shutil.which("chromium")

# What a reader at this width cannot see without scrolling sideways. Screen readers' words are meant to be out of sight.
OFF_SCREEN = """
() => [...document.querySelectorAll('main, main *')].filter(one => {
  const at = one.getBoundingClientRect();
  if (!at.width || !at.height || one.closest('.sr')) return false;
  const cut = one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== 'visible';
  return at.right > innerWidth + 0.5 || at.left < -0.5 || cut;
}).map(one => `${one.tagName} ${one.className.baseVal ?? one.className}: ${one.textContent.slice(0, 60)}`)
"""

# The basics of accessibility that a program can see: names, structure, and contrast of every text.
AUDIT = """
() => {
  const found = [];
  const all = (what, from = document) => [...from.querySelectorAll(what)];
  const shown = one => one.checkVisibility() && one.getClientRects().length;
  const name = one => (one.getAttribute('aria-label') || one.textContent).trim();
  if (!document.documentElement.lang) found.push('no language');
  if (!document.title) found.push('no title');
  if (all('h1').length !== 1 || all('main').length !== 1) found.push('not one h1 and one main');
  let level = 0;
  for (const one of all('h1, h2, h3, h4')) {
    if (+one.tagName[1] > level + 1) found.push(`skipped a level: ${name(one)}`);
    level = +one.tagName[1];
  }
  for (const one of all('table')) {
    if (!one.caption?.textContent.trim()) found.push('a table without a caption');
    if (all('th', one).some(cell => !cell.scope)) found.push(`no scope: ${one.caption?.textContent}`);
  }
  for (const one of all('svg')) {
    if (one.parentElement.closest('svg') || one.ariaHidden === 'true') continue;
    if (one.getAttribute('role') !== 'img' || !name(one)) found.push('a drawing without words');
  }
  for (const one of all('a, button')) if (!name(one)) found.push('a link without words');
  for (const one of all('nav')) if (!one.getAttribute('aria-label')) found.push('a menu without a name');
  const ids = all('[id]').map(one => one.id);
  if (new Set(ids).size !== ids.length) found.push('an id twice');
  for (const one of all('a[href^="#"]'))
    if (!document.getElementById(one.getAttribute('href').slice(1))) found.push(`leads nowhere: ${one.outerHTML}`);

  const parse = text => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = one => {
    for (let at = one; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  for (const one of all('body *')) {
    const text = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    if (!text || !shown(one) || one.closest('title, style')) continue;
    const style = getComputedStyle(one);
    const [a, b] = [light(parse(one.closest('svg') ? style.fill : style.color)), light(behind(one))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`contrast ${contrast.toFixed(2)}: ${one.textContent.slice(0, 60)}`);
    if (parseFloat(style.fontSize) < 11.9) found.push(`tiny: ${one.textContent.slice(0, 60)}`);
  }
  return [...new Set(found)];
}
"""


@dataclass(frozen=True, slots=True)
class Screen:
    """What a page is shown on."""

    width: int
    height: int
    theme: Literal["light", "dark"] = "light"
    media: Literal["screen", "print"] = "screen"


@dataclass(frozen=True, slots=True)
class Visit:
    """What a browser found on a page."""

    width: int
    off_screen: list[str]
    audit: list[str]
    # Any: what a page's script answers.
    answers: dict[str, Any]
    complaints: list[str]
    """What it wrote to the console, or asked in a dialog."""
    requests: list[str]


def visit(
    folder: Path,
    pages: Mapping[str, bytes],
    screens: Iterable[Screen],
    scripts: Mapping[str, str],
    *,
    prepare: str = "() => true",
) -> dict[tuple[str, Screen], Visit]:
    """Open every page on every screen; `prepare` is a script that is awaited first."""
    for name, content in pages.items():
        (folder / name).write_bytes(content)
    return asyncio.run(_visit(folder, [*pages], [*screens], scripts, prepare))


async def _visit(
    folder: Path, names: list[str], screens: list[Screen], scripts: Mapping[str, str], prepare: str
) -> dict[tuple[str, Screen], Visit]:
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        found: dict[tuple[str, Screen], Visit] = {}
        try:
            for screen in screens:
                tab = await _open_tab(browser, screen)
                for name in names:
                    found[name, screen] = await _look(tab, (folder / name).as_uri(), scripts, prepare)
                await tab.page.close()
        finally:
            await browser.close()
    return found


@dataclass(slots=True)
class Tab:
    """One for all pages of a screen, because each new one starts a process; and what came of the page it shows."""

    page: "Page"
    complaints: list[str]
    requests: list[str]


async def _open_tab(browser: "Browser", screen: Screen) -> Tab:
    page = await browser.new_page(
        offline=True, viewport={"width": screen.width, "height": screen.height}, color_scheme=screen.theme
    )
    tab = Tab(page, [], [])
    page.on("console", lambda message: tab.complaints.append(message.text))
    page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    page.on("dialog", lambda dialog: tab.complaints.append(dialog.message))
    page.on("request", lambda request: tab.requests.append(request.url.rpartition("/")[2]))
    await page.emulate_media(media=screen.media, color_scheme=screen.theme)
    return tab


async def _look(tab: Tab, address: str, scripts: Mapping[str, str], prepare: str) -> Visit:
    page, tab.complaints, tab.requests = tab.page, [], []
    await page.goto(address)
    await page.evaluate(prepare)
    return Visit(
        await page.evaluate("document.documentElement.scrollWidth"),
        await page.evaluate(OFF_SCREEN),
        await page.evaluate(AUDIT),
        {key: await page.evaluate(script) for key, script in scripts.items()},
        tab.complaints,
        tab.requests,
    )
