// The page as a whole: who hears which key and button.
async function showModels(key) {
  const models = await modelsOf(key);
  const wanted = byId("model").value || inBrowser.get("model");
  byId("model").replaceChildren(...models.map(({id}) => {
    const option = made("option", "", id);
    option.value = id;
    option.selected = id === wanted;
    return option;
  }));
}

function askForKey(words, wrong = "") {
  write(byId("key-words"), words);
  write(byId("key-wrong"), wrong);
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
  byId("key").focus();
}

// A message that was refused asks again; the figures, which are asked for each second, don't.
let isDeclined = false;
function onKeyNeeded() {
  if (!byId("key-dialog").open) askForKey("This server asks for its API key.");
}
function onFiguresRefused() {
  if (!isDeclined) onKeyNeeded();
}
function decline() {
  isDeclined = true;
  byId("key-dialog").close();
}

// Tries the key before it is kept.
async function useKey(event) {
  event.preventDefault();
  const key = byId("key").value.trim();
  try {
    if (key && !isKey(key)) throw new Refused(401, "");
    await showModels(key);
  } catch (error) {
    byId("key").setAttribute("aria-invalid", "true");
    const wrong = error.status === 401 ? (key ? "This key is not the server's." : "Give a key.") : error.message;
    return askForKey(byId("key-words").textContent, wrong);
  }
  inTab.set("key", key);
  byId("key").value = "";
  byId("key").removeAttribute("aria-invalid");
  isDeclined = false;
  byId("key-dialog").close();
  tell("The key was taken.");
  panel.look();
  byId("message").focus();
}

function send(event) {
  event?.preventDefault();
  const text = byId("message").value;
  if (!text.trim()) return;
  if (chat.isWriting) return tell("An answer is being written; Esc stops it.");
  if (chat.send(text)) byId("message").value = "";
}

keepSettings();
refuseFiles();
const chat = new Chat(new Announcer(byId("announcer")), onKeyNeeded);
const panel = new Panel(onFiguresRefused);
const talks = new TalkList(chat);

byId("composer").addEventListener("submit", send);
byId("message").addEventListener("keydown", (event) => {
  // Enter may also end a word that an input method composes.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !byId("key-dialog").open && !chat.endEdit(chat.draft)) chat.stop();
});
byId("stop").addEventListener("click", () => chat.stop());
byId("regenerate").addEventListener("click", () => {
  chat.regenerate();
  byId("message").focus();
});
byId("new-chat").addEventListener("click", () => {
  chat.leaveFor(null);
  tell("");
  byId("message").focus();
});
byId("model").addEventListener("change", () => inBrowser.set("model", byId("model").value));
byId("key-button").addEventListener("click", () => askForKey("It is sent with all that this page asks."));
byId("key-form").addEventListener("submit", useKey);
byId("key-cancel").addEventListener("click", decline);
byId("key-dialog").addEventListener("cancel", decline);
window.addEventListener("pagehide", () => chat.leave("Stopped: the page was left."));
talks.show();

showModels(inTab.get("key")).catch((error) => {
  if (error.status === 401) onKeyNeeded();
  else tell(error.message);
});
byId("message").focus();
