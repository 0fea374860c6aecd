/** Which files a model is, and what the browser keeps of it. */
import { EngineError, ofReading } from "./error.js";
import { HUB, parseReference, resolve, spell, type RemoteFile, type Resolved } from "./hub.js";
import { UrlSource } from "./source.js";
import { find, list, persist, remove, storage, type KeptModel, type Storage } from "./store.js";

/**
 * A GGUF file: its address (relative to the page, too), or the file itself; all parts of a split one, in order, or the address of
 * the first; or a reference to a repository of Hugging Face: `ORG/REPO`, `ORG/REPO:QUANT`.
 */
export type ModelSource = string | URL | Blob | (string | URL | Blob)[];

export interface ModelOptions {
  /** The hub that references are looked up at. Default https://huggingface.co. */
  hub?: string;
  signal?: AbortSignal;
}

/** The files of a model, in their order. */
export interface Parts {
  /** Undefined where a part is a file of the user's: there is nothing to keep. */
  remote?: Resolved;
  parts: (RemoteFile | Blob)[];
}

/** Bytes that WebAssembly addresses. */
const MEMORY = 2 ** 32;

/** What loading a model would take. */
export interface Plan {
  name: string;
  /** Bytes of all its files. */
  bytes: number;
  license?: string;
  /** The host that they come from; empty for files. */
  host: string;
  /** Bytes that are kept already. */
  kept: number;
  /** Nothing needs the network. */
  complete: boolean;
  /** The rest fits into the browser's storage; it can be loaded otherwise, too, but is not kept. */
  fits: boolean;
  /** The memory of WebAssembly can hold it, 4 GB: what the processor needs, and a GPU does not. */
  fitsProcessor: boolean;
  storage: Storage;
}

/** The files of a model. What is kept needs no network. */
export async function locate(model: ModelSource, { hub = HUB, signal }: ModelOptions = {}): Promise<Parts> {
  if (typeof model === "string") {
    const reference = parseReference(model, hub);
    if (reference) {
      const kept = await find(spell(reference));
      if (kept?.complete) return remote({ source: kept.source, name: kept.name, files: kept.files, ...(kept.license ? { license: kept.license } : {}) });
      return remote(await resolve(reference, hub, signal));
    }
  }
  const given = Array.isArray(model) ? model : typeof model === "string" ? partsOf(model) : [model];
  if (given.length === 0) throw new EngineError({ code: "argument", message: "a model has at least one file" });
  const parts = given.map((part) => (part instanceof Blob ? part : file(part)));
  if (parts.some((part) => part instanceof Blob)) return { parts };
  const files = parts as RemoteFile[];
  return remote({ source: files.map(({ url }) => url).join("\n"), name: files[0]!.name.replace(/(-00001-of-\d{5})?\.gguf$/i, ""), files });
}

function remote(resolved: Resolved): Parts {
  return { remote: resolved, parts: resolved.files };
}

/** All parts of a split file, by the address of the first. */
function partsOf(address: string): string[] {
  const split = /-00001-of-(\d{5})(\.gguf(?:[?#].*)?)$/i.exec(address);
  if (!split) return [address];
  const before = address.slice(0, split.index);
  return Array.from({ length: Number(split[1]) }, (_, i) => `${before}-${String(i + 1).padStart(5, "0")}-of-${split[1]}${split[2]}`);
}

function file(address: string | URL): RemoteFile {
  const base = typeof document === "undefined" ? self.location.href : document.baseURI;
  let url: URL;
  try {
    url = new URL(address, base);
  } catch {
    throw new EngineError({ code: "argument", message: `${address}: that is neither an address nor ORG/REPO` });
  }
  if (!["http:", "https:", "blob:", "data:"].includes(url.protocol)) {
    throw new EngineError({ code: "argument", message: `${url.protocol}// cannot be fetched by a page; http and https work, and files that are chosen` });
  }
  const last = url.pathname.split("/").pop() || url.host;
  let name = last;
  try {
    name = decodeURIComponent(last);
  } catch {
    // An address may hold what is no UTF-8; the name is only shown.
  }
  return { url: url.href, name };
}

/** What loading a model would take. Downloads no more than a list of files and the first byte of each. */
export async function plan(model: ModelSource, options: ModelOptions = {}): Promise<Plan> {
  const { remote, parts } = await locate(model, options);
  const space = await storage();
  if (!remote) {
    const bytes = (parts as Blob[]).reduce((sum, { size }) => sum + size, 0);
    const [first] = parts;
    const name = first instanceof File ? first.name : "a file";
    return { name, bytes, host: "", kept: bytes, complete: true, fits: true, fitsProcessor: bytes < MEMORY, storage: space };
  }
  const kept = await find(remote.source);
  const sizes = kept?.complete
    ? [kept.bytes]
    : await Promise.all(remote.files.map(async ({ size, url }) => size ?? (await UrlSource.open(url).catch((error: unknown) => Promise.reject(ofReading(error)))).size));
  const bytes = sizes.reduce((sum, size) => sum + size, 0);
  const there = Math.min(kept?.downloaded ?? 0, bytes);
  return {
    name: remote.name,
    bytes,
    ...(remote.license ? { license: remote.license } : {}),
    host: new URL(remote.files[0]!.url).host,
    kept: there,
    complete: kept?.complete ?? false,
    fits: bytes - there < space.free,
    fitsProcessor: bytes < MEMORY,
    storage: space,
  };
}

/** Whether the browser keeps the whole of a model. Asks no network. */
export async function isKept(model: string): Promise<boolean> {
  const reference = parseReference(model);
  const source = reference ? spell(reference) : (await locate(model)).remote?.source;
  return source !== undefined && (await find(source))?.complete === true;
}

/** The models that the browser keeps for this origin. */
export const models = {
  /** Those that are there, in whole or in part, the newest first. */
  list: (): Promise<KeptModel[]> => list(),
  /** Deletes one, by its id, or by the reference or the address that it was loaded by; false if there is none. */
  async delete(model: string): Promise<boolean> {
    if (await remove(model)) return true;
    const reference = parseReference(model);
    if (reference) return remove(spell(reference));
    if (/^[0-9a-f]{32}$/.test(model)) return false;
    const { remote } = await locate(model);
    return remote !== undefined && remove(remote.source);
  },
  /** What loading one would take: bytes, licence, and whether they fit. */
  plan,
  /** What storage there is. */
  storage,
  /** Asks the browser not to delete models when space is short. */
  persist,
};
