// The playground and the live state. All numbers, words and draws come from the server.

const find = (id) => document.getElementById(id);
const element = (name, classes = "", text = "") => {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text) made.textContent = text;
  return made;
};

// Playground

let scores = [0.62, 0.21, 0.08, 0.05, 0.03, 0.01];
let latest = 0;
let timer;

let served = null; // the ε of the model that the page opened on, until another one is chosen
let isOpen = false;

const epsilon = () => served ?? Number((10 ** Number(find("epsilon").value)).toPrecision(2));
const choice = () => document.querySelector("input[name=mechanism]:checked");
const mechanism = () => choice().value;
const fitted = () => ("model" in choice().dataset ? choice().dataset : null); // the model whose table is tried
const keepsAll = () => "keepsAll" in choice().dataset;
const keep = () => {
  if (keepsAll() || find("keep").value === "all") return "all";
  return Math.min(Number(find("keep").value), scores.length);
};
const percent = (value) => `${(100 * value).toFixed(2)}%`;
const shown = (value) => value.toFixed(3);

function bar(kind) {
  const cell = element("td", `bar ${kind}`);
  const track = element("div", "track");
  const fill = element("div", "fill");
  cell.append(track);
  track.append(fill);
  return { cell, track, fill };
}

function buildBars() {
  const rows = scores.map((_, index) => {
    const row = element("tr");
    const head = element("th", "", String(index));
    head.scope = "row";
    const before = bar("before");
    const handle = element("input");
    Object.assign(handle, { type: "range", min: 0, max: 100, step: 1 });
    handle.setAttribute("aria-label", `Score of class ${index}`);
    handle.addEventListener("input", () => dragged(index, Number(handle.value) / 100));
    before.track.prepend(handle);
    const after = bar("after");
    row.append(head, before.cell, element("td", "value"), after.cell, element("td", "value"));
    return row;
  });
  find("bars").replaceChildren(...rows);
}

// One score is moved to a value; the others keep their proportions and make room.
function dragged(index, value) {
  const others = scores.reduce((sum, score, i) => (i === index ? sum : sum + score), 0);
  const scale = others > 0 ? (1 - value) / others : 0;
  const share = others > 0 ? 0 : (1 - value) / (scores.length - 1);
  scores = scores.map((score, i) => (i === index ? value : score * scale + share));
  writeVector();
  showBefore();
  ask();
}

function writeVector() {
  find("vector").value = scores.map((score) => Number(score.toFixed(4))).join(", ");
}

function showBefore() {
  const top = scores.indexOf(Math.max(...scores));
  [...find("bars").rows].forEach((row, index) => {
    row.classList.toggle("top", index === top);
    row.querySelector(".before .fill").style.width = percent(scores[index]);
    const handle = row.querySelector(".before input");
    handle.value = Math.round(100 * scores[index]);
    handle.setAttribute("aria-valuetext", shown(scores[index]));
    row.querySelectorAll(".value")[0].textContent = shown(scores[index]);
  });
}

function showAfter(after) {
  [...find("bars").rows].forEach((row, index) => {
    row.querySelector(".after .fill").style.width = percent(after[index]);
    row.querySelectorAll(".value")[1].textContent = shown(after[index]);
  });
}

function showPromise(promise) {
  const advantage = promise.advantage ?? promise.advantage_alone;
  const worst = promise.worst_loss === null ? "" : `, at worst ${promise.worst_loss.toPrecision(3)}`;
  const promised = [
    ...(promise.epsilon === null ? [] : [`ε = ${promise.epsilon}${worst}`]),
    ...(advantage === null ? [] : [`advantage ${shown(advantage)}`]),
  ];
  const big = promised.length ? element("p", "big", promised.join("; ")) : element("p", "big none", "Nothing is promised.");
  const limits = element("ul");
  limits.append(...promise.limits.map((limit) => element("li", "", limit)));
  find("promise").replaceChildren(big, element("p", "", promise.words), limits);
}

// How often a region gives an answer; without ε each has its own.
function often(chance) {
  if (chance === 0 || chance === 1) return chance ? "always" : "";
  return chance < 0.005 ? "< 1%" : `${(100 * chance).toFixed(0)}%`;
}

function showTable(table) {
  find("table").hidden = table === null;
  if (table === null) return;
  const head = (text, scope) => Object.assign(element("th", "", text), { scope });
  find("announced").replaceChildren(head("Region", "col"), ...table.announced.map((value) => head(shown(value), "col")));
  const rows = table.chances.map((chances, region) => {
    const row = element("tr", region === table.region ? "here" : "");
    row.append(head(table.regions[region], "row"), ...chances.map((chance) => {
      const cell = element("td", "", often(chance));
      cell.style.setProperty("--share", 100 * chance);
      return cell;
    }));
    return row;
  });
  find("chances").replaceChildren(...rows.reverse());
}

function problem(message) {
  find("problem").textContent = message;
  find("problem").hidden = !message;
}

function ask() {
  clearTimeout(timer);
  timer = setTimeout(askNow, 60); // a drag is many events
}

async function askNow() {
  const mine = ++latest;
  const asked = fitted() ? { scores, model: fitted().model } : { scores, epsilon: epsilon(), mechanism: mechanism(), keep: keep() };
  const body = JSON.stringify(asked);
  try {
    const answer = await fetch("/api/veil", { method: "POST", headers: { "Content-Type": "application/json" }, body });
    const found = await answer.json();
    if (mine !== latest) return; // a later question is under way
    if (!answer.ok) return problem(found.error);
    problem("");
    showAfter(found.after);
    showPromise(found.guarantee);
    showTable(found.table);
  } catch {
    problem("The gateway did not answer; is it still running?");
  }
}

function typed() {
  const numbers = find("vector").value.split(/[\s,;]+/).filter(Boolean).map(Number);
  const sum = numbers.reduce((a, b) => a + b, 0);
  if (numbers.length < 2 || numbers.length > 64 || numbers.some((n) => !(n >= 0)) || !(sum > 0 && sum < Infinity)) {
    return problem("Expected 2 to 64 numbers, none below 0, not all 0.");
  }
  const rebuild = numbers.length !== scores.length;
  scores = numbers.map((number) => number / sum);
  if (rebuild) buildBars();
  showBefore();
  return ask();
}

function settingsChanged() {
  const table = fitted();
  const shownEpsilon = table ? table.epsilon : String(epsilon());
  find("epsilon-shown").textContent = shownEpsilon;
  find("epsilon").setAttribute("aria-valuetext", shownEpsilon);
  find("epsilon").disabled = Boolean(table);
  find("keep").disabled = Boolean(table) || keepsAll();
  find("mechanism-hint").textContent = table ? "A fitted veil keeps the label." : "Isotonic holds; published is the paper's.";
  if (table && scores.length !== Number(table.classes)) resize(Number(table.classes));
  ask();
}

// As many scores as a fitted veil has classes; those that are new are 0.
function resize(classes) {
  const kept = Array.from({ length: classes }, (_, index) => scores[index] ?? 0);
  const sum = kept.reduce((a, b) => a + b, 0);
  scores = kept.map((score) => (sum > 0 ? score / sum : 1 / classes));
  buildBars();
  writeVector();
  showBefore();
}

// A choice for each model that has a fitted veil, beside the mechanisms.
function offerFitted(models) {
  const offered = new Map([...document.querySelectorAll("[data-model]")].map((input) => [input.dataset.model, input]));
  for (const model of models.filter((each) => each.classes !== null)) {
    let input = offered.get(model.model);
    if (!input) {
      input = Object.assign(element("input"), { type: "radio", name: "mechanism", value: "fitted" });
      input.dataset.model = model.model;
      const label = element("label");
      label.append(input, element("span", "", `${model.model}, fitted`));
      find("mechanisms").append(label);
    }
    Object.assign(input.dataset, { epsilon: model.epsilon ?? "none", classes: model.classes });
  }
}

// The playground opens on the veil of the first model that it can try.
function open(models) {
  if (isOpen) return;
  isOpen = true;
  const inputs = [...document.querySelectorAll("input[name=mechanism]")];
  const choiceOf = (model) => inputs.find((input) => (
    model.classes === null ? input.value === model.mechanism : input.dataset.model === model.model
  ));
  const model = models.find(choiceOf);
  if (model) choiceOf(model).checked = true;
  if (model && model.classes === null) {
    served = model.epsilon;
    find("epsilon").value = Math.log10(model.epsilon);
    const kept = String(model.keep);
    if (model.keep !== null && ![...find("keep").options].some((option) => option.value === kept)) {
      find("keep").add(new Option(`the top ${kept}`, kept));
    }
    if (model.keep !== null) find("keep").value = kept;
  }
  settingsChanged();
}

// Live state

const count = (value) => value.toLocaleString("en");
const milliseconds = (value) => (value < 10 ? value.toFixed(1) : value.toFixed(0));

function number(label, value, note = "") {
  const pair = element("div");
  const shownValue = element("dd", "", value);
  if (note) shownValue.append(element("small", "", note));
  pair.append(element("dt", "", label), shownValue);
  return pair;
}

function modelState(model) {
  const box = element("div", "model");
  const title = element("h3", "", model.model);
  const epsilon = model.epsilon === null ? "no ε" : `ε = ${model.epsilon}`;
  const veil = `${epsilon}, ${model.mechanism}, ${model.memory}`;
  title.append(element("span", "", model.mechanism === null ? "texts alone, no scores" : veil));
  const refusals = Object.entries(model.refusals).sort((a, b) => b[1] - a[1]);
  const refused = refusals.reduce((sum, [, times]) => sum + times, 0);
  const numbers = element("dl", "numbers");
  numbers.append(
    number("Requests", count(model.requests)),
    number("Rows released", count(model.rows)),
    number("Refusals", count(refused), refusals.slice(0, 3).map(([why, times]) => `${why.replaceAll("_", " ")} ${count(times)}`).join(", ")),
    number("Fresh answers", model.remembers ? count(model.charged) : "–", model.remembers ? `${count(model.repeated)} repeated` : "not counted"),
    number("Latency", model.requests ? `${milliseconds(model.latency.p50)} ms` : "–", model.requests ? `p99 ${milliseconds(model.latency.p99)} ms` : ""),
  );
  box.append(title, numbers);
  return box;
}

async function refresh() {
  if (document.hidden) return;
  try {
    const answer = await fetch("/api/state");
    if (!answer.ok) throw new Error();
    const state = await answer.json();
    find("models").replaceChildren(...state.models.map(modelState));
    offerFitted(state.models);
    open(state.models);
    pulse("live", "live");
  } catch {
    pulse("lost", "no answer");
  }
}

function pulse(kind, words) {
  const mark = find("pulse");
  if (mark.textContent !== words) mark.textContent = words;
  mark.className = `pulse ${kind}`;
}

buildBars();
writeVector();
showBefore();
find("vector").addEventListener("input", typed);
find("epsilon").addEventListener("input", () => { served = null; });
find("controls").addEventListener("input", (event) => event.target.id !== "vector" && settingsChanged());
find("controls").addEventListener("submit", (event) => { event.preventDefault(); askNow(); });
document.addEventListener("visibilitychange", refresh);
refresh();
setInterval(refresh, 2000);
