// The console's one script: keyboard, copying, live pages, dialogs, theme and tooltips. Pages can be read without it.
(() => {
  "use strict";
  const one = (what, from = document) => from.querySelector(what);
  const all = (what, from = document) => [...from.querySelectorAll(what)];
  const typing = at => at.closest("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");

  // ---- rows: j and k move, o opens, x selects, c copies ----
  const rows = () => all("table[data-rows] > tbody > tr:not(.sub)").filter(row => row.checkVisibility());
  const current = () => one("tr[aria-selected=true]");
  function move(step) {
    const list = rows();
    if (!list.length) return;
    const at = list.indexOf(current());
    const next = list[Math.min(Math.max(at + step, 0), list.length - 1)];
    list.forEach(row => row.removeAttribute("aria-selected"));
    next.setAttribute("aria-selected", "true");
    next.scrollIntoView({ block: "nearest" });
    (one("a, summary, button, input", next) || next).focus({ preventScroll: true });
  }
  const press = what => { const at = one(what); if (at) at.click(); return Boolean(at); };
  function help() { const keys = one("#keys"); if (keys) keys.togglePopover(); }
  function search() { const nav = one("#nav"); const field = one("#search"); if (!field) return; if (!field.checkVisibility()) nav.showPopover(); field.focus(); field.select(); }
  const acts = {
    "/": search,
    "?": help,
    // A case has no rows: there the keys lead to the next and the previous failing one.
    j: () => press("[data-key=j]") || move(1),
    k: () => press("[data-key=k]") || move(-1),
    o: () => { const row = current(); const link = row && one("a[href]", row); if (link) link.click(); },
    x: () => { const row = current(); const box = row && one("input[type=checkbox]", row); if (box) box.click(); },
    c: () => press("tr[aria-selected=true] [data-copy]") || press("main [data-copy]"),
    d: () => { document.body.classList.toggle("plain"); },
  };
  let goes = 0;
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
    const key = event.key;
    if (goes && event.timeStamp - goes < 1500) {
      goes = 0;
      if (/^[a-z]$/.test(key) && press(`[data-go="${key}"]`)) event.preventDefault();
      return;
    }
    if (one("dialog[open]")) return;
    if (key === "g") { goes = event.timeStamp; return; }
    const labelled = /^[1-9]$/.test(key) || ["u", "s", "n"].includes(key);
    const act = acts[key] || (labelled && one(`[data-key="${key}"]`) ? () => press(`[data-key="${key}"]`) : null);
    if (act) { event.preventDefault(); act(); }
  });

  // ---- clicks: copy, theme, close, dialogs ----
  let said;
  function say(text) {
    if (!said || !said.isConnected) { said = document.createElement("p"); said.className = "toast"; said.setAttribute("role", "status"); document.body.append(said); }
    said.textContent = text;
    clearTimeout(say.timer);
    say.timer = setTimeout(() => said.remove(), 2500);
  }
  async function copy(text) {
    try { await navigator.clipboard.writeText(text); say("Copied."); }
    catch { say("The browser did not allow copying. Select the text instead."); }
  }
  const themes = { "": "dark", dark: "light", light: "" };
  function switchTheme() {
    const root = document.documentElement, next = themes[root.dataset.theme || ""];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    document.cookie = `meruit_theme=${next}; path=/; max-age=${next ? 31536000 : 0}; samesite=lax`;
    say(next ? `Theme: ${next}.` : "Theme: as the system.");
  }
  function switchZone() {
    const here = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
    const chosen = /(?:^|; )meruit_zone=[^;]/.test(document.cookie);
    if (!chosen && here === "UTC") { say("This browser's time zone is UTC."); return; }
    document.cookie = `meruit_zone=${chosen ? "" : here}; path=/; max-age=${chosen ? 0 : 31536000}; samesite=lax`;
    location.reload();
  }
  async function openDialog(link) {
    const dialog = one("#dialog");
    const reply = await fetch(link.href, { headers: { "X-Fragment": "1" }, redirect: "manual" });
    if (!reply.ok) { location.href = link.href; return; }
    const made = new DOMParser().parseFromString(await reply.text(), "text/html");
    dialog.replaceChildren(...made.body.childNodes);
    dialog.showModal();
    const first = one("textarea, input:not([type=hidden]), select", dialog);
    if (first) first.focus();
  }
  document.addEventListener("click", event => {
    const at = event.target.closest("[data-copy], [data-theme-switch], [data-zone-switch], [data-close], a[data-dialog], [data-reload]");
    if (!at) return;
    if (at.dataset.copy !== undefined) { copy(at.dataset.copy); return; }
    if (at.dataset.themeSwitch !== undefined) { switchTheme(); return; }
    if (at.dataset.zoneSwitch !== undefined) { switchZone(); return; }
    if (at.dataset.reload !== undefined) { location.reload(); return; }
    if (at.dataset.dialog !== undefined) { if (!event.ctrlKey && !event.metaKey) { event.preventDefault(); openDialog(at); } return; }
    const dialog = at.closest("dialog"), toast = at.closest(".toast");
    if (dialog) { event.preventDefault(); dialog.close(); } else if (toast) toast.remove();
  });
  // A form that was sent is not sent again by a second click.
  document.addEventListener("submit", event => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) { event.preventDefault(); return; }
    event.target.dataset.sent = "1";
  });

  // ---- tooltips of charts: what <title> says, at once and on touch ----
  let tip;
  function showTip(event) {
    const shape = event.target.closest && event.target.closest("svg [data-tip], svg :has(> title)");
    if (!shape) { if (tip) tip.hidden = true; return; }
    if (!tip || !tip.isConnected) { tip = document.createElement("div"); tip.className = "tip"; tip.setAttribute("aria-hidden", "true"); document.body.append(tip); }
    const title = one("title", shape);
    if (title) { shape.dataset.tip = title.textContent; title.remove(); shape.setAttribute("aria-label", shape.dataset.tip); }
    tip.textContent = shape.dataset.tip;
    tip.hidden = false;
    const at = shape.getBoundingClientRect(), wide = tip.offsetWidth;
    // Positions are set through the object model, which the content security policy allows.
    tip.style.left = `${Math.max(4, Math.min(at.left + at.width / 2 - wide / 2, innerWidth - wide - 4))}px`;
    tip.style.top = `${Math.max(4, at.top - tip.offsetHeight - 6)}px`;
  }
  document.addEventListener("pointerover", showTip);
  document.addEventListener("pointerdown", showTip);

  // ---- live: a stream says that something changed, and the page asks for itself again ----
  let stream, address, timer, lost;
  const clock = () => new Date().toISOString().slice(11, 16);
  let asOf = clock();
  function markLive(on) { all("[data-live-mark]").forEach(mark => { mark.hidden = !on; }); }
  function sayLost() {
    markLive(false);
    if (one("#stale") || !one("main")) return;
    const note = document.createElement("p");
    note.id = "stale"; note.className = "small muted"; note.setAttribute("role", "status");
    note.textContent = `Live updates stopped. The page is as of ${asOf} UTC. `;
    const button = document.createElement("button");
    button.className = "btn sm"; button.type = "button"; button.dataset.reload = ""; button.textContent = "Reload";
    note.append(button);
    one("main").prepend(note);
  }
  const chosen = () => all("main input[type=checkbox]:checked").map(box => `${box.name}=${box.value}`);
  function refresh() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      // Never under the reader's hands: a field, an open dialog or a chosen row waits.
      if (one("dialog[open]") || typing(document.activeElement) || document.hidden) { refresh(); return; }
      const open = all("main details").map(at => at.open), row = rows().indexOf(current()), boxes = chosen();
      htmx.ajax("GET", location.href, { target: "#main", select: "#main", swap: "outerHTML show:none focus-scroll:false" }).then(() => {
        asOf = clock();
        const again = all("main details");
        if (again.length === open.length) again.forEach((at, place) => { at.open = open[place]; });
        const kept = rows()[row];
        if (kept) kept.setAttribute("aria-selected", "true");
        all("main input[type=checkbox]").forEach(box => { if (boxes.includes(`${box.name}=${box.value}`)) box.checked = true; });
      });
    }, 700);
  }
  function follow() {
    const main = one("main"), wanted = main && main.dataset.live;
    if (!window.EventSource || wanted === address) { markLive(Boolean(wanted) && stream && stream.readyState === 1); return; }
    if (stream) stream.close();
    stream = null; address = wanted;
    if (!wanted) return;
    stream = new EventSource(wanted);
    stream.addEventListener("follow", () => { clearTimeout(lost); const stale = one("#stale"); if (stale) { stale.remove(); refresh(); } markLive(true); });
    stream.addEventListener("change", refresh);
    stream.onerror = () => { markLive(false); clearTimeout(lost); lost = setTimeout(sayLost, stream.readyState === 2 ? 0 : 5000); };
  }
  // Figures that are not ready fill themselves: the page is asked for again until they are there.
  function fill() { if (one("main [data-computing]")) refresh(); }
  document.addEventListener("DOMContentLoaded", () => { follow(); fill(); });
  document.addEventListener("htmx:afterSettle", () => { asOf = clock(); follow(); fill(); });
  document.addEventListener("htmx:sendError", () => say("The service did not answer. The page is as it was."));
  document.addEventListener("htmx:beforeSwap", event => { if (event.detail.xhr.status >= 400) { event.detail.shouldSwap = true; event.detail.isError = false; } });
  addEventListener("pagehide", () => { if (stream) stream.close(); });
})();
