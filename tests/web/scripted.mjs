// A model of which each token is known before, as a GGUF file: thoughts and calls of tools, which no small model makes by itself.
// tests/front_ends/serve/scripted.rs makes one for the server, as a folder and in several formats of calls.

/** Before the pieces of an answer each byte has a token. */
const BYTES = 256;
/** Tokens of the vocabulary, and elements of a row: each token has one of its own. */
const TOKENS = 288;
const [U16, U32, F32, STRING, ARRAY, BOOL, I32] = [2, 4, 6, 8, 9, 7, 5];
const [NORMAL, CONTROL, USER_DEFINED] = [1, 3, 4];

/** A byte's letter in the vocabulary, as GPT-2 has it. */
const letters = (() => {
  let others = 256;
  const shown = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  return Array.from({ length: BYTES }, (_, byte) => String.fromCodePoint(shown(byte) ? byte : others++));
})();

/**
 * Asked with tools, it thinks `I look.`, says `Let me see.` and calls `weather` with `{"city": "Rome", "days": 2}`; otherwise, and
 * with a result, it says `It is sunny.` The vector of a text is the mean of one element a byte, at length 1.
 * `tools: false`: it knows none, thinks and then says that it is sunny. `gap`: so many bytes of nothing lie in the file after the first
 * tensor. `layers`, `inner`: how many layers it has, and the feed-forward length. Long runs of zeros are made when they are asked for.
 * `parts`: gives so many files, as llama.cpp splits one.
 */
export function scripted({ tools = true, gap = 0, layers = 1, inner = 32, parts = 1 } = {}) {
  const call = ["\n{\"name\": \"weather\", ", "\"arguments\": {\"city\": \"Rome\", \"days\": 2}}\n"];
  const sunny = ["It is ", "sunny.", "<eos>"];
  const thought = ["<think>", "I look.", "</think>"];
  const chains = tools
    ? [["<go-tools>", ...thought, "Let me see.", "<tool_call>", ...call, "</tool_call>", "<eos>"], ["<go>", ...sunny]]
    : [["<go>", ...thought, ...sunny]];
  const pieces = [...new Set(chains.flat())];
  const id = (piece) => BYTES + pieces.indexOf(piece);
  const next = new Array(TOKENS).fill(id("<eos>"));
  for (const chain of chains) chain.slice(1).forEach((piece, i) => (next[id(chain[i])] = id(piece)));
  while (pieces.length < TOKENS - BYTES) pieces.push(`<unused-${pieces.length}>`);

  const template =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}" +
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}({{ c.function.arguments.city }})</tool_call>{% endfor %}\n{% endfor %}" +
    "{% if tools and messages[-1].role != 'tool' %}{{ tools | tojson }}<go-tools>{% else %}<go>{% endif %}{# </think> #}";
  // Marks of thoughts are control tokens, as many models have them; those of calls are not.
  const kind = (piece) => (["<eos>", "<think>", "</think>", "<go>", "<go-tools>"].includes(piece) ? CONTROL : USER_DEFINED);
  const metadata = [
    ["general.architecture", STRING, "llama"],
    ["general.name", STRING, "scripted"],
    ["llama.block_count", U32, layers],
    ["llama.context_length", U32, 2048],
    ["llama.embedding_length", U32, TOKENS],
    ["llama.feed_forward_length", U32, inner],
    ["llama.attention.head_count", U32, 9],
    ["llama.attention.head_count_kv", U32, 9],
    ["llama.attention.layer_norm_rms_epsilon", F32, 1e-6],
    ["llama.rope.dimension_count", U32, 32],
    ["llama.vocab_size", U32, TOKENS],
    ["llama.pooling_type", U32, 1],
    ["tokenizer.ggml.model", STRING, "gpt2"],
    ["tokenizer.ggml.pre", STRING, "gpt-2"],
    ["tokenizer.ggml.tokens", ARRAY, [STRING, [...letters, ...pieces]]],
    ["tokenizer.ggml.token_type", ARRAY, [I32, [...letters.map(() => NORMAL), ...pieces.map(kind)]]],
    ["tokenizer.ggml.merges", ARRAY, [STRING, []]],
    ["tokenizer.ggml.eos_token_id", U32, id("<eos>")],
    ["tokenizer.ggml.add_bos_token", BOOL, false],
    ["tokenizer.chat_template", STRING, template],
  ];

  // Layers that add nothing: the logits of a token are 1 at the one that follows it, but for a factor.
  const matrix = (at) => {
    const values = new Float32Array(TOKENS * TOKENS);
    for (let token = 0; token < TOKENS; token++) values[at(token)] = 1;
    return values;
  };
  const ones = () => new Float32Array(TOKENS).fill(1);
  const square = [TOKENS, TOKENS];
  const tensors = [
    ["token_embd.weight", square, matrix((token) => token * TOKENS + token)],
    ["output.weight", square, matrix((token) => next[token] * TOKENS + token)],
    ["output_norm.weight", [TOKENS], ones()],
    ...Array.from({ length: layers }, (_, layer) => [
      ["attn_norm", [TOKENS], ones()],
      ["ffn_norm", [TOKENS], ones()],
      ...["attn_q", "attn_k", "attn_v", "attn_output"].map((name) => [name, square, 4 * TOKENS * TOKENS]),
      ...["ffn_gate", "ffn_up"].map((name) => [name, [TOKENS, inner], 4 * inner * TOKENS]),
      ["ffn_down", [inner, TOKENS], 4 * inner * TOKENS],
    ].map(([name, ...rest]) => [`blk.${layer}.${name}.weight`, ...rest])).flat(),
  ];
  if (parts === 1) return gguf(metadata, tensors, gap);
  return Array.from({ length: parts }, (_, no) => {
    const split = [["split.no", U16, no], ["split.count", U16, parts], ["split.tensors.count", I32, tensors.length]];
    return gguf(no === 0 ? [...metadata, ...split] : split, tensors.filter((_, i) => i % parts === no), 0);
  });
}

/** Numbers of a vector; a byte is the index of its own. */
export const elements = TOKENS;

/**
 * A GGUF file of tensors in f32, each with its shape, innermost first, and its values or how many bytes of zeros it has. Gives bytes,
 * or, with a gap or gigabytes, what has a length and gives parts of them.
 */
function gguf(metadata, tensors, gap) {
  const ALIGNMENT = 32;
  const parts = [];
  const number = (size, set, value) => {
    const bytes = new DataView(new ArrayBuffer(size));
    bytes[set](0, value, true);
    parts.push(Buffer.from(bytes.buffer));
  };
  const u32 = (value) => number(4, "setUint32", value);
  const u64 = (value) => number(8, "setBigUint64", BigInt(value));
  const text = (value) => {
    const bytes = Buffer.from(value);
    u64(bytes.length);
    parts.push(bytes);
  };
  const write = {
    [U16]: (value) => number(2, "setUint16", value),
    [U32]: u32,
    [I32]: (value) => number(4, "setInt32", value),
    [F32]: (value) => number(4, "setFloat32", value),
    [BOOL]: (value) => number(1, "setUint8", Number(value)),
    [STRING]: text,
    [ARRAY]: ([type, values]) => {
      u32(type);
      u64(values.length);
      values.forEach(write[type]);
    },
  };
  parts.push(Buffer.from("GGUF"));
  u32(3);
  u64(tensors.length);
  u64(metadata.length);
  for (const [key, type, value] of metadata) {
    text(key);
    u32(type);
    write[type](value);
  }
  const aligned = (bytes) => Buffer.concat([bytes, Buffer.alloc((ALIGNMENT - (bytes.length % ALIGNMENT)) % ALIGNMENT)]);
  // Bytes, or how many of them are 0.
  const data = tensors.map(([, , values]) => (typeof values === "number" ? values : aligned(Buffer.from(values.buffer))));
  const length = (piece) => piece.length ?? piece;
  let offset = 0;
  for (const [i, [name, shape]] of tensors.entries()) {
    text(name);
    u32(shape.length);
    shape.forEach(u64);
    u32(0);
    u64(offset);
    offset += Math.ceil(length(data[i]) / ALIGNMENT) * ALIGNMENT + (i === 0 ? gap : 0);
  }
  const pieces = [aligned(Buffer.concat(parts)), data[0], gap, ...data.slice(1)];
  const all = pieces.map(length).reduce((a, b) => a + b);
  const subarray = (start, end) => {
    let at = 0;
    return Buffer.concat(pieces.map((piece) => {
      const [from, to] = [start - at, end - at].map((place) => Math.min(Math.max(place, 0), length(piece)));
      at += length(piece);
      return typeof piece === "number" ? Buffer.alloc(to - from) : piece.subarray(from, to);
    }));
  };
  return all < 2 ** 31 ? subarray(0, all) : { length: all, subarray };
}
