// The arguments of a tool call, held to a JSON schema: rules of a grammar for Gemma 4's spelling of them.
#pragma once

#include <string>
#include <string_view>

namespace lapidary {

// Rules for `call:NAME{...}` bodies whose arguments fit `schema`, an object's; the first of them is called
// `rule`. Keys come in the order in which templates write them: sorted, whatever the case. They stand on the
// general rules of GrammarEnv::call_body. Levels: how many objects and lists may nest.
//
// Known: type (one or several), properties, required, additionalProperties (no more than what is declared is
// ever written, so only a schema there is refused), items, minItems, maxItems, minLength, maxLength, minimum,
// maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, enum, const, anyOf, allOf of one, $ref to $defs or
// definitions (not recursive), and what only describes. Error(data) when it is no schema of an
// object, Error(unsupported) on what would not be enforced, Error(limit) on too many rules or levels; `where`
// (the tool) is named.
std::string call_rules(std::string_view schema, const std::string& rule, int levels, std::string_view where);

}  // namespace lapidary
