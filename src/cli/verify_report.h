// A verification as text that a release note can quote, and as JSON.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "cli/terminal.h"
#include "formats/checkpoint.h"
#include "text/tokenizer_check.h"
#include "verify/verify.h"

namespace lapidary {

struct VerifyReport {
  std::string model, format, dtypes;  // "q4_1 88.2 MB, f32 ..."
  std::string reference;              // its numeric mode
  std::string against;                // the model that the reference read, when it is another one
  // The two steps: numeric mode and threads of their engines, and what they are held to.
  std::string structure_engine, shipped_engine;
  std::string shipped_note;  // without a shipped engine: why there was no second step
  Tolerances structure_tolerances, shipped_tolerances;
  std::string file;                       // of a packed model: what its checksums said
  std::vector<TokenizerCheck> tokenizer;  // empty: the model has none
  std::vector<TokenizerCheck> template_checks;
  int64_t tensors = 0, skipped_tensors = 0;
  std::string window_note;  // when no prompt reaches past the window: that this was not checked
  std::vector<std::string> prompt_names;
  std::vector<int64_t> prompt_tokens;
  std::vector<PromptResult> prompts;      // structure
  std::vector<ShippedResult> shipped;     // of the same prompts
  std::vector<MutationResult> mutations;  // empty: not asked for
  double seconds = 0;

  bool passed() const;
  std::vector<std::string> failures() const;
};

std::string verify_text(const VerifyReport& report, const Style& style);
boost::json::object verify_json(const VerifyReport& report);

}  // namespace lapidary
