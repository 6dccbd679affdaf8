//! Values as Python prints them: `str`, `repr` and `json.dumps`. Models were trained on prompts that Python rendered.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use crate::json::BigInteger;

const MAX_DEPTH: usize = 128;

/// What text costs beyond the values that it shows.
fn charge(state: &State, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(bytes as u64 / 64)
}

/// Values may share parts, so that a small one prints without end: each one seen is paid for.
fn visit(state: &State, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("a value is nested deeper than {MAX_DEPTH}"),
        ));
    }
    state.consume_fuel(1)
}

/// `repr(float)`: the shortest digits that read back, an exponent below 1e-4 and from 1e16.
pub fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x < 0.0 { "-inf".into() } else { "inf".into() };
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let mut plain = format!("{x}");
    if !plain.contains('.') {
        plain.push_str(".0");
    }
    plain
}

fn as_float(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok())?
}

/// `str(value)`, as `{{ value }}` prints it. None: the engine's own spelling is the same.
pub fn display(state: &State, value: &Value) -> Result<Option<String>, Error> {
    match value.kind() {
        ValueKind::Number => Ok(as_float(value).map(float)),
        ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(state, value, &mut out, 0)?;
            charge(state, out.len())?;
            Ok(Some(out))
        }
        _ => Ok(None),
    }
}

fn repr(state: &State, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
    visit(state, depth)?;
    match value.kind() {
        ValueKind::String => repr_string(value.as_str().unwrap_or(""), out),
        ValueKind::Number => match as_float(value) {
            Some(x) => out.push_str(&float(x)),
            None => write!(out, "{value}")?,
        },
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(state, &item, out, depth + 1)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(state, &key, out, depth + 1)?;
                out.push_str(": ");
                repr(state, &value.get_item(&key)?, out, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

fn repr_string(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || (0x7f..0xa1).contains(&(c as u32)) || c == '\u{ad}' => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// The keyword arguments of `json.dumps` that templates use.
pub struct Dump {
    pub ensure_ascii: bool,
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
}

impl Dump {
    pub fn dump(&self, state: &State, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(state, value, &mut out, 0)?;
        charge(state, out.len())?;
        Ok(out)
    }

    fn line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write(&self, state: &State, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        visit(state, depth)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&json_number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or(""), out),
            ValueKind::Map => self.map(state, value, out, depth)?,
            ValueKind::Seq | ValueKind::Iterable => self.list(state, value, out, depth)?,
            _ if value.downcast_object_ref::<BigInteger>().is_some() => write!(out, "{value}")?,
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: a value of type {kind} is not JSON serializable"),
                ))
            }
        }
        Ok(())
    }

    fn list(&self, state: &State, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            if !empty {
                out.push_str(&self.item_separator);
            }
            empty = false;
            self.line(out, depth + 1);
            self.write(state, &item, out, depth + 1)?;
        }
        if !empty {
            self.line(out, depth);
        }
        out.push(']');
        Ok(())
    }

    fn map(&self, state: &State, value: &Value, out: &mut String, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        out.push('{');
        for (i, key) in keys.iter().enumerate() {
            if i > 0 {
                out.push_str(&self.item_separator);
            }
            self.line(out, depth + 1);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or(""), out),
                ValueKind::None => out.push_str("\"null\""),
                ValueKind::Bool => out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
                ValueKind::Number => write!(out, "\"{}\"", json_number(key))?,
                kind => {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        format!("tojson: a key of type {kind}"),
                    ))
                }
            }
            out.push_str(&self.key_separator);
            self.write(state, &value.get_item(key)?, out, depth + 1)?;
        }
        if !keys.is_empty() {
            self.line(out, depth);
        }
        out.push('}');
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ensure_ascii && (c as u32) > 0x7e) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn json_number(value: &Value) -> String {
    match as_float(value) {
        Some(x) if x.is_nan() => "NaN".into(),
        Some(x) if x.is_infinite() => if x < 0.0 { "-Infinity" } else { "Infinity" }.into(),
        Some(x) => float(x),
        None => value.to_string(),
    }
}
