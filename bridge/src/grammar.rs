//! Grammars that bind what a model may say next (llguidance). Grammars come from clients: their size, the work to build them and the work of
//! each step are bounded.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use llguidance::api::{GrammarInit, ParserLimits, StopReason, TopLevelGrammar};
use llguidance::toktrie::{
    InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv, INVALID_TOKEN,
};
use llguidance::{Matcher, ParserFactory};
use serde_json::{json, Value};

use crate::guard::{self, Limits};
use crate::tokenizer::{Tokenizer, SPECIAL};
use crate::{data, grammar_source, schema, Failure, Outcome};

// Threads of grammars that were given up. They run at idle priority, but hold memory, those that took too much of it for ever: enough of
// them and no more grammars are built.
static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);
const MAX_GIVEN_UP: usize = 8;

const BUILD: Limits = Limits {
    what: "the grammar",
    memory: 256 << 20,
    time: Duration::from_secs(10),
    stack: 64 << 20,
    given_up: Some(&GIVEN_UP),
};

/// The engine's own budgets. Its defaults let one sequence hold half a gigabyte of lexer states.
fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        verbose_errors: false,
        ..Default::default()
    }
}

// Between the parts of a JSON text: one blank, or a new line and its indentation. No more, because small models like to go on with
// blanks for ever.
const JSON_BLANKS: &str = r"\x20|\r?\n[\x20\t]{0,32}";

// Faults are looked for in the parts of a schema, one by one, but not in more than this.
const MAX_TRIALS: usize = 100;

/// The vocabulary as the engine sees it.
struct Words {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    canonical: bool,
}

impl TokenizerEnv for Words {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let encode = |text: &str| match self.tokenizer.encode(text, false) {
            Ok(ids) if self.tokenizer.spells(&ids, text.as_bytes()) => ids,
            _ => self.trie.greedy_tokenize(text.as_bytes()),
        };
        self.trie.tokenize_with_greedy_fallback(bytes, encode)
    }

    fn tokenize_is_canonical(&self) -> bool {
        self.canonical
    }
}

/// What all grammars over one vocabulary share.
pub struct Env {
    factory: ParserFactory,
    stops: Vec<u32>,
    hidden: Vec<u32>, // bits of the special tokens that do not end a text
    size: usize,
}

impl Env {
    pub fn new(tokenizer: Arc<Tokenizer>, stops: &[u32]) -> Outcome<Env> {
        let size = tokenizer.size();
        if let Some(stop) = stops.iter().find(|id| **id as usize >= size) {
            return Err(Failure::Internal(format!(
                "stop token {stop} lies outside of the vocabulary of {size}"
            )));
        }
        let special = |id: u32| tokenizer.kind(id as usize) == SPECIAL || stops.contains(&id);
        let words: Vec<Vec<u8>> = (0..size as u32).map(|id| spelling(&tokenizer, id, special(id))).collect();
        let mut hidden = vec![0u32; size.div_ceil(32)];
        for id in (0..size as u32).filter(|id| special(*id) && !stops.contains(id)) {
            hidden[id as usize / 32] |= 1 << (id % 32);
        }
        let info = TokRxInfo::new(size as u32, stops.first().copied().unwrap_or(INVALID_TOKEN));
        let mut trie = TokTrie::from(&info, &words);
        if !stops.is_empty() {
            trie = trie.with_eos_tokens(stops);
        }
        // Forced text is forced as the tokens that the tokenizer itself would make; not where it adds blanks.
        let probe = "{\"a\": 1}";
        let canonical =
            tokenizer.encode(probe, false).is_ok_and(|ids| tokenizer.spells(&ids, probe.as_bytes()));
        let words: TokEnv = Arc::new(Words { tokenizer, trie, canonical });
        let caps = InferenceCapabilities { ff_tokens: canonical, ..Default::default() };
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&words, caps, &slices).map_err(engine_fault)?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(Env { factory, stops: stops.to_vec(), hidden, size })
    }
}

/// Special tokens are out of reach of text: behind a byte that UTF-8 has not.
fn spelling(tokenizer: &Tokenizer, id: u32, special: bool) -> Vec<u8> {
    let bytes = tokenizer.bytes(id as usize);
    match (special, bytes.first()) {
        (true, Some(_)) => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        (false, Some(&TokTrie::SPECIAL_TOKEN_MARKER)) => Vec::new(),
        _ => bytes.to_vec(),
    }
}

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    JsonSchema,
    Regex,
    Lark,
    Trusted, // Lark from this program: may name special tokens
}

pub struct Grammar {
    env: Arc<Env>,
    start: Mutex<Matcher>,
    specials: bool,
}

impl Grammar {
    pub fn new(env: Arc<Env>, kind: Kind, source: &str) -> Outcome<Grammar> {
        let prepared = match kind {
            Kind::JsonSchema => Prepared::Schema(schema::parse(source)?),
            Kind::Regex => Prepared::Regex(grammar_source::regex(source)?),
            Kind::Lark => Prepared::Lark(grammar_source::lark(source)?),
            Kind::Trusted => Prepared::Lark(source.to_string()),
        };
        let given_up = GIVEN_UP.load(Ordering::Relaxed);
        if given_up >= MAX_GIVEN_UP {
            return Err(Failure::Limit(format!(
                "{given_up} grammars had to be given up and still hold memory or a processor: no more are built until some of them end"
            )));
        }
        let builder = env.clone();
        let specials = kind == Kind::Trusted;
        let start = guard::run(BUILD, move || build(&builder, prepared)).outcome?;
        Ok(Grammar { env, start: Mutex::new(start), specials })
    }

    pub fn begin(&self) -> Sequence {
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        Sequence {
            env: self.env.clone(),
            matcher: start.deep_clone(),
            specials: self.specials,
            length: 0,
            ended: false,
        }
    }
}

enum Prepared {
    Schema(Value),
    Regex(String),
    Lark(String),
}

fn build(env: &Env, prepared: Prepared) -> Outcome<Matcher> {
    match prepared {
        Prepared::Schema(schema) => match matcher(env, schema_grammar(&schema)) {
            Ok(matcher) => Ok(matcher),
            Err(fault) => Err(located(env, &schema, fault)),
        },
        Prepared::Regex(regex) => named("regex", matcher(env, TopLevelGrammar::from_regex(&regex))),
        Prepared::Lark(lark) => named("grammar", matcher(env, TopLevelGrammar::from_lark(lark))),
    }
}

fn named(what: &str, outcome: Outcome<Matcher>) -> Outcome<Matcher> {
    outcome.map_err(|fault| fault.map(|text| format!("{what}: {text}")))
}

fn schema_grammar(schema: &Value) -> TopLevelGrammar {
    let mut schema = schema.clone();
    if schema == Value::Bool(true) {
        schema = json!({});
    }
    if let Value::Object(map) = &mut schema {
        map.insert("x-guidance".into(), json!({"whitespace_pattern": JSON_BLANKS}));
    }
    TopLevelGrammar::from_json_schema(schema)
}

/// A matcher at its start that has at least one way to go on.
fn matcher(env: &Env, grammar: TopLevelGrammar) -> Outcome<Matcher> {
    let parser = env
        .factory
        .create_parser_from_init_default(GrammarInit::Serialized(grammar))
        .map_err(engine_fault)?;
    let mut matcher = Matcher::new(Ok(parser));
    if let Some(fault) = matcher.get_error() {
        return Err(classified(fault));
    }
    match matcher.compute_mask_or_eos() {
        Ok(mask) if !mask.is_zero() => Ok(matcher),
        Ok(_) => data("no text of this vocabulary fits it"),
        Err(e) if stuck(&e) => data("no text of this vocabulary fits it"),
        Err(e) => Err(step_fault(e)),
    }
}

/// The engine says what is wrong, but not where. The deepest part that fails in the same way by itself is the place.
fn located(env: &Env, root: &Value, fault: Failure) -> Failure {
    let mut path = "#".to_string();
    let mut fault = fault;
    let mut at = root.clone();
    let mut trials = 0;
    while let Some((place, part, inner)) = failing_part(env, root, &mut at, &mut trials) {
        path = format!("{path}/{place}");
        at = part;
        fault = inner;
    }
    fault.map(|text| format!("JSON schema, {path}: {text}"))
}

fn failing_part(
    env: &Env,
    root: &Value,
    schema: &mut Value,
    trials: &mut usize,
) -> Option<(String, Value, Failure)> {
    let mut found = None;
    schema::for_each_child(schema, |place, child| {
        *trials += 1;
        if found.is_some() || *trials > MAX_TRIALS || child.is_boolean() {
            return;
        }
        let mut alone = child.clone();
        if let (Value::Object(map), Value::Object(root)) = (&mut alone, root) {
            for shared in ["$defs", "definitions", "$id", "id", "$schema"] {
                if let (Some(value), false) = (root.get(shared), map.contains_key(shared)) {
                    map.insert(shared.into(), value.clone());
                }
            }
        }
        match matcher(env, schema_grammar(&alone)) {
            // A reference to something that only the whole schema has says nothing about the part.
            Err(Failure::Data(text)) if text.contains("Pointer '") => {}
            Err(fault @ (Failure::Data(_) | Failure::Unsupported(_))) => {
                found = Some((place, child.clone(), fault))
            }
            _ => {}
        }
    });
    found
}

fn engine_fault(error: impl std::fmt::Display) -> Failure {
    classified(format!("{error:#}"))
}

/// The engine has one kind of error; its words tell them apart.
fn classified(text: String) -> Failure {
    let text = text.split("\n<").next().unwrap_or_default();
    let text = grammar_source::brief(text);
    if let Some(words) = text.strip_prefix("panic: ") {
        return Failure::Data(format!("the grammar engine gives up on it: {words}"));
    }
    let has = |words: &[&str]| words.iter().any(|w| text.contains(w));
    if has(&["oneOf constraints are not supported"]) {
        let text =
            "oneOf is only supported where its parts cannot overlap; anyOf is what a text can be held to";
        return Failure::Unsupported(text.into());
    }
    if has(&[
        "too large",
        "fuel",
        "Current row has",
        "too many",
        "exceeded",
        "too complex",
        "TooComplex",
        "limit",
    ]) {
        return Failure::Limit(text);
    }
    if has(&["not supported", "Unimplemented"]) {
        return Failure::Unsupported(text);
    }
    Failure::Data(text)
}

/// No token goes on with the text.
fn stuck(error: &impl std::fmt::Display) -> bool {
    error.to_string().contains("NoExtensionBias")
}

fn step_fault(error: impl std::fmt::Display) -> Failure {
    if stuck(&error) {
        return Failure::Data("no token of this vocabulary goes on with the text".into());
    }
    match engine_fault(error) {
        Failure::Limit(text) => Failure::Limit(format!("the grammar takes too much work: {text}")),
        other => other,
    }
}

/// One text under a grammar.
pub struct Sequence {
    env: Arc<Env>,
    matcher: Matcher,
    specials: bool,
    length: usize, // tokens taken
    ended: bool,   // the last of them is a stop token
}

impl Sequence {
    pub fn fork(&self) -> Sequence {
        let matcher = self.matcher.deep_clone();
        Sequence {
            env: self.env.clone(),
            matcher,
            specials: self.specials,
            length: self.length,
            ended: self.ended,
        }
    }

    /// Bits of the tokens that may come next; the stop tokens when the text is or may be complete.
    pub fn mask(&mut self, bits: &mut [u32]) -> Outcome<()> {
        if bits.len() != self.env.size.div_ceil(32) {
            return Err(Failure::Internal(format!(
                "a mask of {} words for {} tokens",
                bits.len(),
                self.env.size
            )));
        }
        bits.fill(0);
        if self.complete() {
            self.env.stops.iter().for_each(|id| bits[*id as usize / 32] |= 1 << (id % 32));
            return Ok(());
        }
        let mask = self.matcher.compute_mask().map_err(step_fault)?;
        bits.copy_from_slice(&mask.as_slice()[..bits.len()]);
        if !self.specials {
            bits.iter_mut().zip(&self.env.hidden).for_each(|(bit, hidden)| *bit &= !hidden);
        }
        Ok(())
    }

    /// How many of the ids fit, from the front on; those are taken. The engine never sees a stop token: it would take a second one.
    pub fn consume(&mut self, ids: &[u32]) -> Outcome<usize> {
        if self.ended {
            return Ok(0);
        }
        let fits = |id: &u32| (*id as usize) < self.env.size && (self.specials || !self.hides(*id));
        let env = self.env.clone();
        let stops = &env.stops;
        let count = ids.iter().take_while(|id| fits(id) && !stops.contains(id)).count();
        let mut taken = 0;
        if count > 0 && !self.complete() {
            taken = self.matcher.try_consume_tokens(&ids[..count]).map_err(step_fault)?;
        }
        if taken == count && ids.get(count).is_some_and(|id| stops.contains(id)) && self.accepting()? {
            self.ended = true;
            taken += 1;
        }
        self.length += taken;
        Ok(taken)
    }

    fn hides(&self, id: u32) -> bool {
        self.env.hidden[id as usize / 32] >> (id % 32) & 1 == 1
    }

    pub fn rollback(&mut self, count: usize) -> Outcome<()> {
        if count > self.length {
            return data(format!("cannot take back {count} tokens of {}", self.length));
        }
        self.length -= count;
        let told = count - (self.ended && count > 0) as usize;
        self.ended &= count == 0;
        self.matcher.rollback(told).map_err(step_fault)
    }

    /// Tokens that must come next whatever the model thinks.
    pub fn forced(&mut self) -> Vec<u32> {
        if self.complete() {
            return Vec::new();
        }
        self.matcher.compute_ff_tokens()
    }

    /// The text so far is a whole one.
    pub fn accepting(&mut self) -> Outcome<bool> {
        if self.complete() {
            return Ok(true);
        }
        self.matcher.is_accepting().map_err(step_fault)
    }

    /// Nothing but the end may come.
    pub fn complete(&self) -> bool {
        self.ended || matches!(self.matcher.stop_reason(), StopReason::NoExtension)
    }
}
