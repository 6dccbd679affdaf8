//! What a JSON schema may say, checked before the grammar engine sees it: the engine passes over words that it does not know, and a
//! schema that means more than what is enforced would be a promise broken in silence. Faults are named with the place in the schema.

use serde_json::{Map, Value};

use crate::{data, Failure, Outcome};

pub const MAX_SCHEMA: usize = 1 << 20; // bytes
pub const MAX_DEPTH: usize = 64;
const MAX_NODES: usize = 50_000;
const MAX_ENUM: usize = 10_000;
const MAX_COUNT: u64 = 100_000; // items, properties, characters
const MAX_PATTERN: usize = crate::grammar_source::MAX_REGEX;
const MAX_INTEGER: f64 = 9_007_199_254_740_992.0; // 2^53: bounds come as float64

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
const ANNOTATIONS: [&str; 13] = [
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "readOnly",
    "writeOnly",
    "deprecated",
    "contentMediaType",
];

/// Parses a schema and checks every keyword in it.
pub fn parse(text: &str) -> Outcome<Value> {
    if text.len() > MAX_SCHEMA {
        return limit(format!("JSON schema: {} bytes, the limit is {MAX_SCHEMA}", text.len()));
    }
    let depth = json_depth(text);
    if depth > MAX_DEPTH {
        return limit(format!("JSON schema: nested {depth} deep, the limit is {MAX_DEPTH}"));
    }
    let mut schema: Value =
        serde_json::from_str(text).map_err(|e| Failure::Data(format!("JSON schema: not JSON: {e}")))?;
    check(&schema)?;
    without_annotations(&mut schema);
    Ok(schema)
}

pub fn check(schema: &Value) -> Outcome<()> {
    Check { nodes: 0 }.schema(schema, "#")
}

fn limit<T>(message: String) -> Outcome<T> {
    Err(Failure::Limit(message))
}

fn json_depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0usize, 0usize, false, false);
    for byte in text.bytes() {
        if quoted {
            quoted = escaped || byte != b'"';
            escaped = byte == b'\\' && !escaped;
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// `deprecated` is an annotation that the engine does not know as one.
fn without_annotations(schema: &mut Value) {
    if let Value::Object(map) = schema {
        map.remove("deprecated");
    }
    for_each_child(schema, |_, child| without_annotations(child));
}

/// Calls `visit` with every schema directly inside `schema` and where it stands.
pub fn for_each_child(schema: &mut Value, mut visit: impl FnMut(String, &mut Value)) {
    let Value::Object(map) = schema else { return };
    for (key, value) in map.iter_mut() {
        match (place(key), value) {
            (Place::One | Place::OneOrList, value @ (Value::Object(_) | Value::Bool(_))) => {
                visit(escape(key), value)
            }
            (Place::List | Place::OneOrList, Value::Array(list)) => {
                list.iter_mut().enumerate().for_each(|(i, v)| visit(format!("{}/{i}", escape(key)), v))
            }
            (Place::Named, Value::Object(named)) => {
                named.iter_mut().for_each(|(name, v)| visit(format!("{}/{}", escape(key), escape(name)), v))
            }
            _ => {}
        }
    }
}

enum Place {
    One,
    List,
    OneOrList,
    Named,
    Nowhere,
}

/// Where a keyword holds schemas.
fn place(keyword: &str) -> Place {
    match keyword {
        "additionalProperties" | "additionalItems" => Place::One,
        "items" => Place::OneOrList,
        "anyOf" | "oneOf" | "allOf" | "prefixItems" => Place::List,
        "properties" | "patternProperties" | "$defs" | "definitions" => Place::Named,
        _ => Place::Nowhere,
    }
}

/// A part of a JSON pointer.
fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 {
        return text;
    }
    text.chars().take(60).collect::<String>() + "…"
}

struct Check {
    nodes: usize,
}

impl Check {
    fn schema(&mut self, schema: &Value, path: &str) -> Outcome<()> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return limit(format!("JSON schema: more than {MAX_NODES} schemas within it"));
        }
        match schema {
            Value::Bool(_) => Ok(()),
            Value::Object(map) => {
                integer_bounds(map, path)?;
                map.iter()
                    .try_for_each(|(key, value)| self.keyword(key, value, &format!("{path}/{}", escape(key))))
            }
            other => {
                data(format!("JSON schema, {path}: expected an object, true or false, got {}", shown(other)))
            }
        }
    }

    fn keyword(&mut self, key: &str, value: &Value, path: &str) -> Outcome<()> {
        match place(key) {
            Place::One => return self.schema(value, path),
            Place::OneOrList if !value.is_array() => return self.schema(value, path),
            Place::List | Place::OneOrList => return self.list(value, path),
            Place::Named => return self.named(key, value, path),
            Place::Nowhere => {}
        }
        let expected =
            |what: &str| data(format!("JSON schema, {path}: expected {what}, got {}", shown(value)));
        match key {
            "type" => types(value, path),
            "enum" => match value.as_array() {
                Some(list) if list.len() > MAX_ENUM => {
                    limit(format!("JSON schema, {path}: {} values, the limit is {MAX_ENUM}", list.len()))
                }
                Some(list) if !list.is_empty() => Ok(()),
                _ => expected("a list of values"),
            },
            "const" => Ok(()),
            "$ref" => match value.as_str() {
                Some(target) if target.starts_with('#') => Ok(()),
                Some(_) => Err(Failure::Unsupported(format!(
                    "JSON schema, {path}: {} lies outside of the schema; only references that begin with # are followed",
                    shown(value)
                ))),
                None => expected("a reference"),
            },
            "minItems" | "maxItems" | "minProperties" | "maxProperties" | "minLength" | "maxLength" => {
                match value.as_u64() {
                    Some(count) if count > MAX_COUNT => {
                        limit(format!("JSON schema, {path}: {count}, the limit is {MAX_COUNT}"))
                    }
                    Some(_) => Ok(()),
                    None => expected("a whole number from 0 on"),
                }
            }
            "minimum" | "maximum" if value.is_number() => Ok(()),
            "minimum" | "maximum" => expected("a number"),
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_number() || value.is_boolean() => Ok(()),
            "exclusiveMinimum" | "exclusiveMaximum" => expected("a number"),
            "multipleOf" if value.as_f64().is_some_and(|v| v > 0.0) => Ok(()),
            "multipleOf" => expected("a number above 0"),
            "pattern" => match value.as_str() {
                Some(text) if text.len() > MAX_PATTERN => {
                    limit(format!("JSON schema, {path}: {} bytes, the limit is {MAX_PATTERN}", text.len()))
                }
                Some(_) => Ok(()),
                None => expected("a regular expression"),
            },
            "format" => match value.as_str() {
                Some(name) if FORMATS.contains(&name) => Ok(()),
                Some(_) => Err(Failure::Unsupported(format!(
                    "JSON schema, {path}: unknown format {}; known are {}",
                    shown(value),
                    FORMATS.join(", ")
                ))),
                None => expected("the name of a format"),
            },
            "required" => match value.as_array() {
                Some(names) if names.iter().all(Value::is_string) => Ok(()),
                _ => expected("a list of names"),
            },
            _ if ANNOTATIONS.contains(&key) => Ok(()),
            _ => Err(Failure::Unsupported(format!("JSON schema, {path}: the keyword {key:?} is not supported"))),
        }
    }

    fn list(&mut self, value: &Value, path: &str) -> Outcome<()> {
        let Some(list) = value.as_array() else {
            return data(format!("JSON schema, {path}: expected a list of schemas, got {}", shown(value)));
        };
        list.iter().enumerate().try_for_each(|(i, schema)| self.schema(schema, &format!("{path}/{i}")))
    }

    fn named(&mut self, key: &str, value: &Value, path: &str) -> Outcome<()> {
        let Some(named) = value.as_object() else {
            return data(format!("JSON schema, {path}: expected an object of schemas, got {}", shown(value)));
        };
        for (name, schema) in named {
            if key == "patternProperties" && name.len() > MAX_PATTERN {
                return limit(format!(
                    "JSON schema, {path}: a pattern of {} bytes, the limit is {MAX_PATTERN}",
                    name.len()
                ));
            }
            self.schema(schema, &format!("{path}/{}", escape(name)))?;
        }
        Ok(())
    }
}

/// Digits of greater integers are not exact in the engine.
fn integer_bounds(schema: &Map<String, Value>, path: &str) -> Outcome<()> {
    let integer = |v: &Value| v.as_str() == Some("integer");
    let kind = schema.get("type");
    if !kind.is_some_and(|v| integer(v) || v.as_array().is_some_and(|list| list.iter().any(integer))) {
        return Ok(());
    }
    for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
        if schema.get(key).and_then(Value::as_f64).is_some_and(|bound| bound.abs() > MAX_INTEGER) {
            let bound = shown(&schema[key]);
            return limit(format!("JSON schema, {path}/{key}: {bound}, integers are bound up to 2^53"));
        }
    }
    Ok(())
}

fn types(value: &Value, path: &str) -> Outcome<()> {
    let known = |v: &Value| v.as_str().is_some_and(|name| TYPES.contains(&name));
    let good = match value {
        Value::Array(list) => !list.is_empty() && list.iter().all(known),
        one => known(one),
    };
    if good {
        return Ok(());
    }
    data(format!(
        "JSON schema, {path}: expected one or several of {}, got {}",
        TYPES.join(", "),
        shown(value)
    ))
}
