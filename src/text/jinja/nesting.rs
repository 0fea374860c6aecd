//! How deeply a template nests, known before it is parsed: the parser and the compiler recurse.

use minijinja::machinery::{Span, Token, tokenize};
use minijinja::{Error, ErrorKind};

use super::syntax;

/// Operators, brackets and branches in one another. minijinja bounds brackets and blocks itself, at about 75 and 150.
const MAX_DEPTH: usize = 256;

/// Refuses a template that would overflow the stack.
///
/// What makes the tree of an expression deeper is a token: an operator before, between or after operands, a dot, a
/// filter, a bracket. A comma or colon begins anew. An `elif` stands in the `if` before it.
pub(super) fn check(source: &str) -> Result<(), Error> {
    let mut brackets: Vec<usize> = vec![0]; // operators since the last comma, for each open bracket
    let mut branches: Vec<usize> = Vec::new(); // branches of each `if` that is open
    let (mut depth, mut in_branches) = (0usize, 0usize);
    let mut blocks: Vec<&str> = Vec::new(); // those that `break` cannot leave, and loops
    let mut set = false; // in a tag that sets a name to what follows it
    let mut keyword = false;
    for token in tokenize(source, false, syntax()?) {
        let (token, span) = token?;
        let first = std::mem::replace(&mut keyword, matches!(token, Token::BlockStart));
        match token {
            Token::BlockEnd if set => blocks.push("set"),
            Token::Assign if brackets.len() == 1 => set = false,
            Token::Ident("set") if first => set = true,
            Token::Ident(name @ ("for" | "with" | "filter" | "call" | "macro" | "autoescape")) if first => {
                blocks.push(name)
            }
            Token::Ident("endfor" | "endwith" | "endset" | "endfilter" | "endcall" | "endmacro" | "endautoescape")
                if first =>
            {
                blocks.pop();
            }
            // minijinja jumps without ending what was begun in the loop, and then panics.
            Token::Ident(jump @ ("break" | "continue"))
                if first && blocks.last().is_some_and(|block| *block != "for") =>
            {
                let what = format!("line {}: `{jump}` leaves a `{}`", span.start_line, blocks.last().unwrap_or(&""));
                return Err(Error::new(ErrorKind::SyntaxError, what));
            }
            _ => {}
        }
        set &= !matches!(token, Token::BlockEnd);
        match token {
            Token::VariableStart | Token::BlockStart | Token::VariableEnd | Token::BlockEnd => {
                brackets.clear();
                brackets.push(0);
                depth = 0;
            }
            Token::Ident("if") if first => {
                branches.push(1);
                in_branches += 1;
            }
            Token::Ident("elif") if first => {
                branches.iter_mut().last().into_iter().for_each(|n| *n += 1);
                in_branches += 1;
            }
            Token::Ident("endif") if first => in_branches -= branches.pop().unwrap_or_default().min(in_branches),
            Token::Comma | Token::Colon => depth -= brackets.last_mut().map(std::mem::take).unwrap_or_default(),
            Token::ParenClose | Token::BracketClose | Token::BraceClose if brackets.len() > 1 => {
                depth -= brackets.pop().unwrap_or_default();
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {}
            _ if deepens(&token) => {
                brackets.iter_mut().last().into_iter().for_each(|n| *n += 1);
                depth += 1;
                if matches!(token, Token::ParenOpen | Token::BracketOpen | Token::BraceOpen) {
                    brackets.push(0);
                }
            }
            _ => {}
        }
        if depth + in_branches > MAX_DEPTH {
            return Err(too_deep(&span));
        }
    }
    Ok(())
}

fn deepens(token: &Token<'_>) -> bool {
    match token {
        Token::Ident(name) => matches!(*name, "not" | "and" | "or" | "if" | "else" | "is" | "in"),
        Token::TemplateData(_)
        | Token::Str(_)
        | Token::String(_)
        | Token::Int(_)
        | Token::Int128(_)
        | Token::Float(_)
        | Token::Assign => false,
        _ => true,
    }
}

fn too_deep(span: &Span) -> Error {
    let what = format!(
        "line {}, column {}: the template nests too deeply: more than {MAX_DEPTH} operators, brackets or branches in \
         one another; `set` can give a part a name",
        span.start_line, span.start_col
    );
    Error::new(ErrorKind::SyntaxError, what)
}
