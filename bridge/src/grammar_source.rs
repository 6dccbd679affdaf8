//! Regular expressions and Lark grammars as they come from outside, checked before the grammar engine reads them.

use std::collections::HashMap;

use crate::{data, schema, Failure, Outcome};

pub const MAX_REGEX: usize = 4 << 10; // bytes; the engine's memory grows with the square of it
const MAX_LARK: usize = 64 << 10;
const MAX_TERMINAL: u64 = 2000; // terminals within a terminal, each written out for every use
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
        let message = format!("regex: {}", brief(&e.to_string()));
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

/// A message on one line; of a long one the ends, where the cause is.
pub fn brief(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let characters: Vec<char> = line.chars().collect();
    if characters.len() <= 400 {
        return line;
    }
    let part = |from: usize, to: usize| characters[from..to].iter().collect::<String>();
    format!("{} … {}", part(0, 160), part(characters.len() - 200, characters.len()))
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
    let mut scan = Scan { text, at: 0, depth: 0, deepest: 0, terminals: HashMap::new(), current: None };
    while scan.at < text.len() {
        scan.step()?;
    }
    nesting("grammar", scan.deepest)?;
    let mut sizes = HashMap::new();
    for name in scan.terminals.keys() {
        if expansion(&scan.terminals, name, &mut sizes, 0) > MAX_TERMINAL {
            return Err(Failure::Limit(format!(
                "grammar: the terminal {name} is made of more than {MAX_TERMINAL} others; rules (in lower case) can be"
            )));
        }
    }
    Ok(text.to_string())
}

/// How many terminals stand in one, all of them written out. Those that hold themselves are the engine's to refuse.
fn expansion<'a>(
    terminals: &HashMap<&'a str, Vec<&'a str>>,
    name: &'a str,
    sizes: &mut HashMap<&'a str, u64>,
    depth: usize,
) -> u64 {
    if let Some(size) = sizes.get(name) {
        return *size;
    }
    if depth > MAX_NESTING {
        return u64::MAX;
    }
    sizes.insert(name, 1); // while it is worked out
    let parts = terminals.get(name).map_or(&[][..], Vec::as_slice);
    let size =
        parts.iter().fold(1u64, |sum, part| sum.saturating_add(expansion(terminals, part, sizes, depth + 1)));
    sizes.insert(name, size);
    size
}

struct Scan<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    deepest: usize,
    terminals: HashMap<&'a str, Vec<&'a str>>, // what each is made of
    current: Option<&'a str>,                  // the terminal that is being defined
}

impl<'a> Scan<'a> {
    fn step(&mut self) -> Outcome<()> {
        let rest = &self.text.as_bytes()[self.at..];
        match rest[0] {
            b'#' => self.line(),
            b'/' if rest.get(1) == Some(&b'/') => self.line(),
            b'"' => self.quoted(b'"'),
            b'/' => {
                let from = self.at;
                self.quoted(b'/');
                let expression = &self.text[from..self.at.min(self.text.len())];
                if expression.len() > MAX_REGEX + 2 {
                    let size = expression.len();
                    return Err(Failure::Limit(format!(
                        "grammar: an expression of {size} bytes, the limit is {MAX_REGEX}"
                    )));
                }
                self.deepest = self.deepest.max(regex_depth(expression));
            }
            b'%' => return self.directive(),
            b'<' => {
                let line = 1 + self.text[..self.at].matches('\n').count();
                return Err(Failure::Unsupported(format!(
                    "grammar, line {line}: special tokens cannot be part of a grammar; it describes text"
                )));
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.name(),
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

    /// A rule or a terminal (upper case), defined or used.
    fn name(&mut self) {
        let rest = &self.text[self.at..];
        let part = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        let size = rest.bytes().position(|b| !part(b)).unwrap_or(rest.len());
        let name = &rest[..size];
        self.at += size;
        let next = self.text[self.at..].trim_start_matches([' ', '\t']).as_bytes().first();
        let terminal = !name.bytes().any(|b| b.is_ascii_lowercase());
        if matches!(next, Some(b':' | b'.' | b'[')) {
            self.current = terminal.then_some(name);
            if terminal {
                self.terminals.entry(name).or_default();
            }
        } else if let (Some(current), true) = (self.current, terminal) {
            self.terminals.entry(current).or_default().push(name);
        }
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
