//! Reads tokenizer.json. The large part, the model, is read straight into the maps that the library's builder takes; the library's
//! own reader would hold it as a generic tree first, which costs most of the time of a start.

use ahash::AHashMap;
use serde_json::Value;
use tokenizers::models::bpe::{Merges, Vocab};
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper};

use serde::de::{Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::pieces::Rule;
use crate::{data, Failure, Outcome};

#[derive(Deserialize)]
pub struct AddedTokenWithId {
    pub id: u32,
    #[serde(flatten)]
    pub token: AddedToken,
}

#[derive(Deserialize)]
pub struct TokenizerJson {
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    pub added_tokens: Vec<AddedTokenWithId>,
    #[serde(default)]
    pub normalizer: Option<NormalizerWrapper>,
    #[serde(default)]
    pub pre_tokenizer: Option<PreTokenizerWrapper>,
    #[serde(default)]
    pub post_processor: Value,
    #[serde(default)]
    pub decoder: Value,
    pub model: BpeJson,
}

pub struct BpeJson {
    kind: Option<String>,
    pub vocab: Vocab,
    pub merges: Merges,
    dropout: Option<f32>,
    pub unk_token: Option<String>,
    pub continuing_subword_prefix: Option<String>,
    pub end_of_word_suffix: Option<String>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

pub fn parse(text: &str) -> Outcome<TokenizerJson> {
    let file: TokenizerJson = serde_json::from_str(text).map_err(|e| Failure::Data(format!("tokenizer.json: {e}")))?;
    match file.version.as_deref() {
        None | Some("1.0") => {}
        Some(other) => return Err(Failure::Unsupported(format!("tokenizer.json: version {other:?}, expected \"1.0\""))),
    }
    match file.model.kind.as_deref() {
        None | Some("BPE") => {}
        Some(other) => return Err(Failure::Unsupported(format!("tokenizer.json: model.type {other:?}, expected \"BPE\""))),
    }
    if file.model.vocab.is_empty() {
        return data("tokenizer.json: model.vocab is empty");
    }
    if file.model.dropout.is_some_and(|p| p != 0.0) {
        return Err(Failure::Unsupported("tokenizer.json: model.dropout makes encoding random".into()));
    }
    check_merges(&file.model)?;
    Ok(file)
}

/// The library's builder answers a merge that leads nowhere with a panic or a bare token; name the merge instead.
fn check_merges(model: &BpeJson) -> Outcome<()> {
    let prefix = model.continuing_subword_prefix.as_deref().unwrap_or("");
    let mut joined = String::new();
    for (rank, (left, right)) in model.merges.iter().enumerate() {
        for side in [left, right] {
            if !model.vocab.contains_key(side) {
                return data(format!("tokenizer.json: merge {rank} names {side:?}, which is not in the vocabulary"));
            }
        }
        let Some(tail) = right.strip_prefix(prefix) else {
            return data(format!("tokenizer.json: merge {rank}: {right:?} lacks the prefix {prefix:?}"));
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(tail);
        if !model.vocab.contains_key(&joined) {
            return data(format!("tokenizer.json: merge {rank} makes {joined:?}, which is not in the vocabulary"));
        }
    }
    Ok(())
}

/// How spellings become bytes, from the file's decoder.
pub fn decoding_rule(decoder: &Value) -> Outcome<Rule> {
    let unknown = |what: &Value| Err(Failure::Unsupported(format!("tokenizer.json: decoder {what} is not one we know")));
    match decoder["type"].as_str() {
        Some("ByteLevel") => return Ok(Rule::ByteLevel),
        Some("Metaspace") => return metaspace(decoder),
        Some("Sequence") => {}
        _ => return unknown(decoder),
    }
    let mut replace = Vec::new();
    let mut byte_fallback = false;
    for step in decoder["decoders"].as_array().into_iter().flatten() {
        match step["type"].as_str() {
            Some("Replace") => match (step["pattern"]["String"].as_str(), step["content"].as_str()) {
                (Some(from), Some(to)) if !from.is_empty() => replace.push((from.to_string(), to.to_string())),
                _ => return unknown(step),
            },
            Some("ByteFallback") => byte_fallback = true,
            // Both concern the text as a whole: Fuse joins, Strip takes off the blank that the normalizer put in front.
            Some("Fuse") | Some("Strip") => {}
            Some("ByteLevel") if replace.is_empty() && !byte_fallback => return Ok(Rule::ByteLevel),
            Some("Metaspace") => return metaspace(step),
            _ => return unknown(step),
        }
    }
    Ok(Rule::Spiece { replace, byte_fallback })
}

fn metaspace(decoder: &Value) -> Outcome<Rule> {
    match decoder["replacement"].as_str() {
        Some(mark) if !mark.is_empty() => Ok(Rule::Spiece { replace: vec![(mark.into(), " ".into())], byte_fallback: false }),
        _ => data("tokenizer.json: decoder Metaspace has no replacement"),
    }
}

/// The special token that the post-processor puts in front of a single text.
pub fn first_token(processor: &Value) -> Outcome<Option<u32>> {
    match processor["type"].as_str() {
        None if processor.is_null() => Ok(None),
        Some("ByteLevel") => Ok(None),
        Some("Sequence") => {
            for step in processor["processors"].as_array().into_iter().flatten() {
                if let Some(id) = first_token(step)? {
                    return Ok(Some(id));
                }
            }
            Ok(None)
        }
        Some("TemplateProcessing") => {
            let Some(name) = processor["single"][0]["SpecialToken"]["id"].as_str() else { return Ok(None) };
            match processor["special_tokens"][name]["ids"][0].as_u64().and_then(|id| u32::try_from(id).ok()) {
                Some(id) => Ok(Some(id)),
                None => data(format!("tokenizer.json: post_processor puts {name:?} first but gives it no id")),
            }
        }
        _ => Err(Failure::Unsupported(format!("tokenizer.json: post_processor {} is not one we know", processor["type"]))),
    }
}

struct Pairs(Merges);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;
        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a list of merges")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(Merge(left, right)) = seq.next_element()? {
                    pairs.push((left, right));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_seq(PairsVisitor)
    }
}

/// One merge: ["left", "right"], or "left right" in older files.
struct Merge(String, String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a merge: two strings, or one with a blank between")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => Ok(Merge(left.into(), right.into())),
                    _ => Err(E::custom(format!("merge {text:?} is not two tokens with a blank between"))),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let missing = || A::Error::custom("a merge has fewer than two tokens");
                let left = seq.next_element()?.ok_or_else(missing)?;
                let right = seq.next_element()?.ok_or_else(missing)?;
                match seq.next_element::<IgnoredAny>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(A::Error::custom("a merge has more than two tokens")),
                }
            }
        }
        deserializer.deserialize_any(MergeVisitor)
    }
}

impl<'de> Deserialize<'de> for BpeJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModelVisitor;
        impl<'de> Visitor<'de> for ModelVisitor {
            type Value = BpeJson;
            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("a model")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BpeJson, A::Error> {
                read_model(&mut map)
            }
        }
        deserializer.deserialize_map(ModelVisitor)
    }
}

fn read_model<'de, A: MapAccess<'de>>(map: &mut A) -> Result<BpeJson, A::Error> {
    let mut model = BpeJson {
        kind: None,
        vocab: AHashMap::new(),
        merges: Vec::new(),
        dropout: None,
        unk_token: None,
        continuing_subword_prefix: None,
        end_of_word_suffix: None,
        fuse_unk: false,
        byte_fallback: false,
        ignore_merges: false,
    };
    let mut foreign = false; // another model type spells its parts otherwise; its type is reported, not its parts
    while let Some(key) = map.next_key::<String>()? {
        match key.as_str() {
            "type" => {
                model.kind = map.next_value()?;
                foreign = model.kind.as_deref().is_some_and(|kind| kind != "BPE");
            }
            _ if foreign => drop(map.next_value::<IgnoredAny>()?),
            "vocab" => model.vocab = map.next_value()?,
            "merges" => model.merges = map.next_value::<Pairs>()?.0,
            "dropout" => model.dropout = map.next_value()?,
            "unk_token" => model.unk_token = map.next_value()?,
            "continuing_subword_prefix" => model.continuing_subword_prefix = map.next_value()?,
            "end_of_word_suffix" => model.end_of_word_suffix = map.next_value()?,
            "fuse_unk" => model.fuse_unk = map.next_value::<Option<bool>>()?.unwrap_or(false),
            "byte_fallback" => model.byte_fallback = map.next_value::<Option<bool>>()?.unwrap_or(false),
            "ignore_merges" => model.ignore_merges = map.next_value::<Option<bool>>()?.unwrap_or(false),
            _ => return Err(A::Error::custom(format!("model.{key} is not a setting we know"))),
        }
    }
    Ok(model)
}
