//! A cluster: slots that nobody serves, nodes that fail, and settings that make one dead node the end of all.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::{Facts, Fields};
use super::finding::{DoctorCheck, Finding};

const CHECK: DoctorCheck = DoctorCheck::Cluster;
const SLOTS: u64 = 16384;
/// Milliseconds: how long a dead master keeps its slots before a replica takes over.
const LONG_TIMEOUT: u64 = 15_000;

/// What `CLUSTER NODES` of one node says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Nodes {
    /// By id: the address and the number of slots.
    masters: BTreeMap<String, (String, u64)>,
    /// Ids of the masters that replicas follow.
    followed: BTreeSet<String>,
    failing: Vec<String>,
    /// Slots that the node itself is giving away or taking over.
    moving: u64,
}

impl Nodes {
    /// `id host:port@bus[,name] flags master ping pong epoch link slot…`
    pub(super) fn parse(text: &str) -> Self {
        let mut nodes = Self::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let [id, address, flags, master, _, _, _, _, slots @ ..] = words.as_slice() else { continue };
            let address = address.split('@').next().unwrap_or_default();
            let flags: Vec<&str> = flags.split(',').collect();
            if flags.contains(&"fail") || flags.contains(&"fail?") {
                nodes.failing.push(address.to_owned());
            }
            if flags.contains(&"master") {
                let served = slots.iter().map(|range| width(range)).fold(0, u64::saturating_add);
                nodes.masters.insert((*id).to_owned(), (address.to_owned(), served));
            } else if flags.contains(&"slave") {
                nodes.followed.insert((*master).to_owned());
            }
            nodes.moving += slots.iter().filter(|slot| slot.starts_with('[')).count() as u64;
        }
        nodes
    }
}

/// `0-5460` or `77`; a slot that is being moved is written `[93->-…]`, and counted elsewhere.
fn width(range: &str) -> u64 {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) => last.saturating_sub(first).saturating_add(1),
        _ => 0,
    }
}

/// `CLUSTER INFO` of a node.
pub(super) fn judge_state(info: &Fields) -> Finding {
    let Some(state) = info.text("cluster_state") else {
        return Finding::unknown(CHECK, "the node does not say the state of the cluster");
    };
    let number = |name| info.number(name).unwrap_or(0);
    let unserved = SLOTS.saturating_sub(number("cluster_slots_assigned"));
    let (suspected, failing) = (number("cluster_slots_pfail"), number("cluster_slots_fail"));
    let size = number("cluster_size");
    if state != "ok" || unserved > 0 || failing > 0 {
        return Finding::problem(
            CHECK,
            format!("state {state}: {unserved} of {SLOTS} slots without an owner, {failing} with one that has failed"),
        )
        .means(6, "calls on these slots, and on all slots if cluster-require-full-coverage is yes, end in an error: on_error answers them")
        .fix("bring the failed nodes back or replace them, then assign the slots: redis-cli --cluster fix <host:port>");
    }
    if suspected > 0 {
        return Finding::warning(CHECK, format!("{suspected} slots have an owner that does not answer the others"))
            .means(6, "calls on them may fail until it is back, or a replica has taken over")
            .fix("look at CLUSTER NODES, and at the network and the load of the nodes marked fail?");
    }
    Finding::ok(CHECK, format!("all {SLOTS} slots are served by {size} masters"))
}

/// All masters, each with what it says of the nodes.
pub(super) fn judge_nodes(views: &[Nodes]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let moving: u64 = views.iter().map(|view| view.moving).fold(0, u64::saturating_add);
    if moving > 0 {
        findings.push(
            Finding::warning(CHECK, "slots are being moved")
                .means(
                    3,
                    "calls on several keys of such a slot are retried until their deadline, then on_error answers",
                )
                .fix("let it finish; if nobody is moving slots: redis-cli --cluster fix <host:port>"),
        );
    }
    let failing: BTreeSet<&str> = views.iter().flat_map(|view| &view.failing).map(String::as_str).collect();
    if !failing.is_empty() {
        let names = failing.into_iter().collect::<Vec<_>>().join(", ");
        findings.push(
            Finding::warning(CHECK, format!("nodes that do not answer: {names}"))
                .means(7, "one failure more may leave slots without an owner")
                .fix("bring them back, or remove them with redis-cli --cluster del-node"),
        );
    }
    let Some(view) = views.first() else { return findings };
    let alone = view.masters.iter().filter(|(id, (_, slots))| *slots > 0 && !view.followed.contains(*id));
    let alone: Vec<&str> = alone.map(|(_, (address, _))| address.as_str()).collect();
    if !alone.is_empty() {
        findings.push(
            Finding::warning(CHECK, format!("masters without a replica: {}", alone.join(", ")))
                .means(7, "if one is lost, the limits of its slots start over, and have no store until it is back")
                .fix("redis-cli --cluster add-node <new:port> <host:port> --cluster-slave, for each of them"),
        );
    }
    findings
}

pub(super) fn judge_settings(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if facts.setting("cluster-require-full-coverage") == Some("yes") {
        findings.push(
            Finding::warning(CHECK, "cluster-require-full-coverage yes")
                .means(6, "one dead master without a replica stops every shard, not only its own keys")
                .fix("CONFIG SET cluster-require-full-coverage no, on every node"),
        );
    }
    let timeout = facts.setting("cluster-node-timeout").and_then(|timeout| timeout.parse::<u64>().ok());
    if let Some(timeout) = timeout.filter(|timeout| *timeout > LONG_TIMEOUT) {
        findings.push(
            Finding::warning(CHECK, format!("cluster-node-timeout {timeout} ms"))
                .means(6, "the keys of a dead master are answered by on_error for at least that long")
                .fix("CONFIG SET cluster-node-timeout 5000, on every node"),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Ok, Problem, Unknown, Warning};
    use super::*;

    #[test]
    fn a_cluster_is_judged_by_its_slots() {
        let state = |text: &str| judge_state(&Fields::of_text(text)).severity;
        assert_eq!(state("cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_size:3"), Ok);
        assert_eq!(state("cluster_state:ok\ncluster_slots_assigned:16383"), Problem);
        assert_eq!(state("cluster_state:fail\ncluster_slots_assigned:16384"), Problem);
        assert_eq!(state("cluster_state:ok\ncluster_slots_assigned:16384\ncluster_slots_pfail:1"), Warning);
        assert_eq!(state("cluster_state:ok\ncluster_slots_assigned:99999999"), Ok);
        assert_eq!(state(""), Unknown);
    }

    #[test]
    fn nodes_are_read_as_they_are_written() {
        let nodes = Nodes::parse(
            "a 127.0.0.1:7000@17000,host myself,master - 0 0 1 connected 0-5460 [77->-b]\n\
             b 127.0.0.1:7001@17001 master - 0 0 2 connected 5461-16383\n\
             c 127.0.0.1:7002@17002 slave a 0 0 1 connected\n\
             d 127.0.0.1:7003@17003 master,fail - 0 0 0 disconnected\n\
             garbage\n x\n",
        );
        let found: Vec<String> = judge_nodes(&[nodes]).into_iter().map(|finding| finding.found).collect();
        assert_eq!(
            found,
            [
                "slots are being moved",
                "nodes that do not answer: 127.0.0.1:7003",
                "masters without a replica: 127.0.0.1:7001"
            ]
        );
        assert!(judge_nodes(&[Nodes::parse("")]).is_empty() && judge_nodes(&[]).is_empty());
        assert_eq!(width("0-18446744073709551615"), u64::MAX);
    }
}
