// The index of a packed model: JSON, every field always there.
#include <array>
#include <boost/json.hpp>

#include "base/error.h"
#include "base/quote.h"
#include "formats/artifact.h"
#include "spec/json_fields.h"

namespace lapidary {
namespace {

namespace json = boost::json;

constexpr std::array kKinds = {SectionKind::text, SectionKind::plain, SectionKind::packed};

json::value optional_json(const std::optional<int64_t>& id) {
  return id ? json::value(*id) : json::value(nullptr);
}

json::object section_json(const ArtifactSection& section) {
  json::object out{{"name", section.name}, {"kind", section_kind_name(section.kind)}};
  if (section.kind != SectionKind::text) {
    out["dtype"] = dtype_name(section.dtype);
    out["shape"] = json::value_from(section.shape);
  }
  if (section.kind == SectionKind::packed) out["layout"] = section.layout;
  out["offset"] = section.offset;
  out["length"] = section.length;
  out["hash"] = hash_text(section.hash);
  return out;
}

SectionKind kind_from(const std::string& name, const std::string& path) {
  for (const SectionKind kind : kKinds) {
    if (section_kind_name(kind) == name) return kind;
  }
  fail(ErrorCode::data, "{}: expected text, plain or packed, got {}", path, lapidary::quoted(name));
}

Hash128 hash_from(JsonFields& fields, std::string_view key) {
  const std::string text = fields.get_string(key);
  const std::optional<Hash128> hash = hash_from_text(text);
  ensure(hash.has_value(), ErrorCode::data, "{}: expected 32 hexadecimal digits, got {}", fields.path(key),
         lapidary::quoted(text));
  return *hash;
}

std::vector<int64_t> integers(JsonFields& fields, std::string_view key) {
  std::vector<int64_t> out;
  for (const json::value& value : fields.get_array(key)) {
    ensure(value.is_int64(), ErrorCode::data, "{}[{}]: expected an integer, got {}", fields.path(key),
           out.size(), describe_json(value));
    out.push_back(value.get_int64());
  }
  return out;
}

ArtifactSection section_from(const json::value& value, const std::string& where) {
  JsonFields fields(value, where);
  ArtifactSection section;
  section.name = fields.get_string("name");
  section.kind = kind_from(fields.get_string("kind"), fields.path("kind"));
  if (section.kind != SectionKind::text) {
    const std::string dtype = fields.get_string("dtype");
    const std::optional<DType> known = dtype_from_name(dtype);
    ensure(known.has_value(), ErrorCode::data, "{}: expected a number format, got {}", fields.path("dtype"),
           lapidary::quoted(dtype));
    section.dtype = *known;
    section.shape = integers(fields, "shape");
  }
  if (section.kind == SectionKind::packed) section.layout = fields.get_string("layout");
  section.offset = fields.get_int("offset");
  section.length = fields.get_int("length");
  section.hash = hash_from(fields, "hash");
  fields.refuse_unknown();
  return section;
}

}  // namespace

std::string_view section_kind_name(SectionKind kind) {
  switch (kind) {
    case SectionKind::text: return "text";
    case SectionKind::plain: return "plain";
    case SectionKind::packed: return "packed";
  }
  fail(ErrorCode::internal, "a kind of section without a name");
}

std::string artifact_index_to_json(const Artifact& artifact) {
  const ArtifactFacts& facts = artifact.facts;
  json::array sections;
  for (const ArtifactSection& section : artifact.sections) sections.push_back(section_json(section));
  return json::serialize(json::object{{"family", facts.family},
                                      {"source", facts.source},
                                      {"source_format", facts.source_format},
                                      {"model_hash", hash_text(facts.model_hash)},
                                      {"bos_id", optional_json(facts.bos_id)},
                                      {"eos_id", optional_json(facts.eos_id)},
                                      {"pad_id", optional_json(facts.pad_id)},
                                      {"stop_ids", json::value_from(facts.stop_ids)},
                                      {"chat_template_source", facts.chat_template_source},
                                      {"sections", std::move(sections)}});
}

void artifact_index_from_json(std::string_view text, Artifact& artifact) {
  const std::string where = artifact.name + ": index";
  const json::value root = parse_json(text, where);
  JsonFields fields(root, where);
  ArtifactFacts& facts = artifact.facts;
  facts.family = fields.get_string("family");
  facts.source = fields.get_string("source");
  facts.source_format = fields.get_string("source_format");
  facts.model_hash = hash_from(fields, "model_hash");
  facts.bos_id = fields.find_int("bos_id");
  facts.eos_id = fields.find_int("eos_id");
  facts.pad_id = fields.find_int("pad_id");
  facts.stop_ids = integers(fields, "stop_ids");
  facts.chat_template_source = fields.get_string("chat_template_source");
  for (const json::value& section : fields.get_array("sections")) {
    const std::string path = fmt::format("{}[{}]", fields.path("sections"), artifact.sections.size());
    artifact.sections.push_back(section_from(section, path));
  }
  fields.refuse_unknown();
}

}  // namespace lapidary
