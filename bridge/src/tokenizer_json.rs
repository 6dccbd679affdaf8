//! Reads tokenizer.json. Added tokens, normalizer and pre-tokenizer are the library's types; the model is ours (model_json.rs).

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper};

use crate::bpe::{Bpe, Settings};
use crate::model_json::ModelJson;
use crate::pieces::Rule;
use crate::vocabulary::Vocabulary;
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
    pub model: ModelJson,
}

pub fn parse(text: &str) -> Outcome<TokenizerJson> {
    let file: TokenizerJson =
        serde_json::from_str(text).map_err(|e| Failure::Data(format!("tokenizer.json: {e}")))?;
    match file.version.as_deref() {
        None | Some("1.0") => {}
        Some(other) => {
            return Err(Failure::Unsupported(format!("tokenizer.json: version {other:?}, expected \"1.0\"")))
        }
    }
    Ok(file)
}

/// The model and the id of its unknown token.
pub fn model(json: ModelJson, visible_blanks: bool) -> Outcome<(Bpe, Option<u32>)> {
    let vocabulary: Vocabulary = json.vocabulary;
    let unk_id = match &json.unk_token {
        None => None,
        Some(name) => match vocabulary.find(name) {
            Some(id) => Some(id),
            None => {
                return data(format!("tokenizer.json: model.unk_token {name:?} is not in the vocabulary"))
            }
        },
    };
    let settings = Settings {
        unk_id,
        fuse_unk: json.fuse_unk,
        byte_fallback: json.byte_fallback,
        ignore_merges: json.ignore_merges,
        visible_blanks,
    };
    Ok((Bpe::new(vocabulary, &json.merges, settings), unk_id))
}

/// How spellings become bytes, from the file's decoder.
pub fn decoding_rule(decoder: &Value) -> Outcome<Rule> {
    let unknown = |what: &Value| {
        Err(Failure::Unsupported(format!("tokenizer.json: decoder {what} is not one we know")))
    };
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
                (Some(from), Some(to)) if !from.is_empty() => {
                    replace.push((from.to_string(), to.to_string()))
                }
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
        Some(mark) if !mark.is_empty() => {
            Ok(Rule::Spiece { replace: vec![(mark.into(), " ".into())], byte_fallback: false })
        }
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
                None => {
                    data(format!("tokenizer.json: post_processor puts {name:?} first but gives it no id"))
                }
            }
        }
        _ => Err(Failure::Unsupported(format!(
            "tokenizer.json: post_processor {} is not one we know",
            processor["type"]
        ))),
    }
}
