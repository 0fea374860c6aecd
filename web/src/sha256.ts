/** SHA-256 of what comes in pieces; the browser's own takes whole texts only. */

const K = new Int32Array(64);
const START = new Uint32Array(8);

/** The first 32 bits of the fraction of `x`. */
const fraction = (x: number): number => ((x - Math.floor(x)) * 2 ** 32) >>> 0;
for (let n = 2, found = 0; found < 64; n++) {
  let prime = true;
  for (let d = 2; d * d <= n; d++) prime &&= n % d !== 0;
  if (!prime) continue;
  if (found < 8) START[found] = fraction(Math.sqrt(n));
  K[found++] = fraction(Math.cbrt(n));
}

export class Sha256 {
  #state = START.slice();
  #words = new Int32Array(64);
  #block = new Uint8Array(64);
  #filled = 0;
  #length = 0;

  update(bytes: Uint8Array): this {
    this.#length += bytes.length;
    let at = 0;
    if (this.#filled > 0) {
      at = Math.min(64 - this.#filled, bytes.length);
      this.#block.set(bytes.subarray(0, at), this.#filled);
      this.#filled += at;
      if (this.#filled < 64) return this;
      this.#compress(this.#block, 0);
      this.#filled = 0;
    }
    for (; at + 64 <= bytes.length; at += 64) this.#compress(bytes, at);
    this.#block.set(bytes.subarray(at));
    this.#filled = bytes.length - at;
    return this;
  }

  /** The hash in hexadecimal digits. Nothing may be added afterwards. */
  hex(): string {
    const bits = this.#length * 8;
    const end = new Uint8Array((this.#filled < 56 ? 64 : 128) - this.#filled);
    end[0] = 0x80;
    const view = new DataView(end.buffer);
    view.setUint32(end.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(end.length - 4, bits >>> 0);
    this.update(end);
    return Array.from(this.#state, (word) => word.toString(16).padStart(8, "0")).join("");
  }

  #compress(bytes: Uint8Array, at: number): void {
    const w = this.#words;
    for (let i = 0; i < 16; i++, at += 4) {
      w[i] = (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;
    }
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15]!;
      const y = w[i - 2]!;
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16]! + s0 + w[i - 7]! + s1) | 0;
    }
    const state = this.#state;
    // Not destructured: that takes an iterator, which costs as much as the rounds.
    let a = state[0]! | 0;
    let b = state[1]! | 0;
    let c = state[2]! | 0;
    let d = state[3]! | 0;
    let e = state[4]! | 0;
    let f = state[5]! | 0;
    let g = state[6]! | 0;
    let h = state[7]! | 0;
    for (let i = 0; i < 64; i++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + K[i]! + w[i]!) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    state[0]! += a;
    state[1]! += b;
    state[2]! += c;
    state[3]! += d;
    state[4]! += e;
    state[5]! += f;
    state[6]! += g;
    state[7]! += h;
  }
}

/** Bytes on their way to a hash beside: more would fill the memory where hashing is slower than the network. */
const MOST_WAITING = 16 << 20;
/** Milliseconds that a worker has to begin. */
const PATIENCE = 2000;

/** To a worker that hashes: a piece of a file, or its end. It answers with the piece's length, or the hash. */
export interface ToHash {
  type: "hash";
  bytes?: Uint8Array;
}

/** SHA-256 beside what else a worker does: computed by another worker of the same script where one begins, else here. */
export class HashBeside {
  #own = new Sha256();
  #waiting = 0;
  #said: ((answer: number | string) => void) | undefined;
  #failed: ((error: Error) => void) | undefined;
  #failure: Error | undefined;

  private constructor(readonly worker: Worker | undefined) {
    if (!worker) return;
    worker.onmessage = ({ data }: MessageEvent<number | string>) => {
      if (typeof data === "number") this.#waiting -= data;
      this.#said?.(data);
    };
    worker.onerror = ({ message }) => {
      this.#failure = new Error(`the hash of the file failed: ${message}`);
      this.#failed?.(this.#failure);
    };
  }

  /** Of so many bytes: few are hashed sooner than a worker begins. */
  static async begin(length: number): Promise<HashBeside> {
    if (length < MOST_WAITING) return new HashBeside(undefined);
    try {
      const worker = new Worker(self.location.href, { type: "module" });
      const begins = await new Promise<boolean>((said) => {
        worker.onmessage = () => said(true);
        worker.onerror = () => said(false);
        setTimeout(() => said(false), PATIENCE);
        worker.postMessage({ type: "hash" } satisfies ToHash);
      });
      if (begins) return new HashBeside(worker);
      worker.terminate();
    } catch {
      // no workers of workers here
    }
    return new HashBeside(undefined);
  }

  async update(bytes: Uint8Array): Promise<void> {
    if (!this.worker) return void this.#own.update(bytes);
    const copy = bytes.slice();
    this.#waiting += copy.length;
    this.worker.postMessage({ type: "hash", bytes: copy } satisfies ToHash, [copy.buffer]);
    while (this.#waiting > MOST_WAITING) await this.#answer();
  }

  /** The hash of what came since the last one, in hexadecimal digits. */
  async hex(): Promise<string> {
    if (!this.worker) {
      const own = this.#own;
      this.#own = new Sha256();
      return own.hex();
    }
    this.worker.postMessage({ type: "hash" } satisfies ToHash);
    for (;;) {
      const answer = await this.#answer();
      if (typeof answer === "string") return answer;
    }
  }

  close(): void {
    this.worker?.terminate();
  }

  #answer(): Promise<number | string> {
    if (this.#failure) return Promise.reject(this.#failure);
    return new Promise((said, failed) => ([this.#said, this.#failed] = [said, failed]));
  }
}

let beside = new Sha256();

/** What the worker beside does with a message; its answer. */
export function hashed({ bytes }: ToHash): number | string {
  if (bytes) {
    beside.update(bytes);
    return bytes.length;
  }
  const hash = beside.hex();
  beside = new Sha256();
  return hash;
}
