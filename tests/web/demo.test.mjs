// The page of the package in Chromium: node --test tests/web/demo.test.mjs, after scripts/build-web.
import assert from "node:assert/strict";
import { join } from "node:path";
import { launch, PLAIN } from "./chromium.mjs";
import { address, asked, browser, fresh, limited, shots } from "./harness.mjs";

limited("an address in ?model= may be relative to the page", async () => {
  fresh();
  for (const [wanted, whole] of [["/models/A.gguf", `${address}/models/A.gguf`], ["https://a.test/b.gguf", "https://a.test/b.gguf"]]) {
    const page = await browser.newPage();
    await page.goto(`${address}/?model=${wanted}`);
    await page.waitForSelector("#setup:not([hidden])");
    assert.equal(await page.inputValue("#url"), whole);
    assert.equal(await page.isChecked("[value=url]"), true);
    assert.equal(await page.evaluate(() => document.getElementById("setup").checkValidity()), true, "the form can be sent");
    await page.close();
  }
});

limited("without WebGPU the page says so and asks for nothing", async () => {
  fresh();
  const plain = await launch(PLAIN);
  try {
    const page = await plain.newPage({ viewport: { width: 390, height: 780 } });
    await page.goto(address);
    await page.waitForSelector("#unsupported:not([hidden])");
    assert.match(await page.innerText("#unsupported"), /no graphics adapter|no WebGPU[^]*chrome:\/\/flags/);
    assert.equal(await page.isVisible("#setup"), false);
    await page.screenshot({ path: join(shots, "unsupported-390.png") });
  } finally {
    await plain.close();
  }
  const paths = asked.map(({ path }) => path);
  assert.ok(paths.includes("/demo.js"));
  assert.deepEqual(paths.filter((path) => /\.(wasm|gguf)$|worker/.test(path)), []);
});

for (const [width, height, colorScheme] of [[1280, 800, "light"], [390, 780, "dark"]]) {
  limited(`the page, ${width} pixels wide: load, talk, stop, clear, by keyboard alone`, async () => {
    fresh();
    const page = await browser.newPage({ viewport: { width, height }, colorScheme });
    const problems = [];
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    const shot = async (name) => {
      await page.screenshot({ path: join(shots, `${name}-${width}.png`) });
      const [inner, outer] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
      assert.ok(inner <= outer, `${name} is ${inner} pixels wide`);
    };
    const focused = () => page.evaluate(() => document.activeElement.id);
    const timeout = 60_000;

    await page.goto(address);
    await page.waitForSelector("#setup:not([hidden])");
    assert.match(await page.innerText("#adapter"), /swiftshader/i);
    await shot("setup");
    for (let i = 0; (await focused()) !== "load"; i++) {
      assert.ok(i < 5, "Tab reaches the button");
      await page.keyboard.press("Tab");
    }
    await page.keyboard.press("Enter");
    await page.waitForSelector("#loading:not([hidden])");
    await page.waitForSelector("#composer:not([hidden])", { timeout });
    assert.equal(await focused(), "input");

    await page.keyboard.type("Tell me a story about a small fox.");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector("#log .assistant .text")?.textContent.length > 30, null, { timeout });
    assert.equal(await page.isVisible("#stop"), true);
    await shot("answering");
    // Timed in the page: this process waits for its turn, too.
    await page.evaluate(() => {
      const send = document.getElementById("send");
      document.addEventListener("keydown", () => (window.stopping = performance.now()), { capture: true, once: true });
      new MutationObserver(() => send.hidden || (window.stopped ??= performance.now())).observe(send, { attributes: true });
    });
    await page.keyboard.press("Escape");
    await page.waitForSelector("#send:not([hidden])");
    const stopped = await page.evaluate(() => window.stopped - window.stopping);
    assert.ok(stopped < 300, `stopped after ${stopped} ms`);
    assert.match(await page.innerText("#log .foot"), /stopped after/);

    await page.fill("#tokens", "12");
    await page.focus("#input");
    await page.keyboard.type("And then?");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelectorAll("#log .foot").length === 2, null, { timeout });
    assert.match(await page.innerText("#log li:last-child .foot"), /tokens\/s · first after .* · \d+ of \d+ tokens read/);
    await shot("answered");

    await page.click("#clear");
    assert.equal(await page.locator("#log li").count(), 0);
    await page.click("#unload");
    await page.waitForSelector("#setup:not([hidden])");
    await page.close();
    assert.deepEqual(problems, []);
  });
}
