// The console page: shows one feed in order, each entry once, and posts what the user says or taps.
"use strict";

const page = document.body.dataset;
const byId = (id) => document.getElementById(id);
const [log, typing, form, input, suggestions] = ["log", "typing", "composer", "text", "suggestions"].map(byId);
const [picker, chips, notice, newest] = ["picker", "picked", "notice", "newest"].map(byId);
const main = document.querySelector("main");

const [POLL_MS, POLLS_BEFORE_STREAM] = [1500, 20];
const [TYPING_MS, RETRY_MS] = [60_000, [600, 2000]];
const SILENT_MS = 90_000; // a stream ends itself every minute: one that says nothing for longer is dead
const BUSY_MS = 800; // what was said before is not read out
const HEADERS = { "X-Sayso-Console": "1" };
const ENDED = "Your session has ended. Please reload the page.";
const BUSY = "The bot is busy. Please try again shortly.";
const UNSENT = "Not sent, tap to retry";

const acts = new Map(); // event id -> our own message element
const bubbles = new Map(); // id in the feed, and id of the delivery -> the bot's message
const heard = new Set(); // what the server has told already: event ids, and ids of deliveries it may try twice
let lastId = "";
let typingTimer = 0;
let draft = null; // the answer as far as it has come
let stream = null; // the feed, while it is not polled
let [lost, dead] = [0, 0]; // when to say that it is away, and when to give it up
let picked = []; // what the next message brings: { file, url, name }, the name once the server has the file
let [reading, lastTop] = [false, 0]; // somebody has scrolled up: nothing may move what they read

function show(id, entry) {
  lastId = id;
  const at = new Date(parseInt(id, 10));
  ({ user: showUser, tap: showTap, typing: showTyping, draft: showDraft, bubble: showBubble, edit: showEdit })[entry.type]?.(entry, at, id);
}

function showUser(entry, at) {
  if (!firstHeard(entry.event)) return;
  closeButtons();
  const known = acts.get(entry.event);
  if (known) settle(known);
  else addMessage("user", at, [userBubble(entry.text, entry.files ?? [])]);
}

function showTap(entry) {
  const button = [...log.querySelectorAll(".buttons button")].find((each) => each.dataset.data === entry.data);
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
}

function dropDraft() {
  draft?.remove();
  draft = null;
}

function showBubble(entry, at, id) {
  setTyping(false);
  dropDraft();
  if (!firstHeard(entry.delivery)) return bubbles.set(id, bubbles.get(entry.delivery));
  const message = addMessage("bot", at, partsOf(entry, id));
  for (const name of [id, entry.delivery]) bubbles.set(name, message);
}

// The message of that id says something else now. Its file stays; its buttons do not, unless the new words come with some.
function showEdit(entry) {
  const message = bubbles.get(entry.of);
  if (!firstHeard(entry.delivery) || !message) return;
  const [bubble, ...buttons] = partsOf(entry, entry.of);
  if (!entry.media) bubble.append(...message.querySelectorAll("figure, .file"));
  message.querySelectorAll(".bubble, .buttons, .retry").forEach((part) => part.remove());
  message.querySelector(".sr").after(bubble, ...buttons);
}

function partsOf(entry, id) {
  const bubble = element("div", "bubble");
  bubble.append(textOf(entry), ...(entry.media ? [mediaView(entry.media)] : []));
  return [bubble, ...(entry.buttons.length ? [buttonRow(entry.buttons, id)] : [])];
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
  message.append(element("span", "sr", side === "user" ? "You: " : "Bot: "), ...parts, timeOf(at));
  log.append(message);
  if (side === "user") toBottom();
  return message;
}

function timeOf(at) {
  const today = at.toDateString() === new Date().toDateString();
  const clock = { hour: "2-digit", minute: "2-digit" };
  const words = at.toLocaleString([], today ? clock : { day: "numeric", month: "short", ...clock });
  return Object.assign(element("time", "meta", words), { dateTime: at.toISOString() });
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

function buttonRow(buttons, id) {
  const row = Object.assign(element("div", "buttons"), { role: "group", ariaLabel: "Your answer" });
  for (const each of buttons) {
    const button = pressable(each.style, each.label, () => tap(button));
    Object.assign(button.dataset, { data: each.data, message: id });
    row.append(button);
  }
  return row;
}

function choose(button, chosen = true) {
  for (const each of button.parentNode.children) each.disabled = chosen;
  button.classList.toggle("chosen", chosen);
  button.ariaLabel = chosen ? `${button.textContent}, chosen` : null;
}

// Words settle or drop whatever was waiting, so its answers have nothing left to say. An offer, such as Undo, stays.
function closeButtons() {
  for (const button of log.querySelectorAll(".buttons :is(.primary, .danger)")) button.disabled = true;
}

function setTyping(shown, milliseconds = 0) {
  clearTimeout(typingTimer);
  typing.hidden = !shown;
  if (!shown) return;
  typingTimer = setTimeout(() => setTyping(false), milliseconds);
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
  if (state !== "offline") setTimeout(() => (log.ariaBusy = "false"), BUSY_MS);
}

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Tries a lost connection again with the same id: the server takes each id once. Returns "" or why it failed.
async function post(body, attempt = 0) {
  try {
    const answer = await fetch(page.hook, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...HEADERS },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(15_000),
    });
    if (answer.ok) return "";
    if (answer.status === 503) return BUSY;
    return [401, 403].includes(answer.status) ? ENDED : UNSENT;
  } catch {
    if (attempt >= RETRY_MS.length) return UNSENT;
    await pause(RETRY_MS[attempt]);
    return post(body, attempt + 1);
  }
}

async function say(text, files = []) {
  const id = newId();
  const views = files.map(({ file, url }) => ({ url, mime: file.type, filename: file.name }));
  const message = addMessage("user", new Date(), [userBubble(text, views)]);
  acts.set(id, message);
  await sendFrom(message, { id, text }, files);
}

async function sendFrom(message, body, files = []) {
  message.classList.add("sending");
  const { failure, refused } = await uploadAll(message, files);
  if (refused) return takeBack(message, body.text, files, refused);
  const named = files.length ? { ...body, files: files.map(({ name }) => name) } : body;
  const words = failure || (await post(named));
  message.classList.remove("sending");
  if (words && !heard.has(body.id)) offerRetry(message, words, () => sendFrom(message, body, files));
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
    request.onerror = () => done({ failure: UNSENT });
    request.onload = () => done(uploaded(request));
    request.send(file);
  });
}

function uploaded({ status, responseText }) {
  if (status === 201) return { name: JSON.parse(responseText).file };
  if ([401, 403, 413, 415].includes(status)) return { refused: responseText.trim() };
  return { failure: status === 503 ? BUSY : UNSENT };
}

// Nothing of it was sent: the words and the other files are ready to be sent without the one that was refused.
function takeBack(message, text, files, { each, why }) {
  message.remove();
  URL.revokeObjectURL(each.url);
  input.value = [text, input.value].filter(Boolean).join("\n");
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

async function tap(button, id = newId()) {
  settle(button.closest(".message"));
  choose(button);
  const failure = await post({ id, tap: button.dataset.data, message: button.dataset.message });
  if (!failure || heard.has(id) || !button.isConnected) return;
  choose(button, false);
  offerRetry(button.closest(".message"), failure, () => tap(button, id));
}

function offerRetry(message, words, again) {
  settle(message);
  message.append(pressable("retry", words, () => (settle(message), again())));
}

// The message has arrived after all, or is about to be sent again.
function settle(message) {
  message.classList.remove("sending");
  message.querySelector(".retry")?.remove();
}

function listen() {
  stream = new EventSource(`${page.events}?after=${encodeURIComponent(lastId)}`);
  alive();
  stream.onopen = () => (alive(), clearTimeout(lost), (lost = 0), setState("live"));
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
window.ononline = listenAnew;

async function poll(left) {
  if (!left) return listen();
  const signal = AbortSignal.timeout(15_000);
  const answer = await fetch(`${page.poll}?after=${encodeURIComponent(lastId)}`, { signal }).catch(() => null);
  if ([401, 403].includes(answer?.status)) return setState("offline", "session ended, reload");
  const news = answer?.ok ? await answer.json().catch(() => null) : null;
  setState(news ? "polling" : "offline");
  for (const { at, ...entry } of news?.entries ?? []) show(at, entry);
  setTimeout(poll, POLL_MS, left - 1);
}

function composed() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  byId("send").disabled = !input.value.trim() && !picked.length;
  const them = picked.length > 1 ? ` to ${picked.length} files` : "";
  input.placeholder = picked.length ? `Add a caption${them}` : "Message";
  if (suggestions) suggestions.hidden = input.value !== "" || picked.length > 0;
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

input.oninput = composed;
input.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
};

suggestions?.addEventListener("click", (event) => {
  if (event.target.matches("button") && event.detail < 2) say(event.target.textContent); // a double click says it once
});

composed();
listen();
