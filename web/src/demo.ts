/** The demo page: chats with a model that is chosen in a dialog and loaded when it is first needed. */
import { allChats, deleteChat, newChat, saveChat, type Chat, type Message } from "./chats.js";
import {
  checkSupport,
  createEngine,
  models,
  TINY_MODEL,
  type ChatMessage,
  type ChatRequest,
  type DeviceState,
  type Engine,
  type ModelSource,
  type Plan,
  type Progress,
} from "./index.js";
import { copyButton, MarkdownView } from "./markdown.js";
import { isKept } from "./models.js";
import { moduleOf } from "./support.js";

function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

const input = element<HTMLTextAreaElement>("input");
const log = element("log");
const main = document.querySelector("main") as HTMLElement;
const setup = element<HTMLFormElement>("setup");
const url = element<HTMLInputElement>("url");
const file = element<HTMLInputElement>("file");

function bytes(count: number): string {
  return count < 1e9 ? `${(count / 1e6).toFixed(count < 1e8 ? 1 : 0)} MB` : `${(count / 1e9).toFixed(1)} GB`;
}

function stored<T>(name: string, otherwise: T): T {
  try {
    return { ...otherwise, ...(JSON.parse(localStorage.getItem(name) ?? "{}") as Partial<T>) };
  } catch {
    return otherwise;
  }
}

function store(name: string, value: unknown): void {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // a browser that keeps nothing forgets it with the page
  }
}

// --- settings ------------------------------------------------------------------------------------------------------------

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens", "context_size"] as const;
type Settings = { system: string; theme: string } & Partial<Record<(typeof NUMBERS)[number], number>>;
let settings: Settings = stored<Settings>("wgslm-settings", { system: "", theme: "" });

function showSettings(): void {
  element<HTMLTextAreaElement>("system").value = String(settings.system);
  element<HTMLSelectElement>("theme").value = ["light", "dark"].includes(settings.theme) ? settings.theme : "";
  for (const name of NUMBERS) element<HTMLInputElement>(name).value = String(settings[name] ?? "");
  document.documentElement.dataset["theme"] = element<HTMLSelectElement>("theme").value;
}

function takeSettings(): void {
  settings = { system: element<HTMLTextAreaElement>("system").value, theme: element<HTMLSelectElement>("theme").value };
  for (const name of NUMBERS) {
    const field = element<HTMLInputElement>(name);
    if (field.value !== "" && field.validity.valid) settings[name] = field.valueAsNumber;
  }
  document.documentElement.dataset["theme"] = settings.theme;
  store("wgslm-settings", settings);
}

// --- the model -----------------------------------------------------------------------------------------------------------

/** A model that was chosen; loaded when it is first needed. */
interface Chosen {
  source: ModelSource;
  name: string;
  note: string;
}

const TINY: Chosen = { source: TINY_MODEL, name: "Tiny stories", note: "It tells short stories and knows nothing else. It comes with this page: 2 MB." };

let chosen = TINY;
let engine: Engine | undefined;
let loading: Promise<Engine> | undefined;
/** Ends the download. */
let download: AbortController | undefined;
let device = "";
const PROCESSOR = "processor";
/** `?device=gpu` or `?device=cpu` in the address. */
const forced = (["gpu", "cpu"] as const).find((device) => device === new URLSearchParams(location.search).get("device"));

function choose(model: Chosen): void {
  chosen = model;
  element("model-name").textContent = model.name;
  element("device").textContent = device;
  element("about-model").textContent = model.note;
  element("failed").hidden = true;
  element("notice").textContent = "";
  // Files cannot be found again by the next visit.
  if (typeof model.source === "string") store("wgslm-model", model);
}

/** The engine of the chosen model. Several answers wait for the same. */
function ready(): Promise<Engine> {
  if (engine) return Promise.resolve(engine);
  if (!loading) {
    const own = (loading = load(chosen).finally(() => {
      // Another model may have been chosen meanwhile.
      if (loading === own) loading = undefined;
    }));
  }
  return loading;
}

async function load(model: Chosen): Promise<Engine> {
  const abort = (download = new AbortController());
  element("failed").hidden = true;
  element("loading").hidden = false;
  element<HTMLProgressElement>("bar").removeAttribute("value");
  say("Asking for the file …");
  let began = performance.now();
  let first: number | undefined;
  const onProgress = ({ phase, done, total }: Progress): void => {
    if (download !== abort) return;
    if (phase === "download" && first === undefined) [first, began] = [done, performance.now()];
    const downloading = first !== undefined && phase === "load";
    if (downloading && done < total) return; // the download says more
    element<HTMLProgressElement>("bar").value = total > 0 ? done / total : 0;
    const seconds = (performance.now() - began) / 1000;
    if (phase === "download") {
      const speed = seconds > 0.2 ? ` · ${bytes((done - first!) / seconds)}/s` : "";
      say(`${bytes(done)} of ${bytes(total)}${speed}`);
    } else say(phase === "load" ? `Loading ${bytes(done)} of ${bytes(total)}` : phase === "test" ? "Testing the GPU …" : `Compiling kernels, ${done} of ${total}`);
  };
  try {
    const context = settings.context_size ?? 4096;
    const loaded = await createEngine(model.source, { onProgress, signal: abort.signal, context, onDevice, device: forced ?? "auto" });
    if (abort.signal.aborted) {
      void loaded.dispose();
      throw abort.signal.reason;
    }
    engine = loaded;
    const { smallerCache, fallback } = loaded.info;
    showDevice(fallback);
    const notices = [
      fallback !== undefined && `It runs on the processor, for the graphics hardware does not work: ${fallback}.`,
      loaded.notKept && `This model is not kept for the next visit: ${loaded.notKept}.`,
      smallerCache && `${smallerCache[0]!.toUpperCase()}${smallerCache.slice(1)}.`,
    ];
    if (notices.some(Boolean)) element("notice").textContent = notices.filter(Boolean).join(" ");
    const { name, parameters } = loaded.info;
    element("device").textContent = `${(parameters / 1e6).toFixed(parameters < 1e7 ? 1 : 0)}M · ${device}`;
    if (model.name === "") element("model-name").textContent = name;
    meter();
    // The page opens without a network from now on; before, nothing is fetched that was not asked for.
    void navigator.serviceWorker?.register(`service-worker.js?${moduleOf(loaded.info.device, loaded.info.threads)}`).catch(() => {});
    if (typeof model.source === "string" && model.source !== TINY_MODEL) void models.persist();
    return loaded;
  } catch (error) {
    if (!abort.signal.aborted) {
      element("failed").textContent = (error as Error).message;
      element("failed").hidden = false;
    }
    throw error;
  } finally {
    if (download === abort) {
      download = undefined;
      element("loading").hidden = true;
    }
  }
}

function say(what: string): void {
  element("loaded").textContent = what;
}

let countdown: ReturnType<typeof setInterval> | undefined;

function onDevice(state: DeviceState): void {
  clearInterval(countdown);
  const notice = element("notice");
  if (state.state === "restored") {
    notice.textContent = "The graphics device is back, and the model is loaded again.";
    return;
  }
  const until = performance.now() + state.seconds * 1000;
  const show = (): void => {
    const left = Math.ceil((until - performance.now()) / 1000);
    notice.textContent = `The graphics device was lost. The model is loaded again${left > 0 ? ` in ${left} s` : " …"}`;
    if (left <= 0) clearInterval(countdown);
  };
  show();
  countdown = setInterval(show, 500);
}

async function unload(): Promise<void> {
  download?.abort();
  download = undefined;
  element("loading").hidden = true;
  for (const abort of running.values()) abort.abort();
  const old = engine;
  engine = loading = undefined;
  await old?.dispose();
}

// --- choosing a model ----------------------------------------------------------------------------------------------------

interface Listed {
  name: string;
  reference: string;
  /** Megabytes. */
  about: number;
  license: string;
  note: string;
}

let catalogue: Listed[] = [];
/** What was looked up and waits for a second press. */
let planned: { chosen: Chosen; plan: Plan } | undefined;
let looking: AbortController | undefined;

async function openModels(): Promise<void> {
  planned = undefined;
  element("plan").textContent = "";
  element("refused").hidden = true;
  element("load").textContent = "Continue";
  await showModels();
  const dialog = element<HTMLDialogElement>("models");
  if (!dialog.open) dialog.showModal();
}

/** The list: what comes with the page, what is kept, what the file of models names. */
async function showModels(selected = typeof chosen.source === "string" ? chosen.source : ""): Promise<void> {
  if (catalogue.length === 0) {
    catalogue = await fetch("models.json")
      .then((response) => response.json() as Promise<Listed[]>)
      .catch(() => []);
  }
  const kept = await models.list();
  const byReference = new Map(kept.map((model) => [model.source, model]));
  const rows: HTMLElement[] = [option(TINY_MODEL, TINY.name, "2 MB · MIT OR Apache-2.0 · comes with this page, tells short stories")];
  for (const { name, reference, about, license, note } of catalogue) {
    const here = byReference.get(reference);
    byReference.delete(reference);
    rows.push(option(reference, name, `${here?.complete ? `${bytes(here.bytes)}, kept here` : `about ${about} MB`} · ${license} · ${note}`, here));
  }
  for (const model of byReference.values()) {
    const part = model.complete ? `${bytes(model.bytes)}, kept here` : `${bytes(model.downloaded)} of ${bytes(model.bytes)} are here`;
    rows.push(option(model.source, model.name, [part, model.license, model.source].filter(Boolean).join(" · "), model));
  }
  element("list").replaceChildren(...rows);
  const radios = [...setup.querySelectorAll<HTMLInputElement>("[name=model]")];
  (radios.find(({ value }) => value === selected) ?? radios[0]!).checked = true;
  const { free, persisted } = await models.storage();
  element("storage").textContent = free > 0 ? `${bytes(free)} of storage are free${persisted ? ", and kept" : ""}` : "";
}

function option(value: string, name: string, about: string, kept?: { id: string; name: string }): HTMLElement {
  const label = document.createElement("label");
  label.className = "choice";
  const radio = document.createElement("input");
  Object.assign(radio, { type: "radio", name: "model", value });
  const text = document.createElement("span");
  const small = document.createElement("small");
  small.textContent = about;
  text.append(name, " ", small);
  label.append(radio, text);
  const row = document.createElement("div");
  row.className = "option";
  row.append(label);
  if (kept) {
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "Delete";
    remove.setAttribute("aria-label", `Delete ${name} from this browser`);
    remove.onclick = async () => {
      try {
        await models.delete(kept.id);
      } catch (error) {
        refuse(error);
      }
      await showModels();
      element("close-models").focus();
    };
    row.append(remove);
  }
  return row;
}

function refuse(error: unknown): void {
  element("refused").textContent = (error as Error).message;
  element("refused").hidden = false;
}

function picked(): Chosen | undefined {
  const which = String(new FormData(setup).get("model"));
  if (which === TINY_MODEL) return TINY;
  if (which === "other") {
    const source = url.value.trim();
    return source ? { source, name: source.split("/").pop()!.replace(/\.gguf$/i, ""), note: source } : undefined;
  }
  if (which === "file") return fromFiles([...(file.files ?? [])]);
  const listed = catalogue.find(({ reference }) => reference === which);
  if (listed) return { source: which, name: listed.name, note: `${listed.note} · ${listed.license}` };
  // Kept from an earlier visit: of several parts each has its address.
  const parts = which.split("\n");
  return { source: parts.length > 1 ? parts : which, name: parts[0]!.split("/").pop()!.replace(/\.gguf$/i, ""), note: parts[0]! };
}

function fromFiles(files: File[]): Chosen | undefined {
  const sorted = files.sort((a, b) => (a.name < b.name ? -1 : 1));
  return sorted[0] && { source: sorted, name: sorted[0].name.replace(/\.gguf$/i, ""), note: "From this machine; read, not uploaded." };
}

/** First what it takes is said, then it is loaded; what is here already is loaded at once. */
async function submitted(): Promise<void> {
  element("refused").hidden = true;
  const wanted = picked();
  if (!wanted) {
    refuse(new Error("Say which: a reference, an address or a file."));
    return;
  }
  if (planned?.chosen.source === wanted.source) return use(wanted);
  looking?.abort();
  const abort = (looking = new AbortController());
  element("plan").textContent = "Looking it up …";
  try {
    const plan = await models.plan(wanted.source, { signal: abort.signal });
    if (abort.signal.aborted) return;
    if (plan.complete || wanted === TINY) return await use(wanted);
    planned = { chosen: wanted, plan };
    const terms = plan.license ? ` Licence: ${plan.license}.` : "";
    const rest = plan.kept > 0 ? `${bytes(plan.bytes - plan.kept)} more of ${bytes(plan.bytes)}` : bytes(plan.bytes);
    const space = plan.fits ? `${bytes(plan.storage.free)} of storage are free.` : `Only ${bytes(plan.storage.free)} of storage are free: it will not be kept for the next visit.`;
    const memory = device === PROCESSOR && !plan.fitsProcessor ? " The processor's memory in a page ends at 4 GB: a smaller quantisation works." : "";
    element("plan").textContent = `${plan.name}: ${rest} from ${plan.host}. ${space}${memory}${terms}`;
    element("load").textContent = "Download";
  } catch (error) {
    if (abort.signal.aborted) return;
    element("plan").textContent = "";
    refuse(error);
  }
}

/** Says what answers, and why; `fallback` is why the graphics hardware was left for the processor. */
function showDevice(fallback?: string): void {
  const { adapter, software, reason = "It was chosen in the address.", advice } = support;
  const gpu = (forced ?? support.device) === "gpu" && fallback === undefined;
  device = gpu ? `${adapter ?? "WebGPU"}${software ? " (software, slow)" : ""}` : PROCESSOR;
  const where = !gpu
    ? `It runs on the processor of this machine. ${fallback === undefined ? reason : `The graphics hardware does not work: ${fallback}.`}`
    : adapter === undefined
      ? `The address asks for WebGPU. ${reason}`
      : software
        ? `It runs through WebGPU on ${adapter}, which computes on the processor: slowly.`
        : `It runs on your graphics hardware, ${adapter}, through WebGPU.`;
  element("where").textContent = `${where} What you write stays on this machine.`;
  element("why").textContent = `${where} ${gpu ? "" : (advice ?? "")}`;
}

async function use(model: Chosen): Promise<void> {
  element<HTMLDialogElement>("models").close();
  await unload();
  choose(model);
  input.focus();
  await ready().catch(() => {});
}

// --- chats ---------------------------------------------------------------------------------------------------------------

let chats: Chat[] = [];
let current = newChat();
/** The answers in flight, by the chat that they belong to: each chat has at most one, and the engine takes several at once. */
const running = new Map<string, AbortController>();
/** Where the texts of the chat that is shown are. */
const views = new WeakMap<Message, { article: HTMLElement; view: MarkdownView }>();

function showChats(): void {
  const items = chats.map((chat) => {
    const item = document.createElement("li");
    const open = document.createElement("button");
    open.type = "button";
    open.textContent = `${running.has(chat.id) ? "… " : ""}${chat.title}`;
    if (chat.id === current.id) open.setAttribute("aria-current", "true");
    open.onclick = () => {
      show(chat);
      side(false);
    };
    const remove = document.createElement("button");
    remove.type = "button";
    remove.textContent = "✕";
    remove.setAttribute("aria-label", `Delete the chat “${chat.title}”`);
    remove.onclick = () => void forget(chat);
    item.append(open, remove);
    return item;
  });
  element("chats").replaceChildren(...items);
}

async function forget(chat: Chat): Promise<void> {
  running.get(chat.id)?.abort();
  chats = chats.filter(({ id }) => id !== chat.id);
  await deleteChat(chat.id);
  if (chat.id === current.id) show(newChat());
  else showChats();
  element("new").focus();
}

function show(chat: Chat): void {
  current = chat;
  log.replaceChildren(...chat.messages.map((message, i) => entry(chat, message, i)));
  element("empty").hidden = chat.messages.length > 0;
  showChats();
  answering();
  meter();
  main.scrollTop = main.scrollHeight;
}

function small(label: string, name: string, act: () => void): HTMLButtonElement {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = label;
  button.setAttribute("aria-label", name);
  button.onclick = act;
  return button;
}

/** An answer as it is shown: thoughts come first, and are open while there is nothing else. */
function withThoughts({ content, reasoning_content: thought }: Message, running = false): string {
  return thought ? `<think>${thought}${running && !content ? "" : "</think>"}${content}` : content;
}

/** A message of a chat, with what can be done about it. */
function entry(chat: Chat, message: Message, index: number): HTMLElement {
  const article = document.createElement("article");
  const mine = message.role === "user";
  article.className = `${mine ? "user" : "assistant"}${message.error ? " failed" : ""}`;
  article.setAttribute("aria-label", mine ? "You" : "The model");
  const text = document.createElement("div");
  text.className = "text";
  const view = new MarkdownView(text);
  // What a person writes is shown as it was written.
  if (mine) text.textContent = message.content;
  else view.update(withThoughts(message));
  article.append(text);
  views.set(message, { article, view });
  if (!mine && running.has(chat.id) && index === chat.messages.length - 1) article.setAttribute("aria-busy", "true");
  else article.append(foot(chat, message, index));
  return article;
}

function foot(chat: Chat, message: Message, index: number): HTMLElement {
  const line = document.createElement("div");
  line.className = "foot";
  if (message.role === "user") line.append(small("Edit", "Edit this message", () => edit(chat, message, index)));
  else {
    line.append(copyButton(() => message.content, "Copy the answer"), small("Regenerate", "Regenerate this answer", () => again(chat, index)));
    const note = document.createElement("span");
    note.textContent = message.note ?? "";
    if (message.error) note.className = "error";
    line.append(note);
  }
  return line;
}

/** Answers once more from a message on; what followed is gone. */
function again(chat: Chat, index: number): void {
  if (running.has(chat.id)) return;
  chat.messages.length = index;
  show(chat);
  void answer(chat);
}

function edit(chat: Chat, message: Message, index: number): void {
  const article = views.get(message)?.article;
  if (!article || running.has(chat.id)) return;
  const form = document.createElement("form");
  const field = document.createElement("textarea");
  field.value = message.content;
  field.rows = Math.min(8, message.content.split("\n").length + 1);
  field.setAttribute("aria-label", "Your message");
  const send = document.createElement("button");
  send.textContent = "Send again";
  send.className = "main";
  const line = document.createElement("div");
  line.className = "foot";
  line.append(send, small("Cancel", "Leave the message as it was", () => show(chat)));
  form.append(field, line);
  form.onsubmit = (event) => {
    event.preventDefault();
    if (!field.value.trim()) return;
    chat.messages.length = index;
    ask(chat, field.value.trim());
  };
  field.onkeydown = (event) => {
    if (event.key === "Escape") show(chat);
  };
  article.replaceChildren(form);
  field.focus();
}

function ask(chat: Chat, content: string): void {
  if (chat.messages.length === 0) {
    chat.title = content.split("\n")[0]!.slice(0, 60);
    if (!chats.includes(chat)) chats.unshift(chat);
  }
  chat.messages.push({ role: "user", content });
  show(chat);
  void answer(chat);
}

function request(chat: Chat, ready: Engine): ChatRequest {
  const said: ChatMessage[] = chat.messages.filter(({ content }) => content).map(({ role, content, reasoning_content }) => ({ role, content, ...(reasoning_content ? { reasoning_content } : {}) }));
  const { temperature, top_p, top_k, min_p, repetition_penalty, seed, max_tokens = 1024 } = settings;
  const sampling = { temperature, top_p, top_k, min_p, repetition_penalty, seed };
  const set = Object.fromEntries(Object.entries(sampling).filter(([, value]) => value !== undefined));
  // A model without a template goes on writing where the text ends.
  const what = ready.info.chat
    ? { messages: settings.system ? [{ role: "system" as const, content: settings.system }, ...said] : said }
    : { prompt: said.map(({ content }) => content).join("\n") };
  return { ...what, ...set, max_tokens };
}

async function answer(chat: Chat): Promise<void> {
  if (running.has(chat.id)) return;
  const abort = new AbortController();
  running.set(chat.id, abort);
  const reply: Message = { role: "assistant", content: "" };
  chat.messages.push(reply);
  chat.changed = Date.now();
  /** What a visit that ends meanwhile leaves to the next. */
  const keep = (): Promise<void> => {
    const before = chat.messages.slice(0, chat.messages.indexOf(reply));
    return saveChat({ ...chat, messages: reply.content ? [...before, { ...reply, note: "the page was closed meanwhile" }] : before });
  };
  let kept = performance.now();
  void keep();
  log.append(entry(chat, reply, chat.messages.length - 1));
  log.ariaBusy = "true";
  answering();
  showChats();
  main.scrollTop = main.scrollHeight;

  /** At most once a frame: a fast model writes more often than the screen changes. */
  let scheduled = false;
  const paint = (): void => {
    scheduled = false;
    const shown = views.get(reply);
    if (!shown?.article.isConnected) return;
    const atEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
    shown.view.update(withThoughts(reply, true));
    if (atEnd) main.scrollTop = main.scrollHeight;
  };

  let began = performance.now();
  let first = 0;
  let pieces = 0;
  try {
    const loaded = await stoppable(ready(), abort.signal);
    began = performance.now();
    const stream = await loaded.chat.completions.create({ ...request(chat, loaded), stream: true, stream_options: { include_usage: true } }, { signal: abort.signal });
    for await (const chunk of stream) {
      const { content, reasoning_content: thought } = chunk.choices[0]?.delta ?? {};
      if (content || thought) {
        if (content) reply.content += content;
        if (thought) reply.reasoning_content = (reply.reasoning_content ?? "") + thought;
        if (!scheduled) {
          scheduled = true;
          // A page that is not seen has no frames.
          if (document.hidden) setTimeout(paint, 200);
          else requestAnimationFrame(paint);
        }
        if (performance.now() - kept > 1000 && chats.includes(chat)) {
          kept = performance.now();
          void keep();
        }
        if (pieces++ === 0) first = performance.now();
        else if (chat.id === current.id) element("rate").textContent = `${(((pieces - 1) / (performance.now() - first)) * 1000).toFixed(1)} tokens/s`;
      }
      if (chunk.timings) {
        const { first_token_ms, tokens_per_second } = chunk.timings;
        reply.note = `${tokens_per_second.toFixed(1)} tokens/s · first after ${(first_token_ms / 1000).toFixed(2)} s`;
        if (chunk.choices[0]?.finish_reason === "length") reply.note += " · cut off";
      }
      if (chunk.usage) {
        const { prompt_tokens, total_tokens, prompt_tokens_details } = chunk.usage;
        reply.note += ` · ${prompt_tokens - prompt_tokens_details.cached_tokens} of ${prompt_tokens} tokens read`;
        chat.used = total_tokens;
      }
    }
  } catch (error) {
    if (abort.signal.aborted) reply.note = `stopped after ${((performance.now() - began) / 1000).toFixed(1)} s`;
    else {
      reply.note = (error as Error).message;
      reply.error = true;
    }
  }
  running.delete(chat.id);
  log.ariaBusy = "false";
  if (!chats.includes(chat)) return; // deleted meanwhile
  await saveChat(chat);
  const shown = views.get(reply);
  if (shown?.article.isConnected) {
    const atEnd = main.scrollHeight - main.scrollTop - main.clientHeight < 60;
    shown.view.update(withThoughts(reply));
    shown.article.removeAttribute("aria-busy");
    shown.article.classList.toggle("failed", reply.error === true);
    shown.article.append(foot(chat, reply, chat.messages.indexOf(reply)));
    if (atEnd) main.scrollTop = main.scrollHeight;
  }
  showChats();
  answering();
  meter();
}

/** A promise, or the signal's reason if that comes first. */
function stoppable<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason as Error));
    promise.then(resolve, reject);
  });
}

function answering(): void {
  const on = running.has(current.id);
  const had = document.activeElement === element("stop");
  element("send").hidden = on;
  element("stop").hidden = !on;
  element("rate").textContent = "";
  if (!on && had) input.focus();
}

function meter(): void {
  const { used = 0 } = current;
  const total = engine?.info.context ?? 0;
  element("context").hidden = total === 0 || used === 0;
  Object.assign(element<HTMLMeterElement>("used"), { max: total || 1, high: total * 0.8, value: used });
  element("used-text").textContent = `${used} of ${total} tokens`;
}

// --- events --------------------------------------------------------------------------------------------------------------

function side(open: boolean): void {
  const narrow = matchMedia("(max-width: 48rem)").matches;
  element("side").classList.toggle("open", open);
  element("shade").hidden = !open;
  element("open-side").setAttribute("aria-expanded", String(open));
  if (narrow) element(open ? "close-side" : "open-side").focus();
}

element("open-side").onclick = () => side(true);
element("close-side").onclick = element("shade").onclick = () => side(false);
element("new").onclick = () => {
  show(newChat());
  element("side").classList.remove("open");
  element("shade").hidden = true;
  input.focus();
};
element("model").onclick = () => void openModels();
element("close-models").onclick = () => {
  looking?.abort();
  element<HTMLDialogElement>("models").close();
};
element("settings").onclick = () => {
  showSettings();
  element<HTMLDialogElement>("options").showModal();
};
element("settings-form").onchange = takeSettings;
element("options").onclose = takeSettings;
setup.addEventListener("submit", (event) => {
  event.preventDefault();
  void submitted();
});
setup.addEventListener("change", () => {
  planned = undefined;
  looking?.abort();
  element("plan").textContent = "";
  element("refused").hidden = true;
  element("load").textContent = "Continue";
});
element("cancel").onclick = () => {
  download?.abort();
  for (const abort of running.values()) abort.abort();
};
element("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const content = input.value.trim();
  if (!content || running.has(current.id)) return;
  input.value = "";
  ask(current, content);
});
element("stop").onclick = () => running.get(current.id)?.abort();
input.addEventListener("keydown", (event) => {
  // On a phone, Enter begins a line: there is a button to send.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing && matchMedia("(pointer: fine)").matches) {
    event.preventDefault();
    element<HTMLFormElement>("composer").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (element("side").classList.contains("open")) side(false);
  else running.get(current.id)?.abort();
});
for (const type of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(type, (event) => {
    event.preventDefault();
    document.body.classList.toggle("dropping", type === "dragover" && supported);
  });
}
document.addEventListener("drop", (event) => {
  const dropped = supported && fromFiles([...(event.dataTransfer?.files ?? [])]);
  if (dropped) void use(dropped);
});

let supported = false;
showSettings();
const support = await checkSupport();
if (support.ok) {
  // What a person does before the rest is known would be undone by it.
  const last = stored<Chosen>("wgslm-model", TINY);
  // What would have to be downloaded is not chosen by itself.
  const known = typeof last.source === "string" && last.source !== TINY_MODEL && (await isKept(last.source).catch(() => false));
  chats = await allChats();
  supported = true;
  showDevice();
  for (const idea of ["Tell me a story about a small fox.", "Tell me a story about a lost key."]) {
    element("ideas").append(small(idea, idea, () => ask(current, idea)));
  }
  choose(known ? last : TINY);
  show(newChat());
  element("model").hidden = element("composer").hidden = false;
  const wanted = new URLSearchParams(location.search).get("model");
  if (wanted) {
    await openModels();
    url.value = wanted;
    setup.querySelector<HTMLInputElement>("[value=other]")!.checked = true;
    void submitted();
  } else input.focus();
} else {
  element("reason").textContent = support.reason ?? "";
  element("advice").textContent = support.advice ?? "";
  element("unsupported").hidden = false;
}
