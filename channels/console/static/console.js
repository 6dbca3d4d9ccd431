// The console page: shows the entries of one feed in order, each once, and keeps the connection.
// The other parts: messages.js and steps.js (how entries look), outbox.js (sending), waiting.js (what
// is not answered yet), forms.js (changing a question), composer.js (writing), chats.js (the list of
// conversations).
"use strict";

const page = document.body.dataset;
const byId = (id) => document.getElementById(id);
const main = document.querySelector("main");
const log = byId("log");
const typing = byId("typing");
const earlier = byId("earlier");
const loaded = byId("loaded");
const newest = byId("newest");

const POLL_MS = 1500;
const POLLS_BEFORE_STREAM = 20;
const SILENT_MS = 12_000; // a heartbeat comes every five seconds; without one the server hangs
const POLL_TIMEOUT_MS = 10_000;
const OFFLINE_MS = 3000; // a stream that ended normally is back within a second
const BUSY_MS = 800; // earlier messages are not read out
const EARLIER_PX = 300; // earlier messages are loaded when the user is that close to the top
const END_PX = 120; // who is that close to the end reads the newest message
const CLOCK_AHEAD_MS = page.now - Date.now(); // by how much the server's clock is ahead of ours
const HEADERS = { "X-Sayso-Console": "1" };
const EARLIER_TYPES = ["user", "tap", "bubble", "edit", "open", "steps"]; // earlier entries that are shown

const ownMessages = new Map(); // event id -> our own message element
const bubbles = new Map(); // id in the feed or id of the delivery -> the bot's message
const receivedIds = new Set(); // event ids, and ids of deliveries, which the server may send twice
let lastId = "";
let firstId = ""; // of the oldest entry that is shown
let hasEarlier = false; // whether the server has older entries
let place = log; // where messages are added: the log, or a new page of earlier messages
let wasTextSent = false; // whether a text that closes questions is shown
const lateEdits = new Map(); // id of a message that is not loaded -> the newest edit of it
const lateTaps = new Set(); // data of tapped buttons that are not loaded
let loadedActs = []; // messages and taps of the first page: event id and time
let draft = null; // the unfinished answer
let stream = null; // the event stream; none while the feed is polled
let isRestored = false;
let offlineTimer = 0; // to show "offline"
let watchdog = 0; // to give up a silent stream
let isScrolledUp = false; // while the user has scrolled up, nothing moves
let lastTop = 0;

const VIEWS = {
  user: showUser,
  tap: showTap,
  draft: showDraft,
  removed: dropDraft,
  bubble: showBubble,
  edit: showEdit,
  open: showOpen,
  steps: showSteps,
  clear: showClear,
};

// Returns the address of a path for the conversation of this page.
function addressOf(path, query = {}) {
  const named = new URLSearchParams(query);
  if (page.chat) named.append("chat", page.chat);
  return `${path}?${named}`;
}

// Returns the options of a request that posts a value as JSON.
function jsonPost(value) {
  const headers = { "Content-Type": "application/json", ...HEADERS };
  return { method: "POST", headers, body: JSON.stringify(value) };
}

// Returns the value in an answer; null without an answer, and for one that is an error or no JSON.
async function jsonOf(answer) {
  if (!answer?.ok) return null;
  return answer.json().catch(() => null);
}

function show(id, entry) {
  lastId = id;
  firstId ||= id;
  VIEWS[entry.type]?.(entry, timeIn(id), id);
}

const timeIn = (id) => new Date(parseInt(id, 10));

// Shows the newest page. What is older is loaded when the user scrolls up.
async function loadNewest() {
  const found = await fetchOlder("");
  if (!found) return setTimeout(loadNewest, POLL_MS);
  for (const { at, ...entry } of found.entries) show(at, entry);
  setEarlier(found.more);
  openStream();
}

async function fetchOlder(before) {
  const signal = AbortSignal.timeout(POLL_TIMEOUT_MS);
  const answer = await fetch(addressOf(page.older, { before }), { signal }).catch(() => null);
  if (answer?.status === 404) leaveDeleted();
  if ([401, 403].includes(answer?.status)) setState("offline", "session ended, reload");
  else if (!answer?.ok) setState("offline");
  return jsonOf(answer);
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
  const found = await fetchOlder(firstId);
  earlier.disabled = false;
  if (!found) return;
  log.ariaBusy = "true"; // they are not read out
  const top = main.scrollTop;
  const anchor = log.firstElementChild;
  const before = anchor?.offsetTop;
  log.prepend(earlierPage(found.entries));
  setEarlier(found.more);
  isScrolledUp = true;
  if (anchor) main.scrollTop = top + anchor.offsetTop - before;
  lastTop = main.scrollTop;
  loaded.textContent = `${found.entries.length} earlier messages are shown.`;
  setTimeout(() => {
    log.ariaBusy = "false";
  }, BUSY_MS);
}

function earlierPage(entries) {
  const closesQuestions = wasTextSent;
  place = document.createDocumentFragment();
  for (const { at, ...entry } of entries) {
    if (EARLIER_TYPES.includes(entry.type)) VIEWS[entry.type](entry, timeIn(at), at);
  }
  if (closesQuestions) closeButtons();
  const built = place;
  place = log;
  firstId = entries[0]?.at ?? firstId;
  return built;
}

// Notes that a message or tap is under work. The server is asked for those of the first page.
function noteAct(id, at) {
  dropDraft();
  if (place !== log) return;
  if (!isRestored) loadedActs.push({ id, at: at.getTime() });
  else if (!waiting.has(id)) waiting.set(id, { at: at.getTime(), sent: true, seen: true });
  markSeen(id);
  showBusy();
}

const isFirst = (id) => !receivedIds.has(id) && receivedIds.add(id);

function showUser(entry, at) {
  const known = ownMessages.get(entry.event);
  noteAct(entry.event, at);
  if (!isFirst(entry.event)) return;
  if (!entry.text.startsWith("/")) {
    closeButtons(); // a command leaves a question open
    wasTextSent = true;
  }
  if (known) {
    removeRetry(known);
    setMark(known, "seen");
    return;
  }
  const message = addMessage("user", at, [userBubble(entry.text, entry.files ?? [])], entry.name);
  setMark(message, "seen");
  if (!entry.text) return;
  if (place === log) sentTexts.push(entry.text);
  else sentTexts.unshift(entry.text);
}

// A new chat began. Keeps our messages that are not in the feed yet.
function showClear(entry) {
  if (!isFirst(entry.event)) return;
  const unreceived = [...ownMessages].filter(([id]) => !receivedIds.has(id));
  log.replaceChildren(...unreceived.map(([, message]) => message));
  bubbles.clear();
  stepsOf.clear();
  draft = null;
  showSuggestions(!unreceived.length);
  markSeen(entry.event);
}

function showTap(entry, at) {
  const button = buttonsIn(place).find((each) => each.dataset.data === entry.data);
  noteAct(entry.event, at);
  if (!isFirst(entry.event)) return;
  if (!button) {
    lateTaps.add(entry.data);
    return;
  }
  removeRetry(button.closest(".message"));
  choose(button);
}

// Shows one draft at a time, in place of the typing indicator, until no turn is under work.
function showDraft(entry, at) {
  if (!draft) {
    draft = addMessage("bot", at, [element("div", "bubble draft")]);
    draft.ariaHidden = "true"; // it is read out once, as the message that takes its place
  }
  draft.querySelector(".bubble").replaceChildren(textOf(entry));
  showBusy();
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
  if (!isFirst(entry.delivery)) {
    bubbles.set(id, bubbles.get(entry.delivery));
    return;
  }
  const message = addMessage("bot", at, partsOf(entry, id, at));
  messageTexts.set(message, entry.text);
  if (entry.text) message.querySelector(".meta").append(copyButton(message));
  for (const name of [id, entry.delivery]) bubbles.set(name, message);
  if (lateEdits.has(id)) edit(message, ...lateEdits.get(id));
  const tapped = buttonsIn(message).filter(({ dataset }) => lateTaps.has(dataset.data));
  for (const button of tapped) choose(button);
}

// Replaces the text and the buttons of a message. Its file stays.
function showEdit(entry, at) {
  const message = bubbles.get(entry.of);
  if (place === log) checkWaiting();
  if (!isFirst(entry.delivery)) return;
  if (message) edit(message, entry, at);
  else if (!(lateEdits.get(entry.of)?.[1] > at)) lateEdits.set(entry.of, [entry, at]);
}

// Shows that a question is open for longer: its person has opened its form.
function showOpen(entry, at) {
  const row = bubbles.get(entry.of)?.querySelector(".buttons");
  if (row && entry.seconds) keepOpen(row, at.getTime() + entry.seconds * 1000, entry.seconds);
}

// Keeps the end in view when something grows: a message, a picture that has loaded, the keyboard.
function toBottom() {
  main.scrollTop = main.scrollHeight;
  lastTop = main.scrollTop;
}

const follow = new ResizeObserver(() => {
  if (!isScrolledUp) toBottom();
});
for (const each of [main, log, typing]) follow.observe(each);

main.onscroll = () => {
  if (main.scrollTop < EARLIER_PX && main.scrollTop < lastTop) loadEarlier();
  if (main.scrollHeight - main.scrollTop - main.clientHeight < END_PX) isScrolledUp = false;
  else if (main.scrollTop < lastTop) isScrolledUp = true; // else the end moved away
  lastTop = main.scrollTop;
  newest.hidden = !isScrolledUp;
};
earlier.onclick = loadEarlier;
newest.onclick = () => {
  toBottom();
  input.focus();
};

function setState(state, words = state) {
  const shown = byId("state");
  if (shown.textContent !== words) shown.textContent = words;
  shown.dataset.state = state;
  if (state !== "offline") setTimeout(finishLoading, BUSY_MS);
}

// All earlier messages are shown.
function finishLoading() {
  log.ariaBusy = "false";
  if (isRestored) return;
  isRestored = true;
  restore();
  restoreWaiting();
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
    if (isBack) {
      isBack = false;
      flush(true);
    }
  };
  stream.onopen = () => {
    isBack = true;
  };
  stream.addEventListener("alive", arrived);
  stream.onmessage = (event) => {
    arrived();
    show(event.lastEventId, JSON.parse(event.data));
  };
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) {
      clearTimeout(watchdog);
      clearTimeout(offlineTimer);
      pollFeed(POLLS_BEFORE_STREAM);
      return;
    }
    offlineTimer ||= setTimeout(() => setState("offline"), OFFLINE_MS);
  };
}

function restartWatchdog() {
  clearTimeout(watchdog);
  watchdog = setTimeout(() => {
    setState("offline", "no answer");
    reconnect();
  }, SILENT_MS);
}

function reconnect() {
  if (stream.readyState === EventSource.CLOSED) return; // polling opens a stream by itself
  clearTimeout(offlineTimer);
  stream.close();
  openStream();
}

window.onoffline = () => setState("offline");
window.ononline = () => {
  if (!stream) return;
  reconnect();
  flush(true);
};

async function pollFeed(left) {
  if (!left) return openStream();
  const signal = AbortSignal.timeout(POLL_TIMEOUT_MS);
  const answer = await fetch(addressOf(page.poll, { after: lastId }), { signal }).catch(() => null);
  if (answer?.status === 404) leaveDeleted();
  if ([401, 403].includes(answer?.status)) return setState("offline", "session ended, reload");
  const news = await jsonOf(answer);
  setState(news ? "polling" : "offline");
  if (news && outbox.length) flush(true);
  for (const { at, ...entry } of news?.entries ?? []) show(at, entry);
  setTimeout(pollFeed, POLL_MS, left - 1);
}

// The other scripts are there by then.
document.addEventListener("DOMContentLoaded", () => {
  showSuggestions(true);
  updateComposer();
  loadNewest();
});
