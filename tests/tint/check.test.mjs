// The check itself can fail: modules that only a browser rejects, and modules beyond WebGPU's default limits.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';

const CHECK = new URL('./check.mjs', import.meta.url).pathname;
const OUT = '@group(0) @binding(0) var<storage, read_write> y: array<f32>;\n';
const LID = '@builtin(local_invocation_id) l: vec3<u32>';

// Runs the check over one module, gives its exit status and what it prints.
function check(code) {
  const folder = mkdtempSync(join(tmpdir(), 'tint-'));
  try {
    writeFileSync(join(folder, 'case.wgsl'), code);
    const { status, stdout } = spawnSync(process.execPath, [CHECK, folder], { encoding: 'utf8' });
    return { status, stdout };
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const accepted = {
  'a module with overrides': `override WG: u32 = 64u;\n${OUT}@compute @workgroup_size(WG) fn main(${LID}) { y[l.x] = 1.0; }`,
  'f16 and subgroups, enabled': `enable f16;\nenable subgroups;\n@group(0) @binding(0) var<storage, read_write> y: array<f16>;
@compute @workgroup_size(64) fn main(${LID}) { y[l.x] = f16(subgroupAdd(1.0)); }`,
};
for (const [name, code] of Object.entries(accepted)) {
  test(`passes ${name}`, () => {
    const { status, stdout } = check(code);
    assert.equal(status, 0, stdout);
    assert.match(stdout, /1 modules, 0 failed/);
  });
}

const buffers = Array.from({ length: 9 }, (_, i) => i);
const rejected = {
  // gfx-rs/wgpu#4369: naga takes it
  'a barrier after a divergent return': [`${OUT}@compute @workgroup_size(64) fn main(${LID}) {
  if (l.x > 3u) { return; }
  workgroupBarrier(); y[l.x] = 1.0; }`, /case\.wgsl:4:3: .*uniform control flow/],
  // gfx-rs/wgpu#8202: naga knows the built-ins without it
  'subgroups that are not enabled': [`${OUT}@compute @workgroup_size(64) fn main(${LID}) { y[l.x] = subgroupAdd(1.0); }`, /case\.wgsl:2:\d+: .*subgroups/],
  '512 threads': [`${OUT}@compute @workgroup_size(512) fn main(${LID}) { y[l.x] = 1.0; }`, /workgroup_size\(512/],
  '20 KiB of workgroup memory': [`${OUT}var<workgroup> s: array<f32, 5120>;
@compute @workgroup_size(64) fn main(${LID}) { s[l.x] = 1.0; workgroupBarrier(); y[l.x] = s[63u - l.x]; }`, /workgroup/],
  'nine storage buffers': [`${buffers.map((i) => `@group(0) @binding(${i}) var<storage, read_write> b${i}: array<f32>;`).join('\n')}
@compute @workgroup_size(1) fn main() { b0[0] = ${buffers.slice(1).map((i) => `b${i}[0]`).join(' + ')}; }`, /storage buffers \(9\)/],
  'a module without an entry point': ['const A = 1;', /no compute entry point/],
};
for (const [name, [code, message]] of Object.entries(rejected)) {
  test(`rejects ${name}`, () => {
    const { status, stdout } = check(code);
    assert.equal(status, 1, stdout);
    assert.match(stdout, message);
  });
}
