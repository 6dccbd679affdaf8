//! Runs a template, or the building of a grammar, on a thread of its own that can be given up.
//!
//! The engine's fuel bounds what it counts, but some work escapes the count: concatenating lists that share parts, comparing or
//! printing them, doubles with every level of sharing. So the thread also has a budget of memory and of time. Rust threads cannot be
//! ended from outside. One that exceeds its memory stops inside the allocator and stays there; one that exceeds its time goes on at
//! idle priority. Either way the caller gets an error at once, and must not run that
//! template again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::{Failure, Outcome};

#[derive(Clone, Copy)]
pub struct Limits {
    pub what: &'static str, // for messages: "the template"
    pub memory: usize,      // bytes
    pub time: Duration,
    pub stack: usize, // bytes of address space; only pages that are touched take memory
    pub given_up: Option<&'static AtomicUsize>, // counts the threads that were given up and have not ended since
}

pub struct Run<T> {
    pub outcome: Outcome<T>,
    pub given_up: bool, // the thread had to be left to itself
    pub kept: isize,    // bytes that the thread took and did not give back, those of the outcome included
}

enum State<T> {
    Running,
    Done(Run<T>),
    Taken,
    GivenUp,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    out_of_memory: Flag,
    changed: Condvar,
}

/// Set by a thread that has stopped for good, so without allocating.
#[derive(Default)]
struct Flag(std::sync::atomic::AtomicBool);

impl Flag {
    fn set(&self) {
        self.0.store(true, std::sync::atomic::Ordering::Release);
    }
    fn is_set(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::Acquire)
    }
}

thread_local! {
    static LEFT: Cell<isize> = const { Cell::new(isize::MAX) }; // bytes this thread may still take; MAX: not guarded
    static STOPPED: Cell<*const Flag> = const { Cell::new(std::ptr::null()) };
}

struct Budgeted;

#[global_allocator]
static ALLOCATOR: Budgeted = Budgeted;

fn charge(bytes: isize) {
    let left = LEFT.get();
    if left == isize::MAX {
        return;
    }
    LEFT.set(left - bytes);
    if left < bytes && bytes > 0 {
        stop_for_good();
    }
}

#[cold]
fn stop_for_good() -> ! {
    let flag = STOPPED.get();
    // SAFETY: the flag lives in the Arc that this very thread holds, and this thread never ends.
    unsafe { (*flag).set() };
    loop {
        std::thread::park();
    }
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments.
unsafe impl GlobalAlloc for Budgeted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        charge(layout.size() as isize);
        System.alloc(layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        charge(layout.size() as isize);
        System.alloc_zeroed(layout)
    }
    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        charge(-(layout.size() as isize));
        System.dealloc(data, layout)
    }
    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        charge(size as isize - layout.size() as isize);
        System.realloc(data, layout, size)
    }
}

pub fn run<T: Send + 'static>(limits: Limits, work: impl FnOnce() -> Outcome<T> + Send + 'static) -> Run<T> {
    let shared = Arc::new(Shared {
        state: Mutex::new(State::Running),
        out_of_memory: Flag::default(),
        changed: Condvar::new(),
    });
    let inside = shared.clone();
    let body = move || {
        let budget = isize::try_from(limits.memory).unwrap_or(isize::MAX - 1);
        STOPPED.set(&inside.out_of_memory);
        LEFT.set(budget);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let kept = budget - LEFT.replace(isize::MAX);
        let outcome = outcome.unwrap_or_else(|payload| Err(Failure::Internal(crate::panic_text(&*payload))));
        let run = Run { outcome, given_up: false, kept };
        let mut state = inside.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let (State::GivenUp, Some(count)) = (&*state, limits.given_up) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        *state = State::Done(run);
        drop(state);
        inside.changed.notify_one();
    };
    let thread = match std::thread::Builder::new().stack_size(limits.stack).spawn(body) {
        Ok(thread) => thread,
        Err(error) => {
            let outcome = Err(Failure::Limit(format!("no thread for {}: {error}", limits.what)));
            return Run { outcome, given_up: false, kept: 0 };
        }
    };
    match wait(&shared, &limits) {
        Ok(run) => {
            let _ = thread.join(); // its stack is gone when the caller goes on
            run
        }
        Err(why) => {
            if !shared.out_of_memory.is_set() {
                make_idle(&thread);
            }
            let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let (State::Running, Some(count)) = (&*state, limits.given_up) {
                count.fetch_add(1, Ordering::Relaxed);
                *state = State::GivenUp;
            }
            drop(state);
            Run { outcome: Err(Failure::Limit(why)), given_up: true, kept: 0 }
        }
    }
}

/// Err says which budget was exceeded.
fn wait<T>(shared: &Shared<T>, limits: &Limits) -> Result<Run<T>, String> {
    let deadline = std::time::Instant::now() + limits.time;
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if matches!(*state, State::Done(_)) {
            if let State::Done(run) = std::mem::replace(&mut *state, State::Taken) {
                return Ok(run);
            }
        }
        if shared.out_of_memory.is_set() {
            return Err(format!("{} takes too much memory", limits.what));
        }
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Err(format!("{} takes more than {} seconds", limits.what, limits.time.as_secs()));
        }
        // A thread that stopped in the allocator cannot wake anyone, so look again soon.
        let nap = left.min(Duration::from_millis(20));
        state = shared.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn make_idle<T>(thread: &std::thread::JoinHandle<T>) {
    use std::os::unix::thread::JoinHandleExt;
    let lowest = libc::sched_param { sched_priority: 0 };
    // SAFETY: the handle was not joined, so the thread's id is valid. Failing to lower the priority changes nothing else.
    unsafe { libc::pthread_setschedparam(thread.as_pthread_t(), libc::SCHED_IDLE, &lowest) };
}
