// The tool calls of a turn: their names, how each ended, and how long it took.
"use strict";

const stepsOf = new Map(); // event id -> the view of its tool calls
const STEP_WORDS = {
  running: "running",
  done: "done",
  failed: "failed",
  waits: "asked for your yes",
  not_run: "not run",
  unknown: "outcome unknown",
  stopped: "stopped",
};

// Shows which tools a turn calls. Each entry takes the place of the one before.
function showSteps(entry, at) {
  const known = stepsOf.get(entry.event);
  if (known && place !== log) return; // a newer entry is shown
  const view = known ?? addSteps(entry.event);
  const rows = entry.steps.map((step) => stepRow(step, at));
  view.querySelector("ol").replaceChildren(...rows);
  summarizeSteps(view);
  if (place !== log) endSteps(entry.event);
  else showStepTimes();
}

function addSteps(event) {
  const view = element("article", "steps");
  const details = element("details");
  details.append(element("summary"), element("ol"));
  details.querySelector("summary").onclick = () => {
    details.dataset.touched = "1";
  };
  view.append(details);
  if (draft) draft.before(view);
  else place.append(view);
  stepsOf.set(event, view);
  return view;
}

function stepRow({ name, state, seconds }, at) {
  const row = element("li", state);
  const hasTime = !["waits", "not_run"].includes(state) && (state !== "unknown" || seconds);
  const time = element("span", "time", hasTime ? secondsText(seconds) : "");
  row.append(element("code", "", name), element("span", "state", STEP_WORDS[state] ?? state), time);
  if (state === "running") time.dataset.began = at.getTime() - seconds * 1000;
  return row;
}

function secondsText(seconds) {
  const digits = seconds < 10 ? 1 : 0;
  return `${seconds.toFixed(digits)} s`;
}

function summarizeSteps(view) {
  const details = view.firstChild;
  const rows = [...view.querySelectorAll("li")];
  const running = rows.filter((row) => row.matches(".running"));
  const words = stepsSummary(rows, running);
  if (details.firstChild.textContent !== words) details.firstChild.textContent = words;
  view.hidden = !rows.length;
  view.classList.toggle("busy", running.length > 0);
  // Folded once all have ended, unless the user has opened or closed it.
  if (!details.dataset.touched) details.open = running.length > 0;
}

function stepsSummary(rows, running) {
  if (running.length) {
    const names = running.map((row) => row.firstChild.textContent);
    return `Running ${names.join(", ")}`;
  }
  if (rows.length === 1) {
    const parts = [...rows[0].children].map((each) => each.textContent);
    return parts.join(" ").trim();
  }
  const bad = rows.filter((row) => row.matches(".failed, .not_run, .unknown, .stopped")).length;
  return `${rows.length} tool calls${bad ? `, ${bad} not done` : ""}`;
}

// The turn is over: a step that still seems to run was stopped, or its worker died.
// How long it took is not known.
function endSteps(event) {
  const view = stepsOf.get(event);
  for (const row of view?.querySelectorAll(".running") ?? []) {
    row.className = "stopped";
    row.querySelector(".state").textContent = STEP_WORDS.stopped;
    row.querySelector(".time").replaceWith(element("span", "time"));
  }
  if (view) summarizeSteps(view);
}

function showStepTimes() {
  const now = Date.now() + CLOCK_AHEAD_MS;
  for (const time of log.querySelectorAll(".time[data-began]")) {
    time.textContent = secondsText((now - time.dataset.began) / 1000);
  }
}
