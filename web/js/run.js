// One answer on its way: from the server's chunks into a message.
import { stream } from "./api.js";
import { tokensOf, tokensOfCompletion } from "./tokens.js";

// How fast texts come, for the live view: times of what came last, of all runs.
export const pace = {
  times: [],
  last: null, // {first, prompt, cached, tokens, seconds} of the last request
  add() {
    const now = performance.now();
    this.times.push(now);
    while (this.times[0] < now - 5000) this.times.shift();
  },
  // Pieces per second over the last three seconds: a piece is a token, but for those that wait for more bytes.
  now() {
    const begin = performance.now() - 3000;
    return this.times.filter((time) => time > begin).length / 3;
  },
};

export function errorOf(error) {
  return { message: error.message, code: error.code ?? "", status: error.status ?? 0, param: error.param ?? "" };
}

class Clock {
  constructor() {
    this.begin = performance.now();
    this.first = 0;
  }
  piece() {
    if (!this.first) this.first = performance.now();
    pace.add();
  }
  stats(usage, pieces) {
    const stats = {
      first: this.first ? (this.first - this.begin) / 1000 : 0,
      seconds: (performance.now() - this.begin) / 1000,
      tokens: usage?.completion_tokens ?? pieces,
      prompt: usage?.prompt_tokens ?? 0,
      cached: usage?.prompt_tokens_details?.cached_tokens ?? 0,
    };
    pace.last = stats;
    return stats;
  }
}

function takeCalls(message, calls) {
  for (const piece of calls) {
    const at = piece.index ?? message.calls.length;
    const call = (message.calls[at] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
    if (piece.id) call.id = piece.id;
    call.function.name += piece.function?.name ?? "";
    call.function.arguments += piece.function?.arguments ?? "";
  }
}

function takeDelta(message, choice) {
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  message.content += content ?? "";
  message.reasoning += reasoning ?? "";
  if (calls) takeCalls(message, calls);
  if (choice.logprobs?.content) message.tokens.push(...tokensOf(choice.logprobs.content, Boolean(reasoning) && !content));
  if (choice.finish_reason) message.finish = choice.finish_reason;
  return Boolean(content || reasoning || calls);
}

function takeText(message, choice) {
  message.content += choice.text ?? "";
  if (choice.logprobs?.tokens) message.tokens.push(...tokensOfCompletion(choice.logprobs));
  if (choice.finish_reason) message.finish = choice.finish_reason;
  return Boolean(choice.text);
}

// Adds what comes to `message` and calls `changed` after every piece. Never throws: what went wrong is
// message.error, a stop by the reader is the finish "stopped".
async function run(path, body, message, take, signal, changed) {
  const clock = new Clock();
  let usage = null;
  let pieces = 0;
  message.running = true;
  message.finish = "";
  delete message.error;
  delete message.stats;
  changed();
  try {
    for await (const chunk of stream(path, body, signal)) {
      usage = chunk.usage ?? usage;
      for (const choice of chunk.choices ?? []) {
        if (!take(message, choice)) continue;
        clock.piece();
        pieces += 1;
      }
      changed();
    }
  } catch (error) {
    if (error.name === "AbortError") message.finish = "stopped";
    else message.error = errorOf(error);
  }
  message.running = false;
  if (pieces > 0 || usage) message.stats = clock.stats(usage, pieces);
  changed();
}

export const runChat = (body, message, signal, changed) => run("v1/chat/completions", body, message, takeDelta, signal, changed);
export const runText = (body, message, signal, changed) => run("v1/completions", body, message, takeText, signal, changed);
