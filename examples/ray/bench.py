"""Tokens a second of two replicas and of one, over HTTP: python bench.py --model ORG/REPO:Q4_K_M

Callers ask as soon as they have an answer. There are twice as many as a replica generates together.
"""

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ray
import requests
from ray import serve

import serve_app

PORT = 18764


def rate(replicas: int, given: argparse.Namespace) -> float:
    """Tokens a second, of all callers together."""
    options = serve_app.Options(
        model=given.model,
        replicas=replicas,
        threads=given.threads,
        context=given.context,
        parallel=given.parallel,
        ongoing=given.parallel,  # what is more goes to the other replica, or waits
    )
    serve.run(serve_app.build(options))

    def ask(i: int) -> int:
        body: dict[str, Any] = {"prompt": f"{i}. Once upon a time", "max_tokens": given.tokens, "temperature": 0}
        response = requests.post(f"http://127.0.0.1:{PORT}/v1/completions", json=body, timeout=600)
        response.raise_for_status()
        generated: int = response.json()["usage"]["completion_tokens"]
        return generated

    callers = 2 * given.parallel
    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(ask, range(callers)))  # the first answers are slower
        began = time.perf_counter()
        generated = sum(pool.map(ask, range(callers, callers + given.requests)))
        seconds = time.perf_counter() - began
    serve.delete("default")
    print(f"{replicas} of {given.threads} threads: {generated / seconds:.1f} tokens/s, {seconds:.1f} s", flush=True)
    return generated / seconds


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--model", help="a path or a reference; without it a small model that is built in")
    args.add_argument("--threads", type=int, default=1)
    args.add_argument("--parallel", type=int, default=4)
    args.add_argument("--context", type=int, default=512)
    args.add_argument("--tokens", type=int, default=64, help="of an answer")
    args.add_argument("--requests", type=int, default=32)
    args.add_argument("--rounds", type=int, default=3)
    given = args.parse_args()
    here = str(Path(__file__).parent)
    ray.init(num_cpus=max(4, 2 * given.threads), log_to_driver=False, runtime_env={"working_dir": here})
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    try:
        # By turns, so that what else the machine does meets both.
        pairs = [(rate(1, given), rate(2, given)) for _ in range(given.rounds)]
        ratio = statistics.median(two / one for one, two in pairs)
        print(f"two replicas have {ratio:.2f} times the tokens/s of one (median of {given.rounds})")
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
