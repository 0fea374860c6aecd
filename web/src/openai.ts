/** The part of OpenAI's completions that is understood, by its own names. */

export interface ChatMessage {
  role: "system" | "user" | "assistant" | "developer" | "tool";
  content: string;
}

export interface ChatRequest {
  /** The conversation so far. */
  messages?: ChatMessage[];
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
  /** Given to the model's chat template. */
  chat_template_kwargs?: Record<string, unknown>;
}

export type FinishReason = "stop" | "length";

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

export interface ChatCompletion {
  id: string;
  object: "chat.completion";
  created: number;
  model: string;
  choices: [{ index: 0; message: { role: "assistant"; content: string }; finish_reason: FinishReason; logprobs: null }];
  usage: CompletionUsage;
  timings: Timings;
}

export interface ChunkChoice {
  index: number;
  delta: { role?: "assistant"; content?: string };
  finish_reason: FinishReason | null;
  logprobs: null;
  /** The tokens whose text is `delta.content`; not OpenAI's. */
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
export type CompletionRequest = Omit<ChatRequest, "messages" | "chat_template_kwargs"> & { prompt: string };

export interface CompletionChoice {
  index: 0;
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

/** Fields of OpenAI's that would change the answer, and that are not there yet: better refused than ignored. */
const UNSUPPORTED = ["tools", "functions", "response_format", "logprobs", "top_logprobs", "logit_bias", "audio", "modalities", "suffix", "echo", "best_of"];

/** Throws on what cannot be honoured. */
export function check(request: ChatRequest): void {
  const fields = request as unknown as Record<string, unknown>;
  const set = (name: string) => fields[name] !== undefined && fields[name] !== null && fields[name] !== false && fields[name] !== 0;
  const found = UNSUPPORTED.find(set);
  if (found) throw new TypeError(`${found} is not supported yet`);
  if (fields["n"] !== undefined && fields["n"] !== 1) throw new TypeError("n: only 1 works");
}
