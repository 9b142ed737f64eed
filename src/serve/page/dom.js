// Elements. Texts go in as texts: nothing that a model, a server or a user says becomes markup.
const byId = (id) => document.getElementById(id);

function made(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Only what is new is written: selections stay, and who listens hears nothing twice.
function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function fill(bar, share) {
  bar.style.width = `${Math.round(100 * Math.min(Math.max(share, 0), 1))}%`;
}

// A line above the message box, which is read out.
function tell(text) {
  write(byId("notice"), text);
}

// To the clipboard; where a browser keeps that from pages that come without TLS, by a selection.
async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = made("textarea", "unseen");
    area.value = text;
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  tell("Copied.");
}

