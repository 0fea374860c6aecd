//! Values, operators and filters as Python and Jinja2 have them.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::{Budget, ITEM, invalid};
use super::methods::{check_format, escaped, format_args, like};

/// A list of what is in `value`, charged.
pub(super) fn collected(budget: &Budget, value: &Value) -> Result<Value, Error> {
    budget.nest()?;
    let mut items = Vec::new();
    for item in value.try_iter()? {
        budget.bytes(ITEM)?;
        items.push(item);
    }
    Ok(Value::from(items))
}

/// A dictionary of keys and values by turns.
pub(super) fn map(budget: &Budget, items: &[Value]) -> Result<Value, Error> {
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

/// `dict` of a list of pairs.
pub(super) fn of_pairs(budget: &Budget, list: &Value) -> Result<Value, Error> {
    let mut items = Vec::new();
    for pair in list.try_iter()? {
        let mut two: Vec<Value> = pair.try_iter()?.take(3).collect();
        if two.len() != 2 {
            return Err(invalid("dict takes pairs"));
        }
        items.append(&mut two);
    }
    map(budget, &items)
}

/// `value[start:stop:step]` with Python's rules.
pub(super) fn slice(budget: &Budget, value: &Value, [start, stop, step]: [&Value; 3]) -> Result<Value, Error> {
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
        None => return Ok(Value::UNDEFINED),
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
        return Ok(like(value, places.filter_map(|at| chars.get(at)).collect()));
    }
    let items: Vec<Value> = places.filter_map(|at| items.get(at)).cloned().collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

/// A Python integer or float.
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

pub(super) fn number(value: &Value) -> Option<Number> {
    match value.kind() {
        ValueKind::Bool => Some(Number::Int(value.is_true().into())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok().map(Number::Int),
        ValueKind::Number => f64::try_from(value.clone()).ok().map(Number::Float),
        _ => None,
    }
}

pub(super) fn integer(n: Option<i128>) -> Result<Value, Error> {
    let n = n.ok_or_else(|| invalid("an integer is too large"))?;
    Ok(i64::try_from(n).map_or_else(|_| Value::from(n), Value::from))
}

pub(super) fn arithmetic(
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

pub(super) fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

pub(super) fn add(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        budget.bytes(a.len() + b.len())?;
        return Ok(match (left.is_safe(), right.is_safe()) {
            (false, false) => Value::from([a, b].concat()),
            (true, true) => Value::from_safe_string([a, b].concat()),
            // Beside a text that is marked as HTML, another is escaped.
            (true, false) => Value::from_safe_string([a, &escaped(budget, b)?].concat()),
            (false, true) => Value::from_safe_string([&escaped(budget, a)?, b].concat()),
        });
    }
    if is_list(left) && is_list(right) {
        if left.is_tuple() != right.is_tuple() {
            return Err(invalid("+ joins two lists or two tuples"));
        }
        let mut items = Vec::new();
        for item in left.try_iter()?.chain(right.try_iter()?) {
            budget.bytes(ITEM)?;
            items.push(item);
        }
        return Ok(if left.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) });
    }
    arithmetic((left, right), "+", i128::checked_add, |a, b| a + b)
}

/// `%`: of numbers what floor division leaves, with the divisor's sign; of a text, the text with values put into it.
pub(super) fn remainder(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(format) = left.as_str() {
        check_format(left, format)?;
        let args: Vec<Value> = if right.is_tuple() { right.try_iter()?.collect() } else { vec![right.clone()] };
        let args = format_args(budget, format, &args)?;
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
        match rest {
            0.0 => 0f64.copysign(b),
            rest if (rest < 0.0) != (b < 0.0) => rest + b,
            rest => rest,
        }
    };
    arithmetic((left, right), "%", ints, floats)
}

/// `/`: of integers, the nearest float to the true quotient.
pub(super) fn divide(left: &Value, right: &Value) -> Result<Value, Error> {
    let exact = |n: i128| n.unsigned_abs() <= 1 << 53;
    match (number(left), number(right)) {
        (_, Some(Number::Int(0))) => Err(invalid("division by zero")),
        (_, Some(Number::Float(0.0))) => Err(invalid("division by zero")),
        (Some(Number::Int(a)), Some(Number::Int(b))) if exact(a) && exact(b) => Ok(Value::from(a as f64 / b as f64)),
        (Some(Number::Int(0)), Some(Number::Int(_))) => Ok(Value::from(0.0)),
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            let by = b.unsigned_abs();
            if by > u128::from(u64::MAX) {
                return Err(invalid("a divisor is too large"));
            }
            // At least 64 bits of the quotient; the last one stands for all that follow, so that it is rounded once.
            let shift = a.unsigned_abs().leading_zeros();
            let shifted = a.unsigned_abs() << shift;
            let quotient =
                ((shifted / by) | u128::from(!shifted.is_multiple_of(by))) as f64 * 0.5f64.powi(shift as i32);
            Ok(Value::from(if (a < 0) != (b < 0) { -quotient } else { quotient }))
        }
        _ => arithmetic((left, right), "/", |_, _| None, |a, b| a / b),
    }
}

pub(super) fn multiply(budget: &Budget, left: &Value, right: &Value) -> Result<Value, Error> {
    let repeated = |value: &Value, times: &Value| {
        let Some(Number::Int(times)) = number(times) else { return None };
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        if let Some(text) = value.as_str() {
            let size = text.len().saturating_mul(times);
            return Some(budget.bytes(size).map(|()| like(value, text.repeat(times))));
        }
        is_list(value).then(|| {
            let items: Vec<Value> = value.try_iter()?.collect();
            budget.bytes(items.len().max(1).saturating_mul(times).saturating_mul(ITEM))?;
            let items: Vec<Value> = std::iter::repeat_n(&items, times).flatten().cloned().collect();
            Ok(if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) })
        })
    };
    if let Some(result) = repeated(left, right).or_else(|| repeated(right, left)) {
        return result;
    }
    arithmetic((left, right), "*", i128::checked_mul, |a, b| a * b)
}

/// `length`: of what is undefined, nothing.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    match value.len() {
        Some(n) => Ok(n),
        None if value.is_undefined() => Ok(0),
        None => Err(invalid(format!("a value of type {} has no length", value.kind()))),
    }
}

/// `default(value, boolean)`: by place or by name.
pub(super) fn default(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (args, options): (&[Value], Kwargs) = from_args(&args)?;
    // What is undefined is a default as well; an `Option` would take it for none.
    let named = |name: &str| if options.has(name) { options.get::<Value>(name).map(Some) } else { Ok(None) };
    let other = named("default_value")?.or_else(|| args.first().cloned()).unwrap_or_else(|| Value::from(""));
    let boolean = named("boolean")?.or_else(|| args.get(1).cloned()).is_some_and(|boolean| boolean.is_true());
    options.assert_all_used()?;
    if args.len() > 2 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    Ok(if value.is_undefined() || boolean && !value.is_true() { other } else { value.clone() })
}

/// `round(value, precision, method)`: an integer stays one if it is rounded in the common way.
pub(super) fn round(value: &Value, digits: Option<i32>, method: Option<&str>) -> Result<Value, Error> {
    let digits = digits.unwrap_or(0);
    if !(0..=15).contains(&digits) {
        return Err(invalid("round takes 0 to 15 digits"));
    }
    let scale = 10f64.powi(digits);
    let x = match (number(value), method) {
        (Some(Number::Int(n)), None | Some("common")) => return integer(Some(n)),
        (Some(Number::Int(n)), _) => n as f64,
        (Some(Number::Float(x)), _) => x,
        (None, _) => return Err(invalid(format!("round takes a number, not a {}", value.kind()))),
    };
    match method {
        // Rust rounds to the nearest decimal, and to even, as Python does.
        None | Some("common") if x.is_finite() => {
            let text = format!("{x:.*}", usize::try_from(digits).unwrap_or_default());
            Ok(Value::from(text.parse::<f64>().unwrap_or(x)))
        }
        None | Some("common") => Ok(Value::from(x)),
        // Python rounds to an integer here, which has no negative zero.
        Some("ceil") => Ok(Value::from(((x * scale).ceil() + 0.0) / scale)),
        Some("floor") => Ok(Value::from(((x * scale).floor() + 0.0) / scale)),
        Some(_) => Err(invalid("round takes the method common, ceil or floor")),
    }
}

/// `int`: the number in a text, or `default` where there is none.
pub(super) fn to_int(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let default = fallback(args, Value::from(0))?;
    let parsed = match value.as_str().map(str::trim) {
        Some(text) => text.parse().ok().or_else(|| text.parse::<f64>().ok().map(|x| x as i128)),
        None => match number(value) {
            Some(Number::Int(n)) => Some(n),
            Some(Number::Float(x)) if x.is_finite() => Some(x as i128),
            _ => None,
        },
    };
    parsed.map_or(Ok(default), |n| integer(Some(n)))
}

/// `float`: the number in a text, or `default` where there is none.
pub(super) fn to_float(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let default = fallback(args, Value::from(0.0))?;
    let parsed = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None => number(value).map(|n| match n {
            Number::Int(n) => n as f64,
            Number::Float(x) => x,
        }),
    };
    Ok(parsed.map_or(default, Value::from))
}

/// The argument `default`, by place or by name; also one that is undefined, which an `Option` would take for none.
pub(super) fn fallback(args: Rest<ValueOrKwargs>, without: Value) -> Result<Value, Error> {
    let args = args.into_values();
    let (args, options): (&[Value], Kwargs) = from_args(&args)?;
    let named = if options.has("default") { Some(options.get("default")?) } else { None };
    options.assert_all_used()?;
    match args {
        [] | [_] => Ok(named.or_else(|| args.first().cloned()).unwrap_or(without)),
        _ => Err(Error::from(ErrorKind::TooManyArguments)),
    }
}

/// `sort` with Jinja2's order of arguments; minijinja takes them by name alone.
pub(super) fn sort(
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
