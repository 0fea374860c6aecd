/** Models on their way into the browser's storage. Runs in the worker: only there are files written as bytes arrive. */
import { EngineError } from "./error.js";
import type { RemoteFile } from "./hub.js";
import { HashBeside } from "./sha256.js";
import { BlobSource, UrlSource, type ByteSource } from "./source.js";
import { canKeep, during, fileIn, folder, folderIn, idOf, lockOf, readManifest, removeIn, sizeOf, storage, type Manifest } from "./store.js";

/** What is to be kept. */
export interface Wanted {
  source: string;
  name: string;
  license?: string;
  files: RemoteFile[];
}

/** A model's files, which can be read while they arrive. */
export interface Opened {
  sources: ByteSource[];
  /** Resolves when all has arrived and is verified. */
  arrived: Promise<void>;
  /** Why the model is not kept; undefined if it is. Final once `arrived` is. */
  notKept(): string | undefined;
  /** Why not all arrived; what a reader of the files fails with may say less. */
  failure?(): unknown;
  /** Ends what is in flight and gives the files back. */
  close(): void;
}

type Report = (done: number, total: number) => void;

/** Bytes fetched, hashed and written at a time. */
const CHUNK = 1 << 20;
/** How often progress is reported, in milliseconds. */
const EVERY = 100;
/** Bytes that are left to the origin's other uses. */
const SPARE = 4 << 20;

/** Opens the files from the browser's storage, where they are put on the way if they are not there yet. */
export async function open(wanted: Wanted, report: Report): Promise<Opened> {
  const unkept = (why: string): Promise<Opened> => remote(wanted.files, why, report);
  if (!canKeep()) return unkept("this browser has no storage for files, or the page is not secure");
  let root: FileSystemDirectoryHandle;
  try {
    root = (await folder(true))!;
  } catch (error) {
    return unkept(`the browser's storage cannot be used: ${(error as Error).message}`);
  }
  const id = await idOf(wanted.source);
  const reading = await lock(id, "shared", true);
  if (reading) {
    const kept = await complete(root, id);
    if (kept) return fromStorage(kept, reading);
    reading();
  }
  // Another tab may be at it: what it does is reported, and taken over if it ends.
  let release = await lock(id, "exclusive", true);
  if (!release) {
    const watch = setInterval(() => void watched(root, id, report), 300);
    release = (await lock(id, "exclusive", false))!;
    clearInterval(watch);
  }
  try {
    const kept = await complete(root, id);
    if (kept) return fromStorage(kept, release);
    return await fetched(wanted, root, id, release, report);
  } catch (error) {
    release();
    throw error;
  }
}

/** Files read from the network, and not kept. */
async function remote(files: RemoteFile[], why: string, report: Report): Promise<Opened> {
  const remotes = await Promise.all(files.map((file) => UrlSource.open(file.url)));
  const total = remotes.reduce((sum, { size }) => sum + size, 0);
  const sources: ByteSource[] = [];
  let before = 0;
  for (const one of remotes) {
    sources.push(await one.inAnyOrder((done) => report(before + done, total)));
    before += one.size;
  }
  return { sources, arrived: Promise.resolve(), notKept: () => why, close: () => sources.forEach((source) => source.close()) };
}

function fromStorage(files: File[], release: () => void): Opened {
  const sources = files.map((file) => new BlobSource(file, file.name));
  return { sources, arrived: Promise.resolve(), notKept: () => undefined, close: release };
}

/** Takes a lock; gives what returns it. Undefined if it is taken and `now` is wanted. */
async function lock(id: string, mode: LockMode, now: boolean): Promise<(() => void) | undefined> {
  return new Promise((got, failed) => {
    const held = (lock: Lock | null): Promise<void> | undefined => {
      if (!lock) return void got(undefined);
      return new Promise<void>((release) => got(release));
    };
    navigator.locks.request(lockOf(id), { mode, ifAvailable: now }, held).catch(failed);
  });
}

/** The files of a model that is there and complete. */
async function complete(root: FileSystemDirectoryHandle, id: string): Promise<File[] | undefined> {
  try {
    const own = await folderIn(root, id);
    const manifest = await readManifest(own);
    if (!manifest?.complete) return undefined;
    const files = await Promise.all(
      manifest.files.map(async ({ name }, i) => new File([await fileIn(own, String(i))], name)),
    );
    return files.every((file, i) => file.size === manifest.files[i]!.size) ? files : undefined;
  } catch {
    return undefined;
  }
}

/** Reports what another tab has downloaded. */
async function watched(root: FileSystemDirectoryHandle, id: string, report: Report): Promise<void> {
  const own = await folderIn(root, id).catch(() => undefined);
  const manifest = own && (await readManifest(own));
  if (!own || !manifest) return;
  const sizes = await Promise.all(manifest.files.map((_, i) => sizeOf(own, i)));
  const sum = (numbers: number[]) => numbers.reduce((a, b) => a + b, 0);
  report(sum(sizes), sum(manifest.files.map(({ size }) => size)));
}

async function fetched(wanted: Wanted, root: FileSystemDirectoryHandle, id: string, release: () => void, report: Report): Promise<Opened> {
  // All at once: a model of many parts would wait for as many answers.
  const remotes = await Promise.all(wanted.files.map(({ url }) => UrlSource.open(url)));
  const files = wanted.files.map((file, i) => ({ ...file, size: remotes[i]!.size, etag: remotes[i]!.etag }));
  const total = files.reduce((sum, { size }) => sum + size, 0);
  const own = await folderIn(root, id, { create: true });
  const before = await readManifest(own);
  const same = before?.files.length === files.length && files.every((file, i) => sameFile(file, before.files[i]!));
  const { source, name, license } = wanted;
  const manifest: Manifest = { source, name, ...(license ? { license } : {}), files, complete: false, added: Date.now() };

  const handles: FileSystemSyncAccessHandle[] = [];
  const abandon = async (): Promise<void> => {
    for (const handle of handles) handle.close();
    handles.length = 0;
    await removeIn(root, id).catch(() => {});
  };
  try {
    for (let i = 0; i < files.length; i++) {
      const handle = await accessIn(own, String(i));
      handles.push(handle);
      if (!same || handle.getSize() > files[i]!.size) handle.truncate(0);
    }
    const need = total - handles.reduce((sum, handle) => sum + handle.getSize(), 0);
    const { free, quota } = await storage();
    if (quota > 0 && free < need + SPARE) {
      await abandon();
      release();
      return await remote(wanted.files, `it takes ${megabytes(need)} and the browser's storage has ${megabytes(free)} left`, report);
    }
    await write(own, manifest);
  } catch (error) {
    await abandon();
    release();
    return remote(wanted.files, `the browser's storage failed: ${(error as Error).message}`, report);
  }

  const sources = files.map((file, i) => new ArrivingSource(file.name, file.size, handles[i]!, remotes[i]!));
  let why: string | undefined;
  let failure: unknown;
  let closed = false;
  let hash: HashBeside | undefined;
  const bring = async (): Promise<void> => {
    let base = 0;
    let reported = -Infinity;
    const said = (done: number): void => {
      const now = performance.now();
      if (now - reported < EVERY && done < total) return;
      reported = now;
      report(done, total);
    };
    hash = await HashBeside.begin(total);
    for (const [i, source] of sources.entries()) {
      try {
        for await (const [bytes, at] of source.arrive()) {
          await hash.update(bytes);
          said(base + at);
          if (closed) return;
        }
      } catch (error) {
        if ((error as Error).name !== "QuotaExceededError") throw error;
        // The rest comes from the network, and nothing is kept: an answer matters more than the copy.
        why = "the browser's storage is full";
        for (const one of sources) one.giveUp();
        await abandon();
        return;
      }
      const { sha256, url } = files[i]!;
      const found = await hash.hex();
      if (sha256 !== undefined && sha256 !== found) {
        const message = `${url}: its SHA-256 is ${found}, not ${sha256}: it was damaged on the way, or replaced; the copy was deleted, and loading again fetches it anew`;
        const damaged = new EngineError({ code: "corrupted", message });
        // Whoever waits for bytes learns of it before their file is closed.
        failure = damaged;
        for (const one of sources) one.fail(damaged);
        await abandon();
        throw damaged;
      }
      files[i]!.sha256 = found;
      base += source.size;
    }
    for (const handle of handles) handle.flush();
    await write(own, { ...manifest, complete: true });
  };
  const arrived = bring()
    .catch((error: unknown) => {
      failure = error;
      for (const source of sources) source.fail(error);
      throw error;
    })
    .finally(() => hash?.close());
  // Whoever reads gets it, too; unread, it must not count as unhandled.
  arrived.catch(() => {});
  const close = (): void => {
    closed = true;
    for (const one of remotes) one.close();
    for (const handle of handles) handle.close();
    release();
  };
  return { sources, arrived, notKept: () => why, failure: () => failure, close };
}

function sameFile(a: { url: string; size: number; etag: string | null; sha256?: string }, b: { url: string; size: number; etag: string | null; sha256?: string }): boolean {
  return a.size === b.size && a.etag === b.etag && (a.sha256 === undefined || b.sha256 === undefined || a.sha256 === b.sha256) && a.url === b.url;
}

/** Opens a file to be read and written, and makes it if it is not there. */
async function accessIn(parent: FileSystemDirectoryHandle, name: string): Promise<FileSystemSyncAccessHandle> {
  return during(await during(parent, () => parent.getFileHandle(name, { create: true })), (file) => file.createSyncAccessHandle());
}

async function write(own: FileSystemDirectoryHandle, manifest: Manifest): Promise<void> {
  const handle = await accessIn(own, "model.json");
  try {
    handle.truncate(0);
    handle.write(new TextEncoder().encode(JSON.stringify(manifest)), { at: 0 });
    handle.flush();
  } finally {
    handle.close();
  }
}

function megabytes(bytes: number): string {
  return `${Math.ceil(bytes / 1e6)} MB`;
}

/** A file that arrives: a read waits until its bytes are there. */
class ArrivingSource implements ByteSource {
  #done = 0;
  #gaveUp = false;
  /** Where the bytes come from then. */
  #instead: Promise<ByteSource> | undefined;
  #failure: unknown;
  #waiting: (() => void)[] = [];

  constructor(
    readonly name: string,
    readonly size: number,
    private readonly handle: FileSystemSyncAccessHandle,
    private readonly remote: UrlSource,
  ) {}

  /** Brings all bytes in order, those that are there already first; gives each piece, and where it ends. */
  async *arrive(): AsyncGenerator<[Uint8Array, number], void> {
    const there = this.handle.getSize();
    while (this.#done < this.size) {
      const length = Math.min(CHUNK, (this.#done < there ? there : this.size) - this.#done);
      let bytes: Uint8Array;
      if (this.#done < there) {
        bytes = new Uint8Array(length);
        if (this.handle.read(bytes, { at: this.#done }) !== length) throw new TypeError(`${this.name}: the browser's storage gave less than it has`);
        // Reading what is there never waits: messages and reads get their turn here.
        await new Promise((resume) => setTimeout(resume));
      } else {
        // As it comes: on a slow line the first bytes are the header, which the engine waits for.
        bytes = await this.remote.next(this.#done, length);
        if (this.handle.write(bytes, { at: this.#done }) !== bytes.length) throw new DOMException("a write was cut short", "QuotaExceededError");
      }
      this.#done += bytes.length;
      this.#wake();
      yield [bytes, this.#done];
    }
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    while (!this.#gaveUp && !this.#failure && this.#done < offset + length) await new Promise<void>((wake) => this.#waiting.push(wake));
    if (this.#failure) throw this.#failure;
    if (this.#gaveUp) return (await (this.#instead ??= this.remote.inAnyOrder(() => {}))).read(offset, length);
    const out = new Uint8Array(length);
    if (this.handle.read(out, { at: offset }) !== length) throw new TypeError(`${this.name}: the browser's storage gave less than it has`);
    return out;
  }

  giveUp(): void {
    this.#gaveUp = true;
    this.#wake();
  }

  fail(error: unknown): void {
    this.#failure ??= error;
    this.#wake();
  }

  close(): void {}

  #wake(): void {
    for (const wake of this.#waiting.splice(0)) wake();
  }
}
