//! The text of a Rust file with all of its mutants, each behind a switch, so that one build serves them all.

use std::ops::Range;

use super::Edit;
use super::places::{Form, Place};

/// Read once: the mutant that the program is.
pub const SWITCH: &str = "
#[doc(hidden)]
#[inline]
pub fn mutant(number: usize) -> bool {
    static NUMBER: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    let read = || std::env::var(\"TALLYGATE_MUTANT\").map_or(0, |number| number.parse().expect(\"a number\"));
    *NUMBER.get_or_init(read) == number
}
";

/// A file with switches.
pub struct Switched {
    pub text: String,
    /// For each mutant, by its number, where its own code is; and for each place, where it is and which mutants it has.
    own: Vec<(usize, Range<usize>)>,
    places: Vec<(Range<usize>, Vec<usize>)>,
}

impl Switched {
    /// `places` as they are found in the source, with the number of each edit, or none if it does not compile.
    pub fn new(source: &str, places: &[(&Place, &Vec<Option<usize>>)]) -> Self {
        let mut switched = Self { text: String::new(), own: Vec::new(), places: Vec::new() };
        switched.write(source, 0..source.len(), places);
        switched
    }

    /// The mutants to blame for an error of the compiler at this place: that whose code it is, else all of the innermost place.
    pub fn at(&self, offset: usize) -> Vec<usize> {
        let own: Vec<usize> =
            self.own.iter().filter(|(_, range)| range.contains(&offset)).map(|(number, _)| *number).collect();
        if !own.is_empty() {
            return own;
        }
        let around = self.places.iter().filter(|(range, _)| range.contains(&offset));
        around.min_by_key(|(range, _)| range.len()).map(|(_, numbers)| numbers.clone()).unwrap_or_default()
    }

    /// Writes a part of the source, in which only these places are.
    fn write(&mut self, source: &str, part: Range<usize>, mut places: &[(&Place, &Vec<Option<usize>>)]) {
        let mut at = part.start;
        while let Some(((place, numbers), rest)) = places.split_first() {
            let inner = rest.iter().take_while(|(inner, _)| inner.range.start < place.range.end).count();
            self.text.push_str(&source[at..place.range.start]);
            let start = self.text.len();
            let edits: Vec<(usize, &Edit)> = numbers
                .iter()
                .zip(&place.edits)
                .filter_map(|(number, edit)| number.map(|number| (number, edit)))
                .collect();
            self.open(source, place, &edits);
            self.write(source, place.range.clone(), &rest[..inner]);
            if let (false, Some(close)) = (edits.is_empty(), close(place.form)) {
                self.text.push_str(close);
            }
            self.places.push((start..self.text.len(), edits.iter().map(|(number, _)| *number).collect()));
            (at, places) = (place.range.end, &rest[inner..]);
        }
        self.text.push_str(&source[at..part.end]);
    }

    /// What stands before a place.
    fn open(&mut self, source: &str, place: &Place, edits: &[(usize, &Edit)]) {
        if place.form == Form::Value && !edits.is_empty() {
            self.text.push('(');
        }
        for (number, edit) in edits {
            match place.form {
                Form::Statement => self.text.push_str(&format!("if !crate::mutant({number}) {{ ")),
                Form::Arm => self.text.push_str(&format!(" if !crate::mutant({number})")),
                Form::Start => self.own(*number, &format!(" if crate::mutant({number}) {{{} }}", edit.text)),
                Form::Value => {
                    let before = &source[place.range.start..edit.range.start];
                    let after = &source[edit.range.end..place.range.end];
                    self.text.push_str(&format!("if crate::mutant({number}) {{ "));
                    self.own(*number, &format!("{before}{}{after}", edit.text));
                    self.text.push_str(" } else ");
                }
            }
        }
        if place.form == Form::Value && !edits.is_empty() {
            self.text.push_str("{ ");
        }
    }

    fn own(&mut self, number: usize, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        self.own.push((number, start..self.text.len()));
    }
}

fn close(form: Form) -> Option<&'static str> {
    match form {
        Form::Statement => Some(" }"),
        Form::Value => Some(" })"),
        Form::Start | Form::Arm => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::places::places;
    use super::*;

    /// With every mutant but those that are unviable, numbered from 1.
    fn switched(source: &str, unviable: &[usize]) -> Switched {
        let mut next = 1..;
        let mut number = |_: &Edit| next.next().filter(|number| !unviable.contains(number));
        let places = places(source).unwrap();
        let numbered: Vec<Vec<_>> = places.iter().map(|place| place.edits.iter().map(&mut number).collect()).collect();
        Switched::new(source, &places.iter().zip(&numbered).collect::<Vec<_>>())
    }

    #[test]
    fn a_switch_is_around_each_place() {
        assert_eq!(
            switched("fn f() -> u8 { a }", &[]).text,
            "fn f() -> u8 { if crate::mutant(1) { return 0; } if crate::mutant(2) { return 1; } a }"
        );
        assert_eq!(
            switched("fn f() -> T { a + b * c }", &[]).text,
            "fn f() -> T { (if crate::mutant(1) { a - b * c } else { a + (if crate::mutant(2) { b / c } else { b * c }) }) }"
        );
        assert_eq!(switched("fn f() -> T { a(); c }", &[]).text, "fn f() -> T { if !crate::mutant(1) { a(); } c }");
        let arms = "fn f() -> T { match a { B => c, D if e => f, _ => g } }";
        assert_eq!(
            switched(arms, &[]).text,
            "fn f() -> T { match a { B if !crate::mutant(1) => c, \
             D if (if crate::mutant(2) { true } else if crate::mutant(3) { false } else { e }) => f, _ => g } }"
        );
    }

    #[test]
    fn constants_and_tests_have_none() {
        for source in [
            "const A: u8 = 1 + 2;",
            "#[cfg(test)] mod tests { fn f() -> u8 { 1 } }",
            "const fn f() -> u8 { 1 }",
            "fn f() -> T { assert!(1 < 2) }",
        ] {
            assert_eq!(switched(source, &[]).text, source);
        }
    }

    #[test]
    fn what_does_not_compile_is_left_out() {
        let source = "fn f() -> T { a + b }";
        let all = switched(source, &[]);
        assert_eq!(all.at(all.text.find("a - b").unwrap() + 2), [1]);
        assert_eq!(all.at(all.text.find("a + b").unwrap()), [1], "as it is the only one of the place");
        assert_eq!(all.at(0), [0; 0]);
        assert_eq!(switched(source, &[1]).text, source);
    }
}
