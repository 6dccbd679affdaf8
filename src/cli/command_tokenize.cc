#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/quote.h"
#include "cli/commands.h"
#include "cli/input.h"
#include "cli/load.h"
#include "cli/table.h"
#include "cli/terminal.h"

namespace lapidary {
namespace {

constexpr const char* kTokenizeExamples =
    R"(TEXT defaults to standard input, taken byte for byte. A BOS is put in front where the model wants one, as run does.
Spellings of special tokens become those tokens unless --no-special is given.

Examples:
  lapidary tokenize smollm2-135m-instruct "The capital of France is"
  lapidary tokenize smollm2-135m-instruct --pieces "naïve café"
  lapidary tokenize smollm2-135m-instruct --decode "504 3575 282 4649 314"
  lapidary tokenize smollm2-135m-instruct --json < book.txt)";

struct TokenizeFlags {
  std::string model;
  std::optional<std::string> text;
  bool pieces = false, no_bos = false, no_special = false, decode = false, json = false;
};

std::string pieces_text(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  TextTable table({{"", Align::right}, {"", Align::left}});
  for (const TokenId id : ids) table.add({std::to_string(id), lapidary::quoted(tokenizer.token_bytes(id))});
  return table.text(Style::for_fd(STDOUT_FILENO), "");
}

boost::json::object tokens_json(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool pieces) {
  boost::json::object out{{"ids", boost::json::value_from(ids)}, {"count", ids.size()}};
  if (!pieces) return out;
  boost::json::array list;
  for (const TokenId id : ids) list.push_back(boost::json::string(tokenizer.decode({&id, 1}, true)));
  out["pieces"] = std::move(list);
  return out;
}

int decode(const TokenizeFlags& flags, const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<TokenId> ids = parse_ids(text, "--decode");
  if (flags.json) {
    write_out(boost::json::serialize(
                  boost::json::object{{"text", tokenizer.decode(ids, true)}, {"count", ids.size()}}) +
              "\n");
    return kExitOk;
  }
  if (is_terminal(STDOUT_FILENO)) {
    write_out(terminal_safe(tokenizer.decode(ids, true)) + "\n");
  } else {
    write_out(tokenizer.decode_bytes(ids, true));  // exact, so that encode and decode compose
  }
  return kExitOk;
}

int tokenize(const TokenizeFlags& flags) {
  const std::string text = flags.text && *flags.text != "-" ? *flags.text : read_stdin();
  const TextModel model = open_text_model(flags.model);
  const Tokenizer& tokenizer = model.tokenizer;
  if (flags.decode) return decode(flags, tokenizer, text);
  const std::vector<TokenId> ids = flags.no_bos ? tokenizer.encode(text, !flags.no_special)
                                                : tokenizer.prompt_ids(text, !flags.no_special);
  if (flags.json) {
    write_out(boost::json::serialize(tokens_json(tokenizer, ids, flags.pieces)) + "\n");
  } else if (flags.pieces) {
    write_out(pieces_text(tokenizer, ids));
  } else {
    write_out(fmt::format("{}\n", fmt::join(ids, " ")));
  }
  return kExitOk;
}

}  // namespace

void add_tokenize_command(CLI::App& program, Action& action) {
  CLI::App* command = program.add_subcommand("tokenize", "Turn text into token ids, or ids into text");
  auto flags = std::make_shared<TokenizeFlags>();
  command->footer(kTokenizeExamples);
  command->add_option("MODEL", flags->model, "Model: folder, GGUF or packed file, or name in the cache")
      ->required();
  command->add_option("TEXT", flags->text, "Text, or ids with --decode; - or nothing reads standard input");
  command->add_flag("--pieces", flags->pieces,
                    "One token a line, with its text in quotes, bytes that are no characters escaped");
  command->add_flag("--no-bos", flags->no_bos, "Never add a BOS");
  command->add_flag("--no-special", flags->no_special, "Take spellings of special tokens as ordinary text");
  CLI::Option* decode_flag =
      command->add_flag("--decode", flags->decode, "TEXT is a list of ids: print their text");
  decode_flag->excludes("--pieces")->excludes("--no-bos")->excludes("--no-special");
  command->add_flag("--json", flags->json, "One JSON object");
  command->callback([flags, &action] { action = [flags] { return tokenize(*flags); }; });
}

}  // namespace lapidary
