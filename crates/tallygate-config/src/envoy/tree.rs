//! How envoyproxy/ratelimit finds a rule: down the tree, one entry of a descriptor for each level.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tallygate::policy::{Description, Descriptor, Match, Matcher, Pattern, Policy, Reason, Subject};

/// The rules of a domain.
///
/// At each level the entry is looked up as `key_value`, then among the patterns in file order, then as `key`. The first
/// found is taken, without backtracking. A rule applies only if the descriptor ends at it.
#[derive(Debug)]
pub(crate) struct Tree {
    root: Branch,
    policies: Vec<Arc<Policy>>,
}

/// A descriptor of the file and those below it.
#[derive(Debug, Default)]
pub(super) struct Branch {
    below: HashMap<String, Branch>,
    /// Those below that have a `*`.
    patterns: Vec<(Pattern, String)>,
    pub leaf: Option<Leaf>,
    /// Whether all values of its pattern are counted together.
    pub shared: bool,
}

#[derive(Debug)]
pub(super) struct Leaf {
    pub policy: Arc<Policy>,
    /// The descriptors that lead to it.
    pub description: Description,
    /// The name by which other rules replace it.
    pub name: Option<String>,
    /// The names of the rules that do not apply where this one does.
    pub replaces: Vec<String>,
    pub unlimited: bool,
}

impl Branch {
    /// `own` is `key`, or `key_value`.
    pub fn add(&mut self, own: String, branch: Self) {
        let pattern = Pattern::new(&own);
        if pattern.has_star() {
            self.patterns.push((pattern, own.clone()));
        }
        self.below.insert(own, branch);
    }

    fn leaves(&self) -> Vec<&Leaf> {
        let below = self.below.values().flat_map(Self::leaves);
        self.leaf.iter().chain(below).collect()
    }
}

/// The rule that a descriptor leads to and its subject, or why there is none.
type Walk<'t> = Result<(&'t Leaf, Subject), String>;

impl Tree {
    pub(super) fn new(root: Branch, policies: Vec<Arc<Policy>>) -> Self {
        Self { root, policies }
    }

    pub fn policies(&self) -> &[Arc<Policy>] {
        &self.policies
    }

    /// The names in `replaces` that no rule has.
    pub(super) fn replaced_by_none(&self) -> Vec<&str> {
        let leaves = self.root.leaves();
        let named: HashSet<&str> = leaves.iter().filter_map(|leaf| leaf.name.as_deref()).collect();
        let replaced: HashSet<&str> = leaves.iter().flat_map(|leaf| &leaf.replaces).map(String::as_str).collect();
        let mut missing: Vec<&str> = replaced.difference(&named).copied().collect();
        missing.sort_unstable();
        missing
    }

    fn walk(&self, descriptor: &Descriptor) -> Walk<'_> {
        let mut branch = &self.root;
        let mut counted: Vec<(&str, &str)> = Vec::new();
        for (key, value) in descriptor.entries() {
            let full = format!("{key}_{value}");
            let by_pattern = || branch.patterns.iter().find(|(pattern, _)| pattern.matches(&full)).map(|(_, own)| own);
            let (own, next) = match branch.below.get_key_value(&full) {
                Some((own, next)) => (own, Some(next)),
                None => by_pattern().map_or((key, branch.below.get(key)), |own| (own, branch.below.get(own))),
            };
            let Some(next) = next else {
                return Err(format!("there is none for `{key}` = `{value}`"));
            };
            let pattern = own.strip_prefix(key.as_str()).and_then(|rest| rest.strip_prefix('_')).unwrap_or(own);
            counted.push((key, if next.shared { pattern } else { value }));
            branch = next;
        }
        match &branch.leaf {
            Some(leaf) => Ok((leaf, Subject::new(counted))),
            None => Err("the descriptor ends before a limit is reached".to_owned()),
        }
    }

    /// The rule of each descriptor, and the names that are replaced.
    fn walks(&self, descriptors: &[&Descriptor]) -> (Vec<Walk<'_>>, HashSet<&str>) {
        let walks: Vec<Walk<'_>> = descriptors.iter().map(|descriptor| self.walk(descriptor)).collect();
        let replaced = walks.iter().flatten().flat_map(|(leaf, _)| &leaf.replaces).map(String::as_str).collect();
        (walks, replaced)
    }
}

fn is_replaced(leaf: &Leaf, replaced: &HashSet<&str>) -> bool {
    // An unlimited rule is never replaced.
    !leaf.unlimited && leaf.name.as_deref().is_some_and(|name| replaced.contains(name))
}

impl Matcher for Tree {
    fn find(&self, descriptors: &[&Descriptor]) -> Vec<Match> {
        let (walks, replaced) = self.walks(descriptors);
        let found = walks.into_iter().enumerate().filter_map(|(descriptor, walk)| match walk {
            Ok((leaf, subject)) if !is_replaced(leaf, &replaced) => {
                Some(Match::new(Arc::clone(&leaf.policy), descriptor, subject))
            }
            _ => None,
        });
        found.collect()
    }

    fn explain(&self, descriptors: &[&Descriptor]) -> Vec<Reason> {
        let (walks, replaced) = self.walks(descriptors);
        let mut reasons = Vec::new();
        for policy in &self.policies {
            for (descriptor, walk) in walks.iter().enumerate() {
                let (matched, because) = match walk {
                    Ok((leaf, _)) if !Arc::ptr_eq(&leaf.policy, policy) => {
                        (false, format!("the descriptor leads to `{}`", leaf.policy.name()))
                    }
                    Ok((leaf, _)) if is_replaced(leaf, &replaced) => {
                        (false, "the descriptor leads here, but another rule of this call replaces it".to_owned())
                    }
                    Ok((_, subject)) => (true, format!("the descriptor leads here; it counts {}", subject.as_str())),
                    Err(why) => (false, format!("the descriptor leads to no rule: {why}")),
                };
                reasons.push(Reason::new(Arc::clone(policy), descriptor, matched, because));
            }
        }
        reasons
    }

    fn describe(&self) -> Vec<(Arc<Policy>, Description)> {
        let leaves = self.root.leaves().into_iter().map(|leaf| (leaf.policy.name(), &leaf.description));
        let leaves: HashMap<&str, &Description> = leaves.collect();
        self.policies.iter().map(|policy| (Arc::clone(policy), leaves[policy.name()].clone())).collect()
    }
}
