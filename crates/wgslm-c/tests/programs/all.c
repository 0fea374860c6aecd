// Everything that the C ABI has, as C11: run by tests/programs.rs, under AddressSanitizer.
// all [CYCLES]: opens and frees the model so often, and prints how much memory that took after the first tenth.

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wgslm.h>

#undef NDEBUG
#define CHECK(what)                                                                                                                        \
    do {                                                                                                                                   \
        if (!(what)) {                                                                                                                     \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                                                                     \
            exit(1);                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

static wgslm_model *open_tiny(void) {
    wgslm_options options = {.size = sizeof options, .device = "cpu", .context = 256, .threads = 1, .parallel = 4};
    wgslm_error *error = NULL;
    wgslm_model *model = wgslm_open(NULL, &options, &error);
    if (!model) fprintf(stderr, "%s\n", wgslm_error_message(error));
    CHECK(model && !error);
    return model;
}

// The error of something that failed has this code, and a text.
static void expect(wgslm_error *error, const char *code, const char *part) {
    CHECK(error);
    if (strcmp(wgslm_error_code(error), code) || !strstr(wgslm_error_message(error), part))
        fprintf(stderr, "%s: %s\n", wgslm_error_code(error), wgslm_error_message(error));
    CHECK(!strcmp(wgslm_error_code(error), code));
    CHECK(strstr(wgslm_error_message(error), part));
    wgslm_error_free(error);
}

struct text {
    char bytes[4096];
    size_t len;
    int tokens;
    int stop_after;
    char reason[16];
};

static bool collect(void *user, const wgslm_event *event) {
    struct text *text = user;
    CHECK(text->len + event->text_len < sizeof text->bytes);
    CHECK(event->text[event->text_len] == 0);
    memcpy(text->bytes + text->len, event->text, event->text_len);
    text->len += event->text_len;
    if (event->kind == WGSLM_EVENT_KIND_FINISHED) {
        CHECK(event->reason && event->prompt_tokens > 0 && (int)event->generated_tokens >= text->tokens);
        snprintf(text->reason, sizeof text->reason, "%s", event->reason);
        return true;
    }
    CHECK(!event->reason);
    return ++text->tokens != text->stop_after;
}

static struct text generate(wgslm_model *model, const char *prompt, const wgslm_request *request) {
    struct text text = {0};
    wgslm_error *error = NULL;
    wgslm_generation *generation = wgslm_generate(model, prompt, WGSLM_TO_NUL, request, &error);
    CHECK(generation && !error);
    CHECK(wgslm_generation_run(generation, collect, &text, &error));
    wgslm_generation_free(generation);
    return text;
}

static void *in_a_thread(void *model) {
    wgslm_request request = {.size = sizeof request, .max_tokens = 8};
    for (int i = 0; i < 4; i++) CHECK(generate(model, "The dog", &request).tokens == 8);
    return NULL;
}

static void *cancel_soon(void *generation) {
    usleep(2000);
    wgslm_generation_cancel(generation);
    return NULL;
}

static void generations(wgslm_model *model) {
    wgslm_sampling sampling = {.size = sizeof sampling};
    CHECK(wgslm_sampling_of(model, &sampling, NULL));
    CHECK(sampling.size == sizeof sampling && sampling.top_p > 0 && sampling.last_n > 0);
    sampling.temperature = 0;
    wgslm_request request = {.size = sizeof request, .sampling = &sampling, .max_tokens = 24};
    struct text first = generate(model, "Once upon a time", &request);
    CHECK(first.tokens == 24 && !strcmp(first.reason, "length") && first.len > 20);
    // The same, event by event, with waits that are too short.
    wgslm_error *error = NULL;
    wgslm_generation *polled = wgslm_generate(model, "Once upon a time...", 16, &request, &error);
    CHECK(polled && !error);
    struct text second = {0};
    wgslm_event event = {.size = sizeof event};
    wgslm_status status;
    while ((status = wgslm_generation_next(polled, 0, &event, &error)) != WGSLM_STATUS_ENDED) {
        CHECK(status == WGSLM_STATUS_EVENT || status == WGSLM_STATUS_NOTHING);
        if (status == WGSLM_STATUS_EVENT) collect(&second, &event);
        else usleep(200);
    }
    wgslm_generation_free(polled);
    CHECK(second.len == first.len && !memcmp(first.bytes, second.bytes, first.len));
    // A text that ends it; a function that ends it; another thread that ends it; nobody who reads it.
    const char *stops[] = {"never there", " "};
    wgslm_request stopping = request;
    stopping.stop = stops, stopping.stop_count = 2;
    CHECK(!strcmp(generate(model, "Once upon a time", &stopping).reason, "stop"));
    request.max_tokens = 0;
    struct text few = {.stop_after = 3};
    wgslm_generation *generation = wgslm_generate(model, "Once", WGSLM_TO_NUL, &request, &error);
    CHECK(generation && wgslm_generation_run(generation, collect, &few, &error));
    CHECK(few.tokens == 3 && !strcmp(few.reason, "cancelled"));
    wgslm_generation_free(generation);
    generation = wgslm_generate(model, "Once", WGSLM_TO_NUL, &request, &error);
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, cancel_soon, generation));
    struct text cancelled = {0};
    CHECK(wgslm_generation_run(generation, collect, &cancelled, &error));
    CHECK(!strcmp(cancelled.reason, "cancelled") || !strcmp(cancelled.reason, "context") || !strcmp(cancelled.reason, "stop"));
    pthread_join(thread, NULL);
    CHECK(wgslm_generation_next(generation, -1, &event, &error) == WGSLM_STATUS_ENDED);
    wgslm_generation_free(generation);
    wgslm_generation_free(wgslm_generate(model, "Once", WGSLM_TO_NUL, NULL, NULL));
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) CHECK(!pthread_create(&threads[i], NULL, in_a_thread, model));
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    CHECK(!error);
}

static void tokens(wgslm_model *model) {
    uint32_t ids[64];
    char text[64];
    wgslm_error *error = NULL;
    size_t count = wgslm_tokenize(model, "The dog ran.", WGSLM_TO_NUL, ids, 64, &error);
    CHECK(count > 2 && count < 64);
    CHECK(wgslm_tokenize(model, "The dog ran.", WGSLM_TO_NUL, NULL, 0, &error) == count);
    size_t bytes = wgslm_detokenize(model, ids, count, text, sizeof text, &error);
    CHECK(bytes < sizeof text && strstr((text[bytes] = 0, text), "dog ran."));
    ids[0] = UINT32_MAX;
    CHECK(wgslm_detokenize(model, ids, 1, text, sizeof text, &error) == WGSLM_TO_NUL);
    expect(error, "argument", "the vocabulary has");
}

static void chats(wgslm_model *model) {
    CHECK(wgslm_model_has_chat(model));
    wgslm_error *error = NULL;
    wgslm_chat *chat = wgslm_chat_new(model, &error);
    CHECK(chat && wgslm_chat_system(chat, "Answer briefly.", WGSLM_TO_NUL, &error));
    wgslm_request request = {.size = sizeof request, .max_tokens = 12};
    uint32_t prompt = 0;
    for (int turn = 0; turn < 3; turn++) {
        wgslm_generation *answer = wgslm_chat_ask(chat, "Hello!", WGSLM_TO_NUL, &request, &error);
        CHECK(answer && !error);
        CHECK(!wgslm_chat_ask(chat, "And?", WGSLM_TO_NUL, NULL, &error));
        expect(error, "argument", "one at a time");
        error = NULL;
        wgslm_event event = {.size = sizeof event};
        do CHECK(wgslm_generation_next(answer, -1, &event, &error) == WGSLM_STATUS_EVENT);
        while (event.kind != WGSLM_EVENT_KIND_FINISHED);
        // Earlier turns are there, and were not computed again.
        CHECK(event.prompt_tokens > prompt && (turn == 0 || event.reused_tokens + 16 > prompt));
        prompt = event.prompt_tokens;
        wgslm_generation_free(answer);
    }
    CHECK(wgslm_chat_forget(chat));
    // A question whose answer nobody read is not there.
    wgslm_generation_free(wgslm_chat_ask(chat, "Who are you?", WGSLM_TO_NUL, &request, &error));
    wgslm_generation *last = wgslm_chat_ask(chat, "Hello!", WGSLM_TO_NUL, &request, &error);
    wgslm_chat_free(chat);
    struct text text = {0};
    CHECK(last && wgslm_generation_run(last, collect, &text, &error) && text.tokens > 0);
    wgslm_generation_free(last);
}

static void vectors(void) {
    wgslm_options options = {.size = sizeof options, .device = "cpu", .threads = 1};
    wgslm_error *error = NULL;
    wgslm_embedder *embedder = wgslm_embedder_open(NULL, &options, &error);
    CHECK(embedder && !error);
    size_t width = wgslm_embedder_width(embedder);
    const char *texts[] = {"A man is eating food.", "Someone has lunch.", "A man is eating food."};
    float *vectors = malloc(3 * width * sizeof *vectors);
    CHECK(width > 0 && vectors && wgslm_embed(embedder, texts, 3, vectors, &error));
    double length = 0;
    for (size_t i = 0; i < width; i++) length += vectors[i] * vectors[i];
    CHECK(length > 0.99 && length < 1.01 && !memcmp(vectors, vectors + 2 * width, width * sizeof *vectors));
    CHECK(memcmp(vectors, vectors + width, width * sizeof *vectors));
    free(vectors);
    wgslm_embedder_free(embedder);
}

static void errors(wgslm_model *model) {
    wgslm_error *error = NULL;
    wgslm_options options = {.size = sizeof options, .device = "toaster"};
    CHECK(!wgslm_open(NULL, &options, &error));
    expect(error, "argument", "toaster");
    options.device = "cpu", options.size = 0, error = NULL;
    CHECK(!wgslm_open(NULL, &options, &error));
    expect(error, "argument", "sizeof");
    error = NULL;
    CHECK(!wgslm_open("there is no such file.gguf", NULL, &error));
    expect(error, "io", "no such file");
    CHECK(!wgslm_open("there is no such file.gguf", NULL, NULL));
    error = NULL;
    CHECK(!wgslm_generate(NULL, "a", 1, NULL, &error));
    expect(error, "argument", "model");
    error = NULL;
    CHECK(!wgslm_generate(model, NULL, 3, NULL, &error));
    expect(error, "argument", "prompt");
    error = NULL;
    CHECK(!wgslm_generate(model, "\xff\xfe", 2, NULL, &error));
    expect(error, "argument", "UTF-8");
    error = NULL;
    wgslm_sampling sampling = {0};
    CHECK(!wgslm_sampling_of(model, &sampling, &error));
    expect(error, "argument", "sizeof");
    error = NULL, sampling.size = sizeof sampling;
    CHECK(wgslm_sampling_of(model, &sampling, &error));
    sampling.temperature = -1;
    wgslm_request request = {.size = sizeof request, .sampling = &sampling};
    CHECK(!wgslm_generate(model, "a", 1, &request, &error));
    expect(error, "argument", "temperature");
    wgslm_event old = {.size = offsetof(wgslm_event, reason), .reason = "untouched"};
    wgslm_generation *generation = wgslm_generate(model, "Once", WGSLM_TO_NUL, NULL, &error);
    wgslm_event without_size = {0};
    CHECK(wgslm_generation_next(generation, -1, &without_size, &error) == WGSLM_STATUS_FAILED);
    expect(error, "argument", "sizeof");
    error = NULL;
    CHECK(wgslm_generation_next(generation, -1, &old, &error) == WGSLM_STATUS_EVENT && old.text && !strcmp(old.reason, "untouched"));
    wgslm_generation_free(generation);
    // An older program has less of a struct; what it lacks has its default. A newer one has more.
    struct {
        wgslm_request request;
        char more[64];
    } longer = {.request = {.size = sizeof longer, .max_tokens = 2}};
    CHECK(generate(model, "Once", &longer.request).tokens == 2);
    request = (wgslm_request){.size = offsetof(wgslm_request, max_tokens), .max_tokens = 1, .priority = 99};
    CHECK(generate(model, "Once", &request).tokens > 1);
    wgslm_error_free(NULL), wgslm_model_free(NULL), wgslm_chat_free(NULL), wgslm_generation_free(NULL), wgslm_embedder_free(NULL);
    wgslm_generation_cancel(NULL);
    CHECK(!wgslm_chat_forget(NULL) && wgslm_model_context(NULL) == 0 && !*wgslm_model_name(NULL) && !*wgslm_error_code(NULL));
}

static long resident(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file && fscanf(file, "%*d %ld", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(int argc, char **argv) {
    int cycles = argc > 1 ? atoi(argv[1]) : 2;
    CHECK(wgslm_version()[0] >= '0' && wgslm_version()[0] <= '9');
    long before = 0;
    for (int i = 0; i < cycles; i++) {
        if (i == cycles / 10) before = resident();
        wgslm_model *model = open_tiny();
        wgslm_request request = {.size = sizeof request, .max_tokens = 2};
        CHECK(generate(model, "Once", &request).tokens == 2);
        wgslm_model_free(model);
    }
    printf("%d cycles took %ld KiB\n", cycles, resident() - before);
    wgslm_model *model = open_tiny();
    CHECK(wgslm_model_context(model) == 256 && strstr(wgslm_model_device(model), "cpu"));
    CHECK(strlen(wgslm_model_name(model)) > 0);
    generations(model);
    tokens(model);
    chats(model);
    errors(model);
    vectors();
    // What was made of a model outlives it.
    wgslm_generation *last = wgslm_generate(model, "Once", WGSLM_TO_NUL, NULL, NULL);
    wgslm_model_free(model);
    wgslm_event event = {.size = sizeof event};
    CHECK(wgslm_generation_next(last, -1, &event, NULL) == WGSLM_STATUS_EVENT);
    wgslm_generation_free(last);
    puts("all is well");
    return 0;
}
