//! JSON text → template values. A reader of our own because two things must survive that serde_json loses without settings that would
//! change it for the tokenizer library too: the digits of integers of any size, and the order of keys.

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use minijinja::value::{Object, ObjectRepr, Value};

const MAX_DEPTH: usize = 128;

/// An integer beyond 128 bits: printed as it came, useless for arithmetic.
#[derive(Debug)]
pub struct BigInteger(pub String);

impl Object for BigInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value, or a message with the byte offset of the first fault.
pub fn parse(text: &str) -> Result<Value, String> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    parser.blanks();
    if parser.at < text.len() {
        return parser.fault("text after the value");
    }
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn fault<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("not JSON at byte {}: {what}", self.at))
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, expected: u8) -> bool {
        let found = self.peek() == Some(expected);
        self.at += found as usize;
        found
    }

    fn word(&mut self, word: &str, value: Value) -> Result<Value, String> {
        if !self.text[self.at..].starts_with(word) {
            return self.fault("expected a value");
        }
        self.at += word.len();
        Ok(value)
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return self.fault(&format!("nested deeper than {MAX_DEPTH}"));
        }
        self.blanks();
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'"') => Ok(Value::from(self.string()?)),
            Some(b't') => self.word("true", Value::from(true)),
            Some(b'f') => self.word("false", Value::from(false)),
            Some(b'n') => self.word("null", Value::from(())),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => self.fault("expected a value"),
            None => self.fault("the text ends early"),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, String> {
        let mut map: IndexMap<Value, Value> = IndexMap::new();
        self.at += 1;
        self.blanks();
        if self.take(b'}') {
            return Ok(Value::from_object(map));
        }
        loop {
            self.blanks();
            if self.peek() != Some(b'"') {
                return self.fault("expected a key");
            }
            let key = self.string()?;
            self.blanks();
            if !self.take(b':') {
                return self.fault("expected ':'");
            }
            let value = self.value(depth + 1)?;
            map.insert(Value::from(key), value);
            self.blanks();
            if self.take(b'}') {
                return Ok(Value::from_object(map));
            }
            if !self.take(b',') {
                return self.fault("expected ',' or '}'");
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, String> {
        let mut items: Vec<Value> = Vec::new();
        self.at += 1;
        self.blanks();
        if self.take(b']') {
            return Ok(Value::from(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.blanks();
            if self.take(b']') {
                return Ok(Value::from(items));
            }
            if !self.take(b',') {
                return self.fault("expected ',' or ']'");
            }
        }
    }

    fn string(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let stop = rest.bytes().position(|b| b == b'"' || b == b'\\' || b < 0x20).unwrap_or(rest.len());
            out.push_str(&rest[..stop]);
            self.at += stop;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape()?),
                Some(_) => return self.fault("a control character in a string"),
                None => return self.fault("a string without end"),
            }
        }
    }

    fn escape(&mut self) -> Result<char, String> {
        self.at += 1;
        let code = self.peek();
        self.at += code.is_some() as usize;
        Ok(match code {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let mut unit = self.four_digits()?;
                if (0xd800..0xdc00).contains(&unit) && self.text[self.at..].starts_with("\\u") {
                    self.at += 2;
                    let low = self.four_digits()?;
                    unit = 0x10000 + ((unit - 0xd800) << 10) + low.wrapping_sub(0xdc00).min(0x10_ffff);
                }
                match char::from_u32(unit) {
                    Some(c) => c,
                    None => return self.fault("half of a surrogate pair"),
                }
            }
            _ => return self.fault("an unknown escape"),
        })
    }

    fn four_digits(&mut self) -> Result<u32, String> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4);
        match digits.filter(|d| d.iter().all(u8::is_ascii_hexdigit)) {
            Some(d) => {
                self.at += 4;
                Ok(d.iter().fold(0, |sum, b| 16 * sum + (*b as char).to_digit(16).unwrap_or(0)))
            }
            None => self.fault("expected four hexadecimal digits"),
        }
    }

    fn digits(&mut self) -> Result<(), String> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return self.fault("expected a digit");
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<Value, String> {
        let start = self.at;
        self.take(b'-');
        let leading_zero = self.peek() == Some(b'0');
        let first = self.at;
        self.digits()?;
        if leading_zero && self.at - first > 1 {
            return self.fault("a number with a leading zero");
        }
        let mut real = false;
        if self.take(b'.') {
            real = true;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            real = true;
            self.at += 1;
            if !self.take(b'-') {
                self.take(b'+');
            }
            self.digits()?;
        }
        let text = &self.text[start..self.at];
        if real {
            return text.parse::<f64>().map(Value::from).or_else(|_| self.fault("a number out of range"));
        }
        Ok(integer(text))
    }
}

fn integer(text: &str) -> Value {
    if let Ok(n) = text.parse::<i64>() {
        return Value::from(n);
    }
    match (text.parse::<i128>(), text.parse::<u128>()) {
        (Ok(n), _) => Value::from(n),
        (_, Ok(n)) => Value::from(n),
        _ => Value::from_object(BigInteger(text.to_string())),
    }
}
