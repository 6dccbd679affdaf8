//! Regular expressions and Lark grammars as they come from outside, checked before the grammar engine reads them.

use crate::{data, schema, Failure, Outcome};

const MAX_REGEX: usize = 64 << 10; // bytes
const MAX_LARK: usize = 256 << 10;
const MAX_NESTING: usize = 100; // brackets within brackets: the engine walks them by recursion

/// The whole text must match, so anchors at the ends say nothing and are dropped: the engine knows none.
pub fn regex(text: &str) -> Outcome<String> {
    if text.len() > MAX_REGEX {
        return Err(Failure::Limit(format!("regex: {} bytes, the limit is {MAX_REGEX}", text.len())));
    }
    if text.is_empty() {
        return data("regex: it is empty");
    }
    let text = text.strip_prefix('^').unwrap_or(text);
    let text = match text.strip_suffix('$') {
        Some(body) if ends_in_backslash(body) => text,
        Some(body) => body,
        None => text,
    };
    nesting("regex", regex_depth(text))?;
    // The library's own words are clearer than what the engine makes of them.
    regex_syntax::Parser::new().parse(text).map_err(|e| {
        let message = format!("regex: {}", one_line(&e.to_string()));
        let beyond = message.contains("not supported");
        if beyond {
            Failure::Unsupported(message)
        } else {
            Failure::Data(message)
        }
    })?;
    Ok(text.to_string())
}

fn ends_in_backslash(text: &str) -> bool {
    text.bytes().rev().take_while(|b| *b == b'\\').count() % 2 == 1
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn nesting(what: &str, depth: usize) -> Outcome<()> {
    if depth > MAX_NESTING {
        return Err(Failure::Limit(format!(
            "{what}: brackets nested {depth} deep, the limit is {MAX_NESTING}"
        )));
    }
    Ok(())
}

fn regex_depth(text: &str) -> usize {
    let (mut depth, mut deepest, mut escaped) = (0usize, 0usize, false);
    for byte in text.bytes() {
        if escaped {
            escaped = false;
            continue;
        }
        match byte {
            b'\\' => escaped = true,
            b'(' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// A grammar describes text, so it names no special tokens; schemas within it are held to the rules of schemas.
pub fn lark(text: &str) -> Outcome<String> {
    if text.len() > MAX_LARK {
        return Err(Failure::Limit(format!("grammar: {} bytes, the limit is {MAX_LARK}", text.len())));
    }
    let mut scan = Scan { text, at: 0, depth: 0, deepest: 0 };
    while scan.at < text.len() {
        scan.step()?;
    }
    nesting("grammar", scan.deepest)?;
    Ok(text.to_string())
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    deepest: usize,
}

impl Scan<'_> {
    fn step(&mut self) -> Outcome<()> {
        let rest = &self.text.as_bytes()[self.at..];
        match rest[0] {
            b'#' => self.line(),
            b'/' if rest.get(1) == Some(&b'/') => self.line(),
            b'"' => self.quoted(b'"'),
            b'/' => {
                let from = self.at;
                self.quoted(b'/');
                self.deepest = self.deepest.max(regex_depth(&self.text[from..self.at.min(self.text.len())]));
            }
            b'%' => return self.directive(),
            b'<' => {
                let line = 1 + self.text[..self.at].matches('\n').count();
                return Err(Failure::Unsupported(format!(
                    "grammar, line {line}: special tokens cannot be part of a grammar; it describes text"
                )));
            }
            b'(' | b'[' | b'{' => {
                self.depth += 1;
                self.deepest = self.deepest.max(self.depth);
                self.at += 1;
            }
            b')' | b']' | b'}' => {
                self.depth = self.depth.saturating_sub(1);
                self.at += 1;
            }
            _ => self.at += 1,
        }
        Ok(())
    }

    fn line(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.find('\n').unwrap_or(rest.len());
    }

    fn quoted(&mut self, end: u8) {
        let bytes = self.text.as_bytes();
        self.at += 1;
        while self.at < bytes.len() && bytes[self.at] != end && bytes[self.at] != b'\n' {
            self.at += 1 + (bytes[self.at] == b'\\') as usize;
        }
        self.at = (self.at + 1).min(bytes.len());
        while !self.text.is_char_boundary(self.at) {
            self.at += 1;
        }
    }

    /// `%json {...}` holds a schema; other directives that hold JSON are the engine's own settings.
    fn directive(&mut self) -> Outcome<()> {
        let rest = &self.text[self.at..];
        let word: String = rest[1..].chars().take_while(|c| c.is_ascii_alphabetic()).collect();
        self.at += 1 + word.len();
        match word.as_str() {
            "json" => {
                let body = &self.text[self.at..];
                let mut values = serde_json::Deserializer::from_str(body).into_iter::<serde_json::Value>();
                match values.next() {
                    Some(Ok(value)) => schema::check(&value)?,
                    Some(Err(e)) => return data(format!("grammar, %json: not JSON: {e}")),
                    None => return data("grammar, %json: expected a schema"),
                }
                self.at += values.byte_offset();
                Ok(())
            }
            "ignore" | "regex" | "lark" | "if" => Ok(()),
            other => Err(Failure::Unsupported(format!("grammar: the directive %{other} is not supported"))),
        }
    }
}
