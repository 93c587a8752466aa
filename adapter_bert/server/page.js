"use strict";
// Asks texts of the chosen tasks, and shows their answers. Whatever comes from
// the server or a person is shown as text, never as markup.

const element = (id) => document.getElementById(id);
let served;
let token = "";

// ------------------------------------------------------------ the server

class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

async function get(path, body) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = body ? { method: "POST", body, headers } : { headers };
  const response = await fetch(path, options);
  const content = await response.json();
  if (!response.ok) throw new Refused(response.status, content.error);
  return content;
}

const pathOf = (kind) =>
  `v1/models/${encodeURIComponent(served.name)}:${kind}`;
const answerPath = () => pathOf("answer");

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
  return requests.map((some) => JSON.stringify({ instances: some }));
}

// A request as a line for a shell.
function curlLine(body) {
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const url = new URL(answerPath(), location.href).href;
  const header = token ? ' -H "Authorization: Bearer $TOKEN"' : "";
  return `curl ${quote(url)}${header} -d ${quote(body)}`;
}

// ------------------------------------------------------------- the tasks

const CHOICE = "multiple choice";
const choiceCount = (task) => (task.kind === CHOICE ? task.labels.length : 0);
// The numbers of texts that a task reads, without choices.
const textCounts = (task) => task.texts.map((n) => n - choiceCount(task));
const chosen = () =>
  served.tasks.filter((_, i) => element(`task-${i}`)?.checked);

function listed(names, most = 8) {
  const some = names.slice(0, most).join(", ");
  return names.length > most ? `${some} and ${names.length - most} more` : some;
}

function reads(task) {
  const names = task.columns ?? [];
  const texts = names.slice(0, names.length - choiceCount(task));
  const counts = textCounts(task);
  const textsShown =
    texts.length > 1 && counts.includes(1) && counts.includes(2)
      ? `${texts[0]}, or also ${texts[1]}`
      : texts.join(" and ") || (counts.includes(2) ? "two texts" : "a text");
  const count = choiceCount(task);
  return count ? `${textsShown}, and ${count} choices` : textsShown;
}

function answers(task) {
  switch (task.kind) {
    case "classification":
      return task.labels ? `one of ${listed(task.labels)}` : "a label";
    case "multi-label":
      return task.labels ? `any of ${listed(task.labels)}` : "labels";
    case "regression":
      return "a number";
    case "rerank":
      return "a score of the document";
    case "questions":
      return "words of the context, or none";
    case "tagging":
      return task.types ? `entities: ${listed(task.types)}` : "entities";
    case CHOICE:
      return "one of the choices";
    default:
      return task.kind;
  }
}

function listTasks() {
  element("tasks").replaceChildren(
    ...served.tasks.map((task, number) => {
      const row = make("label", "task");
      const box = make("input");
      box.type = "checkbox";
      box.id = `task-${number}`;
      box.checked = number === 0;
      box.addEventListener("change", showFields);
      const about = make("span");
      about.append(
        make("b", "", task.name),
        make("small", "", `reads ${reads(task)}`),
        make("small", "", `answers ${answers(task)}`),
      );
      row.append(box, about);
      return row;
    }),
  );
  element("filter").hidden = served.tasks.length <= 8;
}

function filterTasks() {
  const wanted = element("filter").value.toLowerCase();
  served.tasks.forEach((task, i) => {
    const row = element(`task-${i}`).parentElement;
    row.hidden = !task.name.toLowerCase().includes(wanted);
  });
}

function choose(all) {
  served.tasks.forEach((_, i) => {
    const box = element(`task-${i}`);
    // Tasks that are not seen are not chosen.
    box.checked = all && !box.parentElement.hidden;
  });
  showFields();
}

// ------------------------------------------------------------ the fields

// Texts for any task of a form; their answers say little of the task.
const EXAMPLES = {
  "a text": [
    { text: "The staff were kind and quick, but my room was cold." },
    { text: "An odd film: slow at first, and moving in the end." },
  ],
  "two texts": [
    {
      text: "The shop opens at nine o'clock.",
      text_b: "You cannot buy anything there at eight.",
    },
    { text: "He sat down on the bench.", text_b: "He stood all day." },
  ],
  "a question": [
    {
      text: "When was the bridge finished?",
      text_b:
        "The bridge over the river was planned in 1901. Work began two " +
        "years later, and it was finished in the summer of 1907.",
    },
    {
      text: "Who paid for the bridge?",
      text_b:
        "The bridge over the river was planned in 1901. Work began two " +
        "years later, and it was finished in the summer of 1907.",
    },
  ],
  "a sentence": [
    { text: "Marie Curie moved from Warsaw to Paris in 1891 ." },
    { text: "The bank in New York sold its shares of Siemens to Anna Berg ." },
  ],
  choices: [
    {
      text: "It rained all night.",
      text_b: "In the morning",
      choices: [
        "the street was wet.",
        "the street was dry.",
        "the moon was made of paper.",
        "nobody had ever seen rain.",
        "the rain had not begun.",
      ],
    },
  ],
};

function formOf(task) {
  if (task.kind === CHOICE) return "choices";
  if (task.kind === "questions") return "a question";
  if (task.kind === "tagging") return "a sentence";
  return Math.min(...task.texts) > 1 ? "two texts" : "a text";
}

function showFields() {
  const tasks = chosen();
  const has = (test) => tasks.some(test);
  const asksTwo = (task) => textCounts(task).includes(2) && !task.questions;
  element("for-text").hidden = !tasks.length;
  element("for-text_b").hidden = !has(asksTwo);
  element("for-question").hidden = !has((task) => task.questions);
  // The name of a field is the tasks' own if they have one name for it.
  const label = (place, general, some) => {
    const names = new Set(some.map((task) => task.columns?.[place]));
    return names.size === 1 && !names.has(undefined) ? [...names][0] : general;
  };
  const labels = document.querySelector.bind(document);
  labels("label[for=text]").textContent = label(0, "Text", tasks);
  labels("label[for=text_b]").textContent =
    label(1, "Second text", tasks.filter(asksTwo)) +
    (tasks.every((task) => Math.min(...textCounts(task)) < 2)
      ? " (may be left out)"
      : "");
  const questions = new Set(tasks.flatMap((task) => task.questions ?? []));
  const before = element("question").value;
  element("question").replaceChildren(
    ...[...questions].map((text) => make("option", "", text)),
  );
  if (questions.has(before)) element("question").value = before;
  showChoices(tasks);
  showExamples(tasks);
  element("ask").disabled = !tasks.length;
}

// A field for each choice, which keeps what was typed.
function showChoices(tasks) {
  const most = Math.max(0, ...tasks.map(choiceCount));
  const widest = tasks.find((task) => choiceCount(task) === most);
  const typed = choiceTexts();
  element("choices").replaceChildren(
    ...Array.from({ length: most }, (_, i) => {
      const label = make("label", "", widest.labels[i]);
      const field = make("input");
      field.id = `choice-${i}`;
      field.value = typed[i] ?? "";
      label.htmlFor = field.id;
      const both = make("div");
      both.append(label, field);
      return both;
    }),
  );
}

const choiceTexts = () =>
  [...element("choices").querySelectorAll("input")].map((x) => x.value);

function showExamples(tasks) {
  const forms = new Set(tasks.map(formOf));
  const rows = [...forms].flatMap((form) => EXAMPLES[form]);
  element("examples").replaceChildren(
    make("span", "hint", rows.length ? "Try" : ""),
    ...rows.map((example, number) => {
      const button = make("button", "", example.text);
      button.type = "button";
      button.addEventListener("click", () => fillIn(example));
      button.id = `example-${number}`;
      return button;
    }),
  );
}

function fillIn(example) {
  element("text").value = example.text;
  if (example.text_b !== undefined) element("text_b").value = example.text_b;
  element("choices")
    .querySelectorAll("input")
    .forEach((field, i) => {
      field.value = example.choices?.[i] ?? field.value;
    });
}

// The request's row for a task, from the fields.
function instanceOf(task) {
  const row = { task: task.name, text: element("text").value };
  const second = element("text_b").value;
  const counts = textCounts(task);
  if (task.questions) {
    row.text_b = element("question").value;
  } else if (counts.includes(2) && (second || !counts.includes(1))) {
    row.text_b = second;
  }
  const count = choiceCount(task);
  if (count) row.choices = choiceTexts().slice(0, count);
  return row;
}

// ----------------------------------------------------------- the answers

function make(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

// Bars of all scores, the greatest first; `isBest` tells which are given.
function bars(scores, isBest, shownName = (name) => name) {
  const sorted = Object.entries(scores).sort(([, a], [, b]) => b - a);
  const list = make("ul", "bars");
  for (const [name, score] of sorted) {
    const row = make("li");
    const best = isBest(name) ? " best" : "";
    const track = make("span", `track${best}`);
    const bar = make("i");
    bar.style.width = `${Math.max(0, Math.min(1, score)) * 100}%`;
    track.append(bar, make("span", "", shownName(name)));
    row.append(track, make("span", `share${best}`, percent(score)));
    list.append(row);
  }
  return list;
}

// A text with marks; each is [start, end, type or ""] in characters, in order.
// A character may be two of JavaScript's.
function passage(text, marks, types) {
  const letters = Array.from(text);
  const shownText = make("p", "passage");
  let place = 0;
  for (const [start, end, type] of marks) {
    shownText.append(letters.slice(place, start).join(""));
    const mark = make("mark", `type-${types.indexOf(type) % 6}`);
    mark.append(letters.slice(start, end).join(""));
    if (type) mark.append(make("small", "", type));
    shownText.append(mark);
    place = end;
  }
  shownText.append(letters.slice(place).join(""));
  return shownText;
}

function entitiesInText(answer, row, task) {
  const marks = answer.entities.map(({ start, end, label }) => [
    start,
    end,
    label,
  ]);
  const types = task.types ?? [...new Set(marks.map((mark) => mark[2]))].sort();
  const shownParts = [passage(row.text, marks, types)];
  if (!marks.length) shownParts.unshift(make("p", "nothing", "no entity"));
  return shownParts;
}

function spanInContext(answer, row) {
  const scores = [];
  if (answer.score !== null) scores.push(`score ${answer.score.toFixed(2)}`);
  if (answer.null_score !== null) {
    scores.push(`“no answer” ${answer.null_score.toFixed(2)}`);
  }
  const isThere = answer.start !== null;
  return [
    isThere
      ? make("p", "answer", answer.answer)
      : make("p", "nothing", "no answer"),
    passage(row.text_b, isThere ? [[answer.start, answer.end, ""]] : [], [""]),
    make("p", "told", scores.join(", ")),
  ];
}

// Tells that a task left a row without an answer.
function unanswered(answer) {
  return answer === null ? [make("p", "nothing", "not sure enough")] : [];
}

// What a person sees of an answer.
function shown(answer, row, task) {
  switch (task.kind) {
    case "regression":
      return [make("p", "answer", answer.value.toFixed(3))];
    case "rerank":
      return [make("p", "answer", answer.score.toFixed(3))];
    case "questions":
      return spanInContext(answer, row);
    case "tagging":
      return entitiesInText(answer, row, task);
    case "multi-label": {
      const isGiven = (name) => answer.labels.includes(name);
      const nothing = answer.labels.length
        ? []
        : [make("p", "nothing", "no label")];
      return [...nothing, bars(answer.scores, isGiven)];
    }
    case CHOICE: {
      const names = task.labels;
      const text = (name) => row.choices[names.indexOf(name)];
      return [
        ...unanswered(answer.choice),
        bars(answer.scores, (n) => n === names[answer.choice], text),
      ];
    }
    case "vectors": {
      const first = answer.vector.slice(0, 8).map((x) => x.toFixed(3));
      const count = answer.vector.length;
      return [make("p", "answer", `${first.join(", ")}, ... (${count} numbers)`)];
    }
    default:
      // A kind that is not built in.
      if (!answer.scores) return [make("p", "answer", JSON.stringify(answer))];
      return [
        ...unanswered(answer.label),
        bars(answer.scores, (name) => name === answer.label),
      ];
  }
}

// A text whose words are coloured by what each adds to the answer.
function colouredText(column, text, words, strongest) {
  const letters = Array.from(text);
  const shownText = make("p", "passage");
  let place = 0;
  for (const word of words.filter((one) => one.column === column)) {
    shownText.append(letters.slice(place, word.start).join(""));
    const share = strongest ? Math.abs(word.attribution) / strongest : 0;
    const side = word.attribution < 0 ? "against" : "for";
    const mark = make("mark", `word ${side}`, word.text);
    mark.style.setProperty("--share", `${(60 * share).toFixed(0)}%`);
    mark.title = word.attribution.toFixed(3);
    shownText.append(mark);
    place = word.end;
  }
  shownText.append(letters.slice(place).join(""));
  return shownText;
}

const signed = (x) => (x < 0 ? "\u2212" : "+") + Math.abs(x).toFixed(3);

// Coloured texts, and what becomes of the answer without the strongest words.
function reasons({ label, words, completeness }, row, task) {
  const strongest = Math.max(...words.map((x) => Math.abs(x.attribution)), 0);
  const columns = task.columns ?? ["text", "text_b"];
  const texts = [row.text, row.text_b].filter((text) => text !== undefined);
  const what = label === undefined ? "the value" : `\u201c${label}\u201d`;
  const checked = words
    .filter((word) => word.left_out !== undefined)
    .sort((a, b) => Math.abs(b.attribution) - Math.abs(a.attribution))
    .map((word) =>
      make("li", "", `without \u201c${word.text}\u201d: ${signed(word.left_out)}`),
    );
  const list = make("ul", "told");
  list.append(...checked);
  return [
    make("p", "told", `Words for ${what} are underlined, others dotted.`),
    ...texts.map((text, i) => colouredText(columns[i], text, words, strongest)),
    list,
    make("p", "told", `error of the sum: ${completeness.error.toFixed(3)}`),
  ];
}

function whyButton(row, task) {
  const button = make("button", "why", "Why this answer");
  button.type = "button";
  const wrong = make("p", "wrong");
  button.addEventListener("click", async () => {
    button.disabled = true;
    wrong.remove();
    try {
      const body = JSON.stringify({ instances: [row] });
      const { answers } = await get(pathOf("explain"), body);
      button.replaceWith(...reasons(answers[0].explanation, row, task));
    } catch (error) {
      wrong.textContent = error.message;
      button.after(wrong);
      button.disabled = false;
    }
  });
  return button;
}

function card(answer, row, task) {
  const made = make("article", "card");
  made.append(make("h3", "", task.name), ...shown(answer, row, task));
  if (served.explained.includes(task.name)) made.append(whyButton(row, task));
  return made;
}

function say(text, isWrong = false) {
  element("message").textContent = text;
  element("message").className = isWrong ? "wrong" : "told";
}

async function ask() {
  const tasks = chosen();
  if (!tasks.length || element("ask").disabled) return;
  const rows = tasks.map(instanceOf);
  const bodies = divide(rows);
  // Answers to an earlier question may still come, and then are not shown.
  const answered = make("div");
  element("answers").replaceChildren(answered);
  element("curl").textContent = bodies.map(curlLine).join("\n");
  element("request").hidden = false;
  say("Asking ...");
  element("ask").disabled = true;
  const began = performance.now();
  let count = 0;
  try {
    for (const body of bodies) {
      const { answers } = await get(answerPath(), body);
      for (const answer of answers) {
        answered.append(card(answer, rows[count], tasks[count]));
        count += 1;
      }
    }
    const took = performance.now() - began;
    const many = `${count} ${count === 1 ? "answer" : "answers"}`;
    const parts = bodies.length > 1 ? `, ${bodies.length} requests` : "";
    say(`${many} in ${took.toFixed(0)} ms${parts}`);
  } catch (error) {
    say(error.message, true);
  }
  element("ask").disabled = false;
  // On a phone answers are below the fields.
  element("told").scrollIntoView({ block: "nearest" });
}

// ------------------------------------------------------------- the start

async function start() {
  try {
    served = await get("tasks");
  } catch (error) {
    element("about").textContent = error.message;
    if (error.code === 401) {
      element("about").textContent = token
        ? "The server does not know this token."
        : "";
      element("sign-in").hidden = false;
      element("token").select();
    }
    return;
  }
  element("sign-in").hidden = true;
  const count = served.tasks.length;
  element("about").textContent =
    `${served.name}, version ${served.version}: ` +
    `${count} ${count === 1 ? "task" : "tasks"} on one BERT`;
  element("main").hidden = !count;
  listTasks();
  showFields();
}

function submit(event) {
  event.preventDefault();
  ask();
}

element("form").addEventListener("submit", submit);
element("form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) submit(event);
});
element("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  token = element("token").value.trim();
  start();
});
element("filter").addEventListener("input", filterTasks);
element("all").addEventListener("click", () => choose(true));
element("none").addEventListener("click", () => choose(false));
element("copy").addEventListener("click", async () => {
  // Pages that are not https may not copy; the line can be marked by hand.
  await navigator.clipboard?.writeText(element("curl").textContent);
});
start();
