//! The "model" of a tokenizer.json, read in one pass into the tables that encoding uses: a quarter of a million tokens and half a
//! million merges without a string of their own. The library's reader goes through a generic tree, which is most of the time of a start.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::Deserialize;

use crate::bpe::Triple;
use crate::vocabulary::Vocabulary;

const MAX_TOKENS: usize = 1 << 24;

pub struct ModelJson {
    pub vocabulary: Vocabulary,
    pub merges: Vec<Triple>,
    pub unk_token: Option<String>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

#[derive(Default)]
struct Parts<'de> {
    kind: Option<String>,
    vocabulary: Option<Vocabulary>,
    early_merges: Option<Vec<(Cow<'de, str>, Cow<'de, str>)>>, // given before the vocabulary
    merges: Option<Vec<Triple>>,
    unk_token: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

impl<'de> Deserialize<'de> for ModelJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModelVisitor;
        impl<'de> Visitor<'de> for ModelVisitor {
            type Value = ModelJson;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a model")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ModelJson, A::Error> {
                let mut parts = Parts::default();
                while let Some(key) = map.next_key::<Cow<str>>()? {
                    parts.read(&key, &mut map)?;
                }
                parts.finish()
            }
        }
        deserializer.deserialize_map(ModelVisitor)
    }
}

impl<'de> Parts<'de> {
    fn read<A: MapAccess<'de>>(&mut self, key: &str, map: &mut A) -> Result<(), A::Error> {
        match key {
            "type" => {
                self.kind = map.next_value()?;
                self.check_kind()?;
            }
            "vocab" => self.vocabulary = Some(map.next_value_seed(VocabularySeed)?),
            "merges" => match &self.vocabulary {
                Some(vocabulary) => self.merges = Some(map.next_value_seed(MergesSeed(vocabulary))?),
                None => self.early_merges = Some(map.next_value_seed(PairsSeed)?),
            },
            "unk_token" => self.unk_token = map.next_value()?,
            "fuse_unk" => self.fuse_unk = map.next_value()?,
            "byte_fallback" => self.byte_fallback = map.next_value()?,
            "ignore_merges" => self.ignore_merges = map.next_value()?,
            "dropout" => {
                if map.next_value::<Option<f64>>()?.is_some_and(|p| p != 0.0) {
                    return Err(Error::custom("model.dropout makes encoding random; that is not supported"));
                }
            }
            "continuing_subword_prefix" | "end_of_word_suffix" => {
                if map.next_value::<Option<String>>()?.is_some_and(|text| !text.is_empty()) {
                    return Err(Error::custom(format!("model.{key} is not supported")));
                }
            }
            _ => return Err(Error::custom(format!("model.{key} is not a setting we know"))),
        }
        Ok(())
    }

    fn check_kind<E: Error>(&self) -> Result<(), E> {
        match self.kind.as_deref() {
            None | Some("BPE") => Ok(()),
            Some(other) => Err(E::custom(format!("model.type is {other:?}, expected \"BPE\""))),
        }
    }

    fn finish<E: Error>(self) -> Result<ModelJson, E> {
        let vocabulary = self.vocabulary.ok_or_else(|| E::missing_field("model.vocab"))?;
        let early = |pairs: Vec<(Cow<str>, Cow<str>)>| {
            let mut joined = String::new();
            let triples =
                pairs.iter().enumerate().map(|(rank, (l, r))| triple(&vocabulary, rank, l, r, &mut joined));
            triples.collect::<Result<Vec<Triple>, String>>().map_err(E::custom)
        };
        let merges = match (self.merges, self.early_merges) {
            (Some(merges), _) => merges,
            (None, Some(pairs)) => early(pairs)?,
            (None, None) => return Err(E::missing_field("model.merges")),
        };
        Ok(ModelJson {
            vocabulary,
            merges,
            unk_token: self.unk_token,
            fuse_unk: self.fuse_unk.unwrap_or(false),
            byte_fallback: self.byte_fallback.unwrap_or(false),
            ignore_merges: self.ignore_merges.unwrap_or(false),
        })
    }
}

fn triple(
    vocabulary: &Vocabulary,
    rank: usize,
    left: &str,
    right: &str,
    joined: &mut String,
) -> Result<Triple, String> {
    joined.clear();
    joined.push_str(left);
    joined.push_str(right);
    let find = |name: &str| match vocabulary.find(name) {
        Some(id) => Ok(id),
        None => Err(format!(
            "merge {rank} ({left:?}, {right:?}) needs the token {name:?}, which is not in the vocabulary"
        )),
    };
    Ok([find(left)?, find(right)?, find(joined)?])
}

struct VocabularySeed;

impl<'de> DeserializeSeed<'de> for VocabularySeed {
    type Value = Vocabulary;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vocabulary, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for VocabularySeed {
    type Value = Vocabulary;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tokens and ids")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
        let mut text = String::new();
        let mut tokens = Vec::new();
        let mut largest = 0;
        while let Some((name, id)) = map.next_entry::<Text, u32>()? {
            let start = text.len();
            text.push_str(&name.0);
            if text.len() >= u32::MAX as usize {
                return Err(Error::custom("model.vocab has more than 4 GB of text"));
            }
            tokens.push((id, (start as u32, text.len() as u32)));
            largest = largest.max(id as usize);
        }
        // Ids may have holes, but not so many that a small file takes all the memory.
        if tokens.is_empty() || tokens.len() > MAX_TOKENS || largest > 2 * tokens.len() + 65536 {
            return Err(Error::custom(format!(
                "model.vocab has {} tokens with ids up to {largest}",
                tokens.len()
            )));
        }
        Vocabulary::new(tokens, text).map_err(|(a, b)| {
            Error::custom(if a == b {
                format!("model.vocab gives id {a} twice")
            } else {
                format!("model.vocab lists one token as {a} and as {b}")
            })
        })
    }
}

/// One merge: ["left", "right"], or "left right" in older files.
struct Pair<'de>(Cow<'de, str>, Cow<'de, str>);

/// A string that stays where it is in the file unless it holds escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Pair<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairVisitor;
        impl<'de> Visitor<'de> for PairVisitor {
            type Value = Pair<'de>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a merge: two strings, or one with a blank between")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Pair<'de>, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Pair(left.to_string().into(), right.to_string().into()))
                    }
                    _ => Err(E::custom(format!("merge {text:?} is not two tokens with a blank between"))),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Pair<'de>, A::Error> {
                let left: Option<Text> = seq.next_element()?;
                let right: Option<Text> = seq.next_element()?;
                match (left, right, seq.next_element::<IgnoredAny>()?) {
                    (Some(left), Some(right), None) => Ok(Pair(left.0, right.0)),
                    _ => Err(Error::custom("a merge must have two tokens")),
                }
            }
        }
        deserializer.deserialize_any(PairVisitor)
    }
}

struct MergesSeed<'a>(&'a Vocabulary);

impl<'de> DeserializeSeed<'de> for MergesSeed<'_> {
    type Value = Vec<Triple>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for MergesSeed<'_> {
    type Value = Vec<Triple>;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a list of merges")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut merges = Vec::new();
        let mut joined = String::new();
        while let Some(Pair(left, right)) = seq.next_element()? {
            merges.push(triple(self.0, merges.len(), &left, &right, &mut joined).map_err(Error::custom)?);
        }
        Ok(merges)
    }
}

struct PairsSeed;

impl<'de> DeserializeSeed<'de> for PairsSeed {
    type Value = Vec<(Cow<'de, str>, Cow<'de, str>)>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        let pairs = Vec::<Pair>::deserialize(deserializer)?;
        Ok(pairs.into_iter().map(|p| (p.0, p.1)).collect())
    }
}
