"""The example on a Ray of its own, with two replicas of one thread of the model that is built in: scripts/test-ray"""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
import ray
import requests
import wgslm
from ray import serve
from ray.util.state import list_actors

import batch
import serve_app

PORT = 18763
URL = f"http://127.0.0.1:{PORT}/v1"
CONTEXT = 512
HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def cluster():
    # More CPUs than there may be: what is tested is how Ray is used, and a replica reserves one.
    ray.init(num_cpus=4, log_to_driver=False, runtime_env={"working_dir": str(HERE)})
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.fixture(scope="module")
def two(cluster):
    serve.run(serve_app.build(serve_app.Options(replicas=2, threads=1, context=CONTEXT, parallel=4, ongoing=8)))
    yield
    serve.delete("default")


@pytest.fixture(scope="module")
def engine():
    return wgslm.Engine(device="cpu", threads=1, context=CONTEXT)


def post(route, **body):
    response = requests.post(f"{URL}/{route}", json=body, timeout=120)
    response.raise_for_status()
    return response.json()


def stream(route, **body):
    """The events of a stream as they come, without the last line."""
    with requests.post(f"{URL}/{route}", json={**body, "stream": True}, stream=True, timeout=120) as response:
        response.raise_for_status()
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line == b"data: [DONE]":
                return
            if line:
                yield json.loads(line.removeprefix(b"data: "))
    raise AssertionError("a stream without an end")


def chunks(route, **body):
    return list(stream(route, **body))


def text_of(events):
    return "".join(event["choices"][0]["text"] for event in events)


def test_answers_are_those_of_an_engine(two, engine):
    wanted = {"max_tokens": 40, "temperature": 0}
    alone = engine.generate("Once upon a time", exact=True, **wanted)
    whole = post("completions", prompt="Once upon a time", **wanted)
    assert whole["choices"][0]["text"] == alone.text and whole["object"] == "text_completion"
    assert whole["usage"]["prompt_tokens"] == alone.prompt_tokens
    assert whole["usage"]["completion_tokens"] == alone.generated_tokens
    ids = post("completions", prompt=engine.tokenize("Once upon a time"), max_tokens=4, temperature=0)
    assert alone.text.startswith(ids["choices"][0]["text"])
    seeded = {"seed": 7, "temperature": 1, "max_tokens": 30}
    text = post("completions", prompt="Tom", **seeded)["choices"][0]["text"]
    assert text == engine.generate("Tom", exact=True, **seeded).text
    assert requests.get(f"{URL}/models", timeout=60).json()["data"][0]["id"] == engine.name


def test_answers_come_in_pieces(two, engine):
    events = chunks("completions", prompt="Once upon a time", max_tokens=40, temperature=0)
    assert text_of(events) == engine.generate("Once upon a time", max_tokens=40, temperature=0, exact=True).text
    assert len(events) > 10 and events[-1]["choices"][0]["finish_reason"] in ("length", "stop")
    assert events[-1]["usage"]["completion_tokens"] > 10
    messages = [{"role": "user", "content": "Hello!"}]
    events = chunks("chat/completions", messages=messages, max_tokens=20, temperature=0)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == engine.chat(messages, max_tokens=20, temperature=0, exact=True).text
    whole = post("chat/completions", messages=messages, max_tokens=20, temperature=0)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text}


def test_pieces_come_as_they_are_generated(two):
    body = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 1.0, "seed": 3, "stream": True}
    began = time.monotonic()
    with requests.post(f"{URL}/completions", json=body, stream=True, timeout=120) as response:
        lines = response.iter_lines()
        next(lines)
        first = time.monotonic() - began
        for _ in lines:
            pass
    assert first < 0.7 * (time.monotonic() - began), first


def test_errors_have_a_status(two):
    for wrong, status in (({"temperature": -1}, 400), ({"tempreature": 1}, 422), ({"max_tokens": "many"}, 422)):
        for stream in (False, True):
            body = {"prompt": "Once", "stream": stream, **wrong}
            response = requests.post(f"{URL}/completions", json=body, timeout=60)
            assert response.status_code == status and next(iter(wrong)) in response.text, response.text


def test_prompts_that_begin_alike_go_to_one_replica(two):
    used = set()
    for i in range(8):
        start = f"Story {i}: " + "Once upon a time there was a little dog who lived in a big house. " * 5
        answers = [
            post("completions", prompt=f"{start} {end}", max_tokens=2, temperature=0)
            for end in ("The dog", "A cat", "Then Tom said that he", "One day")
        ]
        replicas = {answer["replica"] for answer in answers}
        assert len(replicas) == 1, f"{start[:8]} went to {replicas}"
        used |= replicas
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        assert all(tokens > 48 for tokens in cached[1:]), cached
    assert len(used) == 2, "all prompts went to one replica"
    # A conversation stays where its first question went.
    messages, replicas = [{"role": "user", "content": "Who lives in the house?"}], set()
    for _ in range(3):
        answer = post("chat/completions", messages=messages, max_tokens=8, temperature=0)
        replicas.add(answer["replica"])
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    assert len(replicas) == 1


def test_keys_are_of_complete_blocks():
    key = serve_app.prefix_key
    long = "x" * 300
    assert key(long, 4) == key(long + "y", 4) == key("x" * 256, 4) != key("y" + long, 4)
    assert key("x" * 64 + "a", 4) == key("x" * 64 + "b", 4)
    assert key("Tom", 4) != key("Tim", 4) and key("", 4)


def running():
    """The processes of the replicas, by the name that their answers have."""
    actors = list_actors(filters=[("state", "=", "ALIVE")], limit=1000)
    replicas = [actor for actor in actors if actor.name and "#Replica#" in actor.name]
    return {actor.name.rsplit("#", 1)[1]: actor.pid for actor in replicas}


def test_a_replica_that_is_killed_loses_nothing(two, engine):
    wanted = [
        {"prompt": f"{name} had a {thing}", "max_tokens": 300, **how}
        for name in ("Tom", "Lily", "The dog", "Once upon a time, Anna")
        for thing in ("ball", "red hat", "big house")
        for how in ({"temperature": 0}, {"temperature": 1.0, "seed": 11})
    ]
    expected = [engine.generate(exact=True, **body).text for body in wanted]
    before = running()
    assert len(before) == 2

    open_on = {}  # who computes a stream that is not at its end

    def ask(i):
        if i % 4 == 3:
            return [post("completions", **wanted[i])]
        return list(watch(i, stream("completions", **wanted[i])))

    def watch(i, events):
        for event in events:
            open_on[i] = event["replica"]
            yield event
        del open_on[i]

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, i) for i in range(len(wanted))]
        until = time.monotonic() + 60
        while not (streams := list(open_on.values())):
            assert time.monotonic() < until, "no stream has begun"
            time.sleep(0.001)
        victim = streams[0]
        os.kill(before[victim], signal.SIGKILL)
        answers = [answer.result() for answer in answers]
    assert [text_of(events) for events in answers] == expected
    replicas = [[event["replica"] for event in events] for events in answers]
    moved = [names for names in replicas if len(set(names)) > 1]
    print(f"{len(moved)} of {len(wanted)} answers were in the middle of it")
    assert moved and all(names[0] == victim != names[-1] for names in moved)
    # And it is replaced.
    until = time.monotonic() + 60
    while len(now := running()) < 2 or victim in now:
        assert time.monotonic() < until, now
        time.sleep(0.2)


def metrics():
    """Of both replicas. Sixteen keys: each is asked. One that is new takes a while until the handle knows it."""
    handle = serve.get_deployment_handle("Replica", "default")
    until = time.monotonic() + 60
    while True:
        found = [handle.metrics.remote(key=str(i)).result() for i in range(16)]
        by_name = {each.pop("replica"): each for each in found}
        if len(by_name) == 2:
            return list(by_name.values())
        assert time.monotonic() < until, list(by_name)
        time.sleep(0.2)


def test_who_goes_away_leaves_nothing(two):
    wanted = [{"prompt": f"{i}. Once", "max_tokens": 450, "temperature": 1.0, "seed": i} for i in range(8)]

    def generated():
        return sum(each["generation_tokens"] for each in metrics())

    began = generated()
    for body in wanted:
        post("completions", **body)
    whole, began = generated() - began, generated()
    for body in wanted:
        with requests.post(f"{URL}/completions", json={**body, "stream": True}, stream=True, timeout=60) as response:
            next(response.iter_lines())
    until = time.monotonic() + 10
    while any(each["requests_running"] for each in metrics()):
        assert time.monotonic() < until
        time.sleep(0.05)
    print(f"{generated() - began} of {whole} tokens after callers have gone")
    assert generated() - began < whole / 2


def test_load_adds_a_replica(cluster):
    serve.delete("default")
    options = serve_app.Options(
        threads=1, context=CONTEXT, parallel=1, ongoing=2, max_replicas=2, upscale_delay=0.5, downscale_delay=600
    )
    serve.run(serve_app.build(options))
    try:
        assert len(running()) == 1
        until = time.monotonic() + 90
        with ThreadPoolExecutor(6) as pool:
            while len(running()) < 2:
                assert time.monotonic() < until, "no replica was added"
                body = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 1.0}
                list(pool.map(lambda seed: post("completions", seed=seed, **body), range(12)))
    finally:
        serve.delete("default")


def test_batches_are_single_answers(cluster, engine, tmp_path):
    prompts = [f"{name} had a {thing}" for name in ("Tom", "Lily", "Ben") for thing in ("ball", "hat", "dog", "cat")]
    prompts += ["", None, "word " * 2000]
    table = pa.table({"id": range(len(prompts)), "prompt": pa.array(prompts, pa.string())})
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for part in range(3):
        pa.parquet.write_table(table.slice(part * 5, 5), source / f"{part}.parquet")
    data = batch.answer(
        ray.data.read_parquet(str(source)), replicas=2, threads=1, context=CONTEXT, batch=4, max_tokens=40
    )
    data.write_parquet(str(target))
    rows = sorted(pa.parquet.read_table(target).to_pylist(), key=lambda row: row["id"])
    assert [row["prompt"] for row in rows] == prompts
    assert len(rows) == 15 and list(rows[0]) == ["id", "prompt", "answer", "error"]
    for row in rows[:12]:
        assert row["answer"] == engine.generate(row["prompt"], max_tokens=40, temperature=0).text and not row["error"]
    for row in rows[12:]:
        assert (row["answer"] is None) != (row["error"] is None), row
    assert "prompt" in rows[13]["error"] and rows[14]["error"]


def test_a_batch_whose_engine_is_killed_is_done_again(cluster, engine):
    prompts = [f"{i}. {name} had a {thing}" for i in range(40) for name in ("Tom", "Lily") for thing in ("ball", "hat")]
    data = ray.data.from_arrow(pa.table({"prompt": prompts})).repartition(20)
    options = {"threads": 1, "context": CONTEXT, "batch": 8, "max_tokens": 200}
    before = workers()
    rows, killed = [], None
    for row in batch.answer(data, replicas=2, **options).iter_rows():
        rows.append(row)
        if killed is None:
            killed = (workers() - before).pop()
            os.kill(killed, signal.SIGKILL)
    assert sorted(row["prompt"] for row in rows) == sorted(prompts) and killed
    for row in rows:
        assert row["answer"] == engine.generate(row["prompt"], max_tokens=200, temperature=0).text


def workers():
    """The processes of Ray Data's actors."""
    actors = list_actors(filters=[("state", "=", "ALIVE")], limit=1000)
    return {actor.pid for actor in actors if "Answers" in actor.class_name}


def test_the_readme_names_what_there_is():
    text = (HERE / "README.md").read_text()
    for name in serve_app.Options.model_fields:
        assert f"`{name}`" in text, name
