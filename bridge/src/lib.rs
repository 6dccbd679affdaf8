//! C interface: include/bridge.h says what each function promises. Pointers are in this file and in grammar_ffi.rs only.

mod bpe;
mod grammar;
mod grammar_ffi;
mod grammar_source;
mod guard;
mod json;
mod model_json;
mod namespaces;
mod pieces;
mod python;
mod schema;
mod strftime;
mod template;
mod tokenizer;
mod tokenizer_json;
mod veil;
mod vocabulary;

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Once};

use template::ChatTemplate;
use tokenizer::{BpeSpec, Tokenizer};

/// What can go wrong, as the C side sees it.
pub enum Failure {
    Data(String),
    Unsupported(String),
    Limit(String),
    Internal(String),
}

impl Failure {
    pub fn map(self, words: impl FnOnce(String) -> String) -> Failure {
        match self {
            Failure::Data(text) => Failure::Data(words(text)),
            Failure::Unsupported(text) => Failure::Unsupported(words(text)),
            Failure::Limit(text) => Failure::Limit(words(text)),
            Failure::Internal(text) => Failure::Internal(words(text)),
        }
    }
}

pub type Outcome<T> = Result<T, Failure>;

pub fn data<T>(message: impl Into<String>) -> Outcome<T> {
    Err(Failure::Data(message.into()))
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct LbStr {
    data: *const u8,
    size: usize,
}

#[repr(C)]
pub struct LbBytes {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct LbIds {
    data: *mut u32,
    size: usize,
    capacity: usize,
}

#[repr(C)]
pub struct LbBpe {
    tokens: *const LbStr,
    kinds: *const u8,
    n_tokens: usize,
    merges: *const [u32; 3],
    n_merges: usize,
    unk_id: i64,
    split: i32,
    prefix_space: i32,
}

#[repr(C)]
pub struct LbToken {
    name: LbStr,
    bytes: LbStr,
    kind: u8,
}

impl LbStr {
    fn borrowed(bytes: &[u8]) -> LbStr {
        LbStr { data: bytes.as_ptr(), size: bytes.len() }
    }

    unsafe fn bytes<'a>(self) -> &'a [u8] {
        slice(self.data, self.size)
    }

    unsafe fn text<'a>(self, what: &str) -> Outcome<&'a str> {
        std::str::from_utf8(self.bytes())
            .map_err(|e| Failure::Data(format!("{what}: not UTF-8 at byte {}", e.valid_up_to())))
    }
}

impl LbBytes {
    fn owned(text: String) -> LbBytes {
        let mut bytes = std::mem::ManuallyDrop::new(text.into_bytes());
        LbBytes { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() }
    }
}

impl LbIds {
    fn owned(ids: Vec<u32>) -> LbIds {
        let mut ids = std::mem::ManuallyDrop::new(ids);
        LbIds { data: ids.as_mut_ptr(), size: ids.len(), capacity: ids.capacity() }
    }
}

unsafe fn slice<'a, T>(data: *const T, size: usize) -> &'a [T] {
    if size == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data, size)
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown panic".into())
}

/// Runs `work`, keeps panics inside, and reports the outcome. Panics are returned as text, so the default hook that prints them is
/// taken out once: this library is the only Rust code of the program.
unsafe fn guarded<T>(error: *mut LbBytes, work: impl FnOnce() -> Outcome<T>, done: impl FnOnce(T)) -> i32 {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        // The grammar engine puts in a hook of its own at its first call, which would put a backtrace into every message.
        let _ = llguidance::panic_utils::catch_unwind(|| Ok(()));
        std::panic::set_hook(Box::new(|_| {}));
    });
    let outcome = catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err(Failure::Internal(panic_text(&*payload))));
    let (code, text) = match outcome {
        Ok(value) => {
            done(value);
            return 0;
        }
        Err(Failure::Data(text)) => (1, text),
        Err(Failure::Unsupported(text)) => (2, text),
        Err(Failure::Limit(text)) => (3, text),
        Err(Failure::Internal(text)) => (4, text),
    };
    *error = LbBytes::owned(text);
    code
}

#[no_mangle]
pub unsafe extern "C" fn lb_bytes_free(bytes: LbBytes) {
    if !bytes.data.is_null() {
        drop(Vec::from_raw_parts(bytes.data, bytes.size, bytes.capacity));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lb_ids_free(ids: LbIds) {
    if !ids.data.is_null() {
        drop(Vec::from_raw_parts(ids.data, ids.size, ids.capacity));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_from_json(
    json: LbStr,
    out: *mut *mut Tokenizer,
    error: *mut LbBytes,
) -> i32 {
    guarded(
        error,
        || Tokenizer::from_json(json.text("tokenizer.json")?),
        |t| *out = Arc::into_raw(Arc::new(t)).cast_mut(),
    )
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_from_bpe(
    bpe: *const LbBpe,
    out: *mut *mut Tokenizer,
    error: *mut LbBytes,
) -> i32 {
    let work = || {
        let bpe = &*bpe;
        let mut tokens = Vec::with_capacity(bpe.n_tokens);
        for (id, token) in slice(bpe.tokens, bpe.n_tokens).iter().enumerate() {
            tokens.push(match std::str::from_utf8(token.bytes()) {
                Ok(text) => text,
                Err(_) => return data(format!("token {id}: its spelling is not UTF-8")),
            });
        }
        Tokenizer::from_bpe(BpeSpec {
            tokens,
            kinds: slice(bpe.kinds, bpe.n_tokens),
            merges: slice(bpe.merges, bpe.n_merges),
            unk_id: u32::try_from(bpe.unk_id).ok(),
            split: bpe.split,
            prefix_space: bpe.prefix_space != 0,
        })
    };
    guarded(error, work, |t| *out = Arc::into_raw(Arc::new(t)).cast_mut())
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_free(tokenizer: *mut Tokenizer) {
    if !tokenizer.is_null() {
        drop(Arc::from_raw(tokenizer));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_encode(
    tokenizer: *const Tokenizer,
    text: LbStr,
    parse_special: i32,
    out: *mut LbIds,
    error: *mut LbBytes,
) -> i32 {
    guarded(
        error,
        || (*tokenizer).encode(text.text("text")?, parse_special != 0),
        |ids| *out = LbIds::owned(ids),
    )
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_size(tokenizer: *const Tokenizer) -> usize {
    (*tokenizer).size()
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_token(tokenizer: *const Tokenizer, id: usize) -> LbToken {
    let tokenizer = &*tokenizer;
    let name = tokenizer.name(id);
    LbToken {
        name: LbStr::borrowed(name.unwrap_or("").as_bytes()),
        bytes: LbStr::borrowed(tokenizer.bytes(id)),
        kind: tokenizer.kind(id),
    }
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_find(tokenizer: *const Tokenizer, token: LbStr) -> i64 {
    std::str::from_utf8(token.bytes()).ok().and_then(|t| (*tokenizer).find(t)).map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_unk(tokenizer: *const Tokenizer) -> i64 {
    (*tokenizer).unk_id.map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_first(tokenizer: *const Tokenizer) -> i64 {
    (*tokenizer).first_id.map_or(-1, i64::from)
}

#[no_mangle]
pub unsafe extern "C" fn lb_tokenizer_byte_level(tokenizer: *const Tokenizer) -> i32 {
    (*tokenizer).byte_level as i32
}

#[no_mangle]
pub unsafe extern "C" fn lb_template_new(
    source: LbStr,
    out: *mut *mut ChatTemplate,
    error: *mut LbBytes,
) -> i32 {
    guarded(error, || ChatTemplate::new(source.text("chat template")?), |t| *out = Box::into_raw(Box::new(t)))
}

#[no_mangle]
pub unsafe extern "C" fn lb_template_free(chat: *mut ChatTemplate) {
    if !chat.is_null() {
        drop(Box::from_raw(chat));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lb_template_render(
    chat: *const ChatTemplate,
    messages: LbStr,
    tools: LbStr,
    options: LbStr,
    now: LbStr,
    out: *mut LbBytes,
    error: *mut LbBytes,
) -> i32 {
    let work = || (*chat).render(&request(messages, tools, options, now)?);
    guarded(error, work, |text| *out = LbBytes::owned(text))
}

#[no_mangle]
pub unsafe extern "C" fn lb_template_ids(
    chat: *const ChatTemplate,
    tokenizer: *const Tokenizer,
    messages: LbStr,
    tools: LbStr,
    options: LbStr,
    now: LbStr,
    out: *mut LbIds,
    error: *mut LbBytes,
) -> i32 {
    let work = || (*chat).ids(&*tokenizer, &request(messages, tools, options, now)?);
    guarded(error, work, |ids| *out = LbIds::owned(ids))
}

unsafe fn request<'a>(
    messages: LbStr,
    tools: LbStr,
    options: LbStr,
    now: LbStr,
) -> Outcome<template::Request<'a>> {
    Ok(template::Request {
        messages: messages.text("messages")?,
        tools: tools.text("tools")?,
        options: options.text("options")?,
        now: now.text("now")?,
    })
}
