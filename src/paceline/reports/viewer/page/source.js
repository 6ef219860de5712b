"use strict";
// Documents by name: asked from the server, or handed over by script files where the page lies in a directory.

const fromFiles = document.documentElement.dataset.documents === "files";
const KEPT = 48; // documents that are not asked for again
const kept = new Map(); // name -> promise, the least recently asked first
const awaited = new Map(); // name -> how to hand it over

function documentNamed(name) {
  const known = kept.get(name);
  kept.delete(name);
  const found = known || (fromFiles ? byScript(name) : byServer(name));
  kept.set(name, found);
  if (!known) found.catch(() => kept.delete(name));
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  return found;
}

function forgetDocuments() {
  kept.clear();
}

async function byServer(name) {
  const answer = await fetch(`data/${name}.json`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${name}: the server answered ${answer.status}`);
  return answer.json();
}

function byScript(name) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    awaited.set(name, resolve);
    script.src = `data/${name}.js`;
    script.onload = () => script.remove();
    script.onerror = () => {
      awaited.delete(name);
      script.remove();
      reject(new Error(`data/${name}.js is missing; export the run again`));
    };
    document.head.append(script);
  });
}

// called by the script files, each with its name and its JSON
function receive(name, text) {
  const resolve = awaited.get(name);
  awaited.delete(name);
  if (resolve) resolve(JSON.parse(text));
}
