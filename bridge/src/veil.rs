//! Keeps special tokens that a request spells apart from those that a template writes: in the request each is replaced by one
//! character of a private range in which neither request nor template has any, and put back when the text is cut.

use std::collections::HashMap;

use indexmap::IndexMap;
use minijinja::value::{Value, ValueKind};

use crate::tokenizer::Tokenizer;
use crate::{Failure, Outcome};

const PRIVATE: std::ops::Range<u32> = 0xf0000..0xffffe;
const MAX_DEPTH: usize = 160; // the reader of requests stops at 128

pub struct Veil<'a> {
    tokenizer: &'a Tokenizer,
    marks: HashMap<u32, char>,
    spellings: HashMap<char, String>,
}

impl<'a> Veil<'a> {
    pub fn new(tokenizer: &'a Tokenizer, specials: &[u32], used: &[&str]) -> Outcome<Veil<'a>> {
        let mut taken: Vec<bool> = vec![false; PRIVATE.len()];
        // An escaped private character is two surrogates in \u form; then the whole range counts as taken.
        let escaped = used.iter().any(|text| {
            text.contains("\\udb")
                || text.contains("\\uDB")
                || text.contains("\\uDb")
                || text.contains("\\udB")
        });
        for c in used.iter().flat_map(|text| text.chars()).filter(|c| PRIVATE.contains(&(*c as u32))) {
            taken[(c as u32 - PRIVATE.start) as usize] = true;
        }
        let free = PRIVATE
            .filter(|code| !escaped && !taken[(code - PRIVATE.start) as usize])
            .filter_map(char::from_u32);
        let marks: HashMap<u32, char> = specials.iter().copied().zip(free).collect();
        if marks.len() < specials.len() {
            return Err(Failure::Limit(
                "the request uses the private characters that keep its text apart from special tokens".into(),
            ));
        }
        let spellings = marks
            .iter()
            .map(|(id, mark)| (*mark, tokenizer.name(*id as usize).unwrap_or("").to_string()))
            .collect();
        Ok(Veil { tokenizer, marks, spellings })
    }

    /// The context with every special spelling covered, and whether there was one. `spare_model`: not in messages of the assistant.
    pub fn cover(
        &self,
        context: &IndexMap<Value, Value>,
        spare_model: bool,
    ) -> Outcome<(IndexMap<Value, Value>, bool)> {
        let mut touched = false;
        let mut covered = IndexMap::new();
        for (key, value) in context {
            let value = match key.as_str() {
                Some("messages") => self.messages(value, spare_model, &mut touched)?,
                Some("tools") => self.value(value, 0, &mut touched)?,
                _ => value.clone(), // options are the program's own: bos_token and the like
            };
            covered.insert(key.clone(), value);
        }
        Ok((covered, touched))
    }

    fn messages(&self, messages: &Value, spare_model: bool, touched: &mut bool) -> Outcome<Value> {
        if messages.kind() != ValueKind::Seq {
            return self.value(messages, 0, touched);
        }
        let mut covered = Vec::new();
        for message in items(messages)? {
            let role = message.get_attr("role").unwrap_or_default();
            let spared = spare_model && matches!(role.as_str(), Some("assistant" | "model"));
            covered.push(if spared { message } else { self.value(&message, 1, touched)? });
        }
        Ok(Value::from(covered))
    }

    fn value(&self, value: &Value, depth: usize, touched: &mut bool) -> Outcome<Value> {
        if depth > MAX_DEPTH {
            return Err(Failure::Limit(format!("a request nested deeper than {MAX_DEPTH}")));
        }
        Ok(match value.kind() {
            ValueKind::String => match self.string(value.as_str().unwrap_or("")) {
                Some(text) => {
                    *touched = true;
                    Value::from(text)
                }
                None => value.clone(),
            },
            ValueKind::Seq => {
                let parts: Outcome<Vec<Value>> =
                    items(value)?.iter().map(|v| self.value(v, depth + 1, touched)).collect();
                Value::from(parts?)
            }
            ValueKind::Map => {
                let mut map: IndexMap<Value, Value> = IndexMap::new();
                for key in items(value)? {
                    let part = value.get_item(&key).map_err(|e| Failure::Internal(e.to_string()))?;
                    map.insert(self.value(&key, depth + 1, touched)?, self.value(&part, depth + 1, touched)?);
                }
                Value::from_object(map)
            }
            _ => value.clone(),
        })
    }

    fn string(&self, text: &str) -> Option<String> {
        let mut covered = String::new();
        let mut found = false;
        for (piece, special) in self.tokenizer.cut(text) {
            match special.and_then(|id| self.marks.get(&id).map(|mark| (mark, &self.spellings[mark]))) {
                Some((mark, spelling)) => {
                    found = true;
                    covered.push_str(&piece.replace(spelling.as_str(), mark.encode_utf8(&mut [0; 4])));
                }
                None => covered.push_str(&piece),
            }
        }
        found.then_some(covered)
    }

    /// `text` with what was covered put back.
    pub fn lift(&self, text: &str) -> String {
        let mut lifted = String::with_capacity(text.len());
        for c in text.chars() {
            match self.spellings.get(&c) {
                Some(spelling) => lifted.push_str(spelling),
                None => lifted.push(c),
            }
        }
        lifted
    }
}

fn items(value: &Value) -> Outcome<Vec<Value>> {
    Ok(value.try_iter().map_err(|e| Failure::Internal(e.to_string()))?.collect())
}
