"""llama.cpp, pinned: how to get it, how to call it, how to read what it prints."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile

# The sdist of this package holds llama.cpp's source.
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
TARGETS = ("llama-bench", "llama-batched-bench", "llama-completion", "llama-perplexity", "llama-server")
CMAKE_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
)


def source(work):
    return work / f"{PACKAGE.replace('-', '_')}-{VERSION}" / "vendor" / "llama.cpp"


def vocabulary(work):
    return source(work) / "models" / "ggml-vocab-gemma-4.gguf"


# CMake options of ggml, and what the CPU must have for each.
FEATURES = {
    ("AVX", "AVX2", "FMA", "F16C", "BMI2"): ("avx2", "fma", "f16c", "bmi2"),
    ("AVX_VNNI",): ("avx_vnni",),
    ("AVX512",): ("avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"),
    ("AVX512_VBMI",): ("avx512vbmi",),
    ("AVX512_VNNI",): ("avx512_vnni",),
    ("AVX512_BF16",): ("avx512_bf16",),
}


def compiler_breaks_tiles(version_text):
    """gcc 12's header hides from the compiler that loading a tile configuration reads memory: llama.cpp's AMX code then dies of SIGILL."""
    found = re.search(r"(?:g\+\+|gcc|c\+\+).* (\d+)\.\d+\.\d+", version_text.splitlines()[0])
    return found is not None and int(found[1]) < 13 and "clang" not in version_text


def cpu_options(cpu_flags, version_text):
    """ggml's options for this CPU: all it has, but without AMX where the compiler cannot be trusted with it."""
    if "amx_tile" not in cpu_flags or not compiler_breaks_tiles(version_text):
        return ["-DGGML_NATIVE=ON"]
    print("building llama.cpp without AMX: this compiler breaks it (CC=clang CXX=clang++ would keep it)", file=sys.stderr)
    chosen = [option for options, needed in FEATURES.items() if set(needed) <= set(cpu_flags) for option in options]
    return ["-DGGML_NATIVE=OFF", *(f"-DGGML_{option}=ON" for option in chosen)]


def this_cpu_options():
    cpu = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = re.search(r"^flags\s*: (.*)$", cpu, re.MULTILINE)
    version = subprocess.run([os.environ.get("CXX", "c++"), "--version"], capture_output=True, text=True, check=True).stdout
    return cpu_options(flags[1].split() if flags else [], version)


def obtain(work):
    """Source and programs below `work`; what is there is not made again. Returns the folder of programs."""
    programs = work / "llama-build" / "bin"
    if not source(work).is_dir():
        print(f"fetching {PACKAGE} {VERSION}", file=sys.stderr)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(work)]
        subprocess.run([*command, f"{PACKAGE}=={VERSION}"], check=True)
        with tarfile.open(work / f"{PACKAGE.replace('-', '_')}-{VERSION}.tar.gz") as archive:
            archive.extractall(work, filter="data") if hasattr(tarfile, "data_filter") else archive.extractall(work)
    if not all((programs / target).exists() for target in TARGETS):
        print("building llama.cpp: some ten minutes of two cores", file=sys.stderr)
        build = ["cmake", "-S", str(source(work)), "-B", str(work / "llama-build"), "-G", "Ninja"]
        build += [*CMAKE_FLAGS, *this_cpu_options()]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["ninja", "-C", str(work / "llama-build"), *TARGETS], check=True, stdout=subprocess.DEVNULL)
    return programs


def build_text(programs):
    """How the programs were built, for the tables: compiler, and what of the CPU they use."""
    cache = pathlib.Path(programs).parent / "CMakeCache.txt"
    if not cache.exists():
        return "built elsewhere"
    options = dict(re.findall(r"^(\w+):\w+=(.*)$", cache.read_text(encoding="utf-8"), re.MULTILINE))
    version = subprocess.run([options["CMAKE_CXX_COMPILER"], "--version"], capture_output=True, text=True, check=True).stdout
    native = options.get("GGML_NATIVE") == "ON"
    used = ", ".join(name for names in FEATURES for name in names if options.get(f"GGML_{name}") == "ON")
    return f"built by {version.splitlines()[0]} {'for this CPU' if native else f'with {used}'}"


class LlamaCpp:
    """Commands with the settings that the comparison fixes: flash attention, repacking, f16 cache, micro-batches of 512."""

    def __init__(self, programs):
        self.programs = pathlib.Path(programs)

    def bench(self, model, threads, prompts, generated, depth):
        command = [self.programs / "llama-bench", "-m", model, "-t", threads, "-fa", "1", "-r", "1", "-o", "json", "-d", depth]
        return [*command, "-p", ",".join(map(str, prompts)) or "0", "-n", ",".join(map(str, generated)) or "0", "-ub", "512"]

    def batched(self, model, threads, prompt, generated, batches):
        positions = max(batches) * (prompt + generated)
        command = [self.programs / "llama-batched-bench", "-m", model, "-t", threads, "-fa", "on", "-c", positions]
        command += ["-b", "2048", "-ub", "512", "-npp", prompt, "-ntg", generated, "-npl", ",".join(map(str, batches))]
        return [*command, "--output-format", "jsonl"]

    def complete(self, model, threads, prompt, tokens, context):
        command = [self.programs / "llama-completion", "-m", model, "-t", threads, "-fa", "on", "-c", context, "-p", prompt]
        return [*command, "-n", tokens, "--temp", "0", "-no-cnv", "--no-display-prompt", "--special", "--simple-io"]

    def perplexity(self, model, threads, text, window):
        return [self.programs / "llama-perplexity", "-m", model, "-t", threads, "-fa", "on", "-f", text, "-c", window, "-b", window]


def read_bench(out):
    """{"pp512": tokens per second, "tg64 d4096": ...} of llama-bench -o json."""
    rates = {}
    for entry in json.loads(out):
        name = f"pp{entry['n_prompt']}" if entry["n_prompt"] else f"tg{entry['n_gen']}"
        if entry["n_depth"]:
            name += f" d{entry['n_depth']}"
        rates[name] = entry["avg_ts"]
    return rates


def read_batched(out):
    """{"tg64 b8 d128": tokens per second of all sequences, ...} of llama-batched-bench --output-format jsonl."""
    rates = {}
    for line in out.splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        batch = f" b{entry['pl']}" if entry["pl"] > 1 else ""
        rates[f"tg{entry['tg']}{batch} d{entry['pp']}"] = entry["speed_tg"]
    return rates


def read_perplexity(out):
    found = re.search(r"Final estimate: PPL = ([0-9.]+)", out)
    if not found:
        raise ValueError("llama-perplexity printed no final estimate")
    return float(found[1])


def perplexity_chunks(ids, window, begins_with):
    """The chunks that llama-perplexity makes of a text, and from which token on it counts: the second half of each.

    `begins_with`: the id at the beginning of a text, if the model has one; it then replaces the first id of every chunk.
    """
    chunks = [ids[at : at + window] for at in range(0, len(ids) - window + 1, window)]
    if begins_with is not None:
        chunks = [[begins_with, *chunk[1:]] for chunk in chunks]
    return chunks, window // 2 + 1
