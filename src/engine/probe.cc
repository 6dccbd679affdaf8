#include "engine/probe.h"

#include "base/error.h"

namespace lapidary {

std::string_view op_name(Op op) {
  switch (op) {
    case Op::attention_input: return "attention_input";
    case Op::key: return "key";
    case Op::value: return "value";
    case Op::query: return "query";
    case Op::turned_query: return "turned_query";
    case Op::attended: return "attended";
    case Op::attention_output: return "attention_output";
    case Op::ffn_input: return "ffn_input";
    case Op::gated: return "gated";
    case Op::ffn_output: return "ffn_output";
    case Op::ple_output: return "ple_output";
  }
  fail(ErrorCode::internal, "an operation without a name");
}

}  // namespace lapidary
