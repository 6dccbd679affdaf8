// The fields that chat and completions have in common.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/api/facts.h"
#include "serve/api/fields.h"
#include "serve/api/service.h"

namespace lapidary::serve {

// model: absent, or the name of the model that is served; 404 else.
void check_model(Fields& fields, const ServedModel& model);

// temperature, top_p, top_k, min_p, repetition_penalty, frequency_penalty, presence_penalty, logit_bias,
// seed: the model's own defaults where absent. Without a seed one is drawn.
SamplingParams read_sampling(Fields& fields, const Service& service);

struct StreamFields {
  bool stream = false, include_usage = false;
};
StreamFields read_stream(Fields& fields);  // stream, stream_options

std::vector<std::string> read_stops(Fields& fields, const ApiLimits& limits);  // stop

// A limit under one of these names (two that differ are refused); nothing: none was given.
std::optional<int64_t> read_max_tokens(Fields& fields, const Service& service,
                                       std::span<const std::string_view> names, int64_t least);

// Refuses text of so many bytes that no tokens could spell it within the context: before it is encoded.
void check_text_size(size_t bytes, const Service& service, const ModelFacts& facts, std::string_view param);

// How many tokens a prompt of this length may be followed by: what was asked for, else the default as far as
// there is room. 400 context_length_exceeded with the numbers when the two do not fit the context.
int64_t tokens_to_generate(size_t prompt_tokens, std::optional<int64_t> asked, const Service& service,
                           std::string_view param);

}  // namespace lapidary::serve
