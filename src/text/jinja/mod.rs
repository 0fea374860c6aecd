//! The template language: minijinja with what Hugging Face adds to Jinja2, under limits.
//!
//! minijinja bounds instructions (fuel), recursion and `range`, but not the bytes that they make: twenty-five times
//! `s ~ s` fill any memory. So every operation that can make a text longer is charged to a [`Budget`]: the compiled
//! program's `~`, `+`, `*` and list building become calls of functions defined here (one instruction for one
//! instruction), long pieces of raw text are emitted through the formatter, and filters and methods are wrapped.

use std::sync::Arc;

use minijinja::machinery::{CompiledTemplate, Instruction, Instructions, TemplateConfig, Token, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Serde, Tuple, ValueKind, ValueOrKwargs, from_args};
use minijinja::{AutoEscape, Environment, Error, State, Value};

use self::budget::{Budget, Charged, invalid, too_large};
use self::json::{Json, write_value};
use self::methods::{call_method, capitalize, check_format, escaped, format_args, indent, join, like, replace, times};
use self::python::{
    Number, add, collected, default, divide, integer, is_list, length, map, multiply, number, of_pairs, remainder,
    round, slice, sort, to_float, to_int,
};
use self::strftime::strftime;
use super::template::Twins;

pub(crate) use self::budget::Size;

mod budget;
mod json;
mod methods;
mod nesting;
mod python;
mod strftime;

/// Instructions that every template may run, and those that each value of the input adds.
const FUEL: u64 = 300_000;
const FUEL_PER_VALUE: u64 = 2_000;
/// Longest raw text that is emitted without being charged; fuel bounds how often.
const UNCHARGED: usize = 32;
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
const ORDER: &str = "wgslm order";
const IN: &str = "wgslm in";
const ITERATED: &str = "wgslm iterated";
const DIV: &str = "wgslm div";
const NEG: &str = "wgslm neg";
const KEY: &str = "wgslm key";

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
            Instruction::LoadConst(value) => *value = listed(value),
            Instruction::StringConcat => *instruction = call(CONCAT),
            Instruction::Add => *instruction = call(ADD),
            Instruction::Mul => *instruction = call(MUL),
            Instruction::Rem => *instruction = call(REM),
            Instruction::Div => *instruction = call(DIV),
            Instruction::Neg => *instruction = Instruction::CallFunction(NEG, Some(1)),
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
            // A recursive call of the loop comes back to `PushLoop`, with a value of its own.
            Instruction::PushLoop(_) => {
                outlined.push((at, vec![Instruction::CallFunction(ITERATED, Some(1)), instruction.clone()]));
            }
            // What is set in the body of `set` or `filter` is known in it alone.
            Instruction::BeginCapture(_) => outlined.push((at, vec![instruction.clone(), Instruction::PushWith])),
            Instruction::EndCapture => outlined.push((at, vec![Instruction::PopFrame, instruction.clone()])),
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
                        match instruction {
                            Instruction::GetItem => KEY,
                            Instruction::Gt | Instruction::Gte | Instruction::Lt | Instruction::Lte => ORDER,
                            Instruction::In => IN,
                            _ => LOOK,
                        },
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

/// A constant with lists in place of what is lazy: minijinja computes `[1] * 2` to an iterator.
fn listed(value: &Value) -> Value {
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable if !value.is_tuple() => {
            value.try_iter().into_iter().flatten().map(|item| listed(&item)).collect::<Vec<_>>().into()
        }
        _ => value.clone(),
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
    env.add_function(DIV, |left: Value, right: Value| divide(&left, &right));
    env.add_function(NEG, |value: Value| match number(&value) {
        Some(Number::Int(n)) => integer(n.checked_neg()),
        Some(Number::Float(x)) => Ok(Value::from(-x)),
        None => Err(invalid(format!("unsupported operation: - {}", value.kind()))),
    });
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
        if container.is_safe() {
            return Err(invalid("a character of a text that is marked as HTML; `string` and a slice give one"));
        }
        Ok::<_, Error>(Value::from(vec![container, key]))
    });
    let b = budget.clone();
    env.add_function(LOOK, move |left: Value, right: Value| {
        b.walk(&left)?;
        b.walk(&right)?;
        Ok::<_, Error>(Value::from(vec![left, right]))
    });
    let b = budget.clone();
    env.add_function(ORDER, move |left: Value, right: Value| {
        b.walk(&left)?;
        b.walk(&right)?;
        let numbers = number(&left).is_some() && number(&right).is_some();
        let texts = left.as_str().is_some() && right.as_str().is_some();
        let lists = left.kind() == ValueKind::Seq && right.kind() == left.kind() && left.is_tuple() == right.is_tuple();
        // minijinja has an order for truth beside numbers, another one.
        let plain = |value: Value| match value.kind() {
            ValueKind::Bool => Value::from(i64::from(value.is_true())),
            _ => value,
        };
        match numbers || texts || lists {
            true => Ok(Value::from(vec![plain(left), plain(right)])),
            false => Err(invalid(format!("{} and {} have no order", left.kind(), right.kind()))),
        }
    });
    let b = budget.clone();
    env.add_function(ITERATED, move |value: Value| match value.as_str() {
        // minijinja does not know how many characters are left.
        Some(text) => {
            b.items(&value)?;
            Ok(text.chars().map(|c| Value::from(c.to_string())).collect())
        }
        None if value.is_undefined() || value.as_object().is_some() => Ok(value),
        None => Err(invalid(format!("a value of type {} is not iterable", value.kind()))),
    });
    let b = budget.clone();
    env.add_function(IN, move |item: Value, container: Value| {
        b.walk(&item)?;
        b.walk(&container)?;
        match container.as_str().is_some() && item.as_str().is_none() {
            true => Err(invalid(format!("a text is searched for a value of type {}", item.kind()))),
            false => Ok(Value::from(vec![item, container])),
        }
    });
    for (name, function) in [
        ("dict", Value::from_function(minijinja::functions::dict)),
        ("namespace", Value::from_function(minijinja::functions::namespace)),
    ] {
        let b = budget.clone();
        env.add_function(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let mut args = args.into_values().to_vec();
            b.nest()?;
            args.iter().try_for_each(|arg| b.items(arg))?;
            if let Some(first) = args.first_mut().filter(|first| name == "dict" && is_list(first)) {
                *first = of_pairs(&b, first)?;
            }
            function.call(state, &args)
        });
    }
    charge_filters(&mut env, budget);
    env.add_function("raise_exception", |message: String| Err::<Value, _>(invalid(message)));
    if let Some(now) = now {
        env.add_function("strftime_now", move |format: &str| strftime(format, now));
    }

    let (b, twins) = (budget.clone(), twins.cloned());
    env.add_filter("tojson", move |value: Value, args: Rest<ValueOrKwargs>| {
        let json = Json::from_args(&args.into_values(), twins.clone())?;
        let mut out = Charged { text: String::new(), budget: &b };
        write_value(&value, &json, 0, &mut out)?;
        Ok::<_, Error>(out.text)
    });
    env.add_filter("round", |value: &Value, digits: Option<i32>, method: Option<String>, options: Kwargs| {
        let digits = options.get::<Option<i32>>("precision")?.or(digits);
        let method = options.get::<Option<String>>("method")?.or(method);
        options.assert_all_used()?;
        round(value, digits, method.as_deref())
    });
    let b = budget.clone();
    env.add_filter("capitalize", move |value: &Value| {
        let text = capitalize(&b.text(value)?);
        b.bytes(text.len())?;
        Ok::<_, Error>(like(value, text))
    });
    for (name, upper) in [("lower", false), ("upper", true)] {
        let b = budget.clone();
        env.add_test(name, move |value: &Value| {
            let text = b.text(value)?;
            let (has_upper, has_lower) = (text.contains(char::is_uppercase), text.contains(char::is_lowercase));
            Ok::<_, Error>(if upper { has_upper && !has_lower } else { has_lower && !has_upper })
        });
    }
    env.add_filter("abs", |value: &Value| match number(value) {
        Some(Number::Int(n)) => integer(n.checked_abs()),
        Some(Number::Float(x)) => Ok(Value::from(x.abs())),
        None => Err(invalid(format!("abs takes a number, not a {}", value.kind()))),
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
    env.add_filter("string", move |value: &Value| Ok::<_, Error>(like(value, b.text(value)?)));
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
        env.add_filter(name, move |text: &Value| match text.is_safe() && name != "forceescape" {
            true => Ok::<_, Error>(text.clone()),
            false => Ok(Value::from_safe_string(escaped(&b, &b.text(text)?)?)),
        });
    }
    let b = budget.clone();
    env.add_filter("safe", move |text: &Value| Ok::<_, Error>(Value::from_safe_string(b.text(text)?)));
    env.add_test("iterable", |value: &Value| {
        value.as_str().is_some() || value.is_undefined() || value.as_object().is_some_and(|_| value.try_iter().is_ok())
    });
    env.add_test("sequence", |value: &Value| {
        value.as_str().is_some()
            || value.is_undefined()
            || matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map)
    });
    let b = budget.clone();
    env.add_filter("join", move |list: &Value, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let (args, options): (&[Value], Kwargs) = from_args(&args)?;
        let named = |name: &str, i: usize| if options.has(name) { options.get(name) } else { Ok(args.get(i).cloned()) };
        let separator = named("d", 0)?.map_or_else(|| Ok(String::new()), |separator| b.text(&separator))?;
        let attribute = named("attribute", 1)?.filter(|attribute| !attribute.is_none());
        options.assert_all_used()?;
        b.items(list)?;
        let items = list.try_iter()?.map(|item| match &attribute {
            Some(name) => match name.as_str() {
                Some(path) => path.split('.').try_fold(item, |item, name| item.get_attr(name)),
                None => item.get_item(name),
            },
            None => Ok(item),
        });
        join(&b, items, &separator)
    });
    let b = budget.clone();
    env.add_filter(
        "indent",
        move |value: &Value, width: Option<usize>, first: Option<bool>, blank: Option<bool>, options: Kwargs| {
            let width = options.get::<Option<usize>>("width")?.or(width).unwrap_or(4);
            let first = options.get::<Option<bool>>("first")?.or(first).unwrap_or(false);
            let blank = options.get::<Option<bool>>("blank")?.or(blank).unwrap_or(false);
            let text = value.as_str().ok_or_else(|| invalid("indent takes a text"))?;
            Ok::<_, Error>(like(value, indent(&b, text, width, first, blank)?))
        },
    );
    let b = budget.clone();
    env.add_filter("format", move |template: &Value, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        let format = template.as_str().ok_or_else(|| invalid("format takes a text"))?;
        check_format(template, format)?;
        let args = format_args(&b, format, &args)?;
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
        let text = ["lower", "split", "title", "trim", "upper"].contains(&name);
        let compares = ["dictsort", "groupby", "max", "min", "unique"].contains(&name);
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let mut args = args.into_values().to_vec();
            if let Some(first) = args.first_mut().filter(|first| text && name != "split" && first.as_str().is_none()) {
                *first = Value::from(b.text(first)?);
            }
            // A dictionary's last is its last key, and the first of equal ones is the largest; minijinja takes the last.
            if let Some(first) = args
                .first_mut()
                .filter(|first| name == "max" || ["last", "reverse"].contains(&name) && first.kind() == ValueKind::Map)
            {
                *first = collected(&b, first)?;
                if name == "max" {
                    *first = first.reverse()?;
                }
            }
            let lenient = ["map", "select", "reject", "selectattr", "rejectattr"].contains(&name);
            let empty = |first: &Value| lenient && !first.is_true() || name == "items" && first.is_undefined();
            if ["first", "last"].contains(&name) && args.first().is_some_and(Value::is_undefined) {
                return Ok(Value::UNDEFINED);
            }
            if args.first().is_some_and(empty) {
                return Ok(Value::from(Vec::<Value>::new()));
            }
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
            let kept = ["lower", "reverse", "trim", "upper"].contains(&name);
            match result.kind() {
                ValueKind::String if args.first().is_some_and(Value::is_safe) => Ok(match kept {
                    true => Value::from_safe_string(result.to_string()),
                    false => Value::from(result.to_string()),
                }),
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
