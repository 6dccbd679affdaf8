//! Byte-pair tokenizers: the Hugging Face library's own parts, put together here rather than through its `Tokenizer` type, so that
//! one vocabulary serves both readings of special tokens and no file setting (truncation, padding) changes what is encoded.

use ahash::AHashMap;
use tokenizers::models::bpe::{Merges, Vocab, BPE};
use tokenizers::normalizers::{Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, AddedVocabulary, Model, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizer, PreTokenizerWrapper,
    SplitDelimiterBehavior,
};

use crate::pieces::{Pieces, Rule};
use crate::tokenizer_json::{self, BpeJson};
use crate::{data, Failure, Outcome};

pub const PLAIN: u8 = 0;
pub const ADDED: u8 = 1;
pub const SPECIAL: u8 = 2;
pub const BYTE: u8 = 3;

const SPLIT_SPIECE: i32 = 0;
const SPLIT_SMOLLM: i32 = 1;
const SPLIT_LLAMA3: i32 = 2;

const LLAMA3_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A vocabulary that is not a tokenizer.json; bridge.h describes the fields.
pub struct BpeSpec<'a> {
    pub tokens: Vec<&'a str>,
    pub kinds: &'a [u8],
    pub pairs: &'a [[u32; 2]],
    pub unk_id: Option<u32>,
    pub split: i32,
    pub prefix_space: bool,
}

pub struct Tokenizer {
    model: BPE,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    parsed: AddedVocabulary,  // spellings of special tokens become the tokens
    literal: AddedVocabulary, // spellings of special tokens are text
    pieces: Pieces,
    pub unk_id: Option<u32>,
    pub first_id: Option<u32>,
    pub byte_level: bool,
}

pub struct TokenView<'a> {
    pub name: &'a str,
    pub bytes: &'a [u8],
    pub kind: u8,
    pub used: bool,
}

fn broken(what: &str) -> impl Fn(tokenizers::Error) -> Failure + '_ {
    move |e| Failure::Data(format!("{what}: {e}"))
}

fn added(content: &str, special: bool) -> AddedToken {
    AddedToken::from(content, special).normalized(false)
}

impl Tokenizer {
    pub fn from_json(text: &str) -> Outcome<Tokenizer> {
        let file = tokenizer_json::parse(text)?;
        let rule = tokenizer_json::decoding_rule(&file.decoder)?;
        let first_id = tokenizer_json::first_token(&file.post_processor)?;
        let model = build_json_model(file.model)?;
        let tokens: Vec<AddedToken> = file.added_tokens.iter().map(|t| t.token.clone()).collect();
        let mut parsed = AddedVocabulary::new();
        parsed.add_tokens(tokens, &model, file.normalizer.as_ref()).map_err(broken("added_tokens"))?;
        for t in &file.added_tokens {
            let got = parsed.token_to_id(&t.token.content, &model);
            if got != Some(t.id) {
                return data(format!("added_tokens: {:?} has id {}, but its place in the vocabulary gives {got:?}", t.token.content, t.id));
            }
        }
        let unk_id = model.unk_token.as_deref().and_then(|t| model.token_to_id(t));
        let pieces = Pieces::from_model(&model, &parsed, &rule)?;
        let byte_level = matches!(rule, Rule::ByteLevel);
        Ok(Tokenizer::assemble(model, file.normalizer, file.pre_tokenizer, parsed, pieces, unk_id, first_id, byte_level))
    }

    pub fn from_bpe(spec: BpeSpec) -> Outcome<Tokenizer> {
        let byte_level = spec.split != SPLIT_SPIECE;
        let model = build_spec_model(&spec)?;
        let (normalizer, pre_tokenizer) = build_spec_stages(&spec)?;
        let mut parsed = AddedVocabulary::new();
        let tokens = spec.tokens.iter().zip(spec.kinds);
        let tokens = tokens.filter(|(_, kind)| matches!(**kind, ADDED | SPECIAL)).map(|(text, kind)| added(text, *kind == SPECIAL));
        parsed.add_tokens(tokens.collect::<Vec<_>>(), &model, normalizer.as_ref()).map_err(broken("added tokens"))?;
        let pieces = Pieces::from_spec(&spec.tokens, spec.kinds, &if byte_level { Rule::ByteLevel } else { Rule::spiece() });
        Ok(Tokenizer::assemble(model, normalizer, pre_tokenizer, parsed, pieces, spec.unk_id, None, byte_level))
    }

    #[allow(clippy::too_many_arguments)]
    fn assemble(
        model: BPE,
        normalizer: Option<NormalizerWrapper>,
        pre_tokenizer: Option<PreTokenizerWrapper>,
        parsed: AddedVocabulary,
        pieces: Pieces,
        unk_id: Option<u32>,
        first_id: Option<u32>,
        byte_level: bool,
    ) -> Tokenizer {
        let mut literal = parsed.clone();
        literal.set_encode_special_tokens(true);
        Tokenizer { model, normalizer, pre_tokenizer, parsed, literal, pieces, unk_id, first_id, byte_level }
    }

    pub fn encode(&self, text: &str, parse_special: bool) -> Outcome<Vec<u32>> {
        let added = if parse_special { &self.parsed } else { &self.literal };
        let mut text = added.extract_and_normalize(self.normalizer.as_ref(), text);
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut text).map_err(broken("pre_tokenizer"))?;
        }
        text.tokenize(|piece| self.model.tokenize(piece.get())).map_err(broken("model"))?;
        let pieces = text.get_splits(OffsetReferential::Normalized, OffsetType::None);
        Ok(pieces.iter().flat_map(|(_, _, tokens)| tokens.iter().flatten().map(|t| t.id)).collect())
    }

    pub fn size(&self) -> usize {
        self.pieces.size()
    }

    pub fn token(&self, id: usize) -> TokenView<'_> {
        self.pieces.token(id)
    }

    pub fn find(&self, token: &str) -> Option<u32> {
        self.parsed.token_to_id(token, &self.model)
    }
}

fn build_json_model(json: BpeJson) -> Outcome<BPE> {
    let mut builder = BPE::builder().fuse_unk(json.fuse_unk).byte_fallback(json.byte_fallback).ignore_merges(json.ignore_merges);
    if let Some(unk) = json.unk_token {
        if !json.vocab.contains_key(&unk) {
            return data(format!("model.unk_token {unk:?} is not in the vocabulary"));
        }
        builder = builder.unk_token(unk);
    }
    if let Some(prefix) = json.continuing_subword_prefix {
        builder = builder.continuing_subword_prefix(prefix);
    }
    if let Some(suffix) = json.end_of_word_suffix {
        builder = builder.end_of_word_suffix(suffix);
    }
    builder.vocab_and_merges(json.vocab, json.merges).build().map_err(broken("model"))
}

fn build_spec_model(spec: &BpeSpec) -> Outcome<BPE> {
    let mut vocab: Vocab = AHashMap::with_capacity(spec.tokens.len());
    for (id, token) in spec.tokens.iter().enumerate() {
        if let Some(old) = vocab.insert(token.to_string(), id as u32) {
            return data(format!("tokens {old} and {id} have the same spelling {token:?}"));
        }
    }
    let name = |id: u32| match spec.tokens.get(id as usize) {
        Some(token) => Ok(token.to_string()),
        None => data(format!("a merge names token {id}, but there are only {}", spec.tokens.len())),
    };
    let mut merges: Merges = Vec::with_capacity(spec.pairs.len());
    for [left, right] in spec.pairs {
        merges.push((name(*left)?, name(*right)?));
    }
    let spiece = spec.split == SPLIT_SPIECE;
    let mut builder = BPE::builder().fuse_unk(spiece).byte_fallback(spiece).ignore_merges(spec.split == SPLIT_LLAMA3);
    if let (true, Some(unk)) = (spiece, spec.unk_id) {
        builder = builder.unk_token(name(unk)?);
    }
    builder.vocab_and_merges(vocab, merges).build().map_err(broken("merges"))
}

fn build_spec_stages(spec: &BpeSpec) -> Outcome<(Option<NormalizerWrapper>, Option<PreTokenizerWrapper>)> {
    let sequence = |stages| Some(PreTokenizerWrapper::Sequence(PreTokenizers::new(stages)));
    match spec.split {
        SPLIT_SPIECE => {
            let blanks: NormalizerWrapper = Replace::new(" ", "\u{2581}").map_err(broken("normalizer"))?.into();
            let prefix: NormalizerWrapper = Prepend::new("\u{2581}".into()).into();
            let both = || NormalizerWrapper::Sequence(Normalizers::new(vec![prefix, blanks.clone()]));
            Ok((Some(if spec.prefix_space { both() } else { blanks.clone() }), None))
        }
        SPLIT_SMOLLM => Ok((None, sequence(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()]))),
        SPLIT_LLAMA3 => {
            let pattern = SplitPattern::Regex(LLAMA3_PATTERN.into());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(broken("pre_tokenizer"))?;
            Ok((None, sequence(vec![split.into(), ByteLevel::new(false, true, false).into()])))
        }
        other => Err(Failure::Internal(format!("unknown split {other}"))),
    }
}
