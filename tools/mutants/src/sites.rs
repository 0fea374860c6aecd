//! Where faults can be put in, and which.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use regex::Regex;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, Lit, Stmt, UnOp};

/// One fault.
#[derive(Clone)]
pub struct Mutant {
    pub id: u32,
    /// Relative to the repository.
    pub path: String,
    pub line: usize,
    /// Bytes of the file.
    pub range: Range<usize>,
    pub old: String,
    pub new: String,
    /// A statement, else an expression.
    statement: bool,
}

impl Mutant {
    /// Both texts, and the condition between them.
    pub fn switched(&self) -> String {
        let (id, old, new) = (self.id, &self.old, &self.new);
        if self.statement {
            format!("if !crate::mutant({id}) {{ {old} }}")
        } else {
            format!("(if crate::mutant({id}) {{ {new} }} else {{ {old} }})")
        }
    }
}

/// Not part of what runs on a host, or faults there change no result: times, and other front ends.
const LEFT_OUT: [&str; 6] =
    ["src/main.rs", "src/testing.rs", "src/web/", "src/exec/profile.rs", "src/gpu/bandwidth.rs", "src/gpu/timer.rs"];

/// Faults in `src`: other operators and constants, statements left out.
pub fn rust(root: &Path, random: &mut fastrand::Rng, count: usize) -> Result<Vec<Mutant>> {
    let mut sites = Vec::new();
    for path in files(root, "src", "rs")? {
        if LEFT_OUT.iter().any(|left| path.starts_with(left)) || path.ends_with("tests.rs") {
            continue;
        }
        let text = fs::read_to_string(root.join(&path))?;
        let file = syn::parse_file(&text).with_context(|| path.clone())?;
        let mut finder = Finder { text: &text, path: &path, sites: Vec::new() };
        finder.visit_file(&file);
        sites.append(&mut finder.sites);
    }
    Ok(chosen(sites, random, count, 0))
}

/// Faults in `wgsl`, by lines.
pub fn wgsl(root: &Path, random: &mut fastrand::Rng, count: usize) -> Result<Vec<Mutant>> {
    let operator = Regex::new(r" (<=|>=|==|!=|<|>|\+|-|\*|/|%|&&|\|\||\+=) ")?;
    let literal = Regex::new(r"\b([0-9]+)u\b|\b(min|max)\(|\b(workgroupBarrier|storageBarrier)\(\);")?;
    let mut sites = Vec::new();
    let mut barriers = Vec::new();
    for path in files(root, "wgsl", "wgsl")? {
        let text = fs::read_to_string(root.join(&path))?;
        let mut start = 0;
        for (number, line) in text.split_inclusive('\n').enumerate() {
            let code = line.split("//").next().unwrap_or("");
            let declares = ["override", "@", "struct", "var<", "enable", "const", "alias"];
            if !declares.iter().any(|word| code.trim_start().starts_with(word)) {
                for found in operator.captures_iter(code).chain(literal.captures_iter(code)) {
                    let Some(found) = found.iter().skip(1).flatten().next() else { continue };
                    let old = found.as_str();
                    let new = match old {
                        "<" => "<=",
                        "<=" => "<",
                        ">" => ">=",
                        ">=" => ">",
                        "==" => "!=",
                        "!=" => "==",
                        "+" => "-",
                        "-" => "+",
                        "*" => "+",
                        "/" => "*",
                        "%" => "/",
                        "&&" => "||",
                        "||" => "&&",
                        "+=" => "-=",
                        "min" => "max",
                        "max" => "min",
                        "workgroupBarrier" | "storageBarrier" => "",
                        number => &(number.parse::<u32>().unwrap_or(0) + 1).to_string(),
                    };
                    let range = start + found.start()..start + found.end();
                    let range = if new.is_empty() { range.start..range.end + "()".len() } else { range };
                    let list = if new.is_empty() { &mut barriers } else { &mut sites };
                    let old = code.trim_end().to_owned();
                    let (path, new) = (path.clone(), new.to_owned());
                    list.push(Mutant { id: 0, path, line: number + 1, range, old, new, statement: false });
                }
            }
            start += line.len();
        }
    }
    // A quarter are barriers, which are few and easily missed.
    let mut all = chosen(barriers, random, count / 4, 1000);
    all.extend(chosen(sites, random, count - count / 4, 2000));
    random.shuffle(&mut all);
    Ok(all)
}

fn files(root: &Path, folder: &str, extension: &str) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            all.extend(files(root, &name, extension)?);
        } else if Path::new(&name).extension().is_some_and(|e| e == extension) {
            all.push(name);
        }
    }
    all.sort();
    Ok(all)
}

/// So many of them, of which none lies in another.
fn chosen(mut sites: Vec<Mutant>, random: &mut fastrand::Rng, count: usize, first: u32) -> Vec<Mutant> {
    random.shuffle(&mut sites);
    let mut chosen: Vec<Mutant> = Vec::new();
    for site in sites {
        let apart = |other: &Mutant| {
            other.path != site.path || other.range.end <= site.range.start || site.range.end <= other.range.start
        };
        if chosen.len() < count && chosen.iter().all(apart) {
            let id = first + chosen.len() as u32;
            chosen.push(Mutant { id, ..site });
        }
    }
    chosen
}

struct Finder<'a> {
    text: &'a str,
    path: &'a str,
    sites: Vec<Mutant>,
}

impl Finder<'_> {
    fn add(&mut self, node: &impl Spanned, new: String, statement: bool) {
        let range = node.span().byte_range();
        let old = self.text[range.clone()].to_owned();
        let line = node.span().start().line;
        self.sites.push(Mutant { id: 0, path: self.path.to_owned(), line, range, old, new, statement });
    }

    fn of(&self, node: &impl Spanned) -> &str {
        &self.text[node.span().byte_range()]
    }
}

fn other(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Lt(_) => "<=",
        BinOp::Le(_) => "<",
        BinOp::Gt(_) => ">=",
        BinOp::Ge(_) => ">",
        BinOp::Eq(_) => "!=",
        BinOp::Ne(_) => "==",
        BinOp::And(_) => "||",
        BinOp::Or(_) => "&&",
        BinOp::Add(_) => "-",
        BinOp::Sub(_) => "+",
        BinOp::Mul(_) => "+",
        BinOp::Div(_) => "*",
        BinOp::Rem(_) => "/",
        BinOp::Shl(_) => ">>",
        BinOp::Shr(_) => "<<",
        BinOp::BitAnd(_) => "|",
        BinOp::BitOr(_) => "&",
        BinOp::AddAssign(_) => "-=",
        BinOp::SubAssign(_) => "+=",
        BinOp::MulAssign(_) => "+=",
        _ => return None,
    })
}

fn test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        let meta = &a.meta;
        meta.path().is_ident("test")
            || meta.path().is_ident("cfg") && meta.require_list().is_ok_and(|l| l.tokens.to_string().contains("test"))
    })
}

impl<'ast> Visit<'ast> for Finder<'_> {
    // Where no condition can stand, or nothing runs.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_path(&mut self, _: &'ast syn::Path) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !test_only(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.sig.constness.is_none() && !test_only(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if item.sig.constness.is_none() && !test_only(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(Expr::Call(_) | Expr::MethodCall(_), Some(_)) = stmt {
            self.add(stmt, String::new(), true);
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        // A condition with `let` has no other side.
        if let Some(op) = other(&binary.op).filter(|_| !self.of(binary).contains("let ")) {
            let new = format!("{} {op} {}", self.of(&binary.left), self.of(&binary.right));
            self.add(binary, new, false);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if let UnOp::Not(_) = unary.op {
            let new = self.of(&unary.expr).to_owned();
            self.add(unary, new, false);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let swapped = match call.method.to_string().as_str() {
            "min" => Some("max"),
            "max" => Some("min"),
            _ => None,
        };
        if let (Some(name), 1) = (swapped, call.args.len()) {
            let new = format!("{}.{name}({})", self.of(&call.receiver), self.of(&call.args));
            self.add(call, new, false);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_lit(&mut self, literal: &'ast syn::ExprLit) {
        let new = match &literal.lit {
            Lit::Int(int) => int.base10_parse::<u128>().ok().map(|n| format!("{}{}", n + 1, int.suffix())),
            Lit::Float(float) => float
                .base10_parse::<f64>()
                .ok()
                .filter(|x| *x != 0.0)
                .map(|x| format!("{:e}{}", x * 1.01, float.suffix())),
            Lit::Bool(bool) => Some((!bool.value).to_string()),
            _ => None,
        };
        if let Some(new) = new {
            self.add(literal, new, false);
        }
    }
}
