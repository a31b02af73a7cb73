//! Mistyped words and what was probably meant.

/// How many letters must be changed, added or dropped to get from one word to the other: for "did you mean".
#[doc(hidden)]
pub fn edit_distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

/// The known word that was probably meant, if one is close enough.
#[doc(hidden)]
pub fn nearest<'w>(text: &str, known: &[&'w str]) -> Option<&'w str> {
    let near = known.iter().copied().min_by_key(|word| edit_distance(text, word))?;
    (edit_distance(text, near) <= (near.len() / 2).min(3)).then_some(near)
}
