//! Spellings and ids of a vocabulary, each held once: one text, spans by id, and a table of ids by spelling.

const EMPTY: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    tag: u32, // half of the hash: a miss rarely has to read a spelling
    id: u32,
}

pub struct Vocabulary {
    text: String,
    spans: Vec<(u32, u32)>, // by id; (EMPTY, EMPTY) where there is no token
    slots: Vec<Slot>,
    hasher: ahash::RandomState,
    count: usize,
}

impl Vocabulary {
    /// Err holds two ids with the same spelling, or one id with two.
    pub fn new(tokens: Vec<(u32, (u32, u32))>, text: String) -> Result<Vocabulary, (u32, u32)> {
        let size = tokens.iter().map(|t| t.0 as usize + 1).max().unwrap_or(0);
        let capacity = (2 * tokens.len()).next_power_of_two().max(16);
        let mut vocabulary = Vocabulary {
            text,
            spans: vec![(EMPTY, EMPTY); size],
            slots: vec![Slot { tag: 0, id: EMPTY }; capacity],
            hasher: ahash::RandomState::new(),
            count: tokens.len(),
        };
        for (id, span) in tokens {
            if vocabulary.spans[id as usize].0 != EMPTY {
                return Err((id, id));
            }
            vocabulary.spans[id as usize] = span;
            vocabulary.insert(id)?;
        }
        Ok(vocabulary)
    }

    fn insert(&mut self, id: u32) -> Result<(), (u32, u32)> {
        let name = self.name(id).unwrap_or("");
        let (tag, mut at) = self.place(name);
        while self.slots[at].id != EMPTY {
            let other = self.slots[at];
            if other.tag == tag && self.name(other.id) == Some(name) {
                return Err((other.id, id));
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = Slot { tag, id };
        Ok(())
    }

    fn place(&self, name: &str) -> (u32, usize) {
        let hash = self.hasher.hash_one(name.as_bytes());
        ((hash >> 32) as u32, hash as usize & (self.slots.len() - 1))
    }

    pub fn find(&self, name: &str) -> Option<u32> {
        let (tag, mut at) = self.place(name);
        loop {
            let slot = self.slots[at];
            if slot.id == EMPTY {
                return None;
            }
            if slot.tag == tag && self.name(slot.id) == Some(name) {
                return Some(slot.id);
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    pub fn name(&self, id: u32) -> Option<&str> {
        let (start, end) = *self.spans.get(id as usize)?;
        (start != EMPTY).then(|| &self.text[start as usize..end as usize])
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Largest id + 1.
    pub fn size(&self) -> usize {
        self.spans.len()
    }
}
