// Our messages and taps that are not answered yet: their state, and why it takes long.
"use strict";

const CHECK_MS = 4000; // to check messages
const STILL_MS = 8000; // to show why nothing happens
const UNKNOWN_MS = 60_000; // to give up a message that the server does not know
const ANSWER_TIMEOUT_MS = 15_000;
const MAX_CHECKED = 20; // messages and taps that the server is asked for at once
const STORED = `sayso:${page.hook}:${page.chat}`;
const LOST = "Not sent, tap to retry";
const why = byId("why");
const waiting = new Map(); // id -> { at, sent, seen }, with text and body of a message

// Shows the typing indicator until everything is answered, and Stop while the composer is empty.
function showBusy() {
  const isBusy = waiting.size > 0;
  typing.hidden = !isBusy || draft !== null;
  const canStop = (isBusy || draft !== null) && !input.value && !attachments.length;
  const hadFocus = [send, stop].includes(document.activeElement);
  stop.hidden = !canStop;
  send.hidden = canStop;
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

// Asks for the state of our messages. A worker that dies sends nothing; some turns have no answer.
async function checkWaiting() {
  const stored = [...waiting].filter(([, act]) => act.sent || act.seen);
  if (!stored.length) return;
  const ids = stored.slice(0, MAX_CHECKED).map(([id]) => id);
  const { answer, found } = await statusesOf(ids);
  for (const [id, status] of Object.entries(found?.statuses ?? {})) {
    const isOld = Date.now() - (waiting.get(id)?.at ?? 0) > UNKNOWN_MS;
    if (status === "done" || (status === "unknown" && isOld)) markAnswered(id);
  }
  if (found) showCause(found.cause);
  else showCause(answer ? "Its storage cannot be reached." : "There is no connection.");
}

async function statusesOf(ids) {
  const query = ids.map((id) => ["id", id]);
  const signal = AbortSignal.timeout(ANSWER_TIMEOUT_MS);
  const answer = await fetch(addressOf(page.waiting, query), { signal }).catch(() => null);
  return { answer, found: await jsonOf(answer) };
}

// Shows which messages and taps of the first page are still under work.
async function restoreWaiting() {
  const acts = loadedActs.slice(-MAX_CHECKED);
  const { found } = acts.length ? await statusesOf(acts.map(({ id }) => id)) : {};
  for (const { id, at } of acts) {
    const isWaiting = found?.statuses[id] === "waits";
    if (isWaiting && !waiting.has(id)) waiting.set(id, { at, sent: true, seen: true });
  }
  if (!waiting.size) dropDraft();
  for (const event of stepsOf.keys()) {
    if (!waiting.has(event)) endSteps(event);
  }
  showBusy();
}

function showCause(cause) {
  const unanswered = [...waiting.values()];
  if (!unanswered.some(({ at }) => Date.now() - at >= STILL_MS)) return;
  const isSeen = unanswered.some((act) => act.seen);
  const busy = isSeen ? "The bot is working on it." : "The bot is busy with other messages.";
  const words = `Still waiting. ${cause || busy}`;
  if (why.textContent !== words) why.textContent = words;
}

setInterval(checkWaiting, CHECK_MS);
setInterval(() => {
  log.querySelectorAll("[data-until]").forEach(countDown);
  showStepTimes();
}, 1000);

// Saves what is not in the feed yet, so that it survives a reload of this tab.
function store() {
  const unreceived = [...waiting].filter(([id, { text }]) => text && !receivedIds.has(id));
  const stored = unreceived.map(([id, act]) => ({ id, ...act }));
  try {
    sessionStorage.setItem(STORED, JSON.stringify(stored.slice(-MAX_CHECKED)));
  } catch {} // some browsers do not allow it
}

function readStored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORED) ?? "[]");
  } catch {
    return [];
  }
}

// Shows our messages again that were not in the feed before this tab was loaded anew.
async function restore() {
  const stored = readStored();
  const unshown = stored.filter(({ id }) => !receivedIds.has(id) && !ownMessages.has(id));
  for (const { id, text, at, sent, body } of unshown) {
    const message = addMessage("user", new Date(at), [userBubble(text, [])], page.person);
    ownMessages.set(id, message);
    if (sent) {
      addWaiting(id, { text, at, sent, body });
      setMark(message, "sent");
    } else {
      offerRetry(message, LOST, () => sendFrom(message, body, []));
    }
  }
  const shown = stored.map(({ id }) => id).filter((id) => waiting.has(id));
  await checkWaiting();
  for (const id of shown) {
    // The feed has it as a part of another entry.
    if (!waiting.has(id) && !receivedIds.has(id)) ownMessages.get(id).remove();
  }
}
