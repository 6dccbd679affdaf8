//! Chat templates, rendered as Hugging Face renders them. Templates come with model files and are not trusted: the work, the depth and
//! the output of a render are bounded, and a template sees nothing but the values of its request.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use indexmap::IndexMap;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior};

use crate::guard::{self, Limits};
use crate::namespaces::Namespaces;
use crate::strftime::Moment;
use crate::tokenizer::Tokenizer;
use crate::veil::Veil;
use crate::{data, json, python, Failure, Outcome};

const NAME: &str = "chat template";
const MAX_SOURCE: usize = 256 << 10;
const MAX_REQUEST: usize = 64 << 20;
const MAX_OUTPUT: usize = 64 << 20;

// One unit of fuel is one instruction or 64 bytes of text made. The share that grows with the request lets long conversations through; the cap
// ends an endless loop within a second.
const BASE_FUEL: u64 = 500_000;
const FUEL_PER_BYTE: u64 = 8;
const MAX_FUEL: u64 = 4_000_000;
const RECURSION: usize = 400;

// What fuel does not count (guard.rs).
const BASE_MEMORY: usize = 256 << 20;
const MEMORY_PER_BYTE: usize = 64;
const MAX_KEPT: usize = 16 << 20;
const SLACK: usize = 64 << 10; // what the engine keeps for itself on first use
const BASE_TIME: Duration = Duration::from_secs(5); // renders take milliseconds; this is for machines that are very busy
const BYTES_PER_SECOND: usize = 4 << 20;

// Deeply nested source and values are walked by recursion inside the engine; this outlasts the deepest nesting that MAX_SOURCE and
// MAX_FUEL can pay for.
const STACK: usize = 512 << 20;

fn limits(size: usize) -> Limits {
    let time = BASE_TIME + Duration::from_secs((size / BYTES_PER_SECOND) as u64);
    Limits {
        what: "the template",
        memory: BASE_MEMORY + MEMORY_PER_BYTE * size,
        time,
        stack: STACK,
        given_up: None,
    }
}

pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    given_up: AtomicBool,
    kept: AtomicUsize, // bytes that renders never gave back
}

pub struct Request<'a> {
    pub messages: &'a str,
    pub tools: &'a str,
    pub options: &'a str,
    pub now: &'a str,
}

impl Request<'_> {
    fn size(&self) -> usize {
        self.messages.len() + self.tools.len() + self.options.len()
    }
}

impl ChatTemplate {
    pub fn new(source: &str) -> Outcome<ChatTemplate> {
        if source.len() > MAX_SOURCE {
            return Err(Failure::Limit(format!("{NAME}: {} bytes, the limit is {MAX_SOURCE}", source.len())));
        }
        let owned = source.to_string();
        let environment = guard::run(limits(source.len()), move || build_environment(owned)).outcome?;
        Ok(ChatTemplate {
            source: source.to_string(),
            environment,
            given_up: AtomicBool::new(false),
            kept: AtomicUsize::new(0),
        })
    }

    pub fn render(&self, request: &Request) -> Outcome<String> {
        self.render_context(request, parse_request(request)?)
    }

    /// The ids of a rendered request. What the request says is text, also where it spells a special token; only what the template
    /// itself writes can be one. Special spellings in the request are replaced by characters that nobody uses while the template runs.
    pub fn ids(&self, tokenizer: &Tokenizer, request: &Request) -> Outcome<Vec<u32>> {
        let context = parse_request(request)?;
        let specials = tokenizer.special_tokens();
        let used = [request.messages, request.tools, request.options, self.source.as_str()];
        let veil = Veil::new(tokenizer, &specials, &used)?;
        let (veiled, touched) = veil.cover(&context, false)?;
        if !touched {
            return tokenizer.encode_pieces(&self.render_context(request, context)?, |text| text.to_string());
        }
        let plain = self.render_context(request, context.clone())?;
        let mut text = self.render_context(request, veiled)?;
        if veil.lift(&text) != plain {
            // The template looks for special tokens in what it is given. Templates do that to cut old thoughts out of what the model
            // said, so the model's own turns keep their spelling; everybody else's stay covered.
            text = self.render_context(request, veil.cover(&context, true)?.0)?;
        }
        tokenizer.encode_pieces(&text, |piece| veil.lift(piece))
    }

    fn render_context(&self, request: &Request, context: IndexMap<Value, Value>) -> Outcome<String> {
        if self.given_up.load(Ordering::Relaxed) {
            return Err(Failure::Limit(format!("{NAME}: it had to be stopped before and is not run again")));
        }
        let mut environment = self.environment.clone();
        environment.set_fuel(Some((BASE_FUEL + FUEL_PER_BYTE * request.size() as u64).min(MAX_FUEL)));
        let Some(moment) = Moment::parse(request.now) else {
            return data(format!("now: {:?} is not YYYY-MM-DDTHH:MM:SS", request.now));
        };
        environment.add_function("strftime_now", move |pattern: &str| {
            moment.format(pattern).map_err(|d| {
                Error::new(ErrorKind::InvalidOperation, format!("strftime_now: unknown directive {d}"))
            })
        });
        let namespaces = Namespaces::default();
        namespaces.watch(&mut environment);
        let shared = context.clone(); // what this thread holds on to is not freed by the other, which counts its bytes
        let run = guard::run(limits(request.size()), move || {
            let rendered = environment
                .get_template(NAME)
                .and_then(|template| template.render(Value::from_object(shared)))
                .map_err(failure);
            namespaces.untie();
            rendered
        });
        self.note(&run);
        let text = run.outcome?;
        if text.len() > MAX_OUTPUT {
            return Err(Failure::Limit(format!(
                "{NAME}: an output of {} bytes, the limit is {MAX_OUTPUT}",
                text.len()
            )));
        }
        Ok(text)
    }

    /// Values that hold themselves are never freed. A template that makes them is not run for ever.
    fn note(&self, run: &guard::Run<String>) {
        let output = run.outcome.as_ref().map_or(0, |text| text.capacity());
        let lost = usize::try_from(run.kept).unwrap_or(0).saturating_sub(output + SLACK);
        let kept = self.kept.fetch_add(lost, Ordering::Relaxed) + lost;
        if run.given_up || kept > MAX_KEPT {
            self.given_up.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for ChatTemplate {
    fn drop(&mut self) {
        let environment = std::mem::take(&mut self.environment);
        // Without a thread the closure is dropped here, on the caller's stack, as any other value would be.
        let _ = guard::run(limits(self.source.len()), move || {
            drop(environment);
            Ok(())
        });
    }
}

fn build_environment(source: String) -> Outcome<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.map_err(failure)?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_recursion_limit(RECURSION);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, state, value| match python::display(state, value)? {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |state: &State, value: &Value| -> Result<String, Error> {
        Ok(python::display(state, value)?.unwrap_or_else(|| value.to_string()))
    });
    environment.add_function("raise_exception", |message: &str| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.to_string()))
    });
    environment.add_template_owned(NAME, source).map_err(failure)?;
    Ok(environment)
}

/// `json.dumps` with transformers' defaults: no sorting, no escapes beyond JSON's own.
fn tojson(state: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        None => None,
        Some(v) if v.is_none() => None,
        Some(v) if v.as_str().is_some() => v.as_str().map(str::to_string),
        Some(v) => Some(" ".repeat(usize::try_from(v)?.min(64))),
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item_separator, key_separator) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings"))
        }
        None => (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()),
    };
    let dump = python::Dump {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        item_separator,
        key_separator,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    dump.dump(state, value).map(Value::from)
}

fn parse_request(request: &Request) -> Outcome<IndexMap<Value, Value>> {
    if request.size() > MAX_REQUEST {
        return Err(Failure::Limit(format!(
            "{NAME}: a request of {} bytes, the limit is {MAX_REQUEST}",
            request.size()
        )));
    }
    let parse = |what: &str, text: &str| json::parse(text).map_err(|e| Failure::Data(format!("{what}: {e}")));
    let mut context = IndexMap::new();
    context.insert(Value::from("messages"), parse("messages", request.messages)?);
    let tools = if request.tools.is_empty() { Value::from(()) } else { parse("tools", request.tools)? };
    context.insert(Value::from("tools"), tools);
    context.insert(Value::from("documents"), Value::from(()));
    let options = parse("options", request.options)?;
    if options.kind() != ValueKind::Map {
        return data("options: expected an object");
    }
    for key in options.try_iter().map_err(failure)? {
        if matches!(key.as_str(), Some("messages" | "tools")) {
            return data(format!("options: {key} belongs beside the options, not in them"));
        }
        let value = options.get_item(&key).map_err(failure)?;
        context.insert(key, value);
    }
    Ok(context)
}

/// Reason and line of the innermost error; what the engine wraps around it says less.
fn failure(error: Error) -> Failure {
    let mut text = error.detail().map_or_else(|| error.kind().to_string(), |d| d.to_string());
    if let Some(line) = error.line() {
        text = format!("{NAME}, line {line}: {text}");
    } else {
        text = format!("{NAME}: {text}");
    }
    let limit = error.kind() == ErrorKind::OutOfFuel || text.contains("recursion limit");
    if limit {
        return Failure::Limit(text);
    }
    Failure::Data(text)
}
