// Base64 (RFC 4648, with padding), as OpenAI's clients read embeddings.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace lapidary::serve {

std::string base64(std::span<const std::byte> bytes);

}  // namespace lapidary::serve
