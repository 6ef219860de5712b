"use strict";
// The tokens of a completion in the colours of one quantity, and the exact numbers of the one that is pointed at.

// a <pre> whose tokens can be pointed at, and walked through with the arrow keys
function tokenText(entry, texts, values, { quantity, most }, onPoint) {
  const special = new Set(entry.special), observed = new Set(entry.observed);
  const text = element("pre", { class: "tokens", tabindex: 0, "aria-label": "Tokens; arrow keys go through them" });
  text.append(
    ...entry.pieces.map((piece, at) => {
      const colour = quantity.kind && values[quantity.name] ? shade(quantity.kind, values[quantity.name][at], most) : "";
      const kind = special.has(at) ? "special" : texts[piece] === "" ? "inside" : texts[piece].includes("\n") ? "newline" : "";
      const whose = observed.has(at) ? "observed" : "";
      return element("span", { class: `token ${kind} ${whose} ${colour}`, "data-at": at }, texts[piece]);
    })
  );
  let current = -1;
  const point = (at, isKept) => {
    if (text.children[current]) text.children[current].classList.remove("pointed");
    current = at;
    if (text.children[at]) {
      text.children[at].classList.add("pointed");
      if (isKept) text.children[at].scrollIntoView({ block: "nearest" });
      onPoint(describeToken(entry, texts, values, at));
    }
  };
  text.addEventListener("pointerover", (event) => {
    const token = event.target.closest(".token");
    if (token) point(Number(token.dataset.at), false);
  });
  text.addEventListener("focus", () => point(Math.max(0, current), true));
  text.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    point(Math.min(entry.pieces.length - 1, Math.max(0, current + move)), true);
  });
  return text;
}

// pairs of a name and a value, for the line below the group
function describeToken(entry, texts, values, at) {
  const known = (name, title) => [title, values[name] ? exact(values[name][at]) : "not recorded"];
  return [
    ["token", JSON.stringify(texts[entry.pieces[at]])],
    ["id", String(entry.ids[at])],
    ["position", `${at + 1} of ${entry.pieces.length}`],
    known("advantage", "advantage"),
    known("ratio", "ratio"),
    known("push", values.ratio ? "advantage \u00d7 ratio" : "advantage alone"),
    known("engine", "engine logprob"),
    known("before", "trainer logprob"),
    known("mismatch", "difference"),
    known("entropy", "entropy"),
    ["mask", QUANTITIES.find(({ name }) => name === "mask").classes[values.mask[at]]],
  ];
}

function legend(quantity, most, isWhole) {
  if (!quantity.kind) return element("p", { class: "legend" });
  const boxes = quantity.kind === "classes"
    ? quantity.classes.map((name, at) => element("span", {}, element("i", { class: `swatch class-${at}` }), name))
    : [
        element("span", {}, quantity.kind === "two-sided" ? rounded(-most) : "0"),
        ...(quantity.kind === "two-sided" ? [5, 4, 3, 2, 1].map((level) => element("i", { class: `swatch down-${level}` })) : []),
        ...[0, 1, 2, 3, 4, 5].map((level) => element("i", { class: `swatch up-${level}` })),
        element("span", {}, rounded(most)),
      ];
  const about = quantity.about + (isWhole || !quantity.without ? "" : ` ${quantity.without}`);
  return element("div", { class: "legend" }, element("span", { class: "scale" }, ...boxes), element("span", { class: "note" }, about));
}
