//! Byte-pair tokenizers, put together from the Hugging Face library's parts (added tokens, normalizers, pre-tokenizers) rather than
//! through its `Tokenizer` type, so that one vocabulary serves both readings of special tokens and no setting of a file (truncation,
//! padding) changes what is encoded.

use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, AddedVocabulary, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizer,
    PreTokenizerWrapper, SplitDelimiterBehavior,
};

use crate::bpe::{Bpe, Settings, Triple};
use crate::pieces::{Decoder, Pieces, Rule};
use crate::tokenizer_json;
use crate::vocabulary::Vocabulary;
use crate::{data, Failure, Outcome};

pub const PLAIN: u8 = 0;
pub const ADDED: u8 = 1;
pub const SPECIAL: u8 = 2;
pub const BYTE: u8 = 3;

const SPLIT_SPIECE: i32 = 0;
const SPLIT_SMOLLM: i32 = 1;
const SPLIT_LLAMA3: i32 = 2;

const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const MAX_TEXT: usize = 1 << 30;

/// A vocabulary that is not a tokenizer.json; bridge.h describes the fields.
pub struct BpeSpec<'a> {
    pub tokens: Vec<&'a str>,
    pub kinds: &'a [u8],
    pub merges: &'a [Triple],
    pub unk_id: Option<u32>,
    pub split: i32,
    pub prefix_space: bool,
}

pub struct Tokenizer {
    model: Bpe,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    parsed: AddedVocabulary,  // spellings of special tokens become the tokens
    literal: AddedVocabulary, // spellings of special tokens are text
    pieces: Pieces,
    pub unk_id: Option<u32>,
    pub first_id: Option<u32>,
    pub byte_level: bool,
}

pub fn broken(what: &str) -> impl Fn(tokenizers::Error) -> Failure + '_ {
    move |e| Failure::Data(format!("{what}: {e}"))
}

impl Tokenizer {
    pub fn from_json(text: &str) -> Outcome<Tokenizer> {
        let file = tokenizer_json::parse(text)?;
        let rule = tokenizer_json::decoding_rule(&file.decoder)?;
        let first_id = tokenizer_json::first_token(&file.post_processor)?;
        let mut stages = Stages { normalizer: file.normalizer, pre_tokenizer: file.pre_tokenizer };
        let only_original = file.added_tokens.iter().all(|t| !t.token.normalized);
        let visible_blanks = only_original && stages.only_show_blanks();
        let (model, unk_id) = tokenizer_json::model(file.model, visible_blanks)?;
        let tokens: Vec<AddedToken> = file.added_tokens.iter().map(|t| t.token.clone()).collect();
        let mut parsed = AddedVocabulary::new();
        parsed.add_tokens(tokens, &model, stages.normalizer.as_ref()).map_err(broken("added_tokens"))?;
        for t in &file.added_tokens {
            let got = parsed.token_to_id(&t.token.content, &model);
            if got != Some(t.id) {
                return data(format!(
                    "tokenizer.json: added_tokens gives {:?} the id {}, but its place in the vocabulary is {}",
                    t.token.content,
                    t.id,
                    got.map_or("nowhere".into(), |id| id.to_string())
                ));
            }
        }
        if visible_blanks {
            stages = Stages { normalizer: None, pre_tokenizer: None };
        }
        let pieces = decoded(&model, &parsed, &rule)?;
        let byte_level = matches!(rule, Rule::ByteLevel);
        Ok(Tokenizer::assemble(model, stages, parsed, pieces, Facts { unk_id, first_id, byte_level }))
    }

    pub fn from_bpe(spec: BpeSpec) -> Outcome<Tokenizer> {
        let byte_level = spec.split != SPLIT_SPIECE;
        let model = spec_model(&spec)?;
        let stages = spec_stages(&spec)?;
        let added = |text: &str, special| AddedToken::from(text, special).normalized(false);
        let tokens = spec.tokens.iter().zip(spec.kinds).filter(|(_, kind)| matches!(**kind, ADDED | SPECIAL));
        let tokens: Vec<AddedToken> = tokens.map(|(text, kind)| added(text, *kind == SPECIAL)).collect();
        let mut parsed = AddedVocabulary::new();
        parsed.add_tokens(tokens, &model, stages.normalizer.as_ref()).map_err(broken("added tokens"))?;
        let rule = if byte_level { Rule::ByteLevel } else { Rule::spiece() };
        let decoder = Decoder::new(&rule);
        let mut pieces = Pieces::default();
        for (token, kind) in spec.tokens.iter().zip(spec.kinds) {
            pieces.push(token, *kind, &decoder);
        }
        Ok(Tokenizer::assemble(
            model,
            stages,
            parsed,
            pieces,
            Facts { unk_id: spec.unk_id, first_id: None, byte_level },
        ))
    }

    fn assemble(
        model: Bpe,
        stages: Stages,
        parsed: AddedVocabulary,
        pieces: Pieces,
        facts: Facts,
    ) -> Tokenizer {
        let mut literal = parsed.clone();
        literal.set_encode_special_tokens(true);
        Tokenizer {
            model,
            normalizer: stages.normalizer,
            pre_tokenizer: stages.pre_tokenizer,
            parsed,
            literal,
            pieces,
            unk_id: facts.unk_id,
            first_id: facts.first_id,
            byte_level: facts.byte_level,
        }
    }

    pub fn encode(&self, text: &str, parse_special: bool) -> Outcome<Vec<u32>> {
        if text.len() > MAX_TEXT {
            return Err(Failure::Limit(format!("a text of {} bytes, the limit is {MAX_TEXT}", text.len())));
        }
        let added = if parse_special { &self.parsed } else { &self.literal };
        let mut text = added.extract_and_normalize(self.normalizer.as_ref(), text);
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut text).map_err(broken("pre_tokenizer"))?;
        }
        let mut ids = Vec::new();
        for (piece, _, token) in text.get_splits(OffsetReferential::Normalized, OffsetType::None) {
            match token {
                Some(tokens) => ids.extend(tokens.iter().map(|t| t.id)),
                None => self.model.encode(piece, &mut ids),
            }
        }
        Ok(ids)
    }

    /// Cuts `text` at the special tokens in it. The parts between are text to their last byte: `restore` turns each into what it
    /// stands for, and it is encoded without special tokens.
    pub fn encode_pieces(&self, text: &str, restore: impl Fn(&str) -> String) -> Outcome<Vec<u32>> {
        let mut ids = Vec::new();
        let mut plain = String::new();
        for (piece, special) in self.cut(text) {
            let Some(id) = special else {
                plain.push_str(&piece);
                continue;
            };
            ids.extend(self.encode(&restore(&std::mem::take(&mut plain)), false)?);
            ids.push(id);
        }
        ids.extend(self.encode(&restore(&plain), false)?);
        Ok(ids)
    }

    /// `text` in parts, each with the special token that it spells.
    pub fn cut(&self, text: &str) -> Vec<(String, Option<u32>)> {
        let cut = self.parsed.extract_and_normalize(None::<&NormalizerWrapper>, text);
        let pieces = cut.get_splits(OffsetReferential::Normalized, OffsetType::None);
        let special = |tokens: &Vec<tokenizers::Token>| {
            tokens.first().map(|t| t.id).filter(|id| self.kind(*id as usize) == SPECIAL)
        };
        pieces
            .iter()
            .map(|(piece, _, tokens)| (piece.to_string(), tokens.as_ref().and_then(special)))
            .collect()
    }

    pub fn special_tokens(&self) -> Vec<u32> {
        (0..self.size() as u32).filter(|id| self.kind(*id as usize) == SPECIAL).collect()
    }

    /// Whether the ids decode to just these bytes.
    pub fn spells(&self, ids: &[u32], bytes: &[u8]) -> bool {
        let rest = ids.iter().try_fold(bytes, |rest, id| rest.strip_prefix(self.bytes(*id as usize)));
        rest.is_some_and(<[u8]>::is_empty)
    }

    /// Largest id + 1.
    pub fn size(&self) -> usize {
        self.pieces.size()
    }

    /// None where the vocabulary has a hole.
    pub fn name(&self, id: usize) -> Option<&str> {
        let added = || self.parsed.get_added_tokens_decoder().get(&(id as u32)).map(|t| t.content.as_str());
        self.model.vocabulary.name(id as u32).or_else(added)
    }

    pub fn bytes(&self, id: usize) -> &[u8] {
        self.pieces.bytes(id)
    }

    pub fn kind(&self, id: usize) -> u8 {
        self.pieces.kind(id)
    }

    pub fn find(&self, token: &str) -> Option<u32> {
        self.parsed.token_to_id(token, &self.model)
    }
}

struct Facts {
    unk_id: Option<u32>,
    first_id: Option<u32>,
    byte_level: bool,
}

struct Stages {
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
}

impl Stages {
    /// Whether all they do is to write blanks as U+2581, which the model can do while it reads. A split on blanks after that finds none.
    fn only_show_blanks(&self) -> bool {
        let replace =
            serde_json::json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
        let shows = serde_json::to_value(&self.normalizer).is_ok_and(|n| n == replace);
        let split = |value: serde_json::Value| {
            value["type"] == "Split" && value["pattern"] == serde_json::json!({"String": " "})
        };
        let idle = serde_json::to_value(&self.pre_tokenizer).is_ok_and(|p| p.is_null() || split(p));
        shows && idle
    }
}

/// Bytes and kinds of every id of a tokenizer.json.
fn decoded(model: &Bpe, added: &AddedVocabulary, rule: &Rule) -> Outcome<Pieces> {
    let decoder = Decoder::new(rule);
    let added = added.get_added_tokens_decoder();
    let size = added.keys().map(|id| *id as usize + 1).max().unwrap_or(0).max(model.vocabulary.size());
    let mut pieces = Pieces::default();
    for id in 0..size as u32 {
        let own = added.get(&id);
        let name = model.vocabulary.name(id).or_else(|| own.map(|t| t.content.as_str())).unwrap_or("");
        let kind = match own {
            Some(token) if token.special => SPECIAL,
            Some(_) => ADDED,
            None if decoder.byte(name).is_some() => BYTE,
            None => PLAIN,
        };
        pieces.push(name, kind, &decoder);
    }
    Ok(pieces)
}

fn spec_model(spec: &BpeSpec) -> Outcome<Bpe> {
    let mut text = String::with_capacity(spec.tokens.iter().map(|t| t.len()).sum());
    let mut spans = Vec::with_capacity(spec.tokens.len());
    for (id, token) in spec.tokens.iter().enumerate() {
        spans.push((id as u32, (text.len() as u32, (text.len() + token.len()) as u32)));
        text.push_str(token);
    }
    if u32::try_from(text.len()).is_err() {
        return Err(Failure::Limit("a vocabulary of more than 4 GB".into()));
    }
    let vocabulary = match Vocabulary::new(spans, text) {
        Ok(vocabulary) => vocabulary,
        Err((a, b)) => {
            return data(format!("tokens {a} and {b} have the same spelling {:?}", spec.tokens[b as usize]))
        }
    };
    if let Some(rank) = spec.merges.iter().position(|m| m.iter().any(|id| *id as usize >= spec.tokens.len()))
    {
        return Err(Failure::Internal(format!("merge {rank} names a token beyond the vocabulary")));
    }
    let spiece = spec.split == SPLIT_SPIECE;
    let settings = Settings {
        unk_id: spec.unk_id.filter(|_| spiece),
        fuse_unk: spiece,
        byte_fallback: spiece,
        ignore_merges: spec.split == SPLIT_LLAMA3,
        visible_blanks: spiece && !spec.prefix_space,
    };
    Ok(Bpe::new(vocabulary, spec.merges, settings))
}

fn spec_stages(spec: &BpeSpec) -> Outcome<Stages> {
    let sequence = |stages| Some(PreTokenizerWrapper::Sequence(PreTokenizers::new(stages)));
    let (normalizer, pre_tokenizer) = match spec.split {
        SPLIT_SPIECE if spec.prefix_space => {
            let blanks = Replace::new(" ", "\u{2581}").map_err(broken("normalizer"))?;
            let both = vec![Prepend::new("\u{2581}".into()).into(), blanks.into()];
            (Some(NormalizerWrapper::Sequence(Normalizers::new(both))), None)
        }
        SPLIT_SPIECE => (None, None),
        SPLIT_SMOLLM => {
            (None, sequence(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()]))
        }
        SPLIT_LLAMA3 => {
            let pattern = SplitPattern::Regex(LLAMA3_PATTERN.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                .map_err(broken("pre_tokenizer"))?;
            (None, sequence(vec![split.into(), ByteLevel::new(false, true, false).into()]))
        }
        other => return Err(Failure::Internal(format!("unknown split {other}"))),
    };
    Ok(Stages { normalizer, pre_tokenizer })
}
