/** The part of OpenAI's API that is understood, by its own names. */
import { EngineError } from "./error.js";

/** A function that the model may ask the program to call. */
export interface Tool {
  type: "function";
  function: {
    name: string;
    description?: string;
    /** A JSON schema of an object. */
    parameters?: Record<string, unknown>;
  };
}

/** A call that the model asks for. */
export interface ToolCall {
  id: string;
  type: "function";
  function: {
    name: string;
    /** An object, as JSON. */
    arguments: string;
  };
}

export interface ChatMessage {
  role: "system" | "user" | "assistant" | "developer" | "tool";
  /** A text, or parts of one; null of an answer that only calls tools. */
  content: string | { type: "text"; text: string }[] | null;
  name?: string;
  /** What the model thought before it answered. */
  reasoning_content?: string;
  /** Calls that an answer asked for. */
  tool_calls?: ToolCall[];
  /** Which call a tool's message is the result of. */
  tool_call_id?: string;
}

export interface ChatRequest {
  /** The conversation so far. */
  messages?: ChatMessage[];
  /** What the model may call, where its template knows tools (`ModelInfo.tools`). */
  tools?: Tool[];
  /** `none`: the tools are not shown to the model. */
  tool_choice?: "auto" | "none";
  /** How much a model that can think is to think, where its template knows it. */
  reasoning_effort?: "none" | "minimal" | "low" | "medium" | "high" | "xhigh";
  /** Instead of messages: a text that is continued as it is. */
  prompt?: string;
  stream?: boolean;
  stream_options?: { include_usage?: boolean };
  /** 0 always takes the most likely token. Default 1. */
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  repetition_penalty?: number;
  /** -2 to 2, as those of OpenAI's. */
  presence_penalty?: number;
  frequency_penalty?: number;
  seed?: number;
  max_tokens?: number;
  max_completion_tokens?: number;
  stop?: string | string[];
  /** Answers, each sampled by itself: 1 (the default) to 16. What they share is computed once. */
  n?: number;
  /** Given to the model's chat template. */
  chat_template_kwargs?: Record<string, unknown>;
}

export type FinishReason = "stop" | "length" | "tool_calls";

/** An answer. */
export interface AnswerMessage {
  role: "assistant";
  /** Null where the model only calls tools. */
  content: string | null;
  /** What it thought before, if it did. */
  reasoning_content?: string;
  tool_calls?: ToolCall[];
}

export interface CompletionUsage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details: { cached_tokens: number };
}

/** How long it took; not OpenAI's. */
export interface Timings {
  /** Milliseconds from the request to the first token. */
  first_token_ms: number;
  /** Tokens a second, from the second token on. */
  tokens_per_second: number;
}

export interface ChatChoice {
  index: number;
  message: AnswerMessage;
  finish_reason: FinishReason;
  logprobs: null;
}

export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  /** One; with `n`, as many, in their order. */
  choices: [ChatChoice, ...ChatChoice[]];
  usage: CompletionUsage;
  timings: Timings;
}

export interface ChunkChoice {
  index: number;
  /** A call comes whole, in one piece. */
  delta: { role?: "assistant"; content?: string; reasoning_content?: string; tool_calls?: (ToolCall & { index: number })[] };
  finish_reason: FinishReason | null;
  logprobs: null;
  /** The tokens whose text it is; not OpenAI's. */
  token_ids: number[];
}

export interface ChatCompletionChunk {
  id: string;
  object: "chat.completion.chunk";
  created: number;
  model: string;
  choices: ChunkChoice[];
  usage?: CompletionUsage | null;
  timings?: Timings;
}

/** A text that is continued as it is. */
export type CompletionRequest = Omit<ChatRequest, "messages" | "tools" | "tool_choice" | "reasoning_effort" | "chat_template_kwargs"> & { prompt: string };

export interface CompletionChoice {
  index: number;
  text: string;
  /** Null of a part of a stream that is not the last. */
  finish_reason: FinishReason | null;
  logprobs: null;
  /** The tokens whose text it is; not OpenAI's. */
  token_ids: number[];
}

/** A text's continuation, or a part of one. */
export interface Completion {
  id: string;
  object: "text_completion";
  created: number;
  model: string;
  choices: CompletionChoice[];
  usage?: CompletionUsage | null;
  timings?: Timings;
}

export interface EmbeddingRequest {
  /** A text, or several; none of them empty. */
  input: string | string[];
  /** `base64`: 32-bit numbers, the lowest byte first. Default `float`. */
  encoding_format?: "float" | "base64";
}

export interface Embedding {
  object: "embedding";
  index: number;
  /** As long as `ModelInfo.width` says; a string by `base64`. */
  embedding: number[] | string;
}

export interface Embeddings {
  object: "list";
  data: Embedding[];
  model: string;
  usage: { prompt_tokens: number; total_tokens: number };
}

const wrong = (message: string): EngineError => new EngineError({ code: "argument", message });
const unsupported = (message: string): EngineError => new EngineError({ code: "unsupported", message });

/** Fields of OpenAI's that would change the answer, and that are not there yet: better refused than ignored. */
const UNSUPPORTED = ["functions", "function_call", "logprobs", "top_logprobs", "logit_bias", "audio", "modalities", "suffix", "echo", "best_of"];

/** Answers of a request at most. */
const MOST_ANSWERS = 16;

/**
 * A request as the engine reads it, once for each answer: contents are texts, arguments of calls are objects. Throws on what cannot be
 * honoured.
 */
export function forEngine(request: ChatRequest): object[] {
  const fields = request as unknown as Record<string, unknown>;
  const set = (name: string) => fields[name] !== undefined && fields[name] !== null && fields[name] !== false && fields[name] !== 0;
  const format = fields["response_format"] as { type?: unknown } | null | undefined;
  const found = UNSUPPORTED.find(set) ?? (format && format.type !== "text" ? "response_format" : undefined);
  if (found) throw unsupported(`${found} is not supported yet`);
  const { messages, tools, tool_choice, reasoning_effort, chat_template_kwargs, n, seed, ...rest } = request;
  const count = n ?? 1;
  if (!Number.isInteger(count) || count < 1 || count > MOST_ANSWERS) throw wrong(`n: ${JSON.stringify(n)}; 1 to ${MOST_ANSWERS} work`);
  if (tool_choice !== undefined && tool_choice !== "auto" && tool_choice !== "none") {
    throw unsupported("tool_choice: calls cannot be held to a grammar yet; auto and none work");
  }
  const variables = { ...thinking(reasoning_effort), ...chat_template_kwargs };
  const all = {
    ...rest,
    ...(messages ? { messages: messages.map(readable) } : {}),
    ...(tools && tool_choice !== "none" ? { tools: tools.map(shown) } : {}),
    chat_template_kwargs: variables,
  };
  return Array.from({ length: count }, (_, i) => (seed === undefined || seed === null ? all : { ...all, seed: seed + i }));
}

/** The texts of which vectors are wanted. Throws on what cannot be honoured. */
export function textsOf({ input, encoding_format, ...rest }: EmbeddingRequest): string[] {
  if ("dimensions" in rest) throw unsupported("dimensions: vectors are as long as the model makes them");
  if (!["float", "base64", undefined].includes(encoding_format)) throw wrong("encoding_format: float and base64 work");
  const texts = typeof input === "string" ? [input] : input;
  if (!Array.isArray(texts) || !texts.length) throw wrong("input: a text, or a list of texts, works");
  const odd = texts.findIndex((text) => typeof text !== "string" || !text);
  if (odd >= 0) throw wrong(`input[${odd}]: a text of one character or more works`);
  return texts;
}

/** How much is to be thought, as templates are asked. */
function thinking(effort: ChatRequest["reasoning_effort"]): object {
  if (effort === undefined) return {};
  if (effort === "none") return { enable_thinking: false };
  if (!["minimal", "low", "medium", "high", "xhigh"].includes(effort)) throw wrong(`reasoning_effort: ${JSON.stringify(effort)}; none, minimal, low, medium, high and xhigh work`);
  return { enable_thinking: true, reasoning_effort: effort };
}

/** A message as templates read it. */
function readable({ content, tool_calls, ...rest }: ChatMessage, index: number): object {
  const at = `messages[${index}]`;
  let text = content ?? "";
  if (Array.isArray(text)) {
    const odd = text.find((part) => part.type !== "text");
    if (odd) throw wrong(`${at}.content: a part of type ${JSON.stringify(odd.type)}; text works`);
    text = text.map((part) => part.text).join("");
  }
  if (typeof text !== "string") throw wrong(`${at}.content: a text works`);
  if (content === null && rest.role !== "assistant") throw wrong(`${at}.content: it is null; a text works`);
  const calls = tool_calls?.map((call, i) => {
    if (typeof call?.function?.name !== "string") throw wrong(`${at}.tool_calls[${i}]: it has no function with a name`);
    return { ...call, function: { ...call.function, arguments: object(call.function.arguments) } };
  });
  return { ...rest, content: text, ...(calls?.length ? { tool_calls: calls } : {}) };
}

/** The object that a text is the JSON of, as templates want arguments; any other text as it is. */
function object(text: unknown): unknown {
  if (typeof text !== "string") return text ?? {};
  if (!text.trim()) return {};
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : text;
  } catch {
    return text;
  }
}

/** A tool as models have seen them: name, description, parameters. */
function shown(tool: Tool, index: number): object {
  const { name, description, parameters, ...rest } = tool?.function ?? {};
  if (tool?.type !== "function" || typeof name !== "string") throw wrong(`tools[${index}]: { type: "function", function: { name: … } } works`);
  if ("strict" in rest && rest.strict) throw unsupported(`tools[${index}].function.strict: calls cannot be held to a grammar yet`);
  return { type: "function", function: { name, ...(description !== undefined ? { description } : {}), ...(parameters !== undefined ? { parameters } : {}), ...rest } };
}
