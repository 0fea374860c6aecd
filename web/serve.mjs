// Serves the built page, and models if asked to, with range requests, on this machine only:
//   scripts/serve-web [--port 8080] [--models FOLDER] [--isolated]
// Models appear under /models/. Without a port, any that is free. Isolated pages may share memory between threads.
import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { pipeline } from "node:stream";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".css": "text/css; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".json": "application/json",
  ".wasm": "application/wasm",
};

/** The path that a request asks for; undefined where its address is malformed, as `/%zz` is. */
function pathOf(address) {
  try {
    return normalize(decodeURIComponent(new URL(address, "http://localhost").pathname));
  } catch {
    return undefined;
  }
}

/** What makes a page cross-origin isolated. */
const ISOLATED = { "cross-origin-opener-policy": "same-origin", "cross-origin-embedder-policy": "require-corp" };

/** Serves `folder`, and `models` under /models/. `first`, if given, sees each request and may answer it: then it says true. */
export function serve({ folder, models, port = 0, first, isolated = false }) {
  const server = createServer(async (request, response) => {
    for (const [name, value] of Object.entries(isolated ? ISOLATED : {})) response.setHeader(name, value);
    const path = pathOf(request.url);
    if (path === undefined) return response.writeHead(400).end("malformed address\n");
    if (first?.(path, request, response)) return;
    const file = models && path.startsWith("/models/") ? join(models, path.slice(8)) : join(folder, path === "/" ? "index.html" : path);
    const found = await stat(file).catch(() => null);
    if (!found?.isFile() || !["GET", "HEAD"].includes(request.method)) return response.writeHead(404).end("not found\n");
    const headers = {
      "content-type": TYPES[extname(file)] ?? "application/octet-stream",
      "accept-ranges": "bytes",
      "cache-control": "no-cache",
      etag: `"${found.size}-${Math.floor(found.mtimeMs)}"`,
    };
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    const start = range ? Number(range[1]) : 0;
    const end = Math.min(range?.[2] ? Number(range[2]) : Infinity, found.size - 1);
    if (range && start > end) return response.writeHead(416, { "content-range": `bytes */${found.size}` }).end();
    headers["content-length"] = end - start + 1;
    if (range) headers["content-range"] = `bytes ${start}-${end}/${found.size}`;
    response.writeHead(range ? 206 : 200, headers);
    if (request.method === "HEAD" || found.size === 0) return response.end();
    pipeline(createReadStream(file, { start, end }), response, () => {});
  });
  return new Promise((ready) => server.listen(port, "127.0.0.1", () => ready(server)));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const option = (name) => (process.argv.includes(name) ? process.argv[process.argv.indexOf(name) + 1] : undefined);
  const folder = fileURLToPath(new URL("dist", import.meta.url));
  const server = await serve({ folder, models: option("--models"), port: Number(option("--port") ?? 8080), isolated: process.argv.includes("--isolated") });
  console.log(`http://localhost:${server.address().port}/`);
}
