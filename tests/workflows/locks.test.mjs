// npm's lock files: where a folder is installed already, npm writes packages of its own platform alone. `npm ci` then refuses
// the file in a fresh clone.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

const root = fileURLToPath(new URL("../../", import.meta.url));

/** The folders that have a lock file. */
function locks(folder = ".") {
  const inside = readdirSync(join(root, folder), { withFileTypes: true });
  const below = inside.filter((e) => e.isDirectory() && !["node_modules", "target", "dist"].includes(e.name) && !e.name.startsWith("."));
  const here = inside.some((e) => e.name === "package-lock.json") ? [folder] : [];
  return [...here, ...below.flatMap((e) => locks(join(folder, e.name)))];
}

/** The dependencies that a lock names and does not hold, also those for other platforms. */
function missing({ packages }) {
  const found = (from, name) => {
    // As Node.js looks for it: in the package's own folder, then in each one above.
    for (let at = from; ; at = at.slice(0, Math.max(at.lastIndexOf("/node_modules/"), 0))) {
      if (packages[`${at ? `${at}/` : ""}node_modules/${name}`]) return true;
      if (!at) return false;
    }
  };
  return Object.entries(packages).flatMap(([path, { dependencies, optionalDependencies, devDependencies }]) =>
    Object.keys({ ...dependencies, ...optionalDependencies, ...(path ? {} : devDependencies) })
      .filter((name) => !found(path, name))
      .map((name) => `${path || "the package"} needs ${name}`),
  );
}

const read = (folder) => JSON.parse(readFileSync(join(root, folder, "package-lock.json"), "utf8"));

test("there are lock files", () => assert.ok(locks().length >= 4, locks().join()));

for (const folder of locks()) {
  test(`${folder}/package-lock.json holds every platform's packages`, () => assert.deepEqual(missing(read(folder)), []));
}

test("a lock without a platform is refused", () => {
  const lock = read("benches/peers");
  assert.ok(delete lock.packages["node_modules/@node-llama-cpp/win-x64"]);
  assert.deepEqual(missing(lock), ["node_modules/node-llama-cpp needs @node-llama-cpp/win-x64"]);
});
