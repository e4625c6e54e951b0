"use strict";
// Shows the records of a source. All text of the dataset goes into text nodes and attributes: none of it is markup. Pictures
// are made by the program, so no bytes of the dataset reach the browser's decoders.

const PAGE = 200; // records in a request
const MAX_PAGES = 40; // pages that are kept
const MAX_HEIGHT = 8e6; // browsers limit the height of an element; longer lists are scaled
const CAPTION = 40; // height of the captions of a tile
const IMAGES = 4; // pictures that are requested at once
const SETTLE_MS = 90; // pictures are requested once scrolling has slowed down
const POLL_MS = 1000;
const SMALL = 320; // smaller pictures are enlarged

// The bits of `reasons`, the worst one first.
const REASONS = [
  ["not readable", "it cannot be read or decoded"],
  ["box", "a box is empty or outside of the image"],
  ["look-alike", "it looks like another sample"],
  ["small class", "its class has few samples"],
];
const BROKEN = 1;
const HUES = ["#ff6b6b", "#4dabf7", "#51cf66", "#ffd43b", "#da77f2", "#ff922b", "#22b8cf", "#f06595"];

const $ = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");

function el(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function bytes(n) {
  if (n < 1024) return `${n} B`;
  let unit = -1;
  while (n >= 1024 && unit < 3) {
    n /= 1024;
    unit += 1;
  }
  return `${n < 10 ? n.toFixed(1) : Math.round(n)} ${["KiB", "MiB", "GiB", "TiB"][unit]}`;
}

async function ask(path, options) {
  const response = await fetch(path, options);
  if (!response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
  return response.json();
}

const reasonsOf = (bits) => REASONS.filter((_, bit) => bits & (1 << bit));

let summary = null;
let query = new URLSearchParams();
let generation = 0; // counts changes of the query: answers to earlier ones are dropped
let total = 0;
let chosenClass = null;
let active = 0; // position of the active tile
const pages = new Map();
const picked = new Map(); // number of a record -> its row

// ---- pages of records

function rowAt(at) {
  const page = pages.get(Math.floor(at / PAGE));
  return page && page.rows ? page.rows[at % PAGE] : undefined;
}

function wantPage(number) {
  const known = pages.get(number);
  if (known) {
    pages.delete(number);
    pages.set(number, known); // the last one used is kept longest
    return known.promise;
  }
  const page = { rows: null };
  pages.set(number, page);
  for (const old of pages.keys()) {
    if (pages.size <= MAX_PAGES) break;
    pages.delete(old);
  }
  const of = generation;
  page.promise = ask(`api/records?${query}&offset=${number * PAGE}&limit=${PAGE}`).then((answer) => {
    if (of !== generation) return;
    page.rows = answer.records;
    schedule();
  }, (error) => {
    if (of !== generation) return;
    pages.delete(number);
    fail(error);
  });
  return page.promise;
}

function fail(error) {
  const node = $("error");
  node.hidden = !error;
  say(node, error ? error.message : "");
}

function readQuery() {
  const next = new URLSearchParams();
  const put = (name, value) => value !== "" && value !== null && next.set(name, value);
  put("split", $("split").value);
  put("class", chosenClass);
  put("key", $("key").value);
  if ($("value").value) {
    put("column", $("column").value);
    put("value", $("value").value);
  }
  if ($("only").value !== "0") put("reasons", $("only").value);
  if ($("sort").value !== "number") put("sort", $("sort").value);
  if ($("descending").checked) put("descending", "true");
  return next;
}

async function search() {
  query = readQuery();
  generation += 1;
  const of = generation;
  try {
    const answer = await ask(`api/records?${query}&offset=0&limit=${PAGE}&again=true`);
    if (of !== generation) return;
    fail(null);
    pages.clear();
    pages.set(0, { rows: answer.records, promise: Promise.resolve() });
    total = answer.total;
    active = 0;
    $("refresh").hidden = true;
    scroller.reset();
    for (const node of tiles.values()) node.remove();
    tiles.clear();
    sayCount();
    layout();
    histograms(of);
  } catch (error) {
    if (of === generation) fail(error);
  }
}

function sayCount() {
  const all = summary ? summary.records : total;
  const shown = total === all ? `${whole.format(total)} samples` : `${whole.format(total)} of ${whole.format(all)} samples`;
  say($("count"), picked.size ? `${shown}, ${whole.format(picked.size)} picked` : shown);
}

// ---- the grid

const grid = $("grid");
const spacer = $("spacer");
const tiles = new Map(); // position -> node
const shape = { columns: 1, width: 160, height: 160 + CAPTION, rows: 0 };

// The place in the list, in pixels. Small steps of the scroll bar move it pixel by pixel; large ones in proportion, since the
// bar of a very long list is shorter than the list.
const scroller = {
  at: 0,
  bar: 0,
  get view() { return grid.clientHeight; },
  get length() { return shape.rows * shape.height; },
  get room() { return Math.max(0, this.length - this.view); },
  get barRoom() { return Math.max(0, Math.min(this.length, MAX_HEIGHT) - this.view); },
  reset() {
    this.at = 0;
    this.anchor();
  },
  moved() {
    const bar = grid.scrollTop;
    const step = bar - this.bar;
    this.bar = bar;
    if (this.room <= this.barRoom) this.at = bar;
    else if (bar <= 0) this.at = 0;
    else if (bar >= this.barRoom - 1) this.at = this.room;
    else if (Math.abs(step) < 2 * this.view) this.at += step;
    else this.at = (bar / this.barRoom) * this.room;
    this.at = Math.min(this.room, Math.max(0, this.at));
  },
  // Puts the bar where the place is.
  anchor() {
    const bar = this.room <= this.barRoom ? this.at : (this.at / this.room) * this.barRoom;
    grid.scrollTop = bar;
    this.bar = grid.scrollTop;
  },
  to(at) {
    this.at = Math.min(this.room, Math.max(0, at));
    this.anchor();
    schedule();
  },
};

function layout() {
  const side = Number($("tile-size").value);
  const inner = grid.clientWidth - 20;
  const first = Math.floor(scroller.at / shape.height) * shape.columns;
  shape.columns = Math.max(1, Math.floor(inner / side));
  shape.width = Math.floor(inner / shape.columns);
  shape.height = shape.width + CAPTION;
  shape.rows = Math.ceil(total / shape.columns);
  spacer.style.height = `${Math.min(scroller.length, MAX_HEIGHT)}px`;
  scroller.to(Math.floor(first / shape.columns) * shape.height);
}

let scheduled = false;
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    draw();
  });
}

let settled = 0;
grid.addEventListener("scroll", () => {
  if (grid.scrollTop === scroller.bar) return;
  scroller.moved();
  schedule();
  clearTimeout(settled);
  settled = setTimeout(() => {
    settled = 0;
    scroller.anchor();
    draw();
  }, SETTLE_MS);
});

function draw() {
  const top = scroller.at;
  const firstRow = Math.max(0, Math.floor(top / shape.height) - 1);
  const lastRow = Math.min(shape.rows, Math.ceil((top + scroller.view) / shape.height) + 1);
  const first = firstRow * shape.columns;
  const last = Math.min(total, lastRow * shape.columns);
  for (const [at, node] of tiles) {
    if (at < first || at >= last) {
      drop(node);
      tiles.delete(at);
    }
  }
  for (let at = first; at < last; at += 1) {
    let node = tiles.get(at);
    if (!node) {
      node = tile(at);
      tiles.set(at, node);
      grid.append(node);
    }
    const x = 10 + (at % shape.columns) * shape.width;
    const y = grid.scrollTop + Math.floor(at / shape.columns) * shape.height - top;
    node.style.transform = `translate(${x}px, ${y}px)`;
    node.style.width = `${shape.width}px`;
    node.style.height = `${shape.height}px`;
    node.thumb.style.height = `${shape.width - 8}px`;
    fill(node, at);
  }
  if (!settled) {
    for (let page = Math.floor(first / PAGE); page * PAGE < last; page += 1) wantPage(page);
    pump();
  }
  grid.setAttribute("aria-activedescendant", tiles.has(active) ? `tile-${active}` : "");
}

function tile(at) {
  const node = el("div", "tile");
  node.id = `tile-${at}`;
  node.setAttribute("role", "option");
  node.setAttribute("aria-posinset", at + 1);
  node.at = at;
  node.thumb = el("div", "thumb");
  node.title_ = el("div", "title");
  node.sub = el("div", "sub");
  node.append(node.thumb, node.title_, node.sub);
  return node;
}

function drop(node) {
  if (node.image) node.image.removeAttribute("src");
  node.remove();
}

function sizeOf(row) {
  return row.size && row.size[0] ? `${row.size[0]} × ${row.size[1]}` : "";
}

function fill(node, at) {
  const row = rowAt(at);
  node.classList.toggle("active", at === active);
  node.setAttribute("aria-setsize", total);
  node.setAttribute("aria-selected", row !== undefined && picked.has(row.number));
  if (!row || node.row === row) return;
  node.row = row;
  const title = row.class !== null ? row.class : row.key || `record ${row.number}`;
  say(node.title_, title);
  say(node.sub, [row.class !== null ? row.key : "", bytes(row.bytes)].filter(Boolean).join(" · "));
  const reasons = reasonsOf(row.reasons);
  node.setAttribute("aria-label", [title, row.key, sizeOf(row), ...reasons.map(([, told]) => told)].filter(Boolean).join(", "));
  const flags = reasonsOf(row.reasons & ~BROKEN).map(([name]) => name).join(", ");
  if (flags) node.thumb.append(el("span", "flag", flags));
}

// Pictures of visible tiles, the first ones first, a few at a time.
let loading = 0;
function pump() {
  if (!summary) return;
  const open = [...tiles.values()].filter((node) => node.row && !node.image);
  open.sort((a, b) => a.at - b.at);
  for (const node of open) {
    if (node.row.reasons & BROKEN) {
      node.image = el("span", "failed", "not readable");
      node.thumb.prepend(node.image);
      continue;
    }
    if (loading >= IMAGES) return;
    loading += 1;
    const image = el("img");
    image.alt = "";
    image.decoding = "async";
    node.image = image;
    let over = false;
    const done = (failed) => {
      if (over) return;
      over = true;
      clearInterval(watch);
      loading -= 1;
      if (failed && node.isConnected) {
        image.remove();
        node.thumb.prepend(el("span", "failed", "not readable"));
      }
      if (!settled) pump();
    };
    // A tile that has scrolled away gives its turn to another.
    const watch = setInterval(() => node.isConnected || done(false), 50);
    image.onload = () => done(false);
    image.onerror = () => done(true);
    const side = Math.min(512, Math.ceil((shape.width * Math.min(2, devicePixelRatio)) / 64) * 64);
    image.src = `picture/thumbnail?number=${node.row.number}&side=${side}&session=${summary.session}`;
    node.thumb.prepend(image);
  }
}

function activate(at) {
  if (!total) return;
  active = Math.min(total - 1, Math.max(0, at));
  const top = Math.floor(active / shape.columns) * shape.height;
  if (top < scroller.at) scroller.to(top);
  else if (top + shape.height > scroller.at + scroller.view) scroller.to(top + shape.height - scroller.view);
  draw();
}

function togglePick(row) {
  if (!row) return;
  if (picked.has(row.number)) picked.delete(row.number);
  else picked.set(row.number, row);
  sayCount();
  draw();
}

grid.addEventListener("keydown", (event) => {
  const page = Math.max(1, Math.floor(scroller.view / shape.height)) * shape.columns;
  const steps = {
    ArrowLeft: -1, ArrowRight: 1, ArrowUp: -shape.columns, ArrowDown: shape.columns, PageUp: -page, PageDown: page, Home: -total, End: total,
  };
  if (event.key in steps) activate(active + steps[event.key]);
  else if (event.key === "Enter") show(active);
  else if (event.key === " ") togglePick(rowAt(active));
  else return;
  event.preventDefault();
});
grid.addEventListener("click", (event) => {
  const node = event.target.closest(".tile");
  if (!node) return;
  activate(node.at);
  if (event.ctrlKey || event.metaKey || event.shiftKey) togglePick(node.row);
  else show(node.at);
});
new ResizeObserver(() => layout()).observe(grid);
$("tile-size").addEventListener("input", layout);

// ---- filters

let typing = 0;
for (const id of ["split", "sort", "descending", "only", "column"]) $(id).addEventListener("change", search);
for (const id of ["key", "value"]) {
  $(id).addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(search, 250);
  });
}
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("refresh").addEventListener("click", () => describe().then(search));
$("class-name").addEventListener("input", classes);

function choices(select, items) {
  const before = select.value;
  select.replaceChildren(...items.map(([value, text]) => {
    const option = el("option", "", text);
    option.value = value;
    return option;
  }));
  if (items.some(([value]) => value === before)) select.value = before;
}

// Where samples have no labels, classes are those of their boxes.
const areOfBoxes = () => summary.boxes !== null && !summary.classes.some((one) => one.records);

function classes() {
  const ofBoxes = areOfBoxes();
  const isChosen = (one) => (ofBoxes ? $("column").value === summary.boxes && $("value").value === one.title : chosenClass === one.label);
  const part = $("class-name").value.toLowerCase();
  const found = summary.classes.filter((one) => one.title.toLowerCase().includes(part));
  const shown = found.slice(0, 200);
  $("classes").replaceChildren(...shown.map((one) => {
    const button = el("button");
    button.type = "button";
    button.setAttribute("aria-pressed", isChosen(one));
    button.append(el("span", "name", one.title), el("span", "number", whole.format(ofBoxes ? one.boxes : one.records)));
    button.addEventListener("click", () => {
      const isNew = !isChosen(one);
      if (ofBoxes) {
        $("column").value = summary.boxes;
        $("value").value = isNew ? one.title : "";
      } else {
        chosenClass = isNew ? one.label : null;
      }
      for (const other of $("classes").querySelectorAll("button")) other.setAttribute("aria-pressed", other === button && isNew);
      search();
    });
    const item = el("li");
    item.append(button);
    return item;
  }));
  const more = found.length - shown.length;
  say($("classes-more"), more > 0 ? `${whole.format(more)} more: type a part of the name` : "");
}

function bars(node, counts, name, label) {
  const most = Math.max(1, ...counts);
  node.replaceChildren(...counts.map((count, at) => {
    const bar = el("i");
    bar.style.height = `${count ? Math.max(4, (count / most) * 100) : 0}%`;
    bar.title = `${name(at)}: ${whole.format(count)}`;
    return bar;
  }));
  const told = counts.map((count, at) => (count ? `${name(at)}: ${whole.format(count)}` : "")).filter(Boolean);
  node.setAttribute("aria-label", `${label}. ${told.join("; ") || "nothing is known yet"}`);
}

// The part of a histogram between the first and the last bar.
function trimmed(counts) {
  const first = counts.findIndex((count) => count);
  if (first < 0) return [0, []];
  const last = counts.findLastIndex((count) => count);
  return [first, counts.slice(first, last + 1)];
}

async function histograms(of) {
  const answer = await ask(`api/histograms?${query}`);
  if (of !== generation) return;
  const sizes = (kind, text) => {
    const [first, counts] = trimmed(answer[kind]);
    const from = (at) => text(2 ** Math.max(0, first + at - 1));
    bars($(`${kind}-bars`), counts, (at) => `from ${from(at)}`, kind);
    const ends = counts.length ? [from(0), text(2 ** (first + counts.length - 1))] : [];
    $(`${kind}-ends`).replaceChildren(...ends.map((end) => el("span", "", end)));
  };
  sizes("bytes", bytes);
  sizes("pixels", (n) => (n < 1e6 ? whole.format(n) : `${(n / 1e6).toFixed(1)} M`));
  bars($("aspect-bars"), answer.aspects, (at) => `${(2 ** ((at - 8) / 4)).toFixed(2)} : 1`, "width by height");
  say($("unknown"), answer.unknown ? `Size not known: ${whole.format(answer.unknown)}` : "");
}

// ---- the source and the scan

async function describe() {
  summary = await ask("api/summary");
  document.title = `${summary.title} · Forebay view`;
  say($("source"), `${summary.title} · ${summary.kind}`);
  $("source").title = summary.title;
  const splits = summary.splits.map((split) => [split.name, `${split.name || "all"} (${whole.format(split.records)})`]);
  choices($("split"), splits.length > 1 ? [["", "all splits"], ...splits] : [["", splits.length ? splits[0][1] : "none"]]);
  choices($("column"), summary.columns.map((name) => [name, name]));
  $("column-filter").hidden = !summary.columns.length;
  $("classes-panel").hidden = !summary.classes.some((one) => one.records || one.boxes);
  say($("classes-title"), areOfBoxes() ? "Classes of boxes" : "Classes");
  classes();
  $("findings-panel").hidden = !summary.findings.length;
  $("findings").replaceChildren(...summary.findings.map((finding) => el("li", "", finding)));
  if (!$("options").value) $("options").value = JSON.stringify({ transform: "train", ...summary.loader });
  sayProgress(summary.progress);
  sayCount();
}

function sayProgress(progress) {
  const share = progress.records ? Math.floor((100 * progress.read) / progress.records) : 100;
  const done = progress.read >= progress.records;
  let text = "reading the index";
  if (progress.indexed) text = done ? "all records read" : `${share} % of the records read`;
  if (progress.indexed && progress.running && done) text = "comparing images";
  if (progress.texts_full) text += "; there is no room for further texts";
  if (progress.error) text = progress.error;
  say($("state"), text);
  const button = $("scan");
  button.hidden = !progress.indexed || done;
  say(button, progress.running ? "Stop reading" : "Read all records");
  button.run = !progress.running;
}

$("scan").addEventListener("click", async () => {
  sayProgress(await ask(`api/scan?run=${$("scan").run}`, { method: "POST", headers: { "x-forebay-view": "1" } }));
  if (!polling) poll();
});

let polling = false;
async function poll() {
  polling = true;
  let before = null;
  for (;;) {
    let progress;
    try {
      progress = await ask("api/progress");
    } catch {
      say($("state"), "the viewer has ended");
      break;
    }
    sayProgress(progress);
    const is = `${progress.indexed} ${progress.running}`;
    if (before !== null && before !== is) {
      await describe();
      if (scroller.at === 0 || !total) await search();
      else $("refresh").hidden = false;
    }
    if (progress.running) $("refresh").hidden = false;
    before = is;
    if (progress.indexed && !progress.running) break;
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
  polling = false;
}

// ---- one sample

const dialog = $("sample");
let shown = null;

async function show(at) {
  if (!total) return;
  activate(at);
  await wantPage(Math.floor(active / PAGE));
  const row = rowAt(active);
  if (row) showNumber(row.number, row);
}

async function showNumber(number, row) {
  if (!dialog.open) dialog.showModal();
  shown = { number, row };
  let record;
  try {
    record = await ask(`api/record?number=${number}`);
  } catch (error) {
    record = { number, key: "", columns: [], boxes: [], reasons: 0, errors: [error.message], alike: [], place: "" };
  }
  if (shown.number !== number) return;
  shown = { number, row: row || record, record };
  const title = [record.class, record.key].filter(Boolean).join(" · ") || `record ${number}`;
  say($("sample-title"), title);
  const flags = record.errors.length ? record.reasons & ~BROKEN : record.reasons;
  const reasons = [...record.errors, ...reasonsOf(flags).map(([, told]) => told)];
  $("reasons").replaceChildren(...reasons.map((reason) => el("li", "", reason)));
  const facts = [
    ["Key", record.key],
    ["Split", record.split ? `${record.split}, number ${whole.format(record.index)}` : `number ${whole.format(record.index ?? number)}`],
    ["Label", record.label !== null && record.label !== undefined ? `${record.label}${record.class ? ` (${record.class})` : ""}` : ""],
    ["Image", [record.format, sizeOf(record) && `${sizeOf(record)} pixels`, record.image_bytes && bytes(record.image_bytes)].filter(Boolean).join(", ")],
    ["Place", record.place],
  ];
  $("facts").replaceChildren(...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]));
  $("columns").replaceChildren(...record.columns.map((column) => {
    const line = el("tr");
    const name = el("th", "", column.name);
    name.scope = "row";
    name.title = column.type;
    line.append(name, el("td", "", column.value));
    return line;
  }));
  $("alike-panel").hidden = !record.alike.length;
  $("alike").replaceChildren(...record.alike.map((other) => {
    const button = el("button");
    button.type = "button";
    button.setAttribute("aria-label", `record ${other}`);
    const image = el("img");
    image.alt = "";
    image.src = `picture/thumbnail?number=${other}&side=128&session=${summary.session}`;
    button.append(image);
    button.addEventListener("click", () => showNumber(other, null));
    return button;
  }));
  $("boxes-label").hidden = !record.boxes.length;
  $("mask-label").hidden = !record.mask;
  $("objects-label").hidden = !record.mask && !record.boxes.length;
  $("pick").checked = picked.has(number);
  stored();
  trained();
}

// Loads a picture, and enlarges a small one by a whole factor; if it fails, shows why.
function load(image, note, path, alt) {
  image.alt = alt;
  image.onload = () => {
    note.hidden = true;
    image.hidden = false;
    const factor = Math.floor(SMALL / Math.max(image.naturalWidth, image.naturalHeight));
    image.style.width = factor > 1 ? `${factor * image.naturalWidth}px` : "";
    image.classList.toggle("enlarged", factor > 1);
  };
  image.onerror = async () => {
    const response = await fetch(path);
    if (response.ok || image.path !== path) return;
    image.hidden = true;
    note.hidden = false;
    say(note, await response.text());
  };
  image.path = path;
  image.src = path;
}

function stored() {
  const { number, record } = shown;
  const mask = record.mask && $("mask").checked;
  const name = record.class || record.key || `record ${number}`;
  load($("image"), $("image-error"), `picture/image?number=${number}&objects=${mask}&session=${summary.session}`, `Stored image of ${name}`);
  const overlay = $("overlay");
  const frame = overlay.parentElement;
  for (const tag of frame.querySelectorAll(".tag")) tag.remove();
  overlay.replaceChildren();
  if (!$("boxes").checked) return;
  overlay.setAttribute("viewBox", "0 0 1 1");
  for (const { sides, label, title } of record.boxes) {
    const [x0, y0, x1, y1] = sides.map((side) => Math.min(1, Math.max(0, Number.isFinite(side) ? side : 0)));
    const hue = HUES[((label % HUES.length) + HUES.length) % HUES.length];
    overlay.append(svg("rect", { x: x0, y: y0, width: Math.max(0, x1 - x0), height: Math.max(0, y1 - y0), stroke: hue }));
    const tag = el("span", "tag", title);
    tag.style.left = `${Math.min(90, 100 * x0)}%`;
    tag.style.top = `${Math.min(92, 100 * y0)}%`;
    frame.append(tag);
  }
}

let turning = 0;
function trained() {
  clearTimeout(turning);
  turning = setTimeout(() => {
    if (!shown || !shown.record) return;
    const asked = new URLSearchParams({
      number: shown.number, epoch: $("epoch").value, seed: $("seed").value, options: $("options").value,
      objects: $("objects").checked, session: summary.session,
    });
    load($("trained"), $("trained-error"), `picture/trained?${asked}`, `The sample of epoch ${$("epoch").value} with seed ${$("seed").value}`);
  }, 60);
}

for (const id of ["epoch", "seed"]) {
  $(id).addEventListener("input", () => {
    $(`${id}-value`).value = $(id).value;
    trained();
  });
}
$("options").addEventListener("input", trained);
$("objects").addEventListener("change", trained);
$("boxes").addEventListener("change", stored);
$("mask").addEventListener("change", stored);
$("pick").addEventListener("change", () => {
  const { number, row } = shown;
  if ($("pick").checked) picked.set(number, row);
  else picked.delete(number);
  sayCount();
  draw();
});
$("previous").addEventListener("click", () => show(active - 1));
$("next").addEventListener("click", () => show(active + 1));
$("close").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  shown = null;
  grid.focus();
});
dialog.addEventListener("keydown", (event) => {
  if (event.target.closest("input, textarea, select, .scrolls")) return;
  if (event.key === "ArrowLeft") show(active - 1);
  else if (event.key === "ArrowRight") show(active + 1);
});

// ---- lists

$("export").addEventListener("click", () => {
  const splits = {};
  for (const row of picked.values()) (splits[row.split] ||= []).push(row.index);
  for (const list of Object.values(splits)) list.sort((a, b) => a - b);
  const names = Object.keys(splits);
  $("picked").value = names.length === 1 ? JSON.stringify(splits[names[0]]) : JSON.stringify(splits);
  const mixed = summary.splits.length > 1 && !query.get("split");
  say($("export-filtered"), mixed
    ? "To write all samples that are shown, choose a split first: indices count within one."
    : `All ${whole.format(total)} samples that are shown:`);
  $("export-links").hidden = mixed;
  $("export-json").href = `api/export?${query}`;
  $("export-lines").href = `api/export?${query}&lines=true`;
  $("exporting").showModal();
});
$("exporting-close").addEventListener("click", () => $("exporting").close());
$("unpick").addEventListener("click", () => {
  picked.clear();
  $("picked").value = "{}";
  sayCount();
  draw();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, textarea, dialog")) return;
  event.preventDefault();
  $("side").open = true;
  $("key").focus();
});

if (matchMedia("(max-width: 900px)").matches) $("side").open = false;
describe().then(search).then(poll).catch(fail);
