// Chats with the server that this page comes from. What models write goes into text nodes alone.

const $ = (id) => document.getElementById(id);
const log = $("log"), input = $("input"), failed = $("failed");
const SETTINGS = "wgslm-serve-settings";
let messages = [];
let running = null;

/** An element with children: texts become text nodes. */
function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

/** Code, bold and italics of a line. */
function inline(text) {
  const parts = [];
  let rest = text;
  for (;;) {
    const found = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*/.exec(rest);
    if (!found) break;
    parts.push(rest.slice(0, found.index));
    if (found[1]) parts.push(element("code", found[1]));
    else if (found[2]) parts.push(element("strong", found[2]));
    else parts.push(element("em", found[3]));
    rest = rest.slice(found.index + found[0].length);
  }
  return [...parts, rest];
}

/** Markdown as elements: headings, lists, code, paragraphs. */
function markdown(text) {
  const blocks = [];
  let lines = [], list = null, code = null;
  const end = () => {
    if (lines.length) blocks.push(element("p", ...lines.flatMap((line, i) => (i ? [element("br"), ...line] : line))));
    [lines, list] = [[], null];
  };
  for (const line of text.split("\n")) {
    if (/^\s*```/.test(line)) {
      if (code === null) {
        end();
        code = [];
      } else {
        blocks.push(element("pre", element("code", code.join("\n"))));
        code = null;
      }
      continue;
    }
    if (code !== null) {
      code.push(line);
      continue;
    }
    const heading = /^(#{1,6})\s+(.*)/.exec(line);
    const item = /^\s*(?:[-*+]|(\d+)[.)])\s+(.*)/.exec(line);
    if (heading) {
      end();
      blocks.push(element(`h${Math.min(heading[1].length + 2, 6)}`, ...inline(heading[2])));
    } else if (item) {
      if (lines.length) end();
      const kind = item[1] ? "OL" : "UL";
      if (list?.tagName !== kind) {
        list = element(kind);
        if (item[1]) list.start = Number(item[1]);
        blocks.push(list);
      }
      list.append(element("li", ...inline(item[2])));
    } else if (!line.trim()) {
      end();
    } else {
      list = null;
      lines.push(inline(line));
    }
  }
  end();
  if (code !== null) blocks.push(element("pre", element("code", code.join("\n"))));
  return blocks;
}

function settings() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
  } catch {
    return {};
  }
}

function headers() {
  const { key } = settings();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

function fail(text) {
  failed.textContent = text;
  failed.hidden = !text;
}

async function refused(response) {
  const said = await response.json().catch(() => null);
  return new Error(said?.error?.message ?? `${response.status} ${response.statusText}`);
}

async function models() {
  try {
    const response = await fetch("v1/models", { headers: headers() });
    if (!response.ok) throw await refused(response);
    const { data } = await response.json();
    $("model").replaceChildren(...data.map((model) => element("option", model.id)));
    fail("");
  } catch (error) {
    fail(`${error.message}. The key stands in the settings.`);
  }
}

/** The events of a stream, each parsed. */
async function* events(body) {
  const decoder = new TextDecoder();
  let held = "";
  // Not every browser iterates over streams.
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += decoder.decode(value, { stream: true });
    const lines = held.split("\n");
    held = lines.pop();
    for (const line of lines) {
      const data = line.startsWith("data: ") ? line.slice(6) : "[DONE]";
      if (data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function ask(text) {
  const { system, key, ...sampling } = settings();
  messages.push({ role: "user", content: text });
  const question = element("div", text);
  question.className = "message user";
  const thought = element("details", element("summary", "Thoughts"), "");
  thought.hidden = true;
  const answer = element("div");
  const whole = element("div", thought, answer);
  whole.className = "message";
  log.append(question, whole);
  whole.scrollIntoView({ block: "end" });
  log.setAttribute("aria-busy", "true");
  let said = "", usage = null, began = 0;
  const control = (running = new AbortController());
  const own = messages; // another conversation may begin meanwhile
  let frame = 0;
  const show = () => {
    frame = 0;
    const main = log.parentElement;
    const below = main.scrollHeight - main.scrollTop - main.clientHeight < 80;
    answer.replaceChildren(...markdown(said));
    if (below) main.scrollTop = main.scrollHeight;
  };
  try {
    const body = {
      model: $("model").value || undefined,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
      stream: true,
      stream_options: { include_usage: true },
      ...sampling,
    };
    const request = { method: "POST", headers: headers(), body: JSON.stringify(body), signal: control.signal };
    const response = await fetch("v1/chat/completions", request);
    if (!response.ok) throw await refused(response);
    for await (const event of events(response.body)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const delta = event.choices?.[0]?.delta ?? {};
      if (delta.reasoning_content) {
        thought.hidden = false;
        thought.lastChild.data += delta.reasoning_content;
      }
      if (delta.content || delta.reasoning_content) began ||= performance.now();
      said += delta.content ?? "";
      frame ||= requestAnimationFrame(show);
    }
    if (usage) {
      const seconds = (performance.now() - began) / 1000;
      const rate = (usage.completion_tokens / Math.max(seconds, 0.001)).toFixed(1);
      const known = usage.prompt_tokens_details?.cached_tokens ?? 0;
      $("rate").textContent =
        `${usage.prompt_tokens} tokens read (${known} known), ${usage.completion_tokens} written, ${rate} a second`;
    }
  } catch (error) {
    if (error.name !== "AbortError") fail(error.message);
  }
  cancelAnimationFrame(frame);
  show();
  // An answer of thoughts alone is one; without any the question is as good as never asked.
  if (said || !thought.hidden) own.push({ role: "assistant", content: said });
  else own.pop();
  log.setAttribute("aria-busy", "false");
  running = null;
}

async function submit() {
  const text = input.value.trim();
  if (!text || running) return;
  fail("");
  input.value = "";
  [$("send").hidden, $("stop").hidden] = [true, false];
  await ask(text);
  [$("send").hidden, $("stop").hidden] = [false, true];
  input.focus();
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
input.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => {
  running?.abort();
  messages = [];
  log.replaceChildren();
  $("rate").textContent = "";
  fail("");
});
$("settings").addEventListener("click", () => {
  const known = settings();
  for (const field of $("fields").querySelectorAll("[name]")) field.value = known[field.name] ?? "";
  $("options").showModal();
});
$("options").addEventListener("close", () => {
  const next = {};
  for (const field of $("fields").querySelectorAll("[name]")) {
    if (field.value === "") continue;
    next[field.name] = field.type === "number" ? Number(field.value) : field.value;
  }
  localStorage.setItem(SETTINGS, JSON.stringify(next));
  models();
});
models();
input.focus();
