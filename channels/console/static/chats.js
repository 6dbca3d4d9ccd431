// The list of the user's conversations: open, begin, rename and delete them; and the user's name.
"use strict";

const chatsPanel = byId("chats");
const chatsList = byId("chat-list");
const chatsProblem = byId("chats-problem");
const menu = byId("menu");
const LIST_MS = 30_000; // how often the list is loaded for the mark of unread conversations
const SURE_MS = 4000; // for the second press on Delete
const SEEN = `sayso:seen:${page.hook}`; // when each conversation was opened last
const UNREACHED = "The list cannot be reached. Please try again.";

const chatAddress = (id) => `${page.home}?chat=${id}`;

async function askChats(change) {
  const signal = AbortSignal.timeout(POLL_TIMEOUT_MS);
  const options = change ? { ...jsonPost(change), signal } : { signal };
  const answer = await fetch(page.chats, options).catch(() => null);
  const found = await jsonOf(answer);
  chatsProblem.textContent = found || answer?.status === 404 ? "" : UNREACHED;
  return found;
}

async function loadChats() {
  const found = await askChats();
  if (!found) return;
  const listed = found.chats.filter(({ id, at }) => at || id === page.chat);
  const seen = { ...readSeen(), [page.chat]: Date.now() + CLOCK_AHEAD_MS };
  writeSeen(Object.fromEntries(listed.map(({ id, at }) => [id, seen[id] ?? at * 1000])));
  const isUnread = ({ id, at }) => id !== page.chat && at * 1000 > (seen[id] ?? at * 1000);
  const unread = listed.filter(isUnread);
  menu.classList.toggle("unread", unread.length > 0);
  menu.ariaLabel = unread.length ? "Conversations, with new messages" : "Conversations";
  if (chatsList.querySelector("input, .sure")) return; // the user is about to rename or delete
  const focused = document.activeElement?.closest("#chat-list li")?.dataset.chat;
  chatsList.replaceChildren(...listed.map((chat) => chatRow(chat, unread.includes(chat))));
  if (focused !== undefined) {
    const row = [...chatsList.children].find(({ dataset }) => dataset.chat === focused);
    row?.querySelector("a").focus();
  }
  if (listed.length > 1 && !location.search) history.replaceState(null, "", chatAddress(page.chat));
}

function chatRow(chat, isUnread) {
  const row = element("li");
  row.dataset.chat = chat.id;
  const title = chat.title || (chat.at ? "Conversation" : "New conversation");
  const link = element("a", isUnread ? "unread" : "");
  link.href = chatAddress(chat.id);
  link.append(element("span", "title", title), element("small", "", chatNote(chat, isUnread)));
  link.querySelector(".title").dir = "auto";
  if (chat.id === page.chat) link.setAttribute("aria-current", "page");
  const rename = iconButton("rename", `Rename ${title}`, () => editTitle(row, title, chat.id));
  const remove = iconButton("remove", `Delete ${title}`, () => deleteChat(remove, chat.id));
  row.append(link, rename, remove);
  return row;
}

function chatNote(chat, isUnread) {
  if (isUnread) return "new messages";
  return chat.at ? timeOf(new Date(chat.at * 1000)).textContent : "";
}

function iconButton(name, label, onclick) {
  const button = pressable(name, "", onclick);
  button.innerHTML = byId(`${name}-icon`).innerHTML;
  return Object.assign(button, { ariaLabel: label, title: label });
}

function editTitle(row, title, id) {
  const field = element("input");
  Object.assign(field, { value: title, maxLength: page.maxTitle, ariaLabel: "Title" });
  const done = async (isSaved) => {
    field.onblur = null; // it is removed below, which would save again
    field.remove();
    if (isSaved && field.value.trim()) await askChats({ rename: id, title: field.value });
    await loadChats();
  };
  field.onkeydown = (event) => {
    if (!["Enter", "Escape"].includes(event.key) || event.isComposing) return;
    event.preventDefault(); // Escape would close the panel
    done(event.key === "Enter");
  };
  field.onblur = () => done(true);
  row.replaceChildren(field);
  field.select();
}

// The bot forgets the conversation, then the page does. The second press counts.
async function deleteChat(button, id) {
  if (!button.classList.contains("sure")) {
    button.classList.add("sure");
    button.textContent = "Delete?";
    button.ariaLabel = button.ariaLabel.replace("Delete", "Really delete");
    setTimeout(() => notSure(button), SURE_MS);
    return;
  }
  button.disabled = true;
  let found = null;
  if (page.commands && !(await forget(id))) chatsProblem.textContent = UNREACHED;
  else found = await askChats({ delete: id });
  button.classList.remove("sure");
  button.disabled = false;
  if (found && id === page.chat) return location.assign(page.home);
  await loadChats();
}

// The second press did not come: shows the list anew, unless that was done meanwhile.
function notSure(button) {
  if (!button.isConnected) return;
  button.classList.remove("sure");
  loadChats();
}

// Clears the history of a conversation and cancels its open question. Waits for the bot to do so.
async function forget(chat) {
  const id = newId();
  const { words } = await post({ id, text: "/reset", chat });
  if (words) return false;
  for (let tries = 0; tries < 20; tries += 1) {
    await pause(250);
    const query = new URLSearchParams({ id, ...(chat && { chat }) });
    const answer = await fetch(`${page.waiting}?${query}`).catch(() => null);
    if (answer?.status === 404) return true;
    if (answer?.ok && (await answer.json()).statuses[id] !== "waits") return true;
  }
  return true; // no worker is running: it forgets once one does
}

function readSeen() {
  try {
    return JSON.parse(localStorage.getItem(SEEN) ?? "{}");
  } catch {
    return {};
  }
}

function writeSeen(seen) {
  try {
    localStorage.setItem(SEEN, JSON.stringify(seen));
  } catch {} // some browsers do not allow it
}

menu.onclick = () => {
  chatsPanel.showModal();
  loadChats();
};
byId("close-chats").onclick = () => chatsPanel.close();
chatsPanel.onclick = ({ target }) => {
  if (target === chatsPanel) chatsPanel.close(); // a press beside the panel
};
chatsPanel.onclose = () => input.focus();

async function beginChat() {
  if (!log.childElementCount) {
    chatsPanel.close();
    input.focus();
    return;
  }
  const found = await askChats({ new: true });
  if (found) location.assign(chatAddress(found.id));
  else if (!chatsPanel.open) notice.textContent = UNREACHED;
}

// The name goes with the next message. The server cuts it to one short line.
byId("naming").onsubmit = async (event) => {
  event.preventDefault();
  const field = byId("person");
  const hint = byId("person-hint");
  const answer = await fetch(page.namePath, jsonPost({ name: field.value })).catch(() => null);
  const found = await jsonOf(answer);
  hint.role = "status";
  if (!found) {
    hint.textContent = "Not saved. Please try again.";
    return;
  }
  page.person = found.name;
  field.value = found.name;
  hint.textContent = found.name ? "Saved." : "You have no name now.";
};

byId("fresh").onclick = beginChat;
byId("new-chat").onclick = beginChat;

loadChats();
setInterval(() => {
  if (!document.hidden) loadChats();
}, LIST_MS);
