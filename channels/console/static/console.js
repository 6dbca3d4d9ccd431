// The console page: shows the entries of one feed in order, each of them once, and posts messages and taps.
"use strict";

const page = document.body.dataset;
const byId = (id) => document.getElementById(id);
const [log, typing, form, input, suggestions] = ["log", "typing", "composer", "text", "suggestions"].map(byId);
const [picker, chips, notice, newest, why] = ["picker", "picked", "notice", "newest", "why"].map(byId);
const [send, stop, more] = ["send", "stop", "more"].map(byId);
const [earlier, loaded, attached] = ["earlier", "loaded", "attached"].map(byId);
const main = document.querySelector("main");

const [POLL_MS, POLLS_BEFORE_STREAM] = [1500, 20];
const RETRY_MS = [600, 2000];
const SILENT_MS = 12_000; // a heartbeat comes every five seconds: without one the server is gone or hangs
const POLL_TIMEOUT_MS = 10_000;
const BUSY_MS = 800; // earlier messages are not read out
const [CHECK_MS, STILL_MS, UNKNOWN_MS] = [4000, 8000, 60_000]; // to check messages; to show why nothing happens; to give up
const [RESEND_MS, RESEND_MAX_MS] = [4000, 30_000]; // to send again, a little later each time
const EARLIER_PX = 300; // earlier messages are loaded when the user is that close to the top
const SURE_MS = 4000; // for the second tap on Delete
const CLOCK_AHEAD_MS = page.now - Date.now(); // by how much the server's clock is ahead of ours
const STORED = `sayso:${page.hook}:${page.chat}`;
const HEADERS = { "X-Sayso-Console": "1" };
const ENDED = "Your session has ended. Please reload the page.";
const BUSY = "The bot is busy. The message will be sent again shortly; tap to send it now.";
const UNSENT = "Not sent yet. The message will be sent when the connection is back; tap to send it now.";
const GONE = "this file was moved or changed: attach it again";
const LOST = "Not sent, tap to retry";
const REFUSED = "Not sent: the bot does not accept this.";

const ownMessages = new Map(); // event id -> our own message element
const bubbles = new Map(); // id in the feed or id of the delivery -> the bot's message
const receivedIds = new Set(); // event ids, and ids of deliveries, which the server may send twice
let lastId = "";
let firstId = ""; // of the oldest entry that is shown
let hasEarlier = false; // whether the server has older entries
let place = log; // where messages are added: the log, or a page of earlier messages that is being built
let wasTextSent = false; // whether a text that closes questions is shown
const lateEdits = new Map(); // id of a message that is not loaded -> the newest edit of it
const lateTaps = new Set(); // data of tapped buttons that are not loaded
const stepsOf = new Map(); // event id -> the view of its tool calls
const STEP_WORDS = {
  running: "running",
  done: "done",
  failed: "failed",
  waits: "asked for your yes",
  unknown: "outcome unknown",
  stopped: "stopped",
};
let loadedActs = []; // messages and taps of the first page: event id and time
let draft = null; // the unfinished answer
let stream = null; // the event stream; none while the feed is polled
const waiting = new Map(); // our messages and taps that are not answered yet: id -> { at, sent, seen }
const messageTexts = new WeakMap(); // a bot's message -> its text, for Copy
const sentTexts = []; // for arrow-up
let outbox = []; // what waits to be sent, in order: { id, body, files, message, of, done, failed }
let [isSending, resendTimer, resends] = [false, 0, 0];
let recallIndex = -1; // the index in `sentTexts`
let isRestored = false;
let [offlineTimer, watchdog] = [0, 0]; // to show "offline"; to give up a silent stream
let attachments = []; // files of the next message: { file, url, name }; the server gives the name
let [isScrolledUp, lastTop] = [false, 0]; // while the user has scrolled up, nothing moves

// Returns the address of a path for the conversation of this page.
function addressOf(path, query = {}) {
  const named = new URLSearchParams(query);
  if (page.chat) named.append("chat", page.chat);
  return `${path}?${named}`;
}

const VIEWS = { user: showUser, tap: showTap, draft: showDraft, removed: dropDraft, bubble: showBubble, edit: showEdit, steps: showSteps, clear: showClear };

function show(id, entry) {
  lastId = id;
  firstId ||= id;
  VIEWS[entry.type]?.(entry, timeIn(id), id);
}

const timeIn = (id) => new Date(parseInt(id, 10));

// Shows the newest page. What is older is loaded when the user scrolls up.
async function loadNewest() {
  const page = await fetchOlder("");
  if (!page) return setTimeout(loadNewest, POLL_MS);
  for (const { at, ...entry } of page.entries) show(at, entry);
  setEarlier(page.more);
  openStream();
}

async function fetchOlder(before) {
  const signal = AbortSignal.timeout(POLL_TIMEOUT_MS);
  const answer = await fetch(addressOf(page.older, { before }), { signal }).catch(() => null);
  if (answer?.status === 404) leaveDeleted();
  if ([401, 403].includes(answer?.status)) setState("offline", "session ended, reload");
  else if (!answer?.ok) setState("offline");
  return answer?.ok ? answer.json().catch(() => null) : null;
}

// The conversation was deleted in another tab.
const leaveDeleted = () => location.replace(page.home);

function setEarlier(more) {
  hasEarlier = more;
  earlier.hidden = !more;
}

// Adds a page of earlier messages on top. What the user reads stays where it is.
async function loadEarlier() {
  if (!hasEarlier || earlier.disabled) return;
  earlier.disabled = true;
  const page = await fetchOlder(firstId);
  earlier.disabled = false;
  if (!page) return;
  log.ariaBusy = "true"; // they are not read out
  const top = main.scrollTop;
  const anchor = log.firstElementChild;
  const before = anchor?.offsetTop;
  log.prepend(earlierPage(page.entries));
  setEarlier(page.more);
  isScrolledUp = true;
  if (anchor) main.scrollTop = top + anchor.offsetTop - before;
  lastTop = main.scrollTop;
  loaded.textContent = `${page.entries.length} earlier messages are shown.`;
  setTimeout(() => (log.ariaBusy = "false"), BUSY_MS);
}

function earlierPage(entries) {
  const closesQuestions = wasTextSent;
  place = document.createDocumentFragment();
  for (const { at, ...entry } of entries) if (["user", "tap", "bubble", "edit", "steps"].includes(entry.type)) VIEWS[entry.type](entry, timeIn(at), at);
  if (closesQuestions) closeButtons();
  const built = place;
  place = log;
  firstId = entries[0]?.at ?? firstId;
  return built;
}

// Notes that a message or tap is under work. Of those that were in the feed before, the server is asked.
function noteAct(id, at) {
  dropDraft();
  if (place !== log) return;
  if (!isRestored) loadedActs.push({ id, at: at.getTime() });
  else if (!waiting.has(id)) waiting.set(id, { at: at.getTime(), sent: true, seen: true });
  markSeen(id);
  showBusy();
}

function showUser(entry, at) {
  const known = ownMessages.get(entry.event);
  noteAct(entry.event, at);
  if (!isFirst(entry.event)) return;
  if (!entry.text.startsWith("/")) closeButtons(), (wasTextSent = true); // a command leaves a question open
  if (known) removeRetry(known);
  const message = known ?? addMessage("user", at, [userBubble(entry.text, entry.files ?? [])], entry.name);
  setMark(message, "seen");
  if (!known && entry.text) place === log ? sentTexts.push(entry.text) : sentTexts.unshift(entry.text);
}

// A new chat began. Keeps our messages that are not in the feed yet.
function showClear(entry) {
  if (!isFirst(entry.event)) return;
  const kept = [...ownMessages].filter(([id]) => !receivedIds.has(id)).map(([, message]) => message);
  log.replaceChildren(...kept);
  bubbles.clear();
  stepsOf.clear();
  draft = null;
  showSuggestions(!kept.length);
  markSeen(entry.event);
}

function showTap(entry, at) {
  const button = buttonsIn(place).find((each) => each.dataset.data === entry.data);
  noteAct(entry.event, at);
  if (!isFirst(entry.event)) return;
  if (!button) return lateTaps.add(entry.data);
  removeRetry(button.closest(".message"));
  choose(button);
}

const buttonsIn = (node) => [...node.querySelectorAll(".buttons button")];

// Shows one draft at a time, in place of the typing indicator, until no turn is under work.
function showDraft(entry, at) {
  draft ??= Object.assign(addMessage("bot", at, [element("div", "bubble draft")]), { ariaHidden: "true" }); // read out once
  draft.querySelector(".bubble").replaceChildren(textOf(entry));
  showBusy();
}

// Shows which tools a turn calls, each entry in place of the one before. Folded once all have ended.
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
  const [view, details] = [element("article", "steps"), element("details")];
  details.append(element("summary"), element("ol"));
  details.querySelector("summary").onclick = () => (details.dataset.touched = "1");
  view.append(details);
  draft ? draft.before(view) : place.append(view);
  stepsOf.set(event, view);
  return view;
}

function stepRow({ name, state, seconds }, at) {
  const row = element("li", state);
  const hasTime = state !== "waits" && (state !== "unknown" || seconds);
  const time = element("span", "time", hasTime ? secondsText(seconds) : "");
  row.append(element("code", "", name), element("span", "state", STEP_WORDS[state] ?? state), time);
  if (state === "running") time.dataset.began = at.getTime() - seconds * 1000;
  return row;
}

const secondsText = (seconds) => (seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`);

function summarizeSteps(view) {
  const [details, rows] = [view.firstChild, [...view.querySelectorAll("li")]];
  const running = rows.filter((row) => row.matches(".running"));
  const bad = rows.filter((row) => row.matches(".failed, .unknown, .stopped")).length;
  let words = `${rows.length} tool calls${bad ? `, ${bad} not done` : ""}`;
  if (rows.length === 1) words = [...rows[0].children].map((each) => each.textContent).join(" ").trim();
  if (running.length) words = `Running ${running.map((row) => row.firstChild.textContent).join(", ")}`;
  if (details.firstChild.textContent !== words) details.firstChild.textContent = words;
  view.hidden = !rows.length;
  view.classList.toggle("busy", running.length > 0);
  if (!details.dataset.touched) details.open = running.length > 0;
}

// The turn is over: a step that still seems to run was stopped, or its worker died, and how long it took is not known.
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
  for (const time of log.querySelectorAll(".time[data-began]")) time.textContent = secondsText((Date.now() + CLOCK_AHEAD_MS - time.dataset.began) / 1000);
}

function dropDraft() {
  if (place !== log) return;
  draft?.remove();
  draft = null;
  showBusy();
}

function showBubble(entry, at, id) {
  dropDraft();
  if (place === log) checkWaiting();
  if (!isFirst(entry.delivery)) return bubbles.set(id, bubbles.get(entry.delivery));
  const message = addMessage("bot", at, partsOf(entry, id, at));
  messageTexts.set(message, entry.text);
  if (entry.text) message.querySelector(".meta").append(copyButton(message));
  for (const name of [id, entry.delivery]) bubbles.set(name, message);
  if (lateEdits.has(id)) edit(message, ...lateEdits.get(id));
  buttonsIn(message).filter(({ dataset }) => lateTaps.has(dataset.data)).forEach((button) => choose(button));
}

// Replaces the text and the buttons of a message. Its file stays.
function showEdit(entry, at) {
  const message = bubbles.get(entry.of);
  if (place === log) checkWaiting();
  if (!isFirst(entry.delivery)) return;
  if (message) edit(message, entry, at);
  else if (!(lateEdits.get(entry.of)?.[1] > at)) lateEdits.set(entry.of, [entry, at]);
}

function edit(message, entry, at) {
  const [bubble, ...buttons] = partsOf(entry, entry.of, at);
  if (!entry.media) bubble.append(...message.querySelectorAll("figure, .file"));
  const hadFocus = message.querySelector(".buttons, .retry")?.contains(document.activeElement);
  message.querySelectorAll(".bubble, .buttons, .retry").forEach((part) => part.remove());
  message.querySelector(".sr").after(bubble, ...buttons);
  messageTexts.set(message, entry.text);
  if (hadFocus) input.focus();
}

function partsOf(entry, id, at) {
  const bubble = element("div", "bubble");
  const text = textOf(entry);
  dressCode(text);
  bubble.append(text, ...(entry.media ? [mediaView(entry.media)] : []));
  const until = entry.seconds ? at.getTime() + entry.seconds * 1000 : 0;
  return [bubble, ...(entry.buttons.length ? [buttonRow(entry.buttons, id, until, Math.ceil(entry.seconds))] : [])];
}

function textOf(entry) {
  const text = Object.assign(element("div", "text"), { dir: "auto" });
  text.innerHTML = entry.html; // made by the server's Markdown renderer, which escapes HTML
  return text;
}

function userBubble(text, files) {
  const bubble = element("div", "bubble");
  bubble.append(...files.map(mediaView), ...(text ? [element("div", "words", text)] : []));
  return bubble;
}

const isFirst = (id) => !receivedIds.has(id) && receivedIds.add(id);

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

const pressable = (className, text, onclick) => Object.assign(element("button", className, text), { type: "button", onclick });

function addMessage(side, at, parts, name = "") {
  const message = element("article", `message ${side}${place === log && Date.now() - at < 5000 ? " new" : ""}`);
  const meta = element("div", "meta");
  if (name) meta.append(Object.assign(element("span", "who", name), { dir: "auto" }));
  meta.append(timeOf(at));
  message.append(element("span", "sr", side === "user" ? "You: " : "Bot: "), ...parts, meta);
  place.append(message);
  if (place !== log) return message;
  if (side === "user") toBottom();
  showSuggestions(false);
  return message;
}

// Shows the state of our message: being sent, stored by the server, read by a worker.
function setMark(message, how) {
  if (!message?.matches(".user")) return;
  const sign = message.querySelector(".sign") ?? message.querySelector(".meta").appendChild(element("span", "sign"));
  const [words, label] = { sending: ["Sending…", ""], sent: ["Sent ✓", ""], seen: ["✓✓", "Read"], unsent: ["", ""] }[how];
  sign.textContent = words;
  sign.title = label;
  sign.ariaLabel = label || null;
  if (label) sign.setAttribute("role", "img");
}

function copyButton(message) {
  const button = pressable("copy", "", () => copy(messageTexts.get(message), button));
  button.ariaLabel = "Copy";
  button.innerHTML = byId("copy-icon").innerHTML;
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyByHand(text); // a page without https has no clipboard
  }
}

async function copy(text, button) {
  await copyText(text);
  button.classList.add("copied");
  button.ariaLabel = "Copied";
  setTimeout(() => (button.classList.remove("copied"), (button.ariaLabel = "Copy")), 1500);
}

function copyByHand(text) {
  const area = Object.assign(element("textarea", "sr"), { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function timeOf(at) {
  const today = at.toDateString() === new Date().toDateString();
  const clock = { hour: "2-digit", minute: "2-digit" };
  const words = at.toLocaleString([], today ? clock : { day: "numeric", month: "short", ...clock });
  return Object.assign(element("time", "", words), { dateTime: at.toISOString() });
}

function mediaView(media) {
  if (!media.mime.startsWith("image/")) return fileCard(media);
  const figure = element("figure");
  const image = Object.assign(element("img"), { alt: media.filename || "Image", src: media.url });
  const caption = element("figcaption", "", media.filename);
  image.onerror = () => figure.replaceWith(fileCard(media, !media.url.startsWith("blob:")));
  caption.append(downloadLink(media, "", "Download"));
  figure.append(image, caption);
  return figure;
}

function fileCard(media, gone = false) {
  const card = gone ? element("div", "file gone") : downloadLink(media, "file", "");
  card.append(badgeOf(media.filename), element("span", "label", media.filename || "File"));
  card.append(element("small", "", gone ? "No longer available: ask for it again" : media.mime));
  if (!gone) card.append(element("span", "act", "Download"));
  return card;
}

const badgeOf = (filename) => element("span", "badge", (filename.split(".").pop() || "file").slice(0, 4).toUpperCase());

function downloadLink(media, className, text) {
  return Object.assign(element("a", className, text), { href: media.url, download: media.filename });
}

function buttonRow(buttons, id, until, seconds) {
  const row = Object.assign(element("div", "buttons"), { role: "group", ariaLabel: "Your answer" });
  for (const each of buttons) {
    const button = pressable(each.style, each.label, (event) => tap(button, event));
    Object.assign(button.dataset, { data: each.data, message: id });
    row.append(button);
  }
  if (until) {
    Object.assign(row.dataset, { until, seconds });
    row.append(Object.assign(element("span", "left"), { role: "timer" })); // not read out each second
    countDown(row);
  }
  return row;
}

function countDown(row) {
  const ends = Math.ceil((row.dataset.until - Date.now() - CLOCK_AHEAD_MS) / 1000);
  const left = Math.min(ends, row.dataset.seconds); // the clocks were compared while the page loaded
  if (left <= 0) return closeRow(row, "Time is up");
  const [minutes, seconds] = [Math.floor(left / 60), String(left % 60).padStart(2, "0")];
  const words = left < 3600 ? `${minutes}:${seconds} left` : `${Math.floor(left / 3600)} h left`;
  row.querySelector(".left").textContent = words;
  row.classList.toggle("soon", left <= 10);
}

// Disables the buttons. A user who was about to press one goes on in the composer.
function closeRow(row, words = "") {
  const hadFocus = row.contains(document.activeElement);
  for (const button of row.querySelectorAll("button")) button.disabled = true;
  delete row.dataset.until;
  const left = row.querySelector(".left");
  if (left) left.textContent = words;
  if (hadFocus) input.focus();
}

function choose(button, chosen = true) {
  for (const each of button.parentNode.querySelectorAll("button")) each.disabled = chosen;
  button.classList.toggle("chosen", chosen);
  button.ariaLabel = chosen ? `${button.textContent}, chosen` : null;
}

// A typed message answers or drops the open question, so its buttons are disabled. An offer, such as Undo, stays.
function closeButtons() {
  for (const row of place.querySelectorAll(".buttons:has(.primary, .danger)")) closeRow(row);
}

// Shows the typing indicator until everything is answered, and Stop while the composer is empty.
function showBusy() {
  const isBusy = waiting.size > 0;
  typing.hidden = !isBusy || draft !== null;
  const canStop = (isBusy || draft !== null) && !input.value && !attachments.length;
  const hadFocus = [send, stop].includes(document.activeElement);
  [stop.hidden, send.hidden] = [!canStop, canStop];
  if (hadFocus && document.activeElement !== input) input.focus();
  if (!isBusy) why.textContent = "";
}

function addWaiting(id, entry) {
  waiting.set(id, { at: Date.now(), sent: false, seen: false, ...entry });
  store();
  showBusy();
}

function markSeen(id) {
  const act = waiting.get(id);
  if (act) act.seen = true;
  store();
}

function markAnswered(id) {
  waiting.delete(id);
  setMark(ownMessages.get(id), "seen");
  endSteps(id);
  store();
  if (!waiting.size) dropDraft(); // its worker died, or the turn was stopped
  showBusy();
}

// Asks for the state of our messages: a worker that dies sends nothing, and some turns have no answer.
async function checkWaiting() {
  const ids = [...waiting].filter(([, act]) => act.sent || act.seen).map(([id]) => id);
  if (!ids.length) return;
  const { answer, found } = await stagesOf(ids.slice(0, 20));
  for (const [id, stage] of Object.entries(found?.stages ?? {})) {
    const isOld = Date.now() - (waiting.get(id)?.at ?? 0) > UNKNOWN_MS;
    if (stage === "done" || (stage === "unknown" && isOld)) markAnswered(id);
  }
  showCause(found ? found.cause : answer ? "Its storage cannot be reached." : "There is no connection.");
}

async function stagesOf(ids) {
  const answer = await fetch(addressOf(page.waiting, ids.map((id) => ["id", id])), { signal: AbortSignal.timeout(15_000) }).catch(() => null);
  return { answer, found: answer?.ok ? await answer.json().catch(() => null) : null };
}

// Shows which messages and taps of the first page are still under work.
async function restoreWaiting() {
  const acts = loadedActs.slice(-20);
  const { found } = acts.length ? await stagesOf(acts.map(({ id }) => id)) : {};
  for (const { id, at } of acts) if (found?.stages[id] === "waits" && !waiting.has(id)) waiting.set(id, { at, sent: true, seen: true });
  if (!waiting.size) dropDraft();
  for (const event of stepsOf.keys()) if (!waiting.has(event)) endSteps(event);
  showBusy();
}

function showCause(cause) {
  const unanswered = [...waiting.values()];
  if (!unanswered.some(({ at }) => Date.now() - at >= STILL_MS)) return;
  const busy = unanswered.some((act) => act.seen) ? "The bot is working on it." : "The bot is busy with other messages.";
  const words = `Still waiting. ${cause || busy}`;
  if (why.textContent !== words) why.textContent = words;
}

setInterval(checkWaiting, CHECK_MS);
setInterval(() => (log.querySelectorAll("[data-until]").forEach(countDown), showStepTimes()), 1000);

// Saves what is not in the feed yet, so that it survives a reload of this tab.
function store() {
  const kept = [...waiting].filter(([id, { text }]) => text && !receivedIds.has(id)).map(([id, act]) => ({ id, ...act }));
  try {
    sessionStorage.setItem(STORED, JSON.stringify(kept.slice(-20)));
  } catch {} // some browsers do not allow it
}

async function restore() {
  let kept = [];
  try {
    kept = JSON.parse(sessionStorage.getItem(STORED) ?? "[]");
  } catch {}
  for (const { id, text, at, sent, body } of kept.filter((each) => !receivedIds.has(each.id) && !ownMessages.has(each.id))) {
    const message = addMessage("user", new Date(at), [userBubble(text, [])], page.person);
    ownMessages.set(id, message);
    if (sent) addWaiting(id, { text, at, sent, body }), setMark(message, "sent");
    else offerRetry(message, LOST, () => sendFrom(message, body, []));
  }
  const shown = kept.map(({ id }) => id).filter((id) => waiting.has(id));
  await checkWaiting();
  for (const id of shown) if (!waiting.has(id) && !receivedIds.has(id)) ownMessages.get(id).remove(); // the feed has it as a part of another entry
}

// Keeps the end in view when something grows: a message, a picture that has loaded, the keyboard.
const toBottom = () => ((main.scrollTop = main.scrollHeight), (lastTop = main.scrollTop));
const follow = new ResizeObserver(() => isScrolledUp || toBottom());
for (const each of [main, log, typing]) follow.observe(each);

main.onscroll = () => {
  if (main.scrollTop < EARLIER_PX && main.scrollTop < lastTop) loadEarlier();
  if (main.scrollHeight - main.scrollTop - main.clientHeight < 120) isScrolledUp = false;
  else if (main.scrollTop < lastTop) isScrolledUp = true; // else the end moved away
  lastTop = main.scrollTop;
  newest.hidden = !isScrolledUp;
};
earlier.onclick = loadEarlier;
newest.onclick = () => (toBottom(), input.focus());

function setState(state, words = state) {
  const shown = byId("state");
  if (shown.textContent !== words) shown.textContent = words;
  shown.dataset.state = state;
  if (state !== "offline") setTimeout(finishLoading, BUSY_MS);
}

// All earlier messages are shown.
function finishLoading() {
  log.ariaBusy = "false";
  if (!isRestored) (isRestored = true), restore(), restoreWaiting();
}

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Posts once more with the same id if the connection is lost: the server takes each id once. Returns nothing, or why it
// failed and whether that is final.
async function post(body, attempt = 0) {
  try {
    const answer = await fetch(page.hook, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...HEADERS },
      body: JSON.stringify(page.chat ? { chat: page.chat, ...body } : body),
      signal: AbortSignal.timeout(15_000),
    });
    if (answer.ok) return null;
    if ([401, 403].includes(answer.status)) return { words: ENDED, isFinal: true };
    if (answer.status < 500 && answer.status !== 429) return { words: REFUSED, isFinal: true };
    return { words: answer.status === 503 ? BUSY : UNSENT };
  } catch {
    if (attempt >= RETRY_MS.length) return { words: UNSENT };
    await pause(RETRY_MS[attempt]);
    return post(body, attempt + 1);
  }
}

// `seen` is the last entry that the user saw: a yes that arrives late must not answer a later question.
function sendText(text, files = []) {
  const id = newId();
  const views = files.map(({ file, url }) => ({ url, mime: file.type, filename: file.name }));
  const message = addMessage("user", new Date(), [userBubble(text, views)], page.person);
  ownMessages.set(id, message);
  if (text) sentTexts.push(text);
  sendFrom(message, { id, text, seen: lastId }, files);
}

function sendFrom(message, body, files = []) {
  const shown = (words) => (setMark(message, "unsent"), offerRetry(message, words, () => retry(message, body, files)));
  setMark(message, "sending");
  addWaiting(body.id, { text: files.length ? "" : body.text, body });
  enqueue({ body, files, message, of: message, done: () => setMark(message, "sent"), failed: shown });
}

function retry(message, body, files) {
  if (outbox.some((job) => job.body.id === body.id)) flush(true);
  else sendFrom(message, body, files);
}

function enqueue(job) {
  const taken = isSending ? outbox[0] : null; // is being sent
  outbox = [...outbox.filter((other) => other === taken || other.of !== job.of), job];
  flush();
}

// Sends the outbox in order. A job that cannot be sent now delays the later ones until the connection is back.
async function flush(isBack = false) {
  if (isBack) resends = 0;
  if (isSending) return;
  clearTimeout(resendTimer);
  isSending = true;
  while (outbox.length && (await sendFirst(outbox[0])));
  isSending = false;
}

async function sendFirst(job) {
  const { body, files, message } = job;
  removeRetry(message);
  const { failure, refused } = receivedIds.has(body.id) ? {} : await uploadAll(message, files);
  const named = files.length ? { ...body, files: files.map(({ name }) => name) } : body;
  const trouble = refused || receivedIds.has(body.id) ? null : failure || (await post(named));
  if (trouble && !trouble.isFinal && !receivedIds.has(body.id)) return retryLater(trouble.words);
  outbox = outbox.filter((other) => other !== job);
  resends = 0;
  if (refused) returnToComposer(job, refused);
  else if (trouble && !receivedIds.has(body.id)) waiting.delete(body.id), store(), showBusy(), job.failed(trouble.words);
  else markSent(job);
  return true;
}

function markSent({ body, done }) {
  const act = waiting.get(body.id);
  if (act) act.sent = true;
  if (!receivedIds.has(body.id)) done();
  store();
  if (act?.seen) checkWaiting();
}

function retryLater(words) {
  for (const job of outbox) job.failed(words);
  resendTimer = setTimeout(flush, Math.min(RESEND_MS * 2 ** resends, RESEND_MAX_MS));
  resends += 1;
  return false;
}

// Uploads the files that the server does not have. Returns nothing, a failure to retry, or the file that was refused.
async function uploadAll(message, files) {
  const waiting = files.filter(({ name }) => !name);
  if (!waiting.length) return {};
  const bar = Object.assign(element("progress"), { max: sum(files), value: sum(files) - sum(waiting) });
  bar.ariaLabel = "Sending files";
  message.append(bar);
  for (const each of waiting) {
    const before = sum(files.filter(({ name }) => name));
    const answer = await upload(each.file, (loaded) => (bar.value = before + loaded));
    if (answer.name) each.name = answer.name;
    else return bar.remove(), answer.refused ? { refused: { each, why: answer.refused } } : answer;
  }
  bar.remove();
  return {};
}

const sum = (files) => files.reduce((total, { file }) => total + file.size, 0);

// Uses XMLHttpRequest because fetch reports no progress.
function upload(file, progressed) {
  const request = new XMLHttpRequest();
  return new Promise((done) => {
    request.open("POST", page.files);
    for (const [name, value] of Object.entries(HEADERS)) request.setRequestHeader(name, value);
    request.setRequestHeader("X-Sayso-Filename", encodeURIComponent(file.name.toWellFormed?.() ?? file.name));
    request.upload.onprogress = ({ loaded }) => progressed(Math.min(loaded, file.size));
    request.onerror = async () => done((await isReadable(file)) ? { failure: { words: UNSENT } } : { refused: GONE });
    request.onload = () => done(uploaded(request));
    request.send(file);
  });
}

// A file that was moved or changed after it was picked cannot be sent, however often it is tried.
const isReadable = (file) => file.slice(0, 1).arrayBuffer().then(() => true, () => false);

function uploaded({ status, responseText }) {
  if (status === 201) return { name: JSON.parse(responseText).file };
  if ([401, 403, 413, 415, 429].includes(status)) return { refused: responseText.trim() };
  return { failure: { words: status === 503 ? BUSY : UNSENT } };
}

// Puts the text and the other files of an unsent message back into the composer, without the refused file.
function returnToComposer({ message, body, files }, { each, why }) {
  message.remove();
  ownMessages.delete(body.id);
  markAnswered(body.id);
  URL.revokeObjectURL(each.url);
  input.value = [body.text, input.value].filter(Boolean).join("\n");
  setAttachments([...files.filter((other) => other !== each), ...attachments], `${each.file.name}: ${why}`);
}

function attach(files) {
  const [taken, complaints] = [[...attachments], []];
  for (const file of files) {
    const why = taken.length >= page.maxFiles ? `at most ${page.maxFiles} files at once` : problemOf(file);
    if (why) complaints.push(`${file.name}: ${why}`);
    else taken.push({ file: withOwnName(file, taken), url: URL.createObjectURL(file), name: "" });
  }
  const added = taken.slice(attachments.length).map(({ file }) => file.name);
  attached.textContent = added.length ? `Attached: ${added.join(", ")}.` : "";
  setAttachments(taken, complaints.join("\n"));
}

// Every pasted picture is called image.png: the second one gets a number.
function withOwnName(file, others) {
  const [, stem, ending] = /^(.*?)(\.[^.]*)?$/s.exec(file.name);
  const isTaken = (name) => others.some((other) => other.file.name === name);
  let name = file.name;
  for (let number = 2; isTaken(name); number += 1) name = `${stem}-${number}${ending ?? ""}`;
  return name === file.name ? file : new File([file], name, { type: file.type });
}

function setAttachments(files, complaint = "") {
  attachments = files;
  chips.replaceChildren(...attachments.map(chipOf));
  chips.hidden = !attachments.length;
  notice.textContent = complaint;
  updateComposer();
  input.focus();
}

function problemOf({ size }) {
  if (!size) return "this file is empty";
  return size > page.maxBytes ? `${sizeOf(size)} is too large, at most ${sizeOf(page.maxBytes)}` : "";
}

const sizeOf = (bytes) => (bytes < 2 ** 20 ? `${Math.ceil(bytes / 1024)} KB` : `${Number((bytes / 2 ** 20).toFixed(1))} MB`);

function chipOf(each) {
  const chip = element("li", "chip");
  const words = element("span", "label", each.file.name);
  const image = Object.assign(element("img"), { alt: "", src: each.url });
  image.onerror = () => image.replaceWith(badgeOf(each.file.name));
  const remove = pressable("remove", "×", () => removeAttachment(each));
  remove.ariaLabel = `Remove ${each.file.name}`;
  words.append(element("small", "", sizeOf(each.file.size)));
  chip.append(each.file.type.startsWith("image/") ? image : badgeOf(each.file.name), words, remove);
  return chip;
}

function removeAttachment(each) {
  URL.revokeObjectURL(each.url);
  setAttachments(attachments.filter((other) => other !== each));
}

// Focuses the composer after a press with mouse or keyboard. After a touch it would open the on-screen keyboard.
const focusInput = ({ detail }) => (detail === 0 || matchMedia("(hover: hover)").matches) && input.focus();

function tap(button, event) {
  const [message, id] = [button.closest(".message"), newId()];
  const unsent = (words) => button.isConnected && (choose(button, false), offerRetry(message, words, again));
  const again = (event) => (outbox.some((job) => job.body.id === id) ? (choose(button), flush(true)) : tap(button, event));
  choose(button);
  focusInput(event);
  addWaiting(id, {});
  const body = { id, tap: button.dataset.data, message: button.dataset.message };
  enqueue({ body, files: [], message, of: message, done: () => choose(button), failed: unsent });
}

function offerRetry(message, words, again) {
  removeRetry(message);
  message.append(pressable("retry", words, (event) => (removeRetry(message), again(event), focusInput(event))));
}

function removeRetry(message) {
  message.querySelector(".retry")?.remove();
}

function openStream() {
  stream = new EventSource(addressOf(page.events, { after: lastId }));
  restartWatchdog();
  let isBack = true;
  // An open connection proves nothing: a server that hangs has it too. Only what arrives does.
  const arrived = () => {
    restartWatchdog();
    clearTimeout(offlineTimer);
    offlineTimer = 0;
    setState("live");
    if (isBack) (isBack = false), flush(true);
  };
  stream.onopen = () => (isBack = true);
  stream.addEventListener("alive", arrived);
  stream.onmessage = (event) => (arrived(), show(event.lastEventId, JSON.parse(event.data)));
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) return clearTimeout(watchdog), clearTimeout(offlineTimer), pollFeed(POLLS_BEFORE_STREAM);
    offlineTimer ||= setTimeout(() => setState("offline"), 3000); // a stream that ended normally is back within a second
  };
}

function restartWatchdog() {
  clearTimeout(watchdog);
  watchdog = setTimeout(() => (setState("offline", "no answer"), reconnect()), SILENT_MS);
}

function reconnect() {
  if (stream.readyState === EventSource.CLOSED) return; // polling opens a stream by itself
  clearTimeout(offlineTimer);
  stream.close();
  openStream();
}

window.onoffline = () => setState("offline");
window.ononline = () => stream && (reconnect(), flush(true));

async function pollFeed(left) {
  if (!left) return openStream();
  const signal = AbortSignal.timeout(POLL_TIMEOUT_MS);
  const answer = await fetch(addressOf(page.poll, { after: lastId }), { signal }).catch(() => null);
  if (answer?.status === 404) leaveDeleted();
  if ([401, 403].includes(answer?.status)) return setState("offline", "session ended, reload");
  const news = answer?.ok ? await answer.json().catch(() => null) : null;
  setState(news ? "polling" : "offline");
  if (news && outbox.length) flush(true);
  for (const { at, ...entry } of news?.entries ?? []) show(at, entry);
  setTimeout(pollFeed, POLL_MS, left - 1);
}

function updateComposer() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  send.disabled = !input.value.trim() && !attachments.length;
  const them = attachments.length > 1 ? ` to ${attachments.length} files` : "";
  input.placeholder = attachments.length ? `Add a caption${them}` : "Message";
  if (suggestions) suggestions.parentNode.hidden = input.value !== "" || attachments.length > 0;
  showBusy();
}

form.onsubmit = (event) => {
  event.preventDefault();
  const [text, files] = [input.value.trim(), attachments];
  if (!text && !files.length) return;
  input.value = "";
  setAttachments([]);
  sendText(text, files);
};

byId("attach").onclick = () => picker.click();
picker.onchange = () => {
  attach(picker.files);
  picker.value = ""; // so that the same file can be picked again
};

// Takes pasted files wherever the focus is. Office programs put a picture beside the copied text: then the text is meant.
document.onpaste = (event) => {
  const { files, types } = event.clipboardData;
  if (!files.length || (types.includes("text/plain") && types.includes("text/html"))) return;
  event.preventDefault();
  attach(files);
};

const holdsFiles = (event) => event.dataTransfer.types.includes("Files");
const dropping = (shown) => document.body.classList.toggle("dropping", shown);
document.ondragover = (event) => {
  if (!holdsFiles(event)) return;
  event.preventDefault();
  dropping(true);
};
document.ondragleave = (event) => event.relatedTarget || dropping(false);
document.ondrop = (event) => {
  dropping(false);
  if (!holdsFiles(event)) return;
  event.preventDefault();
  attachDropped(event.dataTransfer);
};

// Browsers give a folder as a file that cannot be read.
function attachDropped({ items, files }) {
  const isFolder = [...items].filter(({ kind }) => kind === "file").map((item) => item.webkitGetAsEntry?.()?.isDirectory);
  attach([...files].filter((_, at) => !isFolder[at]));
  if (isFolder.includes(true)) notice.textContent = [notice.textContent, "A folder cannot be sent: drop its files."].filter(Boolean).join("\n");
}

input.oninput = () => ((recallIndex = -1), updateComposer());
input.onkeydown = (event) => {
  if (["ArrowUp", "ArrowDown"].includes(event.key) && recall(event.key === "ArrowUp" ? -1 : 1)) event.preventDefault();
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
};

// Brings back an earlier message, unless another one is being written.
function recall(step) {
  if (recallIndex < 0 ? input.value || step > 0 || !sentTexts.length : input.value !== sentTexts[recallIndex]) return false;
  const place = (recallIndex < 0 ? sentTexts.length : recallIndex) + step;
  recallIndex = place < sentTexts.length ? Math.max(place, 0) : -1;
  input.value = sentTexts[recallIndex] ?? "";
  updateComposer();
  input.setSelectionRange(input.value.length, input.value.length);
  return true;
}

suggestions?.addEventListener("click", (event) => {
  if (!event.target.matches("button") || event.detail > 1) return; // a double click sends it once
  focusInput(event);
  sendText(event.target.textContent);
});

// Suggestions are open in an empty chat, and behind one button later.
function showSuggestions(isOpen) {
  if (!more) return;
  more.ariaExpanded = String(isOpen);
  suggestions.hidden = !isOpen;
}

if (more) more.onclick = () => showSuggestions(suggestions.hidden);

stop.onclick = (event) => (focusInput(event), sendAtOnce("/stop"));

// Sends a text before the outbox, which may hold a large file.
async function sendAtOnce(text) {
  const [id, message] = [newId(), addMessage("user", new Date(), [userBubble(text, [])], page.person)];
  const body = { id, text, seen: lastId };
  ownMessages.set(id, message);
  setMark(message, "sending");
  const trouble = await post(body);
  if (trouble) return sendFrom(message, body);
  addWaiting(id, { text, sent: true, body });
  if (receivedIds.has(id)) markSeen(id), checkWaiting();
  else setMark(message, "sent");
}

showSuggestions(true);
updateComposer();
loadNewest();
