"""Python's part in scripts/bench-bindings: MODEL THREADS TOKENS, and a prompt in each line of stdin. Prints how many tokens came
after each, and the seconds that took."""

import sys
import time

import wgslm

model, threads, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
engine = wgslm.Engine(model, device="cpu", context=1024, threads=threads)
for line in sys.stdin:
    begun = time.perf_counter()
    stream = engine.stream(line.rstrip("\n"), max_tokens=tokens, temperature=0)
    for _ in stream:
        pass
    print(stream.answer.generated_tokens, time.perf_counter() - begun, flush=True)
