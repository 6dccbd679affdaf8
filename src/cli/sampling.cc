#include "cli/sampling.h"

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <charconv>
#include <random>

#include "base/error.h"
#include "base/quote.h"
#include "cli/flags.h"
#include "formats/mapped_file.h"
#include "formats/paths.h"

namespace lapidary {
namespace {

namespace fs = std::filesystem;

std::pair<int32_t, float> parse_bias(const std::string& text) {
  const size_t equals = text.find('=');
  int32_t id = 0;
  float value = 0;
  bool good = equals != std::string::npos;
  if (good) {
    const char *begin = text.data(), *middle = begin + equals, *end = begin + text.size();
    const auto left = std::from_chars(begin, middle, id);
    const auto right = std::from_chars(middle + 1, end, value);
    good = left.ec == std::errc{} && left.ptr == middle && right.ec == std::errc{} && right.ptr == end;
  }
  ensure(good, ErrorCode::usage, "--logit-bias: expected ID=VALUE, as in 42=-1.5, got {}",
         lapidary::quoted(text));
  return {id, value};
}

// A field of generation_config.json. Absent and null mean that the model does not ask for anything.
std::optional<double> number_field(const boost::json::object& config, const char* key,
                                   const std::string& name) {
  const boost::json::value* value = config.if_contains(key);
  if (value == nullptr || value->is_null()) return {};
  ensure(value->is_number(), ErrorCode::data, "{}: {} is no number: {}", name, key,
         boost::json::serialize(*value));
  return value->to_number<double>();
}

SamplingParams model_defaults(const fs::path& checkpoint) {
  SamplingParams params;
  const fs::path path = checkpoint / "generation_config.json";
  if (!is_folder(checkpoint) || !is_there(path)) return params;
  boost::system::error_code problem;
  const boost::json::value document = boost::json::parse(read_text_file(path), problem);
  ensure(!problem && document.is_object(), ErrorCode::data, "{} is no JSON object", path.string());
  const boost::json::object& config = document.get_object();
  const boost::json::value* do_sample = config.if_contains("do_sample");
  const bool greedy = do_sample != nullptr && do_sample->is_bool() && !do_sample->get_bool();
  const auto temperature = number_field(config, "temperature", path.string());
  if (temperature && !greedy) {
    params.temperature = static_cast<float>(*temperature);
    params.top_k = static_cast<int64_t>(number_field(config, "top_k", path.string()).value_or(0));
    params.top_p = static_cast<float>(number_field(config, "top_p", path.string()).value_or(1));
    params.min_p = static_cast<float>(number_field(config, "min_p", path.string()).value_or(0));
  }
  params.repetition_penalty =
      static_cast<float>(number_field(config, "repetition_penalty", path.string()).value_or(1));
  return params;
}

}  // namespace

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  const auto group =
      "Sampling (default: generation_config.json of the model when it names a temperature, else greedy)";
  command.add_option("--temp", flags.temperature, "Temperature; 0 takes the best token always")->group(group);
  command.add_option("--top-k", flags.top_k, "Only the K best tokens; 0: all")->group(group);
  command.add_option("--top-p", flags.top_p, "Only the best tokens that make up this share; 1: all")
      ->group(group);
  command.add_option("--min-p", flags.min_p, "Only tokens at least this likely relative to the best; 0: all")
      ->group(group);
  command.add_option("--repeat-penalty", flags.repeat_penalty, "Weakens tokens already seen; 1: off")
      ->group(group);
  command
      .add_option("--frequency-penalty", flags.frequency_penalty,
                  "Subtracted once for each time a token was seen")
      ->group(group);
  command.add_option("--presence-penalty", flags.presence_penalty, "Subtracted from every token seen")
      ->group(group);
  command.add_option("--logit-bias", flags.logit_bias, "ID=VALUE added to a token's logit; repeatable")
      ->allow_extra_args(false)
      ->group(group);
  command
      .add_option("--seed", flags.seed,
                  "The same seed gives the same text (default: random, shown by --stats)")
      ->check(unsigned_number())
      ->group(group);
}

SamplingParams sampling_params(const SamplingFlags& flags, const Checkpoint& checkpoint) {
  SamplingParams params = model_defaults(checkpoint.path);
  params.temperature = flags.temperature.value_or(params.temperature);
  params.top_k = flags.top_k.value_or(params.top_k);
  params.top_p = flags.top_p.value_or(params.top_p);
  params.min_p = flags.min_p.value_or(params.min_p);
  params.repetition_penalty = flags.repeat_penalty.value_or(params.repetition_penalty);
  params.frequency_penalty = flags.frequency_penalty.value_or(0);
  params.presence_penalty = flags.presence_penalty.value_or(0);
  for (const std::string& bias : flags.logit_bias) params.logit_bias.push_back(parse_bias(bias));
  if (flags.seed) {
    params.seed = *flags.seed;
  } else if (params.temperature != 0) {
    params.seed = std::random_device{}();
  }
  params.validate(checkpoint.spec.vocab_size);
  return params;
}

std::string sampling_text(const SamplingParams& params) {
  std::string text = "greedy";
  if (params.temperature != 0) {
    text = fmt::format("temperature {}", params.temperature);
    if (params.top_k != 0) text += fmt::format(", top-k {}", params.top_k);
    if (params.top_p != 1) text += fmt::format(", top-p {}", params.top_p);
    if (params.min_p != 0) text += fmt::format(", min-p {}", params.min_p);
    text += fmt::format(", seed {}", params.seed);
  }
  if (params.repetition_penalty != 1) text += fmt::format(", repeat penalty {}", params.repetition_penalty);
  if (params.frequency_penalty != 0) text += fmt::format(", frequency penalty {}", params.frequency_penalty);
  if (params.presence_penalty != 0) text += fmt::format(", presence penalty {}", params.presence_penalty);
  if (!params.logit_bias.empty()) text += fmt::format(", {} logit biases", params.logit_bias.size());
  return text;
}

}  // namespace lapidary
