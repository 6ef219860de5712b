"use strict";
// One group: its prompt, its completions side by side, why one was dropped, what is suspicious, and another step's.

const detail = { row: -1, quantity: QUANTITIES[1], close: () => {}, move: () => {} };

async function showGroup(columns, row) {
  detail.row = row;
  const group = columns.group[row], part = partOf(columns, row), number = columns.part[row];
  const box = byId("detail");
  box.hidden = false;
  document.body.classList.add("open");
  const first = columns.groupStart[group], rows = Array.from({ length: columns.groupStart[group + 1] - first }, (_, at) => first + at);
  history.replaceState(null, "", `#${part.key}/${group - columns.partGroup[number]}/${row - first}`);
  let texts, tokens;
  try {
    [texts, tokens] = await Promise.all([documentNamed(`texts-${part.key}`), documentNamed(`tokens-${part.key}`)]);
  } catch (error) {
    if (detail.row === row) box.replaceChildren(bar(columns, row, rows), element("p", { class: "note" }, String(error.message)));
    return;
  }
  if (detail.row !== row) return; // another one was opened in the meantime
  if (texts.completions.length !== part.rows) {
    box.replaceChildren(bar(columns, row, rows), element("p", { class: "note" }, "The run has written this step anew: reload the page."));
    return;
  }
  drawGroup(columns, row, rows, texts, tokens);
  const own = box.querySelector(".card.own");
  if (rows[0] === row) box.scrollTop = 0;
  else own.scrollIntoView({ block: "nearest" });
}

function drawGroup(columns, row, rows, texts, tokens) {
  const group = columns.group[row], base = columns.partRow[columns.part[row]];
  const task = group - columns.partGroup[columns.part[row]];
  const entries = rows.map((one) => (tokens.rows[one - base] ? tokens.rows[one - base] : null));
  const values = rows.map((one, at) => (entries[at] ? tokenValues(columns, one, entries[at]) : null));
  const there = values.filter((one) => one !== null);
  const most = detail.quantity.kind ? largest(there, detail.quantity.name) : 0;
  const isWhole = there.some((one) => one.ratio !== null);
  const readout = element("output", { id: "readout", "aria-live": "polite" }, "Point at a token, or go through them with the arrow keys.");
  const point = (pairs) => readout.replaceChildren(
    ...pairs.map(([name, value]) => element("span", {}, element("small", {}, name), " ", element("b", {}, value))));
  const cards = rows.map((one, at) => {
    const body = entries[at] === null
      ? element("pre", { tabindex: 0 }, texts.completions[one - base])
      : tokenText(entries[at], tokens.texts, values[at], { quantity: detail.quantity, most }, point);
    const episode = texts.episodes[one - base];
    const look = { quantity: detail.quantity, most }, isTrained = isTrainedOn(columns, one);
    const content = episode === null ? [body] : [
      conversation(episode, { isTrained, entry: entries[at], values: values[at], texts: tokens.texts, look, onPoint: point }), element("details", {}, element("summary", {}, "tokens"), body)];
    return card(columns, one, one === row, texts.notes[one - base], texts.versions[one - base], content, entries[at]);
  });
  byId("detail").replaceChildren(
    bar(columns, row, rows),
    element("section", { class: "task" },
      ...imagesOf(texts.images[task]),
      element("pre", { tabindex: 0 }, texts.prompts[task]),
      texts.answers[task] === null ? null : element("p", { class: "gold" }, "gold answer ", element("b", {}, texts.answers[task]))),
    ...colourControls(columns, row, there, most, isWhole, tokens, () => drawGroup(columns, row, rows, texts, tokens)),
    element("section", { class: "cards" }, ...cards),
    comparison(columns, row, texts.completions[row - base]),
    readout);
}

// small copies of the prompt's images, each asked for when its group is opened
function imagesOf(images) {
  if (!images.length) return [];
  return [element("div", { class: "images" }, ...images.map((image, at) => {
    const caption = element("figcaption", {}, `image ${at + 1}, ${counted(image.tokens, "token")}`);
    const figure = element("figure", {}, caption);
    const lacking = (why) => figure.prepend(element("p", { class: "note" }, why));
    documentNamed(image.name).then((copy) => {
      if (!copy.source) return lacking(copy.missing);
      caption.append(`, ${copy.width} \u00d7 ${copy.height}`);
      figure.prepend(element("img", { src: copy.source, alt: `image ${at + 1} of the prompt` }));
    }, (error) => lacking(String(error.message)));
    return figure;
  }))];
}

function bar(columns, row, rows) {
  const part = partOf(columns, row), set = part.set === "training" ? "" : `, ${part.set}`;
  const button = (name, title, act) => {
    const made = element("button", { type: "button", title }, name);
    made.addEventListener("click", act);
    return made;
  };
  return element("nav", {},
    element("h2", {}, `Step ${part.step}${set}`, element("small", {}, ` ${columns.tasks[columns.group_task[columns.group[row]]]}, group of ${rows.length}`)),
    button("\u2191", "the one before (k)", () => detail.move(-1)),
    button("\u2193", "the next one (j)", () => detail.move(1)),
    button("Close", "back to the list (Esc)", () => detail.close()));
}

// a conversation ends as its environment has it, whatever its last turn ended by
function endOf(columns, row) {
  const talk = columns.talks;
  if (talk !== null && talk.outcome[row] >= 0) return talk.outcome_words[talk.outcome[row]];
  return columns.finish_words[columns.finish[row]] === "length" ? "cut at the greatest length" : "ended by itself";
}

function card(columns, row, isOwn, notes, version, content, entry) {
  const sample = row - columns.groupStart[columns.group[row]];
  const dropped = columns.dropped[row], rules = rulesOf(columns, row);
  const functions = [...columns.functions].filter(([, values]) => !Number.isNaN(values[row]));
  const facts = [
    counted(columns.tokens[row], "token"), endOf(columns, row),
    Number.isNaN(columns.advantage[row]) ? "held-out: never trained on" : `advantage ${shown(columns.advantage[row])}`,
    version === null || version === undefined ? null : `weights of update ${version}`,
  ].filter((fact) => fact !== null);
  return element("article", { class: `card ${isOwn ? "own" : ""} ${rewardClass(columns, row)}`, "aria-current": isOwn },
    element("header", {}, element("h3", {}, `#${sample}`), element("b", { class: `pill ${rewardClass(columns, row)}` }, `reward ${shown(columns.reward[row])}`)),
    ...rules.map(([name, rule]) => element("p", { class: "why rule" }, element("b", {}, name), `: ${rule}.`)),
    dropped < 0 ? null : element("p", { class: "why" }, element("b", {}, columns.dropped_words[dropped].replaceAll("_", " ")), ` ${columns.dropped_reasons[dropped]}`),
    ...content,
    entry && !entry.agrees ? element("p", { class: "note" }, "The tokens do not join to the recorded text; it was decoded otherwise.") : null,
    element("footer", {}, ...facts.map((fact) => element("span", {}, fact))),
    functions.length ? element("footer", {}, ...functions.map(([name, values]) => element("span", {}, `${name} ${shown(values[row])}`))) : null,
    ...Object.entries(notes).map(([name, text]) => element("p", { class: "note" }, `${name}: ${text}`)));
}

function colourControls(columns, row, there, most, isWhole, tokens, redraw) {
  if (tokens.missing) return [element("p", { class: "note" }, tokens.missing)];
  const choice = element("select", { id: "colour" }, ...QUANTITIES.map((quantity) => element("option", {
    value: quantity.name, selected: quantity === detail.quantity,
    disabled: quantity.needs !== undefined && there.every((values) => values[quantity.needs] === null),
  }, quantity.title)));
  choice.addEventListener("change", () => {
    detail.quantity = QUANTITIES.find(({ name }) => name === choice.value);
    const hadFocus = document.activeElement === choice;
    redraw();
    if (hadFocus) byId("colour").focus();
  });
  const where = tokens.about
    ? `The trainer's numbers were computed afterwards${tokens.about.is_exact ? "" : ", not quite with the weights that the step had"}; the weights: ${tokens.about.weights}.`
    : `The trainer's logprobs, ratio and entropy by token are not recorded; this computes them: paceline replay ${columns.run_path} --step ${tokens.step} --tokens`;
  return [element("section", { class: "colours" }, element("label", {}, "Colour by ", choice), legend(detail.quantity, most, isWhole)),
    element("p", { class: "note" }, where)];
}

function comparison(columns, row, text) {
  const group = columns.group[row], others = columns.groupsOfTask.get(columns.group_task[group]).filter((one) => one !== group);
  const title = element("h2", {}, "The same prompt in another step");
  if (!others.length) return element("section", { class: "compare" }, title, element("p", { class: "note" }, "This prompt was sampled in no other step."));
  const step = element("select", { id: "other-step", "aria-label": "other step" }, element("option", { value: "" }, "choose a step"),
    ...others.map((one) => element("option", { value: one }, `step ${columns.parts[columns.groupPart[one]].step}`)));
  const sample = element("select", { id: "other-sample", "aria-label": "its sample", disabled: true });
  const result = element("div", { class: "result" });
  const draw = async () => {
    const other = Number(sample.value), part = columns.part[other];
    const texts = await documentNamed(`texts-${columns.parts[part].key}`);
    const there = texts.completions[other - columns.partRow[part]];
    const earlier = partOf(columns, other).step < partOf(columns, row).step;
    result.replaceChildren(
      element("p", { class: "note" }, element("del", {}, `step ${partOf(columns, earlier ? other : row).step}`), " ", element("ins", {}, `step ${partOf(columns, earlier ? row : other).step}`),
        ` reward ${shown(columns.reward[earlier ? other : row])} \u2192 ${shown(columns.reward[earlier ? row : other])}`),
      earlier ? differenceElement(there, text) : differenceElement(text, there));
  };
  step.addEventListener("change", () => {
    sample.disabled = step.value === "";
    result.replaceChildren();
    sample.replaceChildren();
    if (step.value === "") return;
    const first = columns.groupStart[step.value], end = columns.groupStart[Number(step.value) + 1];
    for (let one = first; one < end; one++) sample.append(element("option", { value: one }, `#${one - first}, reward ${shown(columns.reward[one])}`));
    draw();
  });
  sample.addEventListener("change", draw);
  return element("section", { class: "compare" }, title, element("p", {}, step, " ", sample), result);
}
