"use strict";
// Shows the values under the pointer. The page is complete without it.
for (const svg of document.querySelectorAll("svg[data-x]")) {
  const places = JSON.parse(svg.dataset.x), texts = JSON.parse(svg.dataset.read);
  const cross = svg.querySelector(".cross"), figure = svg.closest("figure");
  const native = svg.querySelector("title");
  if (native) native.remove(); // the browser's own tooltip would cover ours; aria-label keeps the description
  let box = null;
  const hide = () => { cross.style.visibility = "hidden"; if (box) { box.remove(); box = null; } };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect(), scale = frame.width / svg.viewBox.baseVal.width;
    const at = (event.clientX - frame.left) / scale;
    let near = 0;
    places.forEach((x, i) => { if (Math.abs(x - at) < Math.abs(places[near] - at)) near = i; });
    cross.setAttribute("x1", places[near]);
    cross.setAttribute("x2", places[near]);
    cross.style.visibility = "visible";
    if (!box) { box = document.createElement("div"); box.className = "readout"; figure.append(box); }
    box.textContent = texts[near];
    const outer = figure.getBoundingClientRect();
    const left = frame.left - outer.left + places[near] * scale;
    const flip = left + box.offsetWidth + 16 > outer.width;
    box.style.left = (flip ? Math.max(4, left - box.offsetWidth - 10) : left + 10) + "px";
    box.style.top = frame.top - outer.top + 8 + "px";
  });
}
