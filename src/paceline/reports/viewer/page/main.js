"use strict";
// From the index to the list; what keys, fields and addresses do.

const page = { columns: null, version: "" };
const POLL = 5000; // ms between two looks at a run that goes on

async function loadIndex() {
  const index = await documentNamed("index");
  page.columns = makeColumns(index);
  page.version = index.version;
  byId("run").textContent = index.run;
  document.title = `${index.run} \u00b7 rollouts`;
  showEnding(index.ending);
  fillControls(page.columns);
  fillHelp(page.columns);
  apply({ keep: true });
  if (!index.finished && !fromFiles) setTimeout(lookForNewer, POLL);
}

// how a run ended that did not finish
function showEnding(ending) {
  const box = byId("ending");
  box.hidden = ending === null;
  if (ending === null) return;
  const facts = [
    ending.time ? new Date(1000 * ending.time).toLocaleString() : null, ending.step === null ? null : `after step ${ending.step}`,
    ending.status === null ? null : `exit status ${ending.status}`, ending.resume === null ? null : `to go on: ${ending.resume.replaceAll("`", "")}`,
  ].filter((fact) => fact !== null);
  box.replaceChildren(element("p", {}, element("b", {}, ending.sentence)), element("p", { class: "note" }, facts.join(", ")),
    ...(ending.traceback === null ? [] : [folded("where", ending.traceback)]));
}

function apply({ keep = false } = {}) {
  const columns = page.columns, order = byId("order").value, text = byId("search").value.trim();
  const rows = matching(columns, wantedRows());
  stopSearch();
  if (text === "") {
    setRows(columns, ordered(columns, rows, order), { keep });
    say(`${rows.length.toLocaleString("en")} of ${counted(columns.count, "completion")}`);
    return;
  }
  say(`searching ${counted(rows.length, "completion")}\u2026`);
  searchTexts(columns, rows, text, (found, asked, failures, isEnd) => {
    setRows(columns, ordered(columns, Int32Array.from(found).sort(), order), { keep: true });
    const where = isEnd ? `${rows.length.toLocaleString("en")} searched` : `${asked.toLocaleString("en")} of ${rows.length.toLocaleString("en")} searched`;
    say(`${found.length.toLocaleString("en")} with this text, ${where}${failures ? `, ${failures} could not be read` : ""}`);
  });
}

function say(sentence) {
  const unreadable = page.columns.unreadable;
  byId("count").textContent = sentence + (unreadable ? `; ${counted(unreadable, "line")} of its files could not be read` : "");
}

async function lookForNewer() {
  try {
    const state = await documentNamed("state");
    forgetState();
    if (state.version !== page.version) byId("newer").hidden = false;
    else if (!state.finished) setTimeout(lookForNewer, POLL);
  } catch (error) {
    byId("count").textContent = "The server has ended; start `paceline rollouts` again.";
  }
}

function forgetState() {
  kept.delete("state");
}

function openGroup(row) {
  showGroup(page.columns, row);
  if (matchMedia("(max-width: 900px)").matches) byId("detail").focus();
}

function closeGroup() {
  detail.row = -1;
  byId("detail").hidden = true;
  document.body.classList.remove("open");
  history.replaceState(null, "", location.pathname + location.search);
  byId("list").focus();
  drawRows();
}

function openFromAddress() {
  const [key, group, sample] = location.hash.slice(1).split("/"), columns = page.columns;
  const number = columns.parts.findIndex((part) => part.key === key);
  if (number < 0 || !(Number(group) < columns.parts[number].groups)) return;
  const row = columns.groupStart[columns.partGroup[number] + Number(group)] + Number(sample || 0);
  if (!(row < columns.count)) return;
  byId("set").value = columns.parts[number].set;
  apply();
  const at = list.rows.indexOf(row);
  if (at >= 0) moveTo(at);
  openGroup(row);
}

function nextColour() {
  const choice = byId("colour");
  if (!choice) return;
  const there = [...choice.options].filter((option) => !option.disabled);
  const at = there.findIndex((option) => option.value === choice.value);
  choice.value = there[(at + 1) % there.length].value;
  choice.dispatchEvent(new Event("change"));
}

const ACTIONS = {
  j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
  Home: () => moveTo(0), End: () => moveTo(list.rows.length - 1),
  Enter: () => moveTo(list.at, { open: true }),
  Escape: () => closeGroup(),
  "/": () => { byId("more").open = true; byId("search").focus(); },
  "?": () => byId("help").showModal(),
  c: nextColour,
};

function step(by) {
  moveTo(list.at + by, { open: !byId("detail").hidden });
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const field = event.target.closest("input, select, textarea, button, summary");
  if (field) {
    if (event.key === "Escape" || (event.key === "Enter" && field.id === "search")) {
      event.preventDefault();
      byId("list").focus();
    }
    return;
  }
  const act = ACTIONS[event.key];
  if (!act || (event.key.startsWith("Arrow") && event.target.closest("#detail"))) return;
  event.preventDefault();
  act();
}

function begin() {
  beginList(openGroup);
  detail.close = closeGroup;
  detail.move = step;
  document.addEventListener("keydown", onKey);
  let typed = 0;
  byId("filters").addEventListener("input", (event) => {
    clearTimeout(typed);
    typed = setTimeout(apply, event.target.matches("select") ? 0 : 150);
  });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("filters").addEventListener("reset", () => setTimeout(apply, 0));
  byId("keys").addEventListener("click", () => byId("help").showModal());
  byId("newer").addEventListener("click", () => {
    byId("newer").hidden = true;
    forgetDocuments();
    forgetLines();
    loadIndex();
  });
  if (matchMedia("(max-width: 900px)").matches) byId("more").open = false;
  loadIndex().then(() => {
    byId("list").focus();
    openFromAddress();
    document.documentElement.dataset.ready = "true";
  }, (error) => { byId("count").textContent = `The run could not be loaded: ${error.message}`; });
}

begin();
