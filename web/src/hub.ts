/** Models by name: `ORG/REPO[@REVISION][:QUANT]` and addresses on Hugging Face, by the rules that the program has (src/hub). */
import { EngineError } from "./error.js";

/** A repository, and which of its files. */
export interface RepoReference {
  repo: string;
  revision: string;
  quant?: string;
  file?: string;
}

/** A file that is to be fetched. */
export interface RemoteFile {
  url: string;
  name: string;
  /** Bytes, where they are known before asking. */
  size?: number;
  sha256?: string;
}

/** A model's files, and what its repository says of it. */
export interface Resolved {
  /** By what the model is found again: the reference in one spelling, or the addresses. */
  source: string;
  name: string;
  files: RemoteFile[];
  license?: string;
}

export const HUB = "https://huggingface.co";
const HOSTS = ["huggingface.co", "www.huggingface.co", "hf.co", "www.hf.co"];

/** What is taken where several would do: the first of these, as in src/hub/choose.rs. */
const PREFERRED =
  "Q4_K_M Q4_K_L Q4_K_XL Q4_K_S IQ4_XS IQ4_NL Q4_1 Q4_0 Q4_K Q5_K_M Q5_K_S Q5_1 Q5_0 Q6_K Q8_0 Q3_K_L Q3_K_M Q3_K_S Q2_K BF16 F16 FP16 F32".split(" ");
/** Types that the engine runs, without the size of their mix. */
const RUNS = new Set("F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split(" "));

const PART = /^[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?$/;
const isPart = (text: string): boolean => PART.test(text) && !text.includes("--") && !text.includes("..");
const isSafePath = (path: string): boolean =>
  path.length <= 1024 && path.split("/").every((part) => part && part !== "." && part !== "..") && !/[\u0000-\u001f\\:*?"<>|]/.test(path);

/** Reads a reference; undefined if the text is an address of another kind. Throws on what is meant as one and cannot be. */
export function parseReference(text: string, hub: string = HUB): RepoReference | undefined {
  const plain = text.trim();
  const scheme = /^(hf|https?):\/\//i.exec(plain)?.[0] ?? "";
  let rest = plain.slice(scheme.length);
  if (scheme.toLowerCase() === "hf://") return repository(rest);
  const known = [...HOSTS, hub.replace(/^https?:\/\//, "").replace(/\/+$/, "")];
  const host = known.find((host) => rest.toLowerCase().startsWith(`${host}/`));
  // Files of another port of this machine are no repositories, whatever the hub is: only what looks like one.
  if (host !== undefined) return repository(rest.slice(host.length + 1));
  if (scheme) return undefined;
  const name = /^([^/:@]+)\/([^/:@]+)(?:[:@]|$)/.exec(rest);
  // A relative address of a file looks the same but for its ending.
  if (!name || /\.gguf$/i.test(name[2]!) || !isPart(name[1]!) || !isPart(name[2]!)) return undefined;
  return repository(rest);
}

function repository(text: string): RepoReference {
  const wrong = (problem: string): EngineError =>
    new EngineError({ code: "argument", message: `${text}: ${problem}; ORG/REPO, ORG/REPO:QUANT and the address of a file work` });
  const plain = text.split(/[?#]/)[0]!.replace(/\/+$/, "").replace(/^models\//, "");
  const [org, last, ...deeper] = plain.split("/");
  const found = /^([^:@]+)(?:@([^:]+))?(?::(.*))?$/.exec(last ?? "");
  if (!found || !isPart(org ?? "") || !isPart(found[1]!)) throw wrong("that is no name of a repository");
  const reference: RepoReference = { repo: `${org}/${found[1]}`, revision: found[2] ?? "main" };
  const quant = found[3];
  if (quant !== undefined && quant.toLowerCase() !== "latest") {
    if (!/^[A-Za-z0-9._-]+$/.test(quant)) throw wrong("after the colon stands a quantisation, as in Q4_K_M");
    reference.quant = quant;
  }
  if (deeper.length > 0) {
    if (quant !== undefined) throw wrong("a file's path cannot follow a quantisation");
    let file: string[] = deeper;
    if (deeper[0] === "tree") {
      reference.revision = deeper.slice(1).join("/");
      file = [];
    } else if (["resolve", "blob", "raw"].includes(deeper[0]!)) {
      reference.revision = deeper[1] ?? "";
      file = deeper.slice(2);
      if (file.length === 0) throw wrong("the address names no file");
    }
    if (file.length > 0) {
      try {
        reference.file = decodeURIComponent(file.join("/"));
      } catch {
        throw wrong("the address is not UTF-8");
      }
      if (!isSafePath(reference.file)) throw wrong("that is no path of a file in a repository");
      if (!/\.gguf$/i.test(reference.file)) throw wrong("of single files, only those that end with .gguf work");
    }
  }
  if (!isSafePath(reference.revision) || /[#%]/.test(reference.revision)) throw wrong("that is no revision");
  return reference;
}

/** The reference in one spelling. */
export function spell({ repo, revision, quant, file }: RepoReference): string {
  if (file) return `hf.co/${repo}/blob/${revision}/${file}`;
  return repo + (revision === "main" ? "" : `@${revision}`) + (quant ? `:${quant.toUpperCase()}` : "");
}

/** Something with a path, as the hub lists it. */
interface Sibling {
  rfilename: string;
  size?: number;
  lfs?: { sha256?: string; size?: number };
}

/** Asks the hub for the files of a reference. */
export async function resolve(reference: RepoReference, hub: string = HUB, signal?: AbortSignal): Promise<Resolved> {
  const { repo, revision } = reference;
  const base = hub.replace(/\/+$/, "");
  const address = `${base}/api/models/${repo}/revision/${encodeURIComponent(revision)}?blobs=true`;
  let response: Response;
  try {
    response = await fetch(address, signal ? { signal } : {});
  } catch (error) {
    signal?.throwIfAborted();
    throw new EngineError({ code: "network", message: `${base} cannot be reached (${(error as Error).message}); models that are kept here work offline` });
  }
  if (!response.ok) {
    const gone = response.status === 401 || response.status === 404;
    const message = gone
      ? `${repo}@${revision}: there is no such repository, or it is private or gated, which a page cannot read`
      : `${address}: the hub answered ${response.status} ${response.statusText}`.trimEnd();
    throw new EngineError({ code: gone ? "not_found" : response.status === 403 ? "denied" : "network", message });
  }
  const listed = (await response.json().catch(() => ({}))) as {
    sha?: unknown;
    gated?: unknown;
    siblings?: unknown;
    cardData?: { license?: unknown; license_name?: unknown };
  };
  const siblings = (Array.isArray(listed.siblings) ? (listed.siblings as Sibling[]) : []).filter((file) => typeof file?.rfilename === "string");
  if (listed.gated) {
    const message = `${repo} is gated: its files need an account, which a page does not have; a copy in another repository, or a file, works`;
    throw new EngineError({ code: "denied", message });
  }
  const commit = typeof listed.sha === "string" && /^[0-9a-f]{40}$/.test(listed.sha) ? listed.sha : revision;
  const paths = choose(reference, siblings.map((file) => file.rfilename));
  const files = paths.map((path): RemoteFile => {
    const { size, lfs } = siblings.find((file) => file.rfilename === path)!;
    const bytes = lfs?.size ?? size;
    const escaped = path.split("/").map(encodeURIComponent).join("/");
    return {
      url: `${base}/${repo}/resolve/${encodeURIComponent(commit)}/${escaped}`,
      name: path.split("/").pop()!,
      ...(typeof bytes === "number" ? { size: bytes } : {}),
      ...(typeof lfs?.sha256 === "string" && /^[0-9a-f]{64}$/.test(lfs.sha256) ? { sha256: lfs.sha256 } : {}),
    };
  });
  const { license, license_name } = listed.cardData ?? {};
  const terms = license === "other" && typeof license_name === "string" ? license_name : license;
  const name = files[0]!.name.replace(/(-00001-of-\d{5})?\.gguf$/i, "");
  return { source: spell(reference), name, files, ...(typeof terms === "string" ? { license: terms } : {}) };
}

interface Gguf {
  paths: string[];
  stem: string;
  quant: string | undefined;
  complete: boolean;
}

/** Chooses among the paths of a repository: a GGUF file, or all parts of one. */
export function choose(reference: RepoReference, paths: string[]): string[] {
  const models = ggufs(paths);
  const there = [...new Set(models.map(({ quant, stem }) => quant ?? stem))].slice(0, 24).join(", ") || "none";
  const { repo, quant, file } = reference;
  const missing = (what: string, instead: string) => new EngineError({ code: "not_found", message: `${what}; ${instead}` });
  if (models.length === 0) throw missing(`${repo} has no GGUF files`, "another repository, often with GGUF in its name, works");
  let found: Gguf | undefined;
  if (file !== undefined) {
    found = models.find((model) => model.paths.includes(file));
    if (!found) throw missing(`${repo} has no model ${file}`, `it has ${there}`);
  } else if (quant !== undefined) {
    const wanted = quant.toUpperCase();
    const byName = ({ stem }: Gguf) => stem.toUpperCase() === wanted || ["-", ".", "_"].some((dash) => stem.toUpperCase().endsWith(dash + wanted));
    const byQuant = (model: Gguf) => model.quant === wanted;
    let fits = models.filter(byQuant);
    if (fits.length === 0 || (fits.length > 1 && models.some((model) => byName(model) && !byQuant(model)))) fits = models.filter(byName);
    if (fits.length === 0) throw missing(`${repo} has no ${quant}`, `it has ${there}`);
    const least = Math.min(...fits.map(({ stem }) => stem.length));
    const shortest = fits.filter(({ stem }) => stem.length === least);
    if (shortest.length > 1) {
      const names = fits.map(({ stem }) => stem).join(", ");
      throw new EngineError({ code: "argument", message: `several files are ${quant}: ${names}; ${repo}:NAME takes one of them` });
    }
    found = shortest[0]!;
  } else {
    const rank = ({ quant }: Gguf) => (quant !== undefined && PREFERRED.includes(quant) ? PREFERRED.indexOf(quant) : PREFERRED.length);
    const key = (model: Gguf) => [Number(!model.complete), Number(!runs(model.quant)), rank(model), model.stem.length];
    found = [...models].sort((a, b) => {
      const [left, right] = [key(a), key(b)];
      return left.map((value, i) => value - right[i]!).find((difference) => difference !== 0) ?? 0;
    })[0]!;
  }
  if (!found.complete) throw missing(`${repo}: a part of ${found.stem} is not there`, `it has ${there}`);
  if (!runs(found.quant)) {
    const others = models.filter((model) => model.complete && model.quant && runs(model.quant)).map((model) => model.quant);
    const instead = others.length > 0 ? `${repo} also has ${others.join(", ")}` : "a repository with Q4_K_M or Q8_0 works";
    throw new EngineError({ code: "unsupported", message: `${found.quant} (${found.stem}) is not supported; ${instead}` });
  }
  return found.paths;
}

/** The GGUF models among paths. What only goes with a model (images, importance matrices) is none. */
function ggufs(paths: string[]): Gguf[] {
  const found = new Map<string, { stem: string; count: number; parts: [number, string][] }>();
  for (const path of paths) {
    const name = path.split("/").pop()!;
    if (!/\.gguf$/i.test(name) || /mmproj|imatrix/i.test(name)) continue;
    const whole = name.slice(0, -".gguf".length);
    const split = /^(.*)-(\d{5})-of-(\d{5})$/.exec(whole);
    const [part, count] = split ? [Number(split[2]), Number(split[3])] : [1, 0];
    const of = split && part >= 1 && part <= count;
    const stem = of ? split[1]! : whole;
    const key = `${path.slice(0, path.length - name.length)}${stem} ${of ? count : 0}`;
    const model = found.get(key) ?? { stem, count: of ? count : 0, parts: [] };
    model.parts.push([of ? part : 1, path]);
    found.set(key, model);
  }
  // By name, as the program has them: of two that are alike the first is taken.
  const sorted = [...found].sort(([a], [b]) => (a < b ? -1 : 1));
  return sorted.map(([, { stem, count, parts }]) => {
    parts.sort(([a], [b]) => a - b);
    const complete = count === 0 || (parts.length === count && parts.every(([part], i) => part === i + 1));
    return { paths: parts.map(([, path]) => path), stem, quant: quantOf(stem), complete };
  });
}

/** The quantisation that a file's name ends with: `Q4_K_M` of `Qwen3-0.6B-Q4_K_M`. */
export function quantOf(stem: string): string | undefined {
  const is = (text: string) => /^(F32|F16|BF16|FP16|FP32|MXFP4|MXFP4_MOE|NVFP4|(IQ|TQ|Q)\d(_[A-Z0-9_]*)?)$/.test(text);
  for (const piece of stem.toUpperCase().split(/[-. ]/).reverse().slice(0, 3)) {
    const words = piece.split("_");
    for (let start = 0; start < words.length; start++) {
      const end = words.slice(start).join("_");
      if (is(end)) return end;
    }
  }
  return undefined;
}

/** Whether weights of a type can be run; true where a name says nothing. */
function runs(quant: string | undefined): boolean {
  const plain = quant?.replace(/^FP/, "F");
  return plain === undefined || RUNS.has(plain) || RUNS.has(plain.replace(/(_XL|_L|_M|_S|_MOE)$/, ""));
}
