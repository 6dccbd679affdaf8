"""What is compared: the models, and the rows of each."""

from dataclasses import dataclass

BATCHES, BATCH_PROMPT = (1, 4, 8), 128
COLD_PROMPT, COLD_TOKENS, COLD_CONTEXT = "The capital of France is", 8, 4096
WINDOW = 512  # of the perplexities


@dataclass(frozen=True)
class Model:
    name: str
    positions: int
    shape: str = ""  # of a synthetic one, else it is in the model cache
    kind: str = ""
    layers: int | None = None

    def file(self):
        return f"{self.name}.gguf"


MODELS = (
    Model("smollm2-135m-instruct", 8192),
    Model("gemma3-270m", 32768),
    Model("e2b-q4_0", 131072, "e2b", "Q4_0"),
    Model("e2b-q8_0", 131072, "e2b", "Q8_0"),
    Model("e4b-q4_0", 131072, "e4b", "Q4_0"),
    Model("26b-a4b-q4_k-6-layers", 262144, "26b-a4b", "Q4_K", 6),
)


@dataclass(frozen=True)
class Row:
    """One call of each program, and what it answers."""

    group: str
    prompts: tuple = ()
    generated: tuple = ()
    depth: int = 0
    batches: tuple = (1,)
    threads: int = 2

    def longest(self):
        return self.depth + max((*self.prompts, *self.generated), default=0)


SPEED_ROWS = (
    Row("prefill", prompts=(512, 2048)),
    Row("decode", generated=(64,)),
    Row("threads", prompts=(512,), generated=(64,), threads=1),
    Row("batch", generated=(64,), depth=BATCH_PROMPT, batches=BATCHES),
    Row("depth", generated=(64,), depth=4096),
    Row("deep", prompts=(512,), generated=(64,), depth=16384),
)
GROUPS = (*(row.group for row in SPEED_ROWS), "cold", "busy", "quality")
BUSY = Row("busy", generated=(64,))
NEIGHBOURS = 2


def rows_of(model, groups):
    return [row for row in SPEED_ROWS if row.group in groups and row.longest() <= model.positions]
