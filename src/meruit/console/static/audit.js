// Checks a bundle or receipt inside the browser: nothing of it is sent anywhere. Signature (Ed25519), inclusion and
// consistency (RFC 6962), and hashes of the content. The verdict and the bill are checked by the service, if asked.
(() => {
  "use strict";
  const MOST_BYTES = 128 * 1024 * 1024;
  const text = bytes => new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  const utf8 = said => new TextEncoder().encode(said);
  const join = (...parts) => { const all = new Uint8Array(parts.reduce((sum, one) => sum + one.length, 0)); let at = 0; for (const one of parts) { all.set(one, at); at += one.length; } return all; };
  const sha256 = async bytes => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const hex = bytes => [...bytes].map(one => one.toString(16).padStart(2, "0")).join("");
  const unhex = said => new Uint8Array((said.match(/../g) || []).map(one => parseInt(one, 16)));
  const unbase64 = said => Uint8Array.from(atob(said), one => one.charCodeAt(0));
  const same = (a, b) => a.length === b.length && a.every((one, at) => one === b[at]);
  const fail = said => { throw new Error(said); };

  // ---- zip: the list of files at its end, each stored or deflated ----
  async function unzip(bytes) {
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let end = bytes.length - 22;
    while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
    if (end < 0) fail("this file is not a bundle: it is neither a zip nor a receipt");
    const files = new Map();
    let at = view.getUint32(end + 16, true);
    for (let left = view.getUint16(end + 10, true); left > 0; left--) {
      if (view.getUint32(at, true) !== 0x02014b50) fail("the zip is damaged");
      const method = view.getUint16(at + 10, true), packed = view.getUint32(at + 20, true), size = view.getUint32(at + 24, true);
      const name = view.getUint16(at + 28, true), extra = view.getUint16(at + 30, true), note = view.getUint16(at + 32, true), place = view.getUint32(at + 42, true);
      const title = text(bytes.subarray(at + 46, at + 46 + name));
      if (size > MOST_BYTES) fail(`${title} is too large`);
      const begin = place + 30 + view.getUint16(place + 26, true) + view.getUint16(place + 28, true);
      const content = bytes.subarray(begin, begin + packed);
      if (method !== 0 && method !== 8) fail(`${title} is compressed in a way that bundles do not use`);
      files.set(title, method === 0 ? content : new Uint8Array(await new Response(new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate-raw"))).arrayBuffer()));
      at += 46 + name + extra + note;
    }
    return files;
  }

  // ---- signed notes: c2sp.org/signed-note ----
  async function readKey(vkey) {
    const [name, id, encoded] = vkey.trim().split("+").reduce((parts, one, at) => { if (at < 2) parts.push(one); else parts[2] = parts[2] === undefined ? one : `${parts[2]}+${one}`; return parts; }, []);
    const material = unbase64(encoded);
    if (material[0] !== 1) fail("the key is not an Ed25519 key");
    if (hex(await sha256(join(utf8(`${name}\n`), material))).slice(0, 8) !== id) fail("the key's id does not fit its content");
    return { name, id, key: await crypto.subtle.importKey("raw", material.slice(1), { name: "Ed25519" }, false, ["verify"]) };
  }
  async function openCheckpoint(note, key) {
    const cut = note.lastIndexOf("\n\n");
    const body = note.slice(0, cut + 1);
    const line = note.slice(cut + 2).split("\n").find(one => one.startsWith(`— ${key.name} `)) || fail("the checkpoint has no signature of this key");
    const signature = unbase64(line.split(" ").pop());
    if (hex(signature.slice(0, 4)) !== key.id) fail("the signature is by another key");
    if (!(await crypto.subtle.verify({ name: "Ed25519" }, key.key, signature.slice(4), utf8(body)))) fail("the signature does not hold");
    const [origin, size, root] = body.split("\n");
    return { origin, size: Number(size), root: unbase64(root) };
  }

  // ---- RFC 6962 ----
  const leafHash = body => sha256(join(Uint8Array.of(0), body));
  const nodeHash = (left, right) => sha256(join(Uint8Array.of(1), left, right));
  async function rootOf(index, size, leaf, proof) {
    let place = index, last = size - 1, hash = leaf;
    for (const one of proof) {
      if (last === 0) fail("the proof is too long");
      if (place % 2 === 1 || place === last) {
        hash = await nodeHash(one, hash);
        while (place % 2 === 0 && place !== 0) { place = Math.floor(place / 2); last = Math.floor(last / 2); }
      } else hash = await nodeHash(hash, one);
      place = Math.floor(place / 2); last = Math.floor(last / 2);
    }
    if (last !== 0) fail("the proof is too short");
    return hash;
  }
  async function consistent(first, second, proof) {
    if (first.size > second.size) return false;
    if (first.size === second.size) return proof.length === 0 && same(first.root, second.root);
    if (first.size === 0) return proof.length === 0;
    const path = Number.isInteger(Math.log2(first.size)) ? [first.root, ...proof] : [...proof];
    let place = first.size - 1, last = second.size - 1;
    while (place % 2 === 1) { place = Math.floor(place / 2); last = Math.floor(last / 2); }
    let old = path[0], now = path[0];
    for (const one of path.slice(1)) {
      if (last === 0) return false;
      if (place % 2 === 1 || place === last) {
        old = await nodeHash(one, old); now = await nodeHash(one, now);
        while (place % 2 === 0 && place !== 0) { place = Math.floor(place / 2); last = Math.floor(last / 2); }
      } else now = await nodeHash(now, one);
      place = Math.floor(place / 2); last = Math.floor(last / 2);
    }
    return last === 0 && same(old, first.root) && same(now, second.root);
  }
  const PURPOSE = utf8("meruit-blob-v1\n");
  const commitment = async (salt, content) => hex(await sha256(join(PURPOSE, unhex(salt), await sha256(content))));

  // ---- the steps ----
  async function checkBundle(files, ownKey, say) {
    const json = name => JSON.parse(text(files.get(name) || fail(`${name} is missing`)));
    const vkey = text(files.get("key.txt") || fail("key.txt is missing")).trim();
    const key = await readKey(vkey);
    const checkpoint = await openCheckpoint(text(files.get("checkpoint.txt")), key);
    const first = await openCheckpoint(text(files.get("first-checkpoint.txt")), key);
    say("signature", "pass", `two checkpoints of ${checkpoint.origin}, ${checkpoint.size.toLocaleString("en")} entries`);
    if (vkey === ownKey) say("key", "pass", "the key is this service's"); else say("key", "partial", `the key is not this service's: ${vkey}`);
    const entries = json("entries.json").entries;
    for (const one of entries) {
      const root = await rootOf(one.index, checkpoint.size, await leafHash(unbase64(one.body)), one.proof.map(unbase64));
      if (!same(root, checkpoint.root)) fail(`entry ${one.index} is not in the log`);
    }
    say("inclusion", "pass", `${entries.length} entries are in the signed log`);
    if (!(await consistent(first, checkpoint, json("consistency.json").proof.map(unbase64)))) fail("the log was not only appended to");
    say("consistency", "pass", `the log only grew from ${first.size.toLocaleString("en")} to ${checkpoint.size.toLocaleString("en")} entries`);
    const logged = entries.map(one => { try { return JSON.parse(text(unbase64(one.body))); } catch { return {}; } });
    const salts = json("salts.json"), known = JSON.stringify(logged);
    let checked = 0;
    for (const [name, content] of files) {
      const criteria = /^criteria\/([0-9a-f]{64})\.json$/.exec(name), work = /^work\/(\w+)\.json$/.exec(name), verdict = /^verdicts\/(\d+)\.json$/.exec(name);
      if (criteria) {
        if (hex(await sha256(content)) !== criteria[1] || !known.includes(criteria[1])) fail(`${name} is not what was committed to`);
        checked++;
      } else if (work || verdict) {
        const salt = work ? salts[work[1]] : salts.results[verdict[1]];
        if (!salt || !known.includes(await commitment(salt, content))) fail(`${name} is not what was committed to`);
        checked++;
      }
    }
    say("hashes", "pass", `${checked} files are what the log commits to`);
    return json("manifest.json").outcome;
  }
  async function checkReceipt(receipt, ownKey, say) {
    const key = await readKey(receipt.vkey);
    const checkpoint = await openCheckpoint(receipt.checkpoint, key);
    say("signature", "pass", `a checkpoint of ${checkpoint.origin}, ${checkpoint.size.toLocaleString("en")} entries`);
    if (receipt.vkey === ownKey) say("key", "pass", "the key is this service's"); else say("key", "partial", `the key is not this service's: ${receipt.vkey}`);
    const root = await rootOf(receipt.index, checkpoint.size, await leafHash(unbase64(receipt.entry)), receipt.proof.map(unbase64));
    if (!same(root, checkpoint.root)) fail("the entry is not in the log");
    say("inclusion", "pass", `entry ${receipt.index.toLocaleString("en")} is in the signed log`);
    return receipt.outcome;
  }

  const drop = document.querySelector("[data-audit]");
  if (!drop) return;
  const list = document.querySelector("#audit-steps"), verdict = document.querySelector("#audit-verdict"), input = drop.querySelector("input[type=file]");
  const following = { signature: "inclusion", key: "inclusion", inclusion: "consistency", consistency: "hashes" };
  const words = { pass: "holds", partial: "note", fail: "fails" };
  async function check(file) {
    list.replaceChildren(); verdict.textContent = "Checking…";
    let step = "file";
    const say = (name, tone, said) => {
      step = name;
      const row = document.createElement("tr"), title = document.createElement("th"), state = document.createElement("td"), what = document.createElement("td"), mark = document.createElement("span");
      title.scope = "row"; title.textContent = name; mark.className = `v ${tone}`; mark.textContent = words[tone]; state.append(mark); what.textContent = said;
      row.append(title, state, what); list.append(row);
    };
    try {
      if (file.size > MOST_BYTES) fail("the file is larger than a bundle may be");
      const bytes = new Uint8Array(await file.arrayBuffer()), own = drop.dataset.key;
      const outcome = bytes[0] === 0x7b ? await checkReceipt(JSON.parse(text(bytes)), own, say) : await checkBundle(await unzip(bytes), own, say);
      verdict.textContent = `Everything that a browser can check holds, for outcome ${outcome}. Nothing was sent.`;
    } catch (problem) {
      say(following[step] || step, "fail", problem.name === "NotSupportedError" ? "this browser cannot check Ed25519 signatures; let the service check it" : problem.message);
      verdict.textContent = "This file does not hold.";
    }
  }
  drop.addEventListener("dragover", event => event.preventDefault());
  drop.addEventListener("drop", event => { event.preventDefault(); const file = event.dataTransfer.files[0]; if (file) { input.files = event.dataTransfer.files; check(file); } });
  input.addEventListener("change", () => { if (input.files[0]) check(input.files[0]); });
})();
