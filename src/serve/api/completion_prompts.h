// The prompts of a completions request.
#pragma once

#include <string>
#include <vector>

#include "serve/api/facts.h"
#include "serve/api/fields.h"
#include "serve/api/service.h"

namespace lapidary::serve {

// prompt: a string, an array of strings, an array of ids, an array of arrays of ids. Strings become ids under
// the BOS rule (exactly one where the model wants one; spelt special tokens are those tokens); ids are taken
// as they are. add_special_tokens (true): false adds no BOS to strings. No prompt may be empty; one more than
// max_prompts is refused.
std::vector<std::vector<TokenId>> read_prompts(Fields& fields, const Service& service,
                                               const ModelFacts& facts, int64_t max_prompts);

}  // namespace lapidary::serve
