#include "formats/hf_rope.h"

#include "base/error.h"
#include "base/quote.h"
#include "formats/hf_keys.h"

namespace lapidary {
namespace {

std::string read_type(JsonFields& f) {
  const auto type = f.find_string(hf_key::rope_type), older = f.find_string("type");
  ensure(!type || !older || *type == *older, ErrorCode::data,
         "{}: expected the same as rope_type ({}), got {}", f.path("type"), quoted(type.value_or("")),
         quoted(older.value_or("")));
  // transformers: a missing rope_type means "default"
  return type ? *type : older.value_or(std::string(hf_key::rope_default));
}

double read_theta(JsonFields& f, std::optional<double> outside) {
  const auto inside = f.find_double(hf_key::rope_theta);
  ensure(!outside || !inside || *outside == *inside, ErrorCode::data,
         "{}: expected the outer rope_theta ({}), got {}", f.path("rope_theta"), outside.value_or(0),
         inside.value_or(0));
  return outside ? *outside : f.get_double(hf_key::rope_theta);
}

void expect_one(JsonFields& f, std::string_view key, const std::string& type) {
  const double value = f.find_double(key).value_or(1);
  ensure(value == 1, ErrorCode::unsupported, "{}: expected 1 (rope type {}), got {}", f.path(key), type,
         value);
}

RopeSpec read_rope(JsonFields f, std::optional<double> outer_theta) {
  RopeSpec rope;
  const std::string type = read_type(f);
  rope.theta = read_theta(f, outer_theta);
  if (type == hf_key::rope_default) {
    rope.kind = RopeKind::plain;
    expect_one(f, hf_key::partial_rotary_factor, type);
    expect_one(f, hf_key::factor, type);
  } else if (type == hf_key::rope_proportional) {
    rope.kind = RopeKind::proportional;
    rope.partial_rotary_factor = f.get_double(hf_key::partial_rotary_factor);
    expect_one(f, hf_key::factor, type);
  } else if (type == hf_key::rope_llama3) {
    rope.kind = RopeKind::llama3;
    rope.factor = f.get_double(hf_key::factor);
    rope.low_freq_factor = f.get_double(hf_key::low_freq_factor);
    rope.high_freq_factor = f.get_double(hf_key::high_freq_factor);
    rope.original_max_position = f.get_int(hf_key::original_max_position_embeddings);
    expect_one(f, hf_key::partial_rotary_factor, type);
  } else {
    fail(ErrorCode::unsupported, "{}: expected default, proportional or llama3, got {}", f.path("rope_type"),
         quoted(type));
  }
  f.refuse_unknown(ErrorCode::unsupported);  // whatever else stands here would change the rotation
  return rope;
}

// A file may hold both spellings; then they must say the same.
void expect_theta(JsonFields& config, std::string_view key, const RopeSpec& rope) {
  const auto theta = config.find_double(key);
  ensure(!theta || *theta == rope.theta, ErrorCode::data,
         "{}: expected the theta of rope_parameters ({}), got {}", config.path(key), rope.theta,
         theta.value_or(0));
}

HfRopes read_newer(JsonFields& config, JsonFields parameters, const HfRopeRules& rules) {
  HfRopes out;
  if (!rules.by_kind || parameters.present(hf_key::rope_theta) || parameters.present(hf_key::rope_type)) {
    out.full = out.sliding = read_rope(parameters, std::nullopt);
  } else {
    if (rules.need_full || parameters.has(hf_key::full_attention)) {
      out.full = read_rope(parameters.get_object(hf_key::full_attention), std::nullopt);
    }
    if (rules.need_sliding || parameters.has(hf_key::sliding_attention)) {
      out.sliding = read_rope(parameters.get_object(hf_key::sliding_attention), std::nullopt);
    }
    parameters.refuse_unknown(ErrorCode::unsupported);
  }
  if (rules.need_full) expect_theta(config, hf_key::rope_theta, out.full);
  if (rules.need_sliding) expect_theta(config, "rope_local_base_freq", out.sliding);
  return out;
}

HfRopes read_older(JsonFields& config, const HfRopeRules& rules) {
  HfRopes out;
  if (rules.need_sliding) out.sliding.theta = config.get_double("rope_local_base_freq");
  if (!rules.need_full) return out;
  const bool absent = rules.theta_optional && !config.has(hf_key::rope_theta);
  out.full.theta = absent ? 10000 : config.get_double(hf_key::rope_theta);
  const auto scaling = config.find_object("rope_scaling");
  ensure(scaling || !rules.scaling_required, ErrorCode::data,
         "{}: expected rope_parameters, or rope_scaling beside rope_theta, got neither", config.where());
  if (scaling) out.full = read_rope(*scaling, out.full.theta);
  return out;
}

}  // namespace

HfRopes read_hf_ropes(JsonFields& config, const HfRopeRules& rules) {
  auto parameters = config.find_object(hf_key::rope_parameters);
  return parameters ? read_newer(config, *parameters, rules) : read_older(config, rules);
}

}  // namespace lapidary
