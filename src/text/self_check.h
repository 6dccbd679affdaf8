// What every tokenizer must pass before it is let near a model.
#pragma once

#include "text/tokenizer.h"

namespace lapidary {

// Error(data) when known text encodes to unknown tokens, does not come back from decoding, or when the
// beginning-of-text token cannot be written. A wrong pre-tokenizer or a damaged vocabulary otherwise shows
// only as a model that talks nonsense.
void self_check(const Tokenizer& tokenizer, std::optional<TokenId> unk_id, bool knows_all_bytes);

}  // namespace lapidary
