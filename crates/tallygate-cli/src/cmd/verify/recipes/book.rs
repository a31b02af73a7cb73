//! The recipes, as they stand in blog posts, answers and libraries.

mod buckets;
mod counters;
mod logs;

use super::recipe::Recipe;

/// All of them, in the order of their letters.
pub(crate) fn all() -> Vec<Recipe> {
    let mut all: Vec<Recipe> = counters::all().into_iter().chain(logs::all()).chain(buckets::all()).collect();
    all.sort_by_key(|recipe| recipe.letter);
    all
}
