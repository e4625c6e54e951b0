"use strict";
// Shows what api/status says, each second. All text goes into text nodes: nothing that a server says is markup.

const PERIOD_MS = 1000;
const HIDDEN_MS = 10000;
const PATIENCE_MS = 5000;
const LOST_AFTER_MS = 2500;
const PICTURES_MS = 3000;
const PICTURES = 12;
const FORMAT = 1;

const $ = (id) => document.getElementById(id);

function el(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function svg(tag) {
  return document.createElementNS("http://www.w3.org/2000/svg", tag);
}

// Nodes are touched only where something changed: selections, focus and screen readers are left alone.
function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function note(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Gives `parent` one child for each item, in order. Children stay with their keys.
function each(parent, items, keyOf, make, update) {
  const known = parent.known || (parent.known = new Map());
  const keys = new Set();
  let at = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    keys.add(key);
    let node = known.get(key);
    if (!node) {
      node = make(item);
      known.set(key, node);
    }
    update(node, item);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
  }
  for (const [key, node] of known) {
    if (!keys.has(key)) {
      node.remove();
      known.delete(key);
    }
  }
}

// Numbers, as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

function three(value) {
  if (value >= 99.95) return whole.format(value);
  return value.toFixed(value >= 9.995 ? 1 : 2);
}

function perSecond(value) {
  if (value === 0) return "0";
  return value >= 1000 ? whole.format(value) : three(value);
}

function sized(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
  let unit = 0;
  while (bytes >= 999.5 && unit + 1 < units.length) {
    bytes /= 1000;
    unit += 1;
  }
  return [unit === 0 ? whole.format(bytes) : three(bytes), units[unit]];
}

function bytes(count) {
  return sized(count).join(" ");
}

function percent(part) {
  return Math.round(part * 100) + " %";
}

function counted(count, one, many) {
  return whole.format(count) + " " + (count === 1 ? one : many);
}

function lasting(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + "m " + two(s % 60) + "s";
  if (s < 86400) return Math.floor(s / 3600) + "h " + two(Math.floor(s / 60) % 60) + "m";
  return Math.floor(s / 86400) + "d " + two(Math.floor(s / 3600) % 24) + "h";
}

function clock(date) {
  const two = (n) => String(n).padStart(2, "0");
  return two(date.getHours()) + ":" + two(date.getMinutes()) + ":" + two(date.getSeconds());
}

function millis(seconds) {
  return seconds >= 1 ? three(seconds) + " s" : three(seconds * 1000) + " ms";
}

// Lines of the last minutes.

function lineNode() {
  const node = svg("svg");
  node.setAttribute("class", "line");
  node.setAttribute("viewBox", "0 0 300 60");
  node.setAttribute("preserveAspectRatio", "none");
  node.setAttribute("role", "img");
  for (const name of ["area", "stroke"]) {
    const path = svg("path");
    path.setAttribute("class", name);
    node.append(path);
  }
  return node;
}

// Draws values, the latest at the right edge; they fill the width when there are `points` of them.
function draw(node, values, points) {
  const top = Math.max(1e-9, ...values);
  const step = 300 / Math.max(1, points - 1);
  const from = 300 - step * (values.length - 1);
  let path = "";
  values.forEach((value, i) => {
    const x = (from + step * i).toFixed(1);
    const y = (57 - 53 * (value / top)).toFixed(1);
    path += (i === 0 ? "M" : "L") + x + " " + y;
  });
  const [area, stroke] = node.querySelectorAll("path");
  note(stroke, "d", path || "M0 57");
  note(area, "d", values.length > 1 ? path + "L300 60L" + from.toFixed(1) + " 60Z" : "M0 60");
}

// Points that lines have room for: fewer in the first minutes, so that there is something to see.
function shown(history) {
  return Math.min(history.points, Math.max(30, history.images_per_s.length));
}

// The way of a sample: storage, decode, send, trainers.

// The sentence where a heading says which limit it is.
function withoutBound(text) {
  const found = /^(?:(.+): )?[a-z]+-bound: (.*)$/.exec(text);
  if (!found) return text.charAt(0).toUpperCase() + text.slice(1);
  const sentence = found[2].replace(/^it /, "the trainer ");
  return found[1] ? found[1] + ": " + sentence : sentence.charAt(0).toUpperCase() + sentence.slice(1);
}

function showBottleneck(status) {
  const { bound, heading } = status.bottleneck;
  note($("bottleneck"), "data-bound", bound);
  say($("bottleneck-bound"), heading);
  say($("bottleneck-text"), withoutBound(status.bottleneck.text));
  for (const tile of document.querySelectorAll(".tile")) {
    tile.classList.toggle("limit", tile.dataset.part === bound);
  }
}

function showWay(status) {
  const { now, history, process } = status;
  const points = shown(history);
  const [read, readUnit] = sized(now.read_bytes_per_s);
  say($("read"), read);
  say($("read-unit"), readUnit + "/s read");
  say($("read-sub"), status.cache ? percent(status.cache.hit_rate) + " from cache"
    : bytes(status.totals.read_bytes) + " in all");
  say($("images"), perSecond(now.images_per_s));
  say($("images-sub"), process.cores ? three(process.cpu_cores) + " of " + counted(process.cores, "core", "cores")
    : three(process.cpu_cores) + " cores");
  const [sent, sentUnit] = sized(now.payload_bytes_per_s);
  say($("sent"), sent);
  say($("sent-unit"), sentUnit + "/s");
  say($("sent-sub"), perSecond(now.batches_per_s) + " batches/s");
  draw($("read-line"), history.read_bytes_per_s, points);
  draw($("images-line"), history.images_per_s, points);
  draw($("sent-line"), history.payload_bytes_per_s, points);

  const ofOne = (served, server) => served.flatMap(({ name, ranks }) => ranks.map((rank) => ({ name, server, ...rank })));
  const ranks = status.servers ? status.servers.flatMap(({ report, server }) => (report ? ofOne(report.served, server) : []))
    : ofOne(status.served, "");
  const waits = ranks.reduce((sum, rank) => sum + rank.waits, 0) / Math.max(1, ranks.length);
  const names = new Set(ranks.map((rank) => rank.name)).size;
  say($("waits"), ranks.length ? percent(waits) : "–");
  say($("waits-unit"), ranks.length ? "waiting" : "");
  const streams = status.connections.streams;
  const ofNames = names > 1 ? ", " + names + " names" : "";
  say($("waits-sub"), streams ? counted(streams, "stream", "streams") + ofNames : "none connected");
  each($("strip"), ranks.slice(0, 96), (rank) => rank.server + " " + rank.connection, () => el("i"), (node, rank) => {
    node.className = rank.waits < 0.05 ? "" : rank.waits < 0.5 ? "some" : "most";
    note(node, "title", rank.name + ", rank " + rank.rank + ": waits " + percent(rank.waits));
  });
  const fed = ranks.filter((rank) => rank.waits < 0.05).length;
  note($("strip"), "aria-label", fed + " of " + ranks.length + " ranks wait less than 5 % of their time");
}

// Datasets and jobs.

const STAGES = [
  ["fetch", "read", [["fetch", "busy"]]],
  ["decode", "decode", [["decode", "busy"], ["transform", "transform"]]],
  ["send", "send", [["send", "busy"]]],
];
const LEGEND = [
  ["busy", "at work"],
  ["transform", "resizing and transforms"],
  ["starved", "waits for input"],
  ["blocked", "waits for room"],
];

function stageNode([, label]) {
  const node = el("div", "stage");
  const what = el("span", "what", label + " ");
  what.append(el("small"));
  const bar = el("span", "bar");
  bar.setAttribute("role", "img");
  node.append(what, bar, el("span", "how"));
  return node;
}

function updateStage(node, [key, , works], stages) {
  const stage = stages.find((one) => one.name === key) || { threads: 0, busy: 0, starved: 0, blocked: 0 };
  say(node.querySelector("small"), stage.threads ? "× " + stage.threads : "");
  const parts = works.map(([name, className]) => {
    const found = stages.find((one) => one.name === name);
    return [className, found ? found.busy : 0];
  });
  const busy = parts.reduce((sum, part) => sum + part[1], 0);
  parts.push(["starved", stage.starved], ["blocked", stage.blocked]);
  const bar = node.querySelector(".bar");
  each(bar, parts, (part) => part[0], (part) => el("i", part[0]), (piece, part) => {
    piece.style.width = (part[1] * 100).toFixed(1) + "%";
  });
  const text = "busy " + percent(busy) + ", starved " + percent(stage.starved) + ", blocked " + percent(stage.blocked);
  note(bar, "aria-label", text);
  note(bar, "title", text);
  say(node.querySelector(".how"), "busy " + percent(busy));
}

const COLUMNS = [
  ["Rank", ""], ["Epoch", "right rare"], ["Step", ""], ["Images/s", "right"], ["", "rare"],
  ["Behind", "right"], ["Waits", "right"], ["Ready", "right rare"], ["Via", "rare"], ["From", "rare"],
];

function cardNode(served) {
  const card = el("section", "panel card");
  const head = el("div", "head");
  const title = el("h2", "name", served.name);
  title.id = "served-" + served.name;
  card.setAttribute("aria-labelledby", title.id);
  const speed = el("p", "speed");
  speed.append(el("span", "rate"), el("span", "aside"));
  head.append(title, el("span", "badge"), speed);

  const chart = el("div", "chart");
  chart.append(lineNode(), el("span", "from"), el("span", "most"));
  const stages = el("div", "stages");
  const legend = el("ul", "legend");
  for (const [className, text] of LEGEND) {
    const item = el("li");
    item.append(el("i", className), el("span", "", text));
    legend.append(item);
  }
  const bars = el("div", "stages bars");
  stages.append(bars, legend);
  const split = el("div", "split");
  split.append(chart, stages);

  const replaced = el("div", "replaced");
  replaced.append(el("p"), el("ul"));
  const scroll = el("div", "scroll");
  const table = el("table");
  const thead = el("thead");
  const row = el("tr");
  for (const [name, className] of COLUMNS) {
    const cell = el(name ? "th" : "td", className, name);
    if (name) cell.scope = "col";
    row.append(cell);
  }
  thead.append(row);
  table.append(el("caption", "unseen", "Ranks of " + served.name), thead, el("tbody"));
  scroll.append(table, el("p", "more"));
  card.append(head, el("p", "sentence"), split, replaced, scroll);
  return card;
}

function updateCard(card, served, history, alone) {
  say(card.querySelector(".badge"), served.dataset ? "job of " + served.dataset : served.kind);
  say(card.querySelector(".rate"), perSecond(served.now.images_per_s) + " images/s");
  say(card.querySelector(".speed .aside"), bytes(served.now.payload_bytes_per_s) + "/s");
  // One name alone has the bottleneck on top.
  const sentence = card.querySelector(".sentence");
  sentence.hidden = alone;
  say(sentence, served.bottleneck.text);
  const chart = card.querySelector(".chart");
  draw(chart.querySelector("svg"), served.history, shown(history));
  note(chart.querySelector("svg"), "aria-label", "Images a second of " + served.name + " in the last minutes");
  const minutes = Math.max(1, Math.round((shown(history) * history.step_s) / 60));
  say(chart.querySelector(".from"), "images/s, last " + (minutes === 1 ? "minute" : minutes + " minutes"));
  say(chart.querySelector(".most"), "up to " + perSecond(Math.max(0, ...served.history)));
  each(card.querySelector(".bars"), STAGES, (stage) => stage[0], stageNode, (node, stage) => updateStage(node, stage, served.stages));
  const replaced = card.querySelector(".replaced");
  replaced.hidden = served.totals.failed_samples === 0;
  if (!replaced.hidden) {
    say(replaced.querySelector("p"), counted(served.totals.failed_samples, "sample", "samples") + " could not be read or decoded, and " + (served.totals.failed_samples === 1 ? "was" : "were") + " replaced");
    each(replaced.querySelector("ul"), served.failures, (text) => text, (text) => el("li", "", text), () => {});
  }
  each(card.querySelector("tbody"), served.ranks, (rank) => rank.connection, rankNode, (node, rank) => updateRank(node, rank, history));
  const more = card.querySelector(".more");
  more.hidden = served.more_ranks === 0;
  say(more, "and " + counted(served.more_ranks, "further stream", "further streams"));
}

function rankNode() {
  const row = el("tr");
  COLUMNS.forEach(([, className], i) => {
    const cell = el(i === 0 ? "th" : "td", className);
    if (i === 0) cell.scope = "row";
    row.append(cell);
  });
  const bar = el("span", "progress");
  bar.append(el("i"));
  row.cells[0].append(el("span"), el("span", "rare"));
  row.cells[2].append(bar, el("span"), el("span", "rare"));
  row.cells[4].append(lineNode());
  return row;
}

const VIA = { shm: "shared memory", tcp: "TCP", tls: "TLS" };

function updateRank(row, rank, history) {
  const cells = row.cells;
  say(cells[0].firstChild, String(rank.rank));
  say(cells[0].lastChild, rank.world_size > 1 ? " of " + rank.world_size : "");
  say(cells[1], whole.format(rank.epoch));
  cells[2].querySelector(".progress i").style.width = (100 * rank.step / Math.max(1, rank.steps)).toFixed(1) + "%";
  say(cells[2].children[1], whole.format(rank.step));
  say(cells[2].lastChild, " / " + whole.format(rank.steps));
  say(cells[3], perSecond(rank.images_per_s));
  const line = cells[4].firstChild;
  draw(line, rank.history, shown(history));
  note(line, "aria-label", "Images a second of rank " + rank.rank + " in the last minutes");
  say(cells[5], rank.lag_batches ? whole.format(rank.lag_batches) : "–");
  cells[5].classList.toggle("alarm", rank.lag_batches > 8);
  say(cells[6], percent(rank.waits));
  cells[6].classList.toggle("alarm", rank.waits >= 0.05);
  say(cells[7], whole.format(rank.ready_batches));
  const several = rank.connections > 1 ? " × " + rank.connections : "";
  say(cells[8], (VIA[rank.transport] || rank.transport) + several);
  say(cells[9], rank.peer);
}

function quietNode(served) {
  const row = el("section", "panel quiet");
  row.setAttribute("aria-label", served.name);
  row.append(el("h2", "name", served.name), el("span", "badge"), el("p", "aside"));
  return row;
}

function showServed(status) {
  const isBusy = (served) => served.ranks.length > 0;
  const busy = status.served.filter(isBusy);
  // Those with trainers first. A dataset that is only there for its jobs needs no room of its own.
  const ofJobs = new Set(status.served.map((served) => served.dataset).filter(Boolean));
  const quiet = status.served.filter((served) => !isBusy(served) && !(ofJobs.has(served.name) && served.totals.streams === 0));
  const key = (served) => (isBusy(served) ? "busy " : "quiet ") + served.name;
  const make = (served) => (isBusy(served) ? cardNode(served) : quietNode(served));
  each($("served"), [...busy, ...quiet], key, make, (node, served) => {
    if (isBusy(served)) {
      updateCard(node, served, status.history, busy.length === 1);
      return;
    }
    say(node.querySelector(".badge"), served.dataset ? "job of " + served.dataset : served.kind);
    const images = served.totals.images;
    say(node.querySelector(".aside"), images ? "no trainer now; " + counted(images, "image", "images") + " sent so far" : "no trainer so far");
  });
}

// Several servers.

function serverNode({ server, url }) {
  const row = el("tr");
  const name = el("th");
  name.scope = "row";
  const link = el("a", "", server);
  link.href = url;
  name.append(link);
  row.append(name, ...["", "right", "rare", "right rare", "right rare", "right rare", "rare", "rare"].map((className) => el("td", className)));
  row.cells[3].append(lineNode());
  return row;
}

function showServers({ servers, history }) {
  document.body.classList.toggle("several", Boolean(servers));
  $("servers-panel").hidden = !servers;
  if (!servers) return;
  say($("host"), counted(servers.length, "server", "servers"));
  say($("process-title"), "Processes");
  each($("servers"), servers, (one) => one.server, serverNode, (row, { server, report, waits }) => {
    const cells = row.cells;
    const serves = report ? report.served.filter((served) => served.ranks.length).map((served) => served.name) : [];
    const texts = [
      report ? report.state : "no answer", report && perSecond(report.now.images_per_s), null,
      report && bytes(report.now.payload_bytes_per_s) + "/s", report && whole.format(report.connections.streams),
      report && percent(waits), report && report.bottleneck.bound, report && (serves.join(", ") || "–"),
    ];
    texts.forEach((text, at) => at === 2 || say(cells[at + 1], text || "–"));
    cells[1].classList.toggle("alarm", !report || report.state !== "serving");
    note(cells[8], "title", serves.join(", "));
    draw(cells[3].firstChild, report ? report.history.images_per_s : [], shown(history));
    note(cells[3].firstChild, "aria-label", "Images a second of " + server + " in the last minutes");
  });
  const silent = servers.filter((one) => one.error);
  $("silent").hidden = !silent.length;
  each($("silent").querySelector("ul"), silent, (one) => one.server, () => el("li"), (item, one) => {
    say(item, "for " + lasting(one.silent_s) + ": " + one.error);
  });
}

// Pairs of names and values.

function pairs(list, rows) {
  const items = rows.flatMap(([name, value, alarm]) => [["dt", name, name, false], ["dd", name, value, alarm]]);
  each(list, items, (item) => item[0] + item[1], (item) => el(item[0]), (node, item) => {
    say(node, item[2]);
    node.classList.toggle("alarm", Boolean(item[3]));
  });
}

function showConnections({ connections }) {
  pairs($("connections"), [
    ["Open", whole.format(connections.open) + " of " + whole.format(connections.limit), connections.open >= connections.limit],
    ["Taken so far", whole.format(connections.accepted)],
    ["Beyond the limit", whole.format(connections.refused), connections.refused > 0],
    ["No good token", whole.format(connections.unauthorized), connections.unauthorized > 0],
    ["Ended badly", whole.format(connections.failed), connections.failed > 0],
  ]);
}

function showProcess({ process, totals }) {
  pairs($("process"), [
    ["Memory", bytes(process.resident_bytes)],
    ["Threads", whole.format(process.threads)],
    ["Open files", whole.format(process.open_files), process.max_files > 0 && process.open_files > 0.8 * process.max_files],
    ["Images sent", whole.format(totals.images)],
    ["Bytes sent", bytes(totals.payload_bytes)],
  ]);
}

function partNode() {
  const part = el("div", "part");
  part.append(el("h3"), el("div", "fill"), el("dl", "pairs"));
  part.querySelector(".fill").append(el("i"));
  return part;
}

function showCache({ cache }) {
  $("cache-panel").hidden = !cache;
  if (!cache) return;
  const all = { tier: "", text: "Hits" };
  each($("cache"), [all, ...cache.tiers], (tier) => tier.tier, partNode, (part, tier) => {
    const fill = part.querySelector(".fill i");
    if (tier === all) {
      say(part.querySelector("h3"), percent(cache.hit_rate) + " of bytes from the cache");
      fill.style.width = (100 * cache.hit_rate).toFixed(1) + "%";
      pairs(part.querySelector("dl"), [
        ["From the cache", bytes(cache.hit_bytes)],
        ["Missed", bytes(cache.miss_bytes)],
        ["Fetched", bytes(cache.fetched_bytes)],
        ...cache.warnings.map((text, i) => ["Warning " + (i + 1), text, true]),
      ]);
      return;
    }
    say(part.querySelector("h3"), (tier.tier === "disk" ? "On disk: " : "In memory: ") + bytes(tier.used_bytes) + " of " + bytes(tier.limit_bytes));
    fill.style.width = (100 * tier.used_bytes / Math.max(1, tier.limit_bytes)).toFixed(1) + "%";
    pairs(part.querySelector("dl"), [
      ["Made room", whole.format(tier.evictions)],
      ["Damaged", whole.format(tier.damaged), tier.damaged > 0],
    ]);
  });
}

function showStores({ stores }) {
  $("stores-panel").hidden = stores.length === 0;
  each($("stores"), stores, (store) => store.store, partNode, (part, store) => {
    part.querySelector(".fill").hidden = true;
    say(part.querySelector("h3"), store.store);
    pairs(part.querySelector("dl"), [
      ["Read", bytes(store.read_bytes)],
      ["First byte, half", millis(store.first_byte_p50_s)],
      ["First byte, 95 %", millis(store.first_byte_p95_s)],
      ["Under way", whole.format(store.in_flight) + " of " + whole.format(store.limit)],
      ["Requests", whole.format(store.requests)],
      ["Tried again", whole.format(store.retries)],
      ["Slowed down", whole.format(store.throttles), store.throttles > 0],
      ["Asked twice", whole.format(store.hedges)],
      ["Given up", whole.format(store.failures), store.failures > 0],
      ["Cost so far", store.price],
      ["Cost an hour", dollars(store.region_dollars_per_hour) + " in the region, "
        + dollars(store.internet_dollars_per_hour) + " over the internet"],
    ]);
  });
}

const dollars = (amount) => "$" + amount.toFixed(amount >= 1 ? 2 : 4);

function showEvents({ events }) {
  const items = events.length ? events.slice(0, 60) : [{ number: 0, text: "Nothing yet" }];
  each($("events"), items, (event) => event.number, (event) => {
    const item = el("li", event.trouble ? "bad" : "");
    const at = el("time");
    if (event.time_s) {
      const date = new Date(event.time_s * 1000);
      at.dateTime = date.toISOString();
      at.title = date.toLocaleString();
      at.textContent = clock(date);
    }
    const dot = el("span", "dot");
    const text = el("span", "text");
    if (event.trouble) text.append(el("span", "unseen", "Trouble: "));
    text.append(event.text);
    item.append(at, dot, text);
    return item;
  }, () => {});
}

// Pictures of what is sent.

let asked = 0;
let asking = false;
let inSight = true;
let chosen = "";

function showGallery(status) {
  const previews = $("previews");
  previews.hidden = !status.images;
  if (!status.images) return;
  const names = status.served.filter((served) => served.ranks.length > 0).map((served) => served.name);
  if (!names.includes(chosen)) chosen = names[0] || "";
  $("picker").hidden = names.length < 2;
  const pick = $("pick");
  each(pick, names, (name) => name, (name) => el("option", "", name), () => {});
  if (pick.value !== chosen) pick.value = chosen;
  if (!chosen) {
    say($("previews-note"), "the first samples of a batch appear here once a trainer is connected");
    return;
  }
  const now = Date.now();
  if (inSight && !asking && now - asked >= PICTURES_MS) {
    asked = now;
    asking = true;
    askForPictures(chosen).finally(() => { asking = false; });
  }
}

async function askForPictures(name) {
  try {
    const answer = await fetch("api/images?name=" + encodeURIComponent(name), { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) return;
    const shot = await answer.json();
    if (name !== chosen) return;
    if (shot.number === 0) {
      // The next batch will be there soon.
      asked = 0;
      return;
    }
    showPictures(shot.images);
    say($("previews-note"), "epoch " + whole.format(shot.epoch) + ", step " + whole.format(shot.step) + ", rank " + shot.rank + ", " + clock(new Date(shot.time_s * 1000)));
  } catch {
    // The status says what is the matter.
  }
}

function showPictures(images) {
  const slots = Array.from({ length: Math.max(PICTURES, images.length) }, (_, i) => i);
  each($("pictures"), slots, (i) => i, () => {
    const item = el("li");
    const figure = el("figure");
    const frame = el("div", "frame");
    figure.append(frame, el("figcaption", "", "\u00a0"));
    item.append(figure);
    return item;
  }, (item, i) => {
    const image = images[i];
    const frame = item.querySelector(".frame");
    item.hidden = !image && i >= PICTURES;
    // A small batch leaves room, so that nothing moves when a larger one comes.
    item.classList.toggle("absent", !image && images.length > 0);
    if (!image) {
      if (images.length) frame.replaceChildren();
      return;
    }
    item.classList.toggle("bad", image.failed);
    const label = "label " + image.label;
    const what = image.failed ? "replaced" : image.padding ? "padding" : image.class || label;
    say(item.querySelector("figcaption"), what);
    note(item, "title", "sample " + whole.format(image.sample) + ", " + label + (image.class ? " (" + image.class + ")" : "") + (image.failed ? ", replaced" : "") + (image.padding ? ", padding" : ""));
    if (!image.src || !image.src.startsWith("data:image/jpeg;base64,")) {
      frame.textContent = "no image";
      return;
    }
    let picture = frame.querySelector("img");
    if (!picture) {
      picture = el("img");
      picture.decoding = "async";
      frame.replaceChildren(picture);
    }
    picture.alt = "Sample " + image.sample + ", " + what;
    if (picture.src !== image.src) picture.src = image.src;
  });
}

// The whole page, and whether there is anybody to ask.

let seen = 0;
let started = 0;
let status = null;

function state(name, text) {
  note($("state"), "data-state", name);
  say($("state-text"), text);
  document.body.classList.toggle("lost", name === "lost");
}

function show(now) {
  if (now.format !== FORMAT) {
    // Another version of the server is there: its own page knows what it says.
    if (started) location.reload();
    throw new Error("format " + now.format);
  }
  if (started && Math.abs(now.started_s - started) > 2) {
    for (const id of ["events", "served", "strip", "pictures"]) {
      $(id).known?.clear();
      $(id).replaceChildren();
    }
    showPictures([]);
  }
  started = now.started_s;
  status = now;
  seen = Date.now();
  document.body.classList.remove("waiting");
  const lost = now.servers && now.servers.every((one) => one.error);
  state(lost ? "lost" : now.state === "serving" ? "serving" : "stopping", now.state);
  say($("version"), now.version && "version " + now.version);
  say($("uptime"), now.started_s ? "up " + lasting(now.time_s - now.started_s) : "");
  showBottleneck(now);
  showWay(now);
  showServers(now);
  showServed(now);
  showGallery(now);
  showConnections(now);
  showProcess(now);
  showCache(now);
  showStores(now);
  showEvents(now);
  document.title = (now.connections.streams ? perSecond(now.now.images_per_s) + " images/s · " : "") + "Forebay";
}

function miss() {
  const silence = Date.now() - (seen || begun);
  if (silence < LOST_AFTER_MS) return;
  state("lost", seen ? "connection lost since " + clock(new Date(seen)) : "no answer");
  document.title = "connection lost · Forebay";
}

const begun = Date.now();

async function poll() {
  try {
    const answer = await fetch("api/status", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
    if (!answer.ok) throw new Error("status " + answer.status);
    show(await answer.json());
  } catch {
    miss();
  }
  clearTimeout(next);
  next = setTimeout(poll, document.hidden ? HIDDEN_MS : PERIOD_MS);
}

let next = 0;
say($("host"), location.host);
showPictures([]);
$("pick").addEventListener("change", (event) => {
  chosen = event.target.value;
  asked = 0;
  if (status) showGallery(status);
});
$("only-trouble").addEventListener("change", (event) => $("events").classList.toggle("only-trouble", event.target.checked));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) {
    clearTimeout(next);
    poll();
  }
});
new IntersectionObserver((entries) => { inSight = entries[0].isIntersecting; }).observe($("previews"));
poll();
