"""A small model that knows how to call tools: Gemma 4's vocabulary and chat template around a tiny network of the golden models.

What it says is noise, but its prompts, tool calls and thoughts have the shapes of the real ones, and a schema or a demanded tool call
makes the noise well formed. Standard library only; the same bytes every time.
"""

import gzip
import json
import pathlib
import random
import shutil
import struct

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
NETWORK = DATA / "models" / "gemma4-31b-tiny"
VOCABULARY = 262144
POSITIONS = 4096
STOP_IDS = [1, 106, 50]  # <eos>, <turn|>, <|tool_response>
# The upper bytes of bfloat16 numbers of about 0.01 to 0.1, of both signs.
UPPER_BYTES = bytes((0x3C, 0x3D, 0xBC, 0xBD)) * 64


def read_tensors(path):
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    first = 8 + size
    return {name: (t["dtype"], t["shape"], data[first + t["data_offsets"][0] : first + t["data_offsets"][1]]) for name, t in header.items()}


def write_tensors(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def random_bf16(count, seed):
    rng = random.Random(seed)
    out = bytearray(2 * count)
    out[0::2] = rng.randbytes(count)
    out[1::2] = rng.randbytes(count).translate(UPPER_BYTES)
    return bytes(out)


def make(folder):
    """The model's folder, made when it is not there yet."""
    folder = pathlib.Path(folder)
    if (folder / "config.json").exists():  # written last
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    tensors = read_tensors(NETWORK / "model.safetensors")
    name = "model.embed_tokens.weight"
    width = tensors[name][1][1]
    tensors[name] = ("BF16", [VOCABULARY, width], random_bf16(VOCABULARY * width, seed=4))
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "tokenizer.json").write_bytes(gzip.decompress((DATA / "text" / "gemma4" / "tokenizer.json.gz").read_bytes()))
    shutil.copy(DATA / "text" / "templates" / "gemma-4-31b-it.jinja", folder / "chat_template.jinja")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": STOP_IDS, "bos_token_id": 2, "pad_token_id": 0}))
    config = json.loads((NETWORK / "config.json").read_text())
    config |= {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "eos_token_id": STOP_IDS}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
