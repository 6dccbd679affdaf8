//! What each id decodes to, byte for byte, laid out once at load.

use tokenizers::models::bpe::BPE;
use tokenizers::{AddedVocabulary, Model};

use crate::tokenizer::{TokenView, ADDED, BYTE, PLAIN, SPECIAL};
use crate::{data, Outcome};

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

struct Entry {
    name: (usize, usize),
    bytes: (usize, usize),
    kind: u8,
    used: bool,
}

pub struct Pieces {
    arena: Vec<u8>,
    entries: Vec<Entry>,
}

impl Pieces {
    pub fn from_spec(tokens: &[&str], kinds: &[u8], rule: &Rule) -> Pieces {
        let mut pieces = Pieces::with_room(tokens.len(), tokens.iter().map(|t| t.len()).sum());
        let decoder = Decoder::new(rule);
        for (token, kind) in tokens.iter().zip(kinds) {
            pieces.push(token, *kind, &decoder);
        }
        pieces
    }

    pub fn from_model(model: &BPE, added: &AddedVocabulary, rule: &Rule) -> Outcome<Pieces> {
        let decoder = Decoder::new(rule);
        let added_tokens = added.get_added_tokens_decoder();
        let count = model.get_vocab_size() + added_tokens.len();
        let bound = 2 * count + 65536; // ids may have holes, but not so many that a small file takes all the memory
        let mut pieces = Pieces::with_room(count, 8 * count);
        let mut seen = 0;
        let vocab_size = model.get_vocab_size();
        let outside = added_tokens.keys().filter(|id| model.id_to_token(**id).is_none()).count();
        while seen < vocab_size + outside {
            let id = pieces.entries.len();
            if id > bound {
                return data(format!("ids of the vocabulary run beyond {bound} though it has only {count} tokens"));
            }
            let own = added_tokens.get(&(id as u32));
            let name = own.map(|t| t.content.clone()).or_else(|| model.id_to_token(id as u32));
            let kind = match (own, &name) {
                (Some(token), _) if token.special => SPECIAL,
                (Some(_), _) => ADDED,
                (None, Some(name)) if decoder.byte(name).is_some() => BYTE,
                _ => PLAIN,
            };
            match name {
                Some(name) => {
                    pieces.push(&name, kind, &decoder);
                    seen += 1;
                }
                None => pieces.entries.push(Entry { name: (0, 0), bytes: (0, 0), kind: PLAIN, used: false }),
            }
        }
        Ok(pieces)
    }

    pub fn size(&self) -> usize {
        self.entries.len()
    }

    pub fn token(&self, id: usize) -> TokenView<'_> {
        let entry = &self.entries[id];
        let name = std::str::from_utf8(&self.arena[entry.name.0..entry.name.1]).unwrap_or("");
        TokenView { name, bytes: &self.arena[entry.bytes.0..entry.bytes.1], kind: entry.kind, used: entry.used }
    }

    fn with_room(entries: usize, bytes: usize) -> Pieces {
        Pieces { arena: Vec::with_capacity(2 * bytes), entries: Vec::with_capacity(entries) }
    }

    fn push(&mut self, name: &str, kind: u8, decoder: &Decoder) {
        let start = self.arena.len();
        self.arena.extend_from_slice(name.as_bytes());
        let middle = self.arena.len();
        match kind {
            ADDED | SPECIAL => decoder.decode_added(name, kind, &mut self.arena),
            _ => decoder.decode(name, kind, &mut self.arena),
        }
        let end = self.arena.len();
        self.entries.push(Entry { name: (start, middle), bytes: (middle, end), kind, used: true });
    }
}

struct Decoder<'a> {
    rule: &'a Rule,
    alphabet: Vec<Option<u8>>, // GPT-2's: code point → byte
}

impl Decoder<'_> {
    fn new(rule: &Rule) -> Decoder<'_> {
        let mut alphabet = vec![None; 512];
        let mut spare = 256;
        for byte in 0..=255u8 {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            alphabet[if printable { byte as usize } else { spare }] = Some(byte);
            spare += !printable as usize;
        }
        Decoder { rule, alphabet }
    }

    /// The byte that a spelling such as `<0x0A>` stands for.
    fn byte(&self, name: &str) -> Option<u8> {
        match self.rule {
            Rule::Spiece { byte_fallback: true, .. } => byte_of(name),
            _ => None,
        }
    }

    fn decode(&self, name: &str, kind: u8, out: &mut Vec<u8>) {
        match self.rule {
            Rule::ByteLevel => {
                let bytes: Option<Vec<u8>> = name.chars().map(|c| self.alphabet.get(c as usize).copied().flatten()).collect();
                out.extend_from_slice(bytes.as_deref().unwrap_or(name.as_bytes()));
            }
            Rule::Spiece { replace, .. } => match byte_of(name).filter(|_| kind == BYTE) {
                Some(byte) => out.push(byte),
                None => replace_all(name, replace, out),
            },
        }
    }

    /// Added tokens are spelt as text, not in GPT-2's alphabet; blanks of SentencePiece style stay blanks.
    fn decode_added(&self, name: &str, kind: u8, out: &mut Vec<u8>) {
        match self.rule {
            Rule::Spiece { replace, .. } if kind == ADDED => replace_all(name, replace, out),
            _ => out.extend_from_slice(name.as_bytes()),
        }
    }
}

fn replace_all(name: &str, replace: &[(String, String)], out: &mut Vec<u8>) {
    if let [(from, to)] = replace {
        let mut parts = name.split(from.as_str());
        out.extend_from_slice(parts.next().unwrap_or("").as_bytes());
        for part in parts {
            out.extend_from_slice(to.as_bytes());
            out.extend_from_slice(part.as_bytes());
        }
        return;
    }
    let text = replace.iter().fold(name.to_string(), |text, (from, to)| text.replace(from.as_str(), to));
    out.extend_from_slice(text.as_bytes());
}

fn byte_of(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2 && !digits.starts_with('+')).then(|| u8::from_str_radix(digits, 16).ok())?
}
