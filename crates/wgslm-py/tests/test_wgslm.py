"""The package as it is installed: pytest crates/wgslm-py/tests, in an environment with the wheel."""

import ast
import asyncio
import gc
import importlib.metadata
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import wgslm

GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def engine():
    return wgslm.Engine(device="cpu", context=256, threads=1, parallel=8)


def test_it_says_what_it_is(engine):
    assert engine.context == 256 and engine.has_chat and engine.vocab > 100
    assert "cpu" in engine.device and engine.name and engine.architecture == "llama"
    assert engine.name in repr(engine)
    assert wgslm.__version__[0].isdigit()


def test_the_wheel_has_the_licences():
    files = [file.name for file in importlib.metadata.files("wgslm") if "dist-info" in str(file)]
    assert {"LICENSE-APACHE", "LICENSE-MIT"} <= set(files), files
    metadata = importlib.metadata.metadata("wgslm")
    assert metadata["License-Expression"] == "MIT OR Apache-2.0", metadata.items()


def test_answers_are_the_same_in_every_way(engine):
    whole = engine.generate("Once upon a time", **GREEDY)
    assert whole.generated_tokens == 24 and whole.finish == "length" and len(whole.ids) == 24
    assert engine.detokenize(whole.ids) == whole.text
    stream = engine.stream("Once upon a time", **GREEDY)
    tokens = []
    stream.on_token = tokens.append
    pieces = list(stream)
    assert "".join(pieces) == whole.text and len(pieces) > 5
    assert [token.id for token in tokens] == whole.ids
    assert stream.answer.text == whole.text and list(stream) == []
    ids = engine.tokenize("Once upon a time")
    assert engine.generate(ids, **GREEDY).prompt_tokens == len(ids)

    async def in_turns():
        pieces = [piece async for piece in engine.stream("Once upon a time", **GREEDY)]
        together = await asyncio.gather(*(engine.stream("Once upon a time", **GREEDY)._whole() for _ in range(16)))
        awaited = await engine.stream("Once upon a time", **GREEDY)
        return ["".join(pieces), awaited.text, *(answer.text for answer in together)]

    assert set(asyncio.run(in_turns())) == {whole.text}


def test_options_do_what_they_say(engine):
    seeded = [engine.generate("Tom", seed=7, temperature=1.0, max_tokens=16).text for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert len({engine.generate("Tom", temperature=1.5, max_tokens=16).text for _ in range(4)}) > 1
    assert engine.generate("Once upon a time", stop=" ", **GREEDY).finish == "stop"
    stream = engine.stream("Once", logprobs=3, **GREEDY)
    tokens = []
    stream.on_token = tokens.append
    assert stream.answer.generated_tokens == 24
    assert all(len(token.logprobs) == 4 and token.logprobs[0][0] == token.id for token in tokens)
    assert all(logprob <= 0 for token in tokens for _, logprob in token.logprobs)
    always = engine.tokenize(" dog")[0]
    assert engine.generate("The", logit_bias={always: 100.0}, temperature=0, max_tokens=3).ids == [always] * 3
    assert engine.generate("Once", deadline=0.0, max_tokens=200).finish == "deadline"


def test_chats_go_on_from_what_was_answered(engine):
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "Hello!"}]
    first = engine.chat(messages, temperature=0, max_tokens=12)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
    second = engine.chat(messages, temperature=0, max_tokens=12)
    assert second.reused_tokens >= first.prompt_tokens
    assert "".join(engine.stream_chat(messages, temperature=0, max_tokens=12)) == second.text


def test_what_is_dropped_ends(engine):
    stream = engine.stream("Once upon a time")
    next(stream)
    del stream
    with engine.stream("Once upon a time") as stream:
        next(stream)
    with pytest.raises(wgslm.Error):
        stream.answer
    cancelled = engine.stream("Once upon a time")
    next(cancelled)
    cancelled.cancel()
    assert cancelled.answer.finish in ("cancelled", "stop", "context")

    async def task():
        async for _ in engine.stream("Once upon a time"):
            await asyncio.sleep(0.01)

    async def given_up():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(task(), 0.05)

    asyncio.run(given_up())
    gc.collect()
    until = time.monotonic() + 10
    while engine.metrics["requests_running"] > 0:
        assert time.monotonic() < until, engine.metrics
        time.sleep(0.01)


def test_errors_say_what_works(engine):
    with pytest.raises(wgslm.ArgumentError) as raised:
        engine.generate("Once", temperature=-1)
    assert raised.value.code == "argument" and "temperature" in str(raised.value)
    assert isinstance(raised.value, ValueError)
    with pytest.raises(TypeError, match="max_tokens"):
        engine.generate("Once", max_token=3)
    with pytest.raises(wgslm.ArgumentError, match="toaster"):
        wgslm.Engine(device="toaster")
    with pytest.raises(wgslm.Error) as raised:
        wgslm.Engine("./there is no such file.gguf")
    assert raised.value.code == "io" and "no such file" in str(raised.value)
    with pytest.raises(wgslm.Error) as raised:
        wgslm.Engine(b"no model")
    assert raised.value.code == "malformed"
    with pytest.raises(wgslm.ArgumentError, match="the vocabulary has"):
        engine.detokenize([1 << 31])
    with pytest.raises(wgslm.ArgumentError, match="background"):
        engine.generate("Once", priority="soon")
    with pytest.raises(wgslm.ArgumentError, match="deadline"):
        engine.generate("Once", deadline=-1.0)


def test_errors_reach_other_processes():
    made = [wgslm.Error("io", "no file"), wgslm.ArgumentError("argument", "no"), wgslm.RefusedError("refused", "later", 2.5)]
    for error in made:
        error.__dict__["where"] = "here"
        got = pickle.loads(pickle.dumps(error))
        assert type(got) is type(error) and str(got) == str(error) and vars(got) == vars(error)


def test_too_much_is_refused():
    engine = wgslm.Engine(device="cpu", context=256, threads=1, parallel=1, queue=2)
    streams = []
    with pytest.raises(wgslm.RefusedError) as raised:
        for _ in range(8):
            streams.append(engine.stream("Once upon a time"))
    assert raised.value.retry_after > 0 and raised.value.code == "refused"
    assert len(streams) >= 2
    for stream in streams:
        stream.close()


def test_sixteen_threads_share_an_engine(engine):
    expected = engine.generate("The dog", **GREEDY).text
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: engine.generate("The dog", **GREEDY).text, range(64)))
    assert set(answers) == {expected}


def test_the_interpreter_is_free_meanwhile(engine):
    stop, counted = threading.Event(), 0

    def generate():
        for _ in range(8):
            engine.generate("Once upon a time", temperature=0, max_tokens=100)
        stop.set()

    thread = threading.Thread(target=generate)
    thread.start()
    while not stop.is_set():
        counted += 1
        time.sleep(0)
    thread.join()
    assert counted > 1000


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_ctrl_c_ends_a_wait():
    code = (
        # Where it was started in the background, it would ignore the signal.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import wgslm\n"
        "engine = wgslm.Engine(device='cpu', context=4096, threads=1)\n"
        "print('ready', flush=True)\n"
        "while True: engine.generate('Once upon a time', max_tokens=4000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGINT)
        try:
            _, errors = child.communicate(timeout=20)
        finally:
            child.kill()
    assert b"KeyboardInterrupt" in errors and b"panicked" not in errors


def test_vectors_are_arrays():
    embedder = wgslm.Embedder(device="cpu", threads=1)
    vectors = embedder.embed(["A man is eating food.", "Someone has lunch.", "A man is eating food."])
    assert vectors.shape == (3, embedder.width) and vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-3)
    assert np.array_equal(vectors[0], vectors[2]) and not np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(embedder.embed("Someone has lunch."), vectors[1])


def test_logits_are_arrays_that_nobody_copied(engine):
    scorer = wgslm.Scorer(device="cpu", threads=1, context=256)
    ids = engine.tokenize("Once upon a time there was")
    logits = scorer.logits(ids)
    assert logits.shape == (len(ids), engine.vocab) and logits.dtype == np.float32
    # Not a copy: the array owns no memory of NumPy's, and can be written.
    assert logits.base is not None and logits.flags.writeable and logits.flags.c_contiguous
    assert np.array_equal(scorer.logits(ids[:3])[-1].argmax(), logits[2].argmax())
    with pytest.raises(wgslm.ArgumentError, match="the vocabulary has"):
        scorer.logits([1 << 31])


def test_progress_goes_to_functions_and_the_log(caplog):
    seen = []
    with caplog.at_level(logging.INFO, logger="wgslm"):
        wgslm.Engine(device="cpu", threads=1, context=64, progress=lambda *event: seen.append(event))
    assert seen[-1][0] == "load" and seen[-1][1] == seen[-1][2] > 0
    assert any("on cpu" in record.getMessage() for record in caplog.records)


def test_the_notebook_runs():
    """Its cells, one after another, in a loop as notebooks have one."""
    path = os.path.join(os.path.dirname(__file__), "..", "examples", "tour.ipynb")
    with open(path) as file:
        cells = [cell for cell in json.load(file)["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 4
    names = {}

    async def run():
        for cell in cells:
            code = compile("".join(cell["source"]), path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            waits = eval(code, names)
            if waits is not None:
                await waits

    asyncio.run(run())
    assert names["answer"].generated_tokens > 0 and names["vectors"].shape[0] == 3


def test_the_readme_runs():
    path = os.path.join(os.path.dirname(__file__), "..", "README.md")
    with open(path) as file:
        blocks = re.findall(r"^```python\n(.+?)^```", file.read(), re.M | re.S)
    assert len(blocks) == 3
    names = {}
    exec(compile("".join(blocks), path, "exec"), names)
    assert names["vectors"].shape[0] == 2 and names["logits"].shape[1] == names["engine"].vocab


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory as Linux says it")
def test_a_thousand_engines_leave_nothing():
    for i in range(1000):
        if i == 100:
            before = resident()
        engine = wgslm.Engine(device="cpu", threads=1, context=64)
        assert engine.generate("Once", max_tokens=2).generated_tokens == 2
        del engine
    assert resident() - before < 8 << 20, f"{(resident() - before) >> 10} KiB"


def test_the_import_is_quick():
    best = min(
        float(
            subprocess.check_output(
                [sys.executable, "-c", "import time; t = time.perf_counter(); import wgslm; print(time.perf_counter() - t)"]
            )
        )
        for _ in range(5)
    )
    # Ten times the goal for the package itself, since tests share the machine and NumPy is imported, too.
    assert best < 1.0, best
