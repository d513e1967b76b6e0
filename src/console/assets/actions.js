// Buttons of actions, and the dialog that asks for a reason.
import { element, field } from "./dom.js";
import { act, may } from "./api.js";

const dialog = document.getElementById("dialog");
const notice = document.getElementById("notice");

/** Shows a sentence for six seconds. */
export function notify(text) {
  notice.textContent = text;
  clearTimeout(notify.timer);
  notify.timer = setTimeout(() => { notice.textContent = ""; }, 6000);
}

/** Button that shows something. A failure is told. */
export function button(label, show) {
  const onclick = async (event) => {
    try {
      await show(event);
    } catch (error) {
      notify(error.message);
    }
  };
  return element("button", { type: "button", onclick }, label);
}

/**
 * Button that opens the dialog and performs the action. `fields` are further inputs; `action` gets
 * their values. Without the permission there is no button; the server checks it as well.
 */
export function actionButton(label, { title, text, fields = [], danger = true, permission = "act", action, done }) {
  if (!may(permission)) return null;
  const open = async () => {
    const values = await ask(label, title, text, fields);
    if (values === null) return;
    try {
      const result = await act({ ...action(values), reason: values.reason });
      notify(result.text ?? "Done.");
      await done?.(result);
    } catch (error) {
      notify(error.message);
    }
  };
  return element("button", { type: "button", class: danger ? "danger" : null, onclick: open }, label);
}

function ask(label, title, text, fields) {
  document.getElementById("dialog-title").textContent = title;
  document.getElementById("dialog-text").textContent = text ?? "";
  document.getElementById("dialog-act").textContent = label;
  const reason = field("Reason, for the audit log", { name: "reason", required: true, maxlength: "200" });
  document.getElementById("dialog-fields").replaceChildren(...fields.map((make) => make()), reason);
  const form = dialog.querySelector("form");
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "act" ? Object.fromEntries(new FormData(form)) : null);
    }, { once: true });
  });
}
