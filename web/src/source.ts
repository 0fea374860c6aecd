/** Files that the engine reads by ranges, so that no more of a model is in memory than is on its way to the GPU. */
import { EngineError } from "./error.js";

/** What the WebAssembly side reads from. */
export interface ByteSource {
  readonly name: string;
  /** Bytes. */
  readonly size: number;
  /** Exactly `length` bytes from `offset` on; rejects otherwise. */
  read(offset: number, length: number): Promise<Uint8Array>;
  /** Ends what is in flight. */
  close(): void;
}

/** A file that the user has dropped or chosen. */
export class BlobSource implements ByteSource {
  readonly name: string;
  readonly size: number;

  constructor(private readonly blob: Blob, name: string) {
    this.name = name;
    this.size = blob.size;
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    return new Uint8Array(await this.blob.slice(offset, offset + length).arrayBuffer());
  }

  close(): void {}
}

/** Bytes skipped on a connection rather than opening another one. */
const SKIP = 1 << 20;
/** Bytes of a piece of a file that is fetched as a whole. */
const PART = 4 << 20;
/** How often a connection that breaks is opened again, without a byte having come in between. */
const RETRIES = 3;

/**
 * A file on a server, which is read in order. Where the server answers range requests, it is read in any order, too.
 *
 * Reads that follow each other share one response, which is read as it is needed: the browser lets the server wait.
 */
export class UrlSource implements ByteSource {
  readonly name: string;
  #body: ReadableStreamDefaultReader<Uint8Array> | undefined;
  #connection: AbortController | undefined;
  /** Where `#rest`, then the response's next bytes, lie in the file. */
  #at = 0;
  #rest: Uint8Array = new Uint8Array(0);

  private constructor(private readonly url: string, readonly size: number, readonly etag: string | null, private readonly ranges: boolean) {
    const last = new URL(url).pathname.split("/").pop() || url;
    try {
      this.name = decodeURIComponent(last);
    } catch {
      this.name = last; // no UTF-8; it is only shown
    }
  }

  /** Asks the server how large the file is, with a request for its first byte. */
  static async open(url: string): Promise<UrlSource> {
    const abort = new AbortController();
    const response = await request(url, { headers: { range: "bytes=0-0" }, signal: abort.signal });
    if (response.status === 206) await response.arrayBuffer();
    else abort.abort(); // what comes may be long
    const ranges = response.status === 206;
    // The length of what is compressed on its way says nothing of the file's.
    const length = response.headers.has("content-encoding") ? null : response.headers.get("content-length");
    const size = ranges ? /^bytes 0-0\/(\d+)$/.exec(response.headers.get("content-range") ?? "")?.[1] : length;
    if (response.status === 200 && !size) {
      throw new SourceError(`${url}: the server neither answers range requests nor says how long the file is; one that answers "Range: bytes=0-0" with 206 works`);
    }
    if (![200, 206].includes(response.status) || !size) {
      throw new SourceError(`${url}: the server answered ${response.status} ${response.statusText}`.trimEnd());
    }
    return new UrlSource(url, Number(size), response.headers.get("etag"), ranges);
  }

  /**
   * The file for reads in any order. From a server that only gives all of it, it is fetched as a whole, which `report` follows in
   * bytes; the browser puts what is large on its disk.
   */
  async inAnyOrder(report: (done: number) => void): Promise<ByteSource> {
    if (this.ranges) return this;
    const parts: Blob[] = [];
    for (let at = 0; at < this.size; report(at)) {
      const part = await this.read(at, Math.min(PART, this.size - at));
      at += part.length;
      parts.push(new Blob([part as Uint8Array<ArrayBuffer>]));
    }
    this.close();
    return new BlobSource(new Blob(parts), this.name);
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    const out = new Uint8Array(length);
    for (let filled = 0; filled < length; ) {
      const part = await this.next(offset + filled, length - filled);
      out.set(part, filled);
      filled += part.length;
    }
    return out;
  }

  /** The bytes from `offset` on that come first: at least one, at most so many. Not copied: a file has many of them. */
  async next(offset: number, most: number): Promise<Uint8Array> {
    if (offset < this.#at || (this.ranges && offset > this.#at + SKIP)) this.close();
    for (let failures = 0; ; ) {
      try {
        if (!this.#body) await this.#connect(offset);
        for (;;) {
          const skip = Math.min(offset - this.#at, this.#rest.length);
          const part = this.#rest.subarray(skip, skip + most);
          this.#at += skip + part.length;
          this.#rest = this.#rest.subarray(skip + part.length);
          if (part.length > 0) return part;
          const { done, value } = await this.#body!.read();
          if (done) throw new TypeError("the connection ended early");
          this.#rest = value;
        }
      } catch (error) {
        this.close();
        // What is read anew and skipped is no progress.
        if (error instanceof SourceError || ++failures > RETRIES) {
          throw error instanceof SourceError ? error : new SourceError(`${this.url}: ${(error as Error).message}`);
        }
        await new Promise((resume) => setTimeout(resume, 200 * 2 ** failures));
      }
    }
  }

  close(): void {
    this.#connection?.abort();
    this.#body = this.#connection = undefined;
    this.#rest = new Uint8Array(0);
  }

  /** Asks for everything from `offset` on, or for all where the server gives no less. */
  async #connect(offset: number): Promise<void> {
    this.#connection = new AbortController();
    const headers: Record<string, string> = this.ranges ? { range: `bytes=${offset}-` } : {};
    const response = await request(this.url, { headers, signal: this.#connection.signal });
    const [status, header, expected] = this.ranges
      ? [206, "content-range", `bytes ${offset}-${this.size - 1}/${this.size}`]
      : [200, "content-length", String(this.size)];
    const found = response.headers.get(header);
    if (response.status !== status || found !== expected || !response.body) {
      throw new SourceError(`${this.url}: the server answered ${response.status} with ${header} ${found}; ${status} with ${expected} was expected`);
    }
    if (response.headers.get("etag") !== this.etag) throw new SourceError(`${this.url}: the file has changed`);
    this.#body = response.body.getReader() as ReadableStreamDefaultReader<Uint8Array>;
    this.#at = this.ranges ? offset : 0;
  }
}

/** A failure that trying again does not cure. */
export class SourceError extends EngineError {
  constructor(message: string) {
    super({ code: "network", message });
  }
}

async function request(url: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, init);
  } catch (error) {
    // A browser does not say why: no server, no network, or no permission by CORS.
    throw new TypeError(`${url}: ${(error as Error).message}`);
  }
}
