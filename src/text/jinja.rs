//! The template language: minijinja with what Hugging Face adds to Jinja2, under limits.
//!
//! minijinja bounds instructions (fuel), recursion and `range`, but not the bytes that they make: twenty-five times
//! `s ~ s` fill any memory. So every operation that can make a text longer is charged to a [`Budget`]: the compiled
//! program's `~`, `+`, `*` and list building become calls of functions defined here (one instruction for one
//! instruction), long pieces of raw text are emitted through the formatter, and filters and methods are wrapped.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions, TemplateConfig, Token, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::nesting;
use super::pyjson::{Json, float, write_value};
use super::template::Twins;

/// Instructions that every template may run, and those that each value of the input adds.
const FUEL: u64 = 300_000;
const FUEL_PER_VALUE: u64 = 2_000;
/// Bytes that every template may make, and those that each byte of the input adds.
const BYTES: u64 = 8 << 20;
const BYTES_PER_BYTE: u64 = 64;
/// What each value of the input adds: templates copy lists of messages, once a message.
const BYTES_PER_VALUE: u64 = 16 << 10;
/// What an item of a list costs.
const ITEM: usize = std::mem::size_of::<Value>();
/// What a single write costs beyond its bytes.
const WRITE: usize = 64;
/// Containers put into containers: nesting is dropped recursively, so this bounds the stack.
const NESTS: u64 = 4096;
/// What it costs to look at an item of a list.
const STEP: usize = 8;
/// Containers in one another that are printed or compared: both recurse.
const MAX_DEPTH: usize = 128;
/// Longest raw text that is emitted without being charged; fuel bounds how often.
const UNCHARGED: usize = 32;
/// Widest number in a format string or a width argument.
const MAX_WIDTH: usize = 1024;

/// Names of the functions that replace instructions; no template can spell them.
const CONCAT: &str = "wgslm concat";
const ADD: &str = "wgslm add";
const MUL: &str = "wgslm mul";
const REM: &str = "wgslm rem";
const LIST: &str = "wgslm list";
const TUPLE: &str = "wgslm tuple";
const MAP: &str = "wgslm map";
const SLICE: &str = "wgslm slice";
const NEST: &str = "wgslm nest";
const LOOK: &str = "wgslm look";
const KEY: &str = "wgslm key";

/// How large the input is: what the limits grow with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    pub(crate) values: u64,
    pub(crate) bytes: u64,
}

/// What is left of the bytes and nestings that a rendering may make.
#[derive(Clone)]
struct Budget(Arc<(AtomicU64, AtomicU64)>);

impl Budget {
    fn new(size: Size) -> Self {
        let input =
            size.bytes.saturating_mul(BYTES_PER_BYTE).saturating_add(size.values.saturating_mul(BYTES_PER_VALUE));
        let bytes = input.saturating_add(BYTES);
        Self(Arc::new((AtomicU64::new(bytes), AtomicU64::new(NESTS + size.values))))
    }

    fn take(counter: &AtomicU64, n: u64, what: &str) -> Result<(), Error> {
        let left = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(n));
        left.map(drop).map_err(|_| too_large(what))
    }

    /// Charges `n` bytes.
    fn bytes(&self, n: usize) -> Result<(), Error> {
        Self::take(&self.0.0, n as u64, "the text that the template makes is too large: over its memory limit")
    }

    /// Charges a container in a container.
    fn nest(&self) -> Result<(), Error> {
        Self::take(&self.0.1, 1, "the template nests too many lists: over its limit")
    }

    /// Charges looking at everything in `value`, which must not nest too deeply.
    fn walk(&self, value: &Value) -> Result<(), Error> {
        self.walk_at(value, 0)
    }

    fn walk_at(&self, value: &Value, depth: usize) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.bytes(text.len() / 8);
        }
        if value.as_object().is_none() {
            return Ok(());
        }
        if depth > MAX_DEPTH {
            return Err(too_large("a list nests too deeply: over the nesting limit"));
        }
        let map = value.kind() == ValueKind::Map;
        for item in value.try_iter().into_iter().flatten() {
            self.bytes(STEP)?;
            if map {
                self.walk_at(&value.get_item(&item)?, depth + 1)?;
            }
            self.walk_at(&item, depth + 1)?;
        }
        Ok(())
    }

    /// Charges a list of what is in `value`.
    fn items(&self, value: &Value) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.bytes(text.len().saturating_mul(ITEM));
        }
        match value.as_object().map(|_| value.len()) {
            None => Ok(()),
            Some(Some(n)) => self.bytes(n.saturating_mul(ITEM)),
            Some(None) => value.try_iter().into_iter().flatten().try_for_each(|_| self.bytes(ITEM)),
        }
    }

    /// `value` as text, charged; stops as soon as the budget is spent.
    fn text(&self, value: &Value) -> Result<String, Error> {
        if let Some(text) = value.as_str() {
            self.bytes(text.len())?;
            return Ok(text.to_owned());
        }
        if value.kind() == ValueKind::Number
            && !value.is_integer()
            && let Ok(x) = f64::try_from(value.clone())
        {
            let text = if x.is_finite() { float(x) } else { x.to_string().to_lowercase() };
            self.bytes(text.len())?;
            return Ok(text);
        }
        self.walk(value)?;
        let mut out = Charged { text: String::new(), budget: self };
        write!(out, "{value}").map_err(|_| too_large("a value is too large to print: over the memory limit"))?;
        Ok(out.text)
    }
}

/// Collects text as long as the budget lasts.
struct Charged<'a> {
    text: String,
    budget: &'a Budget,
}

impl fmt::Write for Charged<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        // A list that holds itself many times prints in many small writes: their number counts as well.
        self.budget.bytes(s.len() + WRITE).map_err(|_| fmt::Error)?;
        self.text.push_str(s);
        Ok(())
    }
}

fn too_large(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.into())
}

/// The syntax of chat templates: Jinja2 with `trim_blocks` and `lstrip_blocks`.
pub(crate) fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// Renders `source`. `now` is the time in seconds since 1970 that `strftime_now` returns; without it the function is
/// undefined.
pub(crate) fn render(
    source: &str,
    context: &serde_json::Value,
    size: Size,
    now: Option<i64>,
    twins: Option<&Twins>,
) -> Result<String, Error> {
    let budget = Budget::new(size);
    let mut env = environment(&budget, now, twins)?;
    env.set_fuel(Some(FUEL + size.values.saturating_mul(FUEL_PER_VALUE)));
    let (instructions, blocks) = compile(source)?;
    let mut text = String::new();
    let root = Value::from(Serde(context));
    minijinja::machinery::eval(
        &env,
        &instructions,
        root,
        &blocks,
        &mut make_string_output(&mut text),
        AutoEscape::None,
    )?;
    Ok(text)
}

type Blocks<'a> = std::collections::BTreeMap<&'a str, Instructions<'a>>;

/// Compiles `source` and replaces the instructions that make texts longer.
pub(crate) fn compile(source: &str) -> Result<(Instructions<'_>, Blocks<'_>), Error> {
    nesting::check(source)?;
    refuse_large_constants(source)?;
    let config = TemplateConfig { syntax_config: syntax()?, default_auto_escape: Arc::new(|_| AutoEscape::None) };
    let CompiledTemplate { mut instructions, mut blocks, .. } = CompiledTemplate::new("template", source, &config)?;
    charge(&mut instructions);
    blocks.values_mut().for_each(charge);
    Ok((instructions, blocks))
}

/// Replaces instructions one for one, so that no jump changes; what needs more goes to the end and jumps back.
fn charge(instructions: &mut Instructions<'_>) {
    let mut at = 0;
    let mut outlined = Vec::new();
    while let Some(instruction) = instructions.get_mut(at) {
        let call = |name| Instruction::CallFunction(name, Some(2));
        match instruction {
            Instruction::StringConcat => *instruction = call(CONCAT),
            Instruction::Add => *instruction = call(ADD),
            Instruction::Mul => *instruction = call(MUL),
            Instruction::Rem => *instruction = call(REM),
            Instruction::Slice => *instruction = Instruction::CallFunction(SLICE, Some(4)),
            Instruction::BuildList(Some(n)) if *n < usize::from(u16::MAX) => {
                *instruction = Instruction::CallFunction(LIST, Some(*n as u16));
            }
            Instruction::BuildTuple(Some(n)) if *n < usize::from(u16::MAX) => {
                *instruction = Instruction::CallFunction(TUPLE, Some(*n as u16));
            }
            Instruction::BuildMap(n) if *n < usize::from(u16::MAX) / 2 => {
                *instruction = Instruction::CallFunction(MAP, Some(2 * *n as u16));
            }
            _ => {}
        }
        match instruction {
            Instruction::EmitRaw(raw) if raw.len() > UNCHARGED => {
                let raw = Value::from(*raw);
                outlined.push((at, vec![Instruction::LoadConst(raw), Instruction::Emit]));
            }
            // A macro keeps the variables that it names, other macros among them.
            Instruction::BuildMacro(..) => outlined.push((
                at,
                vec![Instruction::CallFunction(NEST, Some(0)), Instruction::DiscardTop, instruction.clone()],
            )),
            // What compares looks at everything in both; the two are looked at as a pair, and put back.
            Instruction::Eq
            | Instruction::Ne
            | Instruction::Gt
            | Instruction::Gte
            | Instruction::Lt
            | Instruction::Lte
            | Instruction::In
            | Instruction::GetItem
            | Instruction::CompareAndPreserve(_) => outlined.push((
                at,
                vec![
                    // An item is found by its key, without a look at the others: templates go back in long conversations.
                    Instruction::CallFunction(
                        if matches!(instruction, Instruction::GetItem) { KEY } else { LOOK },
                        Some(2),
                    ),
                    Instruction::UnpackList(2),
                    Instruction::Swap,
                    instruction.clone(),
                ],
            )),
            _ => {}
        }
        at += 1;
    }
    if outlined.is_empty() {
        return;
    }
    // The program ends by running past its last instruction: it has to jump over what is added here.
    let end = instructions.add(Instruction::Jump(0));
    for (at, instead) in outlined {
        let mut last = end;
        let mut start = None;
        for instruction in instead.into_iter().chain([Instruction::Jump(at + 1)]) {
            last = instructions.add(instruction);
            start = start.or(Some(last));
        }
        if let (Some(instruction), Some(start)) = (instructions.get_mut(at), start) {
            *instruction = Instruction::Jump(start);
        }
        if let Some(instruction) = instructions.get_mut(end) {
            *instruction = Instruction::Jump(last + 1);
        }
    }
}

/// Constants are computed while compiling, where nothing is charged: `'a' * 10**8` is refused before that.
fn refuse_large_constants(source: &str) -> Result<(), Error> {
    let (mut product, mut multiplies, mut text) = (1u64, false, false);
    for token in minijinja::machinery::tokenize(source, false, syntax()?) {
        match token?.0 {
            Token::VariableStart | Token::BlockStart => (product, multiplies, text) = (1, false, false),
            Token::Int(n) => product = product.saturating_mul(n.max(1)),
            Token::Int128(_) | Token::Pow => product = u64::MAX,
            Token::Mul => multiplies = true,
            Token::Str(_) | Token::String(_) | Token::BracketOpen => text = true,
            _ => {}
        }
        if multiplies && text && product > 1 << 20 {
            return Err(too_large("a constant is multiplied into one that is too large: over the memory limit"));
        }
    }
    Ok(())
}

fn environment<'a>(budget: &Budget, now: Option<i64>, twins: Option<&Twins>) -> Result<Environment<'a>, Error> {
    let mut env = Environment::new();
    env.set_syntax(syntax()?);
    env.set_recursion_limit(200);
    env.set_debug(false);
    for name in ["pprint", "chain", "zip", "lines", "urlencode"] {
        env.remove_filter(name);
    }
    env.remove_global("debug");

    let b = budget.clone();
    env.set_formatter(move |out, _, value| {
        let text = b.text(value)?;
        out.write_str(&text).map_err(|_| too_large("output"))
    });
    let b = budget.clone();
    env.add_function(CONCAT, move |left: Value, right: Value| {
        let mut text = b.text(&left)?;
        text.push_str(&b.text(&right)?);
        Ok::<_, Error>(Value::from(text))
    });
    let b = budget.clone();
    env.add_function(ADD, move |left: Value, right: Value| add(&b, &left, &right));
    let b = budget.clone();
    env.add_function(MUL, move |left: Value, right: Value| multiply(&b, &left, &right));
    let b = budget.clone();
    env.add_function(REM, move |left: Value, right: Value| remainder(&b, &left, &right));
    let b = budget.clone();
    env.add_function(LIST, move |items: Rest<Value>| {
        if items.iter().any(|item| item.as_object().is_some()) {
            b.nest()?;
        }
        Ok::<_, Error>(Value::from(items.0))
    });
    let b = budget.clone();
    env.add_function(TUPLE, move |items: Rest<Value>| {
        if items.iter().any(|item| item.as_object().is_some()) {
            b.nest()?;
        }
        Ok::<_, Error>(Value::from(Tuple::from(items.0)))
    });
    let b = budget.clone();
    env.add_function(MAP, move |items: Rest<Value>| map(&b, &items));
    let b = budget.clone();
    env.add_function(SLICE, move |value: &Value, start: &Value, stop: &Value, step: &Value| {
        slice(&b, value, [start, stop, step])
    });
    let b = budget.clone();
    env.add_function(NEST, move || b.nest());
    let b = budget.clone();
    env.add_function(KEY, move |container: Value, key: Value| {
        b.walk(&key)?;
        Ok::<_, Error>(Value::from(vec![container, key]))
    });
    let b = budget.clone();
    env.add_function(LOOK, move |left: Value, right: Value| {
        b.walk(&left)?;
        b.walk(&right)?;
        Ok::<_, Error>(Value::from(vec![left, right]))
    });
    for (name, function) in [
        ("dict", Value::from_function(minijinja::functions::dict)),
        ("namespace", Value::from_function(minijinja::functions::namespace)),
    ] {
        let b = budget.clone();
        env.add_function(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            b.nest()?;
            args.iter().try_for_each(|arg| b.items(arg))?;
            function.call(state, &args)
        });
    }
    charge_filters(&mut env, budget);
    env.add_function("raise_exception", |message: String| Err::<Value, _>(invalid(message)));
    if let Some(now) = now {
        env.add_function("strftime_now", move |format: &str| strftime(format, now));
    }

    let (b, twins) = (budget.clone(), twins.cloned());
    env.add_filter("tojson", move |value: Value, indent: Option<Value>, options: Kwargs| {
        let json = Json::from_options(indent, &options, twins.clone())?;
        let mut out = Charged { text: String::new(), budget: &b };
        write_value(&value, &json, 0, &mut out)?;
        Ok::<_, Error>(out.text)
    });
    env.add_filter("int", to_int);
    env.add_filter("float", to_float);
    let b = budget.clone();
    env.add_filter(
        "sort",
        move |state: &State<'_, '_>, value: Value, reverse: Option<Value>, case: Option<Value>, options: Kwargs| {
            b.items(&value)?;
            b.walk(&value)?;
            sort(state, value, reverse, case, options)
        },
    );
    let b = budget.clone();
    env.add_filter("string", move |value: &Value| b.text(value));
    let b = budget.clone();
    env.add_filter("replace", move |text: &Value, old: &Value, new: &Value, count: Option<Value>, options: Kwargs| {
        let count = options.get::<Option<Value>>("count")?.or(count);
        options.assert_all_used()?;
        replace(&b, &b.text(text)?, &b.text(old)?, &b.text(new)?, times(count.as_ref())?)
    });
    for name in ["length", "count"] {
        env.add_filter(name, length);
    }
    for name in ["default", "d"] {
        env.add_filter(name, default);
    }
    let b = budget.clone();
    env.add_filter("wordcount", move |text: &Value| {
        let text = b.text(text)?;
        Ok::<_, Error>(text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count())
    });
    for name in ["e", "escape", "forceescape"] {
        let b = budget.clone();
        env.add_filter(name, move |text: &Value| {
            let escaped = escape(&b.text(text)?);
            b.bytes(escaped.len())?;
            Ok::<_, Error>(escaped)
        });
    }
    env.add_test("iterable", |value: &Value| {
        value.as_str().is_some() || value.is_undefined() || value.as_object().is_some_and(|_| value.try_iter().is_ok())
    });
    env.add_test("sequence", |value: &Value| {
        value.as_str().is_some()
            || value.is_undefined()
            || matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
    });
    let b = budget.clone();
    env.add_filter("join", move |list: &Value, separator: Option<&str>, options: Kwargs| {
        let attribute: Option<&str> = options.get("attribute")?;
        b.items(list)?;
        let items = list.try_iter()?.map(|item| match attribute {
            Some(name) => item.get_attr(name),
            None => Ok(item),
        });
        join(&b, items, separator.unwrap_or(""))
    });
    let b = budget.clone();
    env.add_filter(
        "indent",
        move |text: &str, width: Option<usize>, first: Option<bool>, blank: Option<bool>, options: Kwargs| {
            let width = options.get::<Option<usize>>("width")?.or(width).unwrap_or(4);
            let first = options.get::<Option<bool>>("first")?.or(first).unwrap_or(false);
            let blank = options.get::<Option<bool>>("blank")?.or(blank).unwrap_or(false);
            indent(&b, text, width, first, blank)
        },
    );
    let b = budget.clone();
    env.add_filter("format", move |format: &str, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        check_widths(format)?;
        let text = minijinja::formatting::format(minijinja::formatting::FormatStyle::Printf, format, &args)?;
        b.bytes(text.len())?;
        Ok::<_, Error>(text)
    });
    let b = budget.clone();
    env.set_unknown_method_callback(move |state, value, method, args| call_method(&b, state, value, method, args));
    Ok(env)
}

/// Registers minijinja's filters and tests that look at every item or character, charged for it.
fn charge_filters(env: &mut Environment<'_>, budget: &Budget) {
    use minijinja::{filters, tests};
    let called = [
        ("batch", Value::from_function(filters::batch)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("first", Value::from_function(filters::first)),
        ("groupby", Value::from_function(filters::groupby)),
        ("items", Value::from_function(filters::items)),
        ("last", Value::from_function(filters::last)),
        ("list", Value::from_function(filters::list)),
        ("lower", Value::from_function(filters::lower)),
        ("map", Value::from_function(filters::map)),
        ("max", Value::from_function(filters::max)),
        ("min", Value::from_function(filters::min)),
        ("reject", Value::from_function(filters::reject)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("reverse", Value::from_function(filters::reverse)),
        ("select", Value::from_function(filters::select)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("slice", Value::from_function(filters::slice)),
        ("split", Value::from_function(filters::split)),
        ("sum", Value::from_function(filters::sum)),
        ("title", Value::from_function(filters::title)),
        ("trim", Value::from_function(filters::trim)),
        ("unique", Value::from_function(filters::unique)),
        ("upper", Value::from_function(filters::upper)),
    ];
    for (name, filter) in called {
        let b = budget.clone();
        let text = ["capitalize", "lower", "split", "title", "trim", "upper"].contains(&name);
        let compares = ["dictsort", "groupby", "max", "min", "unique"].contains(&name);
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            for arg in args.iter() {
                match arg.as_str() {
                    Some(arg) if text => b.bytes(arg.len() / 8)?,
                    _ => b.items(arg)?,
                }
                if compares {
                    b.walk(arg)?;
                }
            }
            // What is lazy would hold on to what it is made from, and so on.
            let result = filter.call(state, &args)?;
            match result.kind() {
                ValueKind::Iterable => collected(&b, &result),
                _ => Ok(result),
            }
        });
    }
    let compared = [
        ("eq", "equalto", "==", Value::from_function(tests::is_eq)),
        ("ne", "ne", "!=", Value::from_function(tests::is_ne)),
        ("lt", "lessthan", "<", Value::from_function(tests::is_lt)),
        ("le", "le", "<=", Value::from_function(tests::is_le)),
        ("gt", "greaterthan", ">", Value::from_function(tests::is_gt)),
        ("ge", "ge", ">=", Value::from_function(tests::is_ge)),
        ("in", "in", "in", Value::from_function(tests::is_in)),
    ];
    for (name, other, sign, test) in compared {
        for name in [name, other, sign] {
            let (b, test) = (budget.clone(), test.clone());
            env.add_test(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                args.iter().try_for_each(|arg| b.walk(arg))?;
                test.call(state, &args)
            });
        }
    }
}

/// A list of what is in `value`, charged.
fn collected(budget: &Budget, value: &Value) -> Result<Value, Error> {
    budget.nest()?;
    let mut items = Vec::new();
    for item in value.try_iter()? {
        budget.bytes(ITEM)?;
        items.push(item);
    }
    Ok(Value::from(items))
}

/// A dictionary of keys and values by turns.
fn map(budget: &Budget, items: &[Value]) -> Result<Value, Error> {
    if items.iter().any(|item| item.as_object().is_some()) {
        budget.nest()?;
    }
    let pairs = items.chunks_exact(2).filter_map(|pair| match pair {
        [key, value] => Some((key, value)),
        _ => None,
    });
    for (key, _) in pairs.clone() {
        budget.walk(key)?;
    }
    Ok(Value::from_pairs(pairs.map(|(key, value)| (key.clone(), value.clone()))))
}

/// `value[start:stop:step]` with Python's rules.
fn slice(budget: &Budget, value: &Value, [start, stop, step]: [&Value; 3]) -> Result<Value, Error> {
    let bound = |bound: &Value| match number(bound) {
        _ if bound.is_none() => Ok(None),
        Some(Number::Int(n)) => Ok(Some(n)),
        _ => Err(invalid("the bounds of a slice are integers or none")),
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(invalid("the step of a slice cannot be zero"));
    }
    let (items, chars): (Vec<Value>, Vec<char>) = match value.as_str() {
        Some(text) => {
            budget.bytes(text.len())?;
            (Vec::new(), text.chars().collect())
        }
        None if is_list(value) => {
            budget.items(value)?;
            (value.try_iter()?.collect(), Vec::new())
        }
        None if value.is_undefined() => return Ok(Value::UNDEFINED),
        None => return Err(invalid(format!("a value of type {} cannot be sliced", value.kind()))),
    };
    let n = items.len().max(chars.len()) as i128;
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let place = |bound: Option<i128>, default| match bound {
        None => default,
        Some(at) if at < 0 => at.saturating_add(n).max(low),
        Some(at) => at.min(high),
    };
    let (first, end) =
        if step > 0 { (place(start, low), place(stop, high)) } else { (place(start, high), place(stop, low)) };
    let places = std::iter::successors(Some(first), |at| at.checked_add(step))
        .take_while(|at| if step > 0 { *at < end } else { *at > end })
        .filter_map(|at| usize::try_from(at).ok());
    if value.as_str().is_some() {
        return Ok(Value::from(places.filter_map(|at| chars.get(at)).collect::<String>()));
    }
    let items: Vec<Value> = places.filter_map(|at| items.get(at)).cloned().collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

/// A Python integer or float.
enum Number {
    Int(i128),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(value.is_true().into())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Number::Int),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

fn integer(n: Option<i128>) -> Result<Value, Error> {
    let n = n.ok_or_else(|| invalid("an integer is too large"))?;
    Ok(i64::try_from(n).map_or_else(|_| Value::from(n), Value::from))
}

fn arithmetic(
    (left, right): (&Value, &Value),
    sign: &str,
    ints: impl Fn(i128, i128) -> Option<i128>,
    floats: impl Fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let float = |n: &Number| match *n {
        Number::Int(n) => n as f64,
        Number::Float(x) => x,
    };
    match (number(left), number(right)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => integer(ints(a, b)),
        (Some(a), Some(b)) => Ok(Value::from(floats(float(&a), float(&b)))),
        _ => Err(invalid(format!("unsupported operation: {} {sign} {}", left.kind(), right.kind()))),
    }
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn add(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        budget.bytes(a.len() + b.len())?;
        return Ok(Value::from([a, b].concat()));
    }
    if is_list(left) && is_list(right) {
        let mut items = Vec::new();
        for item in left.try_iter()?.chain(right.try_iter()?) {
            budget.bytes(ITEM)?;
            items.push(item);
        }
        return Ok(Value::from(items));
    }
    arithmetic((left, right), "+", i128::checked_add, |a, b| a + b)
}

/// `%`: of numbers what floor division leaves, with the divisor's sign; of a text, the text with values put into it.
fn remainder(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(format) = left.as_str() {
        check_widths(format)?;
        let args: Vec<Value> = if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
        args.iter().try_for_each(|arg| budget.walk(arg))?;
        let text = minijinja::formatting::format(minijinja::formatting::FormatStyle::Printf, format, &args)?;
        budget.bytes(text.len())?;
        return Ok(Value::from(text));
    }
    if number(right).is_some_and(|n| matches!(n, Number::Int(0)) || matches!(n, Number::Float(x) if x == 0.0)) {
        return Err(invalid("division by zero"));
    }
    let ints = |a: i128, b: i128| {
        let rest = a.checked_rem(b)?;
        Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
    };
    let floats = |a: f64, b: f64| {
        let rest = a % b;
        if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
    };
    arithmetic((left, right), "%", ints, floats)
}

fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    let repeated = |value: &Value, times: &Value| {
        let Some(Number::Int(times)) = number(times) else { return None };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = value.as_str() {
            let size = text.len().saturating_mul(times);
            return Some(budget.bytes(size).map(|()| Value::from(text.repeat(times))));
        }
        is_list(value).then(|| {
            let items: Vec<Value> = value.try_iter()?.collect();
            budget.bytes(items.len().max(1).saturating_mul(times).saturating_mul(ITEM))?;
            Ok(std::iter::repeat_n(&items, times).flatten().cloned().collect())
        })
    };
    if let Some(result) = repeated(left, right).or_else(|| repeated(right, left)) {
        return result;
    }
    arithmetic((left, right), "*", i128::checked_mul, |a, b| a * b)
}

/// `length`: of what is undefined, nothing.
fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        Some(n) => Ok(n),
        None if value.is_undefined() => Ok(0),
        None => Err(invalid(format!("a value of type {} has no length", value.kind()))),
    }
}

/// `default(value, boolean)`: by place or by name.
fn default(value: &Value, other: Option<Value>, boolean: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let other = options.get::<Option<Value>>("default_value")?.or(other).unwrap_or_else(|| Value::from(""));
    let boolean = options.get::<Option<Value>>("boolean")?.or(boolean).is_some_and(|boolean| boolean.is_true());
    options.assert_all_used()?;
    Ok(if value.is_undefined() || boolean && !value.is_true() { other } else { value.clone() })
}

/// The characters of HTML as MarkupSafe writes them.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

/// How often to replace: without a number, or with a negative one, always.
fn times(count: Option<&Value>) -> Result<Option<usize>, Error> {
    match count.filter(|count| !count.is_none()).map(number) {
        None => Ok(None),
        Some(Some(Number::Int(n))) => Ok(usize::try_from(n).ok()),
        Some(_) => Err(invalid("replace takes an integer for how often")),
    }
}

fn replace(budget: &Budget, text: &str, old: &str, new: &str, count: Option<usize>) -> Result<String, Error> {
    let times = text.matches(old).count().min(count.unwrap_or(usize::MAX));
    budget.bytes(text.len().saturating_add(times.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, times))
}

fn join(budget: &Budget, items: impl Iterator<Item = Result<Value, Error>>, separator: &str) -> Result<String, Error> {
    let mut text = String::new();
    for (i, item) in items.enumerate() {
        if i > 0 {
            budget.bytes(separator.len())?;
            text.push_str(separator);
        }
        text.push_str(&budget.text(&item?)?);
    }
    Ok(text)
}

fn indent(budget: &Budget, text: &str, width: usize, first: bool, blank: bool) -> Result<String, Error> {
    if width > MAX_WIDTH {
        return Err(too_large("an indentation is too large"));
    }
    budget.bytes(text.len().saturating_add(text.matches('\n').count().saturating_add(1).saturating_mul(width)))?;
    let space = " ".repeat(width);
    let lines = text.split('\n').enumerate().map(|(i, line)| {
        let indented = if i == 0 { first } else { blank || !line.is_empty() };
        if indented { format!("{space}{line}") } else { line.to_owned() }
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

/// `int`: the number in a text, or `default` where there is none.
fn to_int(value: &Value, default: Option<Value>) -> Result<Value, Error> {
    let parsed = match value.as_str().map(str::trim) {
        Some(text) => text.parse().ok().or_else(|| text.parse::<f64>().ok().map(|x| x as i128)),
        None => match number(value) {
            Some(Number::Int(n)) => Some(n),
            Some(Number::Float(x)) if x.is_finite() => Some(x as i128),
            _ => None,
        },
    };
    parsed.map_or_else(|| Ok(default.unwrap_or_else(|| Value::from(0))), |n| integer(Some(n)))
}

/// `float`: the number in a text, or `default` where there is none.
fn to_float(value: &Value, default: Option<Value>) -> Value {
    let parsed = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None => number(value).map(|n| match n {
            Number::Int(n) => n as f64,
            Number::Float(x) => x,
        }),
    };
    parsed.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from)
}

/// `sort` with Jinja2's order of arguments; minijinja takes them by name alone.
fn sort(
    state: &State<'_, '_>,
    value: Value,
    reverse: Option<Value>,
    case_sensitive: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let mut named: Vec<(String, Value)> = Vec::new();
    for (name, value) in [("reverse", reverse), ("case_sensitive", case_sensitive), ("attribute", None)] {
        if let Some(value) = options.get::<Option<Value>>(name)?.or(value) {
            named.push((name.to_owned(), value));
        }
    }
    options.assert_all_used()?;
    minijinja::filters::sort(state, value, named.into_iter().collect())
}

/// A width in a format string pads to as many characters.
fn check_widths(format: &str) -> Result<(), Error> {
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    for digits in numbers {
        if digits.parse::<usize>().map_or(true, |width| width > MAX_WIDTH) {
            return Err(too_large("a width in a format string is too large"));
        }
    }
    match format.contains('*') {
        true => Err(invalid("a format string takes its width from an argument; this is not supported")),
        false => Ok(()),
    }
}

/// Python's methods on strings, lists and dictionaries; those that change them in place are refused as in Hugging
/// Face's sandbox.
fn call_method(
    budget: &Budget,
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        budget.bytes(text.len() / 8)?;
        let arg = |i: usize| args.get(i).and_then(Value::as_str);
        match (method, args) {
            ("replace", [_, _]) | ("replace", [_, _, _]) => {
                let (Some(old), Some(new)) = (arg(0), arg(1)) else {
                    return Err(invalid("replace needs two texts"));
                };
                return replace(budget, text, old, new, times(args.get(2))?).map(Value::from);
            }
            ("join", [list]) => {
                budget.items(list)?;
                return join(budget, list.try_iter()?.map(Ok), text).map(Value::from);
            }
            ("format", _) => check_widths(text)?,
            ("split", [] | [_] | [_, _]) => return split(budget, text, args),
            ("rsplit", [_, _]) => {
                let (Some(by), Some(n)) = (arg(0).filter(|by| !by.is_empty()), args.get(1).and_then(|n| n.as_usize()))
                else {
                    return Err(invalid("rsplit needs a text and a number"));
                };
                let mut parts: Vec<Value> = text.rsplitn(n.saturating_add(1), by).map(Value::from).collect();
                parts.reverse();
                return Ok(Value::from(parts));
            }
            ("removeprefix", [_]) => {
                return Ok(Value::from(arg(0).and_then(|p| text.strip_prefix(p)).unwrap_or(text)));
            }
            ("removesuffix", [_]) => {
                return Ok(Value::from(arg(0).and_then(|s| text.strip_suffix(s)).unwrap_or(text)));
            }
            ("partition", [_]) => {
                let by = arg(0).filter(|by| !by.is_empty()).ok_or_else(|| invalid("partition needs a text"))?;
                let parts = text.split_once(by).map_or([text, "", ""], |(before, after)| [before, by, after]);
                return Ok(parts.into_iter().collect());
            }
            ("index", [_]) => {
                let at = arg(0).and_then(|part| text.find(part));
                let at = at.ok_or_else(|| invalid("substring not found"))?;
                return Ok(Value::from(text.get(..at).map_or(0, |head| head.chars().count())));
            }
            _ => {}
        }
    }
    if let ("copy", []) = (method, args)
        && value.kind() == ValueKind::Map
    {
        budget.items(value)?;
        budget.nest()?;
        return minijinja::functions::dict(Some(value.clone()), Kwargs::from_iter::<[(String, Value); 0]>([]));
    }
    if matches!(
        method,
        "append" | "extend" | "insert" | "pop" | "remove" | "clear" | "update" | "setdefault" | "sort" | "reverse"
    ) && value.as_object().is_some()
    {
        return Err(Error::new(
            ErrorKind::UnknownMethod,
            format!("method {method} changes a value in place; that is unsafe and refused"),
        ));
    }
    args.iter().chain([value]).try_for_each(|arg| budget.walk(arg))?;
    let result = unknown_method_callback(state, value, method, args)?;
    if let Some(text) = result.as_str() {
        budget.bytes(text.len())?;
    }
    Ok(result)
}

/// `str.split`: by spaces, or by a text, at most `n` times.
fn split(budget: &Budget, text: &str, args: &[Value]) -> Result<Value, Error> {
    budget.bytes(text.len())?;
    let limit = match args.get(1).map(|n| i64::try_from(n.clone())) {
        None => usize::MAX,
        Some(Ok(n)) => usize::try_from(n).unwrap_or(usize::MAX),
        Some(Err(_)) => return Err(invalid("split needs an integer")),
    };
    let mut parts: Vec<&str> = Vec::new();
    match args.first().filter(|by| !by.is_none() && !by.is_undefined()).map(Value::as_str) {
        Some(Some("")) | Some(None) => return Err(invalid("split needs a text that is not empty")),
        Some(Some(by)) => parts.extend(text.splitn(limit.saturating_add(1), by)),
        None => {
            let mut rest = text.trim_start();
            while !rest.is_empty() && parts.len() < limit {
                let (word, tail) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
                parts.push(word);
                rest = tail.trim_start();
            }
            if !rest.is_empty() {
                parts.push(rest);
            }
        }
    }
    budget.bytes(parts.len().saturating_mul(ITEM))?;
    Ok(parts.into_iter().collect())
}

/// The calendar form of `now`, in UTC.
fn strftime(format: &str, now: i64) -> Result<String, Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, seconds) = (now.div_euclid(86_400), now.rem_euclid(86_400));
    // Civil date from days, after Howard Hinnant's `civil_from_days`: years begin in March.
    let z = days + 719_468;
    let (era, day_of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let yday = if month > 2 { day_of_year + 60 + i64::from(leap) } else { day_of_year - 305 };
    let name = |list: &'static [&'static str], at: i64| list.get(at as usize).copied().unwrap_or_default();
    let month_name = name(&MONTHS, month - 1);
    let day_name = name(&DAYS, days.rem_euclid(7));
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut code = chars.next();
        let plain = code == Some('-'); // without leading zero
        if plain {
            code = chars.next();
        }
        let two = |n: i64| if plain { n.to_string() } else { format!("{n:02}") };
        match code {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&two(year.rem_euclid(100))),
            Some('m') => out.push_str(&two(month)),
            Some('d') => out.push_str(&two(day)),
            Some('e') => out.push_str(&format!("{day:2}")),
            Some('j') => out.push_str(&format!("{yday:03}")),
            Some('B') => out.push_str(month_name),
            Some('b' | 'h') => out.push_str(month_name.get(..3).unwrap_or_default()),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(day_name.get(..3).unwrap_or_default()),
            Some('H') => out.push_str(&two(hour)),
            Some('I') => out.push_str(&two(hour12)),
            Some('M') => out.push_str(&two(minute)),
            Some('S') => out.push_str(&two(second)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            _ => return Err(invalid(format!("strftime_now does not know {format:?}"))),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let format = "%Y-%m-%d %d %b %Y %A %j %I %p %-d";
        assert_eq!(strftime(format, 1_752_148_800).unwrap(), "2025-07-10 10 Jul 2025 Thursday 191 12 PM 10");
        assert_eq!(strftime(format, 0).unwrap(), "1970-01-01 01 Jan 1970 Thursday 001 12 AM 1");
        assert_eq!(strftime("%F %T %j", 1_709_251_199).unwrap(), "2024-02-29 23:59:59 060");
        assert_eq!(strftime("%F %j", 1_735_603_200).unwrap(), "2024-12-31 366");
    }
}
