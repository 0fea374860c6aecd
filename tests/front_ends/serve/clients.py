"""Official clients of three APIs: clients.py ADDRESS KEY OTHERS VECTORS.

At the first address is the embedded model; at the second a model that calls a tool, and one called VECTORS.
"""

import json
import sys

import anthropic
import httpx
import ollama
import openai
from prometheus_client.parser import text_string_to_metric_families

address = sys.argv[1]
key = sys.argv[2]
client = openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
claude = anthropic.Anthropic(base_url=address, api_key=key, max_retries=0)
local = ollama.Client(host=address, headers={"Authorization": f"Bearer {key}"})
cases = 0


def case(name, holds):
    global cases
    cases += 1
    assert holds, name


def fails(name, kind, run, words=""):
    global cases
    cases += 1
    try:
        run()
    except kind as error:
        assert words in str(error), f"{name}: {error}"
        return error
    raise AssertionError(f"{name}: it works")


SAY = [{"role": "user", "content": "Tell me about a dog."}]
LIMITS = dict(model="tiny", max_tokens=24, seed=7)

# --- openai -----------------------------------------------------------------------------------------------------------
case("models", [model.id for model in client.models.list()] == ["tiny"])
case("model", client.models.retrieve("tiny").id == "tiny")
for temperature in (0, 0.7, 1.5):
    for n in (1, 2):
        options = dict(LIMITS, messages=SAY, temperature=temperature, n=n)
        whole = client.chat.completions.create(**options)
        case("choices", len(whole.choices) == n)
        texts = [choice.message.content for choice in whole.choices]
        stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
        said, usage, roles, ends = [""] * n, None, 0, 0
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                said[choice.index] += choice.delta.content or ""
                roles += choice.delta.role == "assistant"
                ends += choice.finish_reason is not None
        case("streamed text", said == texts)
        case("roles and ends", (roles, ends) == (n, n))
        case("usage", usage.completion_tokens == whole.usage.completion_tokens)
        case("total", usage.total_tokens == usage.prompt_tokens + usage.completion_tokens)
with client.chat.completions.stream(messages=SAY, stop=[" "], **LIMITS) as stream:
    events = list(stream)
    final = stream.get_final_completion()
case("helper", final.choices[0].message.content and any(event.type == "content.delta" for event in events))
whole = client.chat.completions.create(messages=SAY, logprobs=True, top_logprobs=2, **LIMITS)
tokens = whole.choices[0].logprobs.content
case("logprobs", len(tokens) == whole.usage.completion_tokens and all(len(token.top_logprobs) == 2 for token in tokens))
case("bytes", b"".join(bytes(token.bytes) for token in tokens).decode().strip() == whole.choices[0].message.content.strip())
text = client.completions.create(prompt="Once upon a time", **LIMITS).choices[0].text
pieces = [chunk.choices[0].text for chunk in client.completions.create(prompt="Once upon a time", stream=True, **LIMITS)]
case("completions", "".join(pieces) == text)
case("several", len(client.completions.create(prompt=["a", "b"], **LIMITS).choices) == 2)
for name, value in [
    ("temperature", -1), ("temperature", 1000), ("top_p", 0), ("top_p", 2), ("n", 0), ("n", 1000), ("max_tokens", 0),
    ("max_tokens", -1), ("presence_penalty", 99), ("frequency_penalty", -99), ("top_logprobs", 21),
    ("response_format", {"type": "json_object"}), ("tool_choice", "required"), ("store", True), ("seed", 0.5),
    ("reasoning_effort", "extreme"), ("service_tier", "flex"), ("stop", [""]), ("logit_bias", {"1": 500}),
]:
    options = dict(LIMITS, messages=SAY) | ({"logprobs": True} if name == "top_logprobs" else {}) | {name: value}
    error = fails(name, openai.BadRequestError, lambda: client.chat.completions.create(**options), name)
    case(f"{name}: the field", error.param.startswith(name))
fails("another model", openai.NotFoundError, lambda: client.chat.completions.create(model="gpt-4o", messages=SAY))
fails("vectors", openai.BadRequestError, lambda: client.embeddings.create(model="tiny", input="a"), "vectors")
response = client.responses.create(model="tiny", input="A dog?", max_output_tokens=24, extra_body={"seed": 5})
case("responses", response.output_text)
events = list(client.responses.create(model="tiny", input="A dog?", max_output_tokens=24, stream=True, extra_body={"seed": 5}))
case("response events", events[0].type == "response.created" and events[-1].response.output_text == response.output_text)
deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
case("response deltas", deltas == response.output_text)
with client.responses.stream(model="tiny", input="A dog?", max_output_tokens=24, extra_body={"seed": 5}) as stream:
    for event in stream:
        pass
    case("response helper", stream.get_final_response().output_text == response.output_text)
for name, value in [("previous_response_id", "resp_1"), ("background", True), ("truncation", "auto")]:
    fails(name, openai.BadRequestError, lambda: client.responses.create(model="tiny", input="a", **{name: value}), name)

# --- anthropic --------------------------------------------------------------------------------------------------------
ASK = dict(model="tiny", max_tokens=24, messages=SAY, extra_body={"seed": 7})
for system in (anthropic.NOT_GIVEN, "Be kind.", [{"type": "text", "text": "Be kind."}]):
    message = claude.messages.create(system=system, **ASK)
    case("type", message.type == "message" and message.content[0].type == "text")
    case("stop reason", message.stop_reason in ("end_turn", "max_tokens"))
    with claude.messages.stream(system=system, **ASK) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    case("streamed", said == message.content[0].text == final.content[0].text)
    case("reason", final.stop_reason == message.stop_reason)
    case("tokens", final.usage.output_tokens == message.usage.output_tokens)
    case("count", claude.messages.count_tokens(model="tiny", messages=SAY, system=system).input_tokens > 0)
stop = said[3:6]
message = claude.messages.create(stop_sequences=[stop], system=system, **ASK)
case("stop sequence", (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop))
for name, value in [("temperature", -1), ("top_p", 0), ("max_tokens", 0), ("top_k", -5), ("tool_choice", {"type": "any"})]:
    fails(name, anthropic.BadRequestError, lambda: claude.messages.create(**(ASK | {"extra_body": {name: value}})), name)
fails("another", anthropic.NotFoundError, lambda: claude.messages.create(**(ASK | {"model": "claude-opus-4"})))

# --- ollama -----------------------------------------------------------------------------------------------------------
case("list", local.list().models[0].model == "tiny")
case("ps", local.ps().models[0].model == "tiny")
case("show", local.show("tiny").capabilities == ["completion"])
for seed in (1, 2, 3):
    options = {"seed": seed, "num_predict": 24}
    whole = local.chat("tiny", messages=SAY, options=options)
    said = list(local.chat("tiny", messages=SAY, options=options, stream=True))
    case("chat", "".join(part.message.content for part in said) == whole.message.content)
    case("done", said[-1].done and said[-1].done_reason == whole.done_reason)
    case("counts", said[-1].eval_count == whole.eval_count and whole.prompt_eval_count > 0)
    whole = local.generate("tiny", "Once", options=options, raw=True)
    said = local.generate("tiny", "Once", options=options, raw=True, stream=True)
    case("generate", "".join(part.response for part in said) == whole.response)
for options in ({"temperature": -1}, {"num_ctx": 10**9}, {"top_p": 7}, {"num_predict": -9}):
    name = next(iter(options))
    fails(name, ollama.ResponseError, lambda: local.chat("tiny", messages=SAY, options=options), name)
fails("another", ollama.ResponseError, lambda: local.chat("llama3", messages=SAY))

# --- tools, thoughts and vectors ----------------------------------------------------------------------------------------
others, vectors = sys.argv[3], sys.argv[4]
client = openai.OpenAI(base_url=f"{others}/v1", api_key=key, max_retries=0)
claude = anthropic.Anthropic(base_url=others, api_key=key, max_retries=0)
local = ollama.Client(host=others, headers={"Authorization": f"Bearer {key}"})
schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
function = {"name": "weather", "description": "How it is.", "parameters": schema}
tools = [{"type": "function", "function": function}]
EXPECTED = {"city": "Rome", "days": 2}
ROME = [{"role": "user", "content": "How is Rome?"}]
options = dict(model="scripted", tools=tools, temperature=0)
message = client.chat.completions.create(messages=ROME, **options).choices[0].message
case("call", json.loads(message.tool_calls[0].function.arguments) == EXPECTED and message.content == "Let me see.")
with client.chat.completions.stream(messages=ROME, **options) as stream:
    final = stream.get_final_completion().choices[0].message
case("streamed call", json.loads(final.tool_calls[0].function.arguments) == EXPECTED)
result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sun"}
answer = client.chat.completions.create(messages=[*ROME, message, result], **options).choices[0].message
case("after the call", answer.content == "It is sunny." and not answer.tool_calls)
response = client.responses.create(model="scripted", input=ROME, tools=[{"type": "function", **function}], temperature=0)
case("response items", [item.type for item in response.output] == ["reasoning", "message", "function_call"])
output = {"type": "function_call_output", "call_id": response.output[2].call_id, "output": "sun"}
second = client.responses.create(
    model="scripted", input=[*ROME, *response.output, output], tools=[{"type": "function", **function}], temperature=0
)
case("response after the call", second.output_text == "It is sunny.")
ASK = dict(
    model="scripted", max_tokens=50, extra_body={"temperature": 0}, thinking={"type": "enabled", "budget_tokens": 1024},
    tools=[{"name": "weather", "input_schema": schema}],
)
for streamed in (False, True):
    if streamed:
        with claude.messages.stream(messages=ROME, **ASK) as stream:
            message = stream.get_final_message()
    else:
        message = claude.messages.create(messages=ROME, **ASK)
    case("blocks", [block.type for block in message.content] == ["thinking", "text", "tool_use"])
    case("thinking", message.content[0].thinking == "I look." and message.stop_reason == "tool_use")
    case("input", message.content[2].input == EXPECTED)
result = {"type": "tool_result", "tool_use_id": message.content[2].id, "content": "sun"}
turns = [*ROME, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
case("after the use", claude.messages.create(messages=turns, **ASK).content[0].text == "It is sunny.")
options = dict(tools=tools, think=True, options={"temperature": 0})
whole = local.chat("scripted", messages=ROME, **options).message
case("thought", whole.thinking == "I look." and whole.content == "Let me see.")
case("local call", whole.tool_calls[0].function.arguments == EXPECTED)
said = [part.message for part in local.chat("scripted", messages=ROME, stream=True, **options)]
case("streamed thought", "".join(part.thinking or "" for part in said) == whole.thinking)
case("streamed local call", [call.function.arguments for part in said for call in part.tool_calls or []] == [EXPECTED])
result = {"role": "tool", "tool_name": "weather", "content": "sun"}
answer = local.chat("scripted", messages=[*ROME, whole, result], **options).message
case("after the local call", answer.content == "It is sunny." and not answer.tool_calls)
case("capabilities", {"tools", "thinking"} <= set(local.show("scripted").capabilities))
# The official client asks for base64 by itself.
made = client.embeddings.create(model=vectors, input=["w4 w5", "w6"])
floats = client.embeddings.create(model=vectors, input=["w4 w5", "w6"], encoding_format="float")
case("vectors", len(made.data) == 2 and made.data[0].embedding != made.data[1].embedding)
case("floats", all(abs(a - b) < 1e-6 for a, b in zip(made.data[0].embedding, floats.data[0].embedding, strict=True)))
embedded = local.embed(vectors, ["w4 w5", "w6"])
case("embed", len(embedded.embeddings) == 2 and list(embedded.embeddings[0]) == floats.data[0].embedding)
case("embed counts", embedded.prompt_eval_count == made.usage.prompt_tokens)
case("embeddings", list(local.embeddings(vectors, "w6").embedding) == list(embedded.embeddings[1]))

# --- prometheus -------------------------------------------------------------------------------------------------------
text = httpx.get(f"{address}/metrics", headers={"Authorization": f"Bearer {key}"}).text
families = {family.name: family for family in text_string_to_metric_families(text)}
case("metrics", {"vllm:num_requests_running", "vllm:generation_tokens", "vllm:time_to_first_token_seconds"} <= set(families))
case("types", families["vllm:inter_token_latency_seconds"].type == "histogram")
print(f"{cases} cases")
