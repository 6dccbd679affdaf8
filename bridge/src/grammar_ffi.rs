//! C interface of grammars; include/bridge.h says what each function promises.

use std::sync::Arc;

use crate::grammar::{Env, Grammar, Kind, Sequence};
use crate::tokenizer::Tokenizer;
use crate::{guarded, slice, Failure, LbBytes, LbIds, LbStr};

#[no_mangle]
pub unsafe extern "C" fn lb_grammar_env_new(
    tokenizer: *const Tokenizer,
    stops: *const u32,
    n_stops: usize,
    out: *mut *const Env,
    error: *mut LbBytes,
) -> i32 {
    let work = || {
        Arc::increment_strong_count(tokenizer);
        Env::new(Arc::from_raw(tokenizer), slice(stops, n_stops))
    };
    guarded(error, work, |env| *out = Arc::into_raw(Arc::new(env)))
}

#[no_mangle]
pub unsafe extern "C" fn lb_grammar_env_free(env: *const Env) {
    if !env.is_null() {
        drop(Arc::from_raw(env));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lb_grammar_new(
    env: *const Env,
    kind: i32,
    source: LbStr,
    out: *mut *mut Grammar,
    error: *mut LbBytes,
) -> i32 {
    let work = || {
        let kind = match kind {
            0 => Kind::JsonSchema,
            1 => Kind::Regex,
            2 => Kind::Lark,
            3 => Kind::Trusted,
            other => return Err(Failure::Internal(format!("unknown kind of grammar {other}"))),
        };
        Arc::increment_strong_count(env);
        Grammar::new(Arc::from_raw(env), kind, source.text("grammar")?)
    };
    guarded(error, work, |grammar| *out = Box::into_raw(Box::new(grammar)))
}

#[no_mangle]
pub unsafe extern "C" fn lb_grammar_free(grammar: *mut Grammar) {
    if !grammar.is_null() {
        drop(Box::from_raw(grammar));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lb_matcher_new(
    grammar: *const Grammar,
    out: *mut *mut Sequence,
    error: *mut LbBytes,
) -> i32 {
    guarded(error, || Ok((*grammar).begin()), |sequence| *out = Box::into_raw(Box::new(sequence)))
}

#[no_mangle]
pub unsafe extern "C" fn lb_matcher_fork(
    matcher: *const Sequence,
    out: *mut *mut Sequence,
    error: *mut LbBytes,
) -> i32 {
    guarded(error, || Ok((*matcher).fork()), |sequence| *out = Box::into_raw(Box::new(sequence)))
}

#[no_mangle]
pub unsafe extern "C" fn lb_matcher_free(matcher: *mut Sequence) {
    if !matcher.is_null() {
        drop(Box::from_raw(matcher));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lb_matcher_mask(
    matcher: *mut Sequence,
    bits: *mut u32,
    words: usize,
    error: *mut LbBytes,
) -> i32 {
    guarded(error, || (*matcher).mask(std::slice::from_raw_parts_mut(bits, words)), |()| ())
}

#[no_mangle]
pub unsafe extern "C" fn lb_matcher_consume(
    matcher: *mut Sequence,
    ids: *const u32,
    n_ids: usize,
    taken: *mut usize,
    error: *mut LbBytes,
) -> i32 {
    guarded(error, || (*matcher).consume(slice(ids, n_ids)), |count| *taken = count)
}

#[no_mangle]
pub unsafe extern "C" fn lb_matcher_rollback(
    matcher: *mut Sequence,
    count: usize,
    error: *mut LbBytes,
) -> i32 {
    guarded(error, || (*matcher).rollback(count), |()| ())
}

#[no_mangle]
pub unsafe extern "C" fn lb_matcher_forced(
    matcher: *mut Sequence,
    out: *mut LbIds,
    error: *mut LbBytes,
) -> i32 {
    guarded(error, || Ok((*matcher).forced()), |ids| *out = LbIds::owned(ids))
}

#[no_mangle]
pub unsafe extern "C" fn lb_matcher_state(
    matcher: *mut Sequence,
    accepting: *mut i32,
    complete: *mut i32,
    error: *mut LbBytes,
) -> i32 {
    let work = || Ok(((*matcher).accepting()?, (*matcher).complete()));
    guarded(error, work, |(accepts, completes)| {
        *accepting = accepts as i32;
        *complete = completes as i32;
    })
}
