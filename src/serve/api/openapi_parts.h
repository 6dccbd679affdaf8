// openapi/*.json, built in (cmake/embed.cmake).
#pragma once

#include <string_view>

namespace lapidary::serve {

extern const std::string_view kOpenapiBase, kOpenapiChat, kOpenapiCompletions, kOpenapiEmbeddings, kOpenapiKv,
    kOpenapiModels, kOpenapiResponses, kOpenapiSampling, kOpenapiTokens;

}  // namespace lapidary::serve
