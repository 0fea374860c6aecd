"""Answers the prompts of Parquet files with Ray Data: python batch.py IN OUT --model ORG/REPO:Q4_K_M --replicas 2

IN has a column `prompt`. OUT gets all columns of IN and `answer`; where a prompt has none, `error` says why.
"""

import argparse
import logging
from typing import Any, Optional

import pyarrow as pa
import ray

logger = logging.getLogger(__name__)


class Answers:
    """An engine in an actor of Ray Data, which gives it one batch after another."""

    def __init__(self, model: Optional[str], engine: dict[str, Any], wanted: dict[str, Any]) -> None:
        import wgslm

        self.errors = wgslm.Error
        self.engine = wgslm.Engine(model, **engine)
        self.wanted = wanted

    def __call__(self, batch: pa.Table) -> pa.Table:
        # All of them are asked at once: the engine generates `parallel` together, and the others wait in its queue.
        streams = [self._start(prompt) for prompt in batch["prompt"].to_pylist()]
        pairs = [self._end(stream) for stream in streams]
        # With their types: a batch without any error has nothing to guess a type from.
        for name, column in zip(("answer", "error"), zip(*pairs)):
            batch = batch.append_column(name, pa.array(column, pa.string()))
        return batch

    def _start(self, prompt: Optional[str]) -> Any:
        if prompt is None:
            return "there is no prompt"
        try:
            return self.engine.stream(prompt, **self.wanted)
        except self.errors as error:
            return str(error)

    def _end(self, stream: Any) -> tuple[Optional[str], Optional[str]]:
        if isinstance(stream, str):
            return None, stream
        try:
            return stream.answer.text, None
        except self.errors as error:
            return None, str(error)


def answer(
    data: ray.data.Dataset,
    *,
    model: Optional[str] = None,
    replicas: int = 1,
    threads: int = 1,
    device: str = "cpu",
    gpus: float = 0,
    context: Optional[int] = None,
    parallel: int = 8,
    batch: int = 64,
    **wanted: Any,
) -> ray.data.Dataset:
    """`data` with the columns `answer` and `error`. `wanted` goes to `wgslm.Engine.stream`; greedy otherwise."""
    # Files are read and written by tasks of one CPU each. If engines reserved all, these would wait for ever.
    reserved = threads - 1 if threads > 1 else 0.5
    if ray.cluster_resources().get("CPU", 0) < replicas * reserved + 1:
        logger.warning("%s engines of %s threads leave no CPU to read with: this waits for more", replicas, threads)
    engine = {"device": device, "threads": threads, "context": context, "parallel": parallel, "queue": batch}
    return data.map_batches(
        Answers,
        fn_constructor_args=(model, engine, {"temperature": 0, **wanted}),
        compute=ray.data.ActorPoolStrategy(size=replicas),
        num_cpus=reserved,
        num_gpus=gpus,
        scheduling_strategy="SPREAD",
        batch_size=batch,
        batch_format="pyarrow",
    )


def main() -> None:
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("input", metavar="IN", help="a Parquet file, or a folder of them")
    args.add_argument("output", metavar="OUT", help="a folder")
    args.add_argument("--model", help="a path or a reference; without it a small model that is built in")
    args.add_argument("--replicas", type=int, default=1, help="engines")
    args.add_argument("--threads", type=int, default=1, help="of each engine")
    args.add_argument("--device", default="cpu")
    args.add_argument("--gpus", type=float, default=0, help="that Ray reserves for each engine")
    args.add_argument("--context", type=int, help="positions of a sequence")
    args.add_argument("--parallel", type=int, default=8, help="answers that an engine generates together")
    args.add_argument("--batch", type=int, default=64, help="prompts that an engine is given at a time")
    args.add_argument("--max-tokens", type=int, default=256)
    args.add_argument("--temperature", type=float, default=0.0)
    args.add_argument("--seed", type=int, default=0)
    given = vars(args.parse_args())
    source, target = given.pop("input"), given.pop("output")
    answer(ray.data.read_parquet(source), **given).write_parquet(target)


if __name__ == "__main__":
    main()
