// The console page: shows one feed in order, each entry once, and posts what the user says or taps.
"use strict";

const page = document.body.dataset;
const byId = (id) => document.getElementById(id);
const [log, typing, form, input, suggestions] = ["log", "typing", "composer", "text", "suggestions"].map(byId);
const [picker, chips, notice, newest, why] = ["picker", "picked", "notice", "newest", "why"].map(byId);
const [send, stop, fresh, more] = ["send", "stop", "fresh", "more"].map(byId);
const main = document.querySelector("main");

const [POLL_MS, POLLS_BEFORE_STREAM] = [1500, 20];
const [TYPING_MS, RETRY_MS] = [60_000, [600, 2000]];
const SILENT_MS = 90_000; // a stream ends itself every minute: one that says nothing for longer is dead
const BUSY_MS = 800; // what was said before is not read out
const [CHECK_MS, STILL_MS, UNKNOWN_MS] = [4000, 8000, 60_000]; // asking after messages; when to say why; when to give up
const [RESEND_MS, RESEND_MAX_MS] = [4000, 30_000]; // trying again what was not sent, a little later each time
const SURE_MS = 4000; // for a second tap on New chat
const CLOCK_AHEAD_MS = page.now - Date.now(); // of the server's clock before ours
const STORED = `sayso:${page.hook}`;
const HEADERS = { "X-Sayso-Console": "1" };
const ENDED = "Your session has ended. Please reload the page.";
const BUSY = "The bot is busy. It is sent again shortly; tap to try now.";
const UNSENT = "Not sent yet. It is sent once the connection is back; tap to try now.";
const LOST = "Not sent, tap to retry";
const REFUSED = "Not sent: the bot does not take this.";

const acts = new Map(); // event id -> our own message element
const bubbles = new Map(); // id in the feed, and id of the delivery -> the bot's message
const heard = new Set(); // what the server has told already: event ids, and ids of deliveries it may try twice
let lastId = "";
let typingTimer = 0;
let draft = null; // the answer as far as it has come
let stream = null; // the feed, while it is not polled
const waiting = new Map(); // our acts that are not answered yet: id -> { at, sent, seen }
const texts = new WeakMap(); // a bot's message -> its words, as they are copied
const said = []; // what arrow-up brings back
let outbox = []; // what is to be sent, in order: { id, body, files, message, of, done, failed }
let [isSending, resendTimer, resends] = [false, 0, 0];
let recalled = -1; // the place in `said`
let isRestored = false;
let [lost, dead] = [0, 0]; // when to say that it is away, and when to give it up
let picked = []; // what the next message brings: { file, url, name }, the name once the server has the file
let [reading, lastTop] = [false, 0]; // somebody has scrolled up: nothing may move what they read

function show(id, entry) {
  lastId = id;
  const at = new Date(parseInt(id, 10));
  ({ user: showUser, tap: showTap, typing: showTyping, draft: showDraft, bubble: showBubble, edit: showEdit, clear: showClear })[entry.type]?.(entry, at, id);
}

function showUser(entry, at) {
  if (!firstHeard(entry.event)) return;
  if (!entry.text.startsWith("/")) closeButtons(); // a command leaves the question open
  const known = acts.get(entry.event);
  if (known) settle(known);
  else addMessage("user", at, [userBubble(entry.text, entry.files ?? [])]);
  mark(known ?? log.lastElementChild, "seen");
  if (!known && entry.text) said.push(entry.text);
  seen(entry.event);
}

// Somebody began a new chat: what comes after stays, and what of ours is still on its way.
function showClear(entry) {
  if (!firstHeard(entry.event)) return;
  const kept = [...acts].filter(([id]) => !heard.has(id)).map(([, message]) => message);
  log.replaceChildren(...kept);
  bubbles.clear();
  draft = null;
  unfold(!kept.length);
  seen(entry.event);
}

function showTap(entry) {
  const button = [...log.querySelectorAll(".buttons button")].find((each) => each.dataset.data === entry.data);
  seen(entry.event);
  if (!firstHeard(entry.event) || !button) return;
  settle(button.closest(".message"));
  choose(button);
}

function showTyping(_entry, at) {
  dropDraft();
  const left = TYPING_MS - (Date.now() - at);
  if (left > 0) setTyping(true, left);
}

// One draft at a time, in place of the dots. What is older than they would be belongs to nobody who still writes.
function showDraft(entry, at) {
  if (Date.now() - at > TYPING_MS) return;
  setTyping(false);
  draft ??= Object.assign(addMessage("bot", at, [element("div", "bubble draft")]), { ariaHidden: "true" }); // read out once
  draft.querySelector(".bubble").replaceChildren(textOf(entry));
  showBusy();
}

function dropDraft() {
  draft?.remove();
  draft = null;
}

function showBubble(entry, at, id) {
  setTyping(false);
  dropDraft();
  checkWaiting();
  if (!firstHeard(entry.delivery)) return bubbles.set(id, bubbles.get(entry.delivery));
  const message = addMessage("bot", at, partsOf(entry, id, at));
  texts.set(message, entry.text);
  if (entry.text) message.querySelector(".meta").append(copyButton(message));
  for (const name of [id, entry.delivery]) bubbles.set(name, message);
}

// The message of that id says something else now. Its file stays; its buttons do not, unless the new words come with some.
function showEdit(entry, at) {
  const message = bubbles.get(entry.of);
  checkWaiting();
  if (!firstHeard(entry.delivery) || !message) return;
  const [bubble, ...buttons] = partsOf(entry, entry.of, at);
  if (!entry.media) bubble.append(...message.querySelectorAll("figure, .file"));
  const hadFocus = message.querySelector(".buttons, .retry")?.contains(document.activeElement);
  message.querySelectorAll(".bubble, .buttons, .retry").forEach((part) => part.remove());
  message.querySelector(".sr").after(bubble, ...buttons);
  texts.set(message, entry.text);
  if (hadFocus) input.focus();
}

function partsOf(entry, id, at) {
  const bubble = element("div", "bubble");
  bubble.append(textOf(entry), ...(entry.media ? [mediaView(entry.media)] : []));
  const until = entry.seconds ? at.getTime() + entry.seconds * 1000 : 0;
  return [bubble, ...(entry.buttons.length ? [buttonRow(entry.buttons, id, until, Math.ceil(entry.seconds))] : [])];
}

function textOf(entry) {
  const text = Object.assign(element("div", "text"), { dir: "auto" });
  text.innerHTML = entry.html; // made by the server's Markdown renderer, which lets no HTML through
  return text;
}

function userBubble(text, files) {
  const bubble = element("div", "bubble");
  bubble.append(...files.map(mediaView), ...(text ? [element("div", "words", text)] : []));
  return bubble;
}

const firstHeard = (id) => !heard.has(id) && heard.add(id);

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

const pressable = (className, text, onclick) => Object.assign(element("button", className, text), { type: "button", onclick });

function addMessage(side, at, parts) {
  const message = element("article", `message ${side}${Date.now() - at < 5000 ? " new" : ""}`);
  const meta = element("div", "meta");
  meta.append(timeOf(at));
  message.append(element("span", "sr", side === "user" ? "You: " : "Bot: "), ...parts, meta);
  log.append(message);
  if (side === "user") toBottom();
  unfold(false);
  return message;
}

// How far our message has come: being sent, kept by the server, read by a worker.
function mark(message, how) {
  if (!message?.matches(".user")) return;
  const sign = message.querySelector(".sign") ?? message.querySelector(".meta").appendChild(element("span", "sign"));
  const [words, label] = { sending: ["Sending…", ""], sent: ["Sent ✓", ""], seen: ["✓✓", "Read"], unsent: ["", ""] }[how];
  sign.textContent = words;
  sign.title = label;
  sign.ariaLabel = label || null;
  if (label) sign.setAttribute("role", "img");
}

function copyButton(message) {
  const button = pressable("copy", "", () => copy(texts.get(message), button));
  button.ariaLabel = "Copy";
  button.innerHTML = byId("copy-icon").innerHTML;
  return button;
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyByHand(text); // a page without https has no clipboard
  }
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
  const left = Math.min(ends, row.dataset.seconds); // clocks are compared no better than a page loads
  if (left <= 0) return close(row, "Time is over");
  const [minutes, seconds] = [Math.floor(left / 60), String(left % 60).padStart(2, "0")];
  const words = left < 3600 ? `${minutes}:${seconds} left` : `${Math.floor(left / 3600)} h left`;
  row.querySelector(".left").textContent = words;
  row.classList.toggle("soon", left <= 10);
}

// Nothing there can be tapped any more. Whoever was about to goes on at the composer.
function close(row, words = "") {
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

// Words settle or drop whatever was waiting, so its answers have nothing left to say. An offer, such as Undo, stays.
function closeButtons() {
  for (const row of log.querySelectorAll(".buttons:has(.primary, .danger)")) close(row);
}

function setTyping(shown, milliseconds = 0) {
  clearTimeout(typingTimer);
  typingTimer = shown ? setTimeout(() => setTyping(false), milliseconds) : 0;
  showBusy();
}

// The dots stand from when something is sent until it is answered, and Stop with them while nothing else is written.
function showBusy() {
  const isBusy = waiting.size > 0 || typingTimer !== 0;
  typing.hidden = !isBusy || draft !== null;
  const canStop = (isBusy || draft !== null) && !input.value && !picked.length;
  const hadFocus = [send, stop].includes(document.activeElement);
  [stop.hidden, send.hidden] = [!canStop, canStop];
  if (hadFocus && document.activeElement !== input) input.focus();
  if (!isBusy) why.textContent = "";
}

function wait(id, entry) {
  waiting.set(id, { at: Date.now(), sent: false, seen: false, ...entry });
  store();
  showBusy();
}

function seen(id) {
  const act = waiting.get(id);
  if (act) act.seen = true;
  store();
}

function answered(id) {
  waiting.delete(id);
  mark(acts.get(id), "seen");
  store();
  showBusy();
}

// What became of our messages: a worker that dies says nothing, and some turns have no answer.
async function checkWaiting() {
  const ids = [...waiting].filter(([, act]) => act.sent || act.seen).map(([id]) => id);
  if (!ids.length) return;
  const query = new URLSearchParams(ids.slice(0, 20).map((id) => ["id", id]));
  const answer = await fetch(`${page.waiting}?${query}`, { signal: AbortSignal.timeout(15_000) }).catch(() => null);
  const found = answer?.ok ? await answer.json().catch(() => null) : null;
  for (const [id, stage] of Object.entries(found?.stages ?? {})) {
    const isOld = Date.now() - (waiting.get(id)?.at ?? 0) > UNKNOWN_MS;
    if (stage === "done" || (stage === "unknown" && isOld)) answered(id);
  }
  tellWhy(found ? found.cause : answer ? "Its storage is away." : "There is no connection.");
}

function tellWhy(cause) {
  const acts = [...waiting.values()];
  if (!acts.some(({ at }) => Date.now() - at >= STILL_MS)) return;
  const busy = acts.some((act) => act.seen) ? "The bot is working on it." : "The bot is busy with other messages.";
  const words = `Still waiting. ${cause || busy}`;
  if (why.textContent !== words) why.textContent = words;
}

setInterval(checkWaiting, CHECK_MS);
setInterval(() => log.querySelectorAll("[data-until]").forEach(countDown), 1000);

// What the feed does not know yet outlives a reload of this tab.
function store() {
  const kept = [...waiting].filter(([id, { text }]) => text && !heard.has(id)).map(([id, act]) => ({ id, ...act }));
  try {
    sessionStorage.setItem(STORED, JSON.stringify(kept.slice(-20)));
  } catch {} // some browsers allow none
}

async function restore() {
  let kept = [];
  try {
    kept = JSON.parse(sessionStorage.getItem(STORED) ?? "[]");
  } catch {}
  for (const { id, text, at, sent, body } of kept.filter((each) => !heard.has(each.id) && !acts.has(each.id))) {
    const message = addMessage("user", new Date(at), [userBubble(text, [])]);
    acts.set(id, message);
    if (sent) wait(id, { text, at, sent, body }), mark(message, "sent");
    else offerRetry(message, LOST, () => sendFrom(message, body, []));
  }
  const shown = kept.map(({ id }) => id).filter((id) => waiting.has(id));
  await checkWaiting();
  for (const id of shown) if (!waiting.has(id) && !heard.has(id)) acts.get(id).remove(); // it is in the feed with others
}

// Whoever reads the end goes on reading the end, whatever grows: a message, a picture that has come, the keyboard.
const toBottom = () => ((main.scrollTop = main.scrollHeight), (lastTop = main.scrollTop));
const follow = new ResizeObserver(() => reading || toBottom());
for (const each of [main, log, typing]) follow.observe(each);

main.onscroll = () => {
  if (main.scrollHeight - main.scrollTop - main.clientHeight < 120) reading = false;
  else if (main.scrollTop < lastTop) reading = true; // else it is the end that moved away
  lastTop = main.scrollTop;
  newest.hidden = !reading;
};
newest.onclick = () => (toBottom(), input.focus());

function setState(state, words = state) {
  const shown = byId("state");
  if (shown.textContent !== words) shown.textContent = words;
  shown.dataset.state = state;
  if (state !== "offline") setTimeout(begin, BUSY_MS);
}

// All that was said before is here.
function begin() {
  log.ariaBusy = "false";
  if (!isRestored) (isRestored = true), restore();
}

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Tries a lost connection again with the same id: the server takes each id once. Returns nothing, or why it failed and
// whether trying again is of no use.
async function post(body, attempt = 0) {
  try {
    const answer = await fetch(page.hook, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...HEADERS },
      body: JSON.stringify(body),
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

// `seen` says which entries were here when it was written: a yes that comes late is none to a later question.
function say(text, files = []) {
  const id = newId();
  const views = files.map(({ file, url }) => ({ url, mime: file.type, filename: file.name }));
  const message = addMessage("user", new Date(), [userBubble(text, views)]);
  acts.set(id, message);
  if (text) said.push(text);
  sendFrom(message, { id, text, seen: lastId }, files);
}

function sendFrom(message, body, files = []) {
  const shown = (words) => (mark(message, "unsent"), offerRetry(message, words, () => retry(message, body, files)));
  mark(message, "sending");
  wait(body.id, { text: files.length ? "" : body.text, body });
  enqueue({ body, files, message, of: message, done: () => mark(message, "sent"), failed: shown });
}

function retry(message, body, files) {
  if (outbox.some((job) => job.body.id === body.id)) flush(true);
  else sendFrom(message, body, files);
}

function enqueue(job) {
  const taken = isSending ? outbox[0] : null; // it is on its way
  outbox = [...outbox.filter((other) => other === taken || other.of !== job.of), job];
  flush();
}

// Sends what waits, in order. What cannot be sent now holds up what was said after it, until the connection is back.
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
  settle(message);
  const { failure, refused } = heard.has(body.id) ? {} : await uploadAll(message, files);
  const named = files.length ? { ...body, files: files.map(({ name }) => name) } : body;
  const trouble = refused || heard.has(body.id) ? null : failure || (await post(named));
  if (trouble && !trouble.isFinal && !heard.has(body.id)) return postpone(trouble.words);
  outbox = outbox.filter((other) => other !== job);
  resends = 0;
  if (refused) takeBack(job, refused);
  else if (trouble && !heard.has(body.id)) waiting.delete(body.id), store(), showBusy(), job.failed(trouble.words);
  else sent(job);
  return true;
}

function sent({ body, done }) {
  const act = waiting.get(body.id);
  if (act) act.sent = true;
  if (!heard.has(body.id)) done();
  store();
  if (act?.seen) checkWaiting();
}

function postpone(words) {
  for (const job of outbox) job.failed(words);
  resendTimer = setTimeout(flush, Math.min(RESEND_MS * 2 ** resends, RESEND_MAX_MS));
  resends += 1;
  return false;
}

// What the server has already is not sent again. Returns nothing, a failure to try again, or the file that was refused.
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

// fetch tells nobody how far it has come.
function upload(file, progressed) {
  const request = new XMLHttpRequest();
  return new Promise((done) => {
    request.open("POST", page.files);
    for (const [name, value] of Object.entries(HEADERS)) request.setRequestHeader(name, value);
    request.setRequestHeader("X-Sayso-Filename", encodeURIComponent(file.name.toWellFormed?.() ?? file.name));
    request.upload.onprogress = ({ loaded }) => progressed(Math.min(loaded, file.size));
    request.onerror = () => done({ failure: { words: UNSENT } });
    request.onload = () => done(uploaded(request));
    request.send(file);
  });
}

function uploaded({ status, responseText }) {
  if (status === 201) return { name: JSON.parse(responseText).file };
  if ([401, 403, 413, 415, 429].includes(status)) return { refused: responseText.trim() };
  return { failure: { words: status === 503 ? BUSY : UNSENT } };
}

// Nothing of it was sent: the words and the other files are ready to be sent without the one that was refused.
function takeBack({ message, body, files }, { each, why }) {
  message.remove();
  acts.delete(body.id);
  answered(body.id);
  URL.revokeObjectURL(each.url);
  input.value = [body.text, input.value].filter(Boolean).join("\n");
  repicked([...files.filter((other) => other !== each), ...picked], `${each.file.name}: ${why}`);
}

function pick(files) {
  const [taken, complaints] = [[...picked], []];
  for (const file of files) {
    const why = taken.length >= page.maxFiles ? `at most ${page.maxFiles} files at once` : misfit(file);
    if (why) complaints.push(`${file.name}: ${why}`);
    else taken.push({ file, url: URL.createObjectURL(file), name: "" });
  }
  repicked(taken, complaints.join("\n"));
}

function repicked(files, complaint = "") {
  picked = files;
  chips.replaceChildren(...picked.map(chipOf));
  chips.hidden = !picked.length;
  notice.textContent = complaint;
  composed();
  input.focus();
}

function misfit({ size }) {
  if (!size) return "this file is empty";
  return size > page.maxBytes ? `${sizeOf(size)} is too large, at most ${sizeOf(page.maxBytes)}` : "";
}

const sizeOf = (bytes) => (bytes < 2 ** 20 ? `${Math.ceil(bytes / 1024)} KB` : `${Number((bytes / 2 ** 20).toFixed(1))} MB`);

function chipOf(each) {
  const chip = element("li", "chip");
  const words = element("span", "label", each.file.name);
  const image = Object.assign(element("img"), { alt: "", src: each.url });
  image.onerror = () => image.replaceWith(badgeOf(each.file.name));
  const remove = pressable("remove", "×", () => drop(each));
  remove.ariaLabel = `Remove ${each.file.name}`;
  words.append(element("small", "", sizeOf(each.file.size)));
  chip.append(each.file.type.startsWith("image/") ? image : badgeOf(each.file.name), words, remove);
  return chip;
}

function drop(each) {
  URL.revokeObjectURL(each.url);
  repicked(picked.filter((other) => other !== each));
}

// A finger leaves the keyboard down; whoever types goes on typing.
const goOn = ({ detail }) => (detail === 0 || matchMedia("(hover: hover)").matches) && input.focus();

function tap(button, event) {
  const [message, id] = [button.closest(".message"), newId()];
  const unsent = (words) => button.isConnected && (choose(button, false), offerRetry(message, words, again));
  const again = (event) => (outbox.some((job) => job.body.id === id) ? (choose(button), flush(true)) : tap(button, event));
  choose(button);
  goOn(event);
  wait(id, {});
  const body = { id, tap: button.dataset.data, message: button.dataset.message };
  enqueue({ body, files: [], message, of: message, done: () => choose(button), failed: unsent });
}

function offerRetry(message, words, again) {
  settle(message);
  message.append(pressable("retry", words, (event) => (settle(message), again(event), goOn(event))));
}

// The message has arrived after all, or is about to be sent again.
function settle(message) {
  message.querySelector(".retry")?.remove();
}

function listen() {
  stream = new EventSource(`${page.events}?after=${encodeURIComponent(lastId)}`);
  alive();
  stream.onopen = () => (alive(), clearTimeout(lost), (lost = 0), setState("live"), flush(true));
  stream.onmessage = (event) => (alive(), show(event.lastEventId, JSON.parse(event.data)));
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) return clearTimeout(dead), clearTimeout(lost), poll(POLLS_BEFORE_STREAM);
    lost ||= setTimeout(() => setState("offline"), 3000); // a stream that ended is back within a second
  };
}

function alive() {
  clearTimeout(dead);
  dead = setTimeout(listenAnew, SILENT_MS);
}

function listenAnew() {
  if (stream.readyState === EventSource.CLOSED) return; // polls listen by themselves
  clearTimeout(lost);
  stream.close();
  listen();
}

window.onoffline = () => setState("offline");
window.ononline = () => (listenAnew(), flush(true));

async function poll(left) {
  if (!left) return listen();
  const signal = AbortSignal.timeout(15_000);
  const answer = await fetch(`${page.poll}?after=${encodeURIComponent(lastId)}`, { signal }).catch(() => null);
  if ([401, 403].includes(answer?.status)) return setState("offline", "session ended, reload");
  const news = answer?.ok ? await answer.json().catch(() => null) : null;
  setState(news ? "polling" : "offline");
  if (news && outbox.length) flush(true);
  for (const { at, ...entry } of news?.entries ?? []) show(at, entry);
  setTimeout(poll, POLL_MS, left - 1);
}

function composed() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  send.disabled = !input.value.trim() && !picked.length;
  const them = picked.length > 1 ? ` to ${picked.length} files` : "";
  input.placeholder = picked.length ? `Add a caption${them}` : "Message";
  if (suggestions) suggestions.parentNode.hidden = input.value !== "" || picked.length > 0;
  showBusy();
}

form.onsubmit = (event) => {
  event.preventDefault();
  const [text, files] = [input.value.trim(), picked];
  if (!text && !files.length) return;
  input.value = "";
  repicked([]);
  say(text, files);
};

byId("attach").onclick = () => picker.click();
picker.onchange = () => {
  pick(picker.files);
  picker.value = ""; // the same file may be picked again
};

// What comes from a spreadsheet or a word processor is meant as its words, though a picture of them comes along.
input.onpaste = (event) => {
  const { files, types } = event.clipboardData;
  if (!files.length || (types.includes("text/plain") && types.includes("text/html"))) return;
  event.preventDefault();
  pick(files);
};

const holdsFiles = (event) => event.dataTransfer.types.includes("Files");
const dropping = (shown) => document.body.classList.toggle("dropping", shown);
document.ondragover = (event) => holdsFiles(event) && (event.preventDefault(), dropping(true));
document.ondragleave = (event) => event.relatedTarget || dropping(false);
document.ondrop = (event) => {
  dropping(false);
  if (!holdsFiles(event)) return;
  event.preventDefault();
  pick(event.dataTransfer.files);
};

input.oninput = () => ((recalled = -1), composed());
input.onkeydown = (event) => {
  if (["ArrowUp", "ArrowDown"].includes(event.key) && recall(event.key === "ArrowUp" ? -1 : 1)) event.preventDefault();
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
};

// Brings back what was said before, as long as nothing else is being written.
function recall(step) {
  if (recalled < 0 ? input.value || step > 0 || !said.length : input.value !== said[recalled]) return false;
  const place = (recalled < 0 ? said.length : recalled) + step;
  recalled = place < said.length ? Math.max(place, 0) : -1;
  input.value = said[recalled] ?? "";
  composed();
  input.setSelectionRange(input.value.length, input.value.length);
  return true;
}

suggestions?.addEventListener("click", (event) => {
  if (!event.target.matches("button") || event.detail > 1) return; // a double click says it once
  goOn(event);
  say(event.target.textContent);
});

// They are open where nothing was said yet, and wait behind one button after that.
function unfold(isOpen) {
  if (!more) return;
  more.ariaExpanded = String(isOpen);
  suggestions.hidden = !isOpen;
}

if (more) more.onclick = () => unfold(suggestions.hidden);

stop.onclick = (event) => (goOn(event), sayAtOnce("/stop"));

// It overtakes what waits to be sent: that may be a large file.
async function sayAtOnce(text) {
  const [id, message] = [newId(), addMessage("user", new Date(), [userBubble(text, [])])];
  const body = { id, text, seen: lastId };
  acts.set(id, message);
  mark(message, "sending");
  const trouble = await post(body);
  if (trouble) return sendFrom(message, body);
  wait(id, { text, sent: true, body });
  if (heard.has(id)) seen(id), checkWaiting();
  else mark(message, "sent");
}

if (fresh)
  fresh.onclick = (event) => {
    if (!fresh.classList.contains("sure")) {
      fresh.classList.add("sure");
      setTimeout(() => fresh.classList.remove("sure"), SURE_MS);
      return;
    }
    fresh.classList.remove("sure");
    goOn(event);
    say("/reset");
  };

unfold(true);
composed();
listen();
