// Runs WGSL modules through Tint, the validator of Chromium (npm `webgpu`: Dawn; its null backend needs no GPU).
//
//     node check.mjs FOLDER|FILE.wgsl ...
//
// Each module is compiled, and each of its compute entry points made into a pipeline with the overrides' defaults, on
// a device with WebGPU's default limits. A device has only the optional features that the module enables. Errors go to
// stdout as `file:line:column: message`. Exit status: 0 all passed, 1 some did not, 2 wrong use or no module found.
import { readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';

// What a module enables, and the feature that a device must have for it.
const FEATURES = { f16: 'shader-f16', subgroups: 'subgroups' };

const files = process.argv.slice(2).flatMap((path) =>
  statSync(path).isDirectory() ? readdirSync(path).filter((n) => n.endsWith('.wgsl')).sort().map((n) => join(path, n)) : [path]);
if (files.length === 0) {
  console.error('usage: node check.mjs FOLDER|FILE.wgsl ... (no module found)');
  process.exit(2);
}

const { create } = await import('webgpu').catch((e) => {
  console.error(`npm ci --prefix tests/tint --ignore-scripts is needed first: ${e.message}`);
  process.exit(2);
});
const gpu = create(['backend=null']);
const devices = new Map();

// A device with exactly the optional features that the module's `enable` lines name.
async function deviceFor(code) {
  const enabled = [...code.matchAll(/^\s*enable\s+([^;]+);/gm)].flatMap((m) => m[1].split(',').map((s) => s.trim()));
  const features = [...new Set(enabled.map((name) => FEATURES[name]).filter(Boolean))].sort();
  const key = features.join();
  if (!devices.has(key)) {
    const adapter = await gpu.requestAdapter();
    devices.set(key, await adapter.requestDevice({ requiredFeatures: features }));
  }
  return devices.get(key);
}

// Tint's errors for one module, as lines to print.
async function problems(file) {
  const code = readFileSync(file, 'utf8');
  const device = await deviceFor(code);
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ label: file, code });
  const { messages } = await module.getCompilationInfo();
  await device.popErrorScope(); // says the same as `messages`
  const errors = messages.filter((m) => m.type === 'error');
  if (errors.length > 0) return errors.map((m) => `${file}:${m.lineNum}:${m.linePos}: ${m.message}`);

  const entries = [...code.matchAll(/@compute\b[^{;]*?\bfn\s+(\w+)/g)].map((m) => m[1]);
  const found = entries.length === 0 ? [`${file}: no compute entry point`] : [];
  for (const entryPoint of entries) {
    device.pushErrorScope('validation');
    device.createComputePipeline({ layout: 'auto', compute: { module, entryPoint } });
    const error = await device.popErrorScope();
    if (error) found.push(`${file}: ${entryPoint}: ${error.message.split('\n')[0]}`);
  }
  return found;
}

const began = performance.now();
let failed = 0;
for (const file of files) {
  const found = await problems(file);
  for (const line of found) console.log(line);
  if (found.length > 0) failed += 1;
}
const ms = (performance.now() - began).toFixed(0);
console.log(`tint: ${files.length} modules, ${failed} failed, ${ms} ms`);
// Dawn's threads keep a process alive, and its teardown can be slow.
process.exit(failed > 0 ? 1 : 0);
