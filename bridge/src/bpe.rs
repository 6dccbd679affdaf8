//! Byte-pair encoding over a vocabulary whose merges are known by id. It answers exactly what the library's own model answers (the
//! tests below hold the two against each other) but is built without a string per token and merge, which is what a start waits for.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::path::{Path, PathBuf};

use tokenizers::models::bpe::BpeTrainer;
use tokenizers::{Model, Token};

use crate::vocabulary::Vocabulary;

const NONE: u32 = u32::MAX;
const NO_PAIR: u64 = u64::MAX;
const SHORT_WORD: usize = 20; // symbols; up to here a scan finds the next merge faster than a heap

/// left, right, what they make; the place in the list is the rank.
pub type Triple = [u32; 3];

#[derive(Clone, Copy)]
struct Merge {
    pair: u64,
    rank: u32,
    made: u32,
}

struct MergeTable {
    slots: Vec<Merge>,
    shift: u32,
}

impl MergeTable {
    fn new(merges: &[Triple]) -> MergeTable {
        let capacity = (2 * merges.len()).next_power_of_two().max(16);
        let empty = Merge { pair: NO_PAIR, rank: NONE, made: NONE };
        let mut table = MergeTable { slots: vec![empty; capacity], shift: 64 - capacity.trailing_zeros() };
        for (rank, [left, right, made]) in merges.iter().enumerate() {
            let pair = join(*left, *right);
            let at = table.place(pair);
            table.slots[at] = Merge { pair, rank: rank as u32, made: *made }; // a pair listed twice: the later rank counts
        }
        table
    }

    /// Where the pair is, or where it would go.
    fn place(&self, pair: u64) -> usize {
        let mut at = (pair.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        while self.slots[at].pair != pair && self.slots[at].pair != NO_PAIR {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    fn find(&self, left: u32, right: u32) -> (u32, u32) {
        let merge = self.slots[self.place(join(left, right))];
        (merge.rank, merge.made)
    }
}

fn join(left: u32, right: u32) -> u64 {
    (left as u64) << 32 | right as u64
}

#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    prev: u32,
    next: u32,
    rank: u32, // of the merge with the next symbol, NONE without one
    made: u32,
}

pub struct Settings {
    pub unk_id: Option<u32>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
    pub visible_blanks: bool, // ' ' in the text reads as U+2581, without rewriting the text first
}

pub struct Bpe {
    pub vocabulary: Vocabulary,
    merges: MergeTable,
    settings: Settings,
    ascii: [u32; 128], // ids of single characters
    bytes: [u32; 256], // ids of <0xNN>
}

impl Bpe {
    /// REQUIRES: every id in `merges` is in the vocabulary.
    pub fn new(vocabulary: Vocabulary, merges: &[Triple], settings: Settings) -> Bpe {
        let mut ascii = [NONE; 128];
        for (code, id) in ascii.iter_mut().enumerate() {
            let text = (code as u8 as char).to_string();
            let visible = settings.visible_blanks && text == " ";
            *id = vocabulary.find(if visible { "\u{2581}" } else { &text }).unwrap_or(NONE);
        }
        let mut bytes = [NONE; 256];
        if settings.byte_fallback {
            for (byte, id) in bytes.iter_mut().enumerate() {
                *id = vocabulary.find(&format!("<0x{byte:02X}>")).unwrap_or(NONE);
            }
        }
        Bpe { vocabulary, merges: MergeTable::new(merges), settings, ascii, bytes }
    }

    /// REQUIRES: fewer than 2^31 bytes.
    pub fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        if self.settings.ignore_merges {
            if let Some(id) = self.vocabulary.find(text) {
                ids.push(id);
                return;
            }
        }
        let mut symbols = self.symbols(text);
        if symbols.len() <= SHORT_WORD {
            self.merge_short(&mut symbols);
        } else {
            self.merge_long(&mut symbols);
        }
        ids.extend(symbols.iter().filter(|s| s.id != NONE).map(|s| s.id));
    }

    fn symbols(&self, text: &str) -> Vec<Symbol> {
        let mut ids: Vec<u32> = Vec::with_capacity(text.len());
        let mut unknown = false; // an unknown token is held back until the next known character, so that it can be fused
        let unk_id = self.settings.unk_id.unwrap_or(NONE);
        for (at, c) in text.char_indices() {
            let piece = &text[at..at + c.len_utf8()];
            let id = if c.is_ascii() {
                self.ascii[c as usize]
            } else {
                self.vocabulary.find(piece).unwrap_or(NONE)
            };
            if id != NONE {
                if std::mem::take(&mut unknown) {
                    ids.push(unk_id);
                }
                ids.push(id);
            } else if self.settings.byte_fallback && piece.bytes().all(|b| self.bytes[b as usize] != NONE) {
                ids.extend(piece.bytes().map(|b| self.bytes[b as usize]));
            } else if unk_id != NONE {
                if unknown && !self.settings.fuse_unk {
                    ids.push(unk_id);
                }
                unknown = true;
            }
        }
        if unknown {
            ids.push(unk_id);
        }
        let last = ids.len().wrapping_sub(1);
        let symbol = |(at, id): (usize, &u32)| {
            let (rank, made) = if at == last { (NONE, NONE) } else { self.merges.find(*id, ids[at + 1]) };
            let next = if at == last { NONE } else { at as u32 + 1 };
            Symbol { id: *id, prev: (at as u32).wrapping_sub(1), next, rank, made }
        };
        ids.iter().enumerate().map(symbol).collect()
    }

    fn merge_short(&self, symbols: &mut [Symbol]) {
        loop {
            let best = symbols.iter().enumerate().min_by_key(|(_, s)| s.rank).filter(|(_, s)| s.rank != NONE);
            let Some((at, _)) = best else { return };
            self.merge_at(symbols, at as u32);
        }
    }

    fn merge_long(&self, symbols: &mut [Symbol]) {
        let entry = |at: u32, rank: u32| Reverse((rank as u64) << 32 | at as u64);
        let first: Vec<_> = symbols
            .iter()
            .enumerate()
            .filter(|(_, s)| s.rank != NONE)
            .map(|(at, s)| entry(at as u32, s.rank))
            .collect();
        let mut queue = BinaryHeap::from(first);
        while let Some(Reverse(top)) = queue.pop() {
            let (rank, at) = ((top >> 32) as u32, top as u32);
            if symbols[at as usize].rank != rank {
                continue; // one of the two symbols has merged since
            }
            for changed in self.merge_at(symbols, at) {
                if changed != NONE && symbols[changed as usize].rank != NONE {
                    queue.push(entry(changed, symbols[changed as usize].rank));
                }
            }
        }
    }

    /// Merges the symbol with its next one; returns the places whose next merge is a new one.
    fn merge_at(&self, symbols: &mut [Symbol], at: u32) -> [u32; 2] {
        let here = symbols[at as usize];
        let gone = std::mem::replace(
            &mut symbols[here.next as usize],
            Symbol { id: NONE, prev: NONE, next: NONE, rank: NONE, made: NONE },
        );
        symbols[at as usize].id = here.made;
        symbols[at as usize].next = gone.next;
        if gone.next != NONE {
            symbols[gone.next as usize].prev = at;
        }
        self.look_up(symbols, at);
        if here.prev != NONE {
            self.look_up(symbols, here.prev);
        }
        [here.prev, at]
    }

    fn look_up(&self, symbols: &mut [Symbol], at: u32) {
        let next = symbols[at as usize].next;
        let merge = if next == NONE {
            (NONE, NONE)
        } else {
            self.merges.find(symbols[at as usize].id, symbols[next as usize].id)
        };
        (symbols[at as usize].rank, symbols[at as usize].made) = merge;
    }
}

/// What the library's table of added tokens asks of a model.
impl Model for Bpe {
    type Trainer = BpeTrainer;

    fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        let mut ids = Vec::new();
        self.encode(text, &mut ids);
        Ok(ids
            .into_iter()
            .map(|id| Token::new(id, self.id_to_token(id).unwrap_or_default(), (0, 0)))
            .collect())
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.vocabulary.find(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.vocabulary.name(id).map(str::to_string)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        (0..self.vocabulary.size() as u32).filter_map(|id| Some((self.id_to_token(id)?, id))).collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.vocabulary.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a vocabulary is not written by this program".into())
    }

    fn get_trainer(&self) -> BpeTrainer {
        BpeTrainer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::models::bpe::BPE;

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 33) as usize % n
        }
    }

    /// A random vocabulary: some characters, some bytes, and tokens that merges of earlier tokens make.
    fn random_vocabulary(random: &mut Random) -> (Vec<String>, Vec<(String, String)>) {
        let mut tokens: Vec<String> = vec!["<unk>".into()];
        let alphabet = ["a", "b", "c", "d", " ", "\u{2581}", "é", "東", "🙂"];
        tokens.extend(alphabet.iter().filter(|_| random.below(4) > 0).map(|s| s.to_string()));
        if tokens.len() < 3 {
            tokens.extend(["a".into(), "b".into()]);
            tokens.dedup();
        }
        let characters = tokens.len();
        if random.below(2) == 0 {
            tokens.extend((0..256).filter(|_| random.below(16) > 0).map(|b| format!("<0x{b:02X}>")));
        }
        let mut words: Vec<String> = tokens[1..characters].to_vec();
        let mut merges: Vec<(String, String)> = Vec::new();
        for _ in 0..random.below(40) {
            let (left, right) =
                (words[random.below(words.len())].clone(), words[random.below(words.len())].clone());
            let made = format!("{left}{right}");
            if !tokens.contains(&made) {
                tokens.push(made.clone());
                words.push(made);
            }
            if !merges.contains(&(left.clone(), right.clone())) {
                merges.push((left, right));
            }
        }
        (tokens, merges)
    }

    fn ours(tokens: &[String], merges: &[(String, String)], settings: Settings) -> Bpe {
        let mut text = String::new();
        let mut spans = Vec::new();
        for (id, token) in tokens.iter().enumerate() {
            spans.push((id as u32, (text.len() as u32, (text.len() + token.len()) as u32)));
            text.push_str(token);
        }
        let vocabulary = Vocabulary::new(spans, text).expect("distinct tokens");
        let find = |name: &str| vocabulary.find(name).expect("a token");
        let triples: Vec<Triple> =
            merges.iter().map(|(a, b)| [find(a), find(b), find(&format!("{a}{b}"))]).collect();
        Bpe::new(vocabulary, &triples, settings)
    }

    #[test]
    fn answers_what_the_library_answers() {
        let mut random = Random(7);
        let mut merged = 0;
        for round in 0..400 {
            let (tokens, merges) = random_vocabulary(&mut random);
            let (fuse, bytes, whole) = (random.below(2) == 0, random.below(2) == 0, random.below(4) == 0);
            let unk = random.below(3) > 0;
            let vocab: ahash::AHashMap<String, u32> =
                tokens.iter().enumerate().map(|(i, t)| (t.clone(), i as u32)).collect();
            let mut builder = BPE::builder().vocab_and_merges(vocab, merges.clone());
            builder = builder.fuse_unk(fuse).byte_fallback(bytes).ignore_merges(whole);
            if unk {
                builder = builder.unk_token("<unk>".into());
            }
            let theirs = builder.build().expect("a model");
            let unk_id = unk.then_some(0);
            let settings = Settings {
                unk_id,
                fuse_unk: fuse,
                byte_fallback: bytes,
                ignore_merges: whole,
                visible_blanks: false,
            };
            let ours = ours(&tokens, &merges, settings);
            for _ in 0..20 {
                let letters = ["a", "b", "c", "d", " ", "\u{2581}", "é", "東", "🙂", "x", "ñ", "ab", "cd"];
                let text: String =
                    (0..random.below(60)).map(|_| letters[random.below(letters.len())]).collect();
                let mut got = Vec::new();
                ours.encode(&text, &mut got);
                let want: Vec<u32> = theirs.tokenize(&text).expect("tokens").iter().map(|t| t.id).collect();
                assert_eq!(got, want, "round {round}, text {text:?}");
                merged += text.chars().count().saturating_sub(got.len());
            }
        }
        assert!(merged > 1000, "the vocabularies must make merges happen, {merged} did");
    }
}
