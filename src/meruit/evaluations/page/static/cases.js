"use strict";
// The list of cases. Every text of a user's becomes a text node, never markup. Rows are read by position, as cases.py
// writes them; the work of a case is in a compressed part, which is opened when it is asked for.
const [ID, REPEAT, GROUP, TAGS, PART, PLACE, ENDS] = [0, 1, 2, 3, 4, 5, 6];
const [VERDICT, PASSED, SCORE, LETTERS, LATENCY, COST, CLAIMED, ERROR, SNIPPET] = [0, 1, 2, 3, 4, 5, 6, 7, 8];
const AT_ONCE = 100;
const MOST_WORDS = 1500;
const MOST_CHIPS = 30;
const TONES = { pass: "pass", partial: "partial", fail: "fail", inconclusive: "open", error: "error" };
const STATUSES = { m: ["pass", "met"], n: ["fail", "not met"], i: ["open", "not measured"], x: ["", "excluded"], "-": ["", "–"] };
const RESULTS = { failed: "fail", "not judged": "open", passed: "pass" };
const FLIPS = { fixed: "pass", broken: "fail", "both pass": "", "both fail": "", "not compared": "open" };

const byId = id => document.getElementById(id);
const unzip = async text => {
  const bytes = Uint8Array.from(atob(text), one => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

// Control characters and marks that change the direction of writing are shown, not obeyed.
const show = text => String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
  one => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
const make = (tag, names, ...inside) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(names || {})) if (value !== null && value !== undefined) made.setAttribute(name, value);
  for (const one of inside.flat()) if (one !== null && one !== undefined) made.append(typeof one === "object" ? one : show(one));
  return made;
};
const mark = (tone, word) => make("span", { class: `v ${tone}` }, word);
const number = (value, places = 3) => value.toLocaleString("en", { maximumFractionDigits: places });
const words = value => typeof value === "string" ? value : JSON.stringify(value);

let names, criteria, rows, opened = null, shown = [], drawn = 0, at = -1;
const chosen = { search: "", flip: new Set(), result: new Set(), verdict: new Set(), criterion: new Set(), tag: new Map() };
const parts = new Map();

const key = row => `case-${encodeURIComponent(row[ID])}${row[REPEAT] ? `/${row[REPEAT]}` : ""}`;
const last = row => row[ENDS][row[ENDS].length - 1] ?? row[ENDS].find(Boolean);
const flip = row => {
  const [a, b] = row[ENDS];
  if (!a || !b || a[PASSED] === 2 || b[PASSED] === 2) return "not compared";
  return a[PASSED] === b[PASSED] ? (b[PASSED] ? "both pass" : "both fail") : b[PASSED] ? "fixed" : "broken";
};
const result = row => ["failed", "passed", "not judged"][last(row)[PASSED]];
const lacks = (row, place) => "ni".includes(last(row)[LETTERS][place] || "-");

// Filters: chips of one kind are alternatives, kinds must all hold.
const fits = (row, except) =>
  (except === "flip" || !chosen.flip.size || chosen.flip.has(flip(row))) &&
  (except === "result" || !chosen.result.size || chosen.result.has(result(row))) &&
  (except === "verdict" || !chosen.verdict.size || chosen.verdict.has(last(row)[VERDICT])) &&
  (except === "criterion" || !chosen.criterion.size || [...chosen.criterion].some(place => lacks(row, place))) &&
  [...chosen.tag].every(([tag, values]) => except === `tag ${tag}` || !values.size || values.has(row[TAGS][tag])) &&
  (!chosen.search || row.text.includes(chosen.search));

const toggle = (set, value) => { set.has(value) ? set.delete(value) : set.add(value); refresh(); };
const chip = (set, value, word, count, tone) => {
  const made = make("button", { class: "chip", type: "button", "aria-pressed": set.has(value) },
    tone === undefined ? word : mark(tone, word), make("span", { class: "n" }, number(count)));
  made.addEventListener("click", () => toggle(set, value));
  return made;
};
const count = (list, of) => {
  const found = new Map();
  for (const row of list) for (const value of of(row)) found.set(value, (found.get(value) || 0) + 1);
  return found;
};
const group = (label, chips) => chips.length ? [make("span", { class: "label" }, label), make("div", { class: "chips", role: "group", "aria-label": label }, chips)] : [];

const drawFilters = () => {
  const box = byId("filters"), search = byId("search");
  const made = [];
  if (names.length > 1) {
    const found = count(rows.filter(row => fits(row, "flip")), row => [flip(row)]);
    made.push(...group("Change", Object.keys(FLIPS).filter(one => found.has(one) || chosen.flip.has(one))
      .map(one => chip(chosen.flip, one, one, found.get(one) || 0, FLIPS[one]))));
  }
  const now = names.length > 1 ? " now" : "";
  const results = count(rows.filter(row => fits(row, "result")), row => [result(row)]);
  made.push(...group(`Result${now}`, Object.keys(RESULTS).filter(one => results.has(one) || chosen.result.has(one))
    .map(one => chip(chosen.result, one, one, results.get(one) || 0, RESULTS[one]))));
  const verdicts = count(rows.filter(row => fits(row, "verdict")), row => [last(row)[VERDICT]]);
  made.push(...group(`Verdict${now}`, Object.keys(TONES).filter(one => verdicts.has(one) || chosen.verdict.has(one))
    .map(one => chip(chosen.verdict, one, one, verdicts.get(one) || 0, TONES[one]))));
  const found = rows.filter(row => fits(row, "criterion"));
  const unmet = criteria.map((_, place) => [place, found.filter(row => lacks(row, place)).length])
    .filter(([place, several]) => several || chosen.criterion.has(place)).sort((a, b) => b[1] - a[1]);
  made.push(...group("Not met", unmet.slice(0, MOST_CHIPS).map(([place, several]) => chip(chosen.criterion, place, criteria[place].id, several))));
  for (const tag of tags) {
    const values = chosen.tag.get(tag) || chosen.tag.set(tag, new Set()).get(tag);
    const several = [...count(rows.filter(row => fits(row, `tag ${tag}`)), row => tag in row[TAGS] ? [row[TAGS][tag]] : [])];
    several.sort((a, b) => values.has(b[0]) - values.has(a[0]) || b[1] - a[1]);
    made.push(...group(tag, several.slice(0, MOST_CHIPS).map(([value, times]) => chip(values, value, value, times))));
  }
  const clear = make("button", { class: "chip", type: "button" }, "Show all cases");
  clear.addEventListener("click", () => { clearAll(); refresh(); });
  box.replaceChildren(make("label", { class: "label", for: "search" }, "Search"), search, ...made,
    make("span", { class: "label" }), make("div", { class: "chips" }, clear));
};
const clearAll = () => {
  chosen.search = byId("search").value = "";
  for (const set of [chosen.flip, chosen.result, chosen.verdict, chosen.criterion, ...chosen.tag.values()]) set.clear();
};

// The address says what is shown, so that it can be sent to others.
const query = () => {
  const found = new URLSearchParams();
  for (const kind of ["flip", "result", "verdict"]) for (const one of chosen[kind]) found.append(kind, one);
  for (const place of chosen.criterion) found.append("criterion", criteria[place].id);
  for (const [tag, values] of chosen.tag) for (const one of values) found.append(`tag.${tag}`, one);
  if (chosen.search) found.append("search", chosen.search);
  return found.toString();
};
const keepAddress = () => {
  const written = `#${opened === null ? "cases" : key(opened)}${query() ? `?${query()}` : ""}`;
  if (location.hash !== written) history.replaceState(null, "", written);
};
const readAddress = () => {
  const [target, asked] = location.hash.slice(1).split(/\?(.*)/s);
  if (asked !== undefined || target === "cases") {
    clearAll();
    for (const [name, value] of new URLSearchParams(asked || "")) {
      if (["flip", "result", "verdict"].includes(name)) chosen[name].add(value);
      else if (name === "search") chosen.search = byId("search").value = value;
      else if (name === "criterion") { const place = criteria.findIndex(one => one.id === value); if (place >= 0) chosen.criterion.add(place); }
      else if (name.startsWith("tag.")) chosen.tag.get(name.slice(4))?.add(value);
    }
  }
  return rows.find(row => key(row) === target) || null;
};

const heads = () => names.length > 1
  ? [["Case"], ["Change"], ...names.map(name => [name]), ["Not met"], ["Tags"], ["Output now"]]
  : [["Case"], ["Verdict"], ["Score", "num"], ["Not met"], ["Tags"], ["Output"], ...(timed ? [["ms", "num"]] : [])];
const drawRow = row => {
  const end = last(row);
  const link = make("a", { href: `#${key(row)}`, dir: "auto" }, row[ID], row[REPEAT] ? ` (try ${row[REPEAT] + 1})` : "");
  link.addEventListener("click", event => { event.preventDefault(); open(row === opened ? null : row); });
  const unmet = [...end[LETTERS]].map((letter, place) => "ni".includes(letter) ? criteria[place].id : null).filter(Boolean);
  const why = make("td", { class: "full text", "data-l": "not met" }, end[ERROR] ? end[ERROR].replace("_", " ") : unmet.join(", ") || "–",
    end[CLAIMED] && end[CLAIMED] !== end[VERDICT] ? make("small", {}, `its origin claimed ${end[CLAIMED]}`) : null);
  const labels = make("td", {}, Object.entries(row[TAGS]).map(([tag, value]) => make("span", { class: "tag", title: show(`${tag}: ${value}`) }, value)));
  const output = make("td", { class: "full" }, make("span", { class: "clip", dir: "auto" }, end[SNIPPET]));
  const verdict = one => make("td", {}, one ? mark(TONES[one[VERDICT]], one[VERDICT]) : "–");
  const cells = names.length > 1
    ? [make("td", {}, mark(FLIPS[flip(row)], flip(row))), ...row[ENDS].map(verdict), why, labels, output]
    : [verdict(end), make("td", { class: "num", "data-l": "score" }, number(end[SCORE])), why, labels, output,
       ...(timed ? [make("td", { class: "num muted", "data-l": "ms" }, end[LATENCY] === null ? "–" : number(end[LATENCY], 0))] : [])];
  return make("tr", { id: key(row) }, make("th", { scope: "row", class: "case" }, link), cells);
};
const drawMore = () => {
  const body = byId("list").tBodies[0];
  body.append(...shown.slice(drawn, drawn + AT_ONCE).map(drawRow));
  drawn = Math.min(shown.length, drawn + AT_ONCE);
  byId("more").hidden = drawn >= shown.length;
  byId("more").textContent = `Show ${number(Math.min(AT_ONCE, shown.length - drawn))} more of ${number(shown.length - drawn)}`;
};
const refresh = () => {
  shown = rows.filter(row => fits(row));
  if (opened && !shown.includes(opened)) opened = null;
  byId("shown").textContent = `${number(shown.length)} of ${number(rows.length)} listed cases`;
  drawFilters();
  drawn = 0;
  at = -1;
  byId("list").tBodies[0].replaceChildren();
  drawMore();
  if (opened) open(opened); else keepAddress();
};

// One case.
const load = row => {
  if (row[PART] < 0) return Promise.resolve(null);
  if (!parts.has(row[PART])) parts.set(row[PART], unzip(document.querySelectorAll("script.part")[row[PART]].textContent));
  return parts.get(row[PART]).then(found => found[row[PLACE]]);
};
const open = async (row, follow) => {
  document.querySelector("tr.sub")?.remove();
  document.querySelector("tr.opened")?.classList.remove("opened");
  opened = row;
  keepAddress();
  if (row === null) return;
  const place = shown.indexOf(row);
  while (drawn <= place) drawMore();
  const line = byId(key(row));
  line.classList.add("opened");
  select(place);
  const work = await load(row);
  if (opened !== row || !line.isConnected) return;
  document.querySelector("tr.sub")?.remove();
  line.after(make("tr", { class: "sub" }, make("td", { colspan: heads().length }, drawCase(row, work))));
  if (follow) line.scrollIntoView({ block: "start" });
};
const select = place => {
  document.querySelector("tr.at")?.classList.remove("at");
  at = place;
  const line = shown[place] && byId(key(shown[place]));
  line?.classList.add("at");
  return line;
};

const drawCase = (row, work) => {
  const place = shown.indexOf(row);
  const step = (word, to) => {
    const made = make("button", { class: "btn", type: "button" }, word);
    made.disabled = !shown[to];
    made.addEventListener("click", () => open(shown[to], true));
    return made;
  };
  const facts = row[ENDS].map((one, side) => one && make("span", {}, names.length > 1 ? `${names[side]}: ` : "", mark(TONES[one[VERDICT]], one[VERDICT]),
    ` score ${number(one[SCORE])}`, one[COST] === null ? "" : ` · ${number(one[COST] / 1e6, 6)} USD`));
  const bar = make("div", { class: "steps" }, facts, row[GROUP] ? make("span", {}, `group ${row[GROUP]}`) : null,
    make("span", {}, step("← Previous", place - 1), step("Next →", place + 1)));
  if (work === null) return [bar, make("p", { class: "note" }, "The work of this case is not in the page, to keep the file small. `meruit eval show` has it.")];
  return [bar, make("div", { class: "works" }, drawWorks(work)), make("ul", { class: "crits" }, criteria.map((one, place) => drawCriterion(one, place, row, work))),
    ...work.map((one, side) => one && drawRest(one, side))];
};
const block = (title, value, note) => {
  if (value === null || value === undefined) return null;
  const text = typeof value === "string" ? value : value && typeof value === "object" && typeof value.text === "string" && Object.keys(value).length === 1 ? value.text : null;
  return make("div", {}, make("h3", {}, title, note ? make("span", {}, note) : null),
    text === null ? make("pre", { class: "work json", tabindex: 0 }, JSON.stringify(value, null, 2)) : make("div", { class: "work", dir: "auto", tabindex: 0 }, text));
};
const referenceOf = input => input && typeof input === "object" ? input.reference ?? input.references ?? null : null;
const drawWorks = work => {
  const known = work.find(Boolean);
  if (known.erased) return [make("p", { class: "note" }, "The work of this case was erased.")];
  const reference = referenceOf(known.input);
  const asked = known.input && typeof known.input === "object" ? Object.fromEntries(Object.entries(known.input).filter(([name]) => name !== "reference" && name !== "references")) : known.input;
  const only = asked && Object.keys(asked).length === 1 ? Object.values(asked)[0] : asked;
  const found = [block("Input", typeof only === "string" ? only : asked)];
  work.forEach((one, side) => {
    if (!one) return;
    const title = names.length > 1 ? `Output of ${names[side]}` : "Output";
    found.push(one.error ? block(title, one.error, "error") : block(title, one.output));
  });
  if (reference !== null) found.push(drawReference(reference, work[work.length - 1] ?? known));
  return found.filter(Boolean);
};
const drawReference = (reference, end) => {
  const output = end.output && typeof end.output.text === "string" ? end.output.text : null;
  const changes = typeof reference === "string" && output !== null && output !== reference ? compare(output, reference) : null;
  if (changes === null) return block("Reference", reference, output !== null && output === reference ? "equals the output" : "");
  return make("div", {}, make("h3", {}, "Reference", make("span", {}, "against the output")), make("div", { class: "work", dir: "auto", tabindex: 0 }, changes));
};
// What has to change in the output to get the reference, word by word: the longest common subsequence.
const compare = (output, reference) => {
  const [a, b] = [output, reference].map(text => text.split(/(\s+)/).filter(Boolean));
  if (a.length * b.length > MOST_WORDS ** 2) return null;
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--)
    table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const found = [];
  const add = (tag, text) => found.at(-1)?.[0] === tag ? (found.at(-1)[1] += text) : found.push([tag, text]);
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { add("span", a[i]); i++; j++; }
    else if (i < a.length && (j === b.length || table[i + 1][j] >= table[i][j + 1])) add("del", a[i++]);
    else add("ins", b[j++]);
  }
  return found.map(([tag, text]) => make(tag, {}, text));
};
const drawCriterion = (one, place, row, work) => {
  const found = work.map(side => side?.criteria?.find(other => other.id === one.id));
  const marks = row[ENDS].map((end, side) => end && make("span", {}, mark(...STATUSES[end[LETTERS][place] || "-"]),
    names.length > 1 ? make("span", { class: "who" }, ` ${names[side]}`) : null));
  const values = found.map((judged, side) => judged && [
    "value" in judged ? make("span", { class: "num" }, words(judged.value).slice(0, 200), names.length > 1 ? make("span", { class: "who" }, ` ${names[side]}`) : "") : null,
    judged.error ? make("span", {}, judged.error) : null]);
  const evidence = found.map(judged => judged?.evidence === undefined ? null
    : make("pre", { class: "work json", tabindex: 0 }, typeof judged.evidence === "string" ? judged.evidence : JSON.stringify(judged.evidence, null, 2)));
  return make("li", {}, make("span", { class: "pair" }, marks.filter(Boolean)),
    make("span", {}, make("b", { dir: "auto" }, one.id), " ", make("small", {}, one.wanted, one.optional ? ", optional" : "")),
    make("div", {}, make("span", { class: "pair" }, values.filter(Boolean).flat()), evidence.filter(Boolean)));
};
const drawRest = (one, side) => {
  const who = names.length > 1 ? ` of ${names[side]}` : "";
  const facts = one.metadata && Object.keys(one.metadata).length ? block(`Metadata${who}`, one.metadata) : null;
  const reasons = one.reasons?.length ? block(`Reasons${who}`, one.reasons.join("\n")) : null;
  return make("div", { class: "works" }, reasons, facts, make("p", { class: "small muted" }, `outcome${who} ${one.outcome}`));
};

// The keyboard: j and k move, o opens, Escape closes, / searches.
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input")) { if (event.key === "Escape") event.target.blur(); return; }
  const step = { j: 1, k: -1 }[event.key];
  if (step && shown[at + step]) {
    while (drawn <= at + step) drawMore();
    if (opened) open(shown[at + step], true); else select(at + step).scrollIntoView({ block: "nearest" });
  } else if (event.key === "o" && shown[at]) open(shown[at] === opened ? null : shown[at]);
  else if (event.key === "Escape") open(null);
  else if (event.key === "/") { event.preventDefault(); byId("search").focus(); }
});

let tags, timed;
const start = async () => {
  ({ names, criteria, rows } = await unzip(byId("index").textContent));
  for (const row of rows) row.text = [row[ID], row[GROUP], ...Object.values(row[TAGS]), ...row[ENDS].map(one => one ? one[SNIPPET] : "")].join("\n").toLowerCase();
  tags = [...new Set(rows.flatMap(row => Object.keys(row[TAGS])))];
  timed = rows.some(row => last(row)[LATENCY] !== null);
  for (const tag of tags) chosen.tag.set(tag, new Set());
  const search = make("input", { class: "search", id: "search", type: "search", placeholder: "id, tag or output" });
  search.addEventListener("input", () => { chosen.search = search.value.toLowerCase(); refresh(); });
  byId("filters").append(search);
  const list = byId("list");
  list.tHead.rows[0].replaceChildren(...heads().map(([word, style]) => make("th", { scope: "col", class: style }, word)));
  list.hidden = false;
  byId("more").addEventListener("click", drawMore);
  for (const one of document.querySelectorAll("button.link")) one.addEventListener("click", () => {
    clearAll();
    if (one.dataset.kind === "criterion") chosen.criterion.add(criteria.findIndex(other => other.id === one.dataset.value));
    else if (one.dataset.kind === "tag") chosen.tag.get(one.dataset.tag)?.add(one.dataset.value);
    else chosen.flip.add(one.dataset.value);
    refresh();
    byId("cases").scrollIntoView();
  });
  const go = () => {
    const wanted = readAddress();
    if (wanted && !fits(wanted)) clearAll();
    opened = null;
    refresh();
    if (wanted) open(wanted, true);
  };
  // Without a wish, what needs attention comes first.
  if (names.length > 1) { if (rows.some(row => ["fixed", "broken"].includes(flip(row)))) { chosen.flip.add("fixed"); chosen.flip.add("broken"); } }
  else for (const row of rows) if (last(row)[PASSED] !== 1) chosen.result.add(result(row));
  if (location.hash.startsWith("#case")) go(); else { const before = location.hash; refresh(); if (!before) history.replaceState(null, "", location.pathname + location.search); }
  addEventListener("hashchange", go);
  document.documentElement.dataset.ready = "true";
};
start();
