/** The demo page: choose a model, load it, talk to it. */
import { checkSupport, createEngine, TINY_MODEL, type ChatMessage, type Engine, type ModelSource, type Progress } from "./index.js";

function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

const setup = element<HTMLFormElement>("setup");
const url = element<HTMLInputElement>("url");
const file = element<HTMLInputElement>("file");
const composer = element<HTMLFormElement>("composer");
const input = element<HTMLTextAreaElement>("input");
const log = element<HTMLOListElement>("log");
const main = document.querySelector("main") as HTMLElement;

let engine: Engine | undefined;
let adapter = "";
let messages: ChatMessage[] = [];
/** Ends the download or the answer that is in flight. */
let running: AbortController | undefined;

function show(state: "unsupported" | "setup" | "chat"): void {
  element("unsupported").hidden = state !== "unsupported";
  setup.hidden = state !== "setup";
  for (const id of ["chat", "composer", "clear", "unload"]) element(id).hidden = state !== "chat";
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(bytes < 1e8 ? 1 : 0)} MB`;
}

// --- loading -----------------------------------------------------------------------------------------------------------

function chosen(): ModelSource {
  const which = new FormData(setup).get("model");
  if (which === "tiny") return TINY_MODEL;
  if (which === "url") return url.value;
  return [...(file.files ?? [])].sort((a, b) => (a.name < b.name ? -1 : 1));
}

async function load(model: ModelSource): Promise<void> {
  running?.abort();
  const abort = (running = new AbortController());
  element("failed").hidden = true;
  busy(true);
  const started = performance.now();
  const onProgress = ({ phase, done, total }: Progress): void => {
    element<HTMLProgressElement>("bar").value = phase === "compile" ? 1 : done / total;
    const speed = done / 1e3 / (performance.now() - started);
    element("loaded").textContent =
      phase === "load" ? `${megabytes(done)} of ${megabytes(total)} · ${speed.toFixed(1)} MB/s` : phase === "test" ? "Testing the GPU …" : "Compiling kernels …";
  };
  try {
    const loaded = await createEngine(model, { onProgress, signal: abort.signal });
    engine = loaded;
    const { name, parameters } = loaded.info;
    element("adapter").textContent = `${name} · ${(parameters / 1e6).toFixed(parameters < 1e7 ? 1 : 0)}M · ${adapter}`;
    show("chat");
    input.focus();
  } catch (error) {
    if (!abort.signal.aborted) {
      element("failed").textContent = (error as Error).message;
      element("failed").hidden = false;
    }
  } finally {
    if (running === abort) {
      running = undefined;
      busy(false);
    }
  }
}

function busy(loading: boolean): void {
  element<HTMLFieldSetElement>("choice").disabled = loading;
  element("loading").hidden = !loading;
  element("load").hidden = loading;
  element("cancel").hidden = !loading;
  if (loading) {
    element<HTMLProgressElement>("bar").removeAttribute("value");
    element("loaded").textContent = "Asking for the file …";
    element("cancel").focus();
  }
}

async function unload(): Promise<void> {
  running?.abort();
  clear();
  await engine?.dispose();
  engine = undefined;
  element("adapter").textContent = adapter;
  show("setup");
  element("load").focus();
}

// --- conversation --------------------------------------------------------------------------------------------------------

/** Adds a message to the log; gives the element of its text. */
function entry(role: "user" | "assistant", text: string): HTMLElement {
  const item = document.createElement("li");
  item.className = role;
  const paragraph = document.createElement("p");
  paragraph.className = "text";
  paragraph.textContent = text;
  item.append(paragraph);
  log.append(item);
  element("empty").hidden = true;
  return paragraph;
}

/** What stands below an answer: how fast it was, and a button that copies it. */
function foot(text: HTMLElement, note: string): void {
  const line = document.createElement("div");
  line.className = "foot";
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.onclick = async () => {
    await navigator.clipboard.writeText(text.textContent ?? "");
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  };
  line.append(copy, note);
  text.after(line);
}

async function answer(): Promise<void> {
  const content = input.value.trim();
  if (!engine || !content || running) return;
  const abort = (running = new AbortController());
  input.value = "";
  messages.push({ role: "user", content });
  entry("user", content);
  const text = entry("assistant", "");
  const item = text.parentElement as HTMLElement;
  item.setAttribute("aria-busy", "true");
  log.ariaBusy = "true";
  answering(true);
  main.scrollTop = main.scrollHeight;

  const began = performance.now();
  let first = 0;
  let pieces = 0;
  let note = "";
  try {
    const stream = await engine.chat.completions.create(
      {
        messages,
        stream: true,
        stream_options: { include_usage: true },
        temperature: element<HTMLInputElement>("temperature").valueAsNumber || 0,
        max_tokens: element<HTMLInputElement>("tokens").valueAsNumber || 256,
      },
      { signal: abort.signal },
    );
    for await (const chunk of stream) {
      const piece = chunk.choices[0]?.delta.content;
      if (piece) {
        const atEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 40;
        text.append(piece);
        if (atEnd) main.scrollTop = main.scrollHeight;
        if (pieces++ === 0) first = performance.now();
        else element("rate").textContent = `${((pieces - 1) / (performance.now() - first) * 1000).toFixed(1)} tokens/s`;
      }
      if (chunk.timings) {
        const { first_token_ms, tokens_per_second } = chunk.timings;
        note = `${tokens_per_second.toFixed(1)} tokens/s · first after ${(first_token_ms / 1000).toFixed(2)} s`;
        if (chunk.choices[0]?.finish_reason === "length") note += " · cut off";
      }
      if (chunk.usage) {
        const { prompt_tokens, prompt_tokens_details } = chunk.usage;
        note += ` · ${prompt_tokens - prompt_tokens_details.cached_tokens} of ${prompt_tokens} tokens read`;
      }
    }
  } catch (error) {
    note = abort.signal.aborted ? `stopped after ${((performance.now() - began) / 1000).toFixed(1)} s` : (error as Error).message;
    if (!abort.signal.aborted) item.classList.add("error");
  }
  item.removeAttribute("aria-busy");
  log.ariaBusy = "false";
  // Cleared meanwhile: nothing is left to add to.
  if (!item.isConnected) return;
  messages.push({ role: "assistant", content: text.textContent ?? "" });
  foot(text, note);
  running = undefined;
  answering(false);
  main.scrollTop = main.scrollHeight;
}

function answering(on: boolean): void {
  element("send").hidden = on;
  element("stop").hidden = !on;
  element("rate").textContent = "";
  if (!on) input.focus();
}

function clear(): void {
  running?.abort();
  running = undefined;
  messages = [];
  log.replaceChildren();
  element("empty").hidden = false;
  answering(false);
}

// --- events --------------------------------------------------------------------------------------------------------------

setup.addEventListener("submit", (event) => {
  event.preventDefault();
  void load(chosen());
});
setup.addEventListener("change", () => {
  const which = new FormData(setup).get("model");
  url.required = which === "url";
  file.required = which === "file";
});
element("cancel").addEventListener("click", () => running?.abort());
element("unload").addEventListener("click", () => void unload());
composer.addEventListener("submit", (event) => {
  event.preventDefault();
  void answer();
});
element("stop").addEventListener("click", () => running?.abort());
element("clear").addEventListener("click", clear);
input.addEventListener("keydown", (event) => {
  // On a phone, Enter begins a line: there is a button to send.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && matchMedia("(pointer: fine)").matches) {
    event.preventDefault();
    composer.requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
for (const type of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(type, (event) => {
    event.preventDefault();
    document.body.classList.toggle("dropping", type === "dragover" && !setup.hidden);
  });
}
document.addEventListener("drop", (event) => {
  const files = [...(event.dataTransfer?.files ?? [])];
  if (files.length > 0 && !setup.hidden && !running) void load(files);
});

const support = await checkSupport();
if (support.ok) {
  adapter = support.adapter + (support.software ? " (software, slow)" : "");
  element("adapter").textContent = adapter;
  const wanted = new URLSearchParams(location.search).get("model");
  if (wanted) {
    // The field takes whole addresses only: `?model=/models/FILE.gguf` is completed with this page's.
    url.value = URL.canParse(wanted, location.href) ? new URL(wanted, location.href).href : wanted;
    url.required = true;
    setup.querySelector<HTMLInputElement>("[value=url]")!.checked = true;
  }
  show("setup");
} else {
  element("adapter").textContent = "";
  element("reason").textContent = support.reason ?? "";
  element("advice").textContent = support.advice ?? "";
  show("unsupported");
}
