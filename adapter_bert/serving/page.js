"use strict";
// Asks a text of every task that reads such a text. Whatever comes from the
// server or a person is shown as text, never as markup.

const element = (id) => document.getElementById(id);
let served;

async function get(path, options) {
  const response = await fetch(path, options);
  const found = await response.json();
  if (!response.ok) throw new Error(found.error);
  return found;
}

function addRow(...texts) {
  const row = element("answers").tBodies[0].insertRow();
  for (const text of texts) row.insertCell().textContent = text;
}

// The answer and how sure it is, as a person reads them.
function shown(answer) {
  if (answer.kind === "regression") return [answer.value.toFixed(3), ""];
  if (answer.kind === "multi-label") return [answer.label || "(none)", ""];
  if (answer.kind === "questions") {
    return [answer.answer || "(no answer)", answer.score.toFixed(2)];
  }
  return [answer.label, `${(100 * answer.probability).toFixed(1)} %`];
}

// The instances in as few requests as the server's limits allow.
function divide(instances) {
  const bytes = (value) =>
    new TextEncoder().encode(JSON.stringify(value)).length;
  const around = bytes({ instances: [] });
  const requests = [];
  let room = 0;
  for (const instance of instances) {
    const size = bytes(instance) + 1; // With a comma.
    const last = requests.at(-1);
    if (last && size <= room && last.length < served.max_rows) {
      last.push(instance);
    } else {
      requests.push([instance]);
      room = served.max_body_bytes - around;
    }
    room -= size;
  }
  return requests;
}

async function ask(event) {
  event.preventDefault();
  const [text, text_b] = ["text", "text_b"].map((id) => element(id).value);
  const count = text_b ? 2 : 1;
  const tasks = served.tasks.filter((task) => task.texts.includes(count));
  const instances = tasks.map((task) => ({ task: task.name, text, text_b }));
  element("answers").tBodies[0].replaceChildren();
  element("message").textContent = tasks.length
    ? "..."
    : `No task reads ${count === 1 ? "one text" : "two texts"}.`;
  element("ask").disabled = true;
  try {
    for (const some of divide(instances)) {
      const found = await get(`v1/models/${served.name}:predict`, {
        method: "POST",
        body: JSON.stringify({ instances: some }),
      });
      found.predictions.forEach((answer, i) =>
        addRow(some[i].task, ...shown(answer)),
      );
    }
    if (tasks.length) element("message").textContent = "";
  } catch (error) {
    element("message").textContent = error.message;
  }
  element("answers").hidden = !element("answers").tBodies[0].rows.length;
  element("ask").disabled = false;
}

async function start() {
  try {
    served = await get("tasks");
    const count = served.tasks.length;
    element("about").textContent =
      `${served.name}, version ${served.version}: ` +
      `${count} ${count === 1 ? "task" : "tasks"} on one BERT`;
    element("form").addEventListener("submit", ask);
    element("ask").disabled = false;
  } catch (error) {
    element("about").textContent = error.message;
  }
}

start();
