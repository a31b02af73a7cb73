//! Reads Lua far enough to mutate it: tokens, statements, conditions, operands and arguments.

use std::ops::Range;

use anyhow::{Result, bail};

use super::super::Edit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Name,
    Number,
    Text,
    Sign,
}

#[derive(Debug, Clone, Copy)]
struct Token<'a> {
    kind: Kind,
    at: usize,
    word: &'a str,
}

const KEYWORDS: [&str; 19] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil", "not", "or",
    "return", "then", "true", "while",
];
/// Of more than one character.
const SIGNS: [&str; 6] = ["...", "..", "==", "~=", "<=", ">="];

/// Comments are left out.
fn tokens(text: &str) -> Result<Vec<Token<'_>>> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        if first.is_whitespace() {
            at += first.len_utf8();
            continue;
        }
        if rest.starts_with("--") {
            let end = if rest.starts_with("--[[") { rest.find("]]").map(|end| end + 2) } else { rest.find('\n') };
            at += end.unwrap_or(rest.len());
            continue;
        }
        let length_while = |test: fn(char) -> bool| rest.find(|char| !test(char)).unwrap_or(rest.len());
        let (kind, length) = if first.is_ascii_digit() {
            (Kind::Number, length_while(|char| char.is_ascii_digit() || char == '.'))
        } else if first.is_alphabetic() || first == '_' {
            (Kind::Name, length_while(|char| char.is_alphanumeric() || char == '_'))
        } else if first == '\'' || first == '"' {
            let Some(end) = rest[1..].find(first) else { bail!("a string that is not closed: {rest}") };
            (Kind::Text, end + 2)
        } else {
            let long = SIGNS.iter().find(|sign| rest.starts_with(**sign));
            (Kind::Sign, long.map_or(first.len_utf8(), |sign| sign.len()))
        };
        tokens.push(Token { kind, at, word: &rest[..length] });
        at += length;
    }
    Ok(tokens)
}

/// All edits of a chunk, or an error if it is not Lua as our scripts use it.
pub fn edits(text: &str) -> Result<Vec<Edit>> {
    let mut parser = Parser { text, tokens: tokens(text)?, next: 0, edits: Vec::new() };
    parser.block()?;
    if let Some(token) = parser.tokens.get(parser.next) {
        bail!("unexpected `{}`", token.word);
    }
    parser.words();
    Ok(parser.edits)
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    next: usize,
    edits: Vec<Edit>,
}

/// Binary operators and how tightly they bind.
fn binding(word: &str) -> Option<u8> {
    Some(match word {
        "or" => 1,
        "and" => 2,
        "<" | ">" | "<=" | ">=" | "~=" | "==" => 3,
        ".." => 4,
        "+" | "-" => 5,
        "*" | "/" | "%" => 6,
        "^" => 8,
        _ => return None,
    })
}

const UNARY: u8 = 7;

impl<'a> Parser<'a> {
    fn word(&self) -> &'a str {
        self.tokens.get(self.next).map_or("", |token| token.word)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).map_or(self.text.len(), |token| token.at)
    }

    /// Where the last token ended.
    fn end(&self) -> usize {
        self.tokens[self.next - 1].at + self.tokens[self.next - 1].word.len()
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.word() == word;
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, word: &str) -> Result<()> {
        if self.take(word) { Ok(()) } else { bail!("`{word}` expected, found `{}` at {}", self.word(), self.at()) }
    }

    fn edit(&mut self, range: Range<usize>, text: impl Into<String>) {
        self.edits.push(Edit { range, text: text.into() });
    }

    fn block(&mut self) -> Result<()> {
        while !matches!(self.word(), "" | "end" | "else" | "elseif") {
            self.statement()?;
        }
        Ok(())
    }

    fn statement(&mut self) -> Result<()> {
        let start = self.at();
        match self.word() {
            "if" => {
                while matches!(self.word(), "if" | "elseif") {
                    self.next += 1;
                    let condition = self.expression(0)?;
                    let negated = format!("not ({})", &self.text[condition.clone()]);
                    for text in ["true", "false", &negated] {
                        self.edit(condition.clone(), text);
                    }
                    self.expect("then")?;
                    self.block()?;
                }
                if self.take("else") {
                    self.block()?;
                }
                self.expect("end")?;
            }
            "while" => {
                self.next += 1;
                self.expression(0)?;
                self.expect("do")?;
                self.block()?;
                self.expect("end")?;
                self.edit(start..self.end(), "");
            }
            "for" => {
                self.next += 1;
                while !matches!(self.word(), "=" | "in" | "") {
                    self.next += 1;
                }
                self.next += 1;
                self.expressions()?;
                self.expect("do")?;
                self.block()?;
                self.expect("end")?;
                self.edit(start..self.end(), "");
            }
            "local" => {
                self.next += 1;
                if self.take("function") {
                    self.next += 1;
                    self.body()?;
                } else {
                    self.next += 1;
                    while self.take(",") {
                        self.next += 1;
                    }
                    if self.take("=") {
                        self.expressions()?;
                    }
                }
            }
            "return" => {
                self.next += 1;
                if !matches!(self.word(), "" | "end" | "else" | "elseif") {
                    self.expressions()?;
                }
                self.edit(start..self.end(), "");
            }
            "break" => {
                self.next += 1;
                self.edit(start..self.end(), "");
            }
            _ => self.assignment_or_call(start)?,
        }
        Ok(())
    }

    fn assignment_or_call(&mut self, start: usize) -> Result<()> {
        let mut targets = vec![self.suffixed()?];
        while self.take(",") {
            targets.push(self.suffixed()?);
        }
        if self.take("=") {
            let values = self.expressions()?;
            if targets.len() > 1 && targets.len() == values.len() {
                for (target, value) in targets.into_iter().zip(values) {
                    let kept = self.text[target].to_owned();
                    self.edit(value, kept);
                }
            }
        }
        self.edit(start..self.end(), "");
        Ok(())
    }

    fn expressions(&mut self) -> Result<Vec<Range<usize>>> {
        let mut all = vec![self.expression(0)?];
        while self.take(",") {
            all.push(self.expression(0)?);
        }
        Ok(all)
    }

    fn expression(&mut self, loosest: u8) -> Result<Range<usize>> {
        let start = self.at();
        match self.word() {
            "not" => {
                self.next += 1;
                let operand = self.expression(UNARY)?;
                self.edit(start..operand.start, "");
            }
            "-" => {
                self.next += 1;
                self.expression(UNARY)?;
                self.edit(start..start + 1, "");
            }
            "#" => {
                self.next += 1;
                self.expression(UNARY)?;
            }
            _ => self.primary()?,
        }
        while let Some(strength) = binding(self.word()).filter(|strength| *strength > loosest) {
            let sign = self.at()..self.at() + self.word().len();
            let (word, left) = (self.word(), start..self.end());
            self.next += 1;
            let right = self.expression(strength)?;
            self.operator(word, sign, left, right);
        }
        Ok(start..self.end())
    }

    fn operator(&mut self, word: &str, sign: Range<usize>, left: Range<usize>, right: Range<usize>) {
        let others: &[&str] = match word {
            "<" => &["<=", ">="],
            "<=" => &["<", ">"],
            ">" => &[">=", "<="],
            ">=" => &[">", "<"],
            "==" => &["~="],
            "~=" => &["=="],
            "+" => &["-"],
            "-" => &["+"],
            "*" => &["/"],
            "/" | "%" | "^" => &["*"],
            "and" => &["or"],
            "or" => &["and"],
            _ => &[],
        };
        for other in others {
            self.edit(sign.clone(), *other);
        }
        // One operand alone.
        if matches!(word, "and" | "or" | "..") {
            let whole = left.start..right.end;
            for operand in [left, right] {
                let kept = self.text[operand].to_owned();
                self.edit(whole.clone(), kept);
            }
        }
    }

    fn primary(&mut self) -> Result<()> {
        let Some(token) = self.tokens.get(self.next).copied() else { bail!("an expression is missing at the end") };
        match (token.kind, token.word) {
            (Kind::Number | Kind::Text, _) | (_, "nil" | "true" | "false" | "...") => self.next += 1,
            (_, "{") => self.table()?,
            (_, "function") => {
                self.next += 1;
                self.body()?;
            }
            _ => {
                self.suffixed()?;
            }
        }
        Ok(())
    }

    fn table(&mut self) -> Result<()> {
        self.expect("{")?;
        while self.word() != "}" {
            self.expression(0)?;
            // What came before was the name of a field.
            if self.take("=") {
                self.expression(0)?;
            }
            if !self.take(",") {
                break;
            }
        }
        self.expect("}")
    }

    /// Parameters and block of a function.
    fn body(&mut self) -> Result<()> {
        self.expect("(")?;
        while self.word() != ")" && !self.word().is_empty() {
            self.next += 1;
        }
        self.expect(")")?;
        self.block()?;
        self.expect("end")
    }

    /// A name or an expression in parentheses, and the fields, indices and calls after it.
    fn suffixed(&mut self) -> Result<Range<usize>> {
        let start = self.at();
        if self.take("(") {
            self.expression(0)?;
            self.expect(")")?;
        } else {
            let is_name = self.tokens.get(self.next).is_some_and(|token| token.kind == Kind::Name);
            if !is_name || KEYWORDS.contains(&self.word()) {
                bail!("a name expected, found `{}` at {}", self.word(), self.at());
            }
            self.next += 1;
        }
        loop {
            match self.word() {
                "." => self.next += 2,
                "[" => {
                    self.next += 1;
                    self.expression(0)?;
                    self.expect("]")?;
                }
                "(" => {
                    self.next += 1;
                    let arguments = if self.word() == ")" { Vec::new() } else { self.expressions()? };
                    self.expect(")")?;
                    self.options(&arguments);
                }
                _ => return Ok(start..self.end()),
            }
        }
    }

    /// The options of a command can be left out, `PX` with its value.
    fn options(&mut self, arguments: &[Range<usize>]) {
        for (place, argument) in arguments.iter().enumerate().skip(1) {
            let last = match &self.text[argument.clone()] {
                "'PX'" => place + 1,
                "'XX'" | "'KEEPTTL'" => place,
                _ => continue,
            };
            if let Some(last) = arguments.get(last) {
                self.edit(arguments[place - 1].end..last.end, "");
            }
        }
    }

    /// Constants and functions.
    fn words(&mut self) {
        let mut found = Vec::new();
        for (place, token) in self.tokens.iter().enumerate() {
            let range = token.at..token.at + token.word.len();
            let mut change = |text: String| found.push(Edit { range: range.clone(), text });
            match (token.kind, token.word) {
                (Kind::Number, word) => {
                    let Ok(number) = word.parse::<u64>() else { continue };
                    change((number + 1).to_string());
                    if number > 0 {
                        change((number - 1).to_string());
                    }
                }
                (Kind::Text, word) if word.len() > 2 => change("''".to_owned()),
                (_, "true") => change("false".to_owned()),
                (_, "false") => change("true".to_owned()),
                (_, "floor") => change("ceil".to_owned()),
                (_, "ceil") => change("floor".to_owned()),
                (_, "min") => change("max".to_owned()),
                (_, "max") => change("min".to_owned()),
                (_, "pcall") if place > 1 && self.tokens[place - 2].word == "redis" => change("call".to_owned()),
                _ => {}
            }
        }
        self.edits.extend(found);
    }
}
