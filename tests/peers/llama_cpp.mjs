// Holds GGUF files that Lapidary wrote against llama.cpp (through node-llama-cpp): does it read them, find the same tokens in a text,
// and the same probabilities after every token? Optional, and no part of the test runs:
//
//   npm install --ignore-scripts --omit=optional node-llama-cpp@3.21.1 @node-llama-cpp/linux-x64@3.21.1   (in some folder PEERS)
//   PEERS=/that/folder node tests/peers/llama_cpp.mjs build/lapidary TEXT [--tokens N] MODEL.gguf...
//   PEERS=/that/folder node tests/peers/llama_cpp.mjs build/lapidary --ids 5,7,9 MODEL.gguf...
//
// llama.cpp rounds activations to eight bits where weights are quantised, and computes GELU through a table: its probabilities are not
// ours to the last digit. The exit code says whether every file was read with the same tokens and a mean KL below 0.05.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { pathToFileURL } from "node:url";

const worstKl = 0.05;

function parseArguments(words) {
  const out = { lapidary: words[0], text: null, ids: null, tokens: 256, models: [] };
  for (let i = 1; i < words.length; ++i) {
    if (words[i] === "--ids") out.ids = words[++i].split(",").map(Number);
    else if (words[i] === "--tokens") out.tokens = Number(words[++i]);
    else if (words[i].endsWith(".gguf")) out.models.push(words[i]);
    else out.text = words[i];
  }
  if (!out.lapidary || (!out.text && !out.ids) || out.models.length === 0) {
    console.error("usage: PEERS=FOLDER node llama_cpp.mjs LAPIDARY (TEXT [--tokens N] | --ids 1,2,3) MODEL.gguf...");
    process.exit(2);
  }
  return out;
}

const call = (program, words) => execFileSync(program, words, { encoding: "utf8", maxBuffer: 1 << 30 });

// Rows of the tensor "logits".
function readLogits(path) {
  const file = readFileSync(path);
  const length = Number(file.readBigUInt64LE(0));
  const entry = JSON.parse(file.toString("utf8", 8, 8 + length)).logits;
  const [rows, columns] = entry.shape.slice(-2);
  const start = 8 + length + entry.data_offsets[0];
  return Array.from({ length: rows }, (_, r) =>
    new Float32Array(file.buffer.slice(file.byteOffset + start + 4 * r * columns, file.byteOffset + start + 4 * (r + 1) * columns)));
}

function logSoftmax(row) {
  let top = -Infinity;
  for (const x of row) top = Math.max(top, x);
  let sum = 0;
  for (const x of row) sum += Math.exp(x - top);
  const shift = top + Math.log(sum);
  return Float64Array.from(row, (x) => x - shift);
}

function compare(rows, theirs, ids) {
  const out = { kl: 0, same: 0, ours: 0, llama: 0, worst: 0 };
  rows.forEach((row, i) => {
    const ours = logSoftmax(row);
    let best = 0;
    for (let id = 0; id < ours.length; ++id) {
      if (ours[id] > ours[best]) best = id;
      const q = theirs[i].get(id) ?? 0;
      const p = Math.exp(ours[id]);
      if (p > 1e-12) out.kl += p * (ours[id] - Math.log(Math.max(q, 1e-30)));
      if (p > 1e-3) out.worst = Math.max(out.worst, Math.abs(ours[id] - Math.log(Math.max(q, 1e-30))));
    }
    out.same += best === theirs[i].keys().next().value ? 1 : 0;
    if (i + 1 < ids.length) {
      out.ours -= ours[ids[i + 1]];
      out.llama -= Math.log(Math.max(theirs[i].get(ids[i + 1]) ?? 0, 1e-30));
    }
  });
  const n = rows.length;
  return {
    kl: out.kl / n, same: out.same / n, worst: out.worst,
    ours: Math.exp(out.ours / (n - 1)), llama: Math.exp(out.llama / (n - 1)),
  };
}

const wanted = parseArguments(process.argv.slice(2));
const require = createRequire(join(process.env.PEERS ?? ".", "node_modules", "anchor.js"));
const { getLlama } = await import(pathToFileURL(require.resolve("node-llama-cpp")).href);
const llama = await getLlama({ gpu: false, build: "never", logLevel: "error" });
const folder = mkdtempSync(join(tmpdir(), "lapidary-peer-"));
let bad = 0;
console.log("| file | same tokens | mean KL | same top token | largest log-probability difference (p > 0.001) | perplexity here | llama.cpp |");
console.log("|---|---|---|---|---|---|---|");
for (const path of wanted.models) {
  const model = await llama.loadModel({ modelPath: path, gpuLayers: 0 });
  let ids = wanted.ids, tokens = "";
  if (wanted.text) {
    const text = readFileSync(wanted.text, "utf8");
    const scored = JSON.parse(call(wanted.lapidary, ["score", path, wanted.text, "--json"])).input_ids;
    const theirs = Array.from(model.tokenize(text, true));
    if (model.tokens.shouldPrependBosToken) theirs.unshift(model.tokens.bos);
    tokens = JSON.stringify(theirs) === JSON.stringify(scored) ? `all ${scored.length}` : "NO";
    if (tokens === "NO") ++bad;
    ids = scored.slice(0, wanted.tokens);
  }
  const list = join(folder, "ids.json"), dump = join(folder, "dump.safetensors");
  writeFileSync(list, JSON.stringify(ids));
  call(wanted.lapidary, ["score", path, "--arithmetic", "f32", "--ids", list, "--dump", dump, "--json"]);
  const context = await model.createContext({ contextSize: Math.max(64, ids.length + 8), sequences: 1, flashAttention: false });
  const options = { temperature: 1, minP: 0, topK: 0, topP: 1, seed: 1 };
  const evaluated = await context.getSequence().controlledEvaluate(ids.map((id) => [id, { generateNext: { probabilities: true, options } }]));
  const result = compare(readLogits(dump), evaluated.map((e) => e.next.probabilities), ids);
  if (!(result.kl < worstKl)) ++bad;
  console.log(`| ${basename(path)} | ${tokens} | ${result.kl.toExponential(2)} | ${(100 * result.same).toFixed(1)} % | `
    + `${result.worst.toPrecision(3)} | ${result.ours.toFixed(4)} | ${result.llama.toFixed(4)} |`);
  await context.dispose();
  await model.dispose();
}
rmSync(folder, { recursive: true });
await llama.dispose();
process.exit(bad === 0 ? 0 : 1);
