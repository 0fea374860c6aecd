/**
 * Markdown as a model writes it, while it is written. Text becomes nodes, never HTML: what a model writes cannot run, load or
 * hide anything. Images are shown as links, since a server that they are fetched from would learn what was said.
 */

/** A piece of the text that is rendered on its own: what is new changes the last ones only. */
type Block =
  | { type: "text" | "quote"; source: string }
  | { type: "heading"; level: number; source: string }
  | { type: "code"; language: string; source: string }
  | { type: "list"; source: string }
  | { type: "table"; source: string }
  | { type: "rule"; source: string }
  | { type: "thought"; source: string; open: boolean };

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const DIVIDER = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
/** Deeper nesting is shown as text: nobody reads it, and each level costs a stack frame. */
const MAX_DEPTH = 8;

function blocks(text: string): Block[] {
  const found: Block[] = [];
  if (text.startsWith("<think>")) {
    const end = text.indexOf("</think>");
    found.push({ type: "thought", source: text.slice(7, end < 0 ? undefined : end).trim(), open: end < 0 });
    if (end < 0) return found;
    text = text.slice(end + 8);
  }
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; ) {
    const line = lines[i]!;
    if (!line.trim()) {
      i++;
      continue;
    }
    const fence = FENCE.exec(line);
    if (fence) {
      const mark = fence[1]!;
      const body: string[] = [];
      for (i++; i < lines.length; i++) {
        const close = lines[i]!.trim();
        if (close.length >= mark.length && close === mark[0]!.repeat(close.length)) break;
        body.push(lines[i]!);
      }
      i++;
      found.push({ type: "code", language: fence[2]!.trim().split(/\s/)[0]!, source: body.join("\n") });
      continue;
    }
    const heading = HEADING.exec(line);
    if (heading) {
      found.push({ type: "heading", level: heading[1]!.length, source: heading[2]! });
      i++;
      continue;
    }
    if (RULE.test(line)) {
      found.push({ type: "rule", source: "" });
      i++;
      continue;
    }
    const start = i;
    const take = (type: "quote" | "list" | "table" | "text", goes: (line: string) => boolean): void => {
      for (i++; i < lines.length && goes(lines[i]!); i++);
      found.push({ type, source: lines.slice(start, i).join("\n").trimEnd() });
    };
    if (/^ {0,3}>/.test(line)) take("quote", (next) => next.trim() !== "");
    else if (ITEM.test(line)) {
      take("list", (next) => ITEM.test(next) || /^(?: {2,}|\t)/.test(next) || (next.trim() === "" ? goesOn(lines, i) : !begins(next)));
    } else if (line.includes("|") && DIVIDER.test(lines[i + 1] ?? "") && lines[i + 1]!.includes("-")) take("table", (next) => next.includes("|"));
    else take("text", (next) => next.trim() !== "" && !begins(next));
  }
  return found;
}

/** Whether a list goes on after an empty line. */
function goesOn(lines: string[], empty: number): boolean {
  const next = lines[empty + 1];
  return next !== undefined && (ITEM.test(next) || /^(?: {2,}|\t)\S/.test(next));
}

/** Whether a line begins a block of its own. */
function begins(line: string): boolean {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || ITEM.test(line) || /^ {0,3}>/.test(line);
}

function node<K extends keyof HTMLElementTagNameMap>(name: K, ...children: (Node | string)[]): HTMLElementTagNameMap[K] {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function rendered(block: Block, depth: number): HTMLElement {
  switch (block.type) {
    case "text":
      return node("p", ...inline(block.source));
    case "heading":
      // Below the page's own headings.
      return node(`h${Math.min(block.level + 2, 6)}` as "h3", ...inline(block.source));
    case "rule":
      return node("hr");
    case "code":
      return code(block);
    case "quote": {
      const inner = block.source.replace(/^ {0,3}> ?/gm, "");
      return node("blockquote", ...nested(inner, depth));
    }
    case "list":
      return list(block.source, depth);
    case "table":
      return table(block.source);
    case "thought": {
      const details = node("details", node("summary", block.open ? "Thinking …" : "Thoughts"), ...nested(block.source, depth));
      details.className = "thought";
      return details;
    }
  }
}

function nested(source: string, depth: number): HTMLElement[] {
  if (depth >= MAX_DEPTH) return [node("p", source)];
  // Thoughts are at the beginning of an answer only.
  return blocks(source.replace(/^<think>/, "< think>")).map((block) => rendered(block, depth + 1));
}

function code({ language, source }: Block & { type: "code" }): HTMLElement {
  const text = node("code", source);
  const pre = node("pre", text);
  pre.tabIndex = 0; // it scrolls: by keyboard, too
  pre.setAttribute("role", "region");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  const figure = node("div", node("div", node("span", language || "text"), copyButton(() => text.textContent ?? "", "Copy code")), pre);
  figure.className = "code";
  return figure;
}

/** A button that copies a text. */
export function copyButton(text: () => string, label: string): HTMLButtonElement {
  const button = node("button", "Copy");
  button.type = "button";
  button.setAttribute("aria-label", label);
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };
  return button;
}

function list(source: string, depth: number): HTMLElement {
  const lines = source.split("\n");
  const first = ITEM.exec(lines[0]!)!;
  const ordered = /\d/.test(first[2]!);
  const made: HTMLOListElement | HTMLUListElement = ordered ? node("ol") : node("ul");
  const start = ordered ? parseInt(first[2]!, 10) : 1;
  if (ordered && start !== 1) (made as HTMLOListElement).start = start;
  let item: string[] = [];
  const flush = (): void => {
    if (item.length === 0) return;
    const inner = item.join("\n");
    const task = /^\[([ xX])\] /.exec(inner);
    const content = nested(task ? inner.slice(4) : inner, depth);
    // An item of one paragraph is no paragraph of its own.
    const flat = content.flatMap((block, i) => (i === 0 && block.tagName === "P" ? [...block.childNodes] : [block]));
    made.append(node("li", ...(task ? [task[1] === " " ? "☐ " : "☑ "] : []), ...flat));
  };
  for (const line of lines) {
    const mark = ITEM.exec(line);
    if (mark && mark[1]!.length <= first[1]!.length + 1) {
      flush();
      item = [line.slice(mark[0].length)];
    } else item.push(line.replace(/^(?: {1,4}|\t)/, ""));
  }
  flush();
  return made;
}

function table(source: string): HTMLElement {
  const cells = (line: string) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split("|")
      .slice(0, 64)
      .map((cell) => cell.trim());
  const [head, , ...rows] = source.split("\n");
  const top = cells(head!).map((cell) => {
    const made = node("th", ...inline(cell));
    made.scope = "col";
    return made;
  });
  const body = rows.map((row) => node("tr", ...cells(row).map((cell) => node("td", ...inline(cell)))));
  const wide = node("div", node("table", node("thead", node("tr", ...top)), node("tbody", ...body)));
  wide.className = "wide";
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", "Table");
  return wide;
}

/** One alternative per kind of mark; none of them can take long over a hostile text. */
const INLINE =
  /(`+)([^`](?:[^]{0,2000}?[^`])?)\1(?!`)|!?\[([^\]\n]{0,1000})\]\(([^\s)]{1,2000})(?:[ \t]+"[^"\n]{0,500}")?\)|\*\*(?=\S)([^]{0,4000}?\S)\*\*|__(?=\S)([^]{0,4000}?\S)__(?!\w)|\*(?=[^\s*])([^*]{0,4000}?[^\s*])\*|\b_(?=[^\s_])([^_]{0,4000}?[^\s_])_(?!\w)|~~(?=\S)([^~]{1,4000})~~|(https?:\/\/[^\s<>"'`)\]]{1,2000}[^\s<>"'`)\].,;:!?])|\\([\\`*_{}[\]()#+.!|~>-])/g;

function inline(text: string, depth = 0): (Node | string)[] {
  if (depth > MAX_DEPTH) return [text];
  const out: (Node | string)[] = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    const [all, , codeText, label, address, strong, strongToo, em, emToo, struck, bare, escaped] = found;
    if (found.index > from) out.push(...breaks(text.slice(from, found.index)));
    from = found.index + all.length;
    if (codeText !== undefined) out.push(node("code", codeText.trim() || codeText));
    else if (label !== undefined) out.push(link(address!, inline(label || address!, depth + 1), all));
    else if (strong ?? strongToo) out.push(node("strong", ...inline((strong ?? strongToo)!, depth + 1)));
    else if (em ?? emToo) out.push(node("em", ...inline((em ?? emToo)!, depth + 1)));
    else if (struck !== undefined) out.push(node("s", ...inline(struck, depth + 1)));
    else if (bare !== undefined) out.push(link(bare, [bare], all));
    else out.push(escaped!);
  }
  if (from < text.length) out.push(...breaks(text.slice(from)));
  return out;
}

/** Lines as the model broke them. */
function breaks(text: string): (Node | string)[] {
  return text.split("\n").flatMap((line, i) => (i === 0 ? [line] : [node("br"), line]));
}

function link(address: string, content: (Node | string)[], source: string): Node | string {
  // Neither scripts nor addresses within this page.
  if (!/^(https?:\/\/|mailto:)/i.test(address) || !URL.canParse(address)) return source;
  const made = node("a", ...content);
  made.href = address;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  return made;
}

/** A text that grows: only the blocks that changed are made anew. */
export class MarkdownView {
  #shown: { key: string; element: HTMLElement }[] = [];

  constructor(private readonly root: HTMLElement) {}

  update(text: string): void {
    const next = blocks(text);
    const keys = next.map((block) => JSON.stringify(block));
    let same = 0;
    while (same < keys.length && this.#shown[same]?.key === keys[same]) same++;
    const last = this.#shown[same]?.element;
    const open = last instanceof HTMLDetailsElement && last.open;
    for (const { element } of this.#shown.splice(same)) element.remove();
    for (let i = same; i < next.length; i++) {
      const element = rendered(next[i]!, 0);
      if (i === same && open && element instanceof HTMLDetailsElement) element.open = true;
      this.root.append(element);
      this.#shown.push({ key: keys[i]!, element });
    }
  }
}
