//! The places of a Rust file that can be changed while the program runs: not its constants, and not what a macro is given.

use std::ops::Range;

use anyhow::Result;
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ReturnType, Stmt, Type, UnOp};

use super::super::Edit;

/// How a switch is written around a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// A statement, which is left out.
    Statement,
    /// An expression, with others in its stead.
    Value,
    /// The start of a function, which returns at once.
    Start,
    /// The end of the pattern of an arm, which then matches nothing.
    Arm,
}

/// A place, and the edits that are within it.
#[derive(Debug)]
pub struct Place {
    pub form: Form,
    pub range: Range<usize>,
    pub edits: Vec<Edit>,
}

/// From the outermost to the innermost, in order.
pub fn places(source: &str) -> Result<Vec<Place>> {
    let mut places = Places { source, found: Vec::new() };
    places.visit_file(&syn::parse_file(source)?);
    let mut found = places.found;
    found.sort_by_key(|place| (place.range.start, std::cmp::Reverse(place.range.end), place.form));
    // The condition of an `if` is often an operation too.
    found.dedup_by(|next, kept| {
        let same = (next.form, &next.range) == (kept.form, &kept.range);
        if same {
            kept.edits.append(&mut next.edits);
        }
        same
    });
    Ok(found)
}

struct Places<'s> {
    source: &'s str,
    found: Vec<Place>,
}

impl Places<'_> {
    fn add<T: Into<String>>(
        &mut self,
        form: Form,
        place: Range<usize>,
        edits: impl IntoIterator<Item = (Range<usize>, T)>,
    ) {
        let edits: Vec<Edit> = edits.into_iter().map(|(range, text)| Edit { range, text: text.into() }).collect();
        if !edits.is_empty() {
            self.found.push(Place { form, range: place, edits });
        }
    }

    /// The expression is replaced by each of the texts.
    fn replace(&mut self, place: &impl Spanned, texts: &[&str]) {
        let range = range(place.span());
        self.add(Form::Value, range.clone(), texts.iter().map(|text| (range.clone(), *text)));
    }

    fn condition(&mut self, condition: &Expr, texts: &[&str]) {
        if !has_let(condition) {
            self.replace(condition, texts);
        }
    }

    fn function(&mut self, output: &ReturnType, block: &syn::Block) {
        let start = range(block.brace_token.span.open()).end;
        let returns = returned(output).into_iter().map(|value| (start..start, format!(" return {value};")));
        self.add(Form::Start, start..start, returns);
        self.visit_block(block);
    }
}

impl<'ast> Visit<'ast> for Places<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            // The values of constants are not computed while the program runs.
            syn::Item::Const(_) | syn::Item::Static(_) | syn::Item::Enum(_) => return,
            _ => return visit::visit_item(self, item),
        };
        if !is_for_tests(attributes) && !is_debug(item) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if item.sig.constness.is_none() {
            self.function(&item.sig.output, &item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if item.sig.constness.is_none() && !is_for_tests(&item.attrs) {
            self.function(&item.sig.output, &item.block);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig.output, block);
        }
    }

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        if let Stmt::Expr(expression, Some(_)) = statement {
            let assigns = matches!(expression, Expr::Assign(_) | Expr::Call(_) | Expr::MethodCall(_))
                || matches!(expression, Expr::Binary(binary) if swapped(&binary.op).0);
            if assigns {
                let range = range(statement.span());
                self.add(Form::Statement, range.clone(), [(range, "")]);
            }
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        if !has_let(&binary.left) && !has_let(&binary.right) {
            let (sign, whole) = (range(binary.op.span()), range(binary.span()));
            let mut edits: Vec<(Range<usize>, String)> =
                swapped(&binary.op).1.iter().map(|other| (sign.clone(), (*other).to_owned())).collect();
            if matches!(binary.op, BinOp::And(_) | BinOp::Or(_)) {
                // One operand alone.
                let operands = [&binary.left, &binary.right].map(|operand| range(operand.span()));
                edits.extend(operands.map(|operand| (whole.clone(), self.source[operand].to_owned())));
            }
            self.add(Form::Value, whole, edits);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) {
            self.add(Form::Value, range(unary.span()), [(range(unary.op.span()), "")]);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_lit(&mut self, literal: &'ast syn::ExprLit) {
        match &literal.lit {
            syn::Lit::Int(int) => {
                let Ok(number) = int.base10_parse::<u64>() else { return };
                let others = [Some(number + 1), number.checked_sub(1)].into_iter().flatten();
                let texts: Vec<String> = others.map(|other| format!("{other}{}", int.suffix())).collect();
                self.replace(literal, &texts.iter().map(String::as_str).collect::<Vec<_>>());
            }
            syn::Lit::Bool(truth) => self.replace(literal, &[if truth.value { "false" } else { "true" }]),
            _ => {}
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        let other = match call.method.to_string().as_str() {
            "min" => Some("max"),
            "max" => Some("min"),
            "any" => Some("all"),
            "all" => Some("any"),
            "is_some_and" => Some("is_none_or"),
            "is_none_or" => Some("is_some_and"),
            _ => None,
        };
        self.add(Form::Value, range(call.span()), other.map(|other| (range(call.method.span()), other)));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_if(&mut self, branch: &'ast syn::ExprIf) {
        self.condition(&branch.cond, &["true", "false"]);
        visit::visit_expr_if(self, branch);
    }

    fn visit_expr_while(&mut self, repeated: &'ast syn::ExprWhile) {
        self.condition(&repeated.cond, &["false"]);
        visit::visit_expr_while(self, repeated);
    }

    fn visit_expr_match(&mut self, matched: &'ast syn::ExprMatch) {
        let caught = matched.arms.last().is_some_and(is_catch_all);
        for arm in &matched.arms {
            let end = range(arm.pat.span()).end;
            match &arm.guard {
                Some((_, guard)) => self.condition(guard, &["true", "false"]),
                None if caught && !is_catch_all(arm) => self.add(Form::Arm, end..end, [(end..end, " if false")]),
                None => {}
            }
        }
        visit::visit_expr_match(self, matched);
    }
}

/// An arm that matches whatever is left: `_`, or a name. What begins with a capital letter is a constant or a variant.
fn is_catch_all(arm: &syn::Arm) -> bool {
    let names = |pattern: &syn::PatIdent| pattern.ident.to_string().starts_with(|first: char| first.is_lowercase());
    let all = match &arm.pat {
        syn::Pat::Wild(_) => true,
        syn::Pat::Ident(pattern) => names(pattern),
        _ => false,
    };
    all && arm.guard.is_none()
}

fn range(span: Span) -> Range<usize> {
    span.byte_range()
}

/// Whether it assigns, and the operators that take its place.
fn swapped(operator: &BinOp) -> (bool, &'static [&'static str]) {
    match operator {
        BinOp::Lt(_) => (false, &["<=", ">="]),
        BinOp::Le(_) => (false, &["<", ">"]),
        BinOp::Gt(_) => (false, &[">=", "<="]),
        BinOp::Ge(_) => (false, &[">", "<"]),
        BinOp::Eq(_) => (false, &["!="]),
        BinOp::Ne(_) => (false, &["=="]),
        BinOp::Add(_) => (false, &["-"]),
        BinOp::Sub(_) => (false, &["+"]),
        BinOp::Mul(_) => (false, &["/"]),
        BinOp::Div(_) | BinOp::Rem(_) => (false, &["*"]),
        BinOp::And(_) => (false, &["||"]),
        BinOp::Or(_) => (false, &["&&"]),
        BinOp::BitAnd(_) | BinOp::BitXor(_) => (false, &["|"]),
        BinOp::BitOr(_) => (false, &["&"]),
        BinOp::Shl(_) => (false, &[">>"]),
        BinOp::Shr(_) => (false, &["<<"]),
        BinOp::AddAssign(_) => (true, &["-="]),
        BinOp::SubAssign(_) => (true, &["+="]),
        BinOp::BitAndAssign(_) | BinOp::BitXorAssign(_) => (true, &["|="]),
        BinOp::BitOrAssign(_) => (true, &["&="]),
        _ => (true, &[]),
    }
}

/// Values of the type that a function returns.
fn returned(output: &ReturnType) -> Vec<&'static str> {
    let ReturnType::Type(_, returned) = output else { return vec![""] };
    let Type::Path(path) = &**returned else { return Vec::new() };
    let name = path.path.segments.last().map(|segment| segment.ident.to_string());
    match name.as_deref() {
        Some("bool") => vec!["true", "false"],
        Some("u8" | "u16" | "u32" | "u64" | "u128" | "usize" | "i32" | "i64" | "i128") => vec!["0", "1"],
        Some("Option") => vec!["None"],
        Some("Duration") => vec!["std::time::Duration::ZERO"],
        _ => Vec::new(),
    }
}

/// `let` in a condition binds names for what follows, so that no block may be put around it.
fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let names_test = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string().contains("test"),
        _ => false,
    };
    attributes.iter().any(names_test)
}

fn is_debug(item: &syn::Item) -> bool {
    let syn::Item::Impl(syn::ItemImpl { trait_: Some((_, path, _)), .. }) = item else { return false };
    path.segments.last().is_some_and(|segment| segment.ident == "Debug")
}
