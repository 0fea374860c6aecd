// wgslm for C and C++: large language models on any GPU, and on the CPU where there is none.
//
// Made from crates/wgslm-c/src by tests/header.rs. docs/c.md shows it in use.
//
// - Objects are made and freed by the functions here; freeing NULL does nothing. An object may be freed before or after
//   those that were made of it.
// - Functions that can fail take a place for an error as their last argument, which may be NULL. They set it only when
//   they fail; what they set must be freed by wgslm_error_free.
// - Texts are UTF-8: a pointer and a length in bytes, which may be WGSLM_TO_NUL. Names and paths end with a NUL.
// - Every function may be called in any thread. Calls for one generation, one chat or one embedder come one after
//   another, as they will wait for each other; wgslm_generation_cancel does not wait.
// - Structs begin with their size, so that later versions can add fields: set it to sizeof of the struct, also where the
//   library fills it. What is 0 or NULL otherwise has its default.

#ifndef WGSLM_H
#define WGSLM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// As the length of a text: up to its NUL. As a result: it failed.
#define WGSLM_TO_NUL ((size_t)-1)

// What came of waiting for an event.
typedef enum {
    // It failed; no event follows.
    WGSLM_STATUS_FAILED = -1,
    // There is an event.
    WGSLM_STATUS_EVENT = 0,
    // There was none in time.
    WGSLM_STATUS_NOTHING = 1,
    // The last event was before.
    WGSLM_STATUS_ENDED = 2,
} wgslm_status;

// What an event is.
typedef enum {
    // A token was generated.
    WGSLM_EVENT_KIND_TOKEN = 0,
    // The last event.
    WGSLM_EVENT_KIND_FINISHED = 1,
} wgslm_event_kind;

// A conversation with a model: a system message and turns.
typedef struct wgslm_chat wgslm_chat;

// A model that turns texts into vectors.
typedef struct wgslm_embedder wgslm_embedder;

// What went wrong.
typedef struct wgslm_error wgslm_error;

// An answer that is being generated.
typedef struct wgslm_generation wgslm_generation;

// A model that is loaded, and a thread that answers requests.
typedef struct wgslm_model wgslm_model;

// How tokens are chosen. wgslm_sampling_of sets all of it.
typedef struct {
    // sizeof(wgslm_sampling)
    size_t size;
    // 0 takes the most likely token; at most 100.
    float temperature;
    // Only the k most likely tokens remain; 0 keeps all.
    uint32_t top_k;
    // Only the most likely tokens whose probabilities reach this sum remain; 1 keeps all.
    float top_p;
    // Only tokens at least this likely, relative to the most likely, remain; 0 keeps all.
    float min_p;
    // Penalty on tokens that were there; 1 has no effect.
    float repeat_penalty;
    // Penalty on tokens that were there, whatever the number; 0 has no effect.
    float presence_penalty;
    // Penalty on tokens for each time that they were there; 0 has no effect.
    float frequency_penalty;
    // How many of the last tokens the penalties look at.
    uint32_t last_n;
    // The same seed gives the same text.
    uint64_t seed;
} wgslm_sampling;

// How an answer is generated.
typedef struct {
    // sizeof(wgslm_request)
    size_t size;
    // NULL: as the model's files recommend.
    const wgslm_sampling *sampling;
    // Tokens to generate at most. 0: to the end of the answer, or of the context.
    uint32_t max_tokens;
    // How many texts there are in `stop`.
    uint32_t stop_count;
    // Texts that end the answer, each with a NUL; they are not part of it.
    const char *const *stop;
    // Only requests with the same salt share what is in the cache. NULL: those without one.
    const char *salt;
    // 0: normal, 1: before others, -1: after others, -2: in the background, which leaves the device to others.
    int32_t priority;
    // Milliseconds after which it ends with what it has. 0: none.
    uint32_t deadline_ms;
} wgslm_request;

// Is called while a model is opened: with what is going on ("test", "load" or "compile"), what is done of it and all there is.
typedef void (*wgslm_progress_fn)(void *user, const char *what, uint64_t done, uint64_t all);

// How a model is opened.
typedef struct {
    // sizeof(wgslm_options)
    size_t size;
    // "auto", "gpu", "cpu", or the number of an adapter. NULL: "auto".
    const char *device;
    // Positions of context of a sequence. 0: 4096, or as many as the model has.
    uint32_t context;
    // Answers that are generated at a time; more wait. 0: 4.
    uint32_t parallel;
    // What the KV cache holds: "full", a number of positions, or bytes as in "512MB". NULL: "full".
    const char *cache;
    // Threads of the CPU. 0: as many as prove to be fastest.
    uint32_t threads;
    // Not 0: sums in f32 and an f32 cache, whatever that costs.
    uint32_t exact;
    // Requests that may wait; more are refused. 0: 256.
    uint32_t queue;
    // Not 0: a GPU is used without being tested on known data before.
    uint32_t no_self_test;
    // Is called while the model is opened, with `user`, in the thread that opens it.
    wgslm_progress_fn progress;
    // Goes to `progress`.
    void *user;
} wgslm_options;

// Something that happened to a request.
typedef struct {
    // sizeof(wgslm_event)
    size_t size;
    // What it is.
    wgslm_event_kind kind;
    // The token; 0 of the last event.
    uint32_t token;
    // Text that is certain now, whole characters, often none; it has a NUL after its end. It lives until the next call for the
    // generation.
    const char *text;
    // Its bytes.
    size_t text_len;
    // Of the last event, why it ended: "stop", "length", "context", "cancelled" or "deadline"; else NULL.
    const char *reason;
    // Of the last event: tokens of the prompt.
    uint32_t prompt_tokens;
    // Of these, tokens that were in the cache already.
    uint32_t reused_tokens;
    // Tokens generated.
    uint32_t generated_tokens;
    // Seconds that it waited.
    double seconds_queued;
    // Seconds from there to its first token.
    double seconds_to_first_token;
    // Seconds from there to its end.
    double seconds_decoding;
} wgslm_event;

// Is called with every event; returns whether to go on.
typedef bool (*wgslm_event_fn)(void *user, const wgslm_event *event);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Begins a conversation. Returns NULL if it fails.
wgslm_chat *wgslm_chat_new(const wgslm_model *model, wgslm_error **error);

// Sets the system message; one of no bytes removes it. Returns whether it did not fail.
bool wgslm_chat_system(const wgslm_chat *chat, const char *message, size_t message_len, wgslm_error **error);

// Asks something. The answer is part of the conversation once its last event was read; one that fails or is freed before is
// forgotten with its question. One answer at a time. Returns NULL if it fails.
wgslm_generation *wgslm_chat_ask(const wgslm_chat *chat,
                                 const char *message,
                                 size_t message_len,
                                 const wgslm_request *request,
                                 wgslm_error **error);

// Forgets the last answer and its question; returns whether there was one.
bool wgslm_chat_forget(const wgslm_chat *chat);

// Frees a conversation. An answer that is being read goes on.
void wgslm_chat_free(wgslm_chat *chat);

// Opens a model for vectors of texts: an encoder, or any other. `path` as for wgslm_open; of `options`, device, context, threads,
// exact and progress count. Texts that are too long are truncated. Returns NULL if it fails.
wgslm_embedder *wgslm_embedder_open(const char *path,
                                    const wgslm_options *options,
                                    wgslm_error **error);

// Numbers in a vector; 0 of NULL.
uint32_t wgslm_embedder_width(const wgslm_embedder *embedder);

// Writes the vectors of `count` texts, each with a NUL, one after another to `vectors`, which has space for `count` times the
// width. Returns whether it did not fail.
bool wgslm_embed(const wgslm_embedder *embedder,
                 const char *const *texts,
                 size_t count,
                 float *vectors,
                 wgslm_error **error);

// Frees an embedder.
void wgslm_embedder_free(wgslm_embedder *embedder);

// The word for an error that programs know: "argument", "io", "not_found", "limit", "unsupported", "device" and so on;
// "internal" is a fault of wgslm. It lives as long as the error.
const char *wgslm_error_code(const wgslm_error *error);

// What is wrong, where, and what would work. It lives as long as the error.
const char *wgslm_error_message(const wgslm_error *error);

// Frees an error.
void wgslm_error_free(wgslm_error *error);

// Waits for the next event for so many milliseconds, less than 0: as long as it takes, and writes it to `event`.
wgslm_status wgslm_generation_next(const wgslm_generation *generation,
                                   int64_t timeout_ms,
                                   wgslm_event *event,
                                   wgslm_error **error);

// Calls a function with every event, in this thread, up to the last one. If it returns false, the request is cancelled, and the
// function is called once more, with the last event. Returns whether it did not fail.
bool wgslm_generation_run(const wgslm_generation *generation,
                          wgslm_event_fn call,
                          void *user,
                          wgslm_error **error);

// Ends a request. Events that are there already, and the last one, still come.
void wgslm_generation_cancel(const wgslm_generation *generation);

// Frees a generation, which ends its request if that has not ended.
void wgslm_generation_free(wgslm_generation *generation);

// Opens a model: `path` is a GGUF file, or a folder with safetensors files; NULL is the small model that is compiled in.
// `options` may be NULL. Returns NULL if it fails.
wgslm_model *wgslm_open(const char *path,
                        const wgslm_options *options,
                        wgslm_error **error);

// Frees a model. It stays loaded until its chats and generations are freed, too; whoever frees the last of them waits for what
// is being computed.
void wgslm_model_free(wgslm_model *model);

// The name of a model, as its files have it. It lives as long as the model.
const char *wgslm_model_name(const wgslm_model *model);

// The device that a model was loaded on, in words. It lives as long as the model.
const char *wgslm_model_device(const wgslm_model *model);

// Tokens of context, for prompt and answer together; 0 of NULL.
uint32_t wgslm_model_context(const wgslm_model *model);

// Whether a model has a chat template. Without one, wgslm_chat continues texts as they are.
bool wgslm_model_has_chat(const wgslm_model *model);

// How the model's files recommend to sample: what NULL stands for in a request. `sampling` has its size. Returns whether it did
// not fail.
bool wgslm_sampling_of(const wgslm_model *model,
                       wgslm_sampling *sampling,
                       wgslm_error **error);

// Continues a text. `request` may be NULL. Returns NULL if it fails, at once where too many requests wait ("refused").
wgslm_generation *wgslm_generate(const wgslm_model *model,
                                 const char *prompt,
                                 size_t prompt_len,
                                 const wgslm_request *request,
                                 wgslm_error **error);

// Makes tokens of a text: writes the first `capacity` of them, and returns how many there are. Returns WGSLM_TO_NUL if it
// fails.
size_t wgslm_tokenize(const wgslm_model *model,
                      const char *text,
                      size_t text_len,
                      uint32_t *ids,
                      size_t capacity,
                      wgslm_error **error);

// Makes text of tokens: writes its first `capacity` bytes, without a NUL, and returns how many there are. Returns WGSLM_TO_NUL
// if it fails.
size_t wgslm_detokenize(const wgslm_model *model,
                        const uint32_t *ids,
                        size_t count,
                        char *text,
                        size_t capacity,
                        wgslm_error **error);

// The version of the library: "0.1.0".
const char *wgslm_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* WGSLM_H */
