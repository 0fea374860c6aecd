// Keeps the page itself, so that it opens without a network; models are kept elsewhere (src/store.ts).
// The network comes first: what is kept serves only where it does not answer. The query names the module that models run by here.
const CACHE = "wgslm-page";
/** Milliseconds that the network has where there is a copy. */
const PATIENCE = 4000;

self.addEventListener("install", (event) => event.waitUntil(install()));

async function install() {
  const files = await (await fetch("files.json")).json();
  const module = (name) => /^(wgslm\w*?)(_bg)?\.(js|wasm)$/.exec(name)?.[1];
  const own = location.search.slice(1);
  await (await caches.open(CACHE)).addAll(["./", ...files.filter((name) => (module(name) ?? own) === own)]);
  await self.skipWaiting();
}

self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  const url = new URL(event.request.url);
  // Models and other pages are none of ours.
  if (event.request.method !== "GET" || !url.href.startsWith(self.registration.scope)) return;
  event.respondWith(answer(event.request, url));
});

async function answer(request, url) {
  const cache = await caches.open(CACHE);
  const copy = await cache.match(url.origin + url.pathname);
  if (!copy) return fetch(request);
  const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.get("range") ?? "");
  try {
    const signal = AbortSignal.timeout(PATIENCE);
    const response = await new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      fetch(request).then(resolve, reject);
    });
    if (response.status === 200 && !range) await cache.put(url.origin + url.pathname, response.clone());
    if (response.ok) return response;
  } catch {
    // No network, or a slow one.
  }
  if (!range) return copy;
  const blob = await copy.blob();
  const start = Number(range[1]);
  const end = Math.min(range[2] ? Number(range[2]) : Infinity, blob.size - 1);
  const headers = { "content-range": `bytes ${start}-${end}/${blob.size}`, "content-type": blob.type };
  const etag = copy.headers.get("etag");
  if (etag) headers.etag = etag;
  return new Response(blob.slice(start, end + 1), { status: 206, headers });
}
