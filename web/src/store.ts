/**
 * Models that the browser keeps: files in the origin private file system, each model in a folder of its own.
 *
 *   wgslm-models/ID/model.json   what it is, and whether all of it is there and verified
 *   wgslm-models/ID/0, 1, …      its files, as long as what has arrived
 *
 * A lock of the model's name is held exclusively by the tab that downloads or deletes it, and shared by those that read it.
 */
import { EngineError } from "./error.js";
import type { RemoteFile } from "./hub.js";

const FOLDER = "wgslm-models";

/** What is written of a model. */
export interface Manifest {
  /** By what it is found again: a reference, or its addresses. */
  source: string;
  name: string;
  license?: string;
  files: (RemoteFile & { size: number; etag: string | null })[];
  /** All bytes are there, and have the SHA-256 that each file says. */
  complete: boolean;
  /** When the download began, in milliseconds since 1970. */
  added: number;
}

/** A model that is kept, or as much of it as has arrived. */
export interface KeptModel extends Manifest {
  id: string;
  /** Bytes of all its files. */
  bytes: number;
  /** Bytes that are there. */
  downloaded: number;
}

export interface Storage {
  /** Bytes that this origin may use and still has, as the browser estimates them. */
  free: number;
  quota: number;
  usage: number;
  /** The browser does not delete them on its own when space is short. */
  persisted: boolean;
}

/** Operations that have begun, with their handles. */
const running = new Set<{ handle: object }>();

/**
 * What an operation of a handle gives. The handle is kept until then: Chromium collects one that nothing but its own operation needs,
 * and then the operation never ends.
 */
export async function during<Handle extends object, T>(handle: Handle, operation: (handle: Handle) => Promise<T>): Promise<T> {
  const one = { handle };
  running.add(one);
  try {
    return await operation(handle);
  } finally {
    running.delete(one);
  }
}

export function folderIn(parent: FileSystemDirectoryHandle, name: string, options?: FileSystemGetDirectoryOptions): Promise<FileSystemDirectoryHandle> {
  return during(parent, () => parent.getDirectoryHandle(name, options));
}

export async function fileIn(parent: FileSystemDirectoryHandle, name: string): Promise<File> {
  return during(await during(parent, () => parent.getFileHandle(name)), (file) => file.getFile());
}

/** Deletes a folder with all in it. */
export function removeIn(parent: FileSystemDirectoryHandle, name: string): Promise<void> {
  return during(parent, () => parent.removeEntry(name, { recursive: true }));
}

/** The name of a model's folder. */
export async function idOf(source: string): Promise<string> {
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(source)));
  return Array.from(hash.subarray(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export const lockOf = (id: string): string => `${FOLDER}/${id}`;

/** Whether this browser can keep files. */
export function canKeep(): boolean {
  return typeof navigator.storage?.getDirectory === "function" && navigator.locks !== undefined;
}

export async function folder(create: boolean): Promise<FileSystemDirectoryHandle | undefined> {
  try {
    return await folderIn(await navigator.storage.getDirectory(), FOLDER, { create });
  } catch (error) {
    if (!create && (error as Error).name === "NotFoundError") return undefined;
    throw error;
  }
}

/** What model.json says; undefined where there is none, or it is not one. */
export async function readManifest(own: FileSystemDirectoryHandle): Promise<Manifest | undefined> {
  try {
    const text = await (await fileIn(own, "model.json")).text();
    const read = JSON.parse(text) as Manifest;
    const sound = typeof read.source === "string" && typeof read.name === "string" && Array.isArray(read.files) && read.files.length > 0;
    return sound && read.files.every((file) => typeof file?.url === "string" && Number.isSafeInteger(file.size)) ? read : undefined;
  } catch {
    return undefined; // a tab was closed while it was written, or before
  }
}

/** Bytes of a file that are there. */
export async function sizeOf(own: FileSystemDirectoryHandle, index: number): Promise<number> {
  try {
    return (await fileIn(own, String(index))).size;
  } catch {
    return 0;
  }
}

async function read(id: string, own: FileSystemDirectoryHandle): Promise<KeptModel | undefined> {
  const manifest = await readManifest(own);
  if (!manifest) return undefined;
  const sizes = await Promise.all(manifest.files.map((_, i) => sizeOf(own, i)));
  const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0);
  const whole = sizes.every((size, i) => size === manifest.files[i]!.size);
  return { ...manifest, complete: manifest.complete === true && whole, id, bytes: sum(manifest.files.map(({ size }) => size)), downloaded: sum(sizes) };
}

/** The models that are kept, the newest first. */
export async function list(): Promise<KeptModel[]> {
  if (!canKeep()) return [];
  const root = await folder(false).catch(() => undefined);
  if (!root) return [];
  const found: KeptModel[] = [];
  await during(root, async () => {
    for await (const [id, handle] of root.entries()) {
      const model = handle.kind === "directory" ? await read(id, handle as FileSystemDirectoryHandle) : undefined;
      if (model) found.push(model);
    }
  });
  return found.sort((a, b) => b.added - a.added);
}

/** The model of a source, if any of it is kept. */
export async function find(source: string): Promise<KeptModel | undefined> {
  if (!canKeep()) return undefined;
  try {
    const id = await idOf(source);
    return await read(id, await folderIn((await folder(false))!, id));
  } catch {
    return undefined;
  }
}

/** Deletes a model by its id or source; false if there is none. Fails while a tab downloads or reads it. */
export async function remove(idOrSource: string): Promise<boolean> {
  if (!canKeep()) return false;
  const root = await folder(false);
  if (!root) return false;
  const id = /^[0-9a-f]{32}$/.test(idOrSource) ? idOrSource : await idOf(idOrSource);
  return navigator.locks.request(lockOf(id), { ifAvailable: true }, async (lock) => {
    if (!lock) throw new EngineError({ code: "in_use", message: "a tab is loading this model; it can be deleted afterwards" });
    try {
      await removeIn(root, id);
      return true;
    } catch (error) {
      if ((error as Error).name === "NotFoundError") return false;
      throw error;
    }
  });
}

/** What storage there is. */
export async function storage(): Promise<Storage> {
  const { quota = 0, usage = 0 } = (await navigator.storage?.estimate?.()) ?? {};
  const persisted = (await navigator.storage?.persisted?.()) ?? false;
  return { free: Math.max(0, quota - usage), quota, usage, persisted };
}

/** Asks the browser to keep models when space is short; says whether it will. It may ask the user. */
export async function persist(): Promise<boolean> {
  return (await navigator.storage?.persist?.().catch(() => false)) ?? false;
}
