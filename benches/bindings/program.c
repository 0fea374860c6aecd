// C's part in scripts/bench-bindings: MODEL THREADS TOKENS, and a prompt in each line of stdin. Prints how many tokens came after
// each, and the seconds that took.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wgslm.h>

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool count(void *user, const wgslm_event *event) {
    if (event->kind == WGSLM_EVENT_KIND_FINISHED) *(unsigned *)user = event->generated_tokens;
    return true;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    wgslm_error *error = NULL;
    wgslm_options options = {.size = sizeof options, .device = "cpu", .context = 1024, .threads = (unsigned)atoi(argv[2])};
    wgslm_model *model = wgslm_open(argv[1], &options, &error);
    char prompt[1024];
    while (model && fgets(prompt, sizeof prompt, stdin)) {
        double begun = seconds();
        wgslm_sampling sampling = {.size = sizeof sampling, .top_p = 1, .repeat_penalty = 1};
        wgslm_request request = {.size = sizeof request, .sampling = &sampling, .max_tokens = (unsigned)atoi(argv[3])};
        wgslm_generation *answer = wgslm_generate(model, prompt, strcspn(prompt, "\n"), &request, &error);
        unsigned generated = 0;
        if (!answer || !wgslm_generation_run(answer, count, &generated, &error)) break;
        wgslm_generation_free(answer);
        printf("%u %.9f\n", generated, seconds() - begun);
        fflush(stdout);
    }
    if (error) fprintf(stderr, "%s: %s\n", wgslm_error_code(error), wgslm_error_message(error));
    return error ? 1 : 0;
}
