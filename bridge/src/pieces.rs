//! What each id decodes to, byte for byte, laid out once at load.

use crate::tokenizer::{ADDED, BYTE, SPECIAL};

/// How a token's spelling becomes bytes.
pub enum Rule {
    ByteLevel,
    Spiece { replace: Vec<(String, String)>, byte_fallback: bool },
}

impl Rule {
    pub fn spiece() -> Rule {
        Rule::Spiece { replace: vec![("\u{2581}".into(), " ".into())], byte_fallback: true }
    }
}

#[derive(Default)]
pub struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    kinds: Vec<u8>,
}

impl Pieces {
    pub fn size(&self) -> usize {
        self.ends.len()
    }

    pub fn bytes(&self, id: usize) -> &[u8] {
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..self.ends[id]]
    }

    pub fn kind(&self, id: usize) -> u8 {
        self.kinds[id]
    }

    /// Adds what the next id decodes to; a hole in the vocabulary has an empty name.
    pub fn push(&mut self, name: &str, kind: u8, decoder: &Decoder) {
        match kind {
            ADDED | SPECIAL => decoder.decode_added(name, kind, &mut self.bytes),
            _ => decoder.decode(name, kind, &mut self.bytes),
        }
        self.ends.push(self.bytes.len());
        self.kinds.push(kind);
    }
}

pub struct Decoder<'a> {
    rule: &'a Rule,
    alphabet: Vec<Option<u8>>, // GPT-2's: code point → byte
}

impl Decoder<'_> {
    pub fn new(rule: &Rule) -> Decoder<'_> {
        let mut alphabet = vec![None; 512];
        let mut spare = 256;
        for byte in 0..=255u8 {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            alphabet[if printable { byte as usize } else { spare }] = Some(byte);
            spare += !printable as usize;
        }
        Decoder { rule, alphabet }
    }

    /// The byte that a spelling such as `<0x0A>` stands for, where the rule has such tokens.
    pub fn byte(&self, name: &str) -> Option<u8> {
        match self.rule {
            Rule::Spiece { byte_fallback: true, .. } => byte_of(name),
            _ => None,
        }
    }

    fn decode(&self, name: &str, kind: u8, out: &mut Vec<u8>) {
        match self.rule {
            Rule::ByteLevel => {
                let start = out.len();
                for c in name.chars() {
                    match self.alphabet.get(c as usize).copied().flatten() {
                        Some(byte) => out.push(byte),
                        None => {
                            // Outside the alphabet: the spelling itself, as the library has it.
                            out.truncate(start);
                            out.extend_from_slice(name.as_bytes());
                            return;
                        }
                    }
                }
            }
            Rule::Spiece { replace, .. } => match byte_of(name).filter(|_| kind == BYTE) {
                Some(byte) => out.push(byte),
                None => replace_all(name, replace, out),
            },
        }
    }

    /// Added tokens are spelt as text, not in GPT-2's alphabet.
    fn decode_added(&self, name: &str, kind: u8, out: &mut Vec<u8>) {
        match self.rule {
            Rule::Spiece { replace, .. } if kind == ADDED => replace_all(name, replace, out),
            _ => out.extend_from_slice(name.as_bytes()),
        }
    }
}

fn replace_all(name: &str, replace: &[(String, String)], out: &mut Vec<u8>) {
    if !replace.iter().any(|(from, _)| name.contains(from.as_str())) {
        out.extend_from_slice(name.as_bytes());
        return;
    }
    let text = replace.iter().fold(name.to_string(), |text, (from, to)| text.replace(from.as_str(), to));
    out.extend_from_slice(text.as_bytes());
}

fn byte_of(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    let hexadecimal = digits.len() == 2 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    hexadecimal.then(|| u8::from_str_radix(digits, 16).ok())?
}
