// The header in C++17, with handles that free themselves.

#include <cstdio>
#include <memory>
#include <string>
#include <wgslm.h>

template <auto Free> struct Freed {
    template <class T> void operator()(T *object) const { Free(object); }
};
using Model = std::unique_ptr<wgslm_model, Freed<wgslm_model_free>>;
using Generation = std::unique_ptr<wgslm_generation, Freed<wgslm_generation_free>>;
using Error = std::unique_ptr<wgslm_error, Freed<wgslm_error_free>>;

int main() {
    wgslm_options options{};
    options.size = sizeof options;
    options.device = "cpu";
    options.context = 128;
    wgslm_error *error = nullptr;
    Model model{wgslm_open(nullptr, &options, &error)};
    Error failed{error};
    if (!model) return std::fprintf(stderr, "%s\n", wgslm_error_message(failed.get())), 1;
    wgslm_request request{};
    request.size = sizeof request;
    request.max_tokens = 12;
    Generation generation{wgslm_generate(model.get(), "Once upon a time", WGSLM_TO_NUL, &request, nullptr)};
    std::string text;
    auto add = [](void *user, const wgslm_event *event) {
        static_cast<std::string *>(user)->append(event->text, event->text_len);
        return true;
    };
    if (!generation || !wgslm_generation_run(generation.get(), add, &text, nullptr) || text.size() < 12) return 1;
    std::printf("Once upon a time%s\nall is well\n", text.c_str());
}
