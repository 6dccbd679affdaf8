// The openai package for Node, unchanged, against SmolLM2.
//
//   LAPIDARY=build/lapidary LAPIDARY_NODE=build/clients/node node --test tests/clients/openai_test.mjs

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import path from 'node:path';
import { after, before, test } from 'node:test';

const { LAPIDARY, LAPIDARY_NODE } = process.env;
assert.ok(LAPIDARY && LAPIDARY_NODE, 'LAPIDARY (the program) and LAPIDARY_NODE (a folder with node_modules) must be set');
const OpenAI = createRequire(path.resolve(LAPIDARY_NODE, 'package.json'))('openai');

const QUESTION = [{ role: 'user', content: 'Name three colours of the rainbow.' }];
const SCHEMA = {
  type: 'object',
  properties: { colour: { enum: ['red', 'green', 'blue'] }, certain: { type: 'boolean' } },
  required: ['colour', 'certain'],
  additionalProperties: false,
};
let server, client, model, said = '';

before(async () => {
  server = spawn(LAPIDARY, ['serve', 'smollm2-135m-instruct', '--port', '0', '--context', '2048']);
  server.stderr.on('data', (data) => { said += data; });
  const url = await new Promise((resolve, reject) => {
    let out = '';
    server.stdout.on('data', (data) => {
      out += data;
      for (const line of out.split('\n').slice(0, -1)) {
        if (line.startsWith('{') && JSON.parse(line).event === 'ready') resolve(JSON.parse(line).url);
      }
    });
    server.on('exit', (code) => reject(new Error(`exit code ${code}: ${said}`)));
    server.on('error', reject);
  });
  client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 });
  model = (await client.models.list()).data[0].id;
});

after(async () => {
  if (!server?.pid || server.exitCode !== null) return;
  const ended = new Promise((resolve) => { server.on('exit', resolve); });
  server.kill('SIGTERM');
  assert.equal(await ended, 0, said);
});

const chat = (more) => client.chat.completions.create({ model, messages: QUESTION, temperature: 0, max_completion_tokens: 24, ...more });

test('streamed pieces make the same answer', async () => {
  const whole = await chat();
  let text = '', usage;
  for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.ok(text.trim());
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(usage.completion_tokens, whole.usage.completion_tokens);
});

test('the stream helper tells the final content', async () => {
  const runner = client.chat.completions.stream({ model, messages: QUESTION, temperature: 0, max_completion_tokens: 24 });
  assert.equal(await runner.finalContent(), (await chat()).choices[0].message.content);
});

test('a schema binds the answer', async () => {
  const format = { type: 'json_schema', json_schema: { name: 'verdict', strict: true, schema: SCHEMA } };
  const answer = await client.chat.completions.parse({ model, messages: QUESTION, response_format: format, temperature: 0, max_completion_tokens: 100 });
  const value = JSON.parse(answer.choices[0].message.content);
  assert.ok(['red', 'green', 'blue'].includes(value.colour) && typeof value.certain === 'boolean');
});

test('log-probabilities', async () => {
  const [choice] = (await chat({ logprobs: true, top_logprobs: 3 })).choices;
  assert.equal(choice.logprobs.content.map((entry) => entry.token).join(''), choice.message.content);
  for (const entry of choice.logprobs.content) assert.equal(entry.logprob, entry.top_logprobs[0].logprob);
});

test('requests at once get what each gets alone', async () => {
  const ask = (n) => chat({ messages: [{ role: 'user', content: `Count to ${n}.` }], temperature: 1, seed: n });
  const together = await Promise.all([1, 2, 3, 4, 5, 6].map(ask));
  for (const [index, answer] of together.entries()) assert.deepEqual((await ask(index + 1)).choices, answer.choices);
});

test('completions echo the prompt and its log-probabilities', async () => {
  const prompt = 'The capital of France is';
  const [choice] = (await client.completions.create({ model, prompt, echo: true, logprobs: 1, max_tokens: 0 })).choices;
  assert.equal(choice.text, prompt);
  assert.equal(choice.logprobs.token_logprobs[0], null);
  assert.equal(choice.logprobs.tokens.join(''), prompt);
});

test('responses, whole and streamed', async () => {
  const order = { model, input: 'What is water made of?', temperature: 0, max_output_tokens: 24 };
  const whole = await client.responses.create(order);
  assert.ok(whole.output_text.trim());
  let text = '';
  for await (const event of await client.responses.create({ ...order, stream: true })) {
    if (event.type === 'response.output_text.delta') text += event.delta;
  }
  assert.equal(text, whole.output_text);
});

test('embeddings have length one', async () => {
  const { data } = await client.embeddings.create({ model, input: ['water', 'stone'] });
  for (const { embedding } of data) assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-5);
});

test('refusals have the classes that programs catch', async () => {
  await assert.rejects(chat({ temperatur: 1 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, 'temperatur');
    assert.match(error.message, /temperature/);
    return true;
  });
  await assert.rejects(chat({ model: 'gpt-4o' }), OpenAI.NotFoundError);
});

test('an aborted stream frees its pages', async () => {
  const stream = await chat({ stream: true, max_completion_tokens: 1500, logit_bias: { 2: -100 } });
  for await (const chunk of stream) { assert.ok(chunk.id); break; }
  stream.controller.abort();
  const address = client.baseURL.replace(/\/v1$/, '');
  for (let tries = 0; ; ++tries) {
    const view = await (await fetch(`${address}/v1/kv`)).json();
    if (view.running + view.queued + view.paused === 0) break;
    assert.ok(tries < 100, JSON.stringify(view));
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
});
